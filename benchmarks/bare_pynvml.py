"""A stand-in for nvidia-ml-py where it is missing: the calls of NVML that measuring makes.

Names, arguments and results are pynvml's. Only `gpu_measure` puts it in pynvml's place.
"""
# ruff: noqa: N802, N816

import ctypes
import sys
import types
from ctypes import byref, c_char, c_double, c_uint, c_ulonglong, c_void_p
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION = 1, 1
NVML_ERROR_NOT_FOUND, NVML_ERROR_TIMEOUT = 6, 10
nvmlEventTypeXidCriticalError = 8
nvmlMemory_v2 = 2 << 24 | 40  # the version, and the struct's size
_INSUFFICIENT_SIZE, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND = 7, 12, 13
_NOT_AVAILABLE = c_ulonglong(-1).value
_LONGEST = 96
_library: ctypes.CDLL | None = None


class NVMLError(Exception):
    """NVML's word of a call that failed; `value` is its number."""

    def __init__(self, value: int) -> None:
        ours = {
            _LIBRARY_NOT_FOUND: "there is no libnvidia-ml.so.1",
            _FUNCTION_NOT_FOUND: "this driver has no such call",
        }
        super().__init__(ours.get(value, f"error {value}"))
        self.value = value
        if _library is not None and value not in ours:
            says = _library.nvmlErrorString
            says.restype = ctypes.c_char_p
            self.args = (says(value).decode(),)


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Pci(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    )


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("timeStamp", c_ulonglong),
        ("smUtil", c_uint),
        ("memUtil", c_uint),
        ("encUtil", c_uint),
        ("decUtil", c_uint),
    )


class _Value(ctypes.Union):
    _fields_ = (("dVal", c_double), ("uiVal", c_uint), ("ullVal", c_ulonglong))


class _Field(ctypes.Structure):
    _fields_ = (
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", _Value),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


class _Support(ctypes.Structure):
    _fields_ = (("version", c_uint), ("isSupportedDevice", c_uint))


class _Told(ctypes.Structure):
    _fields_ = (
        ("shortName", ctypes.c_char_p),
        ("longName", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),
    )


class _Metric(ctypes.Structure):
    _fields_ = (
        ("metricId", c_uint),
        ("nvmlReturn", c_uint),
        ("value", c_double),
        ("metricInfo", _Told),
    )


class c_nvmlGpmMetricsGet_t(ctypes.Structure):  # noqa: N801 - pynvml's name of it
    """The request for metrics of two samples; a driver knows 98 metrics or more."""

    _fields_ = (
        ("version", c_uint),
        ("numMetrics", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
        ("metrics", _Metric * 512),
    )


def _call(name: str, *args: Any) -> None:
    if _library is None:
        raise NVMLError(_LIBRARY_NOT_FOUND)
    try:
        function = getattr(_library, name)
    except AttributeError as error:
        raise NVMLError(_FUNCTION_NOT_FOUND) from error
    if code := function(*args):
        raise NVMLError(code)


def _text(name: str, *args: Any) -> str:
    buffer = (c_char * _LONGEST)()
    _call(name, *args, buffer, c_uint(_LONGEST))
    return buffer.value.decode()


def _number(name: str, *args: Any) -> int:
    found = c_uint()
    _call(name, *args, byref(found))
    return found.value


def nvmlInit() -> None:
    global _library  # noqa: PLW0603 - as pynvml keeps it
    try:
        _library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NVMLError(_LIBRARY_NOT_FOUND) from error
    _call("nvmlInit_v2")


def nvmlShutdown() -> None:
    _call("nvmlShutdown")


def nvmlSystemGetDriverVersion() -> str:
    return _text("nvmlSystemGetDriverVersion")


def nvmlDeviceGetHandleByIndex(index: int) -> c_void_p:
    handle = c_void_p()
    _call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
    return handle


def nvmlDeviceGetHandleByUUID(uuid: str) -> c_void_p:
    handle = c_void_p()
    _call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(handle))
    return handle


def nvmlDeviceGetName(handle: c_void_p) -> str:
    return _text("nvmlDeviceGetName", handle)


def nvmlDeviceGetUUID(handle: c_void_p) -> str:
    return _text("nvmlDeviceGetUUID", handle)


def nvmlDeviceGetMemoryInfo(handle: c_void_p, version: int = 0) -> Any:
    if version:
        newer = _MemoryV2(version)
        _call("nvmlDeviceGetMemoryInfo_v2", handle, byref(newer))
        return newer
    found = _Memory()
    _call("nvmlDeviceGetMemoryInfo", handle, byref(found))
    return found


def nvmlDeviceGetCount() -> int:
    return _number("nvmlDeviceGetCount_v2")


def nvmlDeviceGetMinorNumber(handle: c_void_p) -> int:
    return _number("nvmlDeviceGetMinorNumber", handle)


def nvmlDeviceGetPciInfo(handle: c_void_p) -> _Pci:
    found = _Pci()
    _call("nvmlDeviceGetPciInfo_v3", handle, byref(found))
    return found


def nvmlDeviceGetProcessUtilization(handle: c_void_p, since_us: int) -> list[Any]:
    name, count = "nvmlDeviceGetProcessUtilization", c_uint(0)
    try:
        _call(name, handle, None, byref(count), c_ulonglong(since_us))
    except NVMLError as error:
        if error.value != _INSUFFICIENT_SIZE:
            raise
    found = (_Sample * count.value)()
    _call(name, handle, found, byref(count), c_ulonglong(since_us))
    return list(found[: count.value])


def nvmlDeviceGetFieldValues(handle: c_void_p, fields: list[int]) -> Any:
    found = (_Field * len(fields))()
    for told, number in zip(found, fields, strict=True):
        told.fieldId = number
    _call("nvmlDeviceGetFieldValues", handle, ctypes.c_int(len(fields)), found)
    return found


def nvmlEventSetCreate() -> c_void_p:
    events = c_void_p()
    _call("nvmlEventSetCreate", byref(events))
    return events


def nvmlDeviceGetSupportedEventTypes(handle: c_void_p) -> int:
    found = c_ulonglong()
    _call("nvmlDeviceGetSupportedEventTypes", handle, byref(found))
    return found.value


def nvmlDeviceRegisterEvents(handle: c_void_p, types: int, events: c_void_p) -> None:
    _call("nvmlDeviceRegisterEvents", handle, c_ulonglong(types), events)


def nvmlEventSetWait_v2(events: c_void_p, timeout_ms: int) -> _Event:
    found = _Event()
    _call("nvmlEventSetWait_v2", events, byref(found), c_uint(timeout_ms))
    return found


def nvmlEventSetFree(events: c_void_p) -> None:
    _call("nvmlEventSetFree", events)


def nvmlDeviceGetUtilizationRates(handle: c_void_p) -> _Utilization:
    found = _Utilization()
    _call("nvmlDeviceGetUtilizationRates", handle, byref(found))
    return found


def nvmlDeviceGetPowerUsage(handle: c_void_p) -> int:
    return _number("nvmlDeviceGetPowerUsage", handle)


def nvmlDeviceGetClockInfo(handle: c_void_p, clock: int) -> int:
    return _number("nvmlDeviceGetClockInfo", handle, c_uint(clock))


def nvmlDeviceGetTemperature(handle: c_void_p, sensor: int) -> int:
    return _number("nvmlDeviceGetTemperature", handle, c_uint(sensor))


def nvmlDeviceGetComputeMode(handle: c_void_p) -> int:
    return _number("nvmlDeviceGetComputeMode", handle)


def nvmlDeviceGetMigMode(handle: c_void_p) -> list[int]:
    now, later = c_uint(), c_uint()
    _call("nvmlDeviceGetMigMode", handle, byref(now), byref(later))
    return [now.value, later.value]


def nvmlDeviceGetComputeRunningProcesses(handle: c_void_p) -> list[Any]:
    name, count = "nvmlDeviceGetComputeRunningProcesses_v3", c_uint(0)
    try:
        _call(name, handle, byref(count), None)
        return []
    except NVMLError as error:
        if error.value != _INSUFFICIENT_SIZE:
            raise
    count.value = 2 * count.value + 5
    found = (_Process * count.value)()
    _call(name, handle, byref(count), found)
    return [
        types.SimpleNamespace(
            pid=one.pid,
            usedGpuMemory=None if one.usedGpuMemory == _NOT_AVAILABLE else one.usedGpuMemory,
        )
        for one in found[: count.value]
    ]


def nvmlGpmQueryDeviceSupport(handle: c_void_p) -> _Support:
    found = _Support(NVML_GPM_SUPPORT_VERSION, 0)
    _call("nvmlGpmQueryDeviceSupport", handle, byref(found))
    return found


def nvmlGpmSampleAlloc() -> c_void_p:
    sample = c_void_p()
    _call("nvmlGpmSampleAlloc", byref(sample))
    return sample


def nvmlGpmSampleGet(handle: c_void_p, sample: c_void_p) -> c_void_p:
    _call("nvmlGpmSampleGet", handle, sample)
    return sample


def nvmlGpmSampleFree(sample: c_void_p) -> None:
    _call("nvmlGpmSampleFree", sample)


def nvmlGpmMetricsGet(asked: c_nvmlGpmMetricsGet_t) -> c_nvmlGpmMetricsGet_t:
    _call("nvmlGpmMetricsGet", byref(asked))
    return asked


def stand_in() -> None:
    """Be pynvml from here on, for whoever imports it."""
    sys.modules["pynvml"] = sys.modules[__name__]

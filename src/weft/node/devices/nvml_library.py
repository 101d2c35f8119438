"""Opens NVML's library, and calls it: many functions are unsupported on many GPUs."""

from collections.abc import Callable
from typing import Any

from weft.model.errors import install_extra
from weft.node.devices.reader import DeviceError, NoDriverError

MIB = 1 << 20


def library() -> Any:
    """Open `pynvml`; `DeviceError` if it is not installed, `NoDriverError` without a driver."""
    try:
        import pynvml
    except ImportError as error:
        raise DeviceError(f"no nvidia-ml-py here; {install_extra('gpu')}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriverError(f"no NVIDIA GPU found: NVML says: {error}") from error
    return pynvml


def ask(nvml: Any, question: Callable[[], Any]) -> Any:
    """Call NVML; return None if the call fails, mostly as GPU, driver or nvidia-ml-py lack it."""
    # raised if the driver is older than nvidia-ml-py
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", AttributeError)
    try:
        return question()
    except (nvml.NVMLError, AttributeError, mismatch):
        return None


def running(nvml: Any, handle: Any, kind: str = "Compute") -> list[Any]:
    """Return the processes of this kind (Compute, MPSCompute, Graphics) on a device, by the newest
    call that the driver supports."""
    for version in ("", "_v2"):
        name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
        processes = ask(nvml, lambda name=name: getattr(nvml, name)(handle))  # type: ignore[misc]
        if processes is not None:
            return list(processes)
    return []


def text(value: str | bytes) -> str:
    """Decode text that older versions of nvidia-ml-py return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def model_of(name: str) -> str:
    """Convert a GPU's name to the spelling of node labels: NVIDIA-H100-80GB-HBM3."""
    return "-".join(name.split())

"""A GPU's features through NVML; on Hopper and later by its GPM counters.

GPM needs no DCGM and no profiler: two samples are taken, and what happened between them is asked
for. NVML's two shares of time are there on every GPU, and are coarser: any kernel at all counts as
use.
"""

import math
from collections.abc import Callable
from typing import Any

from weft.lab.profiling.gpu_bench import BenchError, BenchGpu
from weft.model.errors import install_extra
from weft.model.metric import Metric

_MIB = 1 << 20

# Number of the metric, our name, what one of its unit is in ours (percent; MiB a second).
GPM = (
    (1, Metric.GRAPHICS_ACTIVE_RATIO.value, 0.01),
    (2, Metric.SM_ACTIVE_RATIO.value, 0.01),
    (3, Metric.SM_OCCUPANCY_RATIO.value, 0.01),
    (5, Metric.TENSOR_ACTIVE_RATIO.value, 0.01),
    (10, Metric.DRAM_ACTIVE_RATIO.value, 0.01),
    (11, "fp64_active_ratio", 0.01),
    (12, "fp32_active_ratio", 0.01),
    (13, "fp16_active_ratio", 0.01),
    (20, Metric.PCIE_SENT_BYTES_PER_S.value, _MIB),
    (21, Metric.PCIE_RECEIVED_BYTES_PER_S.value, _MIB),
)


def library() -> Any:
    """`pynvml`, opened; `BenchError` says what is missing."""
    try:
        import pynvml
    except ImportError as error:
        raise BenchError(f"no nvidia-ml-py here; {install_extra('gpu')}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise BenchError(f"no NVIDIA GPU found: NVML says: {error}") from error
    return pynvml


def model_of(name: str) -> str:
    """A GPU's name as nodes' labels spell it: NVIDIA-H100-80GB-HBM3."""
    return "-".join(name.split())


class NvmlGpu:
    """One GPU, by index or UUID. `close` gives NVML back."""

    def __init__(self, gpu: str, nvml: Any = None) -> None:
        """`BenchError` where there is no such GPU. `nvml` is the library, or what plays it."""
        self._nvml = nvml if nvml is not None else library()
        self._gpm: tuple[Any, Any] | None = None
        try:
            self._handle = self._find(gpu)
            if (self._ask(lambda: self._nvml.nvmlDeviceGetMigMode(self._handle)) or [0])[0]:
                raise BenchError(f"GPU {gpu}: is in MIG mode; name one that is whole with --gpu")
            self.card = self._card()
        except self._nvml.NVMLError as error:
            self.close()
            raise BenchError(f"GPU {gpu}: NVML says: {error}") from error
        except BenchError:
            self.close()
            raise

    def close(self) -> None:
        """Give back what was taken."""
        self._free()
        self._ask(self._nvml.nvmlShutdown)

    def _free(self) -> None:
        for sample in self._gpm or ():
            self._ask(lambda sample=sample: self._nvml.nvmlGpmSampleFree(sample))  # type: ignore[misc]
        self._gpm = None

    def sample(self) -> dict[str, float]:
        """Samples the load since the last call, and power, clocks and temperature now."""
        nvml, handle = self._nvml, self._handle
        counters = self._utilization() | (self._counters() if self._gpm else {})
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        sm_mhz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        memory_mhz = self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        temperature = self._ask(
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
        )
        now = {
            Metric.POWER_W.value: None if power is None else power / 1_000,
            Metric.SM_CLOCK_MHZ.value: sm_mhz,
            "memory_clock_mhz": memory_mhz,
            "temperature_c": temperature,
        }
        return counters | {name: float(value) for name, value in now.items() if value is not None}

    def one_process_only(self) -> bool:
        """True if it is set to exclusive-process (or to nobody): only MPS shares it then."""
        return (self._ask(lambda: self._nvml.nvmlDeviceGetComputeMode(self._handle)) or 0) != 0

    def memory_mib(self) -> tuple[int, int]:
        """(in use, free)."""
        memory = self._ask(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return (memory.used // _MIB, memory.free // _MIB) if memory is not None else (0, 0)

    def process_mib(self, pid: int) -> int | None:
        """The memory this process holds; None where NVML does not say."""
        used = [process.usedGpuMemory for process in self._processes() if process.pid == pid]
        return int(used[0] // _MIB) if used and used[0] else None

    def _processes(self) -> list[Any]:
        ask = self._nvml.nvmlDeviceGetComputeRunningProcesses
        return self._ask(lambda: ask(self._handle)) or []

    def _find(self, gpu: str) -> Any:
        if gpu.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        return self._nvml.nvmlDeviceGetHandleByUUID(gpu)

    def _card(self) -> BenchGpu:
        nvml, handle = self._nvml, self._handle
        support = self._ask(lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        if support is not None and getattr(support, "isSupportedDevice", support):
            first = self._ask(lambda: nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc()))
            second = self._ask(nvml.nvmlGpmSampleAlloc)
            self._gpm = (first, second) if first is not None and second is not None else None
        return BenchGpu(
            model_of(_text(nvml.nvmlDeviceGetName(handle))),
            _text(nvml.nvmlDeviceGetUUID(handle)),
            nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
            _text(self._ask(nvml.nvmlSystemGetDriverVersion) or ""),
            "nvml-gpm" if self._gpm else "nvml-utilization",
            others=len(self._processes()),
        )

    def _counters(self) -> dict[str, float]:
        """GPM's: between the sample that was kept and one taken now, which is kept."""
        nvml, counters = self._nvml, {}
        assert self._gpm is not None
        before, now = self._gpm
        if self._ask(lambda: nvml.nvmlGpmSampleGet(self._handle, now)) is None:
            return {}
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        query.sample1, query.sample2 = before, now
        for at, (number, _, _) in enumerate(GPM):
            query.metrics[at].metricId = number
        if self._ask(lambda: nvml.nvmlGpmMetricsGet(query)) is not None:
            for at, (_, name, scale) in enumerate(GPM):
                metric = query.metrics[at]
                if metric.nvmlReturn == 0 and math.isfinite(metric.value) and metric.value >= 0:
                    share = name.endswith("_ratio")  # a little over 1 by rounding
                    counters[name] = (
                        min(metric.value * scale, 1.0) if share else metric.value * scale
                    )
        self._gpm = (now, before)
        return counters

    def _utilization(self) -> dict[str, float]:
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        if rates is None:
            return {}
        return {
            Metric.GPU_UTIL_RATIO.value: min(rates.gpu / 100, 1.0),
            Metric.MEMORY_COPY_RATIO.value: min(rates.memory / 100, 1.0),
        }

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Calls NVML; None where the GPU or the driver has no answer."""
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):
            return None


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text

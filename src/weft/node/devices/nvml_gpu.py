"""One GPU that is ours alone, through NVML: what measuring on it needs to know."""

from typing import Any

import msgspec

from weft.node.devices import nvml_library
from weft.node.devices.nvml_counters import NvmlCounters
from weft.node.devices.nvml_library import MIB, ask, model_of, running, text
from weft.node.devices.reader import DeviceError


class NvmlCard(msgspec.Struct, frozen=True):
    """The GPU. `counters` says where its counters come from; `processes` were on it at first."""

    gpu_model: str
    uuid: str
    memory_mib: int
    driver: str
    counters: str
    processes: int


class NvmlGpu:
    """One GPU, by index or UUID. `close` gives NVML back."""

    def __init__(self, gpu: str, nvml: Any = None) -> None:
        """`DeviceError` where there is no such GPU. `nvml` is the library, or what plays it."""
        self._nvml = nvml if nvml is not None else nvml_library.library()
        self._counters: NvmlCounters | None = None
        try:
            self._handle = self._find(gpu)
            mode = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMigMode(self._handle))
            if (mode or [0])[0]:
                raise DeviceError(f"GPU {gpu}: is in MIG mode; name one that is whole with --gpu")
            self._counters = NvmlCounters(self._nvml, self._handle)
            self.card = self._card(self._counters)
        except self._nvml.NVMLError as error:
            self.close()
            raise DeviceError(f"GPU {gpu}: NVML says: {error}") from error
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Give back what was taken."""
        if self._counters is not None:
            self._counters.close()
        ask(self._nvml, self._nvml.nvmlShutdown)

    def sample(self) -> dict[str, float]:
        """Samples the load since the last call, and power, clocks and temperature now."""
        assert self._counters is not None
        return self._counters.sample()

    def one_process_only(self) -> bool:
        """True if it is set to exclusive-process (or to nobody): only MPS shares it then."""
        mode = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetComputeMode(self._handle))
        return (mode or 0) != 0

    def memory_mib(self) -> tuple[int, int]:
        """(in use, free)."""
        memory = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return (memory.used // MIB, memory.free // MIB) if memory is not None else (0, 0)

    def process_mib(self, pid: int) -> int | None:
        """The memory this process holds; None where NVML does not say."""
        used = [process.usedGpuMemory for process in self._processes() if process.pid == pid]
        return int(used[0] // MIB) if used and used[0] else None

    def _processes(self) -> list[Any]:
        return running(self._nvml, self._handle)

    def _find(self, gpu: str) -> Any:
        if gpu.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        return self._nvml.nvmlDeviceGetHandleByUUID(gpu)

    def _card(self, counters: NvmlCounters) -> NvmlCard:
        nvml, handle = self._nvml, self._handle
        return NvmlCard(
            model_of(text(nvml.nvmlDeviceGetName(handle))),
            text(nvml.nvmlDeviceGetUUID(handle)),
            nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
            text(ask(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
            "nvml-gpm" if counters.counted else "nvml-utilization",
            len(self._processes()),
        )

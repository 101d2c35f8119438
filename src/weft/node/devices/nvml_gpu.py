"""One GPU through NVML, for profiling programs on it."""

from typing import Any

import msgspec

from weft.node.devices import nvml_library
from weft.node.devices.nvml_counters import NvmlCounters
from weft.node.devices.nvml_library import MIB, ask, model_of, running, text
from weft.node.devices.reader import DeviceError


class NvmlCard(msgspec.Struct, frozen=True):
    """Facts about a GPU. `counters` names the source of its counters; `processes` is the number of
    processes on the GPU when it was opened."""

    gpu_model: str
    uuid: str
    memory_mib: int
    driver: str
    counters: str
    processes: int


class NvmlGpu:
    """One GPU, by index or UUID. `close` releases NVML."""

    def __init__(self, gpu: str, nvml: Any = None) -> None:
        """Raises `DeviceError` if there is no such GPU. `nvml` is the library, or a fake."""
        self._nvml = nvml if nvml is not None else nvml_library.library()
        self._counters: NvmlCounters | None = None
        try:
            self._handle = self._find(gpu)
            mode = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMigMode(self._handle))
            if (mode or [0])[0]:
                raise DeviceError(f"GPU {gpu}: is in MIG mode; choose one without MIG with --gpu")
            self._counters = NvmlCounters(self._nvml, self._handle)
            self.card = self._card(self._counters)
        except self._nvml.NVMLError as error:
            self.close()
            raise DeviceError(f"GPU {gpu}: NVML says: {error}") from error
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Release the counters and NVML."""
        if self._counters is not None:
            self._counters.close()
        ask(self._nvml, self._nvml.nvmlShutdown)

    def sample(self) -> dict[str, float]:
        """Return the load since the last call, and present power, clocks and temperature."""
        assert self._counters is not None
        return self._counters.sample()

    def one_process_only(self) -> bool:
        """Return True unless the GPU's compute mode is default: in mode exclusive-process only MPS
        can share the GPU, in mode prohibited nothing runs on it."""
        mode = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetComputeMode(self._handle))
        return (mode or 0) != 0

    def memory_mib(self) -> tuple[int, int]:
        """Return the memory in use and the free memory, MiB; (0, 0) if NVML does not report
        them."""
        memory = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return (memory.used // MIB, memory.free // MIB) if memory is not None else (0, 0)

    def process_mib(self, pid: int) -> int | None:
        """Return the memory that this process holds, MiB; None if NVML does not report it."""
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

"""A bench on this machine: its GPU through NVML with workloads as processes, or its CPU for trying
out.

The GPU must be for our exclusive use. Environment variables of the processes select the
isolation."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from weft.interference.dataset import MPS, TIME_SLICING
from weft.lab.profiling.gpu_bench import BenchError, BenchGpu, BenchResident
from weft.lab.profiling.processes import WorkloadProcess, path_of_workloads
from weft.lab.workloads.catalog import Workload
from weft.node.devices.mps import mps, no_mps
from weft.node.devices.nvml_gpu import NvmlGpu
from weft.node.devices.reader import DeviceError

CONTEXT_MIB = 500
"""Approximate MiB that CUDA itself takes per process, used if NVML shows no memory per process."""
SECONDS = 600.0
"""Workloads that are not paused stop by themselves after this time."""


class MachineOptions(msgspec.Struct, frozen=True):
    """Options for running workloads: `device` cuda or cpu, `gpu` as index or UUID, the Python to
    use.

    `tiny` sizes only show that everything works; their results mean nothing."""

    device: str = "cuda"
    gpu: str = "0"
    python: str = sys.executable
    warm_s: float = 1.5
    tiny: bool = False


class Machine:
    """A `Bench` on this machine; a context manager."""

    def __init__(self, how: MachineOptions) -> None:
        """Open the GPU; `BenchError` if there is no such GPU."""
        self._how, self._stack = how, ExitStack()
        with _bench_errors():
            self._gpu = NvmlGpu(how.gpu) if how.device == "cuda" else None
        if self._gpu is not None:
            self._stack.callback(self._gpu.close)
        self.card = _card_of(self._gpu) if self._gpu else BenchGpu("CPU", counters="none")
        try:
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-"))
            self._path = path_of_workloads(Path(scratch))
        except OSError as error:
            self._stack.close()
            raise BenchError(f"{error}: set TMPDIR to a writable folder") from error
        self._env: dict[str, str] | None = None

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def now_s(self) -> float:
        """Return CLOCK_MONOTONIC, which the workloads' stamps use too."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        time.sleep(seconds)

    @contextmanager
    def isolated(self, isolation: str) -> Iterator[None]:
        """Set up this isolation: time-slicing is CUDA's default, MPS needs a daemon. A CPU has only
        time-slicing."""
        if isolation not in (TIME_SLICING, MPS):
            raise BenchError(f"{isolation!r} is not an isolation that can be measured")
        if isolation == MPS and self._gpu is None:
            raise BenchError("MPS needs a GPU; leave it out of --isolation")
        if isolation == TIME_SLICING and self._gpu is not None and self._gpu.one_process_only():
            raise BenchError(
                f"GPU {self._how.gpu} takes one process at a time (its compute mode is not "
                "Default): leave time-slicing out of --isolation, or name another --gpu"
            )
        uuid = self.card.uuid or self._how.gpu
        with _bench_errors(), mps(uuid) if isolation == MPS else no_mps() as env:
            # Under MPS the GPU's index changes, as the daemon serves only one GPU: use the UUID.
            visible = {"CUDA_VISIBLE_DEVICES": uuid if self._gpu else ""}
            path = os.pathsep.join(filter(None, [self._path, os.environ.get("PYTHONPATH", "")]))
            self._env = {**env, **visible, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            try:
                yield
            finally:
                self._env = None

    def start(self, workload: Workload) -> BenchResident:
        """Start a workload as a process, which then loads itself and reports when it is loaded."""
        if self._env is None:
            raise BenchError("workloads can only be started within `isolated`")
        how = self._how
        command = [how.python, "-m", "weft.lab.workloads", "run", workload.name]
        command += ["--device", how.device, "--warm-seconds", f"{how.warm_s:g}"]
        command += ["--seconds", f"{SECONDS:g}", "--orders", *(["--tiny"] if how.tiny else [])]
        try:
            return WorkloadProcess(command, self._env)
        except OSError as error:
            raise BenchError(f"{how.python} does not start: {error}") from error

    def sample(self) -> dict[str, float]:
        """Return the GPU's features from its counters since the last call; empty for a CPU."""
        return self._gpu.sample() if self._gpu is not None else {}

    def free_mib(self) -> int | None:
        """Return the unused GPU memory in MiB; None for a CPU."""
        return self._gpu.memory_mib()[1] if self._gpu is not None else None

    def held_mib(self, resident: BenchResident) -> int:
        """Return the process' MiB as NVML shows it, else PyTorch's peak plus `CONTEXT_MIB`; 0 if
        unknown."""
        mib = None
        if self._gpu is not None and isinstance(resident, WorkloadProcess):
            mib = self._gpu.process_mib(resident.pid)
        peak = resident.report().peak_mib
        return mib if mib is not None else (peak + CONTEXT_MIB if peak else 0)


def _card_of(gpu: NvmlGpu) -> BenchGpu:
    card = gpu.card
    return BenchGpu(
        card.gpu_model,
        card.uuid,
        card.memory_mib,
        card.driver,
        card.counters,
        others=card.processes,
    )


@contextmanager
def _bench_errors() -> Iterator[None]:
    """Convert `DeviceError` into `BenchError` within this context."""
    try:
        yield
    except DeviceError as error:
        raise BenchError(str(error)) from error

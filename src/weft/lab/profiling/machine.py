"""A bench on this machine: its GPU through NVML with workloads as processes, or its CPU to try
the measurements.

The GPU must be for our exclusive use. Environment variables of the processes select the
isolation."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

import weft.lab.workloads
from weft.interference.dataset import MPS, TIME_SLICING
from weft.lab.profiling.gpu_bench import BenchError, BenchGpu, BenchResident, ResidentReport, Stamp
from weft.lab.workloads.catalog import Workload
from weft.node.devices.mps import mps, no_mps
from weft.node.devices.nvml_gpu import NvmlGpu
from weft.node.devices.reader import DeviceError

# --- processes ------------------------------------------------------------------------------------
# Runs workloads as processes: starts them, sends orders, reads their reports, ends them.
#
# The processes need PyTorch and Weft's workload files but not the rest of Weft, so any Python with
# PyTorch will do. Each is a process group of its own. It ends on request, when killed, or when this
# process ends, which closes the pipe of orders.


END_S = 10.0
_SHOWN = 500


class _Line(msgspec.Struct):
    """One line of output of `lab/workloads/running`."""

    event: str
    at_s: float = 0.0
    iterations: int = 0
    peak_mib: int = 0
    reason: str = ""
    text: str = ""
    torch: str = ""


_line = msgspec.json.Decoder(_Line)


class WorkloadProcess:
    """A `BenchResident` that is a process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the process; `OSError` if the program does not exist."""
        self._said, self._lock = ResidentReport(), threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._process = subprocess.Popen(
                list(command),
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise
        self.pid = self._process.pid
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def report(self) -> ResidentReport:
        """Return a copy of all that the process has reported so far."""
        with self._lock:
            return msgspec.structs.replace(self._said, stamps=list(self._said.stamps))

    def go(self) -> None:
        """Order the workload to run, and drop the stamps of earlier runs."""
        with self._lock:
            if self._said.state == "paused":
                self._said.state, self._said.stamps = "warming", []
        self._order(b"go\n")

    def pause(self) -> None:
        """Order the workload to stop running but stay loaded."""
        self._order(b"pause\n")

    def end(self) -> None:
        """Close the pipe of orders, wait up to `END_S` seconds for the process to end, then kill
        its process group."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return  # stuck in the kernel, for example in a hanging driver: it cannot be killed
        self._thread.join(END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _order(self, order: bytes) -> None:
        with suppress(OSError):  # it has ended, which its state shows
            assert self._process.stdin is not None
            self._process.stdin.write(order)
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with suppress(msgspec.DecodeError):
                self._hear(_line.decode(text))
        code = self._process.wait()
        with self._lock:
            if self._said.state not in {"ended", "failed"}:
                self._said.state = "failed"
                self._said.reason = f"signal {-code}" if code < 0 else f"exit code {code}"
                self._said.text = self._last_words()

    def _hear(self, line: _Line) -> None:
        with self._lock:
            report = self._said
            report.peak_mib = max(report.peak_mib, line.peak_mib)
            if line.event == "loaded":
                report.state, report.versions = "paused", line.torch
            elif line.event in {"steady", "progress"}:
                report.state = "steady"
                report.stamps.append(Stamp(line.at_s, line.iterations))
            elif line.event in {"paused", "ended"}:
                report.state = "paused" if line.event == "paused" else "ended"
            elif line.event == "failed":
                report.state, report.reason, report.text = "failed", line.reason, line.text

    def _last_words(self) -> str:
        with suppress(OSError, ValueError):
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - _SHOWN))
            return self._errors.read().decode("utf-8", "replace").strip()
        return ""


def path_of_workloads(folder: Path) -> str:
    """Build a PYTHONPATH in `folder` with only Weft's workloads.

    Other packages of this Python may not work with the Python that runs the workloads."""
    inside = folder / "weft" / "lab"
    inside.mkdir(parents=True)
    for package in (inside.parent, inside):
        (package / "__init__.py").write_text("")
    room = Path(weft.lab.workloads.__file__).parent
    (inside / "workloads").symlink_to(room, target_is_directory=True)
    return str(folder)


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

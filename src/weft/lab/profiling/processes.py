"""Runs workloads as processes: starts them, sends orders, reads their reports, ends them.

The processes need PyTorch and Weft's workload files but not the rest of Weft, so any Python with
PyTorch will do. Each is a process group of its own. It ends on request, when killed, or when this
process ends, which closes the pipe of orders."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

import weft.lab.workloads
from weft.lab.profiling.gpu_bench import ResidentReport, Stamp

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
        """Close the pipe of orders, then kill the process group after `END_S` seconds."""
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

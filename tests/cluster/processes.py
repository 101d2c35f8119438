"""Servers that tests start: each with a log of its own, and gone when the tests are gone."""

import abc
import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Self

PATIENCE_S = 60
_POLL_S = 0.02
_PORTS = range(20_000, 32_000)  # below the ports that outgoing connections take
_LAST_LINES = 40

# Linux kills a child whose parent's *thread* ended. So one thread that lives as long as this
# process starts them all: a test may restart a server from a thread that soon ends.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


def _stopped(pid: int) -> bool:
    """True if all threads of this process are stopped."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return {*states} == {"T"}


class ServerDiedError(Exception):
    """A server ended or did not become ready; the text has the end of its log."""


class Server:
    """One process in a process group of its own. `log` keeps what all its starts have written."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.command = [str(word) for word in command]
        self.log = log
        self.name = Path(self.command[0]).name
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """Its process id; an error where it does not run."""
        if self._process is None:
            raise ServerDiedError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Tells whether its process is there, stopped by `pause` or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; `wait_ready` then says when it answers."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = _starter.submit(
                subprocess.Popen,
                [*wrapper, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ).result()

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Until `ready()` is true. A server that ends is told of at once, not at the time-out."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running or time.monotonic() > deadline:
                fate = "is not ready" if self.running else "ended"
                raise ServerDiedError(f"{self.name} {fate}: {self.log}\n{self.last_lines()}")
            assert self._process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_S)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Ask it to end (SIGTERM), kill it if it does not; its exit code."""
        process = self._process
        if process is None:
            return 0
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
        self.kill()
        return process.returncode

    def kill(self) -> None:
        """End it and all it has started, at once (SIGKILL)."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): its sockets stay open and nobody answers.

        Its threads on other processors go on for a moment: it returns when all have stopped.
        """
        self._signal(signal.SIGSTOP)
        process, deadline = self._process, time.monotonic() + PATIENCE_S
        while self.running and process is not None and not _stopped(process.pid):
            assert time.monotonic() < deadline, f"{self.name} does not stop"
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def last_lines(self, count: int = _LAST_LINES) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def _signal(self, number: int) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class StartStop(abc.ABC):
    """A part that a test runs in a `with`: started there, and stopped even where its start
    fails."""

    @abc.abstractmethod
    def start(self) -> None:
        """All of it runs."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End all of it, as far as it was started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class HttpThread(StartStop):
    """An HTTP server that answers in a thread of the tests."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, daemon=True)

    def start(self) -> None:
        """Answer from now on; the server has its port already."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            break
    return found

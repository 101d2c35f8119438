"""Starts agents quickly, by forking a process that has already imported what an agent needs.

supervisor ──▶ server: the agent's own command, up to where it would begin
      "start" ──▶ forks: the child becomes the agent
      its process id ◀── and later its exit code

Imports take most of the time of a start. Server and agent share their memory; the server has one
thread, opens nothing, and waits. The death of a process ends the processes below it: the kernel
signals the agent when its server dies, and the server when its supervisor dies.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Protocol

from weft.node.supervisor.process_end import process_end

_FD = "WEFT_FORKS_FD"
_START = b"s"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Running(Protocol):
    """A process that was started; `asyncio.subprocess.Process` is one."""

    async def wait(self) -> int:
        """Wait until the process ends; return its exit code, or minus the number of the signal that
        killed it."""
        ...

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        ...


async def spawn(
    command: Sequence[str], more: Mapping[str, str] | None = None, fds: Sequence[int] = ()
) -> asyncio.subprocess.Process:
    """Start `command` with the variables `more` added to the environment and the open files `fds`;
    `OSError` if that fails."""
    return await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | dict(more or {}),
        pass_fds=tuple(fds),
        preexec_fn=lambda: _die_with_parent(signal.SIGTERM),
    )


class ForkServer:
    """The supervisor's connection to the server process that forks agents. `command` starts that
    process, and must run a program that calls `begin_when_told`."""

    def __init__(
        self, command: Sequence[str], more: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        self._command, self._more, self._fds = command, dict(more), tuple(fds)
        self._server: asyncio.subprocess.Process | None = None
        self._answers = asyncio.StreamReader()
        self._asks: asyncio.StreamWriter | None = None

    async def start(self) -> Running:
        """Start an agent, and the server if none runs. OSError if that fails."""
        if self._server is None or self._server.returncode is not None:
            await self._begin()
        server, asks = self._server, self._asks
        assert server is not None
        assert asks is not None
        with contextlib.suppress(ConnectionError):
            asks.write(_START)
            await asks.drain()
        pid = await self._number()
        return server if pid is None else _Forked(pid, self)

    async def ended(self, pid: int) -> int:
        """Wait for the running agent's end; return its exit code, or the server's if the server was
        killed."""
        code = await self._number()
        if code is not None:
            return code
        await _gone(pid)  # the kernel ends the agent too; the next one must not find it running
        assert self._server is not None
        return await self._server.wait()

    async def close(self) -> None:
        """End the server and wait for its end; call this only once no agent runs."""
        if self._asks is not None:
            self._asks.close()
        if self._server is not None:
            await self._server.wait()

    async def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            more = self._more | {_FD: str(theirs.fileno())}
            try:
                self._server = await spawn(self._command, more, (*self._fds, theirs.fileno()))
            except OSError:
                ours.close()
                raise
        if self._asks is not None:
            self._asks.close()
        self._answers, self._asks = await asyncio.open_connection(sock=ours)

    async def _number(self) -> int | None:
        """Return the number in the server's next answer; None if the server ended instead."""
        try:
            return int(await self._answers.readline() or b"none")
        except (ConnectionError, ValueError):
            return None


class _Forked:
    """An agent that the server forked, known by its process id."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self._pid, self._server = pid, server

    async def wait(self) -> int:
        return await self._server.ended(self._pid)

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)


async def _gone(pid: int) -> None:
    """Return once the process with this id has ended."""
    with contextlib.suppress(ProcessLookupError), process_end(pid) as (_, ended):
        await ended.wait()


def begin_when_told(environment: MutableMapping[str, str], modules: Sequence[str] = ()) -> None:
    """Return in a new process each time the supervisor requests an agent; without a supervisor,
    return at once.

    The server process imports `modules`, and exits in this function when its supervisor ends.
    """
    fd = environment.pop(_FD, "")
    if not fd:
        return
    for module in modules:
        importlib.import_module(module)
    _die_with_parent(signal.SIGKILL)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, signal.SIG_IGN)  # a terminal signals all: agents end first
    gc.collect()
    gc.freeze()  # keeps shared memory pages shared
    with socket.socket(fileno=int(fd)) as channel:
        while channel.recv(len(_START)):
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                _die_with_parent(signal.SIGTERM)
                if os.getppid() != server:
                    sys.exit(128 + signal.SIGTERM)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                return
            channel.sendall(b"%d\n" % pid)
            _, status = os.waitpid(pid, 0)
            channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    sys.exit(0)


def _die_with_parent(number: int) -> None:
    """Have the kernel send this signal when the parent dies: the next supervisor must not find two
    agents."""
    _libc.prctl(_PR_SET_PDEATHSIG, number)

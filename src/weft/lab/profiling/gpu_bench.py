"""The interface of a machine for measuring: a GPU with processes on it, or a fake."""

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from weft.lab.workloads.catalog import Workload

State = Literal["starting", "paused", "warming", "steady", "ended", "failed"]


class BenchGpu(msgspec.Struct, frozen=True):
    """The measured GPU. `counters` names the source of its features; a `fake` GPU measures nothing.

    `others` is the number of processes on it before measuring started, which should be 0."""

    gpu_model: str
    uuid: str = ""
    memory_mib: int = 0
    driver: str = ""
    counters: str = ""
    fake: bool = False
    others: int = 0


class Stamp(NamedTuple):
    """The number of iterations done at a time, in seconds of the bench's clock."""

    at_s: float
    iterations: int


class ResidentReport(msgspec.Struct):
    """Reports of a loaded workload; `stamps` are those since it last started running."""

    state: State = "starting"
    stamps: list[Stamp] = []
    reason: str = ""
    text: str = ""
    peak_mib: int = 0
    versions: str = ""


class BenchResident(Protocol):
    """A workload loaded on the GPU. It starts paused: holding GPU memory, but computing nothing."""

    def report(self) -> ResidentReport:
        """Return all that the workload has reported so far."""
        ...

    def go(self) -> None:
        """Start running."""
        ...

    def pause(self) -> None:
        """Stop running, but stay loaded."""
        ...

    def end(self) -> None:
        """End the workload; it is gone when this returns."""
        ...


class Bench(Protocol):
    """A GPU for our exclusive use. Times are seconds of a clock that workloads' stamps share."""

    card: BenchGpu

    def now_s(self) -> float:
        """Return the time in seconds of the bench's clock."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of the bench's clock."""
        ...

    def isolated(self, isolation: str) -> AbstractContextManager[None]:
        """Return a context in which newly started residents share the GPU with this isolation.

        `BenchError` if the machine does not support it."""
        ...

    def start(self, workload: Workload) -> BenchResident:
        """Start a workload, which reports when it is loaded."""
        ...

    def sample(self) -> dict[str, float]:
        """Return the value of each GPU feature since the last call, by name."""
        ...

    def free_mib(self) -> int | None:
        """Return the unused GPU memory in MiB; None if unknown."""
        ...

    def held_mib(self, resident: BenchResident) -> int:
        """Return the GPU memory in MiB that this loaded workload holds, or an estimate."""
        ...


class BenchError(Exception):
    """The machine lacks something that measuring needs, which the message names with the reason."""

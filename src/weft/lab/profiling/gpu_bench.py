"""The machine that measuring needs: a GPU with processes on it, or a fake one."""

from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from weft.lab.workloads.catalog import Workload

State = Literal["starting", "paused", "warming", "steady", "ended", "failed"]


class BenchGpu(msgspec.Struct, frozen=True):
    """The GPU. `counters` says where features come from; `fake` cards have measured nothing.

    `others` is how many processes were on it before anything was started: none is as it should be.
    """

    gpu_model: str
    uuid: str = ""
    memory_mib: int = 0
    driver: str = ""
    counters: str = ""
    fake: bool = False
    others: int = 0


class Stamp(NamedTuple):
    """So many iterations were done at this moment."""

    at_s: float
    iterations: int


class ResidentReport(msgspec.Struct):
    """A resident's words so far; `stamps` are those since it was last told to go."""

    state: State = "starting"
    stamps: list[Stamp] = []
    reason: str = ""
    text: str = ""
    peak_mib: int = 0
    versions: str = ""


class BenchResident(Protocol):
    """One workload on the GPU. It is started paused: ready, its memory taken, doing nothing."""

    def report(self) -> ResidentReport:
        """All that it has said up to now."""
        ...

    def go(self) -> None:
        """Run."""
        ...

    def pause(self) -> None:
        """Stop running, stay ready."""
        ...

    def end(self) -> None:
        """Be gone, for certain, when this returns."""
        ...


class Bench(Protocol):
    """A GPU that is ours alone. Times are seconds of a clock that residents' stamps share."""

    card: BenchGpu

    def now_s(self) -> float:
        """The time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def isolated(self, isolation: str) -> AbstractContextManager[None]:
        """While it lasts, residents that are started share the GPU in this way.

        `BenchError` where this machine cannot.
        """
        ...

    def start(self, workload: Workload) -> BenchResident:
        """A new resident; it says when it is ready."""
        ...

    def sample(self) -> dict[str, float]:
        """The GPU's features since the last call, by name."""
        ...

    def free_mib(self) -> int | None:
        """GPU memory that nobody uses; None where nobody says."""
        ...

    def held_mib(self, resident: BenchResident) -> int:
        """GPU memory that this resident holds, as well as can be told."""
        ...


class BenchError(Exception):
    """The machine does not do what measuring needs; the text says what and why."""

"""Source of pictures from a decisions file, of any moment in it.

Pictures are stored as deltas, with a whole picture every few moments: a day of a large cluster has
many rows, and most do not change from one moment to the next.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from weft.console.deltas import PictureDelta, applied, between
from weft.console.happenings import Happenings
from weft.console.history import GpuPoint
from weft.console.picture import Picture, PictureMaker, UsualShapes
from weft.console.sources import Kind, facts_of, queued_in, shapes_in
from weft.console.waiting import WaitingReasons
from weft.core.engine import Engine
from weft.core.explain.explanation import Explanation
from weft.model import BadInputError, Shape

MOST_MOMENTS = 400
"""Maximum number of moments: a slider on a screen has no more positions."""
_WHOLE_EVERY = 20


class Recorded(Protocol):
    """A decisions file, replayed once from start to end."""

    offset_s: float
    trouble: str

    @property
    def at_s(self) -> Sequence[float]:
        """The times of all events, seconds since 1970."""
        ...

    def states(self) -> Iterable[tuple[float, Engine]]:
        """Yield the time of each event, and the engine's state after it."""
        ...


class RecordedMoments(NamedTuple):
    """The moments that can be shown, seconds since 1970. `trouble` is the reason why the file has
    no more moments, "" if it is complete."""

    at_s: tuple[float, ...]
    trouble: str


class DaySums(msgspec.Struct, frozen=True, array_like=True):
    """Sums of a picture: promised thousandths of GPUs (as placed pods are charged, on nodes that
    exist) and MiB, the numbers of placed pods, pending pods and GPUs without a pod. `elapsed_s` is
    counted from the first event."""

    elapsed_s: float
    gpu_milli: int
    promised_mib: int
    placed: int
    waiting: int
    idle: int

    @classmethod
    def of(cls, picture: Picture, elapsed_s: float) -> "DaySums":
        """Sum up a picture; cards that are divided into MIG instances count by their instances."""
        gpus = [gpu for gpu in picture.gpus.values() if not gpu.cut]
        placed = [pod for pod in picture.pods.values() if not pod.kept]
        return cls(
            elapsed_s,
            sum(pod.gpu_milli for pod in placed if pod.node in picture.nodes),
            sum(gpu.promised_mib for gpu in gpus),
            len(placed),
            len(picture.waiting),
            sum(not gpu.pods and not gpu.broken for gpu in gpus),
        )


class RecordedSource:
    """A decisions file, read whole at the start. `explain(NAMESPACE/NAME)` returns what `weft
    explain pod --decisions` prints. The record began at `began_s`, by default at its first
    event; `elapsed_s` are the moments' times since then; `sums` has each moment's totals over
    its GPUs and pods. With `beside_s`, the elapsed times of another record's moments, this
    record is shown at the same elapsed times."""

    kind: Kind = "decisions"
    lives = False

    def __init__(
        self,
        record: Recorded,
        about: str,
        explain: Callable[[str], Explanation],
        began_s: float | None = None,
        beside_s: Sequence[float] | None = None,
    ) -> None:
        self.about, self._explain = about, explain
        self.began_s = next(iter(record.at_s), 0.0) if began_s is None else began_s
        self.sums = list[DaySums]()
        self._wholes: list[Picture] = []
        self._deltas: list[PictureDelta] = []
        if beside_s is None:
            looked_at = _spread(record.at_s)
        else:
            looked_at = _until(record.at_s, self.began_s, beside_s)
        moments = self._pass(record, looked_at)
        self.record = RecordedMoments(tuple(moments), record.trouble)
        self.elapsed_s = [sums.elapsed_s for sums in self.sums]

    def _pass(self, record: Recorded, looked_at: set[int]) -> list[float]:
        happenings, last = Happenings(), Picture(0.0)
        known: list[Engine] = []
        usual = UsualShapes(lambda: shapes_in(known[0]))
        moments: list[float] = []
        for number, (at_s, engine) in enumerate(record.states(), start=1):
            if number not in looked_at:
                continue
            known[:] = [engine]
            now = happenings.on(_picture(engine, at_s, record.offset_s, usual.at(at_s)))
            delta = between(last, now)
            last = applied(last, delta)  # rows that stay are kept once
            self._deltas.append(delta)
            if len(moments) % _WHOLE_EVERY == 0:
                self._wholes.append(last)
            moments.append(at_s)
            self.sums.append(DaySums.of(last, _elapsed(at_s, self.began_s)))
        return moments

    def at(self, number: int) -> Picture:
        """Return the picture of a moment, by its number from 0."""
        first = number // _WHOLE_EVERY
        picture = self._wholes[first]
        for delta in self._deltas[first * _WHOLE_EVERY + 1 : number + 1]:
            picture = applied(picture, delta)
        return picture

    def history(self, key: str) -> list[GpuPoint]:
        """Return the promised and used amounts of a GPU, at each moment at which they changed."""
        changes = zip(self.record.at_s, self._deltas, strict=True)
        found = ((at_s, delta.gpus.put.get(key)) for at_s, delta in changes)
        return [GpuPoint.of(gpu, at_s) for at_s, gpu in found if gpu is not None]

    def picture(self) -> Picture:
        """Return the picture of the last moment; an empty one if there is none."""
        return self.at(len(self._deltas) - 1) if self._deltas else Picture(0.0)

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return the explanation of the pod's last recorded decision; None if there is none."""
        try:
            return await asyncio.to_thread(self._explain, f"{namespace}/{name}")
        except BadInputError:
            return None


def _elapsed(at_s: float, began_s: float) -> float:
    return round(at_s - began_s, 6)


def _spread(at_s: Sequence[float]) -> set[int]:
    """Return the numbers, from 1, of the events after which a picture is made: all, or at most
    `MOST_MOMENTS`, each the last event of its instant."""
    if len(at_s) <= MOST_MOMENTS:
        return {*range(1, len(at_s) + 1)}
    every = -(-len(at_s) // MOST_MOMENTS)
    numbers = (*range(every, len(at_s), every), len(at_s))
    return {bisect_right(at_s, at_s[number - 1]) for number in numbers}


def _until(at_s: Sequence[float], began_s: float, beside_s: Sequence[float]) -> set[int]:
    """Return for each time in `beside_s` the number (from 1) of the last event at or before it."""
    elapsed_s = [_elapsed(each, began_s) for each in at_s]
    return {max(1, bisect_right(elapsed_s, each)) for each in beside_s}


def _picture(engine: Engine, at_s: float, offset_s: float, usual: Iterable[Shape] = ()) -> Picture:
    reasons = WaitingReasons(engine, slice_s=0.0).rows(queued_in(engine))
    picture = PictureMaker(engine).picture(
        at_s, lambda uid: facts_of(engine, uid), reasons, usual=usual
    )
    pods = {
        uid: replace(pod, since_s=pod.since_s + offset_s if pod.since_s else 0.0)
        for uid, pod in picture.pods.items()
    }
    return replace(picture, pods=pods)

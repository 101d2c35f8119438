"""Rows of pending pods: why each waits, in the words of `weft explain`, and what would help.

Pods of one shape wait for the same reason, so each shape is assessed once. The search for a change
takes many trials: each picture continues it for a limited time (a slice), and tries the changes
found so far again.
"""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import NamedTuple

from weft.console.picture import SECOND_NS, ShownWaiting
from weft.core.engine import Engine
from weft.core.engine.reasons import FeasibilitySummary, summarise
from weft.core.explain.amounts import memory_in_words
from weft.core.explain.sentences import NOWHERE, ROOM_NOW, gang_in_words
from weft.core.explain.smallest_change import ChangeSearch, Rank, SmallestChange
from weft.model import GpuRequest, PodRequest, Shape
from weft.model.reason import TEXT

WAITS_FOR_GROUP = "waits for its group"
"""Title of the pods of groups of which each alone would fit; `static/lists.js` has it too."""


class Alike(NamedTuple):
    """The properties of a pod that decide where it fits, and which other pods would have to end:
    pods that agree in all of them wait for the same reason."""

    profile: str
    shape: Shape
    namespace: str
    labels: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    claims: tuple[str, ...]
    priority: int
    queue: str
    gang: str

    @classmethod
    def of(cls, pod: PodRequest, profile: str) -> "Alike":
        """Return the pod's properties; `profile` is the name of the profile that decides for it."""
        return cls(
            profile,
            pod.shape,
            pod.namespace,
            tuple(sorted((pod.labels or {}).items())),
            pod.warnings,
            pod.claims or (),
            pod.priority,
            pod.team_queue,
            pod.gang.key if pod.gang else "",
        )


class WaitingReasons:
    """The reasons of one engine's pending pods. `slice_s` is the time per picture to search for
    changes that would help. `rank_for(pod)` returns a function that ranks pods, by UID, that could
    be ended for that pod: the lowest is tried first. `name` returns NAMESPACE/NAME for the UID of a
    pod that the engine did not place, "" if unknown. `clock` times slices, in seconds."""

    def __init__(
        self,
        engine: Engine,
        slice_s: float,
        rank_for: Callable[[PodRequest], Rank] = lambda pod: lambda uid: 0,
        name: Callable[[str], str] = lambda uid: "",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._engine, self._slice_s, self._name = engine, slice_s, name
        self._rank_for, self._clock = rank_for, clock
        self._searches: dict[Alike, _Search] = {}

    def rows(self, pods: Iterable[PodRequest]) -> list[ShownWaiting]:
        """Return a row for each pending pod, as of now."""
        alike: dict[Alike, PodRequest] = {}
        waiting = [(pod, Alike.of(pod, self._engine.profile_of(pod).name)) for pod in pods]
        for pod, key in waiting:
            alike.setdefault(key, pod)
        reasons = {key: self._summary(pod) for key, pod in alike.items()}
        self._follow({key: pod for key, pod in alike.items() if not reasons[key].fits})
        found = {key: search.confirmed() for key, search in self._searches.items()}
        why = {key: self._why(pod, reasons[key]) for key, pod in alike.items()}
        return [self._row(pod, why[key], found.get(key, [])) for pod, key in waiting]

    def _summary(self, pod: PodRequest) -> FeasibilitySummary:
        known = self._engine.assess(self._engine.profile_of(pod), pod)
        return summarise(self._engine.ledger.table, known, pod.warnings)

    def _follow(self, stuck: dict[Alike, PodRequest]) -> None:
        """Search for changes that would help these pods, for one slice; end all other searches."""
        for key in [key for key in self._searches if key not in stuck]:
            del self._searches[key]
        until = self._clock() + self._slice_s
        for key, pod in stuck.items():
            search = self._searches.get(key)
            if search is None or search.is_stale(self._engine):
                search = _Search(self._engine, pod, self._rank_for(pod), self._name)
                self._searches[key] = search
            search.go_on(lambda: self._clock() >= until)

    def _row(
        self, pod: PodRequest, why: tuple[str, str], changes: list[SmallestChange]
    ) -> ShownWaiting:
        group, reason = why
        return ShownWaiting(
            pod.uid,
            pod.namespace,
            pod.name,
            group,
            reason,
            asks_in_words(pod),
            next((change.text for change in changes if not change.free), ""),
            next((change.text for change in changes if change.free), ""),
            len(changes),
            pod.dialect,
            str(pod.gang) if pod.gang else "",
            pod.priority,
            pod.created_ns / SECOND_NS,
            pod.team_queue,
            pod.shape.gpus,
        )

    def _why(self, pod: PodRequest, summary: FeasibilitySummary) -> tuple[str, str]:
        """Return the title of the pod's group of pending pods, and the pod's own reason."""
        if pod.shape.constraints.unsupported:
            return "waits", pod.shape.constraints.unsupported
        members = self._engine.queue.gangs.of(pod.gang) if pod.gang else None
        if members is not None and summary.fits:
            return WAITS_FOR_GROUP, gang_in_words(members.decision())
        if summary.fits:
            return ROOM_NOW, str(summary)
        return TEXT[summary.reasons[0].code] if summary.reasons else NOWHERE, str(summary)


class _Search:
    """A search for changes with which a pending pod could run, continued for one slice per picture.
    Once stale (`is_stale`), it is replaced by a new search."""

    def __init__(
        self, engine: Engine, pod: PodRequest, rank: Rank, name: Callable[[str], str]
    ) -> None:
        self._search = ChangeSearch(engine, engine.profile_of(pod), pod, rank, name)
        self._steps: Iterator[None] = self._search.steps()
        self._ended_at = -1
        self._engine = engine

    def go_on(self, is_over: Callable[[], bool]) -> None:
        """Make trials until the slice is over, or no trials are left."""
        while not self._search.ended and not is_over():
            if next(self._steps, _END) is _END:
                self._ended_at = self._engine.ledger.version

    def is_stale(self, engine: Engine) -> bool:
        """Return True if the search ended, the cluster has changed since, and none of its results
        helps now."""
        return (
            self._search.ended
            and self._ended_at != engine.ledger.version
            and not self._search.confirmed()
        )

    def confirmed(self) -> list[SmallestChange]:
        """Return the changes found so far that help now."""
        return self._search.confirmed()


_END = object()


def asks_in_words(pod: PodRequest) -> str:
    """Return what a pod asks of GPUs: `2 whole GPUs`, `8,000 MiB, 30 % of cores`."""
    return " + ".join(map(_request_in_words, pod.shape.gpu_requests)) or "no GPU"


def _request_in_words(asks: GpuRequest) -> str:
    if asks.whole:
        return "1 whole GPU" if asks.count == 1 else f"{asks.count} whole GPUs"
    parts = [memory_in_words(asks.memory)] if asks.memory.kind != "none" else []
    parts += [f"{asks.milli / 10:g} % of cores"] if asks.milli else []
    each = ", ".join(parts) or "a share"
    return each if asks.count == 1 else f"{asks.count} × ({each})"

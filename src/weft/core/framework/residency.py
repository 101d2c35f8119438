"""Residencies: the pods on each GPU, since when and with which co-residents, to estimate their
remaining work. Changes of co-residents are recorded only for pods that state how long they take
alone on a GPU (`Shape.expected_s`). Times are those of the engine's events, so that a replay
gives the same estimates."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from weft.core.ledger.table import CoResidents, Resident
from weft.model import Placement

GpuKey = tuple[str, int]
"""(node, GPU index)."""

MOST_SPANS = 64
"""Maximum number of changes of co-residents that are kept for a pod; beyond it, the oldest two are
merged."""
LEAST_LEFT = 0.05
"""Minimum of a pod's remaining time, as a part of its duration alone; an overdue pod counts as
having this much left."""
SECOND_NS = 1_000_000_000


class ResidencySpan(NamedTuple):
    """Co-residents of a pod from `since_ns` on."""

    since_ns: int
    beside: CoResidents


class WorkDone(NamedTuple):
    """Work done until `since_ns`, in seconds of running alone, and the present speed."""

    seconds: float
    since_ns: int
    speed: float


Speed = Callable[[Resident, CoResidents], float]
"""Function that returns the speed of a pod with these co-residents; 1 if alone."""


class Residency:
    """One pod on its GPU: its application and class, its duration alone, and its co-residents over
    time."""

    __slots__ = ("expected_s", "resident", "since_ns", "spans")

    def __init__(self, resident: Resident, expected_s: int, since_ns: int) -> None:
        self.resident, self.expected_s, self.since_ns = resident, expected_s, since_ns
        self.spans: list[ResidencySpan] = []

    def change(self, co_residents: CoResidents, at_ns: int) -> None:
        """Record that the co-residents changed at `at_ns`."""
        if self.spans:
            at_ns = max(at_ns, self.spans[-1].since_ns)
        self.spans.append(ResidencySpan(at_ns, co_residents))
        if len(self.spans) > MOST_SPANS:
            self.spans[:2] = [ResidencySpan(self.spans[0].since_ns, self.spans[1].beside)]

    def done(self, speed: Speed) -> WorkDone:
        """Return the work done until the last change; only for pods that state their duration."""
        done_s = 0.0
        for span, following in pairwise(self.spans):
            passed_s = (following.since_ns - span.since_ns) / SECOND_NS
            done_s += passed_s * speed(self.resident, span.beside)
        last = self.spans[-1]
        return WorkDone(done_s, last.since_ns, speed(self.resident, last.beside))

    def left_s(self, now_ns: int, speed: Speed) -> float:
        """Return the remaining seconds if the pod ran alone."""
        done = self.done(speed)
        done_s = done.seconds + (now_ns - done.since_ns) / SECOND_NS * done.speed
        return max(self.expected_s - done_s, LEAST_LEFT * self.expected_s)


class Residencies:
    """All pods that hold a share of exactly one GPU, or one whole GPU, by GPU. `now_ns` is the time
    of the present event, `expected` the number of pods that state their duration."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.expected = 0
        self._followers: list[set[GpuKey]] = []
        self._on: dict[GpuKey, dict[str, Residency]] = {}
        self._where: dict[str, GpuKey] = {}

    def on(self, key: GpuKey) -> Sequence[Residency]:
        """Return the GPU's pods, in order of arrival."""
        return tuple(self._on.get(key, {}).values())

    def since_ns(self, uid: str) -> int | None:
        """Return the time at which the pod was placed; None if unknown."""
        key = self._where.get(uid)
        return None if key is None else self._on[key][uid].since_ns

    def is_there_since(self, at_ns: int, uid: str) -> bool:
        """Return True if the pod has had its place since `at_ns` or longer."""
        since_ns = self.since_ns(uid)
        return since_ns is not None and since_ns <= at_ns

    def follow(self) -> set[GpuKey]:
        """Return a set to which GPUs are added when their pods change; the caller empties it."""
        changed: set[GpuKey] = set()
        self._followers.append(changed)
        return changed

    def add(self, placement: Placement, at_ns: int) -> None:
        """Record that the pod was placed at `at_ns`; a known pod keeps its first time, even if its
        facts changed."""
        if len(placement.shares) != 1:
            return
        key = (placement.node, placement.shares[0].gpu)
        resident = Resident(placement.application, placement.job_class)
        known = self._on.get(key, {}).get(placement.uid)
        if known is not None:
            if (known.resident, known.expected_s) == (resident, placement.expected_s):
                return
            at_ns = known.since_ns
        self.remove(placement.uid)
        new = Residency(resident, placement.expected_s, at_ns)
        on_gpu = self._on.setdefault(key, {})
        if new.expected_s:  # after a restart later pods may be reported first
            began = sorted({at_ns, *(residency.since_ns for residency in on_gpu.values())})
            for then_ns in began[began.index(at_ns) :]:
                beside = [
                    residency.resident
                    for residency in on_gpu.values()
                    if residency.since_ns <= then_ns
                ]
                new.change(tuple(beside), then_ns)
        on_gpu[placement.uid] = new
        self._where[placement.uid] = key
        self.expected += new.expected_s > 0
        self._note_change(key, at_ns, but=placement.uid)

    def remove(self, uid: str) -> None:
        """Remove the pod."""
        key = self._where.pop(uid, None)
        if key is None:
            return
        on_gpu = self._on[key]
        self.expected -= on_gpu.pop(uid).expected_s > 0
        self._note_change(key, self.now_ns)
        if not on_gpu:
            del self._on[key]

    def _note_change(self, key: GpuKey, at_ns: int, but: str = "") -> None:
        """Record for all pods on the GPU, except `but`, that their co-residents changed."""
        for changed in self._followers:
            changed.add(key)
        on_gpu = self._on[key]
        for uid, residency in on_gpu.items():
            if residency.expected_s and uid != but:
                co_residents = (other.resident for name, other in on_gpu.items() if name != uid)
                residency.change(tuple(co_residents), at_ns)


NO_RESIDENCIES = Residencies()
"""Empty residencies, which policies see if no engine tracks any."""

"""The pods of each gang: pods that wait and those that have places.

    pods gather ──as many as it needs──▶ one of them waits in the queue for all ──▶ all have places
         ▲                                                                                │
         └────────────── one lost its place, or went, and too few are left ◀──────────────┘
Once as many as the gang needs have places, its other pods wait one by one, as any pod does.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine.gang_room import ANY_NUMBER
from weft.core.engine.records import GangDecision
from weft.core.ledger.table import Ints
from weft.model import Gang, PodRequest, Shape

GRACE_NS = 60_000_000_000
"""For this long some pods of a gang may run while its other pods fit nowhere or their Bindings
fail; then the running ones are evicted (KAI's staleness grace period is as long)."""
MISSING_GRACE_NS = 600_000_000_000
"""For this long some pods of a gang may run while too few of its pods exist; then they are evicted.
A Job's controller creates a failed pod again after six minutes at most."""


class WaitsInQueue(Protocol):
    """A pod in the queue: the attributes that this module uses."""

    pod: PodRequest


W = TypeVar("W", bound=WaitsInQueue)


class GangMembers(Generic[W]):
    """One gang's pods: `waiting` in the queue, and `placed`, by UID. `head` is the pod that waits
    in the queue for all, if any. `ready_ns` and `tries` belong to the gang, so that another head
    takes them over. `short_since_ns` is when a waiting pod first fitted nowhere, or its Binding
    failed, although others run; `missing_since_ns` is when too few pods were left of a gang that
    ran; None otherwise. `bound` are the placed pods whose Bindings are known to have succeeded.
    `leaving` are running pods of the gang that are being evicted because the others do not start.
    `owed_ns` is when running pods ended before they were done, for which no successor has come;
    `successors` are pods that came for others. `arrived` counts pods bound since a place was first
    kept for successors. `queued`: a pod of it was in this queue; otherwise it may be another
    scheduler's. `done`: a pod of it ran to its end, so that fewer are needed now. `most` is the
    most of its pods that an empty cluster has room for; it was computed from `largest_sums` at the
    layout of nodes `summed_at`.
    """

    __slots__ = (
        "_placed",
        "_sizes",
        "_tasks",
        "arrived",
        "bound",
        "done",
        "gang",
        "head",
        "largest_sums",
        "leaving",
        "missing_since_ns",
        "most",
        "owed_ns",
        "placed",
        "queued",
        "ready_ns",
        "short_since_ns",
        "successors",
        "summed_at",
        "tries",
        "waiting",
    )

    def __init__(self, gang: Gang) -> None:
        self.gang = gang
        self.waiting: dict[str, W] = {}
        self.placed: dict[str, Gang] = {}
        self.head: W | None = None
        self.ready_ns = self.tries = 0
        self.short_since_ns: int | None = None
        self.missing_since_ns: int | None = None
        self.leaving: set[str] = set()
        self.owed_ns: list[int] = []
        self.successors: set[str] = set()
        self.bound: set[str] = set()
        self.arrived, self.queued, self.done = 0, False, False
        self.most, self.summed_at = ANY_NUMBER, -1
        self.largest_sums: dict[tuple[str, Shape], Ints] = {}
        self._sizes: Counter[Gang] = Counter()
        self._tasks: Counter[str] = Counter()
        self._placed: Counter[str] = Counter()

    @property
    def least(self) -> int:
        """Return how many pods the gang needs: the most that any of its pods states, 0 if
        unknown."""
        return max((gang.least for gang in self._sizes), default=0)

    @property
    def there(self) -> int:
        """Return the number of the gang's pods that exist."""
        return len(self.waiting) + len(self.placed)

    @property
    def is_complete(self) -> bool:
        """Return True if as many of the gang's pods exist as it needs, in total and of each
        task."""
        least, needed = self.least, self._of_each_task()
        return bool(least) and self.there >= least and self._enough(needed, self._tasks)

    @property
    def has_quorum(self) -> bool:
        """Return True if as many pods as the gang needs have places; each other pod is then placed
        on its own."""
        return self.would_do(())

    def would_do(self, more: Sequence[Gang]) -> bool:
        """Return True if the gang could start once these pods too had places."""
        least, needed = self.least, self._of_each_task()
        if not needed:
            return bool(least) and len(self.placed) + len(more) >= least
        tasks = self._placed + Counter(gang.task for gang in more)
        return bool(least) and tasks.total() >= least and self._enough(needed, tasks)

    @property
    def runs(self) -> bool:
        """Return True if as many pods as the gang needs are bound, in total and of each task."""
        if len(self.bound) < self.least:
            return False
        needed = self._of_each_task()
        tasks = Counter(self.placed[uid].task for uid in self.bound) if needed else self._placed
        return self._enough(needed, tasks)

    def lacking(self) -> dict[str, int]:
        """Return how many more pods of each task need places, for tasks of which the gang needs a
        minimum number."""
        return {task: n - self._placed[task] for task, n in self._of_each_task().items()}

    def decision(self, found: int = 0) -> GangDecision:
        """Return the gang's decision record when `found` of its waiting pods have places."""
        placed = len(self.placed) + found
        most = UNSET if self.most >= self.least else self.most
        return GangDecision(str(self.gang), self.least, self.there, placed, most)

    def topology_key(self) -> str:
        """Return the node label that must have one value for all of the gang's pods; "" for
        none."""
        return next((gang.topology_key for gang in self._sizes if gang.topology_key), "")

    def _of_each_task(self) -> dict[str, int]:
        return {task: n for gang in self._sizes for task, n in gang.least_by_task}

    @staticmethod
    def _enough(needed: dict[str, int], there: Counter[str]) -> bool:
        return all(there[task] >= n for task, n in needed.items())

    def put(self, uid: str, gang: Gang) -> None:
        """Record that a pod of the gang has a place."""
        if uid in self.placed:
            self._uncount(uid)
        self.placed[uid] = gang
        self._placed[gang.task] += 1
        self.count(gang, 1)

    def take(self, uid: str) -> None:
        """Record that the pod has no place any more."""
        self._uncount(uid)
        self.bound.discard(uid)

    def _uncount(self, uid: str) -> None:
        gang = self.placed.pop(uid)
        self.leaving.discard(uid)
        self._placed[gang.task] -= 1
        self.count(gang, -1)

    def count(self, gang: Gang, by: int) -> None:
        """Change the number of pods that describe the gang as `gang` by `by`."""
        self._tasks[gang.task] += by
        self._sizes[gang] += by
        if not self._sizes[gang]:
            del self._sizes[gang]


class Gangs(Generic[W]):
    """All gangs that have a pod in the queue or a pod with a place, by `Gang.key`."""

    def __init__(self) -> None:
        self._by_key: dict[str, GangMembers[W]] = {}
        self._of_placed: dict[str, GangMembers[W]] = {}
        self._short: dict[str, GangMembers[W]] = {}

    def __iter__(self) -> Iterator[GangMembers[W]]:
        return iter(self._by_key.values())

    @property
    def have_places(self) -> bool:
        """True if a pod of some gang has a place."""
        return bool(self._of_placed)

    def of(self, gang: Gang) -> GangMembers[W] | None:
        """Return the gang's known pods; None if none is known."""
        return self._by_key.get(gang.key)

    def of_placed(self, uid: str) -> GangMembers[W] | None:
        """Return the gang of a placed pod; None if the pod has no place or no gang."""
        return self._of_placed.get(uid)

    def waits(self, waiting: W, gang: Gang) -> GangMembers[W]:
        """Record that a pod of the gang is in the queue."""
        members = self._by_key.setdefault(gang.key, GangMembers(gang))
        members.waiting[waiting.pod.uid], members.queued = waiting, True
        members.count(gang, 1)
        return members

    def waits_no_more(self, waiting: W, gang: Gang) -> None:
        """Record that the pod left the queue."""
        members = self._by_key[gang.key]
        del members.waiting[waiting.pod.uid]
        members.count(gang, -1)
        self._forget_if_empty(members)

    def placed(self, uid: str, gang: Gang) -> GangMembers[W]:
        """Record that a pod of the gang, no longer in the queue, has a place."""
        members = self._by_key.setdefault(gang.key, GangMembers(gang))
        members.put(uid, gang)
        self._of_placed[uid] = members
        return members

    def lost(self, uid: str) -> GangMembers[W] | None:
        """Record that a pod has no place any more; return its gang, if any."""
        members = self._of_placed.pop(uid, None)
        if members is not None:
            members.take(uid)
            self._forget_if_empty(members)
        return members

    def comes(self, pod: PodRequest, now_ns: int) -> PodRequest:
        """Take in a new pod of a gang: it is the successor of a pod that ended lately, if there is
        one without. Return it as the queue is to order it."""
        members = self._by_key.get(pod.gang.key) if pod.gang else None
        if members is None or pod.uid in members.waiting:
            return self.as_old(pod)
        members.owed_ns = [at for at in members.owed_ns if now_ns - at < MISSING_GRACE_NS]
        if members.owed_ns:
            del members.owed_ns[0]
            members.successors.add(pod.uid)
        return self.as_old(pod)

    def as_old(self, pod: PodRequest) -> PodRequest:
        """Return the pod as the queue is to order it: one that replaces a pod of its gang goes
        before all others of its priority."""
        members = self._by_key.get(pod.gang.key) if pod.gang else None
        if not pod.gang or members is None or pod.uid not in members.successors:
            return pod
        return replace(pod, created_ns=0, gang=replace(pod.gang, created_ns=0))

    def is_short(self, members: GangMembers[W], now_ns: int) -> int | None:
        """Record that the gang's waiting pods do not start: they fit nowhere, or a Binding failed.
        Return since when, if other pods of it run; None if none does."""
        if not members.placed:
            return None
        self._short[members.gang.key] = members
        if members.short_since_ns is None:
            members.short_since_ns = now_ns
        return members.short_since_ns

    def lacks(self, members: GangMembers[W], now_ns: int) -> int | None:
        """Record that a pod of the gang is gone before it was done. Return since when too few exist
        although some have places; None if that is not so, or if others of it are done."""
        if members.done or members.is_complete or members.has_quorum or not members.placed:
            return None
        self._short[members.gang.key] = members
        if members.missing_since_ns is None:
            members.missing_since_ns = now_ns
        return members.missing_since_ns

    def is_done(self, uid: str) -> None:
        """Record that the pod ran to its end: what is left of its gang may end as well."""
        if (members := self._of_placed.get(uid)) is not None:
            members.done, members.missing_since_ns = True, None

    def is_bound(self, uid: str) -> None:
        """Record that the pod's Binding succeeded: its gang may have enough running pods again."""
        members = self._of_placed.get(uid)
        if members is None or uid in members.bound:
            return
        members.bound.add(uid)
        members.successors.discard(uid)
        members.arrived += 1
        if members.gang.key in self._short:
            self._stop_watching(members)

    def _stop_watching(self, members: GangMembers[W]) -> bool:
        """Return True, and stop watching the gang, if enough of its pods run, or none has a
        place."""
        if members.placed and members.least and not members.runs:
            return False
        self._short.pop(members.gang.key, None)
        members.short_since_ns = members.missing_since_ns = None
        return True

    def broken(self, now_ns: int) -> list[GangMembers[W]]:
        """Return gangs of which too few pods run, for `GRACE_NS` although others wait, or for
        `MISSING_GRACE_NS` as no others exist."""
        found = []
        for members in list(self._short.values()):
            if self._stop_watching(members) or members.has_quorum:
                continue  # or their Bindings are under way
            if not members.waiting:
                members.short_since_ns = None
            if members.is_complete:
                members.missing_since_ns = None
            graces = (
                (members.short_since_ns, GRACE_NS),
                (members.missing_since_ns, MISSING_GRACE_NS),
            )
            if any(since is not None and now_ns - since >= grace for since, grace in graces):
                found.append(members)
        return found

    def stays(self, uid: str) -> bool:
        """Allow the pod to be evicted again after its eviction failed; return False if no eviction
        of it was requested because of its gang."""
        members = self._of_placed.get(uid)
        if members is None or uid not in members.leaving:
            return False
        members.leaving.discard(uid)
        return True

    def _forget_if_empty(self, members: GangMembers[W]) -> None:
        if not members.there:
            self._by_key.pop(members.gang.key, None)
            self._short.pop(members.gang.key, None)

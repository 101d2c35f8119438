"""Queues of teams: each queue's guarantee and limits, and the order in which queues' pods are
decided.

Every pod belongs to one queue, by a label or by its namespace (`dialects/queues.py`). A queue
holds what the ledger charges for its pods. Of each card that is the larger of the pods' part of
the memory and their part of the cores, in thousandths: half of a card's memory counts as half a
GPU.
"""

from typing import Literal

import msgspec

Order = Literal["priority", "fair"]
Discipline = Literal["first-fit", "reserve", "lend", "easy", "conservative", "shortest"]


class QueueAmounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Amounts of GPUs that a queue is guaranteed, or may hold at most; None where an amount is not
    stated.

    `gpu_milli` and `models` are in thousandths of a GPU, `core_milli` in thousandths of a GPU's
    cores, `memory_mib` is GPU memory. `models` has amounts by a part of the model's name.
    """

    gpu_milli: int | None = None
    memory_mib: int | None = None
    core_milli: int | None = None
    models: tuple[tuple[str, int], ...] = ()

    @property
    def is_none(self) -> bool:
        """Return True if no amount is stated."""
        return self == NO_AMOUNTS


NO_AMOUNTS = QueueAmounts()


class QueueTerms(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue's weight, guarantee and limits. While a queue holds less than its `guarantee`, its
    pods come before those of all queues that hold theirs; beyond their guarantees queues share by
    `weight`. A queue never holds more than its `limits`."""

    name: str
    weight: int = 1
    guarantee: QueueAmounts = NO_AMOUNTS
    limits: QueueAmounts = NO_AMOUNTS


class QueueRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rules of all queues. `reclaim`: for a queue below its guarantee, pods of queues beyond theirs
    are preempted. `order`: the next pod is of the queue that holds least for its weight (`fair`),
    or the pod of the highest priority and then age, whatever its queue (`priority`). Queues not in
    `queues` have weight 1, no guarantee and no limits."""

    order: Order = "priority"
    queues: tuple[QueueTerms, ...] = ()
    reclaim: bool = False

    @property
    def count(self) -> bool:
        """Return True if decisions depend on what queues hold."""
        return (
            self.order == "fair"
            or self.reclaim
            or any(not terms.limits.is_none for terms in self.queues)
        )


NO_QUEUES = QueueRules()


class HeadOfLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rules for keeping places: reserving GPUs for gangs and pods that wait. A gang that was
    among the first `at_once` of its priority for `after_ns` has its place kept until it starts,
    for `keep_for_ns` at most; a pod of several GPUs by `pods_after_ns`, `pods_keep_for_ns` and
    `pods_at_once` (None: as for gangs). For pods of one GPU or less, one place at a time is
    kept, after five times `pods_after_ns`. If the time to wait is 0, no place is kept.
    `discipline` decides which pod goes next, and which pods may run in kept places meanwhile:
    those that end in time with a probability of `confidence` percent."""

    after_ns: int = 0
    keep_for_ns: int = 0
    pods_after_ns: int = 0
    at_once: int = 1
    discipline: Discipline = "reserve"
    confidence: int = 80
    pods_keep_for_ns: int | None = None
    pods_at_once: int | None = None

    def keeps_for_ns(self, *, gang: bool) -> int:
        """Return the longest time in ns for which a place is kept: a gang's with `gang`, else a
        pod's."""
        if gang or self.pods_keep_for_ns is None:
            return self.keep_for_ns
        return self.pods_keep_for_ns

    def most_places(self, *, gang: bool) -> int:
        """Return the most places that are kept at once for gangs of one priority, or without
        `gang` for pods of several GPUs that are in no gang."""
        return self.at_once if gang or self.pods_at_once is None else self.pods_at_once


NOTHING_KEPT = HeadOfLine()


class MoveRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rules for moving pods. For a pod that fits nowhere and has waited for `after_ns`, movable
    pods are moved, at most `an_hour` in an hour. `after_ns` 0: no pod is moved for a waiting
    pod."""

    after_ns: int = 0
    an_hour: int = 60


NO_MOVES = MoveRules()

"""Compares a binding with the choice that a configuration would have made in the state before it.

- allocation     thousandths of GPUs held: per GPU the larger of its cores and its memory share
- fragmentation  FGD's measure over the cluster, as `weft simulate` reports it: free capacity
                 that is too small for typical pods
- slowdown       the largest that the profile's policy expects, of the pod and its co-residents

Both places are tried on the same ledger and rolled back."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from weft.core.engine import Engine
from weft.core.engine.questions import WouldPlace, slowdowns_at, would_place
from weft.core.engine.reasons import summarise
from weft.core.framework.fragments import Fragments, NodeShares, TypicalPods
from weft.core.framework.policy import ExpectedSlowdown
from weft.model import Placement, PodRequest, Shape

Agreement = Literal["same", "other GPU", "other node", "nowhere"]
_COUNT_ANEW = 200


class ComparedPlace(msgspec.Struct, frozen=True):
    """One of the two compared places (the binding seen, or the configuration's choice), and the
    cluster's state with the pod there.

    `gpus` are indexes; `allocation_milli` is the increase in held thousandths of GPUs; `slowdown`
    is None if no slowdown is expected."""

    node: str
    gpus: tuple[int, ...]
    allocation_milli: int
    fragmentation_percent: float
    slowdown: float | None = None


class BindingComparison(msgspec.Struct, frozen=True):
    """A binding (`seen`) and the profile's own choice (`own`: None if the pod fits nowhere, for the
    reason `why`).

    `assumed`: nothing records which GPUs the pod was given, so its charge is a guess."""

    namespace: str
    name: str
    uid: str
    profile: str
    agrees: Agreement
    seen: ComparedPlace
    own: ComparedPlace | None
    why: str = ""
    assumed: bool = False


class BindingComparer:
    """Compares bindings on the ledger of one engine.

    `usual` returns the shapes of typical pods, for the measure of fragmentation; it is called again
    from time to time."""

    def __init__(self, engine: Engine, usual: Callable[[], Iterable[Shape]]) -> None:
        self._engine, self._usual = engine, usual
        self._nodes: NodeShares | None = None
        self._generation, self._since = -1, 0

    def compare(
        self, pod: PodRequest, seen: Placement, *, assumed: bool = False
    ) -> BindingComparison:
        """Compare the place that a pod was given with the profile's choice.

        `pod` is the pod's request from before the binding; the ledger must not hold any share of
        it."""
        engine = self._engine
        profile = engine.profile_of(pod)
        choice = would_place(engine, profile, pod)
        own = choice.placement
        slowdowns = slowdowns_at(engine, profile, choice.known, seen)
        why = ""
        if own is None:
            why = str(summarise(engine.ledger.table, choice.known, pod.warnings))
        return BindingComparison(
            pod.namespace,
            pod.name,
            pod.uid,
            profile.name,
            _agreement(seen, own, assumed=assumed),
            self._place(seen, slowdowns, pod),
            None if own is None else self._place(own, choice.slowdowns, pod),
            why,
            assumed,
        )

    def would_place(self, pod: PodRequest) -> WouldPlace:
        """Return the profile's choice for a waiting pod."""
        return would_place(self._engine, self._engine.profile_of(pod), pod)

    def _place(
        self, placement: Placement, slowdowns: Sequence[ExpectedSlowdown], pod: PodRequest
    ) -> ComparedPlace:
        ledger = self._engine.ledger
        row = ledger.table.row_of.get(placement.node)
        before = self._held_milli(row)
        nodes = self._fragments_of(pod)
        ledger.checkpoint()
        try:
            ledger.adopt(placement)
            nodes.mend()
            after, fragments = self._held_milli(row), float(nodes.fragments.sum())
        finally:
            ledger.rollback()
        whole = max(1, int(np.sum(ledger.table.milli_total)))
        return ComparedPlace(
            placement.node,
            tuple(sorted({share.gpu for share in placement.shares})),
            after - before,
            round(100 * fragments / whole, 3),
            max((slowdown.slowdown for slowdown in slowdowns), default=None),
        )

    def _fragments_of(self, pod: PodRequest) -> NodeShares:
        """Return the table that measures the cluster's fragmentation for typical pods; it is made
        again from time to time, as these pods change."""
        table, generation = self._engine.ledger.table, self._engine.ledger.generation
        self._since += 1
        stale = generation != self._generation or self._since >= _COUNT_ANEW
        if self._nodes is None or self._nodes.table is not table or stale:
            usual = list(self._usual()) or [pod.shape]
            pattern = Fragments(TypicalPods(usual), [kind.model for kind in table.kinds])
            self._nodes = NodeShares(pattern, table)
            self._generation, self._since = generation, 0
        self._nodes.mend()
        return self._nodes

    def _held_milli(self, row: int | None) -> int:
        """Return how many thousandths of GPUs pods hold on the node in this row of the ledger's
        table."""
        if row is None:
            return 0
        table, held = self._engine.ledger.table, 0
        for device in range(table.start[row], table.start[row + 1]):
            memory = int(table.memory_used[device]) * 1000
            part = memory // max(1, int(table.device_memory_total[device]))
            held += max(int(table.milli_used[device]), part)
        return held


def _agreement(seen: Placement, own: Placement | None, *, assumed: bool) -> Agreement:
    if own is None:
        return "nowhere"
    if own.node != seen.node:
        return "other node"
    gpus = [sorted({share.gpu for share in place.shares}) for place in (seen, own)]
    return "same" if assumed or gpus[0] == gpus[1] else "other GPU"

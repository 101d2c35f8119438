"""Lends GPU memory that pods hold and leave idle: which pods borrow, and which are evicted when it
is needed. State: the memory that the ledger holds back from lending, and the pods being evicted. A
pure function of the events: when each pod was bound (`PodSeenBound.bound_ns`, from the API, so that
every engine chooses the same borrower), and the snapshots of metrics.

    a bind beyond the strictly free memory ──▶ nothing more is lent there before the next snapshot
    a snapshot ──▶ a GPU's pods need more than it has ──▶ its newest borrower is evicted ──▶ no
                                        other one, until this one is gone or its eviction failed

A borrower is a pod whose request, with the requests of pods bound before it, exceeds the card.
Best-effort pods are evicted first. Latency-critical pods never borrow, never lend, and are never
evicted. Only FRESH metrics evict a pod: without metrics nothing more is lent, and nothing is
evicted. A pod with doubtful annotations counts as the last bound, so that its charge evicts no
other pod.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from weft.core.framework.signals import FRESH, SignalsView
from weft.core.ledger import FAR, Holding, Ledger
from weft.core.ledger.table import Bools
from weft.model import Placement, Shape
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL

NEED, BEYOND, USED = "memory_need_mib", "memory_beyond_mib", "memory_used_mib.last"
"""Columns of `telemetry/feed/memory_needs.py`, and the column whose age counts if the first is
missing."""

RAN_LONG_NS = 3_600_000_000_000
"""A pod that has held a GPU for an hour is treated as one of known peak, as services never end."""

_Gpu = tuple[str, int]


class Lender(msgspec.Struct, frozen=True, gc=False):
    """A pod that lends, and its memory that is measured to be idle."""

    uid: str
    idle_mib: int


class Harvest(msgspec.Struct, frozen=True, gc=False):
    """Memory assigned beyond what is strictly free on a GPU, and the pods that lend it. If
    `expected_mib` is not 0, the place has room for only this much instead of the request: the peak
    of pods `like` it, plus a margin."""

    gpu: int
    harvested_mib: int
    lenders: tuple[Lender, ...] = ()
    asked_mib: int = 0
    expected_mib: int = 0
    like: str = ""


class GrownPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that needs more of the GPU's memory than at the last poll."""

    uid: str
    before_mib: int
    now_mib: int


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """The reason to evict a borrower: the pods of its GPU need `need_mib`, more than `card_mib`
    less the reserve.

    `borrowed_mib` is how much of the pod's request is beyond the card; `grew` lists pods that need
    more than before.
    """

    gpu: int
    need_mib: int
    card_mib: int
    reserve_mib: int
    borrowed_mib: int
    grew: tuple[GrownPod, ...] = ()


class _BoundPod(msgspec.Struct, frozen=True, gc=False):
    """A pod's binding time (last for pods that the API has not shown yet) and its class. The API's
    times are in whole seconds; within a second, `number` is the order of this engine's decisions.
    Ties are rare, as there is a poll between a lender's binding and its borrower's."""

    bound_ns: int
    number: int
    job_class: str
    unsure: bool = False


class HarvestRules:
    """Lends one ledger's idle memory, and evicts borrowers when their lenders need it.

    `closed` are the GPUs of which no more is lent before the next snapshot.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._bound: dict[str, _BoundPod] = {}
        self.closed: set[_Gpu] = set()
        self._leaving: set[str] = set()
        self._refused: set[str] = set()
        self._beyond: dict[_Gpu, int] = {}
        self._number = 0

    # --- events about pods ---

    def placed(self, placement: Placement, shape: Shape, like: str = "") -> tuple[Harvest, ...]:
        """Return which part of a placement, about to be reserved for `shape`, is harvested. `like`
        names the pods whose peak is expected, if any.
        """
        self._number += 1
        self._bound[placement.uid] = _BoundPod(FAR, self._number, shape.job_class)
        table = self._ledger.table
        row = table.row_of.get(placement.node)
        if not table.harvests or row is None or len(placement.shares) != 1:
            return ()
        share = placement.shares[0]
        device = table.device_row(row, share.gpu)
        beyond = share.memory_mib - int(table.device_memory_free[device])
        if beyond <= 0:
            return ()
        lenders = tuple(
            Lender(holding.placement.uid, idle)
            for holding in self._on(placement.node, share.gpu)
            if (idle := memory_on(holding, share.gpu)[1])
        )
        self.closed.add((placement.node, share.gpu))
        expected = shape.gpu_requests[0].expected_mib
        if not 0 < expected < share.memory_mib:
            return (Harvest(share.gpu, beyond, lenders),)
        return (Harvest(share.gpu, beyond, lenders, share.memory_mib, expected, like),)

    def close(self) -> None:
        """Lend no more memory of the `closed` GPUs until the next snapshot."""
        if self.closed:
            closed = dict.fromkeys(self.closed, FAR >> 1)
            self._ledger.hold_back({**self._beyond, **closed})

    def seen_bound(self, uid: str, bound_ns: int, job_class: str, *, unsure: bool = False) -> None:
        """Record when the API says that the pod was bound; `unsure`: its annotations are
        doubtful."""
        before = self._bound.get(uid)
        job_class = job_class or (before.job_class if before else "")
        self._bound[uid] = _BoundPod(bound_ns, before.number if before else 0, job_class, unsure)

    def gone(self, uid: str) -> None:
        """Forget a pod that holds nothing any more."""
        self._bound.pop(uid, None)
        self._leaving.discard(uid)
        self._refused.discard(uid)

    def not_evicted(self, uid: str, *, refused: bool) -> None:
        """Note that the pod's eviction failed. If it was `refused`, the pod is chosen last from now
        on."""
        if uid in self._leaving:
            self._leaving.discard(uid)
            if refused:
                self._refused.add(uid)

    def mark_leaving(self, uid: str) -> None:
        """Note that the pod is being evicted, for whatever reason."""
        self._leaving.add(uid)

    def is_leaving(self, uid: str) -> bool:
        """Return True if the pod is being evicted."""
        return uid in self._leaving

    def class_of(self, holding: Holding) -> str:
        """Return the pod's class, "" if unknown; latency-critical if any source says so."""
        bound = self._bound.get(holding.placement.uid)
        classes = {holding.placement.job_class, bound.job_class if bound else ""}
        return LATENCY_CRITICAL if LATENCY_CRITICAL in classes else max(classes)

    def in_order(self, node: str, gpu: int) -> list[Holding]:
        """Return the pods of a GPU in the order of their binding, by the API's times."""

        def key(holding: Holding) -> tuple[bool, int, int, str]:
            bound = self._bound.get(holding.placement.uid)
            if bound is None:
                return (False, 0, 0, "")
            return bound.unsure, bound.bound_ns, bound.number, holding.placement.uid

        return sorted(self._on(node, gpu), key=key)

    def borrowed_on(self, device: int) -> list[tuple[Holding, int]]:
        """Return the pods of a GPU in the order of their binding, each with the part of its request
        that is beyond what may be reserved without lending, MiB."""
        table, promised, pods = self._ledger.table, 0, []
        row = int(table.device_node[device])
        gpu = table.gpu(row, device).index
        for holding in self.in_order(table.nodes[row].name, gpu):
            asked_mib = memory_on(holding, gpu)[0]
            promised += asked_mib
            pods.append((holding, max(0, min(asked_mib, promised - table.limit_of(device)))))
        return pods

    # --- a new snapshot ---

    def observe(
        self,
        signals: SignalsView,
        needs: Callable[[str], int] | None,
        ran_long: Callable[[str], bool],
    ) -> list[tuple[Holding, Eviction]]:
        """Take new measurements, and return the borrowers to evict, with reasons. `needs` returns
        how much memory a pod (UID) will need of its GPU before it ends, MiB, 0 if unknown: this
        much never counts as idle, however little the pod uses now. If the ledger's limits say
        `known_only`, pods of unknown need lend nothing, unless they `ran_long`."""
        ledger, table = self._ledger, self._ledger.table
        idle = signals.source.idle_mib
        if needs or ledger.limits.known_only:
            idle = dict(self._less(idle, needs or _unknown, ran_long))
        changed = ledger.set_idle(idle)
        self.closed.clear()
        self._beyond = dict(self._found_beyond(signals))
        ledger.hold_back(self._beyond)
        if not table.harvests:
            return []
        evictions, fresh = [], self._fresh(signals)
        ledger.set_measured(fresh)
        before: dict[str, tuple[int, ...]] | None = None
        for device in np.flatnonzero(table.lent() & fresh).tolist():
            if table.short_of(device) <= 0:
                continue
            if before is None:
                before = {holding.placement.uid: holding.idle_mib for holding in changed}
            if leaves := self._evictions_on(device, before):
                self._leaving.add(leaves[0].placement.uid)
                evictions.append(leaves)
        return evictions

    def _less(
        self,
        idle: Mapping[str, tuple[int, ...]],
        needs: Callable[[str], int],
        ran_long: Callable[[str], bool],
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the measured idle memory by UID, less what the pod will need later."""
        for uid, idle_mib in idle.items():
            holding, need = self._ledger.holdings.get(uid), needs(uid)
            if holding is None or not need or len(idle_mib) != 1:
                if not self._ledger.limits.known_only or ran_long(uid):
                    yield uid, idle_mib
            else:
                yield uid, (min(idle_mib[0], holding.placement.shares[0].memory_mib - need),)

    def _found_beyond(self, signals: SignalsView) -> Iterator[tuple[_Gpu, int]]:
        table = self._ledger.table
        values = np.nan_to_num(signals.over(table, BEYOND)[0])
        for device in np.flatnonzero(values > 0).tolist():
            row = int(table.device_node[device])
            node = table.nodes[row]
            index = node.gpus[device - table.start[row]].index
            yield (node.name, index), int(np.ceil(min(values[device], FAR >> 1)))

    def _fresh(self, signals: SignalsView) -> Bools:
        column = NEED if NEED in signals.source.columns else USED
        return np.asarray(signals.over(self._ledger.table, column)[1] == FRESH)

    def _evictions_on(
        self, device: int, before: dict[str, tuple[int, ...]]
    ) -> tuple[Holding, Eviction] | None:
        table = self._ledger.table
        gpu = table.gpu(int(table.device_node[device]), device)
        beyond = self.borrowed_on(device)
        residents = [holding for holding, _ in beyond]
        if any(holding.placement.uid in self._leaving for holding in residents):
            return None
        unsure = [holding for holding in residents if self._unsure(holding)]
        needs = sum(
            asked_mib - idle for asked_mib, idle in (memory_on(pod, gpu.index) for pod in unsure)
        )
        suffices = table.short_of(device) <= needs  # evicting the unsure pods is enough
        borrowers = []
        for number, (holding, borrowed) in enumerate(beyond):
            bound = self._bound.get(holding.placement.uid)
            job_class = bound.job_class if bound else ""
            may_go = holding.state == "committed" and (holding in unsure or not suffices)
            if borrowed > 0 and job_class != LATENCY_CRITICAL and may_go:
                refused = holding.placement.uid in self._refused
                rank = (refused, job_class != BEST_EFFORT, -number)
                borrowers.append((rank, holding, borrowed))
        if not borrowers:
            return None
        _, leaves, borrowed = min(borrowers, key=lambda borrower: borrower[0])
        short = table.short_of(device)
        reserve = gpu.memory_mib - table.lendable(device)
        need = short + table.lendable(device)
        grew = tuple(_growth(residents, gpu.index, before, leaves.placement.uid))
        return leaves, Eviction(gpu.index, need, gpu.memory_mib, reserve, borrowed, grew)

    def _unsure(self, holding: Holding) -> bool:
        bound = self._bound.get(holding.placement.uid)
        return bound is not None and bound.unsure

    def _on(self, node: str, gpu: int) -> list[Holding]:
        holdings = self._ledger.holdings
        return [holdings[uid] for uid in self._ledger.occupants(node, gpu)]


def _unknown(_: str) -> int:
    """Return 0, an unknown need, for any pod."""
    return 0


def memory_on(
    holding: Holding, gpu: int, idle_mib: tuple[int, ...] | None = None
) -> tuple[int, int]:
    """Return the memory that the pod requested of the GPU, and how much of that is idle, MiB."""
    idle_mib_of_shares = holding.idle_mib if idle_mib is None else idle_mib
    asked_mib = idle = 0
    for number, share in enumerate(holding.placement.shares):
        if share.gpu == gpu:
            asked_mib += share.memory_mib
            idle += idle_mib_of_shares[number] if number < len(idle_mib_of_shares) else 0
    return asked_mib, idle


def _growth(
    residents: list[Holding], gpu: int, before: dict[str, tuple[int, ...]], leaves: str
) -> Iterator[GrownPod]:
    """Yield the pods, except the one to evict, that need more than before."""
    for holding in residents:
        asked_mib, idle = memory_on(holding, gpu)
        was = asked_mib - memory_on(holding, gpu, before.get(holding.placement.uid))[1]
        if asked_mib - idle > was and holding.placement.uid != leaves:
            yield GrownPod(holding.placement.uid, was, asked_mib - idle)

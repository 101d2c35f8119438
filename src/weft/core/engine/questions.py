"""Answers questions about what fits where, without reserving anything. kube-scheduler may ask and
then skip the rest of its cycle, or ask about a pod before it binds another: an answer promises
nothing, and the bind decides again (`BindOn`). As it asks about thousands of nodes at once, names
are looked up as arrays. A place kept for a less important pod counts as free.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.core.engine import deciding
from weft.core.engine.assessment import Assessment
from weft.core.engine.deciding import EXPLAINING
from weft.core.engine.engine import Engine
from weft.core.engine.preempting import (
    FitTrials,
    PreemptionRights,
    is_open,
    on_node,
    rights_of,
    without_kept,
)
from weft.core.engine.queue import WaitingPod
from weft.core.engine.reasons import reason_of_each
from weft.core.framework import NEVER, Profile
from weft.core.framework import policy as ask
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.ledger.table import Bools, LedgerTable
from weft.core.preempt import FoundVictims, Victim, VictimSearch, uids_of
from weft.model import Code, Placement, PodRequest
from weft.model.reason import TEXT

Ints = npt.NDArray[np.int64]
_UNKNOWN = -1


class Answers(msgspec.Struct, frozen=True):
    """The answer about the requested nodes, in their order: the names of nodes that fit (`fits`),
    and for the other nodes the reasons why not. `unresolvable` are nodes where preemption would not
    help. `unknown` are names that the ledger does not have (a node that just joined or left).
    """

    fits: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]
    unknown: list[str]


class RowLookup:
    """Looks up rows by name. The last `lists` lists (the same objects) are cached, so callers must
    not change them. kube-scheduler's prioritize call names the nodes that passed its filter call,
    so that list is cached too.
    """

    def __init__(self, lists: int = 4) -> None:
        self._known: deque[tuple[list[str], LedgerTable, Ints]] = deque(maxlen=lists)

    def __call__(self, table: LedgerTable, names: list[str], /) -> Ints:
        """Return a row for each name, -1 for one that the table does not have."""
        for known, of_table, known_rows in self._known:
            if names is known and table is of_table:
                return known_rows
        rows = np.fromiter(map(table.row_of.get, names, repeat(_UNKNOWN)), np.int64, len(names))
        self.remember(table, names, rows)
        return rows

    def remember(self, table: LedgerTable, names: list[str], rows: Ints) -> None:
        """Cache these rows for a later look-up of `names`."""
        self._known.appendleft((names, table, rows))


_ANEW = RowLookup(0)


def which_fit(
    engine: Engine,
    profile: Profile,
    pod: PodRequest,
    names: list[str],
    rows: RowLookup = _ANEW,
    beside: Sequence[PodRequest] = (),
) -> Answers:
    """Filter: return which of these nodes could take the pod now, and why the others can't.
    `beside` are pods that wait outside the engine's queue.
    """
    with without_kept(engine, pod):
        return _which_fit(engine, engine.assess(profile, pod, beside), pod, names, rows)


def _which_fit(
    engine: Engine, known: Assessment, pod: PodRequest, names: list[str], rows: RowLookup
) -> Answers:
    table = engine.ledger.table
    if table.count == 0:
        return Answers([], {}, {}, list(names))
    row_of_each = rows(table, names)
    codes = known.codes.take(row_of_each, mode="clip").astype(np.int64)
    codes[row_of_each == _UNKNOWN] = _UNKNOWN
    bad = codes.nonzero()[0].tolist()
    if not bad:
        return Answers(names, {}, {}, [])
    fits: list[str] = []
    for begin, end in zip([0, *(place + 1 for place in bad)], [*bad, len(names)], strict=True):
        fits += names[begin:end]
    rows.remember(table, fits, row_of_each[codes == 0])
    answers = Answers(fits, {}, {}, [])
    answers.unknown.extend(names[place] for place in bad if row_of_each[place] == _UNKNOWN)
    unresolvable = (codes > 0) & (codes <= Code.OUT_OF_SERVICE)
    for into, places in (
        (answers.unresolvable, unresolvable.nonzero()[0]),
        (answers.failed, (codes > Code.OUT_OF_SERVICE).nonzero()[0]),
    ):
        rows_here = row_of_each.take(places)
        explain = partial(reason_of_each, table, known, rows_here, pod.warnings)
        in_short = [TEXT[Code(code)] for code in codes.take(places).tolist()]
        texts = engine.side_tasks.run(EXPLAINING, explain, in_short)
        into.update(zip([names[place] for place in places.tolist()], texts, strict=True))
    return answers


def scores(
    engine: Engine, profile: Profile, pod: PodRequest, names: list[str], rows: RowLookup = _ANEW
) -> list[int]:
    """Prioritize: return an integer from 0 to 10 for each of these nodes; 0 for those that don't
    fit. A policy with `raw_scores` that decides alone returns its own scores.
    """
    with without_kept(engine, pod):
        known = engine.assess(profile, pod, None)
    table = engine.ledger.table
    if table.count == 0:
        return [0] * len(names)
    row_of_each = rows(table, names)
    raw = known.total.take(row_of_each, mode="clip")
    fits = (row_of_each != _UNKNOWN) & (raw != NEVER)
    tenths: Ints = np.zeros(len(names), dtype=np.int64)
    lead = profile.lead
    if lead.raw_scores and len(profile.plugins) == 1:
        tenths[fits] = raw[fits]
    elif fits.any():
        tenths[fits] = (ask.normalize(lead, raw[fits]) + 5) // 10
    numbers: list[int] = tenths.tolist()
    return numbers


class WouldPlace(NamedTuple):
    """The place that a pod would get now; `placement` is None if it fits nowhere. `known` is the
    assessment of all nodes, `slowdowns` are the expected slowdowns of the pod and its co-residents.
    """

    known: Assessment
    placement: Placement | None = None
    slowdowns: tuple[ExpectedSlowdown, ...] = ()


def would_place(engine: Engine, profile: Profile, pod: PodRequest) -> WouldPlace:
    """Return the place that a first attempt would take. `profile` decides."""
    known = engine.assess(profile, pod)
    table, key = engine.ledger.table, f"{engine.seed}/{pod.uid}/1"
    row = deciding.best_row(known, profile, key)
    if row < 0:
        return WouldPlace(known)
    shares = deciding.shares_on(table, row, known, profile, key)
    placement = deciding.placement_on(table, row, pod.uid, shares, known.shape)
    return WouldPlace(known, placement, slowdowns_at(engine, profile, known, placement))


def slowdowns_at(
    engine: Engine, profile: Profile, known: Assessment, placement: Placement
) -> tuple[ExpectedSlowdown, ...]:
    """Return the slowdowns that the profile's policy expects at the placement; () if it predicts
    none."""
    table = engine.ledger.table
    row = table.row_of.get(placement.node)
    if row is None:
        return ()
    if any(table.device_row(row, share.gpu) < 0 for share in placement.shares):
        return ()
    return deciding.predicted(table, row, known, profile, placement.shares)


# --- victims that kube-scheduler proposes ---------------------------------------------------------
# Answers kube-scheduler's preempt verb: the victims on each node whose eviction makes the pod fit.
#
#     victims proposed, and enough on a GPU too     kept as they are
#     victims proposed, but no help on any GPU      others are searched among the pods of the GPUs
#     no victims proposed (after Kubernetes 1.37)   likewise
#     victims proposed of other teams' queues       likewise, where the pod may not end them
#
# Until 1.37 kube-scheduler proposes victims by the node's totals, and leaves out a node on which
# only a GPU is too full; later versions send such a node with an empty list, but treat an empty
# list in the answer as an error. Pure questions: nothing is evicted here.


class OfferedVictims(NamedTuple):
    """Pods (by UID) whose eviction makes room on one node, and by how many evictions they exceed
    disruption budgets."""

    uids: tuple[str, ...] = ()
    violations: int = 0


def offered_victims(
    engine: Engine,
    profile: Profile,
    pod: PodRequest,
    proposed: Mapping[str, OfferedVictims],
    *,
    by_sums: bool,
) -> dict[str, OfferedVictims]:
    """Return the nodes where evicting pods helps, and which pods. If other pods than those
    `proposed` must be found, only the 48 likeliest nodes are searched. `by_sums`: kube-scheduler
    can only have proposed victims because of node totals, so other pods may be evicted instead;
    otherwise the proposed ones are evicted too."""
    rights, rows = rights_of(engine, pod), engine.ledger.table.row_of
    fits = FitTrials(engine, profile, WaitingPod(pod, profile, 0), rights)
    offers, others = {}, {}
    for name, offer in proposed.items():
        if name not in rows:
            continue
        allowed = rights.by_queue is None or rights.by_queue.allow(offer.uids)
        if allowed and offer.uids and fits(rows[name], [*rights.going, *offer.uids]):
            offers[name] = offer
        elif allowed or by_sums:
            others[name] = offer if allowed else OfferedVictims()
    if not others:
        return offers
    cards = _CardVictims(engine, profile, pod, rights, fits)
    in_their_stead = by_sums and not engine.existing.owners
    for name in cards.likeliest(others):
        theirs = others[name]
        tries = [OfferedVictims(), theirs] if in_their_stead and theirs.uids else [theirs]
        found = next(filter(None, (cards.on(name, beside) for beside in tries)), None)
        if found is not None:
            offers[name] = found
    return offers


class _CardVictims:
    """Searches victims for one pod on nodes' GPUs."""

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        pod: PodRequest,
        rights: PreemptionRights,
        fits: FitTrials,
    ) -> None:
        self._engine, self._law, self._rights = engine, profile.budgets_are_law, rights
        self._known, self._fits = engine.assess(profile, pod, None), fits

    def likeliest(self, nodes: Mapping[str, OfferedVictims]) -> Iterator[str]:
        """Yield the nodes that are worth a search, the likeliest first."""
        table = self._engine.ledger.table
        here = np.zeros(table.count, dtype=np.bool_)
        here[[table.row_of[name] for name in nodes]] = True
        anyway = [uid for offer in nodes.values() for uid in offer.uids]
        for row in self._search(here, anyway).likeliest():
            yield table.nodes[row].name

    def on(self, node: str, beside: OfferedVictims) -> OfferedVictims | None:
        """Return the victims on this node, including `beside`, which are evicted in any case; None
        if no victims help."""
        engine, table = self._engine, self._engine.ledger.table
        everywhere = np.ones(table.count, dtype=np.bool_)
        search = self._search(everywhere, beside.uids)
        found: FoundVictims | None = search.find_on(table.row_of[node])
        if found is None:
            return None
        leaving = [uid for uid in self._rights.going if uid in engine.preemption.going]
        uids = (*beside.uids, *on_node(engine, leaving, node), *uids_of(found.victims))
        over = beside.violations + (found.cost.violations if found.cost else 0)
        return OfferedVictims(tuple(dict.fromkeys(uids)), over) if uids else None

    def _search(self, here: Bools, anyway: Sequence[str]) -> VictimSearch:
        by_queue = self._rights.by_queue
        return VictimSearch(
            self._engine.ledger,
            self._engine.preemption.lower,
            self._known.demand,
            self._rights.below,
            here & is_open(self._known),
            fits=self._fits,
            victims_on=self._victims_on,
            allowed=self._engine.preemption.allowed,
            going=[*self._rights.going, *anyway],
            may_violate=not self._law,
            queues_of=None if by_queue is None else by_queue.borrowing,
        )

    def _victims_on(self, node: str) -> list[Victim]:
        """Return pods of the node that may be evicted and that kube-scheduler sees there: pods that
        are bound, and not of a gang with pods on other nodes."""
        there = {
            holding.placement.uid
            for holding in self._engine.ledger.pods_on(node)
            if holding.state == "committed"
        }
        victims = self._rights.victims_on(self._engine, node)
        return [victim for victim in victims if there.issuperset(victim.uids)]

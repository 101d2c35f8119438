"""Computes fit and score of every node for a shape, keeps them per shape, and updates changed
nodes.

The answers (fit and score) of each (profile, shape) are kept as columns over all nodes, with the
ledger version for which they hold. A later request only evaluates nodes that changed since then, or
all nodes if more than a quarter changed. When nodes are added or removed, the answers for other
nodes are kept. Answers for the least recently used shapes are dropped."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.constraints import (
    DomainsLeft,
    PodAnswer,
    PodWishes,
    PreferredAmong,
    RowsLeft,
    refusals,
)
from weft.core.engine.parked import NOWHERE, Never
from weft.core.framework import (
    NEVER,
    Demand,
    Profile,
    Query,
    assignment,
    connection,
    feasibility,
)
from weft.core.framework import (
    policy as ask,
)
from weft.core.framework.feasibility import Codes
from weft.core.framework.query import NOTHING_OBSERVED
from weft.core.ledger import Ledger
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Constraints, Shape

CODES = len(Code)

LOOKS_AT_LEAST, LOOKS_NEW, LOOKS_SEARCHED = 300, 300, 20
"""Work of a decision, counted in looks (one look: evaluating one node): the minimum; the extra for
a shape without cached answers; and the looks for each node if a pod has several GPU requests."""
LOOKS_REQUEST, LOOKS_STEP, LOOKS_RULE = 160, 1_000, 10
"""Further looks: for each GPU request of a new shape, for each GPU to find for a shape with several
GPU requests, and for each rule on labels."""
LOOKS_LAID_OUT, LOOKS_WOKEN, LOOKS_AHEAD = 40, 12, 300
"""Numbers of looks: for each node when nodes are added or removed, for each group of like pods that
an event checks for waking, and (at least) for each shape that is scored ahead."""
LOOKS_BESIDE = 4
"""A rule about other pods counts as one look (the work of evaluating one node) for this many
nodes."""
LOOKS_WAITING, LOOKS_MATCHED = 8, 20_000
"""Further looks if a policy matches waiting pods with GPUs: for each pod in the queue, and for one
matching."""
KEPT_AT_MOST, KEPT_ROWS = 4_096, 3_000_000
"""The most shapes whose answers are cached, and the most rows (nodes × shapes) of these answers in
total (about 60 MiB), unless the `Assessor` was told to keep more."""
FEW_ROWS = 24
"""The most changed nodes that are counted one by one, which costs less than NumPy does."""
MOST_LATE = 64
"""At most this many changed nodes keep outdated scores until a pod comes that may run there; with
more, all are updated at once."""
ASKED_LATELY = 3
"""After new prices, only shapes that a pod was assessed for under one of the latest price lists
(this many) are scored ahead of decisions."""
TURN_LOOKS = 15_000
"""After this many looks the work for one event pauses, so that other events are handled: about 10
ms, whatever the cluster's size."""
TURN_NS = 100_000_000
"""Events within this time share one budget of looks, until a `Tick`: of a thousand pods that come
at once, those beyond the budget are only queued, so that pods that come later need not wait for all
of them."""

_UNCONSTRAINED = Constraints()
_NO_ROWS: frozenset[int] = frozenset()
_NEVER = np.int64(NEVER)
"""`NEVER` as a NumPy integer, since `np.where` would convert a Python integer at each call."""


class Assessment:
    """Answers for one shape: `codes` (0 fits) and `total` (score or NEVER) over all nodes.

    `raw` holds each scoring policy's own scores, `position` the best device of each node where a
    policy scores devices. `counts[c]` is the number of nodes with code c. `inexact` says on which
    nodes the search for several GPU requests ended at its bound, None if on none. `places` are the
    rows last assessed for several GPU requests, and the GPUs found there. `observed` is the
    snapshot that policies last saw, `prices` is the number of the price list by which they scored;
    `asked` is the number of the list that was current when a pod was last assessed. `connected` is
    the quality of the best connected set of GPUs that is free on each node, `connectable` that of
    the empty node: both None if links do not matter. `kinds` are the cluster's kinds of GPU.
    `beside` are the answers of the pod's rules about other pods, valid only until the next decision
    (`among`). `late` are nodes whose scores are out of date, because no pod that was assessed since
    could run there (`Assessor.assess`). `rows`, if set, are all nodes that fit, in order, with
    `scores`. `wishes` are the pod's preferences now (`preferring`), None without any; `preferred`
    is the reason if they decided which node was chosen."""

    def __init__(self, shape: Shape, ledger: Ledger, profile: Profile) -> None:
        self.shape, self.profile = shape, profile
        self.prices = self.asked = 0
        self.beside: Sequence[PodAnswer] = ()
        self.wishes: PodWishes | None = None
        self.preferred: PreferredAmong | None = None
        self.rows: Ints | None = None
        self.left: DomainsLeft | None = None
        self.scores: Ints
        self.generation = ledger.generation
        self.version, self.observed = -1, NOTHING_OBSERVED
        self.late = _NO_ROWS
        rows = ledger.table.count
        self.raw: list[Ints] = [np.zeros(rows, dtype=np.int64) for _ in profile.scorers]
        self.demand = Demand(shape, ledger.table, harvests=profile.harvests)
        self.kinds = ledger.table.told_apart
        self.declared: Codes = feasibility.declared_codes(ledger.table, self.demand)
        self.any_declared = bool(self.declared.any())
        self.codes: Codes = np.zeros(rows, dtype=np.int8)
        self.counts = [rows, *[0] * (CODES - 1)]
        self.inexact: Bools | None = None
        self.places: tuple[Ints, assignment.Assignment] | None = None
        self.connectable = None
        if self.demand.gpus > 1:
            self.connectable = connection.best_by_node(ledger.table, self.demand)
        self.connected = None if self.connectable is None else self.connectable.copy()
        alone = len(self.raw) == 1
        self.total: Ints = self.raw[0] if alone else np.zeros(rows, dtype=np.int64)
        self.position: Ints | None = (
            np.zeros(rows, dtype=np.int64) if profile.device_scorer is not None else None
        )

    def query(self, table: LedgerTable, rows: Ints | None = None) -> Query:
        """Return the query that policies answer about the nodes of these rows; None means all
        nodes."""
        return Query(table, self.demand, rows, self.observed)

    def carry(self, ledger: Ledger) -> bool:
        """Carry the answers over to the ledger's new layout of nodes; new and changed nodes are
        assessed at the next update. Return False, and change nothing, if the answers for unchanged
        nodes could differ there, or are incomplete."""
        table, then = ledger.table, ledger.rows_then(self.generation)
        if then is None or not len(self.codes) or self.inexact is not None:
            return False
        came = np.flatnonzero(then < 0)
        if 4 * len(came) > table.count or self.counts[Code.NOT_SEARCHED]:
            return False
        if not self.profile.answers_by_node:
            return False
        demand = self.demand
        if self.kinds != table.told_apart or demand.device_accepts is not None:
            demand = Demand(self.shape, table, harvests=self.profile.harvests)
            if demand.mode != self.demand.mode:
                return False
        declared = feasibility.declared_codes(table, demand, came)
        connectable = connection.best_by_node(table, demand, came)
        if (connectable is None) != (self.connectable is None):
            return False
        self.demand, self.generation, self.kinds = demand, ledger.generation, table.told_apart
        self.places = None
        if self.late:
            self.late = frozenset(np.isin(then, [*self.late]).nonzero()[0].tolist())
        self._take_rows(np.maximum(then, 0))
        self.declared[came] = declared
        self.any_declared = bool(self.declared.any())
        if self.connectable is not None and connectable is not None:
            self.connectable[came] = connectable
        return True

    def _take_rows(self, rows: Ints) -> None:
        alone = self.raw and self.total is self.raw[0]
        self.codes, self.declared = self.codes.take(rows), self.declared.take(rows)
        self.counts = np.bincount(self.codes, minlength=CODES).tolist()
        self.raw = [scores.take(rows) for scores in self.raw]
        self.total = self.raw[0] if alone else self.total.take(rows)
        for name in ("position", "connectable", "connected"):
            if (column := getattr(self, name)) is not None:
                setattr(self, name, column.take(rows))

    def copied(self) -> "Assessment":
        """Return a copy that can be narrowed; both share the columns until one of them replaces its
        own."""
        twin = object.__new__(Assessment)
        twin.__dict__.update(self.__dict__)
        return twin

    def among(self, shape: Shape, beside: Sequence[PodAnswer]) -> "Assessment":
        """Return these answers without the nodes that a pod's rules about other pods refuse now,
        according to the answers `beside`. Pods move with every decision, so these rules are
        evaluated each time. `shape` is the pod's shape, extended by other pods' rules about this
        pod."""
        return NarrowedAssessment(self, shape, beside)

    def preferring(self, wishes: PodWishes) -> "Assessment":
        """Return these answers for a pod with these preferences, which decide among nodes of
        similar scores."""
        twin = self.copied()
        twin.wishes = wishes
        return twin

    def filled(self) -> "Assessment":
        """Return these answers with complete columns of all nodes."""
        return self

    @property
    def never(self) -> Never:
        """Return the nodes that could not take the shape even if all pods left them."""
        if not self.any_declared:
            return NOWHERE
        return Never(self.generation, np.packbits(self.declared != 0).tobytes())


class NarrowedAssessment(Assessment):
    """Answers narrowed by rules about other pods. If few nodes are left, only these are evaluated;
    `codes` and `total` of all nodes are computed on demand (`filled`), which must happen before the
    ledger changes."""

    def __init__(self, known: Assessment, shape: Shape, beside: Sequence[PodAnswer]) -> None:
        """Narrow `known`, the assessment without the rules about other pods, by the answers
        `beside`."""
        self.__dict__.update(known.filled().__dict__)
        self.shape, self.beside, self._known = shape, beside, known
        left = RowsLeft(known.codes, known.counts, beside)
        self.counts, self.rows, self.left = left.counts, left.rows, left.domains
        if left.rows is not None:
            weighed = len(self.raw) > 1
            self.scores = _weighed(known, left.rows) if weighed else known.total.take(left.rows)
            del self.codes, self.total
        elif left.codes is not known.codes:
            self.codes = left.codes
            if len(self.raw) > 1:
                self.total = known.total.copy()
                _weigh(self)
            else:
                self.total = np.where(left.codes == 0, known.total, _NEVER)

    def __getattr__(self, name: str) -> Any:
        """Compute a column of all nodes on first access."""
        if name in ("codes", "total"):
            return getattr(self.filled(), name)
        raise AttributeError(name)

    def filled(self) -> Assessment:
        """Return these answers with complete columns of all nodes, which do not change with the
        ledger."""
        known, rows = self._known, self.rows
        if rows is not None and "codes" not in self.__dict__:
            if known.version != self.version:
                raise RuntimeError("these answers are outdated: newer ones were computed meanwhile")
            refused = refusals(self.beside, len(known.codes))
            codes = known.codes
            self.codes = codes if refused is None else codes + refused * (codes == 0)
            self.total = np.full(len(codes), NEVER, dtype=np.int64)
            self.total[rows] = self.scores
        return self

    def copied(self) -> Assessment:
        """Return a copy of these answers that can be narrowed further."""
        self.filled()
        twin = super().copied()
        twin.rows = twin.left = None
        return twin

    def preferring(self, wishes: PodWishes) -> Assessment:
        """Set these preferences on this object itself, which is valid only until the next decision
        anyway."""
        self.wishes = wishes
        return self


class Assessor:
    """Keeps each `Assessment` up to date with the ledger. `forgotten` counts how often a policy's
    own state or prices changed. `dear` are answers scored by earlier prices, for `work_ahead` to
    score again. `observed` is the snapshot for policies, replaced as a whole between decisions.
    `looked` is the work so far, counted in looks at a node: unlike a clock, it is the same for the
    same events."""

    def __init__(self, ledger: Ledger, keep: int = 256) -> None:
        """Cache the answers for up to `keep` shapes; for more if the cluster has few nodes."""
        self._ledger = ledger
        self._keep = keep
        self.observed = NOTHING_OBSERVED
        self.forgotten = self.looked = 0
        self._prices = 0
        self.dear: list[Assessment] = []
        self._known: OrderedDict[tuple[str, Shape], Assessment] = OrderedDict()
        self._with_places: Assessment | None = None  # one at a time: they are large
        self._without_rules: dict[Shape, Shape] = {}

    def forget(self) -> None:
        """Drop all answers, as a policy's own state changed."""
        self._known.clear()
        self.dear.clear()
        self._with_places = None
        self.forgotten += 1

    def reprice(self) -> None:
        """Mark scores as out of date after policies changed their prices; which nodes fit stays
        valid."""
        self.dear = []
        for known in reversed(self._known.values()):
            if self._prices - known.asked >= ASKED_LATELY:
                break  # no pod asked about the remaining shapes lately
            if known.profile.has_prices:
                self.dear.append(known)
        self.dear.reverse()
        self._prices += 1
        self.forgotten += 1

    def work_ahead(self, until: int) -> None:
        """Score recently used shapes ahead of decisions, the latest first, until `looked` reaches
        `until`. This changes no answer, only when it is computed."""
        while self.dear and self.looked < until:
            stale = self.dear.pop()
            self.looked += LOOKS_AHEAD
            if self._known.get((stale.profile.name, stale.shape)) is stale:
                known = self._of_this_layout(stale.profile, stale.shape)
                known.asked = stale.asked
                self._bring_up(known)

    def assess(
        self, profile: Profile, shape: Shape, beside: Sequence[PodAnswer] = ()
    ) -> Assessment:
        """Return the answers for `shape` as of the ledger's current version. Where the answers
        `beside` refuse a node, its score may be out of date: the caller must leave it out
        (`Assessment.among`)."""
        self.looked += LOOKS_AT_LEAST
        known = self._of_this_layout(profile, shape)
        self._known.move_to_end((profile.name, known.shape))
        known.profile, known.asked = profile, self._prices
        self._bring_up(known, beside)
        if len(known.raw) > 1:
            _weigh(known)
        return known

    def without_rules(self, shape: Shape) -> Shape:
        """Return the shape without its rules about other pods and volumes: answers about capacity
        are cached by this key."""
        known = self._without_rules.get(shape)
        if known is None:
            if len(self._without_rules) >= KEPT_AT_MOST:
                self._without_rules.clear()
            constraints = replace(shape.constraints, pods=UNSET, storage=UNSET)
            bare = replace(shape, constraints=constraints)
            # One object for all equal shapes: finding the same object is faster than an equal one.
            known = self._without_rules.setdefault(bare, bare)
            self._without_rules[shape] = known
        return known

    def _of_this_layout(self, profile: Profile, shape: Shape) -> Assessment:
        """Return the answers cached for `shape`, carried over to the ledger's present layout of
        nodes if nodes were added or removed; new ones, not evaluated yet, if there are none."""
        key = (profile.name, shape)
        ledger = self._ledger
        known = self._known.get(key)
        if known is not None and known.generation != ledger.generation:
            self.looked += LOOKS_NEW + LOOKS_RULE * _rules(shape) // 2
            self.looked += LOOKS_REQUEST * len(known.demand.needs)
            if not known.carry(ledger):
                known = None
        if known is None:
            known = self._known[key] = Assessment(shape, ledger, profile)
            self.looked += LOOKS_NEW + ledger.table.count + LOOKS_REQUEST * len(known.demand.needs)
            self.looked += LOOKS_RULE * _rules(shape)
            if len(self._known) > self._kept():
                self._known.popitem(last=False)
        return known

    def _kept(self) -> int:
        within = KEPT_ROWS // max(1, self._ledger.table.count)
        return max(self._keep, min(KEPT_AT_MOST, within))

    def _bring_up(self, known: Assessment, beside: Sequence[PodAnswer] = ()) -> None:
        """Bring the answers up to date with the ledger, the signals and the prices."""
        profile, version = known.profile, self._ledger.version
        known.observed = self.observed if profile.observes else NOTHING_OBSERVED
        if known.version != version or known.late or self._is_dear(known):
            try:
                self._mend(known, profile, beside)
            except Exception:  # the columns may be updated only in part
                self._known.pop((profile.name, known.shape), None)
                raise
            known.version, known.prices = version, self._prices

    def _is_dear(self, known: Assessment) -> bool:
        """Return True if the answers were scored by outdated prices."""
        return known.profile.has_prices and known.prices != self._prices

    def _stale(self, known: Assessment) -> Ints | None:
        """Return the rows whose answers may be out of date, None for all. After a price change
        these include all rows that fit, as only scores depend on prices."""
        table = self._ledger.table
        stale = table.changed_at > known.version
        if self._is_dear(known):
            if known.inexact is not None or known.counts[Code.NOT_SEARCHED]:
                return None
            if known.profile.filters_by_prices:
                return None
            stale |= known.codes == 0
        rows = stale.nonzero()[0]
        return None if len(rows) * 4 > table.count else rows

    def _mend(self, known: Assessment, profile: Profile, beside: Sequence[PodAnswer]) -> None:
        table = self._ledger.table
        rows: Ints | None = None
        if known.version >= 0:
            if known.version < table.closed_at:
                known.declared = feasibility.declared_codes(table, known.demand)
                known.any_declared = bool(known.declared.any())
            rows = self._stale(known)
            if rows is not None and len(rows) == 0 and not known.late:
                return
        if rows is None:
            known.late = _NO_ROWS
        elif beside or known.late:
            behind = known.late.union(rows.tolist())
            if _may_wait(known, behind, beside):
                known.late = behind
                if len(rows):
                    self.looked += len(rows)
                    _store_codes(known, rows, _codes(known, table, rows)[1])
                return
            if known.late:
                self.looked -= len(behind) - len(rows)  # these were counted when they changed
                rows = np.array(sorted(behind), dtype=np.int64)
                known.late = _NO_ROWS
        query, codes = _codes(known, table, rows)
        self.looked += query.n if query.demand.mode != "many" else _looks_of_search(query)
        fits = codes == 0
        if known.demand.mode == "many":
            if self._with_places is not None:
                self._with_places.places = None
            self._with_places = known
            codes, fits, scores, inexact = _many(query, codes, fits, profile, known)
            position = None
            _note(known, rows, inexact)
        elif known.demand.needs and profile.device_scorer is not None:
            by_device = profile.device_scorer
            scores, position = ask.feasible_scores(profile.score_policies, by_device, query, fits)
        else:
            scores, position = ask.node_scores(profile.score_policies, query), None
        _store(known, rows, codes, fits, scores, position)


def _may_wait(known: Assessment, behind: frozenset[int], beside: Sequence[PodAnswer]) -> bool:
    """Return True if no score of these nodes is needed now: few are `behind`, and the answers
    `beside` refuse them all."""
    if not beside or len(behind) > MOST_LATE:
        return False
    if known.demand.mode == "many" or not known.profile.answers_by_node:
        return False
    for row in behind:
        for answer in beside:
            if answer.refuses_row(row):
                break
        else:
            return False
    return True


def _codes(known: Assessment, table: LedgerTable, rows: Ints | None) -> tuple[Query, Codes]:
    """Return the query about these rows, narrowed by device filters, and a code for each row (0:
    fits)."""
    profile, query = known.profile, known.query(table, rows)
    codes = feasibility.codes(query)
    if known.any_declared:
        declared = known.declared if rows is None else known.declared.take(rows)
        codes = np.where(declared == 0, codes, declared)
    if profile.node_filters or profile.device_filters:
        codes = _filter(query, codes, profile)
    if known.connected is not None and known.connectable is not None:
        free = connection.best_free(query, profile)
        known.connected[slice(None) if rows is None else rows] = free
        codes = connection.required_codes(query, codes, free, known.connectable)
    return query, codes


def _rules(shape: Shape) -> int:
    """Return the number of the shape's rules by which each node is checked; 0 for most pods."""
    return 0 if shape.constraints == _UNCONSTRAINED else shape.constraints.rules


def _looks_of_search(query: Query) -> int:
    nodes: int = query.n
    steps = query.demand.gpus if query.demand.gpus <= assignment.MOST_GPUS else 0
    return nodes * LOOKS_SEARCHED + steps * LOOKS_STEP


def _filter(query: Query, codes: Codes, profile: Profile) -> Codes:
    """Apply the policies' filters; device filters narrow `query.device_fits` for the scores."""
    for policy in profile.node_filters:
        mask = ask.filter_nodes(policy, query)
        if mask is not None:
            codes = np.where((codes == 0) & ~mask, Code.POLICY, codes)
    if query.demand.needs and query.demand.mode != "many":
        narrowed = False
        for policy in profile.device_filters:
            mask = ask.filter_devices(policy, query)
            if mask is not None:
                query.narrow(mask)
                narrowed = True
        if narrowed:
            enough = query.count(query.device_fits) >= query.demand.need.count
            codes = np.where((codes == 0) & ~enough, Code.POLICY, codes)
    return codes


def _many(
    query: Query, codes: Codes, fits: Bools, profile: Profile, known: Assessment
) -> tuple[Codes, Bools, list[Ints], Bools]:
    """Search places for several GPU requests on the nodes that fit otherwise. Return the codes, a
    mask of the nodes that fit, each policy's scores, and a mask of the nodes where the search ended
    at its bound, [n] each."""
    fitting = np.flatnonzero(fits)
    inexact = np.zeros(query.n, dtype=np.bool_)
    scores = ask.node_scores(profile.score_policies, query)
    if len(fitting):
        answer = assignment.place(query.only(fitting), profile)
        known.places = (fitting if query.rows is None else query.rows.take(fitting)), answer
        codes = codes.copy()
        codes[fitting] = np.where(answer.fits, 0, answer.codes)
        inexact[fitting] = ~answer.exact
        fits = codes == 0
        for index, plugin in enumerate(profile.scorers):
            if plugin.policy is profile.device_scorer:
                scores[index] = scores[index].copy()
                scores[index][fitting] += answer.score
    return codes, fits, scores, inexact


def _note(known: Assessment, rows: Ints | None, inexact: Bools) -> None:
    """Record on which nodes the search for several GPU requests ended at its bound."""
    if known.inexact is None and inexact.any():
        known.inexact = np.zeros(len(known.codes), dtype=np.bool_)
    if known.inexact is not None:
        known.inexact[slice(None) if rows is None else rows] = inexact


def _store(
    known: Assessment,
    rows: Ints | None,
    codes: Codes,
    fits: Bools,
    scores: list[Ints],
    position: Ints | None,
) -> None:
    """Write the updated answers into the columns."""
    at = slice(None) if rows is None else rows
    _store_codes(known, rows, codes)
    for raw, score in zip(known.raw, scores, strict=True):
        raw[at] = np.where(fits, score, NEVER)
    if not known.raw:
        known.total[at] = np.where(fits, 0, NEVER)
    if position is not None and known.position is not None:
        known.position[at] = position


def _store_codes(known: Assessment, rows: Ints | None, codes: Codes) -> None:
    """Write the codes of these rows (None: all) into the column, and update the number of nodes by
    code."""
    if rows is None:
        known.counts = np.bincount(codes, minlength=CODES).tolist()
        known.codes[:] = codes
        return
    before, counts = known.codes.take(rows), known.counts
    if len(rows) <= FEW_ROWS:
        for code in codes.tolist():
            counts[code] += 1
        for code in before.tolist():
            counts[code] -= 1
    else:
        more = np.bincount(codes, minlength=CODES) - np.bincount(before, minlength=CODES)
        for code in more.nonzero()[0].tolist():
            counts[code] += int(more[code])
    known.codes[rows] = codes


def _weigh(known: Assessment) -> None:
    """Normalise several policies' scores over the feasible nodes, and add them by weight."""
    fits = np.flatnonzero(known.codes == 0)
    known.total[:] = NEVER
    known.total[fits] = _weighed(known, fits)


def _weighed(known: Assessment, fits: Ints) -> Ints:
    total = np.zeros(len(fits), dtype=np.int64)
    if len(fits):
        for plugin, raw in zip(known.profile.scorers, known.raw, strict=True):
            total += plugin.weight * ask.normalize(plugin.policy, raw.take(fits))
    return total

"""Learns how long pods run, and predicts how much longer one will: the median, the 90 % quantile,
and the quantile of the configured confidence. Sources, in this order: the duration that the pod
states, corrected by how long earlier pods took compared with theirs; earlier runs of its kind, of
the most specific kind with enough runs (Kaplan and Meier's estimate, where runs that were cut short
or still go on count as lasting at least that long; "Nonparametric Estimation from Incomplete
Observations", 1958); the stated duration alone, unless too many pods of its namespace ran far
longer than stated. A pod's time limit bounds all of these. For a running pod, only earlier runs
count that lasted at least as long as it has run so far. With too few runs the result is unknown,
never a guess."""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from operator import neg
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints

Floats = npt.NDArray[np.float64]

SECOND_NS = 1_000_000_000
HALF_LIFE_NS = 7 * 86_400 * SECOND_NS
"""A run this old counts half as much as a new one: programs and their data change within weeks."""
LEAST_RUNS = 5.0
"""The least number of runs (effective, by weight) for any estimate; the 90 % quantile needs nine.
Few runs are read cautiously: the k-th shortest of n estimates the quantile k / (n + 1)."""
RUNS_KEPT, KINDS_KEPT = 256, 4_096
MOST_NS = 10 * 365 * 86_400 * SECOND_NS
"""Longer runs, and those of no duration, come from a clock that jumped: they are not counted."""
SAID_AT_MOST = 2
"""Nine of ten pods are taken to run at most this many times their stated duration, while no earlier
runs are known."""
HALF, MOST, SURE = 0.5, 0.9, 0.8
"""Fractions: the median, nine of ten, and the default confidence."""
AGAIN_NS, AGAIN_PART = 60 * SECOND_NS, 16
"""Estimates are computed again after this time, or when this part (one in 16) of their runs is
new."""
_PERMILLE = 1_000
_ROUNDING = 1e-12


class TimeLeft(NamedTuple):
    """Remaining running time, ns: half of such pods end within `half_ns`, nine of ten within
    `most_ns`, and within `sure_ns` with the configured confidence; None where unknown. `by` is the
    source: "said" (the pod's statement), "learnt" (earlier runs), "bound" (its time limit), or ""
    if unknown."""

    half_ns: int | None = None
    most_ns: int | None = None
    by: str = ""
    sure_ns: int | None = None


UNKNOWN = TimeLeft()


class Survival(NamedTuple):
    """A survival curve: times at which runs ended, ascending, and the fraction that lasts longer
    than each. Both are lists, not arrays, as thousands of pods look up one value each."""

    times: list[int]
    left: list[float]

    def quantile(self, part: float, age: int) -> int | None:
        """Return the time within which this fraction of the runs that reached `age` end; None if
        too few were seen to end."""
        first = bisect_right(self.times, age)
        beyond = self.left[first - 1] if first else 1.0
        if beyond <= _ROUNDING:
            return None
        staying = (1 - part) * beyond + _ROUNDING
        found = bisect_left(self.left, -staying, first, key=neg)
        return self.times[found] - age if found < len(self.times) else None


def survival(ran: Ints, ended: Bools, weights: Floats) -> Survival:
    """Return Kaplan and Meier's estimate for runs that lasted `ran`, weighted; `ended` is False for
    runs that go on or were cut short; [n] each."""
    order = np.argsort(ran, kind="stable")
    ran, ended, weights = ran[order], ended[order], weights[order]
    times, first = np.unique(ran, return_index=True)
    if not len(times):
        return Survival([], [])
    at_risk = np.cumsum(weights[::-1])[::-1][first]
    ends = np.add.reduceat(np.where(ended, weights, 0.0), first)
    is_end = ends > 0
    staying = np.where(ends >= at_risk, 0.0, 1 - ends / at_risk)
    return Survival(times[is_end].tolist(), np.cumprod(staying)[is_end].tolist())


class _Curve(NamedTuple):
    """Runs of one kind: `all` is the survival estimate from all of them, `ended` are the lengths of
    those that ended by themselves, ascending, [n], and `beyond` is, by position in `ended`, the
    effective number of runs from there on, [n + 1]."""

    all: Survival
    ended: list[int]
    beyond: list[float]

    @classmethod
    def of(cls, runs: Sequence[tuple[int, bool, int]], now_ns: int, half_life_ns: int) -> Self:
        """Estimate from these runs, weighted by their age."""
        ran, ended, at = np.array(runs, dtype=np.int64).reshape(-1, 3).T
        is_end = ended != 0
        weights = 0.5 ** (np.maximum(now_ns - at, 0) / half_life_ns)
        order = np.argsort(ran[is_end], kind="stable")
        last = effective_sizes(weights[is_end][order]).tolist()
        return cls(survival(ran, is_end, weights), ran[is_end][order].tolist(), last)

    def runs_beyond(self, age: int) -> float:
        """Return the effective number of runs that lasted longer than this and ended by
        themselves."""
        return self.beyond[bisect_right(self.ended, age)]


def effective_sizes(weights: Floats) -> Floats:
    """Return Kish's effective sample size of the weights from each position on; 0 after the last,
    [n + 1]."""
    sums, squares = (np.cumsum(each[::-1])[::-1] for each in (weights, weights**2))
    sizes = np.divide(sums**2, squares, out=np.zeros_like(sums), where=squares > 0)
    return np.append(sizes, 0.0)


Quantiles = tuple[int | None, int | None, int | None]
"""The time left, ns, at the median, the 90 % quantile, and the quantile of the confidence; None
where unknown."""


class RunsOfKind:
    """The latest runs of one kind of pods: the length of each, whether it ended by itself, and
    when."""

    def __init__(self) -> None:
        self.runs: deque[tuple[int, bool, int]] = deque(maxlen=RUNS_KEPT)
        self._added = 0
        self._known: tuple[int, int, int, _Curve] | None = None
        self._at_start: tuple[_Curve, float, Quantiles | None] | None = None

    def add(self, ran: int, now_ns: int, *, ended: bool) -> None:
        """Add a run that is over."""
        self.runs.append((ran, ended, now_ns))
        self._added += 1

    def left(
        self,
        age: int,
        now_ns: int,
        half_life_ns: int,
        running: int = 0,
        ages: Callable[[], Sequence[int]] = tuple,
        sure: float = SURE,
    ) -> Quantiles | None:
        """Return the quantiles of the time left at this age, possibly cached for a short while;
        None for too few runs. `running` is how many pods of the kind run now, `ages` returns their
        ages, ns; `sure` is the confidence of the last quantile."""
        curve = self._curve(now_ns, half_life_ns, running, ages)
        if age:
            return _quantiles(curve, age, sure)
        if self._at_start is None or self._at_start[0] is not curve or self._at_start[1] != sure:
            self._at_start = curve, sure, _quantiles(curve, 0, sure)
        return self._at_start[2]

    def _curve(
        self, now_ns: int, half_life_ns: int, running: int, ages: Callable[[], Sequence[int]]
    ) -> _Curve:
        if self._known is not None:
            at_ns, added, ran_then, curve = self._known
            is_new = self._added - added + abs(running - ran_then)
            if now_ns - at_ns < AGAIN_NS and is_new * AGAIN_PART <= len(self.runs) + running:
                return curve
        curve = _Curve.of(
            [*self.runs, *((ran, False, now_ns) for ran in ages())], now_ns, half_life_ns
        )
        self._known = now_ns, self._added, running, curve
        return curve


def _quantiles(curve: _Curve, age: int, sure: float) -> Quantiles | None:
    """Return the quantiles of the time left at this age; None for too few runs."""
    count = curve.runs_beyond(age)
    if count < LEAST_RUNS:
        return None
    most_ns, sure_ns = (_of_few(curve.all, part, age, count) for part in (MOST, sure))
    return curve.all.quantile(HALF, age), most_ns, sure_ns


def _of_few(curve: Survival, part: float, age: int, count: float) -> int | None:
    """Return the time within which this fraction of future runs ends, estimated cautiously as only
    `count` runs were seen; None if too few."""
    part *= (count + 1) / count
    return curve.quantile(min(part, 1.0), age) if part <= 1 + _ROUNDING else None


class _Running(NamedTuple):
    kinds: tuple[str, ...]
    since_ns: int
    said_ns: int
    bound_ns: int
    told: TimeLeft


class _ExpectedEnd(NamedTuple):
    again_ns: int
    half_ns: int | None


def _expected_end(left: TimeLeft, now_ns: int) -> _ExpectedEnd:
    half_ns = None if left.half_ns is None else now_ns + left.half_ns
    return _ExpectedEnd((half_ns or now_ns + AGAIN_NS) + SECOND_NS, half_ns)


class RunHistory:
    """Past runs by kind of pod, and the running pods. `coverage` has, for pods that ended by
    themselves, the number of forecasts made at their start of the median (`half`) and of the
    90 % quantile (`most`) of their running time, and the number of pods that ended within them
    (`half-kept`, `most-kept`)."""

    def __init__(self, half_life_ns: int = HALF_LIFE_NS, sure: float = SURE) -> None:
        self._half_life_ns, self._sure = half_life_ns, sure
        self._ran: OrderedDict[str, RunsOfKind] = OrderedDict()
        self._took: OrderedDict[str, RunsOfKind] = OrderedDict()  # thousandths of the stated one
        self._running: dict[str, _Running] = {}
        self._ends: dict[str, _ExpectedEnd] = {}
        self._of_kind: dict[str, dict[str, None]] = {}
        self._saying: dict[str, dict[str, None]] = {}  # running, by namespace
        self._late_at: list[tuple[int, str]] = []
        self._late: dict[str, set[str]] = {}  # those that run far longer than stated, by namespace
        self.coverage: Counter[str] = Counter()

    def begins(
        self, uid: str, kinds: Sequence[str], now_ns: int, said_ns: int = 0, bound_ns: int = 0
    ) -> TimeLeft:
        """Note that the pod starts, and return how long it will run. `kinds` are the groups that it
        belongs to, the most specific first, its namespace last; `said_ns` is the duration that it
        states, `bound_ns` its time limit, 0 for none."""
        said_ns = said_ns if 0 < said_ns <= MOST_NS else 0
        told = self.left(kinds, 0, now_ns, said_ns=said_ns, bound_ns=bound_ns)
        self.forget(uid)
        self._running[uid] = _Running(tuple(kinds), now_ns, said_ns, bound_ns, told)
        self._ends[uid] = _expected_end(told, now_ns)
        for kind in kinds:
            self._of_kind.setdefault(kind, {})[uid] = None
        if said_ns and kinds:
            self._saying.setdefault(kinds[-1], {})[uid] = None
            heapq.heappush(self._late_at, (now_ns + SAID_AT_MOST * said_ns, uid))
        return told

    def __contains__(self, uid: str) -> bool:
        return uid in self._running

    def forget(self, uid: str) -> _Running | None:
        """Forget a running pod; return the run, None if unknown."""
        run = self._running.pop(uid, None)
        self._ends.pop(uid, None)
        if run is None:
            return None
        for kind in run.kinds:
            _take_out(self._of_kind, kind, uid)
        if run.said_ns and run.kinds:
            _take_out(self._saying, run.kinds[-1], uid)
            late = self._late.get(run.kinds[-1], set())
            late.discard(uid)
            if not late:
                self._late.pop(run.kinds[-1], None)
        return run

    def ends(self, uid: str, now_ns: int, *, by_itself: bool) -> None:
        """Record the end of a pod's run: `by_itself`, or cut short."""
        run = self.forget(uid)
        if run is None:
            return
        ran_ns = now_ns - run.since_ns
        if not 0 < ran_ns <= MOST_NS:
            return
        for kind in run.kinds:
            self._runs_of(self._ran, kind).add(ran_ns, now_ns, ended=by_itself)
        if run.said_ns and run.kinds:
            took = ran_ns * _PERMILLE // run.said_ns
            self._runs_of(self._took, run.kinds[-1]).add(took, now_ns, ended=by_itself)
        if by_itself:
            self._measure(run.told, ran_ns)

    def _runs_of(self, known: OrderedDict[str, RunsOfKind], kind: str) -> RunsOfKind:
        runs = known.get(kind)
        if runs is None:
            runs = known[kind] = RunsOfKind()
            if len(known) > KINDS_KEPT:
                known.popitem(last=False)
        known.move_to_end(kind)
        return runs

    def told(self) -> dict[tuple[str, str], int]:
        """Return the number of forecasts for pods that ended by themselves, by bound ("50", "90"
        for the median and the 90 % quantile) and outcome ("kept", "exceeded")."""
        found = {}
        for name, bound in (("half", "50"), ("most", "90")):
            kept = self.coverage[f"{name}-kept"]
            found[bound, "kept"], found[bound, "exceeded"] = kept, self.coverage[name] - kept
        return found

    def _measure(self, told: TimeLeft, ran_ns: int) -> None:
        for name, bound_ns in (("half", told.half_ns), ("most", told.most_ns)):
            if bound_ns is not None:
                self.coverage[name] += 1
                self.coverage[f"{name}-kept"] += ran_ns <= bound_ns

    def of_running(self, uid: str, now_ns: int, sure: float = 0) -> TimeLeft:
        """Return how much longer a running pod runs, `UNKNOWN` if no such pod runs; `sure` is the
        confidence, 0 for the configured one."""
        run = self._running.get(uid)
        if run is None:
            return UNKNOWN
        age_ns, said_ns, bound_ns = max(0, now_ns - run.since_ns), run.said_ns, run.bound_ns
        return self.left(run.kinds, age_ns, now_ns, said_ns=said_ns, bound_ns=bound_ns, sure=sure)

    def all_end_at(self, uids: Sequence[str], now_ns: int) -> int | None:
        """Return when all these pods have ended, with the configured confidence: each pod's
        confidence is raised so that it holds for all, taking them as independent. None if unknown.
        """
        sure = float(self._sure ** (1 / max(1, len(uids))))
        left = [self.of_running(uid, now_ns, sure).sure_ns for uid in uids]
        known = [sure_ns for sure_ns in left if sure_ns is not None]
        return now_ns + max(known, default=0) if len(known) == len(left) else None

    def ends_at(self, uid: str, now_ns: int) -> int | None:
        """Return the median end of a running pod, as expected at its start; computed again once it
        has run a second longer than that. None if unknown, or if the UID is that of a kept place.
        """
        found = self._ends.get(uid)
        if found is None or now_ns >= found.again_ns:
            found = _expected_end(self.of_running(uid, now_ns), now_ns)
            if uid in self._running:
                self._ends[uid] = found
        return found.half_ns

    def left(
        self,
        kinds: Sequence[str],
        age_ns: int,
        now_ns: int,
        *,
        said_ns: int = 0,
        bound_ns: int = 0,
        sure: float = 0,
    ) -> TimeLeft:
        """Return how much longer a pod of these kinds runs after it has run for `age_ns`. `said_ns`
        is the duration that it states, `bound_ns` its time limit, 0 for none; `sure` is the
        confidence, 0 for the configured one."""
        sure = sure or self._sure
        found = self._corrected(kinds, age_ns, now_ns, said_ns, sure) if said_ns else UNKNOWN
        if not found.by:
            found = self._learnt(kinds, age_ns, now_ns, sure)
        if not found.by and said_ns and self._is_believed(kinds, now_ns):
            found = _as_said(age_ns, said_ns, sure)
        if not 0 < bound_ns <= MOST_NS:
            return found
        left_ns = max(0, bound_ns - age_ns)
        if found.by and found.most_ns is not None and found.most_ns <= left_ns:
            return found
        half_ns = None if found.half_ns is None else min(found.half_ns, left_ns)
        sure_ns = left_ns if found.sure_ns is None else min(found.sure_ns, left_ns)
        return TimeLeft(half_ns, left_ns, "bound", sure_ns)

    def _corrected(
        self, kinds: Sequence[str], age_ns: int, now_ns: int, said_ns: int, sure: float
    ) -> TimeLeft:
        """Estimate from the stated duration, scaled by how long earlier pods of the namespace took
        compared with what they stated."""
        took = self._took.get(kinds[-1]) if kinds else None
        if took is None:
            return UNKNOWN
        saying = self._saying.get(kinds[-1], {})
        parts = partial(self._parts, saying, now_ns)
        age, running = age_ns * _PERMILLE // said_ns, min(len(saying), RUNS_KEPT)
        quantiles = took.left(age, now_ns, self._half_life_ns, running, parts, sure)
        if quantiles is None:
            return UNKNOWN
        half_ns, most_ns, sure_ns = (
            None if part is None else part * said_ns // _PERMILLE for part in quantiles
        )
        return TimeLeft(half_ns, most_ns, "said", sure_ns)

    def _parts(self, uids: Iterable[str], now_ns: int) -> list[int]:
        """Return the running time of these pods in thousandths of their stated durations; only of
        the oldest if there are many."""
        runs = (self._running[uid] for uid in islice(uids, RUNS_KEPT))
        return [max(0, now_ns - run.since_ns) * _PERMILLE // run.said_ns for run in runs]

    def _is_believed(self, kinds: Sequence[str], now_ns: int) -> bool:
        """Return True unless too many pods of the namespace (the last of `kinds`) ran, or run, for
        more than `SAID_AT_MOST` times their stated duration."""
        while self._late_at and self._late_at[0][0] < now_ns:
            at_ns, uid = heapq.heappop(self._late_at)
            run = self._running.get(uid)
            if run is not None and run.since_ns + SAID_AT_MOST * run.said_ns == at_ns:
                self._late.setdefault(run.kinds[-1], set()).add(uid)
        namespace = kinds[-1] if kinds else ""
        late, took = len(self._late.get(namespace, ())), self._took.get(namespace)
        runs = took.runs if took is not None else ()
        broke = late + sum(part > SAID_AT_MOST * _PERMILLE for part, _, _ in runs)
        return broke <= (1 - self._sure) * (len(runs) + late) + _ROUNDING

    def _learnt(self, kinds: Sequence[str], age_ns: int, now_ns: int, sure: float) -> TimeLeft:
        for kind in kinds:
            if (known := self._ran.get(kind)) is None:
                continue
            ages = partial(self._ages, kind, now_ns)
            running = min(len(self._of_kind.get(kind, ())), RUNS_KEPT)
            quantiles = known.left(age_ns, now_ns, self._half_life_ns, running, ages, sure)
            if quantiles is not None:
                half_ns, most_ns, sure_ns = quantiles
                return TimeLeft(half_ns, most_ns, "learnt", sure_ns)
        return UNKNOWN

    def _ages(self, kind: str, now_ns: int) -> list[int]:
        """Return the ages of running pods of the kind; only the oldest if there are many."""
        running = islice(self._of_kind.get(kind, ()), RUNS_KEPT)
        return [max(0, now_ns - self._running[uid].since_ns) for uid in running]


def _as_said(age_ns: int, said_ns: int, sure: float) -> TimeLeft:
    """Estimate from the stated duration alone; `UNKNOWN` once the pod has run for that long."""
    if age_ns >= said_ns:
        return UNKNOWN
    most_ns = SAID_AT_MOST * said_ns - age_ns
    return TimeLeft(said_ns - age_ns, most_ns, "said", most_ns if sure <= MOST else None)


def _take_out(members: dict[str, dict[str, None]], kind: str, uid: str) -> None:
    alike = members[kind]
    del alike[uid]
    if not alike:
        del members[kind]

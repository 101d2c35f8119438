"""Learns how long pods run, and says how much longer one will: in half of the cases, and in nine of
ten.

In this order: by what the pod says, corrected by what those who said so before really took; by
earlier runs of its kind, the most specific kind with enough of them (Kaplan and Meier's estimate:
runs that were cut short, or still go on, count as lasting that long at least; Kaplan and Meier,
"Nonparametric Estimation from Incomplete Observations", 1958); by what it says alone. What ends it
at the latest bounds all of these. Of an old pod those runs count that lasted as long as it did.
Unknown is unknown: nobody's end is guessed from few runs. It knows no clock and no policy.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints

Floats = npt.NDArray[np.float64]

SECOND_NS = 1_000_000_000
HALF_LIFE_NS = 7 * 86_400 * SECOND_NS
"""After so long a run counts half of a new one: programs and their data change within weeks."""
LEAST_RUNS = 5.0
"""So many runs, by weight, say anything at all; of the last tenth only ten do."""
RUNS_KEPT, KINDS_KEPT = 256, 4_096
MOST_NS = 10 * 365 * 86_400 * SECOND_NS
"""Longer runs, and those of no time, are a clock's that jumped: they are not counted."""
SAID_AT_MOST = 2
"""Nine of ten take at most so many times what they say, where nobody has looked yet."""
HALF, MOST, SURE = 0.5, 0.9, 0.8
AGAIN_NS, AGAIN_PART = 60 * SECOND_NS, 16
"""A new pod's time is worked out anew after so long, or when so much of what it is known by is new:
one part in so many."""
_PERMILLE = 1_000
_ROUNDING = 1e-12


class TimeLeft(NamedTuple):
    """So long, in ns, half of such pods run on at most (`half_ns`), nine of ten (`most_ns`), and
    eight of ten (`sure_ns`); None where that is not known. `by`: "said", "learnt" or "bound", ""
    where nothing is known."""

    half_ns: int | None = None
    most_ns: int | None = None
    by: str = ""
    sure_ns: int | None = None


UNKNOWN = TimeLeft()


class Survival(NamedTuple):
    """Times at which some of several runs ended, ascending, and the part that lasts longer than
    each; [n] each."""

    times: Ints
    left: Floats

    def beyond(self, age: int) -> float:
        """The part that lasts longer than this."""
        at = int(np.searchsorted(self.times, age, side="right"))
        return float(self.left[at - 1]) if at else 1.0

    def quantile(self, part: float, age: int) -> int | None:
        """How much longer this part of those lasts at most that lasted for `age`; None where too
        few of them were seen to end."""
        beyond = self.beyond(age)
        if beyond <= _ROUNDING:
            return None
        is_over = (self.left <= (1 - part) * beyond + _ROUNDING) & (self.times > age)
        found = np.flatnonzero(is_over)
        return int(self.times[found[0]]) - age if len(found) else None


def survival(ran: Ints, ended: Bools, weights: Floats) -> Survival:
    """Kaplan and Meier's estimate of runs that lasted for `ran` and `ended` then, or lasted longer
    (or were cut short), each counting by its weight; [n] each."""
    order = np.argsort(ran, kind="stable")
    ran, ended, weights = ran[order], ended[order], weights[order]
    times, first = np.unique(ran, return_index=True)
    if not len(times):
        return Survival(times, np.zeros(0, dtype=np.float64))
    at_risk = np.cumsum(weights[::-1])[::-1][first]
    ends = np.add.reduceat(np.where(ended, weights, 0.0), first)
    is_end = ends > 0
    staying = np.where(ends >= at_risk, 0.0, 1 - ends / at_risk)
    left = np.asarray(np.cumprod(staying), dtype=np.float64)
    return Survival(times[is_end], left[is_end])


Quantiles = tuple[int | None, int | None, int | None]
"""How much is left at most in half of the cases, in nine of ten, and in eight of ten."""


class RunsOfKind:
    """The latest runs of one kind: how long each was, whether it ended by itself, and when."""

    def __init__(self) -> None:
        self.runs: deque[tuple[int, bool, int]] = deque(maxlen=RUNS_KEPT)
        self._added = 0
        self._of_new: tuple[int, int, int, Quantiles | None] | None = None

    def add(self, ran: int, now_ns: int, *, ended: bool) -> None:
        """One more run that is over."""
        self.runs.append((ran, ended, now_ns))
        self._added += 1

    def left_of_new(
        self, now_ns: int, half_life_ns: int, running: int, ages: Callable[[], Sequence[int]]
    ) -> Quantiles | None:
        """The same for a pod that starts, as of a little while ago: so many are `running`, of these
        `ages`."""
        if self._of_new is not None:
            at_ns, added, ran_then, found = self._of_new
            is_new = self._added - added + abs(running - ran_then)
            if now_ns - at_ns < AGAIN_NS and is_new * AGAIN_PART <= len(self.runs):
                return found
        found = self.left(0, now_ns, half_life_ns, ages())
        self._of_new = now_ns, self._added, running, found
        return found

    def left(
        self, age: int, now_ns: int, half_life_ns: int, running: Sequence[int] = ()
    ) -> Quantiles | None:
        """The quantiles of what is left at this age; None for too few runs. `running` are ages of
        those that go on."""
        runs = [*self.runs, *((ran, False, now_ns) for ran in running)]
        if not runs:
            return None
        ran = np.array([run[0] for run in runs], dtype=np.int64)
        ended = np.array([run[1] for run in runs], dtype=np.bool_)
        since = np.array([max(0, now_ns - run[2]) for run in runs], dtype=np.float64)
        weights = 0.5 ** (since / half_life_ns)
        count = effective(weights[ended & (ran > age)])
        if count < LEAST_RUNS:
            return None
        curve = survival(ran, ended, weights)
        most = curve.quantile(MOST, age) if count * (1 - MOST) >= 1 - _ROUNDING else None
        return curve.quantile(HALF, age), most, curve.quantile(SURE, age)


def effective(weights: Floats) -> float:
    """So many runs of equal weight say as much (Kish's effective sample size)."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


class _Running(NamedTuple):
    kinds: tuple[str, ...]
    since_ns: int
    said_ns: int
    told: TimeLeft


class _ExpectedEnd(NamedTuple):
    again_ns: int
    half_ns: int | None
    sure_ns: int | None


def _expected_end(left: TimeLeft, now_ns: int) -> _ExpectedEnd:
    half_ns = None if left.half_ns is None else now_ns + left.half_ns
    sure_ns = None if left.sure_ns is None else now_ns + left.sure_ns
    return _ExpectedEnd((half_ns or now_ns + AGAIN_NS) + SECOND_NS, half_ns, sure_ns)


class RunHistory:
    """Runs by kind, and the pods that run. `coverage` counts forecasts of pods that started since
    (`half`, `most`), and those that were kept (`half-kept`, `most-kept`)."""

    def __init__(self, half_life_ns: int = HALF_LIFE_NS) -> None:
        self._half_life_ns = half_life_ns
        self._ran: OrderedDict[str, RunsOfKind] = OrderedDict()
        self._took: OrderedDict[str, RunsOfKind] = OrderedDict()  # thousandths of what was said
        self._running: dict[str, _Running] = {}
        self._ends: dict[str, _ExpectedEnd] = {}
        self._of_kind: dict[str, dict[str, None]] = {}
        self.coverage: Counter[str] = Counter()

    def begins(self, uid: str, kinds: Sequence[str], now_ns: int, said_ns: int = 0) -> TimeLeft:
        """The pod starts; how long it will run. `kinds` are what is alike in it, the most specific
        first, its namespace last; `said_ns` what it says, 0 for nothing."""
        said_ns = said_ns if 0 < said_ns <= MOST_NS else 0
        told = self.left(kinds, 0, now_ns, said_ns=said_ns)
        self.forget(uid)
        self._running[uid] = _Running(tuple(kinds), now_ns, said_ns, told)
        self._ends[uid] = _expected_end(told, now_ns)
        for kind in kinds:
            self._of_kind.setdefault(kind, {})[uid] = None
        return told

    def __contains__(self, uid: str) -> bool:
        return uid in self._running

    def forget(self, uid: str) -> _Running | None:
        """The pod never ran: its place is taken back."""
        run = self._running.pop(uid, None)
        self._ends.pop(uid, None)
        for kind in run.kinds if run is not None else ():
            alike = self._of_kind[kind]
            del alike[uid]
            if not alike:
                del self._of_kind[kind]
        return run

    def ends(self, uid: str, now_ns: int, *, by_itself: bool) -> None:
        """The pod holds nothing any more: it ended `by_itself`, or was cut short."""
        run = self.forget(uid)
        if run is None:
            return
        ran_ns = now_ns - run.since_ns
        if not 0 < ran_ns <= MOST_NS:
            return
        for kind in run.kinds:
            _of(self._ran, kind).add(ran_ns, now_ns, ended=by_itself)
        if run.said_ns and run.kinds:
            took = ran_ns * _PERMILLE // run.said_ns
            _of(self._took, run.kinds[-1]).add(took, now_ns, ended=by_itself)
        if by_itself:
            self._measure(run.told, ran_ns)

    def told(self) -> dict[tuple[str, str], int]:
        """Forecasts of pods that ended by themselves, by bound and outcome."""
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

    def of_running(self, uid: str, now_ns: int, *, bound_ns: int = 0) -> TimeLeft:
        """How much longer a pod that runs does."""
        run = self._running.get(uid)
        if run is None:
            return UNKNOWN
        age_ns = max(0, now_ns - run.since_ns)
        return self.left(run.kinds, age_ns, now_ns, said_ns=run.said_ns, bound_ns=bound_ns)

    def ends_at(self, uid: str, now_ns: int) -> tuple[int | None, int | None]:
        """When a pod that runs ends in half of the cases, and when with confidence, as it was
        expected when it started; anew once it has run for a second longer."""
        found = self._ends.get(uid)
        if found is None or now_ns >= found.again_ns:
            found = _expected_end(self.of_running(uid, now_ns), now_ns)
            if uid in self._running:
                self._ends[uid] = found
        return found.half_ns, found.sure_ns

    def left(
        self,
        kinds: Sequence[str],
        age_ns: int,
        now_ns: int,
        *,
        said_ns: int = 0,
        bound_ns: int = 0,
    ) -> TimeLeft:
        """How much longer a pod of these kinds runs that ran for `age_ns`; `bound_ns` is how long
        it may run at most, 0 where nothing ends it."""
        found = self._corrected(kinds, age_ns, now_ns, said_ns) if said_ns else UNKNOWN
        if not found.by:
            found = self._learnt(kinds, age_ns, now_ns)
        if not found.by and said_ns:
            found = _as_said(age_ns, said_ns)
        if bound_ns <= 0:
            return found
        left_ns = max(0, bound_ns - age_ns)
        if found.by and found.most_ns is not None and found.most_ns <= left_ns:
            return found
        half_ns = None if found.half_ns is None else min(found.half_ns, left_ns)
        sure_ns = left_ns if found.sure_ns is None else min(found.sure_ns, left_ns)
        return TimeLeft(half_ns, left_ns, "bound", sure_ns)

    def _corrected(self, kinds: Sequence[str], age_ns: int, now_ns: int, said_ns: int) -> TimeLeft:
        """By what it says, times what those of its namespace took of what they said."""
        took = self._took.get(kinds[-1]) if kinds else None
        if took is None:
            return UNKNOWN
        age = age_ns * _PERMILLE // said_ns
        if age:
            quantiles = took.left(age, now_ns, self._half_life_ns)
        else:
            quantiles = took.left_of_new(now_ns, self._half_life_ns, 0, tuple)
        if quantiles is None:
            return UNKNOWN
        half, most, sure = (None if q is None else q * said_ns // _PERMILLE for q in quantiles)
        return TimeLeft(half, most, "said", sure)

    def _learnt(self, kinds: Sequence[str], age_ns: int, now_ns: int) -> TimeLeft:
        for kind in kinds:
            if (known := self._ran.get(kind)) is None:
                continue
            ages = partial(self._ages, kind, now_ns)
            if age_ns:
                quantiles = known.left(age_ns, now_ns, self._half_life_ns, ages())
            else:
                running = min(len(self._of_kind.get(kind, ())), RUNS_KEPT)
                quantiles = known.left_of_new(now_ns, self._half_life_ns, running, ages)
            if quantiles is not None:
                half, most, sure = quantiles
                return TimeLeft(half, most, "learnt", sure)
        return UNKNOWN

    def _ages(self, kind: str, now_ns: int) -> list[int]:
        """Ages of pods of the kind that run, of the oldest where there are many."""
        running = islice(self._of_kind.get(kind, ()), RUNS_KEPT)
        return [max(0, now_ns - self._running[uid].since_ns) for uid in running]


def _as_said(age_ns: int, said_ns: int) -> TimeLeft:
    """By what it says, which nobody has looked at yet; nothing once it ran for longer."""
    if age_ns >= said_ns:
        return UNKNOWN
    most_ns = SAID_AT_MOST * said_ns - age_ns
    return TimeLeft(said_ns - age_ns, most_ns, "said", most_ns)


def _of(known: OrderedDict[str, RunsOfKind], kind: str) -> RunsOfKind:
    runs = known.get(kind)
    if runs is None:
        runs = known[kind] = RunsOfKind()
        if len(known) > KINDS_KEPT:
            known.popitem(last=False)
    known.move_to_end(kind)
    return runs

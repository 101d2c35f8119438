"""Finds the effect of metrics on a decision by deciding again without them.

Nothing is estimated: the same policies decide again on the same ledger, once with the signals of
that moment, and once with no signals and no memory counted as idle. Both runs have their own
caches, and the engine's state is restored afterwards."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, NamedTuple, cast

import msgspec
import numpy as np

from weft.core.engine import deciding
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.engine.engine import Engine
from weft.core.engine.peak_usage import Peaks
from weft.core.framework import Profile
from weft.core.framework import policy as ask
from weft.core.framework.signals import FRESH, STALE, Bytes, Floats, SignalsView
from weft.core.ledger.table import Bools, LedgerTable
from weft.model import PodRequest, Share

Age = Literal["FRESH", "STALE", "MISSING"]
_AGES: dict[int, Age] = {FRESH: "FRESH", STALE: "STALE"}
_UNITS = {"_mib": "MiB", "_w": "W", "_mhz": "MHz", "_j": "J", "_bytes_per_s": "B/s"}
_UNITLESS = ("cov", "autocorrelation")
_EXAMPLES = 3
SECOND_NS = 1_000_000_000


class ColumnReading(msgspec.Struct, frozen=True):
    """Value of one signal column on one GPU; `value` is None if `age` is MISSING."""

    column: str
    value: float | None
    unit: str
    age: Age


class GpuReadings(msgspec.Struct, frozen=True):
    """One GPU's values in the signal columns that the policies read."""

    node: str
    gpu: int
    readings: tuple[ColumnReading, ...]


class AlternativePlacement(msgspec.Struct, frozen=True):
    """Node and GPU shares chosen for a pod; `node` is "" if the pod fits nowhere."""

    node: str = ""
    shares: tuple[Share, ...] = ()


class MetricsRead(msgspec.Struct, frozen=True):
    """Signals that a decision used.

    `looked_s` is the age of the signals at the decision, in seconds. `columns` are those that the
    policies read, in reading order. `gpus` are the GPUs that the pod got or must leave.
    `kept_out_gpus` counts the GPUs that only the signals exclude; `kept_out` are examples, the best
    first. `without` is the place that the pod would get without signals."""

    looked_s: float
    columns: tuple[str, ...]
    gpus: tuple[GpuReadings, ...] = ()
    kept_out: tuple[GpuReadings, ...] = ()
    kept_out_gpus: int = 0
    without: AlternativePlacement | None = None


class PlacementQuestion(NamedTuple):
    """A pod to place, and the circumstances of the decision.

    `attempt` seeds policies that draw at random. `on` is the node if kube-scheduler chose the node,
    else "". `gone` are UIDs of pods whose shares count as free."""

    pod: PodRequest
    profile: Profile
    attempt: int
    on: str = ""
    gone: Sequence[str] = ()


class _Watching(SignalsView):
    """View of the signals that records in `asked` the columns that policies read."""

    def __init__(self, of: SignalsView, columns: dict[str, None]) -> None:
        super().__init__(of.source)
        self._of, self.asked = of, columns

    def over(self, table: LedgerTable, column: str) -> tuple[Floats, Bytes]:
        """Return the column from the wrapped view, and record that it was read."""
        self.asked[column] = None
        return self._of.over(table, column)


class _Decided(NamedTuple):
    """One decision: the assessment, a mask of devices that fit ([D], None if not known), and the
    place."""

    known: Assessment
    fits: Bools | None
    place: AlternativePlacement


def metrics_of(
    engine: Engine, question: PlacementQuestion, at_ns: int, place: AlternativePlacement
) -> MetricsRead | None:
    """Return the signals used for the decision on `place`, made at `at_ns` in the engine's present
    state.

    None if the profile reads no signals, or none were ever received."""
    steps = metrics_in_steps(engine, question, at_ns, place)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return cast("MetricsRead | None", ended.value)


def metrics_in_steps(
    engine: Engine, question: PlacementQuestion, at_ns: int, place: AlternativePlacement
) -> Generator[None, None, MetricsRead | None]:
    """Compute the result of `metrics_of` as a generator: events may be handled between two steps.

    The last step reads everything at one moment. Earlier steps only assess all nodes, once with the
    signals and once without, so that the last step has to reassess only nodes that changed
    since."""
    if not engine.signals.version or "signals" not in question.profile.reads:
        return None
    minds = Assessor(engine.ledger, keep=1), Assessor(engine.ledger, keep=1)
    forgotten = engine.assessor.forgotten
    view = _Watching(engine.signals, {})
    _assess(engine, question, view, minds[0])
    yield
    _assess(engine, question, SignalsView(), minds[1])
    yield
    if engine.assessor.forgotten != forgotten:
        for mind in minds:
            mind.forget()
    view = _Watching(engine.signals, view.asked)
    with_metrics = _decide(engine, question, view, minds[0])
    blind = _decide(engine, question, SignalsView(), minds[1])
    columns = tuple(view.asked)
    count, examples = _kept_out(engine, with_metrics, blind)
    looked_s = max(0, at_ns - view.at_ns) / SECOND_NS
    gpus = tuple(readings(engine.signals, columns, place.node, gpu) for gpu in _gpus(place))
    kept_out = tuple(readings(engine.signals, columns, node, gpu) for node, gpu in examples)
    return MetricsRead(looked_s, columns, gpus, kept_out, count, blind.place)


def readings(view: SignalsView, columns: Sequence[str], node: str, gpu: int) -> GpuReadings:
    """Return one GPU's values of these columns from the view's snapshot."""
    return values_of(view.source.columns, view.of_gpu(node, gpu), columns, (node, gpu))


def values_of(
    names: Sequence[str],
    values: tuple[Floats, Bytes] | None,
    columns: Sequence[str],
    gpu: tuple[str, int],
) -> GpuReadings:
    """Return a GPU's readings of `columns`, from the values and ages of all columns in `names`.

    `values` is None if nothing is known about the GPU: all its readings are then MISSING.
    """
    at = {name: row for row, name in enumerate(names)} if values is not None else {}
    readings_of = []
    for column in columns:
        value: float | None = None
        age: Age = "MISSING"
        if column in at and values is not None:
            age = _AGES.get(int(values[1][at[column]]), "MISSING")
            value = float(values[0][at[column]]) if age != "MISSING" else None
        readings_of.append(ColumnReading(column, value, unit_of(column), age))
    return GpuReadings(*gpu, tuple(readings_of))


def in_words(gpu: GpuReadings) -> str:
    """Format the readings that have a value; "no readings" if none has."""
    known = [_value(reading) for reading in gpu.readings if reading.value is not None]
    return ", ".join(known) or "no readings"


def unit_of(column: str) -> str:
    """Return the unit that ends a column's name; "" for ratios and plain numbers."""
    metric, _, statistic = column.partition(".")
    if statistic in _UNITLESS:
        return ""
    return next((unit for end, unit in _UNITS.items() if metric.endswith(end)), "")


def _value(reading: ColumnReading) -> str:
    value, age = reading.value, reading.age
    assert value is not None
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return " ".join(filter(None, (reading.column, number, reading.unit, age * (age != "FRESH"))))


# --- deciding again ----------


def _gpus(place: AlternativePlacement) -> list[int]:
    return sorted({share.gpu for share in place.shares})


def _assess(engine: Engine, question: PlacementQuestion, view: SignalsView, mind: Assessor) -> None:
    """Assess all nodes for the question's pod, so that `mind` caches the answers."""
    with _seeing(engine, view, mind), without(engine, question.gone):
        engine.assess(question.profile, question.pod)


def _decide(
    engine: Engine, question: PlacementQuestion, view: SignalsView, mind: Assessor
) -> _Decided:
    profile, ledger = question.profile, engine.ledger
    key = f"{engine.seed}/{question.pod.uid}/{question.attempt}"
    with _seeing(engine, view, mind), without(engine, question.gone):
        known = engine.assess(profile, question.pod)
        row = deciding.best_row(known, profile, key)
        if question.on:
            row = ledger.table.row_of.get(question.on, -1)
            row = -1 if row >= 0 and known.codes[row] else row
        if row < 0:
            return _Decided(known, _fits(engine, known, profile), AlternativePlacement())
        shares = deciding.shares_on(ledger.table, row, known, profile, key)
        place = AlternativePlacement(ledger.table.nodes[row].name, shares)
        return _Decided(known, _fits(engine, known, profile), place)


def _fits(engine: Engine, known: Assessment, profile: Profile) -> Bools | None:
    """Return a mask of devices that policies allow for the pod's only GPU request, [D]; None unless
    there is exactly one request."""
    if not known.demand.needs or known.demand.mode == "many":
        return None
    query = known.query(engine.ledger.table)
    for policy in profile.device_filters:
        mask = ask.filter_devices(policy, query)
        if mask is not None:
            query.narrow(mask)
    return query.device_fits


def _kept_out(
    engine: Engine, with_metrics: _Decided, without_metrics: _Decided
) -> tuple[int, list[tuple[str, int]]]:
    """Return the number of GPUs that only signals exclude, and the best of them as (node, GPU
    index)."""
    if with_metrics.fits is None or without_metrics.fits is None:
        return 0, []
    table = engine.ledger.table
    good = without_metrics.known.codes.take(table.device_node) == 0
    devices = np.flatnonzero(without_metrics.fits & ~with_metrics.fits & good)
    scores = without_metrics.known.total.take(table.device_node[devices])
    best = devices[np.argsort(-scores, kind="stable")[:_EXAMPLES]]
    examples = []
    for device in best.tolist():
        node = table.nodes[int(table.device_node[device])]
        row = table.row_of[node.name]
        examples.append((node.name, node.gpus[device - table.start[row]].index))
    return len(devices), examples


@contextmanager
def _seeing(engine: Engine, view: SignalsView, mind: Assessor) -> Iterator[None]:
    """Let policies read `view` and cache in `mind`; restore the engine's own signals and caches
    afterwards.

    With an empty view no measurement counts: no memory is idle, and no peaks of similar pods are
    known."""
    before = engine.assessor, engine.peaks
    engine.assessor = mind
    engine.observe(view)
    if not view.version:
        engine.peaks = Peaks()
    try:
        with nullcontext() if view.version else nothing_idle(engine.ledger.table):
            yield
    finally:
        engine.assessor, engine.peaks = before


@contextmanager
def without(engine: Engine, uids: Sequence[str]) -> Iterator[None]:
    """Release the holdings of these pods for the duration of the context."""
    if not uids:
        yield
        return
    with engine.trial(uids):
        yield


# --- a ledger without measurements ----------------------------------------------------------------


@contextmanager
def nothing_idle(table: LedgerTable) -> Iterator[None]:
    """Show policies a ledger whose pods leave no memory idle, for the duration of the context. Only
    two columns change, and no version number: callers need an `Assessor` of their own, as a shared
    cache would not notice."""
    if not table.harvests:
        yield
        return
    harvest, unneeded = table.device_memory_harvest.copy(), table.device_unneeded.copy()
    by_requests = np.maximum(0, table.device_memory_total - table.device_memory_promised)
    in_use = (table.device_pods > 0) & (table.device_usable > 0)
    table.device_memory_harvest[in_use] = by_requests[in_use]
    table.device_unneeded[:] = -1
    try:
        yield
    finally:
        table.device_memory_harvest[:], table.device_unneeded[:] = harvest, unneeded

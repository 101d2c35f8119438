"""Finds samples of applications that were alone on a GPU. Pure functions.

Times are slots of a regular grid. A pod counts as alone in a slot if it was the only pod seen on
the GPU in that slot and the `settle` slots before, and is seen there one slot later too: use is
unsteady after a start, and after a neighbour's end. While no GPU memory is used no pod counts as
running, so a restarted pod must settle again."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.node.devices.nvml_library import model_of
from weft.telemetry.meaning import metric_names
from weft.telemetry.meaning.answers import Floats, QueryResult
from weft.telemetry.meaning.join import canonical_values
from weft.telemetry.meaning.metric_names import SeriesSubject

Bools = npt.NDArray[np.bool_]
Card = tuple[str, str]
"""(node, UUID or index)."""
Pod = tuple[str, str]
"""(namespace, name)."""
NOBODY_KNOWS: Pod = ("", "?")
"""Stands in for the name of an unidentified pod that holds the GPU."""

MODEL_LABELS = ("modelName", "model_name", "gpu_model", "model")
EXPORTED = "exported_pod"
LEAST_USED_MIB = 32
"""A GPU that uses less memory counts as idle: drivers keep a few MiB, a process at least a
hundred."""
_labels = msgspec.json.Decoder(dict[str, str])


class TimeGrid(NamedTuple):
    """A grid of `length` time slots, the first at `start_s`, `step_s` apart."""

    start_s: float
    step_s: float
    length: int

    @property
    def times(self) -> Floats:
        """The time of each slot, [length]."""
        return np.asarray(self.start_s + self.step_s * np.arange(self.length), dtype=np.float64)

    def slots(self, times: Floats) -> npt.NDArray[np.int64]:
        """Return the slot of each time; −1 for times outside the grid."""
        slots = np.rint((times - self.start_s) / self.step_s).astype(np.int64)
        return np.where((slots >= 0) & (slots < self.length), slots, -1)

    def column(self, times: Floats, values: Floats) -> Floats:
        """Return the value in each slot, [length]; NaN in slots without a value."""
        slots = self.slots(times)
        column = np.full(self.length, np.nan)
        column[slots[slots >= 0]] = values[slots >= 0]
        return column


def series_of(result: QueryResult) -> Iterator[tuple[dict[str, str], Floats, Floats]]:
    """Yield labels, times and values of each series."""
    ends = np.cumsum(result.counts)
    for at, text in enumerate(result.labels):
        part = slice(int(ends[at] - result.counts[at]), int(ends[at]))
        yield _labels.decode(text), result.times[part], result.values[part]


class SeenGpus:
    """Samples of all GPUs on one grid: in which slots each pod was present, and each metric's
    values."""

    def __init__(
        self,
        grid: TimeGrid,
        aliases: Mapping[str, Alias] = ALIASES,
        cards: Mapping[str, Card] | None = None,
    ) -> None:
        """Start without samples; `cards` maps UUID or node/index to the GPU."""
        self.grid = grid
        self._cards = cards or {}
        self.pods: dict[Card, dict[Pod, Bools]] = {}
        self.values: dict[Card, dict[Metric, Floats]] = {}
        self.models: dict[Card, str] = {}
        self.containers: dict[Pod, str] = {}
        self.rates: dict[Pod, Floats] = {}
        self._aliases = aliases

    def take(self, answers: Iterable[QueryResult]) -> None:
        """Add series of exporters, of any metrics and in any order."""
        series = [each for answer in answers for each in series_of(answer)]
        exported = any(EXPORTED in labels for labels, _, _ in series)
        for labels, times, values in series:
            self._series(labels, times, values, exported=exported)

    def progress(self, result: QueryResult) -> None:
        """Add iterations per second that applications exported; a pod's containers are summed."""
        for labels, times, values in series_of(result):
            namespace = _first(labels, metric_names.NAMESPACE_LABELS)
            pod = (namespace, _first(labels, metric_names.POD_LABELS))
            column = self.grid.column(times, values)
            before = self.rates.get(pod)
            both = column if before is None else np.nansum([column, before], axis=0)
            if before is not None:
                both[np.isnan(column) & np.isnan(before)] = np.nan
            self.rates[pod] = both

    def bound(self, card: Card, pod: Pod, began_s: float, ended_s: float = np.inf) -> None:
        """Record that a pod held the GPU in this period, even if no exporter reported it."""
        bound = (self.grid.times >= began_s) & (self.grid.times < ended_s)
        if bound.any():
            self._pod(card, pod)[:] |= bound

    def distrust(self, node: str, holdings: Floats) -> None:
        """Mark slots in which the ledger counted more GPU shares held on the node than were seen.

        An unidentified pod was then on one of the node's GPUs, so no pod there counts as alone."""
        cards = [card for card in self.pods if card[0] == node]
        bound = np.zeros(self.grid.length)
        for card in cards:
            for pod, present in self.pods[card].items():
                bound += present if pod != NOBODY_KNOWS else 0
        with np.errstate(invalid="ignore"):
            more = holdings > bound
        for card in cards:
            self._pod(card, NOBODY_KNOWS)[:] |= more

    def _series(
        self, labels: Mapping[str, str], times: Floats, values: Floats, *, exported: bool
    ) -> None:
        name, about = labels.get("__name__", ""), metric_names.subject(labels)
        if name not in self._aliases or about.mig or not (about.uuid or about.gpu >= 0):
            return
        card = self._card(about)
        slots = self.grid.slots(times)
        inside = slots >= 0
        model = next((labels[label] for label in MODEL_LABELS if labels.get(label)), "")
        self.models.setdefault(card, model_of(model))
        has_pod = bool(about.pod) and (EXPORTED in labels or not exported)
        if has_pod and "exporter" not in about.container:
            pod = (about.namespace, about.pod)
            self._pod(card, pod)[slots[inside]] = True
            self.containers.setdefault(pod, about.container)
        good = canonical_values(name, values, self._aliases)
        metric = self._aliases[name].metric
        of_card = self.values.setdefault(card, {})
        column = of_card.setdefault(metric, np.full(self.grid.length, np.nan))
        # The device's value repeats for each pod and includes the pod's own: keep the largest.
        column[slots[inside]] = np.fmax(column[slots[inside]], good[inside])

    def _card(self, about: SeriesSubject) -> Card:
        index = f"{about.node.partition('.')[0]}/{about.gpu}"
        card = self._cards.get(about.uuid.lower()) or self._cards.get(f"{about.node}/{about.gpu}")
        card = card or self._cards.get(index)
        return card or (about.node, about.uuid or str(about.gpu))

    def _pod(self, card: Card, pod: Pod) -> Bools:
        nowhere = np.zeros(self.grid.length, dtype=bool)
        return self.pods.setdefault(card, {}).setdefault(pod, nowhere)


class SoloWindow(NamedTuple):
    """A pod's times alone on a GPU: number of uninterrupted periods (`windows`) and of time slots,
    each metric's samples, and iterations per second."""

    pod: Pod
    card: Card
    windows: int
    slots: int
    values: dict[Metric, Floats]
    rates: Floats


def alone(present: Bools, settle: int) -> Bools:
    """Return the slots in which each of P pods was alone, [P, T], by the rule at the top of this
    file."""
    only = present & (present.sum(axis=0) == 1)
    steady = only.copy()
    for back in range(1, settle + 1):
        steady[:, back:] &= only[:, :-back]
        steady[:, : min(back, steady.shape[1])] = False
    steady[:, :-1] &= present[:, 1:]
    steady[:, -1:] = False
    return np.asarray(steady, dtype=np.bool_)


def windows(gpus: SeenGpus, settle: int) -> list[SoloWindow]:
    """Return the times alone on a GPU of every pod that was ever alone."""
    solos = []
    for card, pods in sorted(gpus.pods.items()):
        names = sorted(pods)
        metrics = gpus.values.get(card, {})
        present = np.array([pods[name] for name in names])
        if Metric.MEMORY_USED_MIB in metrics:
            present &= ~(metrics[Metric.MEMORY_USED_MIB] < LEAST_USED_MIB)
        for name, believed in zip(names, alone(present, settle), strict=True):
            if name == NOBODY_KNOWS or not believed.any():
                continue
            begins = int((np.diff(believed.astype(np.int8), prepend=0) == 1).sum())
            values = {metric: column[believed] for metric, column in metrics.items()}
            samples = {m: v[~np.isnan(v)] for m, v in values.items() if not np.isnan(v).all()}
            rates = gpus.rates.get(name, np.zeros(0))
            rates = rates[believed] if len(rates) else rates
            rates = rates[~np.isnan(rates)]
            solos.append(SoloWindow(name, card, begins, int(believed.sum()), samples, rates))
    return solos


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")

"""Samples of applications alone on a GPU. Pure: answers in, samples out.

Times are slots of one grid. A pod is alone in a slot where it is the only one seen on the GPU, was
the only one for `settle` slots before (what starts or has just lost company is not steady), and is
still there a slot later. Where no memory is in use nobody runs, whoever is said to be there: a pod
that starts again settles again.
"""

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
"""Stands for pods that are known to be there, but not which they are."""

MODEL_LABELS = ("modelName", "model_name", "gpu_model", "model")
EXPORTED = "exported_pod"
LEAST_USED_MIB = 32
"""Drivers keep a few MiB of an idle GPU; a process takes a hundred at least."""
_labels = msgspec.json.Decoder(dict[str, str])


class TimeGrid(NamedTuple):
    """`length` slots, the first at `start_s`, each `step_s` after the one before."""

    start_s: float
    step_s: float
    length: int

    @property
    def times(self) -> Floats:
        """The time of each slot."""
        return np.asarray(self.start_s + self.step_s * np.arange(self.length), dtype=np.float64)

    def slots(self, times: Floats) -> npt.NDArray[np.int64]:
        """The slot of each time; −1 for those outside."""
        slots = np.rint((times - self.start_s) / self.step_s).astype(np.int64)
        return np.where((slots >= 0) & (slots < self.length), slots, -1)

    def column(self, times: Floats, values: Floats) -> Floats:
        """The value of each slot; NaN where there is none."""
        slots = self.slots(times)
        column = np.full(self.length, np.nan)
        column[slots[slots >= 0]] = values[slots >= 0]
        return column


def series_of(result: QueryResult) -> Iterator[tuple[dict[str, str], Floats, Floats]]:
    """The labels, times and values of each series."""
    ends = np.cumsum(result.counts)
    for at, text in enumerate(result.labels):
        part = slice(int(ends[at] - result.counts[at]), int(ends[at]))
        yield _labels.decode(text), result.times[part], result.values[part]


class SeenGpus:
    """The GPUs' samples in one grid: which pods were there, and every metric."""

    def __init__(
        self,
        grid: TimeGrid,
        aliases: Mapping[str, Alias] = ALIASES,
        cards: Mapping[str, Card] | None = None,
    ) -> None:
        """`cards`: what cards are called whose UUID, or node/index, is known."""
        self.grid = grid
        self._cards = cards or {}
        self.pods: dict[Card, dict[Pod, Bools]] = {}
        self.values: dict[Card, dict[Metric, Floats]] = {}
        self.models: dict[Card, str] = {}
        self.containers: dict[Pod, str] = {}
        self.rates: dict[Pod, Floats] = {}
        self._aliases = aliases

    def take(self, answers: Iterable[QueryResult]) -> None:
        """Series of exporters, of any metrics."""
        series = [each for answer in answers for each in series_of(answer)]
        exported = any(EXPORTED in labels for labels, _, _ in series)
        for labels, times, values in series:
            self._series(labels, times, values, exported=exported)

    def progress(self, result: QueryResult) -> None:
        """Iterations a second, as applications count them; a pod's containers are added up."""
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
        """A pod held the GPU from then to then, whatever exporters say."""
        bound = (self.grid.times >= began_s) & (self.grid.times < ended_s)
        if bound.any():
            self._pod(card, pod)[:] |= bound

    def distrust(self, node: str, holdings: Floats) -> None:
        """More shares of GPUs were held on the node than pods were seen: somebody was not seen."""
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
        # The device's value comes once a pod, a pod's own is part of it: the largest stands.
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
    """A pod alone on a GPU: how many times anew, in how many slots, each metric there, and how many
    iterations a second it did."""

    pod: Pod
    card: Card
    windows: int
    slots: int
    values: dict[Metric, Floats]
    rates: Floats


def alone(present: Bools, settle: int) -> Bools:
    """Which of P pods, [P, T], was alone when; see the module."""
    only = present & (present.sum(axis=0) == 1)
    steady = only.copy()
    for back in range(1, settle + 1):
        steady[:, back:] &= only[:, :-back]
        steady[:, : min(back, steady.shape[1])] = False
    steady[:, :-1] &= present[:, 1:]
    steady[:, -1:] = False
    return np.asarray(steady, dtype=np.bool_)


def windows(gpus: SeenGpus, settle: int) -> list[SoloWindow]:
    """Every pod that was alone somewhere."""
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

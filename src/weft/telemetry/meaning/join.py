"""Joins series to the cluster's GPUs and pods, by labels in all their spellings.

If the node's cards have UUIDs, a series' UUID decides: indexes depend on what the exporter's
container sees. Otherwise the node, by name or by address, and the GPU's index decide. A series of a
MIG instance is about that instance alone, never about its card. A pod counts only if the ledger
says that it holds the GPU; labels that name another pod, or the exporter's own, are ignored.

Of duplicates the largest counts, since exporters repeat a device's value for each pod that shares
the device; only metrics that are reported by process are added up.

`canonical_values` converts values to their unit. Values that cannot be true (DCGM's blank values,
NaN, negative numbers, more than any card has) become NaN.
"""

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Ints
from weft.model import Node
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, PERCENT, Alias
from weft.telemetry.meaning import metric_names
from weft.telemetry.meaning.answers import Floats, QueryResult, labels_of, shown
from weft.telemetry.meaning.metric_names import subject, without_port

LARGEST: dict[Metric, float] = {
    Metric.MEMORY_USED_MIB: 2.0**24,
    Metric.MEMORY_FREE_MIB: 2.0**24,
    Metric.MEMORY_RESERVED_MIB: 2.0**24,
    Metric.PCIE_SENT_BYTES_PER_S: 2.0**40,
    Metric.PCIE_RECEIVED_BYTES_PER_S: 2.0**40,
    Metric.POWER_W: 20_000.0,
    Metric.POWER_LIMIT_W: 20_000.0,
    Metric.ENERGY_J: 1.4e11,
    Metric.SM_CLOCK_MHZ: 20_000.0,
    Metric.TEMPERATURE_C: 200.0,
}
"""Largest possible measurements; ratios are at most 1. DCGM's 64-bit values for a missing reading
(2⁶³ − 16 and the next few) and those of floating metrics (2⁴⁷ and the next few) are larger than all
of these."""

BLANK_32_BIT = (2.0**31 - 16, 2.0**31 - 13)
"""Range of DCGM's 32-bit values for blank, not found, not supported and not permitted; real byte
and energy counters pass through it only briefly."""


class JoinFailure(enum.StrEnum):
    """Reasons why a series was not joined to a GPU."""

    NAME = "name"
    NODE = "node"
    GPU = "gpu"
    MIG = "mig"
    LABELS = "labels"


class Devices:
    """The cluster's GPUs in a fixed order: row i is `gpus[i]`, (node, index)."""

    def __init__(self, nodes: Iterable[Node], addresses: Mapping[str, str] | None = None) -> None:
        """Index the GPUs of these nodes. `addresses` maps other names of nodes, such as IP
        addresses, to nodes."""
        cards = [(node.name, gpu) for node in nodes for gpu in node.gpus]
        self.gpus = tuple((node, gpu.index) for node, gpu in cards)
        self.row_of = {gpu: row for row, gpu in enumerate(self.gpus)}
        self.total_mib: Ints = np.array([gpu.memory_mib for _, gpu in cards], dtype=np.int64)
        uuids = Counter(gpu.uuid.lower() for _, gpu in cards)
        # A UUID that two cards claim identifies neither: node and index decide.
        self._twice = {uuid for uuid, times in uuids.items() if times > 1}
        self.by_uuid = {
            gpu.uuid.lower(): row
            for row, (_, gpu) in enumerate(cards)
            if gpu.uuid and gpu.uuid.lower() not in self._twice
        }
        self.nodes = {node for node, _ in self.gpus}
        self._with_uuids = {node for node, gpu in cards if gpu.uuid}
        self._addresses = dict(addresses or {})

    def __len__(self) -> int:
        return len(self.gpus)

    def same(self, other: "Devices") -> bool:
        """Return True if every series would be joined to the same row as with `other`, with the
        same meaning."""
        return (
            self.gpus == other.gpus
            and self.by_uuid == other.by_uuid
            and self._addresses == other._addresses
            and bool((self.total_mib == other.total_mib).all())
        )

    def node(self, labels: Mapping[str, str]) -> str:
        """Return the node that these labels name; "" if none of them does."""
        for label in metric_names.NODE_LABELS:
            text = labels.get(label, "")
            if not text:
                continue
            for name in (text, without_port(text), text.partition(".")[0]):
                known = name if name in self.nodes else self._addresses.get(name, "")
                if known in self.nodes:
                    return known
        return ""

    def find(self, labels: Mapping[str, str]) -> int | JoinFailure:
        """Return the row of the GPU that these labels are about, or why no GPU was found."""
        about = subject(labels)
        row = self.by_uuid.get((about.mig_uuid or about.uuid).lower())
        if about.mig:
            about_card = not about.mig_uuid and not about.uuid.startswith("MIG-")
            return JoinFailure.MIG if row is None or about_card else row
        if row is not None:
            return row
        node = self.node(labels)
        if not node:
            return JoinFailure.NODE
        if about.uuid and node in self._with_uuids and about.uuid.lower() not in self._twice:
            return JoinFailure.GPU  # a card that the node's inventory does not have
        return self.row_of.get((node, about.gpu), JoinFailure.GPU)


class JoinedSamples(NamedTuple):
    """Samples of one canonical metric: GPU rows, seconds, values in the metric's unit."""

    metric: Metric
    rows: Ints
    times: Floats
    values: Floats


class PodSamples(NamedTuple):
    """The newest sample of a pod's own use of one GPU."""

    metric: Metric
    row: int
    pod: str
    at_s: float
    value: float


class _Place(NamedTuple):
    """The GPU and pod that labels name: the GPU's row, or −1 and the reason; the pod and its
    namespace."""

    row: int
    why: JoinFailure | None = None
    namespace: str = ""
    pod: str = ""


_NAMED = b'"__name__":"'
"""Text that precedes the metric's name in a series' labels. The remaining labels are equal for all
metrics of a GPU."""
_UNKNOWN = _Place(-1, JoinFailure.NAME)


# Maximum number of label sets (without the metric's name) that are remembered: many times those of
# 10,000 GPUs and their pods. A generation is `_LOOKS` polls; a label set that no series had in a
# whole generation is dropped.
_MOST_KEPT, _LOOKS = 250_000, 10

ResidentOf = Callable[[int, str, str], str]
"""(row, namespace, pod) → the pod's UID if the ledger says that it holds this GPU, else ""."""


def nobody(row: int, namespace: str, pod: str) -> str:
    """Return "": no pods are known."""
    return ""


class SeriesJoiner:
    """Joins answers to GPUs and remembers the GPU of each series.

    `unjoined` counts, by reason, the series of the last poll that belong to no GPU; `examples` has
    one series for each reason."""

    def __init__(
        self,
        devices: Devices,
        aliases: Mapping[str, Alias] = ALIASES,
        most_kept: int = _MOST_KEPT,
    ) -> None:
        self.devices, self.aliases = devices, aliases
        self.unjoined: dict[JoinFailure, int] = {}
        self.examples: dict[JoinFailure, str] = {}
        self._names = list(aliases)
        self._by_bytes = {name.encode(): number for number, name in enumerate(self._names)}
        self._alias = list(aliases.values())
        self._known: dict[bytes, _Place] = {}
        self._before: dict[bytes, _Place] = {}  # from the earlier generation
        self._most_kept, self._looks = most_kept, 0

    def begin(self) -> None:
        """Begin a new poll: reset the counts."""
        self.unjoined = {}
        self._looks += 1
        if self._looks % _LOOKS == 0:
            self._before, self._known = self._known, {}

    @property
    def kept(self) -> int:
        """Number of label sets that are remembered."""
        return len(self._known) + len(self._before)

    def join(self, answer: QueryResult) -> list[JoinedSamples]:
        """Return the answer's samples by canonical metric, at most one for each GPU and time."""
        places, numbers = self._places(answer.labels)
        for labels, place in zip(answer.labels, places, strict=True):
            if place.why is not None:
                self.unjoined[place.why] = self.unjoined.get(place.why, 0) + 1
                if place.why not in self.examples:
                    self.examples[place.why] = shown(labels, 500)
        row = np.fromiter((place.row for place in places), np.int64, len(places))
        name = np.array(numbers, dtype=np.int64)
        rows, names = np.repeat(row, answer.counts), np.repeat(name, answer.counts)
        parts_of: dict[Metric, list[tuple[Ints, Floats, Floats, Ints]]] = {}
        for number in np.unique(name[row >= 0]).tolist():
            of_name = names == number  # unjoined ones too: they help to tell percent from ratio
            values = canonical_values(self._names[number], answer.values[of_name], self.aliases)
            good = ~np.isnan(values) & (rows[of_name] >= 0) & np.isfinite(answer.times[of_name])
            alias = self._alias[number]
            merged = _merged(
                rows[of_name][good], answer.times[of_name][good], values[good], add=alias.by_process
            )
            rank = np.full(len(merged[0]), number)
            parts_of.setdefault(alias.metric, []).append((*merged, rank))
        return [_preferred(metric, parts, len(self.devices)) for metric, parts in parts_of.items()]

    def pods(self, answer: QueryResult, resident_of: ResidentOf) -> list[PodSamples]:
        """Return samples of pods' own use of GPUs, if the exporter reports them in addition to the
        device's own series, or the metric is reported by process.

        Values of several containers or processes of a pod are added up."""
        ends = np.cumsum(answer.counts)
        whole: set[tuple[int, int]] = set()
        parts: list[tuple[_Place, int, str, int]] = []
        places, numbers = self._places(answer.labels)
        for at, (place, number) in enumerate(zip(places, numbers, strict=True)):
            if place.row < 0 or not answer.counts[at]:
                continue
            uid = resident_of(place.row, place.namespace, place.pod) if place.pod else ""
            if uid:
                parts.append((place, number, uid, int(ends[at]) - 1))
            else:
                whole.add((place.row, number))
        samples: dict[tuple[int, int, str], PodSamples] = {}
        for place, number, uid, last in parts:
            alias = self._alias[number]
            if (place.row, number) in whole or alias.by_process:
                value = canonical_values(
                    self._names[number], answer.values[last : last + 1], self.aliases
                )
                at_s, newest = float(answer.times[last]), float(value[0])
                if math.isfinite(at_s) and not math.isnan(newest):  # any other sample is ignored
                    sample = PodSamples(alias.metric, place.row, uid, at_s, newest)
                    key = (number, place.row, uid)
                    samples[key] = _together(samples.get(key), sample)
        return list(samples.values())

    def _places(self, labels: list[bytes]) -> tuple[list[_Place], list[int]]:
        """Return the GPU and pod of each series, and the number of its metric's name."""
        places, numbers = [], []
        known, numbered = self._known, self._by_bytes
        for text in labels:
            begin = text.find(_NAMED)
            end = text.find(b'"', begin + len(_NAMED))
            number = numbered.get(text[begin + len(_NAMED) : end], -1) if begin >= 0 else -1
            rest = text[:begin] + text[end:]
            place = known.get(rest) or self._meet(text, rest)
            places.append(place if number >= 0 or place.why is JoinFailure.LABELS else _UNKNOWN)
            numbers.append(number)
        return places, numbers

    def _meet(self, text: bytes, rest: bytes) -> _Place:
        """Return the GPU and pod of labels that are new, or that no series had in this generation
        of remembered labels."""
        if (place := self._before.get(rest)) is not None:
            return self._keep(rest, place)
        labels = labels_of(text)
        row = self.devices.find(labels) if labels else JoinFailure.LABELS
        about = subject(labels)
        place = (
            _Place(-1, row)
            if isinstance(row, JoinFailure)
            else _Place(row, None, about.namespace, about.pod)
        )
        return self._keep(rest, place)

    def _keep(self, rest: bytes, place: _Place) -> _Place:
        if len(self._known) < self._most_kept:
            self._known[rest] = place
        return place


def _together(known: PodSamples | None, sample: PodSamples) -> PodSamples:
    """Return the newer of two samples of a pod, or for the same time their sum; a sum of ratios is
    at most 1, as each is rounded."""
    if known is None or sample.at_s != known.at_s:
        return sample if known is None or sample.at_s > known.at_s else known
    added = known.value + sample.value
    ratio = sample.metric.value.endswith("_ratio")
    return known._replace(value=min(added, 1.0) if ratio else added)


def _merged(rows: Ints, times: Floats, values: Floats, *, add: bool) -> tuple[Ints, Floats, Floats]:
    """Merge samples to one for each GPU and moment: the largest of several, or their sum."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    if len(np.unique(rows[starts])) == len(starts) and bool(
        ((np.diff(times) > 0) | (np.diff(rows) != 0)).all()
    ):
        return rows, times, values  # one series a GPU, as is usual
    order = np.lexsort((times, rows))
    rows, times, values = rows[order], times[order], values[order]
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (times[1:] != times[:-1])
    starts = np.flatnonzero(first)
    if not add:
        together = np.maximum.reduceat(values, starts) if len(starts) else values
    else:
        together = np.add.reduceat(values, starts) if len(starts) else values
        together = np.minimum(together, 1.0)  # shares of the card's time, each one rounded
    return rows[starts], times[starts], together


def _preferred(
    metric: Metric, parts: list[tuple[Ints, Floats, Floats, Ints]], devices: int
) -> JoinedSamples:
    """Keep, for each GPU, only the samples of the most preferred name if exporters report one
    metric under several names."""
    if len(parts) == 1:
        return JoinedSamples(metric, *parts[0][:3])
    rows, times, values, rank = (np.concatenate(column) for column in zip(*parts, strict=True))
    best = np.full(devices, np.iinfo(np.int64).max)
    np.minimum.at(best, rows, rank)
    keep = rank == best[rows]
    return JoinedSamples(metric, rows[keep], times[keep], values[keep])


# --- values in their canonical unit --------------------------------------------------------------


def canonical_values(name: str, samples: Floats, aliases: Mapping[str, Alias] = ALIASES) -> Floats:
    """Return samples of the metric `name`, of any shape, in its canonical unit; NaN where a sample
    is blank or cannot be true.

    All samples of one answer must be given together: whether a metric is a percentage or a ratio is
    determined from all of them. `KeyError` if `name` is not in `aliases`."""
    alias = aliases[name]
    values = samples * (alias.scale or scale_of(samples))
    largest = LARGEST.get(alias.metric, 1.0)
    with np.errstate(invalid="ignore"):
        blank = (samples >= BLANK_32_BIT[0]) & (samples <= BLANK_32_BIT[1])
        return np.where((values >= 0.0) & (values <= largest) & ~blank, values, np.nan)


def scale_of(samples: Floats) -> float:
    """Return 1 if the samples are ratios, 0.01 if they are percentages, which are whole numbers:
    one sample between 0 and 1 shows that all are ratios.

    So a wrong sample among many can make readings go missing, but never make busy cards look idle.
    If all samples are 0 or 1, they are ratios: 1 means fully busy."""
    with np.errstate(invalid="ignore"):
        if bool(((samples > 0.0) & (samples < 1.0)).any()):
            return 1.0
        return PERCENT if bool(((samples > 1.0) & (samples <= 100.0)).any()) else 1.0

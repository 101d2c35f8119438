"""Reads GPU use during a turn from the samples in a metrics server.

Raw samples with their scrape times are queried: a range query would fill gaps of up to five minutes
with the previous value, and hide lost samples."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from weft.kube.client import ApiClient
from weft.kube.codec import NODES, SkippedObjects
from weft.kube.structs import KubeNode
from weft.lab.experiment.spec.cluster import Cluster
from weft.model import BadInputError
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.model.request import parse_quantity
from weft.telemetry.meaning.answers import Floats, QueryResult, TelemetryError, labels_of
from weft.telemetry.meaning.metric_names import subject
from weft.telemetry.sources.prometheus import Prometheus

# Finds the nodes of a turn, and those with GPUs, from which metric samples are expected.

_NVIDIA = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Prefixes of the resources of NVIDIA's device plugin, including `nvidia.com/gpu.shared` and
MIG."""


class TurnNodes(NamedTuple):
    """Names of the nodes that pods may run on, and of those among them that are Ready and have
    GPUs.

    A node has GPUs if its capacity has `nvidia.com/gpu`, MIG instances, or a resource by which
    pods request GPUs from one of the cluster's schedulers. Labels are not considered."""

    names: frozenset[str]
    with_cards: frozenset[str] = frozenset()


async def read_nodes(client: ApiClient, cluster: Cluster) -> TurnNodes:
    """Read the cluster's nodes; `BadInputError` if `nodeSelector` matches none."""
    wanted = ",".join(f"{name}={value}" for name, value in cluster.node_selector.items())
    query = {"labelSelector": wanted} if wanted else {}
    page = NODES.decode_page(await client.call("GET", NODES.of(""), query=query), SkippedObjects())
    if not page.items:
        what = (
            f"no node of the cluster has these labels: {wanted}"
            if wanted
            else "the cluster has no nodes"
        )
        raise BadInputError("cluster.nodeSelector", what)
    return turn_nodes(page.items, (each.request.resource for each in cluster.schedulers))


def turn_nodes(nodes: Iterable[KubeNode], resources: Iterable[str]) -> TurnNodes:
    """Return the names of these nodes; besides NVIDIA's resources, those in `resources` count as
    GPUs."""
    asked = {name for name in resources if name}
    names, with_cards = set(), set()
    for node in nodes:
        names.add(node.metadata.name)
        if not node.ready:
            continue  # It runs none of the turn's pods, and its exporter is probably down too.
        # Allocatable drops to 0 while a device plugin is down; the cards still draw power.
        has = [*(node.status.capacity or {}).items(), *(node.status.allocatable or {}).items()]
        if any(
            (name in asked or name.startswith(_NVIDIA)) and parse_quantity(amount) > 0
            for name, amount in has
        ):
            with_cards.add(node.metadata.name)
    return TurnNodes(frozenset(names), frozenset(with_cards))


METRICS = (Metric.GPU_UTIL_RATIO, Metric.MEMORY_USED_MIB, Metric.POWER_W)
"""The metrics shown in an experiment's charts."""
STEP_S = 1.0
_CHUNK_S = 600.0
_LOST_PERIODS, _LEAST_LOST_S = 3.0, 5.0
"""Samples count as lost if a gap is longer than three scrape intervals and than five seconds."""


class CardUsage(msgspec.Struct, frozen=True):
    """GPU use at `at_s`, in seconds since the first Job's creation.

    `gpu_util_percent` is the mean over GPUs, `memory_used_mib` and `power_w` are sums; `resident`
    counts bound pods, `waiting` pending ones."""

    at_s: float
    gpu_util_percent: float | None
    memory_used_mib: float | None
    power_w: float | None
    resident: int
    waiting: int


class CardSeries(NamedTuple):
    """Samples of one metric of one GPU, by ascending time."""

    times_s: Floats
    values: Floats


Samples = Mapping[Metric, Mapping[str, CardSeries]]
"""Series by metric and GPU."""


class CardsRead(NamedTuple):
    """One metric's samples by GPU, and the node names in the series.

    `nodes` are the turn's nodes that series name. If series name none of them, `others` has the
    names found instead."""

    cards: Mapping[str, CardSeries]
    nodes: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()


class RangesRead(NamedTuple):
    """Samples of the metrics, and marks: texts of faults, such as missing samples."""

    samples: Samples
    marks: list[str]


async def read_ranges(
    source: Prometheus, nodes: TurnNodes, begin_s: float, end_s: float
) -> RangesRead:
    """Read samples of these nodes' GPUs from `begin_s` to `end_s`, in seconds since 1970.

    Missing samples give a mark instead of an error, since the Jobs' times are valid without
    them."""
    read: dict[Metric, CardsRead] = {}
    marks: list[str] = []
    for metric in METRICS:
        try:
            answers = await _answers(source, metric, begin_s, end_s)
        except TelemetryError as error:
            marks.append(f"Prometheus did not answer for {metric}: {error}")
            continue
        read[metric] = cards_of(answers, nodes.names, source.aliases)
        marks += lost(metric, read[metric].cards, begin_s, end_s)
    marks += silent(read, nodes)
    return RangesRead({metric: of.cards for metric, of in read.items()}, marks)


async def _answers(
    source: Prometheus, metric: Metric, begin_s: float, end_s: float
) -> list[QueryResult]:
    selector, answers = source.selector(metric), []
    until_s = begin_s
    while until_s < end_s:
        since_s, until_s = until_s, min(end_s, until_s + _CHUNK_S)
        back_s = max(1, round(until_s - since_s))
        answers.append(await source.query(f"{selector}[{back_s}s]", until_s))
    return answers


def cards_of(
    answers: Iterable[QueryResult],
    nodes: Collection[str],
    aliases: Mapping[str, Alias] = ALIASES,
) -> CardsRead:
    """Merge the samples of each GPU from several exporters; GPUs of other nodes are left out.

    If no series names one of `nodes`, all series are used and `others` has their node names, since
    exporters may use names that differ from Kubernetes'."""
    cards: dict[str, dict[str, dict[float, float]]] = {}
    for answer in answers:
        ends = np.cumsum(answer.counts)
        for labels, begin, end in zip(answer.labels, ends - answer.counts, ends, strict=True):
            if begin == end:
                continue
            named = labels_of(labels)
            about, scale = subject(named), _scale(named, aliases)
            card = about.uuid or f"{about.node}/{about.gpu}"
            values = dict(
                zip(
                    answer.times[begin:end].tolist(),
                    (answer.values[begin:end] * scale).tolist(),
                    strict=True,
                )
            )
            cards.setdefault(about.node, {}).setdefault(card, {}).update(values)
    known = frozenset(cards) & frozenset(nodes)
    others = frozenset() if known else frozenset(cards)
    merged: dict[str, dict[float, float]] = {}
    for node in sorted(known or others):
        for card, values in cards[node].items():
            merged.setdefault(card, {}).update(values)
    return CardsRead({card: _series(merged[card]) for card in sorted(merged)}, known, others)


def _series(values: Mapping[float, float]) -> CardSeries:
    times = sorted(values)
    return CardSeries(np.array(times), np.array([values[at_s] for at_s in times]))


def silent(read: Mapping[Metric, CardsRead], nodes: TurnNodes) -> list[str]:
    """Return marks (texts of faults) for metrics that lack some GPU nodes' samples, so that sums
    are too low.

    A node has GPUs if its capacity has them, or if another metric has samples from it. Metrics
    whose series name none of the turn's nodes are marked too."""
    with_cards = nodes.with_cards.union(*(of.nodes for of in read.values()))
    marks = []
    for metric, of in read.items():
        absent = sorted(with_cards - of.nodes)
        if of.others:
            names = f"they name {min(of.others) or '(none)'}, Kubernetes has {min(nodes.names)}"
            marks.append(
                f"no samples of {metric} name a node of the turn ({names}): the samples of all "
                "GPUs were used; relabel the exporters' node label to the Kubernetes node name"
            )
        elif of.nodes and absent:
            more = f" ({len(absent)} such nodes)" if len(absent) > 1 else ""
            marks.append(
                f"Prometheus has no samples of {metric} from node {absent[0]}{more}; "
                "check its target"
            )
    return marks


def lost(
    metric: Metric, cards: Mapping[str, CardSeries], begin_s: float, end_s: float
) -> list[str]:
    """Return at most one mark (a fault's text): the longest gap in a GPU's samples, if some are
    lost."""
    if not cards:
        return [f"Prometheus has no samples of {metric} in the turn; check its targets"]
    worst = (0.0, "")
    for card, series in cards.items():
        spacing = np.diff(series.times_s)
        period_s = float(np.median(spacing)) if len(spacing) else 0.0
        edges = np.diff(np.concatenate(([begin_s], series.times_s, [end_s])))
        longest_s = float(edges.max())
        if longest_s > max(_LOST_PERIODS * period_s, _LEAST_LOST_S):
            worst = max(worst, (longest_s, card))
    if not worst[0]:
        return []
    return [f"Prometheus lost samples of {metric}: GPU {worst[1]} has none for {worst[0]:.0f} s"]


def usage_over_time(
    samples: Samples, pods: Iterable[tuple[float, float | None, float | None]], length_s: float
) -> list[CardUsage]:
    """Return a row for every `STEP_S` seconds of the turn; sample times are seconds since its
    begin.

    `pods`: (creation, binding, end) of each pod in seconds, None for a step not reached."""
    at_s = np.arange(0.0, max(length_s, STEP_S), STEP_S)
    util = _over_cards(samples.get(Metric.GPU_UTIL_RATIO, {}), at_s, mean=True)
    memory = _over_cards(samples.get(Metric.MEMORY_USED_MIB, {}), at_s, mean=False)
    power = _over_cards(samples.get(Metric.POWER_W, {}), at_s, mean=False)
    waiting, resident = np.zeros(len(at_s), np.int64), np.zeros(len(at_s), np.int64)
    for came_s, bound_s, ended_s in pods:
        until_s = np.inf if bound_s is None else bound_s
        waiting += (at_s >= came_s) & (at_s < until_s)
        resident += (at_s >= until_s) & (at_s < (np.inf if ended_s is None else ended_s))
    return [
        CardUsage(
            float(at_s[row]),
            _number(util[row] * 100),
            _number(memory[row]),
            _number(power[row]),
            int(resident[row]),
            int(waiting[row]),
        )
        for row in range(len(at_s))
    ]


def usage_measures(usage: list[CardUsage]) -> dict[str, float | None]:
    """Return mean utilization (percent) and memory (MiB) over the turn, and the energy of all
    GPUs (kJ); None without samples."""
    util = [row.gpu_util_percent for row in usage if row.gpu_util_percent is not None]
    power = [row.power_w for row in usage if row.power_w is not None]
    memory = [row.memory_used_mib for row in usage if row.memory_used_mib is not None]
    return {
        "gpu_util_percent": round(float(np.mean(util)), 4) if util else None,
        "memory_used_mib": round(float(np.mean(memory)), 3) if memory else None,
        "energy_kj": round(float(np.sum(power)) * STEP_S / 1_000, 6) if power else None,
    }


def _over_cards(cards: Mapping[str, CardSeries], at_s: Floats, *, mean: bool) -> Floats:
    """Return the sum or mean over GPUs of the last sample at each time; NaN until every GPU has a
    sample."""
    if not cards:
        return np.full(len(at_s), np.nan)
    total = np.zeros(len(at_s))
    for series in cards.values():
        index = np.searchsorted(series.times_s, at_s, side="right") - 1
        total += np.where(index >= 0, series.values[np.maximum(index, 0)], np.nan)
    return total / len(cards) if mean else total


def _scale(labels: Mapping[str, str], aliases: Mapping[str, Alias]) -> float:
    alias = aliases.get(labels.get("__name__", ""))
    return alias.scale if alias is not None and alias.scale else 1.0


def _number(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None

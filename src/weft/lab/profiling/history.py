"""Derives profiles from a metrics server's history of pods that were alone on a GPU.

Exporters' pod labels, and with access to the cluster the bindings of existing pods, show which GPU
each pod held. `weft_ledger_gpu_holdings` reveals times in which a node had pods that no exporter
reported."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from weft.dialects.application import ApplicationClues
from weft.interference.dataset import EMPTY, TIME_SLICING, Dataset, Feature, SoloProfile
from weft.lab.profiling import solo_samples
from weft.lab.profiling.solo_samples import Card, Pod, SeenGpus, SoloWindow, TimeGrid
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import Floats, QueryResult, TelemetryError
from weft.telemetry.sources.prometheus import Prometheus
from weft.telemetry.sources.source import DEFAULT_METRICS

# --- Finds each pod's application in Prometheus' answers. Pure functions --------------------------

ANNOTATION = "annotation_weft_dev_application"
QUESTIONS = (
    "kube_pod_annotations",
    "kube_pod_owner",
    "kube_replicaset_owner",
    "kube_pod_container_info",
)
"""kube-state-metrics' series about pods; the first one needs its --metric-annotations-allowlist."""

_labels = msgspec.json.Decoder(dict[str, str])


def clues_of(
    answers: Mapping[str, QueryResult], containers: Mapping[Pod, str]
) -> dict[Pod, ApplicationClues]:
    """Collect clues to each pod's application from kube-state-metrics' series and `containers`, the
    container names that exporters reported."""
    annotations: dict[Pod, str] = {}
    images: dict[Pod, str] = {}
    more = {pod: [name] for pod, name in containers.items()}
    for labels in _all(answers.get("kube_pod_annotations")):
        if labels.get(ANNOTATION):
            annotations[_pod(labels)] = labels[ANNOTATION]
    for labels in _all(answers.get("kube_pod_container_info")):
        images.setdefault(_pod(labels), labels.get("image", ""))
        more.setdefault(_pod(labels), []).append(_label(labels, "container"))
    owners = _owners(answers)
    return {
        pod: ApplicationClues(
            annotations.get(pod, ""),
            tuple(more.get(pod, ())),
            owners.get(pod, ""),
            images.get(pod, ""),
        )
        for pod in {*annotations, *images, *more, *owners}
    }


def _owners(answers: Mapping[str, QueryResult]) -> dict[Pod, str]:
    """Return each pod's owner as namespace/Kind/name; for a ReplicaSet its Deployment."""
    above = {
        (_label(labels, "namespace"), labels.get("replicaset", "")): labels
        for labels in _all(answers.get("kube_replicaset_owner"))
        if labels.get("owner_kind") == "Deployment"
    }
    owners = {}
    for labels in _all(answers.get("kube_pod_owner")):
        kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
        if not name or kind in {"", "<none>", "Node"}:
            continue
        namespace, _ = _pod(labels)
        deployment = above.get((namespace, name)) if kind == "ReplicaSet" else None
        if deployment is not None:
            kind, name = "Deployment", deployment["owner_name"]
        owners[_pod(labels)] = f"{namespace}/{kind}/{name}"
    return owners


def _all(result: QueryResult | None) -> Iterable[dict[str, str]]:
    return [_labels.decode(text) for text in result.labels] if result is not None else []


def _label(labels: Mapping[str, str], name: str) -> str:
    """Return a label of kube-state-metrics, which Prometheus renames to exported_… if it conflicts
    with a label of the scrape target."""
    return labels.get(f"exported_{name}") or labels.get(name, "")


def _pod(labels: Mapping[str, str]) -> Pod:
    return _label(labels, "namespace"), _label(labels, "pod")


MOST_SLOTS = 1_500
"""Time slots per query; Prometheus refuses more than 11,000."""
HOLDINGS = "weft_ledger_gpu_holdings"
_MEMORY = {Metric.MEMORY_USED_MIB, Metric.MEMORY_FREE_MIB, Metric.MEMORY_RESERVED_MIB}
_NO_FEATURES = frozenset({*_MEMORY, Metric.POWER_LIMIT_W, Metric.TEMPERATURE_C})


class HistorySpan(NamedTuple):
    """The period to read: start, end and step.

    `settle_s`: a pod's samples count only after it was alone for this time. `least_s`: applications
    that were alone for less time in total are left out. `progress` names the counter of iterations
    that applications export, "" for none."""

    start_s: float
    end_s: float
    step_s: float = 15.0
    settle_s: float = 60.0
    least_s: float = 300.0
    progress: str = ""


class ProfiledStay(NamedTuple):
    """A pod's stay on a GPU, from `since_s` to `until_s`, with clues to its application and its
    isolation."""

    pod: Pod
    card: Card
    since_s: float
    clues: ApplicationClues = ApplicationClues()
    isolation: str = ""
    until_s: float = math.inf


class ClusterRecord(NamedTuple):
    """Stays of pods on GPUs, each GPU's model, and the GPU for each UUID and each node/index."""

    residencies: Sequence[ProfiledStay] = ()
    models: Mapping[Card, str] = {}
    cards: Mapping[str, Card] = {}


class CollectedProfiles(NamedTuple):
    """The profiles, and omitted times: seconds by pod without a known application, and seconds by
    application with too little time alone."""

    dataset: Dataset
    nameless: dict[Pod, float]
    short: dict[str, float]


async def collect(
    source: Prometheus, span: HistorySpan, cluster: ClusterRecord, tell: Callable[[float], None]
) -> CollectedProfiles:
    """Collect each application's profile from times in which it was alone on a GPU; `tell` is
    called with the fraction done, 0 to 1.

    `TelemetryError` if the server does not answer."""
    parts: list[SoloWindow] = []
    containers: dict[Pod, str] = {}
    models: dict[Card, str] = {}
    settle = math.ceil(span.settle_s / span.step_s)
    slots = max(1, math.ceil((span.end_s - span.start_s) / span.step_s))
    for first in range(0, slots, MOST_SLOTS):
        count = min(MOST_SLOTS, slots - first)
        begin_s = span.start_s + (first - settle) * span.step_s
        # One more slot, to see whether a pod was still on its GPU after the last slot.
        grid = TimeGrid(begin_s, span.step_s, count + settle + 1)
        gpus = SeenGpus(grid, source.aliases, cluster.cards)
        await _look(source, gpus)
        if span.progress:
            gpus.progress(await _range(source, _rate_of(source, span), grid))
        for residency in cluster.residencies:
            gpus.bound(residency.card, residency.pod, residency.since_s, residency.until_s)
        for node, held in (await _holdings(source, gpus.grid)).items():
            gpus.distrust(node, held)
        parts += solo_samples.windows(gpus, settle)
        containers |= gpus.containers
        models |= gpus.models
        tell((first + count) / slots)
    clues = await _clues(source, span, containers)
    clues |= {stay.pod: stay.clues for stay in cluster.residencies if stay.clues.name()}
    return _profiles(parts, clues, models | dict(cluster.models), cluster, span)


async def _look(source: Prometheus, gpus: SeenGpus) -> None:
    grid = gpus.grid
    for metric in DEFAULT_METRICS:
        # At most two slots back: a series that has ended must not count as present.
        query = f"last_over_time({source.selector(metric)}[{2 * grid.step_s:g}s])"
        gpus.take([await _range(source, query, grid)])


def _rate_of(source: Prometheus, span: HistorySpan) -> str:
    """Return a rate query over four slots, so that a late scrape does not look like a
    standstill."""
    inner = f"{{{source.options.selector}}}" if source.options.selector else ""
    return f"rate({span.progress}{inner}[{4 * span.step_s:g}s])"


async def _range(source: Prometheus, query: str, grid: TimeGrid) -> QueryResult:
    end_s = grid.start_s + grid.step_s * (grid.length - 1)
    return await source.query_range(query, grid.start_s, end_s, grid.step_s)


async def _holdings(source: Prometheus, grid: TimeGrid) -> dict[str, Floats]:
    """Return the number of GPU shares in Weft's ledger, by node and time slot.

    Empty if the server does not have Weft's own metrics."""
    result = await _range(source, f"sum by (node) ({HOLDINGS})", grid)
    series = solo_samples.series_of(result)
    return {labels.get("node", ""): grid.column(times, values) for labels, times, values in series}


async def _clues(
    source: Prometheus, span: HistorySpan, containers: Mapping[Pod, str]
) -> dict[Pod, ApplicationClues]:
    back = max(1, round(span.end_s - span.start_s))
    answers = {}
    for name in QUESTIONS:
        try:
            answers[name] = await source.query(f"last_over_time({name}[{back}s])", span.end_s)
        except TelemetryError as error:
            if error.kind != "status":  # the lookback is beyond its limit
                raise
    return clues_of(answers, containers)


def _profiles(
    parts: Sequence[SoloWindow],
    clues: Mapping[Pod, ApplicationClues],
    models: Mapping[Card, str],
    cluster: ClusterRecord,
    span: HistorySpan,
) -> CollectedProfiles:
    isolations = {residency.pod: residency.isolation for residency in cluster.residencies}
    nameless: dict[Pod, float] = {}
    short: dict[str, float] = {}
    groups: dict[tuple[str, str, str], list[SoloWindow]] = {}
    for part in parts:
        name = clues.get(part.pod, ApplicationClues()).name()
        if not name:
            nameless[part.pod] = nameless.get(part.pod, 0) + part.slots * span.step_s
            continue
        isolation = isolations.get(part.pod, "")
        isolation = isolation if isolation not in {"", "none"} else TIME_SLICING
        groups.setdefault((name, models.get(part.card, ""), isolation), []).append(part)
    solos = []
    for key, group in groups.items():
        seconds = sum(part.slots for part in group) * span.step_s
        if seconds < span.least_s:
            short[key[0]] = short.get(key[0], 0) + seconds
        else:
            solos.append(_solo(key, group, seconds))
    return CollectedProfiles(EMPTY.merged(Dataset(solo=tuple(solos))), nameless, short)


def _solo(key: tuple[str, str, str], group: Sequence[SoloWindow], seconds: float) -> SoloProfile:
    columns = {
        metric: np.concatenate([part.values[metric] for part in group if metric in part.values])
        for metric in sorted({metric for part in group for metric in part.values})
    }
    used = columns.get(Metric.MEMORY_USED_MIB)
    features = {
        metric.value: Feature(
            round(float(column.mean()), 6), round(float(np.quantile(column, 0.95)), 6)
        )
        for metric, column in columns.items()
        if metric not in _NO_FEATURES
    }
    rates = np.concatenate([part.rates for part in group])
    return SoloProfile(
        *key,
        features,
        rate_per_s=round(float(np.median(rates)), 6) if len(rates) else None,
        memory_mib=round(float(np.median(used))) if used is not None else 0,
        peak_mib=math.ceil(float(used.max())) if used is not None else 0,
        runs=sum(part.windows for part in group),
        seconds=seconds,
        source="history",
    )

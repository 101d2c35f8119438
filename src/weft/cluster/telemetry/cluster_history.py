"""Reads a cluster's past from a metrics server: pods and nodes of kube-state-metrics, GPUs of
DCGM."""

import asyncio
import datetime
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from weft.cluster.state.observed import PodTimes
from weft.dialects import alnair, genius, gpushare, hami, kai, nvidia
from weft.dialects.catalog import ASKING_ANNOTATIONS, ASKING_LABELS, RESOURCES
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import BadInputError, annotations
from weft.telemetry.meaning import kube_state
from weft.telemetry.meaning.answers import TelemetryError, labels_of
from weft.telemetry.meaning.kube_state import Names, PodSpan, StateSeries
from weft.telemetry.sources.prometheus import Prometheus

if TYPE_CHECKING:
    from weft.cluster.config.form import TelemetrySettings

_RESOURCES = Names((*RESOURCES, gpushare.GPU_COUNT, "ephemeral-storage"))
_NAMES = Names(
    (
        *(*ASKING_LABELS, *ASKING_ANNOTATIONS, kai.QUEUE),
        *(genius.MODEL, genius.PRIORITY),
        *(hami.USE_TYPE, hami.NOUSE_TYPE, hami.USE_UUID, hami.NOUSE_UUID),
        *(annotations.GPU_MODEL, annotations.ISOLATION, annotations.APPLICATION),
        *(annotations.CLASS, annotations.EXPECTED_DURATION, annotations.SLO_MS),
        *(nvidia.GFD_COUNT, nvidia.GFD_MEMORY, nvidia.GFD_PRODUCT),
        *(alnair.NODE_COUNT, alnair.NODE_UUIDS),
    )
)


class TraceSpan(NamedTuple):
    """Period to read, and the sampling step; times in seconds since 1970."""

    start_s: float
    end_s: float
    step_s: float


class ClusterHistory(NamedTuple):
    """Nodes and pods that existed in a period; `notes` are remarks for users."""

    nodes: list[KubeNode]
    pods: list[Pod]
    spans: dict[str, PodTimes]
    notes: list[str]

    def times_of(self, pod: Pod) -> PodTimes:
        """Return the times of a pod."""
        return self.spans[_key(pod)]


def end_of(text: str) -> float:
    """Parse `--end` to seconds since 1970; the present time if it is ""."""
    if not text:
        return time.time()
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise BadInputError(
            "--end", f"{text!r} is not a time; write 2026-03-01T18:00:00Z"
        ) from None
    return (at if at.tzinfo else at.astimezone()).timestamp()


async def history(settings: "TelemetrySettings", url: str, span: TraceSpan) -> ClusterHistory:
    """Query the server; `BadInputError` if it cannot answer, or has no pods of that period."""
    from msgspec.structs import replace

    from weft.cluster.telemetry.metric_sources import prometheus_options

    options = prometheus_options(replace(settings, url=url) if url else settings)
    try:
        async with Prometheus(options) as source:
            state, seen = await _ask(source, span, options.selector)
    except TelemetryError as error:
        raise BadInputError("trace from-prometheus", str(error)) from error
    for metric in kube_state.NEEDED:
        if not state[metric]:
            raise BadInputError(
                options.url,
                f"has no {metric} of that time: is kube-state-metrics scraped, and --end right?",
            )
    return history_of(state, seen, span)


async def _ask(
    source: Prometheus, span: TraceSpan, selector: str
) -> tuple[dict[str, list[StateSeries]], list[StateSeries]]:
    """Return the last value of every series of the period, and when each pod was last seen."""
    metrics = (*kube_state.STATE_METRICS, *kube_state.MEMORY_METRICS)
    braces = f"{{{selector}}}"
    back = f"{max(1, round(span.end_s - span.start_s))}s"
    queries = [f"last_over_time({metric}{braces}[{back}])" for metric in metrics]
    stamped = f"timestamp({kube_state.POD_CREATED}{braces})"
    queries.append(f"max_over_time({stamped}[{back}:{span.step_s:g}s])")
    first = await source.query(queries[0], span.end_s)  # a silent server gets one query
    others = await asyncio.gather(
        *(source.query(query, span.end_s) for query in queries[1:]), return_exceptions=True
    )
    answers = [first]
    for answer in others:
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    listed = [
        [
            StateSeries(labels_of(labels), value)
            for labels, value in zip(answer.labels, answer.values.tolist(), strict=True)
        ]
        for answer in answers
    ]
    return dict(zip(metrics, listed[:-1], strict=True)), listed[-1]


def history_of(
    state: dict[str, list[StateSeries]], seen: list[StateSeries], span: TraceSpan
) -> ClusterHistory:
    """Build the cluster's past from the server's answers; `seen` has the time at which each pod was
    last seen."""
    nodes = [_node(manifest) for manifest in kube_state.nodes_of(state, _RESOURCES, _NAMES)]
    past = ClusterHistory(nodes, [], {}, [])
    for manifest, there in kube_state.pods_of(state, seen, _RESOURCES, _NAMES):
        times = _times(there, span)
        if times is not None:
            pod = msgspec.convert(manifest, Pod)
            past.pods.append(pod)
            past.spans[_key(pod)] = times
    past.notes.extend(_unconstrained(state))
    strange = _unknown(state, {node.metadata.name for node in nodes})
    if strange:
        past.notes.append(f"DCGM names nodes that the cluster does not have: {', '.join(strange)}")
    return past


def _unconstrained(state: dict[str, list[StateSeries]]) -> Iterator[str]:
    """Yield notes on scheduling constraints that the trace does not record."""
    yield "no metric shows node or pod affinity: the trace has neither"
    if not state[kube_state.POD_TOLERATIONS]:
        yield f"the server has no {kube_state.POD_TOLERATIONS}: the trace has no taints"
    if not state[kube_state.POD_SELECTORS]:
        yield (
            f"the server has no {kube_state.POD_SELECTORS}: the trace has no nodeSelectors; "
            f"kube-state-metrics shows them with --metric-opt-in-list={kube_state.POD_SELECTORS}"
        )
    unseen = sorted(kube_state.unseen_selectors(state, _NAMES))
    if unseen:
        yield (
            f"pods select nodes by {', '.join(unseen[:3])}, which no node shows: these selectors "
            "are left out; kube-state-metrics shows labels with "
            "--metric-labels-allowlist=nodes=[*]"
        )


def _times(there: PodSpan, span: TraceSpan) -> PodTimes | None:
    """Return the pod's times; None for a pod that is not within the span."""
    ended = there.completed_s
    if ended is None and there.last_s < span.end_s - 2 * span.step_s - 60:
        ended = there.last_s  # deleted; a minute is how late a scrape may be
    if there.created_s > span.end_s or (ended is not None and ended <= span.start_s):
        return None
    return PodTimes(there.created_s, there.scheduled_s, ended)


def _unknown(state: dict[str, list[StateSeries]], nodes: set[str]) -> list[str]:
    from weft.telemetry.meaning.metric_names import subject

    named: Iterable[StateSeries] = (
        sample for metric in kube_state.MEMORY_METRICS for sample in state[metric]
    )
    return sorted({subject(sample.labels).node for sample in named} - nodes - {""})[:3]


def _node(manifest: object) -> KubeNode:
    return msgspec.convert(manifest, KubeNode)


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}/{pod.metadata.uid}"

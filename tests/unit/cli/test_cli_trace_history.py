"""A cluster's past out of metrics: the pods and nodes that the API would have shown."""

import msgspec
from dialect_pods import ASKING, node, pod, pods
from state_metrics import of_gpu, of_node, of_pod

from weft.cli.trace_history import TraceSpan, history_of
from weft.cluster.state.observed import PodTimes, observe
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.telemetry.meaning.kube_state import MEMORY_METRICS, STATE_METRICS, StateSeries

SETTINGS = DialectSettings(gpushare_unit="node", interference_table=True)


def test_metrics_say_of_nodes_and_pods_what_the_api_says() -> None:
    """But of one: constraints are in no metric."""
    start, end = 1_000_000.0, 1_086_400.0
    nodes = [node("a"), node("b", gpus=2)]
    lines = [*of_node(nodes[0]), *of_node(nodes[1])]
    for manifest in pods():
        lines += of_pod(manifest, start + 60)
    for index in range(2):
        lines += of_gpu("b", index, 160.0, 16_000.0, "V100")
    state = {
        metric: [StateSeries(labels, value) for name, labels, value in lines if name == metric]
        for metric in (*STATE_METRICS, *MEMORY_METRICS)
    }
    last = [StateSeries(one.labels, end - 10) for one in state["kube_pod_created"]]
    past = history_of(state, last, TraceSpan(start, end, 30.0))
    found = observe(past.nodes, past.pods, SETTINGS, times_of=past.times_of)
    told = observe(
        msgspec.convert(nodes, list[KubeNode]), msgspec.convert(pods(), list[Pod]), SETTINGS
    )
    assert found.nodes == told.nodes
    assert {one.name: (one.shape, one.dialect) for one in found.pods} == {
        one.name: (one.shape, one.dialect) for one in told.pods
    }
    assert {one.times for one in found.pods} == {PodTimes(start + 60)}


def test_a_pods_end_is_its_completion_or_when_it_was_last_seen() -> None:
    start, end = 1_000_000.0, 1_003_600.0
    lines = [
        *of_node(node("a")),
        *of_pod(
            pod("done", ASKING["none"]), start + 1, start_time=start + 3, completion_time=start + 99
        ),
        *of_pod(pod("deleted", ASKING["none"]), start + 2, status_scheduled_time=start + 4),
        *of_pod(pod("runs", ASKING["none"]), start - 500, start_time=start - 400),
        *of_pod(pod("before", ASKING["none"]), start - 500, completion_time=start - 100),
    ]
    state = {
        metric: [StateSeries(labels, value) for name, labels, value in lines if name == metric]
        for metric in (*STATE_METRICS, *MEMORY_METRICS)
    }
    last_s = {"done": end, "deleted": start + 700, "runs": end - 20, "before": start + 5}
    last = [StateSeries(one.labels, last_s[one.labels["pod"]]) for one in state["kube_pod_created"]]
    past = history_of(state, last, TraceSpan(start, end, 30.0))
    times = {one.metadata.name: past.times_of(one) for one in past.pods}
    assert times == {
        "done": PodTimes(start + 1, start + 3, start + 99),
        "deleted": PodTimes(start + 2, start + 4, start + 700),
        "runs": PodTimes(start - 500, start - 400),
    }

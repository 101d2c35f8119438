"""A cluster's past out of metrics: the pods and nodes that the API would have shown."""

import msgspec
from dialect_pods import ASKING, node, pod, pods
from state_metrics import of_gpu, of_node, of_pod

from weft.cluster.state.observed import PodTimes, observe
from weft.cluster.telemetry.cluster_history import ClusterHistory, TraceSpan, history_of
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.telemetry.meaning.kube_state import MEMORY_METRICS, STATE_METRICS, StateSeries

SETTINGS = DialectSettings(gpushare_unit="node", interference_table=True)


def test_metrics_say_of_nodes_and_pods_what_the_api_says() -> None:
    """But of affinity, which is in no metric."""
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


def _constrained(*, tolerated: bool, labelled: bool) -> ClusterHistory:
    """A node kept for a team, a plain one that was cordoned for a while, and a pod of the team."""
    kept, plain = node("kept"), node("plain")
    kept["metadata"]["labels"] |= {"team.example/name": "vision"} if labelled else {}
    kept["spec"] = {"taints": [{"key": "team", "value": "vision", "effect": "NoSchedule"}]}
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    plain["spec"] = {"taints": [cordon]}
    mine, other = pod("mine", ASKING["none"]), pod("other", ASKING["none"])
    if tolerated:
        mine["spec"]["tolerations"] = [{"key": "team", "operator": "Equal", "value": "vision"}]
    mine["spec"]["nodeSelector"] = {"team.example/name": "vision"}
    lines = [*of_node(kept), *of_node(plain), *of_pod(mine, 10.0), *of_pod(other, 10.0)]
    state = {
        metric: [StateSeries(labels, value) for name, labels, value in lines if name == metric]
        for metric in (*STATE_METRICS, *MEMORY_METRICS)
    }
    last = [StateSeries(one.labels, 90.0) for one in state["kube_pod_created"]]
    return history_of(state, last, TraceSpan(0.0, 100.0, 30.0))


def test_taints_tolerations_and_selectors_are_in_the_trace() -> None:
    past = _constrained(tolerated=True, labelled=True)
    seen = observe(past.nodes, past.pods, SETTINGS, times_of=past.times_of)
    kept, plain = seen.nodes
    assert [(taint.key, taint.value, taint.effect) for taint in kept.taints] == [
        ("team", "vision", "NoSchedule")
    ]
    assert plain.taints == (), "what passes is not kept"
    mine, other = (one.shape.constraints for one in seen.pods)
    assert (mine.untolerated(kept.taints), other.untolerated(kept.taints)) == (None, kept.taints[0])
    for one, goes in ((mine, [True, False]), (other, [True, True])):
        assert [one.accepts_labels(at.name, at.labels) for at in (kept, plain)] == goes
    assert past.notes == ["no metric shows node or pod affinity: the trace has neither"]


def test_what_would_keep_everybody_off_is_left_out_and_said() -> None:
    past = _constrained(tolerated=False, labelled=False)
    seen = observe(past.nodes, past.pods, SETTINGS, times_of=past.times_of)
    assert all(node.taints == () for node in seen.nodes)
    assert all(one.shape.constraints.selector == () for one in seen.pods)
    assert past.notes[1:] == [
        "the server has no kube_pod_tolerations: the trace has no taints",
        "pods select nodes by team_example_name, which no node shows: these selectors are left "
        "out; kube-state-metrics shows labels with --metric-labels-allowlist=nodes=[*]",
    ]

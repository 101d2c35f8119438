"""Pods that hold GPUs and are stuck: on dead nodes, or long past their deletion."""

import datetime
from typing import Any

import msgspec

from weft.cluster.state.terminating import stuck
from weft.core.explain.explanation import StuckPod
from weft.core.explain.sentences import stuck_in_words
from weft.core.ledger import Holding
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.testing import placement

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def ago(**delta: float) -> str:
    return (NOW - datetime.timedelta(**delta)).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str, status: str, since: str) -> KubeNode:
    ready = {"type": "Ready", "status": status, "lastTransitionTime": since}
    whole = {"metadata": {"name": name}, "status": {"conditions": [ready]}}
    return msgspec.convert(whole, KubeNode)


NODES = {
    "up": node("up", "True", ago(days=9)),
    "down": node("down", "Unknown", ago(hours=3)),
    "blink": node("blink", "False", ago(seconds=20)),
}


def pod(name: str, on: str, deleted: str | None = None) -> Pod:
    meta: dict[str, Any] = {"name": name, "namespace": "d", "uid": name}
    if deleted:
        meta["deletionTimestamp"] = deleted
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": on}}, Pod)


def found(*pods: Pod, gpus: int = 1) -> list[StuckPod]:
    holdings = {
        one.metadata.uid: Holding(
            placement(one.metadata.uid, one.spec.node_name, range(gpus)), "committed"
        )
        for one in pods
    }
    return stuck(pods, NODES, holdings, NOW)


def test_pods_of_dead_nodes_are_named_with_their_age() -> None:
    (one,) = found(pod("a", "down"), pod("b", "up"), pod("c", "blink"))
    assert (one.name, one.node, one.age_s, one.dead_node) == ("a", "down", 3 * 3600, True)
    assert stuck_in_words([one]) == "1 GPU held by pods of dead nodes: d/a for 3 h"


def test_a_node_that_is_gone_says_not_since_when() -> None:
    (one,) = found(pod("a", "nowhere"), gpus=2)
    assert (one.why, one.age_s) == ("its node is gone", None)
    assert stuck_in_words([one]) == "2 GPUs held by pods of dead nodes: d/a"


def test_a_deletion_counts_from_the_end_of_its_grace() -> None:
    """deletionTimestamp is when the pod should be gone, not when someone asked for it."""
    pods = [
        pod("late", "up", ago(minutes=5)),
        pod("due", "up", ago(seconds=5)),
        pod("later", "up", ago(minutes=-5)),
    ]
    (one,) = found(*pods)
    assert (one.name, one.dead_node) == ("late", False)
    assert stuck_in_words([one]) == "1 GPU held by pods long past their deletion: d/late for 5 min"


def test_the_longest_first_and_not_too_many() -> None:
    pods = [pod(f"p{i}", "up", ago(minutes=5 + i)) for i in range(5)]
    assert stuck_in_words(found(*pods)) == (
        "5 GPUs held by pods long past their deletion: "
        "d/p4 for 9 min, d/p3 for 8 min, d/p2 for 7 min, 2 more"
    )


def test_who_holds_no_gpu_keeps_nobody_waiting() -> None:
    assert found(pod("a", "down"), gpus=0) == []
    assert stuck([pod("a", "down")], NODES, {}, NOW) == []
    assert stuck_in_words([]) == ""

"""Pods as Kueue gates, admits and places them: with gates nothing is decided, and what its flavors
write on them is honoured. The objects have what Kueue's source writes."""

from typing import Any

import msgspec

from fakes.api_clock import VirtualClock
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Bind, Engine, NodesChanged, PodAdded
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added
from weft.model import Code, Taint
from weft.testing import AGENT_BY_NAME

GPUS = '{"gpus":[{"index":0,"memory_mib":40000}]}'
MARKS = {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/queue-name": "research"}
FLAVOR = {"example.org/gpu": "a100"}
TOLERATES = [
    {"key": "example.org/gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}
]


def pod(gates: tuple[str, ...] = (), labels: dict[str, str] = MARKS, **spec: Any) -> Pod:
    """A plain pod; gates are Kueue's webhook's, the rest of `spec` comes with its admission."""
    containers = [{"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": 20_000}}}]
    gating = [{"name": f"kueue.x-k8s.io/{gate}"} for gate in gates]
    whole = {
        "metadata": {
            "name": "train",
            "namespace": "ml",
            "uid": "u",
            "labels": labels,
            "finalizers": ["kueue.x-k8s.io/managed"],
        },
        "spec": {
            "schedulerName": "weft",
            "schedulingGates": gating,
            "containers": containers,
            **spec,
        },
    }
    return msgspec.convert(whole, Pod)


def node(name: str, **labels: str) -> KubeNode:
    taints = [Taint("example.org/gpu", "NoSchedule", "a100")] if labels else []
    told = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **labels},
            "annotations": {"weft.dev/inventory": GPUS, **AGENT_BY_NAME},
        },
        "spec": {"taints": [msgspec.to_builtins(taint) for taint in taints]},
        "status": {
            "allocatable": {"cpu": 8, "pods": 9},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return msgspec.convert(told, KubeNode)


class World:
    """Node a without the flavor's label and taint, b and c with both."""

    def __init__(self) -> None:
        self.engine = Engine([Profile("weft", [FirstFit()])])
        nodes = NodeView()
        for each in (node("a"), node("b", **FLAVOR), node("c", **FLAVOR)):
            nodes.take_node(Added(each))
        self.pods = PodView(
            ["weft"],
            nodes,
            VolumeView(),
            self.engine.ledger,
            DialectSettings(gpushare_unit="node"),
            on_bad=lambda *_: None,
            clock=VirtualClock(),
        )
        self.pods.deciding = True
        self.engine.handle(NodesChanged(tuple(nodes.changed()[0])), 0)

    def show(self, shown: Pod) -> list[str]:
        """The node that it gets, if it is decided at all."""
        event = self.pods.update(shown)
        if event is None:
            return []
        return [c.placement.node for c in self.engine.handle(event, 0) if isinstance(c, Bind)]


def test_a_gated_pod_waits_for_kueue_and_then_goes_where_its_flavor_says() -> None:
    world = World()
    assert world.show(pod(gates=("admission",))) == []
    assert not len(world.engine.queue)
    assert world.show(pod(nodeSelector=FLAVOR, tolerations=TOLERATES)) == ["b"]


def test_the_topology_gate_holds_it_until_kueue_has_chosen_the_node() -> None:
    world = World()
    admitted = {"nodeSelector": FLAVOR, "tolerations": TOLERATES}
    assert world.show(pod(gates=("admission", "topology"))) == []
    assert world.show(pod(gates=("topology",), **admitted)) == []
    assert not len(world.engine.queue)
    chosen = {**FLAVOR, "kubernetes.io/hostname": "c"}
    assert world.show(pod(nodeSelector=chosen, tolerations=TOLERATES)) == ["c"]


def test_without_the_flavors_toleration_the_label_is_not_enough() -> None:
    world = World()
    event = world.pods.update(pod(nodeSelector=FLAVOR))
    assert isinstance(event, PodAdded)
    known = world.engine.assess(world.engine.profile_of(event.pod), event.pod)
    assert [Code(int(code)) for code in known.codes] == [
        Code.NODE_AFFINITY,
        Code.TAINT,
        Code.TAINT,
    ]


def test_the_local_queue_is_the_pods_queue_on_plain_pods_and_on_pods_of_jobs() -> None:
    of_job = {
        "kueue.x-k8s.io/podset": "main",
        "kueue.x-k8s.io/local-queue-name": "research",
        "kueue.x-k8s.io/cluster-queue-name": "all-gpus",
    }
    for labels in (MARKS, of_job):
        event = World().pods.update(pod(labels=labels))
        assert isinstance(event, PodAdded)
        assert event.pod.team_queue == "research"


def test_a_pod_that_is_gated_again_by_its_successor_holds_nothing() -> None:
    """Kueue evicts by deleting; the new pod comes gated, with another UID."""
    world = World()
    assert world.show(pod(nodeSelector=FLAVOR, tolerations=TOLERATES)) == ["b"]
    gone = world.pods.forget(pod(nodeSelector=FLAVOR, tolerations=TOLERATES))
    assert gone is not None
    world.engine.handle(gone, 1)
    assert not world.engine.ledger.holdings
    assert world.show(pod(gates=("admission",))) == []

"""Which kind of node, were there one more and empty, would take pods that wait."""

from msgspec.structs import replace

from weft.cluster.reading.more_nodes import in_words, more_nodes
from weft.model import Node, Taint
from weft.testing import node, pod


def kind(name: str, gpus: int, memory_mib: int, **labels: str) -> Node:
    made = node(name, gpus=gpus, memory_mib=memory_mib, model="A100")
    return replace(made, labels={"kubernetes.io/hostname": name, **labels})


def test_each_pod_is_under_the_smallest_kind_that_takes_it() -> None:
    nodes = [kind("s1", 1, 16_000), kind("s2", 1, 16_000), kind("l1", 8, 80_000)]
    asked = [
        pod("small", memory_mib=10_000),
        pod("large", memory_mib=60_000),
        pod("many", gpus=4),
        pod("small-too", memory_mib=10_000),
        pod("never", gpus=16),
    ]
    found = {each.like.name if each.like else "": each.pods for each in more_nodes(nodes, asked)}
    assert found == {
        "s1": ("default/small", "default/small-too"),
        "l1": ("default/large", "default/many"),
        "": ("default/never",),
    }


def test_a_node_in_trouble_stands_for_one_that_is_well() -> None:
    cordon = Taint("node.kubernetes.io/unschedulable", "NoSchedule", is_cordon=True)
    sick = node("a", gpus=1, broken=[0], schedulable=False)
    (found,) = more_nodes([replace(sick, taints=(cordon,))], [pod("p", gpus=1)])
    assert found.like is not None


def test_a_pools_own_taint_keeps_pods_off_its_next_node() -> None:
    tainted = replace(node("a", gpus=1), taints=(Taint("team", "NoSchedule", "b"),))
    (found,) = more_nodes([tainted], [pod("p", gpus=1)])
    assert found.like is None


def test_nobody_waits_or_no_node_is_there() -> None:
    assert more_nodes([node("a", gpus=1)], []) == []
    (found,) = more_nodes([], [pod("p", gpus=1)])
    assert found.like is None


def test_a_node_in_words() -> None:
    typed = kind("l1", 2, 80_000, **{"node.kubernetes.io/instance-type": "p4de.24xlarge"})
    assert in_words(typed) == "l1 (2 × A100 of 80,000 MiB, p4de.24xlarge)"

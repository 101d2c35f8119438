"""Nodes: only what Weft reads in them is news, and what comes together is taken together."""

from typing import Any

import msgspec
from live_world import LONG_AGO, gpus, node, pod, until, world

from weft.cluster.state.nodes import NodeView
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted, Modified


def known(**parts: Any) -> KubeNode:
    return msgspec.convert({**node("n"), **parts}, KubeNode)


def view() -> NodeView:
    found = NodeView()
    found.take_node(Added(known()))
    assert [one.name for one in found.changed()[0]] == ["n"]
    return found


def again(found: NodeView, **parts: Any) -> bool:
    """Tells whether the node as it is now is news."""
    found.take_node(Modified(known(**parts), known()))
    return bool(found.dirty or found.images.moved)


def test_a_heartbeat_is_no_news() -> None:
    found = view()
    meta = {**node("n")["metadata"], "resourceVersion": "7"}
    ready = {**node("n")["status"]["conditions"][0], "lastHeartbeatTime": LONG_AGO}
    assert not again(found, metadata=meta, status={**node("n")["status"], "conditions": [ready]})
    assert found.objects["n"].metadata.resource_version == "7"


def test_what_changes_a_node_is_news() -> None:
    unready = node("n", ready="Unknown")["status"]
    assert again(view(), status=unready)
    assert again(view(), spec={"unschedulable": True})
    assert again(view(), metadata={**node("n")["metadata"], "labels": {"a": "b"}})
    assert again(view(), metadata={"name": "n", "annotations": gpus(1)})


def test_news_that_weft_does_not_read_reaches_no_engine() -> None:
    found = view()
    marks = {**gpus(), "example.com/other": "1"}
    assert again(found, metadata={"name": "n", "annotations": marks})
    assert found.changed() == ((), ())


def test_which_nodes_are_not_ready_is_known() -> None:
    found = view()
    again(found, status=node("n", ready="False")["status"])
    assert found.not_ready == {"n"}
    again(found)
    assert found.not_ready == set()
    again(found, status=node("n", ready="False")["status"])
    found.take_node(Deleted(known()))
    assert found.not_ready == set()
    assert found.changed() == ((), ("n",))


def test_only_smaller_gpus_are_remembered_as_shrunk() -> None:
    found = view()
    again(found, metadata={"name": "n", "annotations": gpus(3, 20_000)})
    found.changed()
    assert not found.shrunk
    again(found, metadata={"name": "n", "annotations": gpus(3, 19_000)})
    found.changed()
    assert set(found.shrunk) == {"n"}


def shows(found: NodeView, count: int, memory_mib: int) -> bool:
    """Tells whether the node counts as shrunk when it has shown so many cards of this size."""
    again(found, metadata={"name": "n", "annotations": gpus(count, memory_mib)})
    found.changed()
    return "n" in found.shrunk


def test_a_node_is_shrunk_until_it_is_as_large_as_it_was() -> None:
    found = view()
    assert shows(found, 0, 16_000)  # its device plugin starts anew
    assert shows(found, 1, 20_000)
    assert shows(found, 2, 16_000)  # card 0 has shown more meanwhile
    assert not shows(found, 2, 20_000)
    assert shows(found, 2, 19_000)


def test_a_node_that_was_deleted_has_not_shrunk() -> None:
    found = view()
    assert shows(found, 1, 16_000)
    found.take_node(Deleted(known()))
    found.changed()
    assert not found.shrunk
    found.take_node(Added(known()))
    found.changed()
    assert not found.shrunk


async def test_nodes_that_change_together_are_laid_out_once() -> None:
    async with world(*(node(f"n{i}") for i in range(40))) as made:
        ledger = made.live.engine.ledger
        before = ledger.generation
        for i in range(40):
            made.server.update("nodes", f"n{i}", {"spec": {"unschedulable": True}})
        await until(
            lambda: all(one.taints for one in ledger.table.nodes)
        )  # they are closed at once
        await until(lambda: ledger.generation > before)
        assert ledger.generation - before < 20


async def test_a_node_that_comes_late_is_used() -> None:
    async with world(node("small", 0)) as made:
        made.server.add("pods", pod("a"))
        await until(lambda: made.live.pod("d", "a"))
        made.server.add("nodes", node("large"))
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))

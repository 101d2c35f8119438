"""Nodes whose agent is late or has withdrawn, by its Lease."""

import asyncio
import datetime
from typing import Any

import msgspec
from live_world import World, api, living, node, pod, refusals, until, world

from fakes.api_memory import client_of
from weft.cluster.state.nodes import Heartbeats, NodeView
from weft.core.engine.reasons import summarise
from weft.core.policies.fgd import Fgd
from weft.kube.structs import KubeNode, Lease
from weft.kube.watch import Added, Deleted
from weft.model.agent_offer import BY_NAME, AgentOffer, encode_offer
from weft.model.annotations import AGENT
from weft.model.reason import TEXT, Code

WALL = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
NOON = "2026-01-01T12:00:00.000000Z"


def lease(renewed: str = NOON, *, holder: str = "a", name: str = "weft-agent-a") -> Any:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 14}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def at(second: int) -> str:
    return f"2026-01-01T12:00:{second:02}.000000Z"


def test_who_is_renewed_is_not_silent_and_who_is_late_is() -> None:
    beats = Heartbeats()
    beats.take(Added(lease()), 100, WALL)
    assert beats.judge(110) == set()
    beats.take(Added(lease(at(10))), 110, WALL)
    assert beats.judge(123.9) == set()
    assert beats.late_at_s() == 124
    assert beats.judge(124.1) == {"a"}
    assert beats.silent_since("a") == at(10)
    assert beats.late_at_s() is None
    beats.take(Added(lease(at(40))), 140, WALL)
    assert beats.judge(140) == {"a"}
    assert beats.silent_since("a") == ""


def test_what_is_seen_again_is_not_renewed() -> None:
    beats = Heartbeats()
    for seen_s in (100, 110):  # as after a list
        beats.take(Added(lease()), seen_s, WALL)
    assert beats.judge(114.1) == {"a"}


def test_who_withdraws_is_silent_at_once() -> None:
    beats = Heartbeats()
    beats.take(Added(lease()), 100, WALL)
    beats.take(Added(lease(at(3), holder="")), 103, WALL)
    assert beats.judge(103) == {"a"}
    beats.take(Added(lease(at(3))), 104, WALL)
    assert beats.judge(104) == {"a"}
    assert beats.silent_since("a") == ""


def test_whoever_starts_judges_by_the_leases_own_time_until_it_changes() -> None:
    """A scheduler that just started puts nothing where an agent died a while ago."""
    beats = Heartbeats()
    names = {"a": "11:59:50", "b": "11:59:40", "c": "11:00:00", "d": "12:00:30"}
    for name, time in names.items():
        renewed = f"2026-01-01T{time}.000000Z"
        beats.take(Added(lease(renewed, name=f"weft-agent-{name}")), 100, WALL)
    assert beats.judge(100) == {"b", "c"}
    assert beats.judge(104.1) == {"a"}, "ten of its fourteen seconds were over"
    beats.take(Added(lease("2026-01-01T11:59:49.000000Z", name="weft-agent-b")), 109, WALL)
    assert beats.judge(109) == {"b"}, "only its clock is late"
    assert beats.judge(114.1) == {"d"}, "only its clock is early"


def test_nodes_without_a_lease_and_others_leases_are_not_judged() -> None:
    beats = Heartbeats()
    beats.take(Added(lease(holder="", name="weft")), 100, WALL)
    beats.take(Added(lease(holder="")), 100, WALL)
    beats.take(Deleted(lease(holder="")), 100, WALL)
    assert beats.judge(1000) == set()


def test_only_a_node_with_an_offer_is_judged_by_its_agents_lease() -> None:
    """Another system's plugin may serve there since."""
    view, offer = NodeView(), encode_offer(AgentOffer("1", BY_NAME))
    for name, annotations in (("a", {AGENT: offer}), ("b", dict[str, str]())):
        raw = {"metadata": {"name": name, "annotations": annotations}}
        view.take_node(Added(msgspec.convert(raw, KubeNode)))
        view.take_heartbeat(Added(lease(holder="", name=f"weft-agent-{name}")), 100, WALL)
    assert view.judge_heartbeats(100) == (True, None)
    new, _ = view.changed()
    assert {node.name: bool(node.silent_since) for node in new} == {"a": True, "b": False}
    view.take_heartbeat(Added(lease(at(9))), 109, WALL)
    assert view.judge_heartbeats(109) == (True, 123)
    new, _ = view.changed()
    assert [(node.name, bool(node.silent_since)) for node in new] == [("a", False)]


def beat(made: World, name: str, second: int, holder: str) -> None:
    """The agent of this node renews its Lease, or withdraws it."""
    spec = {"holderIdentity": holder, "renewTime": at(second), "leaseDurationSeconds": 14}
    if second == 0:
        meta = {"name": f"weft-agent-{name}", "namespace": "default"}
        made.server.add("leases", {"metadata": meta, "spec": spec})
    else:
        made.server.update("leases", f"weft-agent-{name}", {"spec": spec})


async def test_pods_go_elsewhere_and_whoever_waits_is_told_since_when() -> None:
    async with world(node("a"), node("b", 1)) as made:
        nodes = made.live.nodes.nodes
        for name in "ab":
            beat(made, name, 0, "")
        await until(lambda: all(nodes[name].silent_since for name in "ab"))
        refused = refusals(made)
        made.server.add("pods", pod("waits"))
        await until(lambda: refused)
        engine, waiting = made.live.engine, made.live.pods.by_uid(made.uid("waits"))
        assert waiting is not None
        request = made.live.parse(waiting)
        known = engine.assess(engine.profile_of(request), request)
        text = str(summarise(engine.ledger.table, known, request.warnings))
        assert text == f"0/2 GPU nodes: 2 × {TEXT[Code.NOT_DELIVERING]}, since {NOON}"
        beat(made, "b", 5, "b")
        bound = await until(lambda: made.server.get("pods", "waits", "d")["spec"].get("nodeName"))
        assert bound == "b", "not a, though it has more room"


async def test_who_starts_knows_the_heartbeats_before_it_decides() -> None:
    """However late the API server answers about Leases: the pod waits for it already."""
    async with api() as server, client_of(server) as client:
        made = World(server, client, Fgd())
        beat(made, "n", 0, "")
        server.add("pods", pod("waits"))
        late = server.fault("delay", path="/leases", method="GET")

        async def answer() -> None:
            await late.struck.wait()
            await until(lambda: made.live.pods.by_uid(made.uid("waits")))
            for _ in range(100):  # the loop's turns, in which it would lead and decide
                await asyncio.sleep(0)
            late.gate.set()

        answering = asyncio.create_task(answer())
        async with living(made):
            await answering
            await until(lambda: made.live.nodes.nodes["n"].silent_since)
            assert "nodeName" not in server.get("pods", "waits", "d")["spec"]
            assert not made.live.engine.ledger.holdings


async def test_without_the_right_to_see_leases_pods_are_bound_as_before() -> None:
    async with api() as server, client_of(server) as client:
        server.fault("status", path="/leases", code=403, times=1_000)
        made = World(server, client, Fgd())
        async with living(made):
            made.server.add("pods", pod("one"))
            await until(lambda: made.server.get("pods", "one", "d")["spec"].get("nodeName"))

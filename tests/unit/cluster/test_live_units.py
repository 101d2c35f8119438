"""gpushare's unit is each node's own: in mixed clusters, after a restart, where one is switched."""

import json
from typing import Any

from led_cluster import led
from live_world import LONG_AGO, World, bind, until, world
from live_world import node as plain_node

from weft.cluster.control.interface import Attempt, BindOutcome
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.framework import Profile
from weft.core.policies.packing import BestFit
from weft.kube.bind import Bound
from weft.testing import AGENT_BY_NAME

CARD_MIB = 16_384
GIB, MIB = 16, CARD_MIB  # units of one card
EIGHT_GIB = 8 * 1024
MEM, COUNT, MARK = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "ALIYUN_COM_GPU_MEM_"


def node(name: str, units: int | None) -> dict[str, Any]:
    """A node of one card that counts so many units; without any it says only what Weft wrote."""
    whole = plain_node(name, 1)
    card = [{"index": 0, "memory_mib": CARD_MIB}]
    whole["metadata"]["annotations"] = {
        "weft.dev/inventory": json.dumps({"gpus": card}),
        **AGENT_BY_NAME,
    }
    if units:
        whole["status"]["capacity"] = {MEM: str(units), COUNT: "1"}
    return whole


def pod(name: str, units: int, scheduler: str = "weft") -> dict[str, Any]:
    limits = {"limits": {MEM: str(units)}}
    return {
        "metadata": {"name": name, "namespace": "d"},
        "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "resources": limits}]},
    }


def placed_by_the_original(made: World, name: str, units: int, on: str, card: int = 0) -> None:
    """`card`: in how many units it was counted; marks without it say the GPU alone."""
    made.server.add("pods", pod(name, units, "default-scheduler"))
    marks = {MARK + "IDX": "0", MARK + "POD": str(units)} | (
        {MARK + "DEV": str(card)} if card else {}
    )
    bind(made.server, name, None, LONG_AGO, node=on, **marks)


def used(live: EngineCluster, name: str) -> int:
    table = live.engine.ledger.table
    return int(table.memory_used[table.start[table.row_of[name]]])


async def anew(made: World, **how: Any) -> None:
    await made.live.stop()
    made.parts = led(made.client, [Profile("weft", [BestFit()])], **how)
    made.live = made.parts.live
    made.live.on_notice.append(made.notices.append)
    await made.live.start()
    await made.live.lead(afresh=False)


async def decided(made: World, name: str) -> str:
    """The node it is bound to; "" where it fits nowhere."""
    found: list[str] = []

    def hear(told: Attempt | BindOutcome) -> None:
        if told.command.pod.name != name:
            return
        if isinstance(told, BindOutcome):
            assert isinstance(told.outcome, Bound)
            found.append(told.command.placement.node)
        elif not hasattr(told.command, "placement"):
            found.append("")

    made.live.on_decision.append(hear)
    await until(lambda: found)
    return found[0]


async def test_what_a_bound_pod_holds_does_not_depend_on_other_nodes() -> None:
    async with world(node("g", GIB)) as made:
        placed_by_the_original(made, "twelve", 12, "g", GIB)
        await until(lambda: used(made.live, "g"))
        for name in ("m1", "m2", "m3"):
            made.server.add("nodes", node(name, MIB))
        await until(lambda: len(made.live.nodes.nodes) == 4)
        assert used(made.live, "g") == 12 * 1024
        await anew(made)
        assert used(made.live, "g") == 12 * 1024
        assert made.told("UnitMismatch") == []


async def test_a_waiting_pod_is_charged_by_the_unit_of_its_node() -> None:
    nodes = [node("g", GIB), *(node(f"m{n}", MIB) for n in range(3))]
    nodes[0]["metadata"]["labels"] = {"pool": "gib"}
    async with world(*nodes) as made:
        wanted = pod("eight", 8)
        wanted["spec"]["nodeSelector"] = {"pool": "gib"}
        made.server.add("pods", wanted)
        assert await decided(made, "eight") == "g"
        assert used(made.live, "g") == EIGHT_GIB
        marks = made.server.get("pods", "eight", "d")["metadata"]["annotations"]
        assert (marks[MARK + "POD"], marks[MARK + "DEV"]) == ("8", str(GIB))
        made.server.add("pods", pod("large", 9_000))
        large = await decided(made, "large")
        assert large.startswith("m")
        assert used(made.live, large) == 9_000
        marks = made.server.get("pods", "large", "d")["metadata"]["annotations"]
        assert (marks[MARK + "POD"], marks[MARK + "DEV"]) == ("9000", str(MIB))
        before = [used(made.live, name) for name in ("g", "m0", "m1", "m2")]
        await anew(made)
        assert [used(made.live, name) for name in ("g", "m0", "m1", "m2")] == before


async def test_of_a_switched_node_the_larger_is_charged_and_told() -> None:
    async with world(node("a", GIB), node("b", MIB)) as made:
        placed_by_the_original(made, "eight", 8, "a", GIB)
        placed_by_the_original(made, "many", 8_000, "b", MIB)
        await until(lambda: used(made.live, "a") and used(made.live, "b"))
        made.server.update("nodes", "a", node("a", MIB))
        made.server.update("nodes", "b", node("b", GIB))
        await until(lambda: len(made.told("UnitMismatch")) == 4)
        assert (used(made.live, "a"), used(made.live, "b")) == (EIGHT_GIB, 8_000)
        about = sorted((n.pod.metadata.name if n.pod else n.node) for n in made.notices)
        assert about == ["a", "b", "eight", "many"]
        made.notices.clear()
        await anew(made)
        assert (used(made.live, "a"), used(made.live, "b")) == (EIGHT_GIB, 8_000)
        told = made.told("UnitMismatch")
        assert len(told) == 2, "the pods' marks still say it"
        assert any("its node counts in MiB, its annotations in GiB" in text for text in told)
        made.server.update("pods", "eight", {"status": {"phase": "Succeeded"}}, "d")
        await until(lambda: not used(made.live, "a"))
        assert len(made.live.pods.doubts) == 1


async def test_a_node_that_says_no_unit_asks_marks_and_then_the_number() -> None:
    async with world(node("none", None), *(node(f"m{n}", MIB) for n in range(2))) as made:
        for name, units, card, mib in (
            ("a", 2, GIB, 2048),
            ("b", 300, MIB, 300),
            ("c", 3, 0, 3 * 1024),
            ("d", 400, 0, 400),
            ("e", 100, MIB, 100),
        ):
            before = used(made.live, "none")
            placed_by_the_original(made, name, units, "none", card)
            await until(lambda was=before: used(made.live, "none") != was)
            assert used(made.live, "none") == before + mib
        before = used(made.live, "none")
        await anew(made)
        assert used(made.live, "none") == before
        assert made.told("UnitMismatch") == []


async def test_a_configured_unit_never_makes_a_pod_smaller_than_its_node_says() -> None:
    async with world(node("g", GIB), node("m", MIB)) as made:
        placed_by_the_original(made, "eight", 8, "g", GIB)
        placed_by_the_original(made, "many", 8_000, "m", MIB)
        await until(lambda: used(made.live, "g") and used(made.live, "m"))
        for unit, other, name in (("MiB", "g", "m"), ("GiB", "m", "g")):
            made.notices.clear()
            await anew(made, gpushare_unit=unit)
            assert (used(made.live, "g"), used(made.live, "m")) == (EIGHT_GIB, 8_000)
            assert [n.node for n in made.notices if n.reason == "UnitMismatch"] == [other]
            made.server.add("pods", pod(f"p-{unit}", 1))
            assert await decided(made, f"p-{unit}") == name
            made.server.remove("pods", f"p-{unit}", "d")


async def test_only_the_leader_tells() -> None:
    async with world(node("g", MIB), start=False) as made:
        placed_by_the_original(made, "eight", 8, "g", GIB)
        await made.live.start()
        assert made.told("UnitMismatch") == []
        await made.live.lead(afresh=False)
        assert len(made.told("UnitMismatch")) == 1
        made.server.update("pods", "eight", {"metadata": {"labels": {"a": "b"}}}, "d")
        await until(lambda: made.live.pod("d", "eight").metadata.labels)  # type: ignore[union-attr]
        assert len(made.told("UnitMismatch")) == 1, "said once"

"""Annotations that an original's device plugin writes, written where Weft's agent gave the GPU.

Users of gpushare and Alnair read these annotations; nobody else writes them on such a node.
"""

from functools import partial
from typing import Any

import pytest
from live_world import Json, World, anew, bind, node, pod, until, world

from weft.model.delivery import decode_delivery

ASSIGNED, ASSUMED = "ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
GPU_ID, OWN_ID = "ai.centaurus.io/alnair-gpu-id", "ai.centaurus.io/alnair-id"


def asks(name: str, *limits: dict[str, str]) -> Json:
    made = pod(name)
    containers = [{"name": f"c{i}", "resources": {"limits": each}} for i, each in enumerate(limits)]
    made["spec"]["containers"] = containers
    return made


def marks(made: World, name: str) -> dict[str, str]:
    found: dict[str, str] = made.server.get("pods", name, "d")["metadata"]["annotations"]
    return found


def shown(made: World, name: str) -> dict[str, str]:
    seen = made.live.pod("d", name)
    return (seen and seen.metadata.annotations) or {}


def marked(made: World, name: str) -> bool:
    return GPU_ID in marks(made, name)


def starts(made: World, name: str) -> None:
    made.server.update("pods", name, {"status": {"phase": "Running"}}, "d")


async def bound(made: World, wanted: Json) -> None:
    made.server.add("pods", wanted)
    name = wanted["metadata"]["name"]
    await until(lambda: (seen := made.live.pod("d", name)) and seen.spec.node_name)


async def test_gpushare_says_assigned_once_the_container_runs() -> None:
    async with world() as made:
        await bound(made, asks("p", {"aliyun.com/gpu-mem": "4"}))
        before = marks(made, "p")
        assert before[ASSIGNED] == "false"
        charged = list(made.live.engine.ledger.table.memory_used)
        starts(made, "p")
        await until(lambda: marks(made, "p")[ASSIGNED] == "true")
        after = marks(made, "p")
        assert int(after[ASSUMED]) > int(before[ASSUMED])
        changed = {key for key, value in after.items() if before.get(key) != value}
        assert changed == {ASSIGNED, ASSUMED}
        await until(lambda: shown(made, "p").get(ASSIGNED) == "true")
        assert list(made.live.engine.ledger.table.memory_used) == charged
        assert made.live.pods.doubts == {}


async def test_alnair_names_units_of_the_card_that_no_other_pod_has() -> None:
    """As its device plugin does: an identifier for each GiB, a short one for each container."""
    async with world(node(count=1)) as made:
        memory = "alnair/vgpu-memory"
        await bound(made, asks("first", {memory: "2"}, {"alnair/vgpu-compute": "10"}))
        await bound(made, asks("second", {memory: "1"}, {memory: "2"}))
        for name in ("first", "second"):
            assert GPU_ID not in marks(made, name)
            starts(made, name)
        for name in ("first", "second"):
            await until(partial(marked, made, name))
        assert marks(made, "first")[GPU_ID] == "0_0,0_1"
        assert marks(made, "second")[GPU_ID] == "0_2,0_3,0_4"
        assert [len(marks(made, n)[OWN_ID].split(",")) for n in ("first", "second")] == [1, 2]
        assert made.told("PlacementMoved") == []
        env = {name: delivered(made, name) for name in ("first", "second")}
        assert marks(made, "first")[OWN_ID] == env["first"]["c0"]["ALNAIR_ID"]
        wanted = ",".join(env["second"][c]["ALNAIR_ID"] for c in ("c0", "c1"))
        assert marks(made, "second")[OWN_ID] == wanted


def delivered(made: World, name: str) -> dict[str, dict[str, str]]:
    record = decode_delivery(marks(made, name)["weft.dev/delivery"])
    return {container: part.env for container, part in record.containers.items()}


async def test_a_write_that_fails_is_made_later_and_a_new_leader_makes_up_for_it() -> None:
    async with world() as made:
        await bound(made, asks("p", {"aliyun.com/gpu-mem": "4"}))
        made.server.fault("status", path="/pods/p/status", code=500, times=1)
        starts(made, "p")
        await until(lambda: marks(made, "p")[ASSIGNED] == "true")
        await bound(made, asks("q", {"aliyun.com/gpu-mem": "4"}))
        await made.live.stop()
        starts(made, "q")
        await anew(made)
        await until(lambda: marks(made, "q")[ASSIGNED] == "true")


@pytest.mark.parametrize("agent", [None, "{"])
async def test_where_no_agent_of_weft_delivers_the_originals_plugin_writes(
    agent: str | None,
) -> None:
    other: dict[str, Any] = node("other")
    other["status"]["allocatable"] |= {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    other["metadata"]["annotations"]["weft.dev/agent"] = agent
    async with world(node(), other) as made:
        await bound(made, asks("here", {"aliyun.com/gpu-mem": "4"}))
        made.server.add("pods", asks("there", {"aliyun.com/gpu-mem": "4"}))
        said: dict[str, Any] = {ASSIGNED: "false", ASSUMED: "1", "ALIYUN_COM_GPU_MEM_IDX": "0"}
        bind(made.server, "there", 0, "2026-01-01T00:00:00Z", node="other", **said)
        starts(made, "there")
        await until(
            lambda: (seen := made.live.pod("d", "there")) and seen.status.phase == "Running"
        )
        starts(made, "here")
        await until(lambda: marks(made, "here")[ASSIGNED] == "true")
        assert marks(made, "there")[ASSIGNED] == "false"

"""Containers get exactly what the record says, and nothing where nothing may be given."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from agent_world import NODE, VISIBLE, NodeWorld, node_world

from fakes.nri_runtime import NotCreatedError
from weft.cluster.config.agent import AgentSettings
from weft.cluster.config.form import Configuration
from weft.model.annotations import ADVERTISES, DELIVERY
from weft.model.delivery import DeliveredContainer, encode_delivery


async def refused(world: NodeWorld, *asked: object, **more: object) -> str:
    with pytest.raises(NotCreatedError) as caught:
        await world.create(*asked, **more)  # type: ignore[arg-type]
    return str(caught.value)


async def test_a_container_gets_what_its_record_says(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        own = ("PATH=/bin", f"{VISIBLE}=all", "SHARE_MIB=99999")
        started = await world.create(world.bound("a"), env=own)
        assert started.env == {"PATH": "/bin", VISIBLE: world.uuids[0], "SHARE_MIB": "1000"}
        assert started.devices == ("/dev/null", "/dev/zero")
        assert (started.cdi, started.mounts) == ((), ())


async def test_without_an_api_server_the_record_is_enough(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.api.stop()
        await world.start_agent(hears_api=False)
        assert (await world.create(world.bound("a"))).env[VISIBLE] == world.uuids[0]


@pytest.mark.parametrize("runtime", ["containerd v2.1.0", "containerd 1.7.29", "cri-o 1.33.0"])
async def test_cdi_names_go_before_device_nodes_where_the_runtime_heeds_them(
    tmp_path: Path, runtime: str
) -> None:
    """Older ones drop what a plugin names: the container would start without a GPU."""
    name, _, version = runtime.partition(" ")
    async with node_world(tmp_path, name=name, version=version) as world:
        (tmp_path / "cdi").mkdir()
        names = [{"name": uuid} for uuid in world.uuids]
        spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": names}
        (tmp_path / "cdi" / "nvidia.json").write_text(json.dumps(spec))
        await world.start_agent()
        started = await world.create(world.bound("a"))
        assert started.env[VISIBLE] == world.uuids[0]
        if runtime == "containerd v2.1.0":
            assert started.cdi == (f"nvidia.com/gpu={world.uuids[0]}",)
            assert started.devices == ()
        else:
            assert (started.cdi, started.devices) == ((), ("/dev/null", "/dev/zero"))


async def test_containers_without_a_share_see_no_gpu(tmp_path: Path) -> None:
    config = Configuration(agent=AgentSettings(exempt_namespaces=("kube-system", "gpu-operator")))
    async with node_world(tmp_path) as world:
        await world.start_agent(config)
        world.add_pod("plain")
        world.api.update("nodes", NODE, {"status": {"capacity": {"amd.com/gpu": "2"}}}, "")
        world.add_pod("other", {"amd.com/gpu": "1"})
        everything = (f"{VISIBLE}=all",)
        beside = await world.create(world.bound("a"), "sidecar", everything)
        assert (beside.env, beside.devices) == ({VISIBLE: "void"}, ())
        plain = await world.create(world.sandbox("plain"), "main", everything)
        assert plain.env == {VISIBLE: "void"}
        debug = await world.create(world.sandbox("plain"), "debugger-x7", everything)
        assert debug.env == {VISIBLE: "void"}
        await starts_with(world, "other", everything)
        exempt = world.sandbox("plain", namespace="gpu-operator")
        assert (await world.create(exempt, "main", everything)).env == {VISIBLE: "all"}


ASKS_NOBODY: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "a resource": ({"amd.com/gpu": "1"}, {}),
    "whole cards": ({"nvidia.com/gpu": "1"}, {}),
    "a misspelled resource": ({"nvidia.com/gpus": "1"}, {}),
    "labels": ({}, {"labels": {"GPU_MEM_REQ": "100"}}),
    "an annotation": ({}, {"annotations": {"gpu-fraction": "0.5"}}),
}


@pytest.mark.parametrize("asks", ASKS_NOBODY)
async def test_who_asks_a_plugin_that_the_node_lacks_sees_no_gpu(tmp_path: Path, asks: str) -> None:
    """A kubelet admits such a pod, and nobody gives it anything: its image would decide."""
    limits, marks = ASKS_NOBODY[asks]
    everything = (f"{VISIBLE}=all",)
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("first", limits, **marks)
        if asks == "an annotation":  # whose name is common: it may mean anything
            alone = await world.create(world.sandbox("first"), "main", everything)
            assert alone.env == {VISIBLE: "void"}
        else:
            problem = await refused(world, world.sandbox("first"), "main", everything)
            assert "nothing delivers the GPUs" in problem
        served = dict.fromkeys(limits, "1") or {"nvidia.com/gpu": "8"}
        world.api.update("nodes", NODE, {"status": {"capacity": served}}, "")
        await starts_with(world, "first", everything)


async def starts_with(world: NodeWorld, name: str, env: tuple[str, ...]) -> None:
    """Until the container has this environment: the watch tells of node and pods apart."""
    while True:
        with suppress(NotCreatedError):
            started = await world.create(world.sandbox(name), "main", env)
            if started.env == dict(each.split("=") for each in env):
                return
        await asyncio.sleep(0.005)


async def test_a_container_that_asks_for_nothing_beside_one_that_does_starts_without(
    tmp_path: Path,
) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("whole", {"nvidia.com/gpu": "1"})
        beside = await world.create(world.sandbox("whole"), "debugger", (f"{VISIBLE}=all",))
        assert beside.env == {VISIBLE: "void"}


async def test_whole_cards_that_the_agent_itself_advertises_need_a_record(tmp_path: Path) -> None:
    config = Configuration(agent=AgentSettings(dialects=("hami",), own=("nvidia.com/gpu",)))
    async with node_world(tmp_path) as world:
        await world.start_agent(config)
        while ADVERTISES not in world.api.get("nodes", NODE, "")["metadata"].get("annotations", {}):
            await asyncio.sleep(0.005)
        world.add_pod("whole", {"nvidia.com/gpu": "1"})
        assert "nothing delivers" in await refused(world, world.sandbox("whole"), "main")


async def test_a_variable_that_image_and_pod_set_is_refused(tmp_path: Path) -> None:
    """The runtime would give the pod's value, and `all` GPUs be visible."""
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("plain")
        twice = (f"{VISIBLE}=all", f"{VISIBLE}=all")
        for pod in (world.bound("a"), world.sandbox("plain")):
            problem = await refused(world, pod, "main", twice)
            assert f"its image and its pod both set {VISIBLE}" in problem
        same = (f"{VISIBLE}=all", f"{VISIBLE}=void")
        assert (await world.create(world.sandbox("plain"), "main", same)).env == {VISIBLE: "void"}


async def test_what_image_and_pod_set_is_overridden_by_a_cdi_device_in_containerd(
    tmp_path: Path,
) -> None:
    """Its file holds the whole environment, and goes once the container is long created, or with
    the agent."""
    async with node_world(tmp_path, name="containerd") as world:
        await world.start_agent()
        twice = (f"{VISIBLE}=0", f"{VISIBLE}=all")
        started = await world.create(world.bound("a"), "main", twice)
        (name,) = started.cdi
        (path,) = (tmp_path / "cdi").iterdir()
        specification = json.loads(path.read_text())
        (device,) = specification["devices"]
        assert name == f"{specification['kind']}={device['name']}"
        assert f"{VISIBLE}={world.uuids[0]}" in device["containerEdits"]["env"]
        os.utime(path, (0, 0))
        world.add_pod("plain")
        await world.create(world.sandbox("plain"), "main", twice)
        assert path not in list((tmp_path / "cdi").iterdir())
        once = await world.create(world.sandbox("plain"), "other", (f"{VISIBLE}=all",))
        assert once.cdi == ()
        assert list((tmp_path / "cdi").iterdir())
    assert not list((tmp_path / "cdi").iterdir()), "none outlives the agent"


async def test_a_pod_that_nobody_told_of_is_left_alone(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.api.stop()
        await world.start_agent(hears_api=False)
        static = world.sandbox("static")
        assert (await world.create(static, env=(f"{VISIBLE}=all",))).env == {VISIBLE: "all"}


async def test_a_pod_that_the_api_server_tells_of_late_is_waited_for(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("late")
        pod = world.sandbox("late")  # at once: faster than the watch
        creating = asyncio.create_task(world.create(pod, env=(f"{VISIBLE}=all",)))
        assert (await creating).env == {VISIBLE: "void"}


async def test_a_pod_of_ours_does_not_start_before_its_record(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("early", {"weft.dev/gpu-memory": "1000"})
        pod = world.sandbox("early")
        assert "which GPU of this node is the pod's" in await refused(world, pod)
        record = world.record(pod.uid)
        assert "container main" in await world.event("GPUShareRefused")
        marks = world.bound_with(pod.uid, record)
        world.api.update("pods", "early", {"metadata": {"annotations": marks}})
        while True:  # the watch tells of it
            try:
                started = await world.create(pod)
                break
            except NotCreatedError:
                await asyncio.sleep(0.005)
        assert started.env[VISIBLE] == world.uuids[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pod": "uid-b"}, "the record is another pod's, with UID uid-b"),
        ({"node": "n2"}, "the record is of another node, n2"),
        ({"isolation": "mps"}, "MPS is off on this node"),
    ],
)
async def test_a_record_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, str], why: str
) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        record = world.record("uid-a", **change)
        assert await refused(world, world.bound("a", record)) == f"weft: {why}"
        assert why in await world.event("GPUShareRefused")


async def test_a_pod_that_the_default_scheduler_bound_is_told_the_way_out(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("a", {"weft.dev/gpu-memory": "1000"})
        why = await refused(world, world.sandbox("a"))
        assert (
            "no record says which GPU of this node is the pod's: default-scheduler placed it" in why
        )
        assert "label its namespace weft.dev/schedule=enabled" in why
        assert "weft.dev/schedule=enabled" in await world.event("GPUShareRefused")


async def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        pod = world.bound("a")
        pod.annotations[DELIVERY] = pod.annotations[DELIVERY][:-5]
        assert "annotation weft.dev/delivery cannot be read" in await refused(world, pod)


async def test_gpus_that_are_gone_or_broken_are_refused(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        text = world.file.read_text().replace("count: 2", "xids: [79]")
        world.file.write_text(text)
        await world.start_agent()
        gone = world.record("uid-a", gpu=1)
        assert await refused(world, world.bound("a", gone)) == "weft: GPU 1 does not exist"
        broken = await refused(world, world.bound("b"))
        assert broken == "weft: GPU 0 is out of service: XID 79: fallen off the bus"


async def test_a_gpu_of_another_uuid_is_refused(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        pod = world.bound("a")
        world.file.write_text(world.file.read_text().replace("count: 2", "uuid: GPU-new"))
        await world.start_agent()
        assert "GPU 0 is GPU-new; the record says" in await refused(world, pod)


FORGED_ASKS: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({"cpu": "1"}, "the pod requests no GPU"),
    "less": ({"weft.dev/gpu-memory": "1"}, "other amounts of them, than weft.dev/placement"),
    "another plugin": ({"amd.com/gpu": "1"}, "the pod requests no GPU"),
}


@pytest.mark.parametrize("asks", FORGED_ASKS)
async def test_a_forged_record_gives_no_gpu(tmp_path: Path, asks: str) -> None:
    """No admission policy keeps its author from writing it, or the placement beside it."""
    limits, why = FORGED_ASKS[asks]
    async with node_world(tmp_path) as world:
        await world.start_agent()
        marks = world.bound_with("uid-a", world.record("uid-a", mib=1))
        marks[DELIVERY] = encode_delivery(world.record("uid-a", mib=40_000))
        world.add_pod("a", limits, marks)
        assert why in await refused(world, world.sandbox("a", marks), "main", (f"{VISIBLE}=all",))
        assert why in await refused(world, world.sandbox("a"), "side")
        assert why in await world.event("GPUShareRefused")
        await world.create(world.bound("b", world.record("uid-b", mib=40_000)))


async def test_a_record_that_its_author_changed_before_it_was_used_is_refused(
    tmp_path: Path,
) -> None:
    """The kubelet waits for volumes before it makes the sandbox: time for an edit."""
    async with node_world(tmp_path) as world:
        await world.start_agent()
        pod = world.bound("a")
        await world.create(world.sandbox("a"))  # the agent has seen it
        await world.runtime.stop_pod(pod)
        edited = world.bound("a", world.record("uid-a", mib=40_000))
        assert "differs from the one that the pod had at first" in await refused(world, edited)


async def test_who_asks_for_nothing_and_was_given_a_gpu_unheard_is_evicted(tmp_path: Path) -> None:
    """While the API server is away a record is enough; once it is back, the pod is looked at."""
    async with node_world(tmp_path) as world:
        world.add_pod("a", {"cpu": "1"}, world.bound_with("uid-a", world.record("uid-a")))
        world.bound("b")
        world.api.fault("status", code=503, times=1_000_000)
        await world.start_agent(hears_api=False)
        for name in ("a", "b"):
            pod = world.sandbox(name, world.bound_with(f"uid-{name}", world.record(f"uid-{name}")))
            while True:
                with suppress(NotCreatedError):
                    assert (await world.create(pod)).env[VISIBLE] == world.uuids[0]
                    break
                await asyncio.sleep(0.005)  # it has not failed to hear the API server yet
        world.api.faults.forget()
        assert "the pod requests no GPU" in await world.event("GPUShareEvicted")
        assert "deletionTimestamp" in world.api.get("pods", "a")["metadata"]
        assert "deletionTimestamp" not in world.api.get("pods", "b")["metadata"]


async def test_a_card_is_promised_no_further_than_the_settings_allow(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        first = world.bound("first", world.record("uid-first", mib=30_000))
        second = world.bound("second", world.record("uid-second", mib=10_001))
        await world.create(first)
        assert "exceed the limit of 40,000 MiB" in await refused(world, second)
        other = world.bound("third", world.record("uid-third", gpu=1, mib=40_000))
        await world.create(other)
        await world.create(first)  # a restart of what runs takes nothing more
        await world.runtime.stop_pod(first)
        await world.create(second)


async def test_what_runs_is_counted_by_an_agent_that_starts(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        await world.create(world.bound("first", world.record("uid-first", mib=30_000)))
        await world.stop_agent()
        await world.start_agent()
        second = world.bound("second", world.record("uid-second", mib=10_001))
        assert "30,000 MiB promised to pods that run" in await refused(world, second)


async def test_a_gpushare_pod_that_its_own_scheduler_placed_gets_its_card(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        gib = {"aliyun.com/gpu-mem": "78", "aliyun.com/gpu-count": "2"}
        world.api.update("nodes", NODE, {"status": {"allocatable": gib, "capacity": gib}})
        marks = {
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "39",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        }
        world.add_pod("share", {"aliyun.com/gpu-mem": "3"}, marks)
        await world.start_agent()
        started = await world.create(world.sandbox("share", marks))
        assert started.env[VISIBLE] == "1"
        assert started.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"


async def test_a_container_of_the_record_without_shares_sees_none(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        record = world.record("uid-a")
        empty = DeliveredContainer((), {"A": "b"})
        record.containers["side"] = empty
        started = await world.create(world.bound("a", record), "side")
        assert (started.env, started.devices) == ({VISIBLE: "void", "A": "b"}, ())

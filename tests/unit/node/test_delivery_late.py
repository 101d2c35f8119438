"""Containers that started while no agent was there, and pods of which the agent hears late."""

import asyncio
import uuid
from pathlib import Path
from typing import Any, Literal

import pytest
from agent_world import NODE, VISIBLE, NodeWorld, node_world

from fakes.nri_runtime import NotCreatedError
from weft.cluster.config.agent import AgentSettings
from weft.cluster.config.form import Configuration
from weft.node.nri import nri_pb2 as nri

MARKS = {
    "ALIYUN_COM_GPU_MEM_IDX": "1",
    "ALIYUN_COM_GPU_MEM_POD": "3",
    "ALIYUN_COM_GPU_MEM_DEV": "39",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
}
GIB = {"aliyun.com/gpu-mem": "78", "aliyun.com/gpu-count": "2"}


def recorded(world: NodeWorld, name: str) -> nri.PodSandbox:
    """A pod with a record, in the API server and as the runtime has it."""
    world.add_pod(name, {"weft.dev/gpu-memory": "1000"})
    return world.bound(name, world.record(world.uids[name]))


def is_going(world: NodeWorld, name: str) -> bool:
    return "deletionTimestamp" in world.api.get("pods", name)["metadata"]


async def going(world: NodeWorld, name: str) -> None:
    while not is_going(world, name):
        await asyncio.sleep(0.005)


async def test_what_started_without_its_share_is_evicted_and_nothing_else(tmp_path: Path) -> None:
    async with node_world(tmp_path, has_validators=False) as world:
        await world.start_agent()
        good = recorded(world, "good")
        await world.create(good)
        await world.kill_agent()
        world.runtime.drop_plugin()
        bad, plain = recorded(world, "bad"), world.sandbox("plain")
        without = nri.PodSandbox()
        without.CopyFrom(bad)
        del without.annotations["required-plugins.noderesource.dev/pod"]  # an older runtime
        await world.create(without)
        await world.create(plain, env=(f"{VISIBLE}=all",))
        await world.start_agent()
        await going(world, "bad")
        assert "runs without its share" in await world.event("GPUShareEvicted")
        assert not is_going(world, "good")
        assert world.api.requests["POST pods/eviction"] == 1


async def test_one_slow_eviction_keeps_no_other_waiting(tmp_path: Path) -> None:
    names = ("one", "other")
    async with node_world(tmp_path, has_validators=False) as world:
        for name in names:
            pod = recorded(world, name)
            del pod.annotations["required-plugins.noderesource.dev/pod"]
            await world.create(pod)
        held = world.api.fault("delay", method="POST", path="/eviction")
        await world.start_agent()
        async with asyncio.timeout(10):
            while not any(is_going(world, name) for name in names):
                await asyncio.sleep(0.005)
            assert held.struck.is_set()
            held.gate.set()
            for name in names:
                await going(world, name)


async def test_an_eviction_that_a_budget_forbids_is_told(tmp_path: Path) -> None:
    async with node_world(tmp_path, has_validators=False) as world:
        pod = recorded(world, "bad")
        del pod.annotations["required-plugins.noderesource.dev/pod"]
        await world.create(pod)
        world.api.fault("status", method="POST", path="/eviction", code=429)
        await world.start_agent()
        assert "it is not evicted" in await world.event("GPUShareEvictionBlocked")
        assert not is_going(world, "bad")


async def test_a_pod_that_was_left_alone_is_judged_once_it_is_known(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        world.api.update("nodes", NODE, {"status": {"allocatable": GIB, "capacity": GIB}})
        world.add_pod("share", {"aliyun.com/gpu-mem": "3"}, MARKS)
        unmarked = world.sandbox("share")  # its sandbox is older than its marks
        world.api.fault("status", code=503, times=1_000_000)
        await world.start_agent(hears_api=False)
        assert (await world.create(unmarked, env=("A=1",))).env == {"A": "1"}
        world.api.faults.forget()
        await going(world, "share")


async def test_a_pod_that_an_originals_agent_gave_its_card_goes_on(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        world.api.update("nodes", NODE, {"status": {"allocatable": GIB, "capacity": GIB}})
        world.add_pod("share", {"aliyun.com/gpu-mem": "3"}, MARKS)
        world.add_pod("all", {"aliyun.com/gpu-mem": "3"}, MARKS)
        await world.create(world.sandbox("share", MARKS), env=(f"{VISIBLE}=1",))
        world.add_pod("other", {"aliyun.com/gpu-mem": "3"}, MARKS)
        await world.create(world.sandbox("other", MARKS), env=("ALIYUN_COM_GPU_MEM_IDX=1",))
        await world.create(world.sandbox("all", MARKS), env=(f"{VISIBLE}=all",))
        await world.start_agent()
        await going(world, "all")
        assert not is_going(world, "share")
        assert not is_going(world, "other")


async def test_marks_of_a_pod_that_is_not_known_keep_it_waiting(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.api.stop()
        await world.start_agent(hears_api=False)
        for marks in (MARKS, {"elasticgpu.io/container-main": "0"}, {"weft.dev/placement": "x"}):
            with pytest.raises(NotCreatedError, match="not known yet"):
                await world.create(world.sandbox("share", marks))


async def test_an_annotation_that_is_edited_later_moves_nothing(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("a", {"weft.dev/gpu-memory": "1000"})
        uid = world.uids["a"]
        marks = world.bound_with(uid, world.record(uid))
        world.api.update("pods", "a", {"metadata": {"annotations": marks}})
        while True:
            try:
                await world.create(world.sandbox("a"))
                break
            except NotCreatedError:
                await asyncio.sleep(0.005)
        more = world.bound_with(uid, world.record(uid, gpu=1, mib=40_000))
        world.api.update("pods", "a", {"metadata": {"annotations": more}})
        world.add_pod("b")
        await world.create(world.sandbox("b"))  # the watch has told of both
        assert (await world.create(world.sandbox("a"))).env["SHARE_MIB"] == "1000"


async def test_a_pod_that_ended_holds_nothing(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        world.add_pod("first", {"weft.dev/gpu-memory": "30000"})
        await world.create(world.bound("first", world.record(world.uids["first"], mib=30_000)))
        second = world.bound("second", world.record("uid-second", mib=30_000))
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(second)
        world.api.update("pods", "first", {"status": {"phase": "Succeeded"}})
        while True:
            try:
                await world.create(second)
                break
            except NotCreatedError:
                await asyncio.sleep(0.005)


async def outlived(world: NodeWorld, name: str) -> nri.PodSandbox:
    """A pod with most of a GPU, started before its runtime was; its cgroup names its UID."""
    world.add_pod(name, {"weft.dev/gpu-memory": "30000"}, uid=str(uuid.uuid4()))
    pod = world.bound(name, world.record(world.uids[name], mib=30_000))
    await world.create(pod)
    await world.runtime.stop()
    await world.runtime.start()
    await world.runtime.has_plugin(world.runtime.registrations + 1)
    return pod


async def fits(world: NodeWorld, name: str) -> None:
    """As soon as so large a pod is started: the watch need not have told of all yet."""
    pod = world.bound(name, world.record(f"uid-{name}", mib=30_000))
    while True:
        try:
            await world.create(pod)
            return
        except NotCreatedError as error:
            if "promised to pods that run" not in str(error):
                raise
        await asyncio.sleep(0.005)


async def test_a_pod_that_is_older_than_its_runtime_gives_its_share_back(tmp_path: Path) -> None:
    """The runtime does not tell of its end; whoever comes next finds that it is gone."""
    async with node_world(tmp_path) as world:
        await world.start_agent()
        pod = await outlived(world, "first")
        await world.runtime.stop_pod(pod)
        world.api.remove("pods", "first")
        await fits(world, "second")


async def test_one_that_still_runs_holds_what_it_has_though_it_was_deleted(tmp_path: Path) -> None:
    """Its node may be slower than who deletes it with force."""
    async with node_world(tmp_path) as world:
        await world.start_agent()
        pod = await outlived(world, "first")
        world.api.remove("pods", "first")
        world.add_pod("later")
        await world.create(world.sandbox("later"))  # the watch has told of both
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(world.bound("second", world.record("uid-second", mib=30_000)))
        await world.runtime.stop_pod(pod)
        await fits(world, "second")


async def test_a_holder_of_which_no_api_server_tells_is_missed_at_the_second_look(
    tmp_path: Path,
) -> None:
    """Deleted while no agent ran; and its runtime does not say when it ends."""
    async with node_world(tmp_path) as world:
        world.add_pod("first", {"weft.dev/gpu-memory": "30000"}, uid=str(uuid.uuid4()))
        pod = world.bound("first", world.record(world.uids["first"], mib=30_000))
        await world.start_agent()
        await world.create(pod)
        await world.kill_agent()
        world.api.remove("pods", "first")
        await world.runtime.stop()
        await world.runtime.start()
        await world.start_agent(look_s=0.01)
        second = world.bound("second", world.record("uid-second", mib=30_000))
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(second)
        await world.runtime.stop_pod(pod)
        await fits(world, "second")


async def test_the_end_of_an_older_sandbox_frees_nothing(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        await world.start_agent()
        older = world.bound("a", world.record("uid-a", mib=30_000))
        newer = nri.PodSandbox()
        newer.CopyFrom(older)
        newer.id = "sandbox-newer"
        await world.create(older)
        await world.create(newer)
        await world.runtime.stop_pod(older)
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(world.bound("b", world.record("uid-b", mib=30_000)))
        await world.runtime.stop_pod(newer)
        await world.create(world.bound("b", world.record("uid-b", mib=30_000)))


async def test_a_static_pod_is_known_by_its_hash(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        own = "0123456789abcdef0123456789abcdef"
        static = {"kubernetes.io/config.hash": own}
        world.add_pod("mirror", None, {**static, "kubernetes.io/config.mirror": own})
        world.uids["mirror"] = own
        await world.start_agent()
        started = await world.create(world.sandbox("mirror", static), env=(f"{VISIBLE}=all",))
        assert started.env == {VISIBLE: "void"}


async def test_an_annotation_makes_no_pod_a_static_one(tmp_path: Path) -> None:
    """Nor another pod: what anybody may write says nothing of who a pod is."""
    async with node_world(tmp_path) as world:
        await world.start_agent()
        victim = recorded(world, "victim")
        await world.create(victim)
        uid = world.uids["victim"]
        for number, key in enumerate(("config.hash", "config.mirror")):
            says = {f"kubernetes.io/{key}": uid}
            world.add_pod(f"p{number}", None, says)
            started = await world.create(world.sandbox(f"p{number}", says), env=(f"{VISIBLE}=all",))
            assert started.env == {VISIBLE: "void"}
            world.api.update("pods", f"p{number}", {"status": {"phase": "Succeeded"}})
            world.api.remove("pods", f"p{number}")
        world.add_pod("last")
        await world.create(world.sandbox("last"))  # the watch has told of them all
        whole = world.bound("whole", world.record("uid-whole", mib=40_000))
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(whole)


async def test_what_runs_is_judged_once_the_nodes_gpus_are_known(tmp_path: Path) -> None:
    """The pods are known before: what an original's marks mean on this node is not yet."""
    async with node_world(tmp_path) as world:
        for name in ("bad", "good"):
            world.add_pod(name, {"aliyun.com/gpu-mem": "3"}, MARKS)
        await world.create(world.sandbox("bad"), env=(f"{VISIBLE}=all",))
        await world.create(world.sandbox("good"), env=(f"{VISIBLE}=1",))
        await world.start_agent()
        world.add_pod("plain")
        await world.create(world.sandbox("plain"))  # the watch has told of them all
        world.api.update("nodes", NODE, {"status": {"allocatable": GIB, "capacity": GIB}})
        await going(world, "bad")
        assert not is_going(world, "good")
        whole = world.bound("whole", world.record("uid-whole", gpu=1, mib=40_000))
        with pytest.raises(NotCreatedError, match="promised to pods that run"):
            await world.create(whole)


@pytest.mark.parametrize("bare_too", [False, True])
async def test_a_bare_pod_without_its_share_is_evicted_only_where_configured(
    tmp_path: Path, bare_too: bool
) -> None:
    config = Configuration(agent=AgentSettings(evict_bare_pods=bare_too))
    async with node_world(tmp_path, has_validators=False) as world:
        world.add_pod("bad", {"weft.dev/gpu-memory": "1000"}, ownerReferences=[])
        pod = world.bound("bad", world.record(world.uids["bad"]))
        del pod.annotations["required-plugins.noderesource.dev/pod"]
        await world.create(pod)
        await world.start_agent(config)
        if bare_too:
            await going(world, "bad")
        else:
            told = await world.event("GPUShareEvictionBlocked")
            assert "runs without its share" in told
            assert "agent.evictBarePods" in told
            assert not is_going(world, "bad")


ALL = (f"{VISIBLE}=all",)
WHOLE = {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("limits", "env", "namespace", "seen"),
    [
        ({}, ALL, "default", True),
        ({}, (f"{VISIBLE}=0",), "default", True),
        ({}, (f"{VISIBLE}=void",), "default", False),
        ({}, (), "default", False),
        ({}, ALL, "kube-system", False),
        ({"weft.dev/gpu-memory": "1000"}, ALL, "default", True),  # bound by nobody who places
        ({"aliyun.com/gpu-mem": "3"}, (f"{VISIBLE}=1",), "default", False),  # an original's agent
        (WHOLE, ALL, "default", True),
    ],
)
@pytest.mark.parametrize("strangers", ["report", "evict"])
async def test_strangers_that_started_without_an_agent_are_found_at_its_return(
    tmp_path: Path,
    strangers: Literal["report", "evict"],
    limits: dict[str, str],
    env: tuple[str, ...],
    namespace: str,
    seen: bool,
) -> None:
    config = Configuration(agent=AgentSettings(strangers=strangers))
    async with node_world(tmp_path) as world:
        world.api.update("nodes", NODE, {"status": {"allocatable": GIB, "capacity": GIB}})
        world.add_pod("one", limits, namespace=namespace)
        world.add_pod("last")
        await world.create(world.sandbox("one", namespace=namespace), env=env)
        await world.create(world.sandbox("last"), env=ALL)
        await world.start_agent(config)
        while {"one": seen, "last": True} != {
            name: any(
                event["reason"] == "GPUsWithoutShare" and event["regarding"]["name"] == name
                for event in world.api.store.all(world.api.kind("events"))
            )
            for name in ("one", "last")
        }:
            await asyncio.sleep(0.005)
        if strangers == "evict":
            await going(world, "last")
            while seen and "deletionTimestamp" not in pod_of(world, "one", namespace):
                await asyncio.sleep(0.005)
        else:
            assert "POST pods/eviction" not in world.api.requests
        assert seen or "deletionTimestamp" not in pod_of(world, "one", namespace)


async def test_all_that_started_without_an_agent_are_asked_to_go_at_once(tmp_path: Path) -> None:
    """Their kubelet is busy as soon as the first one goes; events of it wait meanwhile."""
    names = [f"p{number}" for number in range(60)]
    async with node_world(tmp_path, has_validators=False) as world:
        for name in names:
            world.add_pod(name)
            await world.create(world.sandbox(name), env=ALL)
        held = world.api.fault("delay", method="POST", path="/eviction", times=len(names))
        await world.start_agent(Configuration(agent=AgentSettings(strangers="evict")))
        async with asyncio.timeout(10):
            while held.hits < len(names):
                await asyncio.sleep(0.005)
        assert world.events_wait
        held.gate.set()
        for name in names:
            await going(world, name)
        while world.events_wait:
            await asyncio.sleep(0.005)
        assert "it started while no agent ran" in await world.event("GPUsWithoutShare")


def pod_of(world: NodeWorld, name: str, namespace: str) -> dict[str, Any]:
    metadata: dict[str, Any] = world.api.get("pods", name, namespace)["metadata"]
    return metadata


async def test_pods_of_another_plugin_are_no_strangers(tmp_path: Path) -> None:
    """Where somebody serves what it asks for, an agent would have left it alone."""
    async with node_world(tmp_path) as world:
        world.api.update("nodes", NODE, {"status": {"allocatable": WHOLE, "capacity": WHOLE}})
        world.add_pod("foreign", WHOLE)
        world.add_pod("stranger")
        for name in ("foreign", "stranger"):
            await world.create(world.sandbox(name), env=ALL)
        await world.start_agent()
        assert "sees GPUs (all)" in await world.event("GPUsWithoutShare")
        told = list(world.api.store.all(world.api.kind("events")))
        assert [event["regarding"]["name"] for event in told] == ["stranger"]

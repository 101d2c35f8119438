"""Claims that wait for their first consumer are bound with their pod's node, and before the pod."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from live_world import Json, World, api, living, node, pod, until

from fakes.api_http import Request
from fakes.api_memory import client_of
from fakes.api_time import LoopClock
from fakes.volume_controllers import PROVISIONER, SELECTED_NODE, VolumeControllers
from weft.cluster.control.interface import Attempt, BindOutcome
from weft.core.engine import Unschedulable
from weft.core.engine.reasons import summarise
from weft.core.policies.fgd import Fgd
from weft.kube.bind import Refused

pytestmark = pytest.mark.virtual_time
HOSTNAME = "kubernetes.io/hostname"


def host(name: str) -> Json:
    body = node(name)
    body["metadata"]["labels"] = {HOSTNAME: name}
    return body


def storage_class(name: str = "fast", provisioner: str = "kubernetes.io/no-provisioner") -> Json:
    mode = "WaitForFirstConsumer"
    return {
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
    }


def claim(name: str, size: str = "1Gi", of_class: str = "fast", **meta: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "d", **meta},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": of_class,
            "resources": {"requests": {"storage": size}},
        },
        "status": {"phase": "Pending"},
    }


def volume(name: str, on: str = "", size: str = "1Gi", of_class: str = "fast") -> Json:
    spec: Json = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": of_class,
    }
    if on:
        one = {"key": HOSTNAME, "operator": "In", "values": [on]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [one]}]}}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}


def with_claims(name: str, *claims: str, memory_mib: int = 1_000, **spec: Any) -> Json:
    mounts = [
        {"name": f"v{index}", "persistentVolumeClaim": {"claimName": each}}
        for index, each in enumerate(claims)
    ]
    return pod(name, memory_mib, volumes=mounts, **spec)


class Story:
    """A cluster with volumes, what was told of its pods, and what they wait for."""

    def __init__(self, made: World) -> None:
        self.made, self.server = made, made.server
        self.reasons: dict[str, str] = {}
        self.failed: list[str] = []
        made.live.on_decision.append(self._hear)

    def _hear(self, told: Attempt | BindOutcome) -> None:
        command = told.command
        if isinstance(told, BindOutcome):
            if isinstance(told.outcome, Refused):
                self.failed.append(told.outcome.why)
        elif isinstance(command, Unschedulable):
            engine, request = self.made.live.engine, command.pod
            known = engine.assess(engine.profile_of(request), request)
            self.reasons[request.name] = str(summarise(engine.ledger.table, known, ()))

    def add(self, resource: str, *bodies: Json) -> None:
        for body in bodies:
            self.server.add(resource, body)

    def on(self, name: str) -> str:
        return str(self.server.get("pods", name, "d")["spec"].get("nodeName") or "")

    def volume_of(self, name: str) -> str:
        return str(
            self.server.get("persistentvolumeclaims", name, "d")["spec"].get("volumeName") or ""
        )

    def selected(self, name: str) -> str:
        meta = self.server.get("persistentvolumeclaims", name, "d")["metadata"]
        return str(meta.get("annotations", {}).get(SELECTED_NODE) or "")


@contextlib.asynccontextmanager
async def story(
    *nodes: str, binds: bool = True, classes: tuple[Json, ...] = (), **how: Any
) -> AsyncIterator[Story]:
    async with (
        api(*map(host, nodes or ("a", "b"))) as server,
        client_of(server, LoopClock()) as client,
    ):
        for each in classes or (storage_class(), storage_class("made", PROVISIONER)):
            server.add("storageclasses", each)
        made = World(server, client, Fgd(), **how)
        async with VolumeControllers(server, binds=binds), living(made):
            yield Story(made)


async def test_a_claim_gets_the_smallest_free_volume_where_the_pod_goes() -> None:
    async with story() as told:
        told.add("persistentvolumes", volume("large", "b", "9Gi"), volume("small", "b", "2Gi"))
        told.add("persistentvolumes", volume("tiny", "a", "1Mi"))
        told.add("persistentvolumeclaims", claim("data"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: told.on("web"))
        assert told.on("web") == "b"
        assert told.volume_of("data") == "small"
        marks = told.server.get("persistentvolumes", "small")["metadata"]["annotations"]
        assert marks["pv.kubernetes.io/bound-by-controller"] == "yes"
        assert not told.selected("data")


async def test_the_pod_is_bound_only_once_its_claim_is() -> None:
    async with story(binds=False) as told:
        order: list[str] = []

        def hear(request: Request) -> None:
            if request.method in ("PATCH", "POST") and "/binding" in request.path:
                order.append("pod")

        told.server.on_request = hear
        told.add("persistentvolumes", volume("disk", "b"))
        told.add("persistentvolumeclaims", claim("data"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: told.server.get("persistentvolumes", "disk")["spec"].get("claimRef"))
        told.add("pods", pod("other", 1_000))
        await until(lambda: told.on("other"))
        assert len(order) == 1, "another pod is not kept waiting, and this one waits"
        async with VolumeControllers(told.server):
            await until(lambda: told.on("web"))


async def test_two_pods_never_get_one_volume() -> None:
    async with story("a") as told:
        told.add("persistentvolumes", volume("one"), volume("two"))
        for name in "xyz":
            told.add("persistentvolumeclaims", claim(name))
            told.add("pods", with_claims(name, name))
        await until(lambda: sum(bool(told.on(name)) for name in "xyz") == 2)
        await until(lambda: len(told.reasons) == 1)
        (last,) = told.reasons
        assert {told.volume_of(name) for name in "xyz"} == {"one", "two", ""}
        assert f"PersistentVolumeClaim {last} asks for 1Gi of class fast" in told.reasons[last]
        told.add("persistentvolumes", volume("three"))
        await until(lambda: told.on(last))


async def test_several_claims_of_a_pod_get_several_volumes() -> None:
    async with story() as told:
        told.add("persistentvolumes", volume("a1", "a", "5Gi"), volume("b1", "b", "5Gi"))
        told.add("persistentvolumes", volume("b2", "b", "2Gi"))
        told.add("persistentvolumeclaims", claim("large", "4Gi"), claim("small", "1Gi"))
        told.add("pods", with_claims("web", "large", "small"))
        await until(lambda: told.on("web"))
        assert told.on("web") == "b"
        assert (told.volume_of("large"), told.volume_of("small")) == ("b1", "b2")


async def test_a_volume_is_made_where_the_pod_goes() -> None:
    async with story() as told:
        told.add("persistentvolumeclaims", claim("data", of_class="made"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: told.on("web"))
        assert told.selected("data") == told.on("web")
        assert told.volume_of("data").startswith("made-")


async def test_pods_of_one_claim_go_where_its_volume_is_made() -> None:
    async with story() as told:
        told.add("persistentvolumeclaims", claim("data", of_class="made"))
        for name in ("p", "q"):
            told.add("pods", with_claims(name, "data", memory_mib=9_000))
        await until(lambda: told.on("p") and told.on("q"))
        assert told.on("p") == told.on("q") == told.selected("data")


async def test_who_waits_for_the_controller_is_woken_once_the_claim_is_bound() -> None:
    by_itself = storage_class("at-once") | {"volumeBindingMode": "Immediate"}
    async with story(classes=(by_itself,), binds=True) as told:
        told.add("persistentvolumeclaims", claim("data", of_class="at-once"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: "web" in told.reasons)
        assert "PersistentVolumeClaim data is not bound to a volume yet" in told.reasons["web"]
        uid = told.server.get("persistentvolumeclaims", "data", "d")["metadata"]["uid"]
        taken = volume("disk", "b", of_class="at-once")
        taken["spec"]["claimRef"] = {"namespace": "d", "name": "data", "uid": uid}
        told.add("persistentvolumes", taken)
        await until(lambda: told.on("web"))
        assert told.on("web") == "b"


async def test_a_provisioner_that_never_answers_frees_the_place_after_the_time_out() -> None:
    nobody = storage_class("made", "nobody.example.com")
    async with story(classes=(nobody,), volume_timeout_s=0.2) as told:
        told.add("persistentvolumeclaims", claim("data", of_class="made"))
        told.add("pods", with_claims("web", "data", memory_mib=9_000))
        await until(lambda: told.failed)
        on = told.selected("data")
        assert told.failed[0] == (
            f"no volume was made on {on} for PersistentVolumeClaim data within 0.2 s"
        )
        assert not told.on("web")
        # What it held is free meanwhile: the cards of both nodes are.
        for name in ("p", "q", "r", "s"):
            told.add("pods", pod(name, 16_000))
        await until(lambda: all(told.on(name) for name in ("p", "q", "r", "s")))
        assert told.selected("data") == on, "the claim is finished on that node, or nowhere"


async def test_a_volume_that_is_deleted_while_chosen_is_replaced() -> None:
    async with story("a", binds=False) as told:
        told.add("persistentvolumes", volume("first", "a", "1Gi"), volume("second", "a", "2Gi"))
        told.add("persistentvolumeclaims", claim("data"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: told.server.get("persistentvolumes", "first")["spec"].get("claimRef"))
        told.server.remove("persistentvolumes", "first")
        async with VolumeControllers(told.server):
            await until(lambda: told.on("web"))
        assert told.volume_of("data") == "second"
        assert "volume first is gone" in told.failed[0]


async def test_another_scheduler_that_takes_the_volume_first_has_it() -> None:
    """The version of what was seen is in every write."""
    async with story("a") as told:
        told.add("persistentvolumes", volume("disk", "a"))
        told.add("persistentvolumeclaims", claim("mine"), claim("theirs"))

        def hear(request: Request) -> None:
            if request.method == "PATCH" and "persistentvolumes/disk" in request.path:
                told.server.on_request = None
                ref = {"namespace": "d", "name": "theirs", "uid": "u"}
                told.server.update("persistentvolumes", "disk", {"spec": {"claimRef": ref}})

        told.server.on_request = hear
        told.add("pods", with_claims("web", "mine"))
        await until(lambda: told.failed)
        found = told.server.get("persistentvolumes", "disk")["spec"]["claimRef"]
        assert found["name"] == "theirs"
        await until(lambda: "web" in told.reasons)
        assert not told.on("web")


async def test_a_pod_that_goes_while_its_volume_is_made_leaves_its_share() -> None:
    nobody = storage_class("made", "nobody.example.com")
    async with story("a", classes=(nobody,)) as told:
        told.add("persistentvolumeclaims", claim("data", of_class="made"))
        told.add("pods", with_claims("web", "data", memory_mib=16_000))
        await until(lambda: told.selected("data"))
        told.server.remove("pods", "web", "d")
        for name in ("p", "q"):
            told.add("pods", pod(name, 16_000))
        await until(lambda: told.on("p") and told.on("q"))
        await until(lambda: not told.made.live.binding)


async def test_stopping_does_not_wait_for_volumes() -> None:
    nobody = storage_class("made", "nobody.example.com")
    async with story("a", classes=(nobody,)) as told:
        told.add("persistentvolumeclaims", claim("data", of_class="made"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: told.selected("data"))
        await asyncio.wait_for(told.made.live.stop(), 5)


async def test_prepared_volumes_are_set_apart_before_others_are_made() -> None:
    """A scheduler that is killed in between leaves a claim with no node: where the volume is, the
    other can be made. The other way round the next one may find no volume left on its node."""
    async with story("a", binds=False) as told:
        order: list[str] = []

        def hear(request: Request) -> None:
            if request.method == "PATCH" and "/persistentvolume" in request.path:
                order.append(request.path.rpartition("/")[2])

        told.server.on_request = hear
        told.add("persistentvolumes", volume("disk", "a"))
        told.add("persistentvolumeclaims", claim("first", of_class="made"), claim("second"))
        told.add("pods", with_claims("web", "first", "second"))
        await until(lambda: len(order) == 2)
        assert order == ["disk", "first"]


async def test_the_next_process_goes_on_where_this_one_ended() -> None:
    """A volume that is set apart, and a claim that has its node, say all there is to know."""
    async with story() as told:
        there = claim("there", of_class="made", annotations={SELECTED_NODE: "b"})
        told.add("persistentvolumeclaims", claim("data"), there)
        uid = told.server.get("persistentvolumeclaims", "data", "d")["metadata"]["uid"]
        mine = volume("mine", "b", "9Gi")
        mine["spec"]["claimRef"] = {"namespace": "d", "name": "data", "uid": uid}
        told.add("persistentvolumes", volume("smaller", "a"), mine)
        told.add("pods", with_claims("web", "data"), with_claims("api", "there"))
        await until(lambda: told.on("web") and told.on("api"))
        assert (told.on("web"), told.volume_of("data")) == ("b", "mine")
        assert told.on("api") == "b"
        spec = told.server.get("persistentvolumes", "smaller")["spec"]
        assert "claimRef" not in spec


async def test_a_node_with_all_the_volumes_it_can_have_takes_no_more() -> None:
    async with story("a") as told:
        drivers = [{"name": PROVISIONER, "allocatable": {"count": 1}, "nodeID": "a"}]
        told.add("csinodes", {"metadata": {"name": "a"}, "spec": {"drivers": drivers}})
        for name in ("x", "y"):
            told.add("persistentvolumeclaims", claim(name, of_class="made"))
            told.add("pods", with_claims(name, name))
        await until(lambda: told.reasons)
        (last,) = told.reasons
        first = "y" if last == "x" else "x"
        await until(lambda: told.on(first))
        said = f"node has 1 volumes of {PROVISIONER} attached, of 1 that it can have"
        assert said in told.reasons[last]
        told.server.update("pods", first, {"status": {"phase": "Succeeded"}}, "d")
        await until(lambda: told.on(last))


async def test_a_class_and_capacity_that_come_wake_who_waits_for_them() -> None:
    async with story("a", classes=(storage_class("other"),)) as told:
        told.add(
            "csidrivers", {"metadata": {"name": PROVISIONER}, "spec": {"storageCapacity": True}}
        )
        told.add("persistentvolumeclaims", claim("data", "4Gi", "made"))
        told.add("pods", with_claims("web", "data"))
        await until(lambda: "web" in told.reasons)
        assert "its StorageClass made does not exist" in told.reasons["web"]
        told.add("storageclasses", storage_class("made", PROVISIONER))
        await until(lambda: "capacity left there: none" in told.reasons["web"])
        left = {
            "metadata": {"name": "left", "namespace": "csi"},
            "storageClassName": "made",
            "nodeTopology": {"matchLabels": {HOSTNAME: "a"}},
            "capacity": "3Gi",
        }
        told.add("csistoragecapacities", left)
        await until(lambda: "capacity left there: 3Gi at most" in told.reasons["web"])
        told.server.update("csistoragecapacities", "left", {"capacity": "5Gi"}, "csi")
        await until(lambda: told.on("web"))


async def test_disks_written_in_pods_keep_each_other_off_unless_all_only_read() -> None:
    def disk(name: str, *, only_reads: bool) -> Json:
        gce = {"pdName": "disk", "readOnly": only_reads}
        return pod(name, 1_000, volumes=[{"name": "v", "gcePersistentDisk": gce}])  # type: ignore[arg-type]

    async with story("a") as told:
        told.add("pods", disk("r1", only_reads=True), disk("r2", only_reads=True))
        await until(lambda: told.on("r1") and told.on("r2"))
        told.add("pods", disk("w", only_reads=False))
        await until(lambda: "w" in told.reasons)
        assert "a pod there uses gcePersistentDisk disk" in told.reasons["w"]
        for name in ("r1", "r2"):
            told.server.remove("pods", name, "d")
        await until(lambda: told.on("w"))

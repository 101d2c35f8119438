"""Attribution under the calls of a real kubelet, as `tests/node/test_record_kubelet.py` recorded
them: pods that ask alike, init containers and sidecars, restarts of containers and of itself."""

import base64
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attribution_world import KnownPods, a_record, grant_of
from long_form import few_or_many

from fakes.api_time import run
from weft.model import PodManifest
from weft.model.delivery import DeliveryRecord
from weft.node.agent.container_grant import ContainerGrant
from weft.node.agent.node_pods import NodePod
from weft.node.agent.pod_events import PodName
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin import pod_resources_pb2 as resources
from weft.node.device_plugin.attribution import (
    Attribution,
    AttributionWorld,
    NotAttributedError,
    answer_of,
)
from weft.node.device_plugin.cdi_files import CdiFiles, specification
from weft.node.device_plugin.device_plugins import ResourceService
from weft.node.device_plugin.kubelet_record import FILE, KubeletRecord

RECORDED = Path(__file__).parents[1] / "golden" / "kubelet_device_plugin_calls.json"
PLACEMENTS = few_or_many(2, 300)


class Replay:
    """The recorded calls, with the pods' GPUs as chance has them. `wrong` are containers that were
    let start with what is not their record's."""

    def __init__(self, folder: Path, seed: int, *, cdi: bool) -> None:
        told = json.loads(RECORDED.read_text())
        self.calls, self.holders = told["calls"], told["holders"]
        self._entries, self._numbers = told["entries"], told["records"]
        self._folder, rng = folder, random.Random(seed)
        self.records: dict[str, DeliveryRecord] = {}
        known = KnownPods()
        for one in told["pods"]:
            pod = msgspec.convert(one, PodManifest, strict=False)
            uid = pod.metadata.uid
            self.records[uid] = a_record(pod, rng)
            known.pods[uid] = NodePod(uid, pod, "share", self.records[uid])
        self._cdi = CdiFiles(folder / "cdi") if cdi else None
        self._in_hand: set[tuple[str, str]] = set()
        self._answers: dict[str, plugin.ContainerAllocateResponse] = {}
        self.wrong: list[str] = []
        self.evicted: list[str] = []
        self.happened: Counter[str] = Counter()
        self.agent = Attribution(
            AttributionWorld(
                known,
                KubeletRecord(folder),
                self,
                grant_of,
                objection=lambda pod, others: "",
                on_refused=lambda pod, why: self.evicted.append(why),
                on_wrong=self._evict,
                cdi=self._cdi,
            )
        )

    def _evict(self, pod: PodName, why: str) -> None:
        self.evicted.append(why)

    async def pod(self, namespace: str, name: str) -> resources.PodResources | None:
        """As the kubelet's pod resources said at that moment."""
        return resources.PodResources() if (namespace, name) in self._in_hand else None

    async def names(self) -> set[tuple[str, str]]:
        """Names of all that it had in hand."""
        return self._in_hand

    async def tell(self) -> None:
        for call in self.calls:
            self._write(self._numbers[call["record"]])
            service = ResourceService(call["resource"], self.agent, lambda *_: None)
            if call["call"] == "preferred":
                await service.preferred(preferred_request(call))
            elif call["call"] == "allocate":
                self._in_hand = {(namespace, name) for namespace, name in call["in_hand"]}
                asked = plugin.ContainerAllocateRequest(devices_ids=call["ids"])
                answer = await service.allocate(plugin.AllocateRequest(container_requests=[asked]))
                (self._answers[call["serial"]],) = answer.container_responses
            elif call["call"] == "pre_start":
                await self._start(service, call)
            self.happened[call["call"]] += 1

    async def _start(self, service: ResourceService, call: dict[str, Any]) -> None:
        request = plugin.PreStartContainerRequest(devices_ids=call["ids"])
        try:
            await service.pre_start(request)
        except NotAttributedError:
            self.happened["kept back"] += 1
            return
        for number in self._numbers[call["record"]]:
            entry = self._entries[number]
            ids = {name for names in entry["DeviceIDs"].values() for name in names}
            if entry["ResourceName"] == call["resource"] and ids == set(call["ids"]):
                await self._look_at(serial_of(entry))

    async def _look_at(self, serial: str) -> None:
        """Checks that the Allocate gave what the record says of the container which found the
        serial in itself when it ran."""
        uid, container = self.holders[serial]
        own, given = await grant_of(self.records[uid], container), self._answers[serial]
        if not self._gives(given, own):
            self.wrong.append(f"{uid}/{container}: {given} instead of {own}")

    def _gives(self, given: plugin.ContainerAllocateResponse, own: ContainerGrant) -> bool:
        if self._cdi is None:
            return given == answer_of(own)
        (device,) = given.cdi_devices
        number = device.name.partition("=")[2]
        (path,) = (self._folder / "cdi").glob(f"*{number}*")
        return path.read_bytes() == specification(device.name, own)

    def _write(self, numbers: list[int]) -> None:
        """The kubelet's record, with the answers of this run in the recorded ones' place."""
        entries = []
        for entry in (self._entries[number] for number in numbers):
            answer = self._answers[serial_of(entry)].SerializeToString()
            entries.append({**entry, "AllocResp": base64.b64encode(answer).decode()})
        beside = self._folder / "beside"
        beside.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))
        beside.replace(self._folder / FILE)


def serial_of(entry: dict[str, Any]) -> str:
    """The number of the Allocate by which an entry came."""
    answer = plugin.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
    (serial,) = answer.envs.values()
    return str(serial)


def preferred_request(call: dict[str, Any]) -> plugin.PreferredAllocationRequest:
    asked = plugin.ContainerPreferredAllocationRequest(
        available_deviceIDs=call["available"],
        must_include_deviceIDs=call["must"],
        allocation_size=call["size"],
    )
    return plugin.PreferredAllocationRequest(container_requests=[asked])


@pytest.mark.parametrize("cdi", [True, False], ids=["cdi", "environment"])
def test_a_real_kubelets_calls_start_every_container_with_its_own(cdi: bool) -> None:
    for seed in range(PLACEMENTS):
        with tempfile.TemporaryDirectory() as folder:
            replay = Replay(Path(folder), seed, cdi=cdi)
            run(replay.tell())
        assert replay.wrong == []
        assert replay.evicted == []
        assert replay.happened["kept back"] == 0
        assert min(replay.happened[c] for c in ("allocate", "preferred", "pre_start")) > 20
        assert replay.happened["list"] == 6  # three resources, and a restart of the kubelet

"""Findings of the agent are written on its node, and read back as exactly that."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from test_fake_devices import A100, written

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.dialects.alnair import NODE_COUNT, NODE_UNITS, NODE_UUIDS
from weft.dialects.inventory import inventory
from weft.kube.client import ApiClient
from weft.kube.structs import KubeNode
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer
from weft.model.annotations import AGENT, GPU_LINKS, INVENTORY
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.discovery import Discovery, marks_of
from weft.node.devices.fake import FakeReader

OFFER = AgentOffer("1.0", "by-name", ("none", "time-slicing", "mps"), fail_closed=True)


def kube_node(annotations: Any, labels: Any) -> KubeNode:
    metadata = {"name": "n1", "annotations": annotations, "labels": labels}
    return msgspec.convert({"metadata": metadata, "status": {}}, KubeNode)


class Scene:
    """An API server with one node, a fake machine, and the part that is looked at."""

    def __init__(self, server: FakeApiServer, client: ApiClient, folder: Path) -> None:
        self.server, self.folder, self.offer = server, folder, OFFER
        self.watch = DeviceWatch(FakeReader(folder / "fake.yaml", "n1"), period_s=0.01)
        self.discovery = Discovery(client, "n1", self.watch, lambda: self.offer)

    def metadata(self) -> dict[str, Any]:
        return dict(self.server.get("nodes", "n1")["metadata"])


@asynccontextmanager
async def scene(folder: Path, text: str, **metadata: Any) -> AsyncIterator[Scene]:
    written(folder, text)
    async with FakeApiServer() as server:
        server.add("nodes", {"metadata": {"name": "n1", **metadata}, "spec": {}, "status": {}})
        async with client_of(server) as client:
            yield Scene(server, client, folder)


SIZES = st.integers(1, 200_000)


@st.composite
def machines(draw: st.DrawFn) -> str:
    """A fake machine: cards that differ, instances, broken and unplugged ones."""
    cards = []
    for _ in range(draw(st.integers(0, 5))):
        memory = draw(SIZES)
        card: dict[str, Any] = {
            "model": draw(st.text("abcXYZ019 .-_/äß日", max_size=80)),
            "memoryMiB": memory,
            "reservedMiB": draw(st.integers(0, memory - 1)),
            "count": draw(st.integers(1, 3)),
            "minor": draw(st.one_of(st.none(), st.integers(0, 99))),
            "xids": draw(st.lists(st.sampled_from([31, 43, 79, 94]), max_size=2)),
            "unplugged": draw(st.booleans()),
        }
        if draw(st.booleans()):
            card["mig"] = [{"profile": "1g.5gb", "memoryMiB": 1, "count": min(7, memory)}]
        cards.append(card)
    return json.dumps(
        {"apiVersion": "weft.dev/v1", "kind": "FakeDevices", "gpus": cards}, ensure_ascii=False
    )


@given(text=machines())
@settings(max_examples=few_or_many(20, 400), deadline=None)
def test_what_is_found_is_read_back_exactly(text: str) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "fake.yaml").write_text(text)
        devices = FakeReader(Path(folder) / "fake.yaml", "n1").devices()
    gpus = tuple(device.gpu for device in devices)
    marks = marks_of(gpus, OFFER)
    node, warnings = inventory(kube_node(marks.annotations, marks.labels))
    assert node.gpus == gpus
    assert (node.isolation, node.fail_closed, node.delivers) == (OFFER.isolation, True, None)
    assert warnings == ()
    for name, value in marks.labels.items():
        prefix, _, rest = name.partition("/")
        assert prefix == "weft.dev"
        assert 0 < len(rest) <= 63
        assert rest[-1].isalnum()
        assert value.isdecimal()


def test_what_the_driver_keeps_is_no_disagreement_with_feature_discovery() -> None:
    """Its label says all of a card's memory, Weft's annotation what can be used."""
    marks = marks_of([Gpu(0, 80_900, "NVIDIA-H100-80GB-HBM3", "GPU-1")], OFFER)
    labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "81559"}
    node, warnings = inventory(kube_node(marks.annotations, labels))
    assert (node.gpus[0].memory_mib, warnings) == (80_900, ())
    labels["nvidia.com/gpu.memory"] = "97000"
    node, warnings = inventory(kube_node(marks.annotations, labels))
    assert node.gpus[0].memory_mib == 80_900
    assert "the smaller size counts" in warnings[0]
    labels["nvidia.com/gpu.memory"] = "40000"
    node, warnings = inventory(kube_node(marks.annotations, labels))
    assert node.gpus[0].memory_mib == 40_000
    assert len(warnings) == 1


def test_alnairs_annotations_are_as_its_own_plugin_writes_them() -> None:
    gpus = [Gpu(0, 16_160, "T4", "GPU-a"), Gpu(1, 24_064, "A10", "GPU-b"), Gpu(9, 5, parent=1)]
    annotations = marks_of(gpus, None).annotations
    assert annotations[NODE_COUNT] == "2"
    assert annotations[NODE_UUIDS] == "GPU-a,GPU-b"
    assert [annotations[name] for name in NODE_UNITS] == ["16,24", "16,24"]
    assert AGENT not in annotations


def test_labels_count_what_can_be_had_of_each_model() -> None:
    gpus = [Gpu(0, 9, "T4"), Gpu(1, 9, "T4"), Gpu(2, 9, "A100"), Gpu(7, 1, "A100-MIG-1g", parent=2)]
    assert marks_of(gpus, None).labels == {
        "weft.dev/gpu-model.T4": "2",
        "weft.dev/gpu-model.A100-MIG-1g": "1",
    }


async def test_nothing_is_written_that_stands_there_already(tmp_path: Path) -> None:
    async with scene(tmp_path, f"gpus: [{A100}, count: 2}}]") as s:
        await s.watch.read()
        assert await s.discovery.write()
        before = s.metadata()
        assert not await s.discovery.write()
        assert s.metadata()["resourceVersion"] == before["resourceVersion"]
        assert s.server.requests["PATCH nodes/status"] == 1
        s.offer = AgentOffer("1.1", "by-name")
        assert await s.discovery.write()
        assert "1.1" in s.metadata()["annotations"][AGENT]


async def test_what_others_wrote_stays_and_what_they_spoilt_is_put_right(tmp_path: Path) -> None:
    own = {"annotations": {"mine": "1", INVENTORY: "{"}, "labels": {"weft.dev/gpu-model.old": "1"}}
    async with scene(tmp_path, f"gpus: [{A100}}}]", **own) as s:
        await s.watch.read()
        await s.discovery.write()
        found = s.metadata()
        assert found["annotations"]["mine"] == "1"
        assert found["labels"] == {"weft.dev/gpu-model.NVIDIA-A100-SXM4-40GB": "1"}
        assert "GPU-" in found["annotations"][INVENTORY]


LINKED = f"gpus: [{A100}, count: 2, numaNode: 1}}]\nlinks: ['X NV12', 'NV12 X']"


async def test_links_are_written_and_read_back(tmp_path: Path) -> None:
    async with scene(tmp_path, LINKED) as s:
        await s.watch.read()
        await s.discovery.write()
        found = s.metadata()
        read = inventory(kube_node(found["annotations"], found["labels"]))[0].links
        assert read == s.watch.links
        assert read is not None
        assert (read.paths, read.nvlink_generation) == (("X NV12", "NV12 X"), 3)


async def test_links_that_the_agent_cannot_read_stay_as_somebody_wrote_them(tmp_path: Path) -> None:
    own = {"annotations": {GPU_LINKS: '{"indexes": [0, 1], "paths": ["X PIX", "PIX X"]}'}}
    async with scene(tmp_path, f"gpus: [{A100}, count: 2}}]", **own) as s:
        await s.watch.read()
        await s.discovery.write()
        assert s.metadata()["annotations"][GPU_LINKS] == own["annotations"][GPU_LINKS]


async def test_a_driver_that_never_answered_leaves_the_last_inventory_out_of_service(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, f"gpus: [{A100}}}]") as s:
        await s.watch.read()
        await s.discovery.write()
        again = DeviceWatch(FakeReader(tmp_path / "fake.yaml", "n1"))
        (tmp_path / "fake.yaml").unlink()
        await again.read()
        s.discovery._watch = again
        await s.discovery.write()
        (gpu,) = json.loads(s.metadata()["annotations"][INVENTORY])["gpus"]
        assert (gpu["in_service"], gpu["memory_mib"]) == (False, 40_460)


async def test_a_change_is_written_at_once_and_a_server_that_is_away_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.node.agent.discovery.RETRY_S", 0.01)
    async with scene(tmp_path, f"gpus: [{A100}}}]") as s:
        s.server.fault("status", method="PATCH", path="nodes", code=503, times=5)
        tasks = [asyncio.create_task(part.run()) for part in (s.watch, s.discovery)]

        async def until(text: str) -> None:
            async with asyncio.timeout(60):
                while text not in str(s.metadata().get("annotations")):
                    await asyncio.sleep(0.005)

        await until("GPU-")
        assert s.discovery.failures > 0
        written(tmp_path, f"gpus: [{A100}, xids: [79]}}]")
        await until('"in_service":false')
        s.offer = AgentOffer("9.9", "by-name")
        s.discovery.nudge()
        await until("9.9")
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

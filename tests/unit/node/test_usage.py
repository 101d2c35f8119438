"""Use of each GPU by container, as the agent measures it and Weft's own telemetry reads it."""

import asyncio
import re
from pathlib import Path

import numpy as np
from agent_world import node_world
from usage_world import SERVE, TRAIN, Machine, record

from weft.host.agent import AgentPages
from weft.model import Node
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES
from weft.node.agent.usage import StrayUse
from weft.telemetry.meaning.join import Devices, SeriesJoiner
from weft.telemetry.sources.exporters import of_node, parse

DOCS = Path(__file__).parents[3] / "docs" / "reference"
CARD = "{model: NVIDIA-H100-80GB-HBM3, memoryMiB: 81559, reservedMiB: 600"
BUSY = (
    "use: [{seconds: 60, values: {gpu_util_ratio: 0.75, sm_active_ratio: 0.5, "
    "power_w: 410, dram_active_ratio: 0.25, memory_used_mib: 9000, memory_free_mib: 71959}}]"
)
WANTED = frozenset(ALIASES)


async def test_what_each_container_uses_of_each_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"[{CARD}, count: 2}}]")
    machine.pods.add(TRAIN, "train", record(TRAIN, gpu0=5000, gpu1=5000), "main", "sidecar")
    machine.of_pod(0, 3000, TRAIN, "main")
    machine.of_pod(0, 1000, TRAIN, "main")
    machine.of_pod(1, 500, TRAIN, "sidecar")
    machine.of_pod(1, 700, SERVE, "web")
    machine.process(1, 30, "/system.slice/mps.service", "nvidia-cuda-mps")
    machine.process(1, 40, "/system.slice/mps.service", "nvidia-cuda-mps")
    await machine.read()
    found = machine.watch.latest
    assert found is not None
    assert [
        (u.gpu, u.pod.name if u.pod else None, u.container, u.memory_mib, u.processes)
        for u in found.containers
    ] == [
        (0, "train", "main", 4000, 2),
        (1, "train", "sidecar", 500, 1),
        (1, None, "", 700, 1),
    ]
    assert found.containers[0].sm_ratio == 0.4
    assert found.strays == (StrayUse(1, "nvidia-cuda-mps", 70, 2),)


async def test_telemetry_reads_the_agents_page_as_any_exporters(tmp_path: Path) -> None:
    mig = "mig: [{profile: 1g.10gb, memoryMiB: 9728}]"
    machine = Machine(tmp_path, f"[{CARD}, {BUSY}}}, {CARD}, {mig}}}]")
    machine.pods.add(TRAIN, "train", record(TRAIN, gpu0=9000), "main", "sidecar")
    machine.of_pod(0, 5000, TRAIN, "main")
    machine.of_pod(0, 1500, TRAIN, "sidecar")
    machine.of_pod(0, 900, SERVE, "web")  # not known yet: nobody's own value
    instance = (await machine.devices.ask(lambda reader: reader.devices()))[-1].gpu
    machine.of_pod(instance.index, 800, TRAIN, "main")
    await machine.read()
    page = AgentPages([machine.metrics], {}).page()

    gpus = tuple(device.gpu for device in machine.devices.devices)
    devices = Devices([Node("n1", gpus)])
    answer = of_node(parse(page, "n1", 1_000.0, WANTED, "the agent"), "n1", devices)
    joiner = SeriesJoiner(devices)
    values = {
        (joined.metric, devices.gpus[row][1]): value
        for joined in joiner.join(answer)
        for row, value in zip(joined.rows.tolist(), joined.values.tolist(), strict=True)
    }
    assert joiner.unjoined == {}
    assert values[Metric.MEMORY_USED_MIB, 0] == 9000
    assert values[Metric.MEMORY_FREE_MIB, 0] == 71_959
    assert values[Metric.MEMORY_RESERVED_MIB, 0] == 600
    assert values[Metric.GPU_UTIL_RATIO, 0] == 0.75
    assert values[Metric.SM_ACTIVE_RATIO, 0] == 0.5
    assert values[Metric.DRAM_ACTIVE_RATIO, 0] == 0.25
    assert values[Metric.POWER_W, 0] == 410
    assert values[Metric.MEMORY_USED_MIB, 1] == 0
    assert values[Metric.MEMORY_USED_MIB, instance.index] == 800

    def resident_of(row: int, namespace: str, pod: str) -> str:
        return TRAIN if (namespace, pod) == ("ml", "train") else ""

    own = {
        (sample.metric, devices.gpus[sample.row][1]): sample.value
        for sample in joiner.pods(answer, resident_of)
    }
    assert own[Metric.MEMORY_USED_MIB, 0] == 6500  # of both containers
    assert own[Metric.MEMORY_USED_MIB, instance.index] == 800
    np.testing.assert_allclose(own[Metric.GPU_UTIL_RATIO, 0], 0.65)


async def test_a_driver_that_hangs_leaves_no_old_numbers_on_the_page(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"[{CARD}}}]")
    await machine.read()
    pages = AgentPages([machine.metrics], {})
    assert b"DCGM_FI_DEV_FB_USED{" in pages.page()
    machine.now_s += 6
    assert b"DCGM_FI" not in pages.page()
    machine.file.unlink()
    await machine.watch.read()
    assert (machine.watch.readings, machine.watch.failures) == (1, 1)
    assert b'weft_agent_usage_readings_total{result="failed"} 1.0' in pages.page()


async def test_labels_are_dcgm_exporters(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"[{CARD}, minor: 3, uuid: GPU-x}}]")
    machine.pods.add(TRAIN, "train", None, "main")
    machine.of_pod(0, 10, TRAIN, "main")
    await machine.read()
    (card, own) = (
        line
        for line in AgentPages([machine.metrics], {}).page().decode().splitlines()
        if line.startswith("DCGM_FI_DEV_FB_USED{")
    )
    for line, of in ((card, ("", "", "")), (own, ("ml", "train", "main"))):
        assert line.endswith("} 10.0")
        assert dict(re.findall(r'(\w+)="([^"]*)"', line)) == {
            "gpu": "0",
            "UUID": "GPU-x",
            "pci_bus_id": "00000000:01:00.0",
            "device": "nvidia3",
            "modelName": "NVIDIA-H100-80GB-HBM3",
            "Hostname": "n1",
            "GPU_I_PROFILE": "",
            "GPU_I_ID": "",
            **dict(zip(("namespace", "pod", "container"), of, strict=True)),
        }


async def test_workload_queue_and_labels_of_pods_that_use_gpus_are_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"[{CARD}, count: 2}}]")
    told = {"workload": "ml/Job/train", "queue": "night", "team": "red", "tier": "a"}
    machine.pods.add(TRAIN, "train", record(TRAIN, gpu0=5000), "main", **told)
    machine.pods.add(SERVE, "serve", None, "web")
    machine.of_pod(0, 3000, TRAIN, "main")
    machine.of_pod(1, 500, TRAIN, "main")
    await machine.read()
    assert groups(machine) == {
        ("ml", "train", "ml/Job/train"): 1,
        ("ml", "train", "night"): 1,
        ("ml", "train", "team", "red"): 1,
    }
    machine.of_pod(1, 700, SERVE, "web")
    await machine.read()
    assert {
        ("ml", "serve", "ml/(no owner)"),
        ("ml", "serve", "ml"),
        ("ml", "serve", "team", "(no label)"),
    } <= groups(machine).keys()


async def test_a_pod_of_the_api_is_in_its_workload_and_its_teams_queue(tmp_path: Path) -> None:
    async with node_world(tmp_path) as world:
        world.add_pod("train", labels={"kueue.x-k8s.io/queue-name": "night"})
        world.add_pod("serve")
        await world.start_agent()
        while not ((train := world.watched("train")) and (serve := world.watched("serve"))):
            await asyncio.sleep(0.005)
    assert (train.queue, train.workload) == ("night", f"{train.namespace}/ReplicaSet/r")
    assert serve.queue == serve.namespace


def groups(machine: Machine) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in machine.metrics.collect()
        if family.name.startswith("weft_agent_pod_")
        for sample in family.samples
    }


async def test_every_metric_is_in_the_reference_and_the_other_way_round(tmp_path: Path) -> None:
    machine = Machine(tmp_path, f"[{CARD}}}]")
    machine.process(0, 10)
    await machine.read()
    told = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in machine.metrics.collect()
        if not family.name.startswith("DCGM_FI_")
    }
    page = (DOCS / "metrics.md").read_text().partition("\n## On the nodes\n")[2]
    listed = set(
        re.findall(r"^\| `(weft_agent_(?:usage|gpu|stray|over|pod)\w+)`", page, re.MULTILINE)
    )
    assert told == listed

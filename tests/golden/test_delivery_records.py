"""The delivery record of one pod of each system: environment as the original's contract says it.

Worked out by hand from the contracts: cards of 16,160 MiB are 15 units of gpushare's and 16 of
Alnair's; container `i` is an init container, `s` a sidecar.
"""

from typing import Any

import msgspec
import pytest

from weft.dialects.delivery import record_of
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod, write
from weft.dialects.shares import placement_of, share_on
from weft.model import Gpu, Node, PodManifest, PodRequest, Share
from weft.model.delivery import DeliveryRecord, decode_delivery, encode_delivery

CARD_MIB = 16_160
NODE = Node("n", tuple(Gpu(i, CARD_MIB, uuid=f"GPU-{i}") for i in range(4)), unit_mib=1024)
SETTINGS = DialectSettings(gpushare_unit="node", interference_table=True)
Limits = dict[str, int]


def box(name: str, limits: Limits, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits}, **more}


def parsed(
    main: Limits,
    *,
    init: Limits | None = None,
    sidecar: Limits | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    name: str = "c",
) -> PodRequest:
    inits = [box("i", init)] if init else []
    inits += [box("s", sidecar, restartPolicy="Always")] if sidecar else []
    meta = {"name": "p", "uid": "u", "labels": labels or {}, "annotations": annotations or {}}
    spec = {"containers": [box(name, main), box("log", {})], "initContainers": inits}
    return parse_pod(msgspec.convert({"metadata": meta, "spec": spec}, PodManifest), SETTINGS)


def recorded(request: PodRequest, *gpus: int) -> DeliveryRecord:
    """The record with the GPU requests on these GPUs, one after the other."""
    shares: list[Share] = []
    rest = list(gpus)
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        memory = gpu_request.memory.on_node(NODE.unit_mib)
        here = msgspec.structs.replace(gpu_request, memory=memory)
        shares += [share_on(index, here, NODE.gpus[rest.pop(0)]) for _ in range(here.count)]
    assert not rest
    placement = placement_of(request, NODE, shares)
    record = record_of(request, placement, NODE, write(request, placement, NODE, 9).env)
    assert record is not None
    assert decode_delivery(encode_delivery(record)) == record
    assert (record.pod, record.node, record.dialect) == ("u", "n", request.dialect)
    return record


def got(record: DeliveryRecord) -> dict[str, list[tuple[int, str, int, int]]]:
    """By container, what it has of each GPU."""
    return {
        name: [(s.gpu, s.uuid, s.memory_mib, s.milli) for s in container.shares]
        for name, container in record.containers.items()
    }


def charged(record: DeliveryRecord) -> list[tuple[int, int, int]]:
    assert all((c.most_memory_mib, c.most_milli) == (CARD_MIB, 1000) for c in record.cards)
    return [(card.gpu, card.memory_mib, card.milli) for card in record.cards]


def env(record: DeliveryRecord, container: str) -> dict[str, str]:
    return record.containers[container].env


def test_weft() -> None:
    record = recorded(
        parsed(
            {"weft.dev/gpu-memory": 4000, "weft.dev/gpu-cores": 30, "weft.dev/gpu-count": 2},
            init={"weft.dev/gpu-memory": 1000},
            sidecar={"weft.dev/gpu-memory": 500},
            annotations={"weft.dev/isolation": "mps"},
        ),
        *(2, 0, 2),
    )
    assert record.isolation == "mps"
    assert charged(record) == [(0, 4000, 300), (2, 4500, 300)]
    assert got(record) == {
        "i": [(2, "GPU-2", 1000, 0)],
        "s": [(2, "GPU-2", 500, 0)],
        "c": [(2, "GPU-2", 4000, 300), (0, "GPU-0", 4000, 300)],
    }
    assert env(record, "c") == {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"}
    assert env(record, "i") == {"NVIDIA_VISIBLE_DEVICES": "GPU-2"}


def test_elastic() -> None:
    record = recorded(
        parsed(
            {"elasticgpu.io/gpu-core": 30, "elasticgpu.io/gpu-memory": 3000},
            init={"elasticgpu.io/gpu-core": 50},
        ),
        1,
    )
    assert charged(record) == [(1, 3000, 500)]
    assert got(record) == {"i": [(1, "GPU-1", 0, 500)], "c": [(1, "GPU-1", 3000, 300)]}
    # printf 1 | sha256sum
    assert env(record, "c") == {"GPU": "6b86b273", "NVIDIA_VISIBLE_DEVICES": "1"}


def test_elastic_whole_cards() -> None:
    record = recorded(parsed({"elasticgpu.io/gpu-core": 200}), 1, 3)
    assert charged(record) == [(1, CARD_MIB, 1000), (3, CARD_MIB, 1000)]
    assert got(record) == {"c": [(1, "GPU-1", CARD_MIB, 1000), (3, "GPU-3", CARD_MIB, 1000)]}
    assert env(record, "c")["NVIDIA_VISIBLE_DEVICES"] == "1,3"


@pytest.mark.parametrize(("dialect", "name"), [("gpushare", "c"), ("coscheml", "vgg16")])
def test_gpushare_and_coscheml(dialect: str, name: str) -> None:
    mem = "aliyun.com/gpu-mem"
    record = recorded(parsed({mem: 5}, init={mem: 9}, sidecar={mem: 3}, name=name), 3)
    assert record.dialect == dialect
    # Five of fifteen units, and three beside them. The init container runs before the sidecar.
    assert charged(record) == [(3, 9 * CARD_MIB // 15, 0)]
    assert got(record) == {
        "i": [(3, "GPU-3", 9 * CARD_MIB // 15, 0)],
        "s": [(3, "GPU-3", 3 * CARD_MIB // 15, 0)],
        name: [(3, "GPU-3", 5 * CARD_MIB // 15, 0)],
    }
    assert env(record, name) == {
        "NVIDIA_VISIBLE_DEVICES": "3",
        "ALIYUN_COM_GPU_MEM_IDX": "3",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }
    assert env(record, "s")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"


def test_alnair() -> None:
    memory, compute = "alnair/vgpu-memory", "alnair/vgpu-compute"
    record = recorded(parsed({memory: 4, compute: 20}, sidecar={memory: 2, compute: 30}), 2)
    assert charged(record) == [(2, 6 * 1010, 500)]
    assert got(record) == {
        "s": [(2, "GPU-2", 2 * 1010, 300)],
        "c": [(2, "GPU-2", 4 * 1010, 200)],
    }
    assert env(record, "c") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-2",
        "ALNAIR_ID": env(record, "c")["ALNAIR_ID"],
        "ALNAIR_WORKSPACE_PATH": "/var/lib/alnair/workspace",
        "ALNAIR_SOCKET": "/run/alnair/alnair.sock",
        "LD_PRELOAD": "/opt/alnair/libcuinterpose.so",
        "ALNAIR_VGPU_COMPUTE_PERCENTILE": "20",
    }
    assert len(env(record, "c")["ALNAIR_ID"]) == 5
    assert env(record, "c")["ALNAIR_ID"] != env(record, "s")["ALNAIR_ID"]


def test_hami() -> None:
    gpu, mem, cores = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
    record = recorded(parsed({gpu: 2, mem: 2000, cores: 30}, init={gpu: 1, mem: 3000}), 0, 1)
    assert charged(record) == [(0, 3000, 300), (1, 3000, 300)]
    assert got(record) == {
        "i": [(0, "GPU-0", 3000, 0)],
        "c": [(0, "GPU-0", 2000, 300), (1, "GPU-1", 2000, 300)],
    }
    assert env(record, "c") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    assert env(record, "i") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    }


def test_genius() -> None:
    """A pod of Genius asks as one: each container may use all of it, also those that name no
    resource."""
    labels = {"genius/gpu-number": "2", "genius/gpu-memory-each": "1500"}
    record = recorded(parsed({}, labels=labels), 3, 1)
    both = [(3, "GPU-3", 1500, 0), (1, "GPU-1", 1500, 0)]
    assert charged(record) == [(1, 1500, 0), (3, 1500, 0)]
    assert got(record) == {"c": both, "log": both}
    assert env(record, "log") == {"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-1"}


def test_genius_total_memory_wherever_it_lies() -> None:
    labels = {"genius/gpu-memory-each": "1000", "genius/gpu-memory-total": "20000"}
    request = parsed({}, labels=labels)
    # 1,000 MiB of one GPU, and 19,000 more: 15,160 beside it, 3,840 of another.
    shares = [Share(0, 2, 1000, 0, "GPU-2"), Share(1, 2, 15_160, 0, "GPU-2")]
    shares.append(Share(1, 0, 3840, 0, "GPU-0"))
    placement = placement_of(request, NODE, shares)
    record = record_of(request, placement, NODE, write(request, placement, NODE, 9).env)
    assert record is not None
    assert env(record, "c") == {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"}
    assert charged(record) == [(0, 3840, 0), (2, CARD_MIB, 0)]
    assert got(record)["c"] == [(2, "GPU-2", CARD_MIB, 0), (0, "GPU-0", 3840, 0)]


def test_kubeknots() -> None:
    record = recorded(parsed({}, labels={"GPU_MEM_REQ": "900"}), 1)
    assert got(record) == {"c": [(1, "GPU-1", 900, 0)], "log": [(1, "GPU-1", 900, 0)]}
    assert env(record, "c") == {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}


def test_kubeknots_beside_whole_cards() -> None:
    request = parsed({"nvidia.com/gpu": 1}, labels={"GPU_MEM_REQ": "900"})
    assert got(recorded(request, 1)) == {"c": [(1, "GPU-1", CARD_MIB, 1000)]}


def test_nvidia() -> None:
    record = recorded(parsed({"nvidia.com/gpu": 2}, init={"nvidia.com/gpu": 1}), 0, 2)
    assert charged(record) == [(0, CARD_MIB, 1000), (2, CARD_MIB, 1000)]
    assert got(record) == {
        "i": [(0, "GPU-0", CARD_MIB, 1000)],
        "c": [(0, "GPU-0", CARD_MIB, 1000), (2, "GPU-2", CARD_MIB, 1000)],
    }
    assert env(record, "c") == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"}


def test_a_pod_without_a_gpu_has_no_record() -> None:
    request = parsed({"cpu": 1})
    assert record_of(request, placement_of(request, NODE, ()), NODE, {}) is None

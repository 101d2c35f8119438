import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weft.dialects.alnair import NODE_COUNT, NODE_UNITS, NODE_UUIDS
from weft.dialects.gpushare import unhealthy_name
from weft.dialects.inventory import UNLIMITED, InventoryFallback, inventory
from weft.dialects.weft import inventory_text
from weft.kube.structs import KubeNode
from weft.model import Gpu, GpuMemoryRequest, Node
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import ADVERTISES, INVENTORY

READY = [{"type": "Ready", "status": "True"}]


def kube_node(
    annotations: Any = None, labels: Any = None, capacity: Any = None, **spec: Any
) -> KubeNode:
    amounts = {name: str(value) for name, value in (capacity or {}).items()}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": READY}
    meta = {"name": "n1", "annotations": annotations, "labels": labels}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status}, KubeNode)


def gfd(count: int, memory: int, product: str = "Tesla-T4") -> dict[str, str]:
    return {
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.memory": str(memory),
        "nvidia.com/gpu.product": product,
    }


def gpushare(total: int, count: int) -> dict[str, int]:
    return {"aliyun.com/gpu-mem": total, "aliyun.com/gpu-count": count}


def elastic(count: int, memory: int) -> dict[str, int]:
    return {"elasticgpu.io/gpu-core": count * 100, "elasticgpu.io/gpu-memory": memory}


def alnair(count: int, units: str, name: str = NODE_UNITS[0]) -> dict[str, str]:
    uuids = ",".join(f"GPU-{i}" for i in range(count))
    return {NODE_COUNT: str(count), name: units, NODE_UUIDS: uuids}


def sizes(node: Node) -> list[int]:
    return [gpu.memory_mib for gpu in node.gpus]


OWN = (
    Gpu(0, 40_960, "A100", "GPU-a"),
    Gpu(1, 16_160, "T4", "GPU-b", in_service=False),
    Gpu(2, 4_864, "1g.5gb", "MIG-c", parent=0),
)


def test_wefts_own_annotation_says_everything() -> None:
    found, warnings = inventory(kube_node({INVENTORY: inventory_text(OWN)}))
    assert found.gpus == OWN
    assert warnings == ()


@pytest.mark.parametrize("name", NODE_UNITS)
def test_alnairs_annotations_in_both_spellings(name: str) -> None:
    found, warnings = inventory(kube_node(alnair(2, "16,24", name)))
    # The least that rounds to 16 and 24 GiB.
    assert sizes(found) == [15_872, 24_064]
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0", "GPU-1"]
    assert warnings == ()


def test_one_number_of_alnair_is_for_every_card() -> None:
    found, _ = inventory(kube_node(alnair(3, "16")))
    assert sizes(found) == [15_872] * 3


def test_labels_of_gpu_feature_discovery() -> None:
    found, warnings = inventory(kube_node(labels=gfd(2, 15_360, "Tesla-T4-SHARED")))
    assert found.gpus == (Gpu(0, 15_360, "Tesla-T4"), Gpu(1, 15_360, "Tesla-T4"))
    assert found.labels["nvidia.com/gpu.count"] == "2"
    assert warnings == ()


@pytest.mark.parametrize(
    ("total", "count", "size", "unit"), [(30, 2, 15_360, 1_024), (32_320, 2, 16_160, 1)]
)
def test_gpushares_capacity_in_either_unit(total: int, count: int, size: int, unit: int) -> None:
    found, warnings = inventory(kube_node(capacity=gpushare(total, count)))
    assert sizes(found) == [size] * count
    assert found.unit_mib == unit
    assert warnings == ()


def test_elastics_allocatable() -> None:
    found, _ = inventory(kube_node(capacity=elastic(2, 32_320)))
    assert sizes(found) == [16_160] * 2
    old = {"elasticgpu.com/gpu-core": 100, "elasticgpu.com/gpu-memory": 256}
    assert sizes(inventory(kube_node(capacity=old))[0]) == [256]


def test_the_configuration_by_name_and_label() -> None:
    rules = [
        InventoryFallback(1, 1, labels={"pool": "other"}),
        InventoryFallback(1, 2, nodes="m*"),
        InventoryFallback(4, 32_510, "V100", nodes="n?", labels={"pool": "gpu"}),
    ]
    found, warnings = inventory(kube_node(labels={"pool": "gpu"}), rules=rules)
    assert found.gpus == tuple(Gpu(i, 32_510, "V100") for i in range(4))
    assert warnings == ()
    assert inventory(kube_node(), rules=rules)[0].gpus == ()


def test_an_agents_resources_are_no_gpus_before_it_tells_its_inventory() -> None:
    """An agent writes both, one after the other: a pod placed in between would know no UUIDs."""
    for has in (gpushare(32, 2), elastic(2, 16_384)):
        marks = {ADVERTISES: ",".join(has)}
        early, warnings = inventory(kube_node(marks, capacity=has))
        assert (early.gpus, early.unit_mib, warnings) == ((), 0, ())
        marks[INVENTORY] = inventory_text(OWN)
        assert [gpu.uuid for gpu in inventory(kube_node(marks, capacity=has))[0].gpus] == [
            gpu.uuid for gpu in OWN
        ]


def test_a_count_alone_gives_cards_of_unknown_size() -> None:
    found, (warning,) = inventory(kube_node(capacity={"nvidia.com/gpu": 8}))
    assert sizes(found) == [100] * 8
    assert "only whole cards" in warning


def test_a_node_without_gpus_is_no_news() -> None:
    found, warnings = inventory(kube_node(capacity={"cpu": "4", "memory": "8Gi", "x.com/y": 3}))
    assert found == Node(
        "n1", (), 4_000, 8_192, {"x.com/y": 3}, delivers=(), isolation=("none", "time-slicing")
    )
    assert warnings == ()


def test_sources_that_agree_within_their_rounding_give_no_warning() -> None:
    """A card of 16,160 MiB as all systems see it."""
    node = kube_node(alnair(2, "16,16"), gfd(2, 16_160), {**gpushare(30, 2), **elastic(2, 32_320)})
    found, warnings = inventory(node)
    assert sizes(found) == [16_160] * 2
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-0", "GPU-1"]
    assert warnings == ()


def test_rounded_sources_together_mean_the_least_that_all_can_mean() -> None:
    found, warnings = inventory(kube_node(alnair(1, "16"), capacity=gpushare(15, 1)))
    (card,) = found.gpus
    assert GpuMemoryRequest("units", 1, 1024, half_up=True).units_on(card.memory_mib) == 16
    assert GpuMemoryRequest("units", 1, 1024).units_on(card.memory_mib) == 15
    assert warnings == ()


def test_sources_that_disagree_warn_and_the_smaller_wins() -> None:
    node = kube_node(labels=gfd(2, 16_160), capacity=elastic(3, 3 * 8_000))
    found, warnings = inventory(node)
    assert sizes(found) == [8_000] * 2
    assert len(warnings) == 3
    assert warnings[0].startswith("Elastic GPU's allocatable says 3 GPUs")
    assert "the smaller size counts, 8000 MiB" in warnings[1]


def test_a_smaller_count_drops_the_last_cards_and_their_instances() -> None:
    own = (*OWN[:2], Gpu(2, 16_160), Gpu(3, 4_864, parent=2), Gpu(4, 4_864, parent=0))
    found, warnings = inventory(
        kube_node({INVENTORY: inventory_text(own)}, capacity=elastic(1, 40_960))
    )
    assert [gpu.index for gpu in found.gpus] == [0, 4]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "node",
    [
        kube_node({INVENTORY: "nonsense"}),
        kube_node({INVENTORY: inventory_text([Gpu(0, 1), Gpu(0, 1)])}),
        kube_node({NODE_COUNT: "two", NODE_UNITS[0]: "1"}),
        kube_node({NODE_COUNT: "2", NODE_UNITS[0]: "many"}),
        kube_node({NODE_COUNT: "99999", NODE_UNITS[0]: "16"}),
        kube_node(labels=gfd(99_999, 1)),
        kube_node(capacity={"aliyun.com/gpu-mem": "x", "aliyun.com/gpu-count": 1}),
        kube_node(capacity={"nvidia.com/gpu": "x"}),
        kube_node(capacity={"cpu": "x"}),
    ],
)
def test_what_makes_no_sense_is_ignored_with_a_warning(node: KubeNode) -> None:
    found, warnings = inventory(node)
    assert found.gpus == ()
    assert any(text.startswith("ignored: ") for text in warnings)


def test_a_broken_source_leaves_the_word_to_the_next() -> None:
    found, warnings = inventory(kube_node({INVENTORY: "{"}, gfd(1, 16_160)))
    assert sizes(found) == [16_160]
    assert len(warnings) == 1


def test_sources_that_say_nothing_are_no_sources() -> None:
    node = kube_node({NODE_COUNT: "0", NODE_UNITS[0]: ""}, gfd(0, 0), gpushare(0, 0))
    assert inventory(node)[0].gpus == ()


def test_indexes_in_the_configmap_are_out_of_service() -> None:
    assert unhealthy_name("n1") == "unhealthy-gpu-n1"
    node = kube_node({INVENTORY: inventory_text(OWN)})
    found, warnings = inventory(node, unhealthy="0,, x,7")
    assert [gpu.in_service for gpu in found.gpus] == [False, False, False]
    assert warnings == (
        "ConfigMap unhealthy-gpu-n1: 'x' is not a GPU index",
        "ConfigMap unhealthy-gpu-n1: there is no GPU 7",
    )
    empty = inventory(kube_node(labels=gfd(1, 9)), unhealthy="")[0]
    assert empty.gpus[0].in_service


def test_unready_nodes_are_not_schedulable_and_a_cordon_is_a_taint() -> None:
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert inventory(kube_node())[0].schedulable
    cordoned = inventory(kube_node(unschedulable=True, taints=taints))[0]
    assert cordoned.schedulable
    assert [(t.key, t.value, t.effect) for t in cordoned.taints] == [
        ("k", "v", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "", "NoSchedule"),
    ]
    assert not inventory(KubeNode())[0].schedulable


@given(
    size=st.integers(1_024, 200_000),
    count=st.integers(1, 8),
    spoken=st.sets(st.sampled_from(["alnair", "gfd", "gpushare", "elastic"]), min_size=1),
)
def test_true_words_never_disagree_and_never_make_a_card_larger_than_it_is(
    size: int, count: int, spoken: set[str]
) -> None:
    units = ",".join([str((size + 512) // 1024)] * count)
    node = kube_node(
        alnair(count, units) if "alnair" in spoken else None,
        gfd(count, size) if "gfd" in spoken else None,
        {
            **(gpushare(size // 1024 * count, count) if "gpushare" in spoken else {}),
            **(elastic(count, size * count) if "elastic" in spoken else {}),
        },
    )
    # A card this large, counted in GiB, looks like one counted in MiB.
    assume("gpushare" not in spoken or size // 1024 <= 100)
    found, warnings = inventory(node)
    assert warnings == ()
    assert len(found.gpus) == count
    assert all(size - 1_024 < gpu.memory_mib <= size for gpu in found.gpus)


def test_accounted_resources_count_as_far_as_they_are_advertised() -> None:
    has = {"elasticgpu.io/gpu-memory": "1k", "aliyun.com/gpu-mem": "0", "x.com/y": 3}
    names = ("aliyun.com/gpu-mem", "alnair/vgpu-memory", "elasticgpu.io/gpu-memory")
    found, _ = inventory(kube_node(capacity=has), accounted=names)
    assert found.extended == {
        "x.com/y": 3,
        "elasticgpu.io/gpu-memory": 1_000,
        "aliyun.com/gpu-mem": 0,
        "alnair/vgpu-memory": UNLIMITED,
    }
    assert inventory(kube_node(capacity=has))[0].extended == {"x.com/y": 3}


@pytest.mark.parametrize("field", ["model", "uuid"])
def test_a_gpus_names_have_the_length_of_names(field: str) -> None:
    told = {"index": 0, "memory_mib": 100}

    def found(letters: int) -> Node:
        text = msgspec.json.encode({"gpus": [{**told, field: "x" * letters}]}).decode()
        return inventory(kube_node({INVENTORY: text}))[0]

    assert getattr(found(253).gpus[0], field) == "x" * 253
    assert found(254).gpus == ()


def test_a_node_delivers_what_it_advertises() -> None:
    """Nothing of what a device plugin that is down leaves behind, and no more than names say."""
    has = {"cpu": 4, "x.com/y": 1, "alnair/vgpu-memory": 16, "elasticgpu.io/gpu-memory": 0}
    assert inventory(kube_node(capacity=has))[0].delivers == ("alnair/vgpu-memory",)
    assert inventory(kube_node({INVENTORY: inventory_text(OWN)}))[0].delivers == ()


def agent(text: str) -> tuple[Node, tuple[str, ...]]:
    return inventory(kube_node({"weft.dev/agent": text}, capacity={"alnair/vgpu-memory": 16}))


def test_an_agent_delivers_by_name_whatever_is_advertised() -> None:
    offer = AgentOffer("1", "by-name", ("none", "mps"), fail_closed=True)
    found, warnings = agent(encode_offer(offer))
    assert (found.delivers, warnings) == (None, ())
    assert (found.isolation, found.fail_closed) == (("none", "mps"), True)


def test_a_device_plugin_delivers_what_it_advertises() -> None:
    found, warnings = agent(encode_offer(AgentOffer("1", "device-plugin", ("none", "mig"))))
    assert (found.delivers, warnings) == (("alnair/vgpu-memory",), ())
    assert (found.isolation, found.fail_closed) == (("none", "mig"), False)


@pytest.mark.parametrize(
    "text",
    [
        "by-name",
        "{}",
        '{"version": "1", "delivery": "perhaps"}',
        '{"version": "1", "delivery": "by-name", "isolation": "mps"}',
        json.dumps({"version": "1", "delivery": "by-name", "isolation": ["x"] * 17}),
        json.dumps({"version": "1" * 254, "delivery": "by-name"}),
        '{"x": ' + "[" * 20_000 + "]" * 20_000 + "}",
    ],
)
def test_an_offer_that_cannot_be_read_is_none_and_says_so_once(text: str) -> None:
    found, (warning,) = agent(text)
    assert (found.delivers, found.fail_closed) == (("alnair/vgpu-memory",), False)
    assert found.isolation == ("none", "time-slicing")
    assert warning.startswith("ignored: weft.dev/agent: ")


def test_a_node_without_an_agent_shares_time_and_enforces_nothing() -> None:
    found, _ = inventory(kube_node())
    assert (found.isolation, found.fail_closed) == (("none", "time-slicing"), False)

"""Resources that an agent advertises are read back as its GPUs, and are what may be promised."""

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from long_form import few_or_many

from weft.dialects import alnair, elastic, gpushare
from weft.dialects.advertised import advertised_cards, amounts_of
from weft.dialects.dialect import DialectSettings, UnitSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import parse_pod
from weft.dialects.weft import inventory_text
from weft.model import Gpu, NodeManifest, ObjectMeta, PodManifest
from weft.model.annotations import ADVERTISES, INVENTORY
from weft.model.manifest import ManifestContainer, ManifestResources, NodeStatus, PodSpec

SIZES = st.sampled_from([11_019, 15_109, 16_160, 22_731, 32_510, 40_536, 81_559, 143_771])
FEWER = how(max_examples=few_or_many(30, 300))


@st.composite
def gpus(draw, *, equal=False):
    count = draw(st.integers(1, 8))
    first = draw(SIZES)
    sizes = [first if equal else draw(SIZES) for _ in range(count)]
    broken = draw(st.sets(st.integers(0, count - 1))) if not equal else set()
    return tuple(
        Gpu(i, mib, uuid=f"GPU-{i}", in_service=i not in broken) for i, mib in enumerate(sizes)
    )


UNITS = st.builds(
    UnitSettings,
    promised_permille=st.sampled_from([1000, 1500, 2000, 10_000]),
    gpushare_unit=st.sampled_from(["GiB", "MiB"]),
    all_spellings=st.booleans(),
)


def node_of(cards, dialects, units, *, told=True):
    amounts = amounts_of(advertised_cards(cards, dialects, units))
    annotations = {INVENTORY: inventory_text(cards), ADVERTISES: ",".join(amounts.capacity)}
    status = NodeStatus(capacity=dict(amounts.capacity), allocatable=dict(amounts.allocatable))
    meta = ObjectMeta(name="n", annotations=annotations if told else {})
    return NodeManifest(metadata=meta, status=status)


ALL = ("weft", "elastic", "gpushare", "alnair", "hami")


@FEWER
@given(cards=gpus(), units=UNITS)
def test_the_agents_own_sums_are_no_second_opinion(cards, units) -> None:
    node, warnings = inventory(node_of(cards, ALL, units))
    assert warnings == ()
    assert node.gpus == cards
    assert node.unit_mib == {"GiB": 1024, "MiB": 1}[units.gpushare_unit]


@FEWER
@given(cards=gpus(equal=True))
def test_elastics_and_gpushares_resources_mean_the_same_cards(cards) -> None:
    """Without Weft's annotation, as the originals' schedulers read a node of equal cards."""
    for name, unit_mib in (("elastic", 1), ("gpushare", 1024)):
        node, warnings = inventory(node_of(cards, (name,), UnitSettings(), told=False))
        if name == "gpushare" and cards[0].memory_mib // 1024 > 100:
            continue  # the original's own rule: it takes more than 100 for MiB
        assert warnings == ()
        assert len(node.gpus) == len(cards)
        for read, card in zip(node.gpus, cards, strict=True):
            assert read.memory_mib == card.memory_mib // unit_mib * unit_mib


@FEWER
@given(cards=gpus(), unit=st.sampled_from(["GiB", "MiB"]))
def test_a_card_is_as_many_units_as_pods_may_ask_of_it(cards, unit) -> None:
    """All the units that a card advertises are the whole card."""
    units, told = UnitSettings(gpushare_unit=unit), DialectSettings(gpushare_unit=unit)
    for gpu, amounts, _ in advertised_cards(cards, ALL, units):
        for resource in (gpushare.GPU_MEM, alnair.MEMORY, elastic.DOCUMENTED[1]):
            limits = ManifestResources(limits={resource: amounts[resource]})
            pod = PodManifest(spec=PodSpec(containers=[ManifestContainer("c", resources=limits)]))
            memory = parse_pod(pod, told).shape.gpu_requests[0].memory
            assert memory.mib_on(gpu.memory_mib) == gpu.memory_mib


@pytest.mark.parametrize(
    ("dialect", "wanted"),
    [
        ("elastic", {"elasticgpu.io/gpu-core": 200, "elasticgpu.io/gpu-memory": 48_670}),
        ("gpushare", {"aliyun.com/gpu-mem": 46, "aliyun.com/gpu-count": 2}),
        ("alnair", {"alnair/vgpu-memory": 48, "alnair/vgpu-compute": 200}),
        (
            "hami",
            {
                "nvidia.com/gpumem": 48_670,
                "nvidia.com/gpumem-percentage": 200,
                "nvidia.com/gpucores": 200,
            },
        ),
        (
            "weft",
            {
                "weft.dev/gpu-memory": 48_670,
                "weft.dev/gpu-cores": 200,
                "weft.dev/gpu-count": 200,
            },
        ),
        ("genius", {}),
        ("kubeknots", {}),
        ("coscheml", {"aliyun.com/gpu-mem": 46, "aliyun.com/gpu-count": 2}),
        ("nvidia", {"nvidia.com/gpu": 2}),
    ],
)
def test_cards_that_differ(dialect: str, wanted: dict[str, int]) -> None:
    cards = (Gpu(0, 16_160), Gpu(1, 32_510, in_service=False))
    amounts = amounts_of(advertised_cards(cards, (dialect,), UnitSettings()))
    assert amounts.capacity == wanted
    half = amounts_of(advertised_cards(cards[:1], (dialect,), UnitSettings()))
    assert amounts.allocatable == half.capacity


def test_lent_memory_and_instances() -> None:
    cards = (Gpu(0, 16_000, in_service=False), Gpu(1, 8_000, parent=0), Gpu(2, 4_000, parent=0))
    units = UnitSettings(promised_permille=1500, gpushare_unit="MiB", all_spellings=True)
    amounts, in_service = amounts_of(advertised_cards(cards, ("elastic", "gpushare"), units))
    assert in_service == amounts  # the instances are
    assert amounts["elasticgpu.io/gpu-memory"] == 24_000
    assert amounts["elasticgpu.com/gpu-core"] == 200
    assert amounts["tke.cloud.tencent.com/qgpu-memory"] == 22
    assert amounts["aliyun.com/gpu-mem"] == 24_000
    assert amounts["aliyun.com/gpu-count"] == 1

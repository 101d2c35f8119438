import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model import Code, DeviceRule, GpuMemoryRequest, Reason
from weft.model.slowdown_limit import percent_on

GIB = 1024


def alnair(value):
    return GpuMemoryRequest("units", value, unit_mib=GIB, half_up=True)


def gpushare(value):
    return GpuMemoryRequest("units", value, unit_mib=GIB)


@pytest.mark.parametrize(
    ("card", "floor", "half_up"),
    [(16160, 15, 16), (32510, 31, 32), (15109, 14, 15), (16384, 16, 16), (511, 0, 0), (512, 0, 1)],
)
def test_units_on_a_card_round_as_each_system_does(card, floor, half_up):
    assert gpushare(1).units_on(card) == floor
    assert alnair(1).units_on(card) == half_up


def test_all_units_together_are_the_whole_card():
    assert alnair(16).mib_on(16160) == 16160
    assert gpushare(15).mib_on(16160) == 16160
    assert 2 * alnair(8).mib_on(16160) == 16160


def test_a_unit_too_many_never_fits():
    assert alnair(17).mib_on(16160) > 16160
    assert gpushare(16).mib_on(16160) > 16160
    assert GpuMemoryRequest("percent", 101).mib_on(16160) > 16160
    assert gpushare(1).mib_on(1000) > 1000


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        (gpushare(17), 17_408),
        (alnair(18), 18_432),
        (GpuMemoryRequest("node-units", 17, unit_mib=GIB).on_node(GIB), 17_408),
        (gpushare(8), 8_192),
        (GpuMemoryRequest("mib", 20_000), 20_000),
        (GpuMemoryRequest("percent", 50), 8_192),
        (GpuMemoryRequest("whole"), 16_384),
    ],
)
def test_people_are_told_true_mib_also_of_what_no_card_has(memory, mib):
    """17 GiB are 17,408 MiB, whatever the card."""
    assert memory.told_mib_on(16_384) == mib


@given(st.integers(1, 300_000), st.integers(1, 200), st.booleans())
def test_a_unit_too_many_is_more_than_the_card(card, more, half_up):
    memory = GpuMemoryRequest("units", 1, unit_mib=GIB, half_up=half_up)
    too_many = GpuMemoryRequest("units", memory.units_on(card) + more, GIB, half_up)
    assert too_many.told_mib_on(card) >= too_many.mib_on(card) > card


def test_units_of_the_node_are_whatever_it_counts_in():
    asked = GpuMemoryRequest("node-units", 8, unit_mib=GIB)
    assert asked.on_node(GIB) == asked.on_node(0) == gpushare(8)
    assert asked.on_node(1) == GpuMemoryRequest("mib", 8)
    assert asked.mib_on(16160) == gpushare(8).mib_on(16160)
    assert gpushare(8).on_node(1) == gpushare(8), "what is decided stays"


def test_the_other_kinds():
    assert GpuMemoryRequest("mib", 300).mib_on(16160) == 300
    assert GpuMemoryRequest("percent", 50).mib_on(16161) == 8080
    assert GpuMemoryRequest("whole").mib_on(16160) == 16160
    assert GpuMemoryRequest().mib_on(16160) == 0


@given(st.integers(1, 400_000), st.integers(0, 500), st.integers(0, 500), st.sampled_from([0, 1]))
def test_parts_that_fit_in_units_fit_in_mib(card, a, b, half_up):
    first = GpuMemoryRequest("units", a, GIB, bool(half_up))
    second = GpuMemoryRequest("units", b, GIB, bool(half_up))
    units = first.units_on(card)
    if units and a + b <= units:
        assert first.mib_on(card) + second.mib_on(card) <= card


def test_models_by_part_pattern_or_whole_name():
    card = "NVIDIA A100-SXM4-40GB"
    assert DeviceRule(models=("a100",), how="contains").accepts_model(card)
    assert not DeviceRule(models=("A100",)).accepts_model(card)
    assert DeviceRule(models=(card,)).accepts_model(card)
    assert DeviceRule(models=("a100.sxm",), how="regex").accepts_model(card)
    assert not DeviceRule(not_models=("A100",), how="contains").accepts_model(card)
    assert not DeviceRule(models=("V100", "T4"), how="contains").accepts_model(card)
    assert DeviceRule().accepts_model(card)


def test_uuids_are_exact_and_the_excluded_ones_win():
    assert DeviceRule(uuids=("GPU-1",)).accepts_uuid("GPU-1")
    assert not DeviceRule(uuids=("GPU-1",)).accepts_uuid("GPU-11")
    assert not DeviceRule(uuids=("GPU-1",), not_uuids=("GPU-1",)).accepts_uuid("GPU-1")
    assert DeviceRule(not_uuids=("GPU-1",)).accepts_uuid("GPU-2")


def test_a_reason_says_how_much_was_missing():
    text = str(Reason(Code.GPU_MEMORY, nodes=3, asked=16384, best=9000, unit="MiB"))
    assert text.startswith("3 × ")
    assert "9,000" in text
    assert "16,384" in text
    assert "asked" not in str(Reason(Code.NO_GPU))


CARDS = (
    "NVIDIA GeForce GTX 1070 Ti",  # NVML
    "NVIDIA-GeForce-GTX-1070-Ti",  # GPU feature discovery
    "NVIDIA_GeForce_GTX_1070_Ti",
)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("how", ["exact", "contains", "regex"])
def test_blanks_dashes_and_underscores_are_alike_in_model_names(card, how):
    for told in (*CARDS, "NVIDIA_GeForce GTX-1070 Ti"):
        assert DeviceRule(models=(told,), how=how).accepts_model(card)
        assert not DeviceRule(not_models=(told,), how=how).accepts_model(card)
    assert not DeviceRule(models=("NVIDIA GeForce GTX 1080 Ti",), how=how).accepts_model(card)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("geforce_gtx_10[78]0", True),
        ("1070.Ti", True),
        ("GTX_+1070", True),
        (r"GTX\-1070\_Ti$", True),
        ("[A-Z]TX-1070", True),
        ("(?P<a_b>GTX)", True),
        ("GTX1070", False),
        ("1070_Ti_", False),
    ],
)
def test_so_they_are_in_patterns_outside_of_sets(card, pattern, fits):
    assert DeviceRule(models=(pattern,), how="regex").accepts_model(card) == fits


def test_a_pod_s_slack_holds_on_the_card_however_it_is_spelt():
    for card in CARDS:
        assert percent_on((("gtx-1070", 150),), card) == 150

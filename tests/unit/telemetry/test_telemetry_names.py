"""Exporters' metrics and labels, read as one."""

import re
from pathlib import Path

import numpy as np
import pytest

from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, EITHER, Alias
from weft.telemetry.meaning import metric_names
from weft.telemetry.meaning.join import LARGEST, canonical_values
from weft.telemetry.meaning.metric_names import SeriesSubject

BLANKS = (
    2.0**31 - 16,
    2.0**31 - 15,
    2.0**31 - 14,
    2.0**31 - 13,  # 32 bit
    2.0**47,
    2.0**47 + 1,
    2.0**47 + 2,
    2.0**47 + 3,  # floating
    9223372036854775792.0,
    9223372036854775794.0,  # 64 bit
)


@pytest.mark.parametrize("name", ALIASES)
def test_blanks_and_nonsense_are_missing_in_every_metric(name: str) -> None:
    bad = np.array([*BLANKS, np.nan, -1.0, np.inf, -np.inf])
    assert np.isnan(canonical_values(name, bad)).all()
    assert canonical_values(name, np.array([0.0])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("name", "sample", "metric", "value"),
    [
        ("DCGM_FI_DEV_FB_USED", 23847, Metric.MEMORY_USED_MIB, 23847),
        ("dcgm_fb_free", 4566, Metric.MEMORY_FREE_MIB, 4566),
        ("observerward_dynamic_gpu_used_global_memory_MiB", 11, Metric.MEMORY_USED_MIB, 11),
        ("DCGM_FI_DEV_GPU_UTIL", 65, Metric.GPU_UTIL_RATIO, 0.65),
        ("dcgm_gpu_utilization", 100, Metric.GPU_UTIL_RATIO, 1.0),
        ("gpu_core_usage_avg", 40, Metric.GPU_UTIL_RATIO, 0.4),
        ("gpu_memory_usage_avg", 99, Metric.MEMORY_USED_RATIO, 0.99),
        ("alnair_gpu_util", 7, Metric.GPU_UTIL_RATIO, 0.07),
        ("DCGM_FI_PROF_SM_ACTIVE", 0.93, Metric.SM_ACTIVE_RATIO, 0.93),
        ("DCGM_FI_PROF_SM_UTIL_RATIO", 0.93, Metric.SM_ACTIVE_RATIO, 0.93),
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", 250.5, Metric.POWER_W, 250.5),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5e12, Metric.ENERGY_J, 5e9),
    ],
)
def test_one_unit_whatever_the_exporter(
    name: str, sample: float, metric: Metric, value: float
) -> None:
    assert ALIASES[name].metric is metric
    assert canonical_values(name, np.array([sample])) == pytest.approx([value])


def test_a_ratio_above_one_is_no_measurement() -> None:
    assert np.isnan(canonical_values("DCGM_FI_PROF_DRAM_ACTIVE", np.array([1.01])))[0]
    assert np.isnan(canonical_values("DCGM_FI_DEV_GPU_UTIL", np.array([101.0])))[0]


def test_the_renamed_utilisation_is_percent_or_ratio_as_its_samples_say() -> None:
    """DCGM renamed field 203, a percentage; its new name promises a ratio."""
    name = "DCGM_FI_DEV_GPU_UTIL_RATIO"
    assert ALIASES[name].scale == EITHER
    percent = np.array([[0.0, 1.0], [37.0, 2.0**31 - 16]])
    np.testing.assert_allclose(canonical_values(name, percent), [[0.0, 0.01], [0.37, np.nan]])
    ratio = np.array([[0.0, 1.0], [0.37, np.nan]])
    np.testing.assert_array_equal(canonical_values(name, ratio), ratio)
    assert canonical_values(name, np.array([0.0, 1.0])).tolist() == [0.0, 1.0]


def test_one_false_sample_never_makes_busy_cards_look_idle() -> None:
    name = "DCGM_FI_DEV_GPU_UTIL_RATIO"
    np.testing.assert_array_equal(
        canonical_values(name, np.array([0.95, 0.9, 50.0])), [0.95, 0.9, np.nan]
    )
    np.testing.assert_array_equal(
        canonical_values(name, np.array([95.0, 90.0, 0.5])), [np.nan, np.nan, 0.5]
    )


def test_every_metric_has_a_name_and_a_bound() -> None:
    for metric in Metric:
        assert metric_names.names_of(metric), metric
        assert metric in LARGEST or metric.endswith("_ratio")
    assert metric_names.names_of(Metric.MEMORY_USED_MIB)[0] == "DCGM_FI_DEV_FB_USED"


def test_own_names_win_and_unknown_metrics_are_refused() -> None:
    own = metric_names.with_own(
        [("my_util", "gpu_util_ratio", 0.01), ("dcgm_fb_used", "power_w", 1.0)]
    )
    assert own["my_util"] == Alias(Metric.GPU_UTIL_RATIO, 0.01)
    assert own["dcgm_fb_used"].metric is Metric.POWER_W
    assert own["dcgm_fb_free"] == ALIASES["dcgm_fb_free"]
    with pytest.raises(ValueError, match="gpu_utility"):
        metric_names.with_own([("x", "gpu_utility", 1.0)])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (
            {
                "gpu": "3",
                "UUID": "GPU-a",
                "Hostname": "n1",
                "pod": "p",
                "namespace": "d",
                "container": "c",
                "instance": "10.0.0.7:9400",
            },
            SeriesSubject("n1", "GPU-a", 3, "d", "p", "c"),
        ),
        (
            {
                "gpu": "0",
                "UUID": "GPU-a",
                "hostname": "n1",
                "pod": "dcgm-exporter-x7",
                "exported_pod": "p",
                "namespace": "monitoring",
                "exported_namespace": "d",
            },
            SeriesSubject("n1", "GPU-a", 0, "d", "p"),
        ),
        ({"id": "1", "uuid": "GPU-b", "kubernetes_node": "n2"}, SeriesSubject("n2", "GPU-b", 1)),
        (
            {"gpu_uuid": "GPU-c", "gpu_idx": "2", "nodeName": "n3", "pod_name": "q"},
            SeriesSubject("n3", "GPU-c", 2, pod="q"),
        ),
        ({"node": "n4", "card": "5"}, SeriesSubject("n4", "", 5)),
        ({"instance": "10.0.0.7:9400", "gpu": ""}, SeriesSubject("10.0.0.7")),
        ({"gpu": "MIG-1", "GPU_I_ID": "7", "exported_pod": ""}, SeriesSubject(mig="7")),
        ({}, SeriesSubject()),
    ],
)
def test_labels_in_all_their_spellings(labels: dict[str, str], expected: SeriesSubject) -> None:
    assert metric_names.subject(labels) == expected


def test_the_reference_page_lists_every_metric_name_and_label() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "telemetry.md"
    lines = page.read_text().splitlines()
    for metric in Metric:
        row = next(line for line in lines if line.startswith(f"| `{metric}` |"))
        assert tuple(re.findall(r"`([^`]+)`", row)[1:]) == metric_names.names_of(metric)
    for labels in (
        metric_names.NODE_LABELS,
        metric_names.UUID_LABELS,
        metric_names.INDEX_LABELS,
        metric_names.MIG_LABELS,
        metric_names.POD_LABELS,
        metric_names.NAMESPACE_LABELS,
        metric_names.CONTAINER_LABELS,
    ):
        assert ", ".join(f"`{label}`" for label in labels) in page.read_text()


@pytest.mark.parametrize(("text", "gpu"), [("999999", 999_999), ("1000000", -1), ("9" * 5000, -1)])
def test_no_index_has_more_than_six_digits(text: str, gpu: int) -> None:
    assert metric_names.subject({"gpu": text}).gpu == gpu

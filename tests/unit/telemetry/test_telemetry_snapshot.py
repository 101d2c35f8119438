"""Snapshots from the window: the columns, how old they are, and what is not believed."""

import kube_knots_slowly as kube_knots
import numpy as np
import pytest
from telemetry_world import CARD_MIB, NOW_S, Scene, node

from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.model.metric import Metric
from weft.telemetry.feed.feed import SnapshotSettings

USED, FREE, SM = Metric.MEMORY_USED_MIB, Metric.MEMORY_FREE_MIB, Metric.SM_ACTIVE_RATIO


def filled(scene: Scene, metric: Metric, values: list[float], row: int = 0) -> float:
    """One sample a slot, ending now; returns now."""
    for k, value in enumerate(values):
        at_s = NOW_S + 15 * k - 1
        scene.put(metric, row, at_s, value, NOW_S + 15 * k)
    return NOW_S + 15 * (len(values) - 1)


def test_mean_last_and_peak() -> None:
    scene = Scene(node(gpus=1))
    now = filled(scene, SM, [k / 100 for k in range(1, 21)])
    view = scene.look(now)
    assert scene.of(view, "sm_active_ratio") == ([pytest.approx(0.185)], [FRESH])
    assert scene.of(view, "sm_active_ratio.last") == ([pytest.approx(0.2)], [FRESH])
    assert scene.of(view, "sm_active_ratio.p95") == ([pytest.approx(0.1905)], [FRESH])


def test_the_kube_knots_columns_are_those_of_the_rules() -> None:
    """The same numbers as the pure functions give for the same samples, bit for bit."""
    rng = np.random.default_rng(7)
    free = np.round(9_000 - 200 * np.arange(20) + rng.uniform(0, 300, 20)).tolist()
    used = [CARD_MIB - value for value in free]
    scene = Scene(node(gpus=1))
    filled(scene, FREE, free)
    view = scene.look(filled(scene, USED, used))
    told = kube_knots.decide(
        15_000, 0, free, used, kube_knots.Rules(CARD_MIB, 0.0, trend_above=-2.0)
    )

    def only(column: str) -> float:
        values, fresh = scene.of(view, column)
        assert fresh == [FRESH]
        return values[0]

    assert only("memory_used_mib.p80") == sorted(used)[16]
    assert only("window.samples") == 20
    assert only("memory_free_mib.cov") == told.cov
    assert only("memory_free_mib.autocorrelation") == told.autocorrelation
    assert told.predicted_mib is not None
    assert int(only("memory_free_mib.predicted")) == told.predicted_mib


def test_ages_grow_without_samples_metric_by_metric() -> None:
    scene = Scene(node(gpus=1))
    now = filled(scene, USED, [1000] * 5)
    for after, state in [(0, FRESH), (29, FRESH), (40, STALE), (88, STALE), (95, MISSING)]:
        scene.put(SM, 0, now + after - 1, 0.5, now + after)
        view = scene.look(now + after)
        values, fresh = scene.of(view, "memory_used_mib.last")
        assert fresh == [state], after
        assert np.isnan(values[0]) == (state == MISSING)
        assert scene.of(view, "sm_active_ratio.last") == ([0.5], [FRESH])


def test_samples_of_a_disagreeing_clock_are_missing() -> None:
    scene = Scene(node(gpus=1))
    scene.put(USED, 0, NOW_S - 600, 1000, NOW_S)
    assert scene.of(scene.look(NOW_S), "memory_used_mib")[1] == [MISSING]


def test_free_memory_follows_from_used_and_the_card_and_the_other_way_round() -> None:
    scene = Scene(node(gpus=2))
    now = filled(scene, USED, [6_000] * 3, row=0)
    scene.put(Metric.MEMORY_RESERVED_MIB, 0, now, 500, now)
    scene.put(FREE, 1, now, 15_000, now)
    view = scene.look(now)
    assert scene.of(view, "memory_free_mib.last")[0] == [CARD_MIB - 6_000 - 500, 15_000]
    assert scene.of(view, "memory_used_mib.last")[0] == [6_000, 1_000]


@pytest.mark.parametrize(
    ("metric", "value", "warm"),
    [(USED, 0, 1), (USED, CARD_MIB, 0), (FREE, CARD_MIB, 1), (Metric.MEMORY_USED_RATIO, 1.0, 0)],
)
def test_memory_that_contradicts_the_ledger_is_missing(
    metric: Metric, value: float, warm: int
) -> None:
    scene = Scene(node(gpus=1))
    now = filled(scene, metric, [value] * 4)
    filled(scene, SM, [0.5] * 4)
    scene.warm = [warm]
    view = scene.look(now)
    memory = [c for c in view.source.columns if c.startswith("memory_")]
    assert [c for c in memory if scene.of(view, c)[1] != [MISSING]] == []
    assert scene.of(view, "sm_active_ratio")[1] == [FRESH]


def test_used_and_free_that_are_more_than_the_card_are_missing() -> None:
    scene = Scene(node(gpus=1))
    filled(scene, USED, [9_000] * 4)
    now = filled(scene, FREE, [9_000] * 4)
    assert scene.of(scene.look(now), "memory_used_mib")[1] == [MISSING]


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        (6_000, 0, MISSING),  # free memory is stuck at 0, and no pod need have warmed up
        (0, 6_000, MISSING),  # so is used memory
        (6_000, 9_500, FRESH),  # the driver keeps some for itself
        (6_000, 7_000, FRESH),  # ECC, and an inventory that goes by the box
    ],
)
def test_used_and_free_that_are_far_less_than_the_card_are_missing(
    used: int, free: int, expected: int
) -> None:
    scene = Scene(node(gpus=1))
    filled(scene, USED, [used] * 4)
    now = filled(scene, FREE, [free] * 4)
    view = scene.look(now)
    for column in ("memory_used_mib", "memory_free_mib.last", "memory_free_mib.cov"):
        assert scene.of(view, column)[1] == [expected], column


def test_what_the_driver_reserves_is_part_of_the_card() -> None:
    scene = Scene(node(gpus=1))
    filled(scene, USED, [6_000] * 4)
    filled(scene, Metric.MEMORY_RESERVED_MIB, [4_000] * 4)
    now = filled(scene, FREE, [6_000] * 4)
    assert scene.of(scene.look(now), "memory_used_mib")[1] == [FRESH]


def test_samples_of_different_times_are_not_added_up() -> None:
    """A pod of 9,000 MiB came between the newest sample of free and that of used memory."""
    scene = Scene(node(gpus=1))
    filled(scene, FREE, [15_000] * 4)
    now = filled(scene, USED, [1_000] * 4 + [10_000])
    assert scene.of(scene.look(now), "memory_used_mib.last") == ([10_000], [FRESH])


@pytest.mark.parametrize(
    ("sm", "work", "expected"),
    [
        ([1.0] * 6, [0.1] * 6, MISSING),  # no SM works without a kernel
        ([0.9] * 6, [0.0] * 6, MISSING),
        ([0.0] * 6, [0.9] * 6, MISSING),  # no kernel runs without an SM
        ([0.01] * 6, [1.0] * 6, FRESH),  # small kernels, one after another
        ([1.0] * 6, [0.9, 0.91] * 3, FRESH),
        ([0.0] * 6, [0.0] * 6, FRESH),
        ([1.0, 1.0, 1.0, 0.2, 1.0, 1.0], [0.1] * 6, FRESH),  # not in every sample: a burst
    ],
)
@pytest.mark.parametrize("engine", [Metric.GPU_UTIL_RATIO, Metric.GRAPHICS_ACTIVE_RATIO])
def test_sms_and_kernels_that_tell_different_stories_are_missing(
    sm: list[float], work: list[float], expected: int, engine: Metric
) -> None:
    scene = Scene(node(gpus=1))
    filled(scene, SM, sm)
    now = filled(scene, engine, work)
    view = scene.look(now)
    for metric in (SM, engine):
        assert scene.of(view, metric.value)[1] == [expected], metric


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        (Metric.DRAM_ACTIVE_RATIO, 1.0, MISSING),
        (Metric.DRAM_ACTIVE_RATIO, 0.9, FRESH),
        (Metric.POWER_W, 0.0, MISSING),
        (Metric.POWER_W, 9.0, FRESH),
    ],
)
def test_what_no_card_can_do_is_missing(metric: Metric, value: float, expected: int) -> None:
    scene = Scene(node(gpus=1))
    now = filled(scene, metric, [value, value if value == 1.0 else 0.99 * value] * 3)
    assert scene.of(scene.look(now), metric.value)[1] == [expected]


def test_who_left_since_the_newest_sample_is_told() -> None:
    """Policies read free memory with it: see the gate."""
    scene = Scene(node(gpus=1))
    scene.promised = [9_000]
    scene.put(FREE, 0, NOW_S, 7_000, NOW_S)
    scene.look(NOW_S)
    scene.promised = [0]
    assert scene.of(scene.look(NOW_S + 15), "memory_promised_mib")[0] == [9_000]
    scene.put(FREE, 0, NOW_S + 29, 16_000, NOW_S + 30)
    assert scene.of(scene.look(NOW_S + 30), "memory_promised_mib")[0] == [0]


def test_an_idle_card_with_no_memory_used_is_no_contradiction() -> None:
    scene = Scene(node(gpus=1))
    now = filled(scene, USED, [0] * 4)
    assert scene.of(scene.look(now), "memory_used_mib.last") == ([0], [FRESH])


@pytest.mark.parametrize(("pods", "expected"), [([1, 1, 1, 0], MISSING), ([1, 1, 1, 1], FRESH)])
def test_a_share_stuck_at_its_maximum_on_unrelated_gpus_is_missing(
    pods: list[int], expected: int
) -> None:
    scene = Scene(node("a"), node("b"))
    for row in range(4):
        now = filled(scene, Metric.GPU_UTIL_RATIO, [1.0] * 6, row)
    scene.pods = pods
    assert scene.of(scene.look(now), "gpu_util_ratio")[1] == [expected] * 4


def test_busy_gpus_beside_others_are_believed() -> None:
    scene = Scene(node("a"), node("b"))
    for row in range(4):
        now = filled(scene, Metric.GPU_UTIL_RATIO, [1.0 if row < 2 else 0.1] * 6, row)
    assert scene.of(scene.look(now), "gpu_util_ratio")[1] == [FRESH] * 4


def test_a_rising_series_is_forecast_to_rise_within_the_card() -> None:
    scene = Scene(node(gpus=1))
    values = [2_000.0 + 100 * k for k in range(20)]
    for k, value in enumerate(values):
        scene.put(FREE, 0, NOW_S + 15 * k - 1, value, NOW_S + 15 * k)
        view = scene.look(NOW_S + 15 * k)
    (told,), fresh = scene.of(view, "memory_free_mib.next")
    assert fresh == [FRESH]
    assert 4_200 <= told <= 4_400  # 3,900 now, 100 more in each of 4 steps
    (low,), _ = scene.of(view, "memory_free_mib.next_low")
    (high,), _ = scene.of(view, "memory_free_mib.next_high")
    assert 0 <= low <= told <= high <= CARD_MIB


def test_nothing_known_is_nothing_told() -> None:
    scene = Scene(node(gpus=1))
    view = scene.look(NOW_S)
    assert [c for c in view.source.columns if scene.of(view, c)[1] != [MISSING]] == []
    low = scene.of(view, "memory_free_mib.next_low")[1]
    assert low == [MISSING]


def test_versions_grow_and_the_same_input_gives_the_same_snapshot() -> None:
    def story() -> list[object]:
        scene = Scene(node(gpus=2))
        found = []
        for k in range(12):
            scene.put(FREE, k % 2, NOW_S + 15 * k, 100 * k + 1, NOW_S + 15 * k)
            found.append(scene.look(NOW_S + 15 * k).source)
        return found

    first = story()
    assert first == story()
    assert [one.version for one in first] == list(range(1, 13))  # type: ignore[attr-defined]


def test_gpus_that_stay_keep_what_is_known_of_them() -> None:
    scene = Scene(node("a", 1), node("b", 1))
    now = filled(scene, USED, [1_000] * 6, row=0)
    filled(scene, USED, [2_000] * 6, row=1)
    scene.look(now)
    scene.nodes = (node("b", 1), node("c", 1))
    scene.devices = type(scene.devices)(scene.nodes)
    scene.refresher.realign(scene.devices)
    view = scene.look(now + 15)
    assert scene.of(view, "memory_used_mib.last")[1] == [FRESH, MISSING]
    assert scene.of(view, "memory_used_mib.last")[0][0] == 2_000


def test_gpus_may_all_go_and_come_back() -> None:
    scene = Scene()
    scene.look(NOW_S)
    for nodes in ((node("a", 1), node("b", 1)), (), (node("b", 1),)):
        scene.nodes = nodes
        scene.devices = type(scene.devices)(scene.nodes)
        scene.refresher.realign(scene.devices)
        scene.pods, scene.warm, scene.promised = ([0] * len(nodes) for _ in range(3))
        now = filled(scene, USED, [1_000] * 6, row=0) if nodes else NOW_S + 1_000
        view = scene.look(now)
        assert view.source.gpus == tuple((one.name, 0) for one in nodes)
    assert scene.of(view, "memory_used_mib.last") == ([1_000], [FRESH])


def test_an_empty_cluster_has_an_empty_snapshot() -> None:
    assert Scene().look(NOW_S).source.gpus == ()
    assert SnapshotSettings().horizon == 4


def test_applications_are_compared_with_gpus_by_what_they_did_alone() -> None:
    rng = np.random.default_rng(5)
    calm, busy = rng.permutation(20) * 100.0, rng.permutation(20) / 20
    scene = Scene(node(gpus=3))
    for row, (used, sm) in enumerate([(calm, busy), (calm, 1 - busy), (-calm + 3_000, busy)]):
        filled(scene, USED, used.tolist(), row)
        now = filled(scene, SM, sm.tolist(), row)
    assert "correlation.train" not in scene.look(now).source.columns
    values, fresh = scene.of(scene.look(now, alone={0: "train"}), "correlation.train")
    assert values == pytest.approx([1.0, 1.0, 1.0])
    assert fresh == [FRESH] * 3
    filled(scene, SM, (1 - busy).tolist(), 2)
    values, _ = scene.of(scene.look(now), "correlation.train")
    assert values == pytest.approx([1.0, 1.0, -1.0])

"""load-aware, horus and auto: what they take for load, what closes a GPU, how they degrade."""

import numpy as np
import pytest
from policy_signals import engine_of, place, readings, resident, score

from weft.core.engine import PodAdded, PodGone, PolicyInput, SignalsChanged
from weft.core.framework.fragments import TypicalPods, typical_input
from weft.core.framework.signals import MISSING, STALE
from weft.core.policies.auto import Auto
from weft.core.policies.kube_knots import ResAg
from weft.core.policies.load_aware import Horus, LoadAware
from weft.model import BadInputError
from weft.testing import node, pod, shape

SM, GR, UTIL = "sm_active_ratio", "graphics_active_ratio", "gpu_util_ratio"
DRAM, COPY, OCCUPANCY = "dram_active_ratio", "memory_copy_ratio", "sm_occupancy_ratio"
FREE, USED = "memory_free_mib", "memory_used_mib"
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


def two(**more):
    return [node("a", gpus=1, **more), node("b", gpus=1, **more)]


def asking(**more):
    return pod(memory_mib=1_000, **more)


def test_the_least_loaded_gpu_wins():
    told = {A0: {SM: 0.6, DRAM: 0.2}, B0: {SM: 0.3, DRAM: 0.1}}
    assert place(engine_of(LoadAware(), two(), told), asking()) == B0


def test_the_score_is_the_published_sum():
    told = {A0: {SM: 0.5, DRAM: 0.2, USED: 4_096.0, "power_w": 150.0, "power_limit_w": 300.0}}
    nodes = [node("a", gpus=1, memory_mib=16_384)]
    load = 0.4 * 0.5 + 0.3 * 0.2 + 0.2 * 0.25 + 0.1 * 0.5
    assert score(engine_of(LoadAware(), nodes, told), asking()) == int(100_000 * (1 - load))


@pytest.mark.parametrize("column", [SM, GR, UTIL])
def test_every_form_of_sm_load_will_do(column):
    told = {A0: {column: 0.9}, B0: {column: 0.2}}
    assert place(engine_of(LoadAware(), two(), told), asking()) == B0


def test_a_missing_gpu_is_half_busy_and_more_so_with_every_pod():
    engine = engine_of(LoadAware(), two(), {A0: {SM: 0.9}})
    assert place(engine, asking()) == B0
    resident(engine, "one", "b", 0, 100)
    resident(engine, "two", "b", 0, 100)
    resident(engine, "three", "b", 0, 100)
    engine.handle(SignalsChanged(readings({A0: {SM: 0.6}}, version=2)), 2)
    assert place(engine, asking(name="next")) == A0


def test_old_readings_count_a_quarter_more():
    told = {A0: {SM: 0.50}, B0: {SM: 0.55}}
    assert place(engine_of(LoadAware(), two(), told), asking()) == A0
    assert place(engine_of(LoadAware(), two(), told, ages={A0: STALE}), asking()) == B0


GATE = [
    ({SM: 0.79, DRAM: 0.9, OCCUPANCY: 0.9}, True),
    ({SM: 0.80, DRAM: 0.39, OCCUPANCY: 0.44}, True),
    ({SM: 0.80, DRAM: 0.40, OCCUPANCY: 0.1}, False),
    ({SM: 0.80, DRAM: 0.1, OCCUPANCY: 0.45}, False),
    ({SM: 0.80, DRAM: 0.39}, True),
    ({SM: 0.80, COPY: 0.40}, False),
    ({SM: 0.80}, False),
    ({UTIL: 0.80}, False),
    ({FREE: 3_047.0}, False),
    ({FREE: 3_048.0}, True),
    ({USED: 16_384.0 - 3_047.0}, False),
    ({}, True),
]


@pytest.mark.parametrize("policy", [LoadAware, Auto])
@pytest.mark.parametrize(("seen", "open_"), GATE)
def test_the_gate_of_a_shared_gpu(policy, seen, open_):
    engine = engine_of(policy(), [node("a", gpus=1)], {A0: seen})
    resident(engine, "old", "a", 0, 100)
    assert (place(engine, asking()) is not None) == open_


def full_card(asked, used, *, promised=0.0, ages=None):
    """A card of 16,384 MiB with a pod that asked for so much, and a reading."""
    told = {A0: {FREE: 16_384.0 - used, "memory_promised_mib": promised}}
    engine = engine_of(LoadAware(), [node("a", gpus=1)], told, ages=ages)
    resident(engine, "old", "a", 0, asked)
    return engine


@pytest.mark.parametrize("ages", [None, {A0: STALE}])
def test_memory_that_was_promised_shuts_no_gpu_where_requests_fit(ages):
    """1,000 MiB more fit by requests beside 15,000; the margin of 2,048 does not exist."""
    assert place(full_card(15_000, 15_000, ages=ages), asking()) == A0
    assert place(full_card(15_000, 15_512, ages=ages), asking()) == A0  # within the reserve
    assert place(full_card(15_000, 15_513, ages=ages), asking()) is None


def test_who_left_since_the_sample_was_taken_does_not_shut_a_gpu():
    assert place(full_card(1_000, 15_000), asking()) is None
    assert place(full_card(1_000, 15_000, promised=15_000.0), asking()) == A0


def test_an_idle_gpu_is_never_shut_by_what_its_last_pod_left():
    told = {A0: {SM: 1.0, DRAM: 1.0, FREE: 0.0}}
    assert place(engine_of(LoadAware(), [node("a", gpus=1)], told), asking()) == A0


def test_a_latency_critical_pod_shares_no_gpu_that_nobody_measures():
    nodes = [node("a", gpus=1)]
    for told, expected in (({A0: {}}, None), ({A0: {SM: 0.1}}, A0)):
        engine = engine_of(LoadAware(), nodes, told)
        resident(engine, "old", "a", 0, 100)
        assert place(engine, asking(job_class="latency-critical")) == expected


def test_pack_fills_gpus_in_use_first():
    told = {A0: {SM: 0.0}, A1: {SM: 0.4}}
    for mode, expected in (("spread", A0), ("pack", A1)):
        engine = engine_of(LoadAware(mode=mode), [node("a", gpus=2)], told)
        resident(engine, "old", "a", 1, 100)
        assert place(engine, asking()) == expected
    with pytest.raises(BadInputError, match="write spread or pack"):
        LoadAware(mode="fill")


def test_a_whole_card_goes_to_the_node_with_the_coolest_idle_one():
    told = {A0: {SM: 0.6}, B0: {SM: 0.1}}
    assert place(engine_of(LoadAware(), two(), told), pod(gpus=1)) == B0


def test_horus_counts_company_and_expects_inference_to_do_little():
    told = {A0: {UTIL: 0.5}, B0: {UTIL: 0.0}}
    engine = engine_of(Horus(), two(), told)
    # training: a 1.6·40 = 64, b 10; inference: a 35, b 85
    assert place(engine, asking(job_class="batch")) == B0
    assert place(engine_of(Horus(), two(), told), asking(job_class="latency-critical")) == A0
    engine = engine_of(Horus(), two(), {A0: {UTIL: 0.0}, B0: {UTIL: 0.0}})
    resident(engine, "old", "a", 0, 100)
    assert place(engine, asking()) == B0


def test_horus_takes_unmeasured_residents_for_training():
    nodes = [node("a", gpus=1, memory_mib=10_000)]
    engine = engine_of(Horus(), nodes, {A0: {UTIL: 0.0}}, ages={A0: STALE})
    resident(engine, "old", "a", 0, 1_000)
    assert score(engine, asking()) == -int(1000 * (1.3 * 0.2 + 1.6 * 80 / 100 + 1))


def test_res_ag_takes_large_requests_first():
    def mib(asked):
        return ResAg().queue_key(pod(memory_mib=asked))

    assert mib(9_000) < mib(1_000)


def test_who_asks_little_waits_for_the_larger_ones_of_its_round_only():
    """Rounds of 5 s; else small pods would wait for as long as larger ones keep coming."""

    def key(mib, came_s):
        return ResAg().queue_key(pod(memory_mib=mib, created_ns=came_s * 10**9))

    assert key(9_000, 4) < key(1_000, 0)
    assert key(1_000, 0) < key(9_000, 5)
    assert key(5_000, 1) < key(5_000, 2)


def lending(policy, ages=None, seen=None):
    """A card whose resident leaves 6,000 of its 9,000 MiB idle, and a limit of half a card more."""
    seen = {SM: 0.2, USED: 3_000.0, FREE: 7_000.0} if seen is None else seen
    engine = engine_of(
        policy, [node("a", gpus=1, memory_mib=10_000)], {A0: seen}, ages=ages, harvest_permille=1500
    )
    resident(engine, "lender", "a", 0, 9_000)
    engine.handle(
        SignalsChanged(readings({A0: seen}, version=2, ages=ages, idle_mib={"lender": (6_000,)})), 0
    )
    return engine


def test_auto_lends_while_memory_is_fresh_and_never_beyond():
    assert place(lending(Auto()), pod(memory_mib=4_500)) == A0
    for age in (STALE, MISSING):
        assert place(lending(Auto(), ages={A0: age}), pod(memory_mib=4_500)) is None
        assert place(lending(Auto(), ages={A0: age}), pod(memory_mib=400)) == A0
    assert place(lending(Auto(), seen={SM: 0.2}), pod(memory_mib=4_500)) is None


def test_auto_without_metrics_is_least_stranding_and_binpack():
    nodes = [node("a", gpus=2), node("b", gpus=2)]
    engine = engine_of(Auto(), nodes, {})
    resident(engine, "old", "b", 1, 5_000)
    assert place(engine, asking()) == ("b", 1)


def test_auto_takes_what_usually_comes():
    """Beside a quarter that is taken, another one spares what no half completes."""
    gains = {}
    for usual in (250, 500):
        engine = engine_of(Auto(), two(memory_mib=10_000), {})
        resident(engine, "old", "a", 0, 2_500)
        shapes = [TypicalPods.shape(0, usual)] * 3
        engine.handle(PolicyInput("fgd", typical_input(shapes)), 1)
        profile = next(iter(engine.profiles.values()))
        beside, alone = engine.assess(profile, pod(memory_mib=2_500)).raw[0].tolist()
        gains[usual] = beside - alone
    binpack = 50 * 250
    assert gains[250] == pytest.approx(binpack, abs=500)  # and a little for a node in use
    assert gains[500] == pytest.approx(binpack + 12_500, abs=500)


def test_devices_of_one_state_are_scored_apart_for_auto():
    told = {A0: {SM: 0.7}, A1: {SM: 0.1}}
    assert place(engine_of(Auto(), [node("a", gpus=2)], told), asking()) == A1


def test_the_ledger_counts_pods_and_promises_by_device():
    engine = engine_of(LoadAware(), [node("a", gpus=2)], {})
    resident(engine, "one", "a", 1, 300)
    resident(engine, "two", "a", 1, 500)
    table = engine.ledger.table
    np.testing.assert_array_equal(table.device_pods, [0, 2])
    np.testing.assert_array_equal(table.device_memory_promised, [0, 800])
    engine.handle(PodGone("one"), 2)
    np.testing.assert_array_equal(table.device_pods, [0, 1])
    np.testing.assert_array_equal(table.device_memory_promised, [0, 500])


def test_a_pod_is_no_company_to_itself():
    """Two claims of one pod may share an idle card, whatever its last pod left to read."""
    told = {A0: {SM: 1.0, DRAM: 1.0, FREE: 0.0}}
    engine = engine_of(LoadAware(), [node("a", gpus=1)], told)
    gpu_requests = (*shape(memory_mib=1_000).gpu_requests, *shape(memory_mib=2_000).gpu_requests)
    commands = engine.handle(PodAdded(pod(gpu_requests=gpu_requests)), 1)
    assert len(commands[0].placement.shares) == 2

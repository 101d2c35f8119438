"""genius and the Kube-Knots family: admission by trend, lending, and the original's decisions."""

import random

import kube_knots_slowly as kube_knots
import numpy as np
import pytest
from policy_signals import engine_of, place, readings, resident

from weft.core.engine import SignalsChanged
from weft.core.framework import Demand, Query
from weft.core.framework.query import Observations
from weft.core.framework.signals import STALE, SignalsView
from weft.core.ledger import Ledger
from weft.core.policies.genius import GeniusPolicy, features
from weft.core.policies.kube_knots import Ferikoglou, FerikoglouSafe, KubeKnotsCbp, KubeKnotsPp
from weft.model import BadInputError, Placement, Share
from weft.telemetry.forecast import statistics as stats
from weft.telemetry.forecast.statistics import lag_line
from weft.testing import node, pod, shape

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
COV, SAMPLES = "memory_free_mib.cov", "window.samples"
TREND, PREDICTED = "memory_free_mib.autocorrelation", "memory_free_mib.predicted"
STEADY = {COV: 0.1, SAMPLES: 60.0}
WILD = {COV: 0.9, SAMPLES: 60.0}
FALLING = WILD | {TREND: 0.9, PREDICTED: 8_000.0}


def lender(policy, seen, *, ages=None, idle=6_000):
    """A card of 10,000 MiB whose resident holds 9,000; at most 15,000 may be promised."""
    nodes = [node("a", gpus=1, memory_mib=10_000)]
    engine = engine_of(policy, nodes, {A0: seen}, ages=ages, harvest_permille=1500)
    resident(engine, "lender", "a", 0, 9_000)
    told = readings({A0: seen}, version=2, ages=ages, idle_mib={"lender": (idle,)})
    engine.handle(SignalsChanged(told), 0)
    return engine


def borrower(mib=4_500, **more):
    return pod(memory_mib=mib, **more)


def test_cbp_lends_on_steady_gpus_only():
    assert place(lender(KubeKnotsCbp(), STEADY), borrower()) == A0
    assert place(lender(KubeKnotsCbp(), WILD), borrower()) is None
    assert place(lender(KubeKnotsCbp(), {COV: 0.1, SAMPLES: 19.0}), borrower()) is None
    assert place(lender(KubeKnotsCbp(), STEADY, ages={A0: STALE}), borrower()) is None
    assert place(lender(KubeKnotsCbp(), STEADY, ages={A0: STALE}), borrower(400)) == A0
    assert place(lender(KubeKnotsCbp(), STEADY, idle=0), borrower()) is None


def test_an_unsteady_gpu_is_the_last_resort_where_requests_fit():
    """Waiting for it to calm down is what no metric may cost."""
    assert place(lender(KubeKnotsCbp(), WILD), borrower(400)) == A0
    nodes = [node("a", gpus=1), node("b", gpus=1)]
    engine = engine_of(KubeKnotsCbp(), nodes, {A0: WILD, B0: STEADY})
    resident(engine, "old", "a", 0, 2_000)
    assert place(engine, borrower(400)) == B0
    engine = engine_of(KubeKnotsCbp(), nodes, {A0: WILD})
    resident(engine, "old", "a", 0, 2_000)
    resident(engine, "older", "b", 0, 2_000)
    assert place(engine, borrower(400)) == B0, "a trend that nobody knows is no unsteady one"


def test_a_small_latency_critical_pod_counts_as_uncorrelated_by_the_first_reading():
    """The GPU in use goes before the idle one where it counts as steady, and after it if not."""
    for reading, mib, expected in (
        ("correlation", 1_000, A0),
        ("correlation", 1_001, A1),
        ("cov", 1_000, A1),
    ):
        nodes = [node("a", gpus=2, memory_mib=10_000)]
        engine = engine_of(KubeKnotsCbp(reading=reading), nodes, {A0: WILD, A1: WILD})
        resident(engine, "old", "a", 0, 2_000)
        assert place(engine, borrower(mib, job_class="latency-critical")) == expected
    with pytest.raises(BadInputError, match="write correlation or cov"):
        KubeKnotsCbp(reading="spearman")


def test_cbp_goes_by_the_correlation_with_the_pods_application_where_it_is_known():
    for together, reading, expected in (
        (0.49, "correlation", A0),
        (0.5, "correlation", None),
        (0.5, "cov", A0),
    ):
        seen = STEADY | {"correlation.train": together}
        policy = KubeKnotsCbp(reading=reading)
        assert place(lender(policy, seen), borrower(application="train")) == expected
        assert place(lender(KubeKnotsCbp(), seen), borrower(application="other")) == A0


def test_cbp_takes_gpus_in_use_the_most_free_first_then_idle_ones():
    nodes = [node("a", gpus=3, memory_mib=10_000)]
    engine = engine_of(KubeKnotsCbp(), nodes, {("a", gpu): STEADY for gpu in range(3)})
    resident(engine, "one", "a", 1, 6_000)
    resident(engine, "two", "a", 2, 3_000)
    assert place(engine, borrower(4_000)) == ("a", 2)
    assert place(engine, borrower(8_000, name="large")) == A0


def test_pp_adds_gpus_whose_forecast_is_enough():
    assert place(lender(KubeKnotsCbp(), FALLING), borrower()) is None
    assert place(lender(KubeKnotsPp(), FALLING), borrower()) == A0
    assert place(lender(KubeKnotsPp(trend_above=0.95), FALLING), borrower()) is None
    short = FALLING | {PREDICTED: 5_000.0}  # less the reserve of 512
    assert place(lender(KubeKnotsPp(), short), borrower(4_488)) == A0
    assert place(lender(KubeKnotsPp(), short), borrower(4_489)) is None


def test_pp_keeps_latency_critical_pods_off_gpus_forecast_to_be_busy():
    for busy, expected in ((0.85, A0), (0.86, None)):
        seen = STEADY | {"sm_active_ratio.next": busy}
        engine = engine_of(KubeKnotsPp(), [node("a", gpus=1)], {A0: seen})
        resident(engine, "old", "a", 0, 1_000)
        assert place(engine, borrower(1_000, job_class="latency-critical")) == expected


def test_largest_requests_first_in_kube_knots_smallest_in_its_scheduler():
    small, large = borrower(100), borrower(9_000)
    assert KubeKnotsPp().queue_key(large) < KubeKnotsPp().queue_key(small)
    assert FerikoglouSafe().queue_key(small) < FerikoglouSafe().queue_key(large)


def test_ferikoglou_safe_goes_by_rounds_unless_told_to_take_the_smallest_of_all():
    early = borrower(9_000, created_ns=4_000_000_000)
    late = borrower(100, created_ns=5_000_000_000)
    assert FerikoglouSafe().queue_key(early) < FerikoglouSafe().queue_key(late)
    assert FerikoglouSafe(round_s=0).queue_key(late) < FerikoglouSafe(round_s=0).queue_key(early)


def test_ferikoglou_safe_lends_on_fresh_samples_only():
    seen = STEADY | {"memory_used_mib.p80": 3_000.0}
    assert place(lender(FerikoglouSafe(), seen), borrower()) == A0
    assert place(lender(FerikoglouSafe(), seen, ages={A0: STALE}), borrower()) is None
    assert place(lender(FerikoglouSafe(), seen, idle=2_000), borrower()) is None
    assert place(lender(FerikoglouSafe(), {}), borrower()) is None
    assert Ferikoglou.unsafe
    assert not FerikoglouSafe.unsafe


@pytest.mark.parametrize("policy", [KubeKnotsCbp, KubeKnotsPp, FerikoglouSafe])
def test_one_gpu_of_a_node_lends_to_pods_of_which_nothing_is_known(policy):
    """Two cards leave 6,000 MiB idle; pods like it that ended needed 2,700 at most."""
    told = {gpu: STEADY | {"memory_used_mib.p80": 3_000.0} for gpu in (A0, A1)}
    nodes = [node("a", gpus=2, memory_mib=10_000)]
    for known, second in ((False, None), (True, A1)):
        engine = engine_of(policy(), nodes, told, harvest_permille=1500)
        for gpu in (0, 1):
            resident(engine, f"lender-{gpu}", "a", gpu, 9_000)
        idle = {f"lender-{gpu}": (6_000,) for gpu in (0, 1)}
        engine.handle(SignalsChanged(readings(told, version=2, idle_mib=idle)), 0)
        asks = [borrower(name=name, application="train") for name in ("one", "two")]
        if known:
            engine.peaks.ran(asks[0], 2_700)
        assert [place(engine, one) for one in asks] == [A0, second]


def columns_of(free, used):
    """The snapshot's columns for one GPU's series, as the window computes them."""
    packed, taken = stats.pack(np.array([free])), stats.pack(np.array([used]))
    line = lag_line(packed, 10)
    return {
        SAMPLES: float(min(len(free), len(used))),
        COV: float(stats.coefficient_of_variation(packed)[0]),
        "memory_used_mib.p80": float(stats.quantile_at_index(taken, 0.8)[0]),
        TREND: float(stats.autocorrelation(packed, 10)[0]),
        PREDICTED: float(line.intercept[0] + line.slope[0] * free[-1]),
    }


def a_series(dice):
    """Used memory that is steady, jumps, grows or shrinks."""
    count, kind = (
        dice.choice([12, 19, 20, 30, 60]),
        dice.choice(["steady", "jumps", "grows", "shrinks"]),
    )
    base = dice.uniform(0, 30_000)
    how = {
        "steady": lambda i: base + dice.gauss(0, 50),
        "jumps": lambda i: dice.choice([100.0, 32_000.0]),
        "grows": lambda i: i * 500 + dice.gauss(0, 50),
        "shrinks": lambda i: 32_000 - i * 500 + dice.gauss(0, 50),
    }[kind]
    used = [float(round(min(32_510, max(0, how(i))))) for i in range(count)]
    return [32_510 - mib for mib in used], used


def test_ferikoglou_is_the_published_decision_for_every_gpu():
    """Like `knots.decide`, which reproduces the published logs, on the snapshot's columns."""
    dice, seen = random.Random(7), set()
    for _ in range(400):
        free, used = a_series(dice)
        promised, asked = dice.choice([0, 20_000, 40_000]), dice.randint(1, 32_510)
        ledger = Ledger([node("a", gpus=1, memory_mib=32_510)])
        ledger.adopt(Placement("old", "a", (Share(0, 0, promised, 0),)))
        policy = Ferikoglou()
        observed = Observations(SignalsView(readings({A0: columns_of(free, used)})))
        demand = Demand(shape(memory_mib=asked), ledger.table)
        query = Query(ledger.table, demand, None, observed)
        verdict = kube_knots.decide(asked, 32_510 - promised, free, used)
        assert bool(policy.filter_devices(query)[0]) == verdict.admits, verdict
        seen.add(verdict.why)
    assert seen == set(kube_knots.KnotsRule)


# --- genius --------------------------------------------------------------------------------------


def cards(**more):
    return [node("a", gpus=1, **more), node("b", gpus=1, **more)]


def test_genius_prefers_the_cool_card_and_exact_the_hot_one():
    told = {
        A0: {"power_w": 50.0, "power_limit_w": 300.0, "memory_free_mib": 9_000.0},
        B0: {"power_w": 250.0, "power_limit_w": 300.0, "memory_free_mib": 9_000.0},
    }
    assert place(engine_of(GeniusPolicy(), cards(), told), borrower(1_000)) == A0
    assert place(engine_of(GeniusPolicy(compat="exact"), cards(), told), borrower(1_000)) == B0


def test_genius_prefers_the_better_model():
    nodes = [node("a", gpus=1, model="Tesla T4"), node("b", gpus=1, model="NVIDIA A100-SXM4-40GB")]
    assert place(engine_of(GeniusPolicy(), nodes, {}), borrower(1_000)) == B0


def test_genius_goes_by_measured_free_memory_where_there_is_one():
    told = {A0: {"memory_free_mib.last": 4_000.0}}
    for policy in (GeniusPolicy(), GeniusPolicy(compat="exact")):
        engine = engine_of(policy, [node("a", gpus=1)], told)
        assert place(engine, borrower(4_001)) is None
        assert place(engine, pod(memory_mib=4_000)) == A0


def test_genius_takes_an_idle_card_and_fills_the_others_one_after_the_other():
    engine = engine_of(GeniusPolicy(), [node("a", gpus=3, memory_mib=10_000)], {})
    resident(engine, "large", "a", 0, 5_000)
    resident(engine, "small", "a", 1, 1_000)
    assert place(engine, borrower(1_000, name="one")) == ("a", 2)
    assert place(engine, borrower(1_000, name="two")) == A0
    assert place(engine, borrower(5_000, name="three")) == A1


def test_a_card_that_others_use_is_not_idle():
    told = {A0: {"memory_free_mib.last": 8_000.0}}
    engine = engine_of(GeniusPolicy(), [node("a", gpus=2, memory_mib=10_000)], told)
    assert place(engine, borrower(1_000)) == A1


def test_genius_is_unsafe_only_as_its_original():
    assert GeniusPolicy(compat="exact").unsafe
    assert not GeniusPolicy().unsafe


def test_a_pod_that_has_left_does_not_hold_its_memory_in_old_samples():
    """12,384 MiB were in use, 12,000 of them promised to who left since: sane goes by requests."""
    told = {A0: {"memory_free_mib.last": 4_000.0, "memory_promised_mib": 12_000.0}}
    for compat, expected in (("sane", A0), ("exact", None)):
        engine = engine_of(GeniusPolicy(compat=compat), [node("a", gpus=1)], told)
        assert place(engine, borrower(8_000)) == expected


def test_a_refresh_of_one_gpu_changes_all_exact_scores():
    """The sums go over the cluster, so nodes on which nothing moved must be rated again."""
    nodes = [node(f"n{i}", gpus=1) for i in range(12)]
    told = {(f"n{i}", 0): {"memory_free_mib": 9_000.0, "power_w": 100.0 + i} for i in range(12)}
    engine = engine_of(GeniusPolicy(compat="exact"), nodes, told)
    known = engine.assess(engine.profiles["weft"], borrower(1_000))
    before = known.total.copy()
    told["n0", 0]["power_w"] = 20_000.0
    engine.handle(SignalsChanged(readings(told, version=2)), 2)
    again = engine.assess(engine.profiles["weft"], borrower(1_000))
    assert again.total[0] > before[0]
    assert (again.total[1:] < before[1:]).all()


def test_higher_genius_priority_goes_first():
    keys = [
        GeniusPolicy().queue_key(pod(name, gpus=1, queue_priority=n))
        for name, n in (("urgent", 9), ("late", 1))
    ]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("model", "multiprocessors", "bandwidth"),
    [
        ("Tesla T4", 40, 320),
        ("NVIDIA A100-SXM4-80GB", 108, 2039),
        ("A10", 72, 600),
        ("NVIDIA A100-PCIE-40GB", 108, 1555),
        ("V100M32", 80, 900),
        ("NVIDIA GeForce GTX 1070 Ti", 19, 256),
        ("NVIDIA H100 PCIe", 114, 2039),
    ],
)
def test_the_model_map_knows_names_as_they_are_written(model, multiprocessors, bandwidth):
    found = features(model)
    assert (found[0], found[3]) == (multiprocessors, bandwidth)


def test_unknown_models_are_unknown():
    assert np.isnan(features("G2")).all()
    assert np.isnan(features("")).all()

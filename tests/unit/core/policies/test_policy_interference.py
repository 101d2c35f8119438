"""interference and lucid: who may share, whom it suits best, and who waits."""

import itertools
import math
import random

import msgspec
import numpy as np
import pytest
from long_form import few_or_many

from weft.core.engine import (
    Bind,
    Engine,
    PodAdded,
    PodGone,
    PodSeenBound,
    PolicyInput,
    SignalsChanged,
)
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, snapshot
from weft.core.policies import interference as policy
from weft.core.policies.catalog import built_in
from weft.core.policies.pair_costs import few_of_each, greedy, most_valuable
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest
from weft.model.interference_table import (
    INTERFERENCE,
    OBSERVED,
    InterferenceTable,
    PredictionTier,
    interference,
    to_input,
)
from weft.testing import node, placement, pod

NAMES = ("calm", "fair", "loud")
SLOWER = np.array([[1.02, 1.05, 1.2], [1.05, 1.15, 1.5], [1.1, 1.4, 2.4]])
"""Times the time alone, of the row beside the column."""
S = 1_000_000_000


def told(upper=1.0, tier=PredictionTier.MEASURED, never=(), model="T4"):
    """The table above; bounds `upper` times as far; UNKNOWN beyond it."""
    size = len(NAMES) + 1
    mean, tiers = (
        np.full((size, size), 0.04),
        np.full((size, size), PredictionTier.UNKNOWN, dtype=np.int8),
    )
    mean[:-1, :-1], tiers[:-1, :-1] = np.log(SLOWER), tier
    bound = mean * upper
    for one, other in never:
        bound[NAMES.index(one), NAMES.index(other)] = math.inf
    arrays = (mean[None], np.maximum(bound, mean)[None], tiers[None])
    return to_input(interference(1, [model], NAMES, arrays))


def engine(nodes=1, gpus=1, table=None, policy="interference", **options):
    made = built_in().create(policy, **options)
    cluster = [node(f"n{i}", gpus=gpus, model="T4") for i in range(nodes)]
    found = Engine([Profile("weft", [made])], cluster)
    found.handle(PolicyInput(INTERFERENCE, told() if table is None else table), 0)
    return found


def runs(found, where, application, job_class="", gpu=0):
    place = placement(f"{application}-{where}-{gpu}", where, gpu, memory_mib=100)
    place = msgspec.structs.replace(place, application=application, job_class=job_class)
    found.handle(PodSeenBound(place), 0)


def asks(name, application="", job_class="", at=0):
    return pod(
        name, memory_mib=100, application=application or name, job_class=job_class, created_ns=at
    )


def goes(found, application, job_class="", at=1):
    """(node, GPU) or None."""
    command = found.handle(PodAdded(asks(f"new-{at}", application, job_class, at)), at)[0]
    if not isinstance(command, Bind):
        return None
    return command.placement.node, command.placement.shares[0].gpu


def test_an_empty_gpu_before_any_company():
    found = engine(gpus=2)
    runs(found, "n0", "calm")
    assert goes(found, "calm") == ("n0", 1)


def test_the_company_that_suits_best():
    found = engine(nodes=3)
    for where, application in (("n0", "loud"), ("n1", "calm"), ("n2", "fair")):
        runs(found, where, application, "best-effort")
    assert goes(found, "fair", "best-effort") == ("n1", 0)


def test_never_more_than_most():
    found = engine(most=2)
    runs(found, "n0", "calm")
    runs(found, "n0", "fair")
    assert goes(found, "calm") is None
    three = engine(most=3, patience=0)
    runs(three, "n0", "calm")
    runs(three, "n0", "fair")
    assert goes(three, "calm") == ("n0", 0)


def test_a_latency_critical_pod_keeps_its_bound_on_either_side():
    """1.05 is within 1.10, 1.2 is not; the bound counts, not what is expected."""
    for resident, comes, fits in (("calm", "fair", True), ("calm", "loud", False)):
        found = engine()
        runs(found, "n0", resident, "latency-critical")
        assert (goes(found, comes) is not None) == fits
    assert goes(critical_beside("fair"), "calm", "latency-critical") is not None
    assert goes(critical_beside("loud"), "calm", "latency-critical") is None
    assert goes(critical_beside("fair", told(upper=3)), "calm", "latency-critical") is None


def critical_beside(application, table=None):
    found = engine(table=table)
    runs(found, "n0", application, "best-effort")
    return found


def test_what_brings_too_little_is_refused():
    """loud beside loud: 2/2.4 of a GPU's work is done."""
    found = engine()
    runs(found, "n0", "loud", "best-effort")
    assert goes(found, "loud", "best-effort") is None


def test_forbidden_pairs_never():
    found = engine(table=told(never=[("calm", "calm")]))
    runs(found, "n0", "calm")
    assert goes(found, "calm") is None


def test_few_waiting_want_more_of_a_place_than_many():
    """fair beside loud brings 1/1.5 + 1/1.4 − 1 = 0.38: less than 0.5 − a bit, more than 0.05."""
    alone = engine(nodes=10)
    for number in range(10):
        runs(alone, f"n{number}", "loud", "best-effort")
    assert goes(alone, "fair", "best-effort") is None
    assert goes(engine_full(2), "fair", "best-effort") is not None


def engine_full(nodes):
    """So few GPUs that one waiting pod is many."""
    found = engine(nodes=nodes)
    for number in range(nodes):
        runs(found, f"n{number}", "loud", "best-effort")
    return found


def test_batch_pods_may_be_slowed_more_where_many_wait():
    """Worst slowdown 1.5: above 1.30, within 1.30 · (1 + 1/2)."""
    for nodes, fits in ((12, False), (2, True)):
        found = engine(nodes=nodes, patience=0)
        for number in range(nodes):
            runs(found, f"n{number}", "loud")
        assert (goes(found, "fair") is not None) == fits


def test_waiting_pods_are_matched_not_served_in_order():
    """Two wait, two GPUs have one pod each; the older one's favourite is all the other one has."""
    found = engine(nodes=2, patience=0, table=told(never=[("loud", "loud"), ("calm", "loud")]))
    runs(found, "n0", "calm", "best-effort")
    runs(found, "n1", "loud", "best-effort")
    for name in ("n0", "n1"):
        found.handle(PodSeenBound(placement(f"more-{name}", name, 0, memory_mib=100)), 0)
    waits = [asks("older", "fair", "best-effort", 1), asks("newer", "calm", "best-effort", 2)]
    for one in waits:
        assert not isinstance(found.handle(PodAdded(one), 2)[0], Bind)
    profile = found.profiles["weft"]
    found.ledger.release("more-n0")
    found.ledger.release("more-n1")
    fits = {one.uid: (found.assess(profile, one).codes == 0).tolist() for one in waits}
    assert fits == {"older": [False, True], "newer": [True, False]}
    alone = found.assess(profile, waits[0], None)
    assert int(alone.total.argmax()) == 0, "alone it would go beside calm"


def test_a_pod_that_waited_for_company_gets_it_when_it_comes():
    """No room is freed: the pod that came is what the other waited for."""
    found = engine(nodes=1, gpus=2, patience=0)
    runs(found, "n0", "loud", "best-effort", gpu=0)
    place = placement("blocks", "n0", 1, memory_mib=16_384)
    found.handle(PodSeenBound(place), 0)
    assert goes(found, "loud", "best-effort") is None
    commands = found.handle(PodGone("blocks"), 10 * S)
    assert [c.pod.uid for c in commands if isinstance(c, Bind)] == ["new-1"]


@pytest.mark.parametrize(("utilisation", "fits"), [(0.05, True), (0.5, False), (None, True)])
def test_the_unknown_goes_by_measured_use(utilisation, fits):
    found = engine()
    runs(found, "n0", "nobody knows", "best-effort")
    if utilisation is not None:
        values = {"gpu_util_ratio": (np.array([utilisation]), np.array([FRESH], dtype=np.int8))}
        found.handle(SignalsChanged(snapshot(1, 0, [("n0", 0)], values)), 0)
    profile = found.profiles["weft"]
    known = found.assess(profile, asks("new", "calm", "best-effort"), None)
    assert (known.codes[0] == 0) == fits


def test_the_unknown_may_share_where_several_wait_however_dark_the_guess():
    """Beside strangers 0.45 of a GPU's work is expected of two: no measurement forbids it."""
    table = told()
    size = len(NAMES) + 1
    dark, tiers = (
        np.full((1, size, size), 1.5),
        np.full((1, size, size), PredictionTier.UNKNOWN, np.int8),
    )
    table = to_input(interference(1, ["T4"], NAMES, (dark, dark, tiers)))
    found = engine(table=table)
    for number in range(2):
        place = msgspec.structs.replace(
            placement(f"r{number}", "n0", 0, memory_mib=100), application=f"r{number}"
        )
        found.handle(PodSeenBound(place), 0)
    for number in range(2):
        assert goes(found, f"new{number}", at=number + 1) is None
    commands = found.handle(PodGone("r0"), 20 * S)
    assert len([one for one in commands if isinstance(one, Bind)]) == 1


def test_bounds_that_are_not_calibrated_are_not_believed():
    found = engine(table=told(tier=-PredictionTier.LEARNED))
    runs(found, "n0", "calm", "latency-critical")
    assert goes(found, "calm", "best-effort") is None


def test_bad_options():
    for option in ("critical", "batch", "most"):
        with pytest.raises(BadInputError, match=option):
            built_in().create("interference", **{option: 0})


# --- lucid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compat", ["exact", "sane"])
def test_exact_coscheml_keeps_its_table_whatever_was_observed(compat):
    policy = built_in().create("coscheml", compat=compat)
    policy.take_input(INTERFERENCE, msgspec.convert(told(), InterferenceTable))
    assert policy.cost("fair", "loud", "T4") == pytest.approx(1.5 + 1.4)
    observed = told(never=[("fair", "loud")]) | {"sources": (OBSERVED,)}
    policy.take_input(INTERFERENCE, msgspec.convert(observed, InterferenceTable))
    kept = policy.cost("fair", "loud", "T4")
    assert math.isfinite(kept) == (compat == "exact")


def test_lucids_points():
    policy = built_in().create("lucid")
    policy.take_input(INTERFERENCE, msgspec.convert(told(), InterferenceTable))
    assert [policy.points_of(name, "T4") for name in (*NAMES, "who")] == [1, 2, 2, 2]


def test_lucid_pairs_have_two_points_at_most():
    for resident, comes, fits in (("calm", "calm", True), ("calm", "fair", False)):
        found = engine(policy="lucid")
        runs(found, "n0", resident)
        assert (goes(found, comes) is not None) == fits


def test_lucid_keeps_apart_what_must_not_share():
    """Forbidden by a table, for memory, or for half an hour: points do not come into it."""
    for pair in (("calm", "calm"), ("calm", "never-there")):
        found = engine(policy="lucid", table=told(never=[pair] if pair[1] in NAMES else []))
        runs(found, "n0", "calm")
        assert (goes(found, "calm") is None) == (pair[1] == "calm")


# --- in auto ----------------------------------------------------------------------------------


def test_auto_prefers_the_better_company_and_refuses_bad_one():
    found = engine(nodes=2, policy="auto")
    runs(found, "n0", "loud", "best-effort")
    runs(found, "n1", "calm", "best-effort")
    assert goes(found, "fair", "best-effort") == ("n1", 0)
    alone = engine(policy="auto")
    runs(alone, "n0", "loud", "best-effort")
    assert goes(alone, "loud", "best-effort") is None


@pytest.mark.parametrize("table", [None, told(never=[("calm", "calm")])])
def test_auto_without_predictions_and_with_forbidden_pairs(table):
    found = engine(policy="auto", table=table)
    if table is None:
        found.handle(PolicyInput(INTERFERENCE, to_input(interference(2, [], [], EMPTY))), 0)
    runs(found, "n0", "calm", "best-effort")
    assert (goes(found, "calm", "best-effort") is not None) == (table is None)


EMPTY = (np.zeros((0, 1, 1)), np.zeros((0, 1, 1)), np.zeros((0, 1, 1), dtype=np.int8))


# --- matching ------------------------------------------------------------------------------------


def test_greedy_takes_the_cheapest_first_and_each_once():
    costs = [(3.0, "a", 1), (1.0, "b", 1), (2.0, "b", 2), (9.0, "a", 2)]
    assert greedy(costs) == {"b": 1, "a": 2}
    assert greedy([(1.0, "first", 1), (1.0, "second", 1)]) == {"first": 1}


def test_the_most_valuable_matching_is_the_best_of_all():
    dice = random.Random(3)
    for _ in range(200):
        rows, columns = dice.randint(1, 4), dice.randint(1, 5)
        values = np.array(
            [[max(0.0, dice.uniform(-0.5, 1)) for _ in range(columns)] for _ in range(rows)]
        )
        found = most_valuable(values)
        assert all(c < 0 or values[r, c] > 0 for r, c in enumerate(found))
        taken = [c for c in found if c >= 0]
        assert len(set(taken)) == len(taken)
        mine = sum(values[r, c] for r, c in enumerate(found) if c >= 0)
        slots = [*range(columns), *([-1] * rows)]
        best = max(
            sum(values[r, c] for r, c in enumerate(chosen) if c >= 0)
            for chosen in set(itertools.permutations(slots, rows))
        )
        assert mine == pytest.approx(best)


def test_few_of_each():
    assert few_of_each(np.array([5, 5, 1, 5, 1, 2]), 2).tolist() == [0, 1, 2, 4, 5]


def test_who_could_not_have_the_gpus_changes_no_matching(monkeypatch):
    filter_pending, could_take = policy.InterferencePolicy.filter_pending, policy._could_take
    left_out = []

    def both_ways(self, query, pending):
        found = filter_pending(self, query, pending)
        with monkeypatch.context() as patch:
            patch.setattr(policy, "MOST_UNLIKE", 10**6)
            patch.setattr(policy, "_could_take", lambda *_, **__: True)
            everybody = filter_pending(self, query, pending)
        assert found.tolist() == everybody.tolist()
        return found

    def noted(shape, *free, **more):
        could = could_take(shape, *free, **more)
        left_out.append(not could)
        return could

    monkeypatch.setattr(policy.InterferencePolicy, "filter_pending", both_ways)
    monkeypatch.setattr(policy, "_could_take", noted)
    for seed in range(few_or_many(4, 12)):
        dice, there = random.Random(seed), []
        found = engine(nodes=3, gpus=2)
        for at in range(90):
            if there and dice.random() < 0.3:
                found.handle(PodGone(there.pop(dice.randrange(len(there)))), at)
                continue
            memory_mib = dice.choice([0, 500, 3_000, 9_000, 15_000, 20_000])
            one = request_of(f"p{at}", memory_mib, dice.choice([0, 100, 600]), dice)
            commands = found.handle(PodAdded(one), at)
            there += [each.pod.uid for each in commands if isinstance(each, Bind)]
    assert left_out.count(True) > few_or_many(30, 100)
    assert left_out.count(False) > few_or_many(30, 100)


def request_of(name, memory_mib, milli, dice):
    """A pod that asks for a share, or now and then for a whole card."""
    asked = [GpuRequest(memory=GpuMemoryRequest("mib", memory_mib), milli=milli)]
    if dice.random() < 0.2 or not (memory_mib or milli):
        asked = [GpuRequest(memory=GpuMemoryRequest("mib", memory_mib), whole=True)]
    wanted = pod(name, gpu_requests=asked)
    shape = msgspec.structs.replace(wanted.shape, application=dice.choice(NAMES))
    return msgspec.structs.replace(wanted, shape=shape)

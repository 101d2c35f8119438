"""How long pods would be together: stage by stage, and what follows for who may join."""

import random

import msgspec
import numpy as np
import pytest
from long_form import few_or_many

from weft.core.engine import (
    Bind,
    Engine,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    PolicyInput,
)
from weft.core.framework import Demand, Profile, Query
from weft.core.policies.catalog import built_in
from weft.core.policies.interference import OverlapTime, Remaining, finishes
from weft.model.interference_table import (
    INTERFERENCE,
    InterferenceView,
    PredictionTier,
    interference,
    to_input,
)
from weft.testing import node, placement, pod

S = 1_000_000_000


def ends(work, slower):
    work, slower = np.array(work, dtype=np.float64), np.array(slower)
    return finishes(work[:, None], slower[:, :, None])[:, 0].tolist()


def test_two_pods_until_one_ends_then_one():
    """100 s at half speed, 50 s at 0.8: together for 62.5 s, then 68.75 s alone."""
    slower = np.log([[1.0, 2.0], [1.25, 1.0]])
    assert ends([100, 50], slower) == pytest.approx([131.25, 62.5])
    assert ends([0, 50], slower) == pytest.approx([0, 50]), "nobody is no company"


def test_three_stages():
    """A quarter of the speed each until 40 s, half until 80 s, then alone."""
    slower = np.log(2.0) * (1 - np.eye(3))
    assert ends([10, 30, 40], slower) == pytest.approx([40, 80, 90])
    assert ends([10, 10, 40], slower) == pytest.approx([40, 40, 70]), "two at once"


def slowly(work, slower):
    """The same, one event after the other."""
    left, end, now = dict(enumerate(work)), [0.0] * len(work), 0.0
    left = {one: seconds for one, seconds in left.items() if seconds > 0}
    while left:
        speed = dict.fromkeys(left, 1.0)
        for one in left:
            for other in left:
                if other != one:
                    speed[one] /= np.exp(slower[one][other])
        first = min(left, key=lambda one: left[one] / speed[one])
        passed = left[first] / speed[first]
        now += passed
        left = {one: left[one] - passed * speed[one] for one in left if one != first}
        end[first] = now
    return end


def test_stages_like_the_slow_reference():
    dice = random.Random(8)
    for _ in range(300):
        size = dice.randint(1, 5)
        work = [dice.choice([0, dice.uniform(1, 1000)]) for _ in range(size)]
        slower = np.array(
            [[dice.uniform(-0.05, 1.5) * (i != j) for j in range(size)] for i in range(size)]
        )
        assert ends(work, slower) == pytest.approx(slowly(work, slower), rel=1e-9)


NAMES = ("fair", "loud")
SLOWER = np.array([[1.15, 1.5, 1.04], [1.4, 2.4, 1.04], [1.04, 1.04, 1.04]])


def engine(**options):
    mean = np.log(SLOWER)[None]
    tiers = np.full(mean.shape, PredictionTier.MEASURED, dtype=np.int8)
    made = built_in().create("interference", **options)
    found = Engine([Profile("weft", [made])], [node("n0", gpus=2, model="T4", memory_mib=10_000)])
    found.handle(
        PolicyInput(INTERFERENCE, to_input(interference(1, ["T4"], NAMES, (mean, mean, tiers)))), 0
    )
    return found


def runs(found, gpu, expected_s, memory_mib=100, at_s=0, held_s=0):
    place = placement(f"r{gpu}", "n0", gpu, memory_mib=memory_mib)
    place = msgspec.structs.replace(
        place, application="loud", job_class="best-effort", expected_s=expected_s
    )
    seen = PodSeenBound(place, bound_ns=1_767_225_600 * S, held_ns=held_s * S)
    found.handle(seen, at_s * S)


def fits(found, expected_s, at_s=0):
    new = pod("new", memory_mib=1000, application="fair", job_class="best-effort")
    new = msgspec.structs.replace(
        new, shape=msgspec.structs.replace(new.shape, expected_s=expected_s)
    )
    return isinstance(found.handle(PodAdded(new), at_s * S)[0], Bind)


def beside(first_s=1000, other_s=50, **options):
    """One GPU with room beside a pod; the other, full, will be free after `other_s`."""
    found = engine(**options)
    runs(found, 0, first_s)
    runs(found, 1, other_s, memory_mib=10_000)
    return found


def test_who_would_be_long_together_waits_for_a_gpu_of_its_own():
    """1,000 s beside 1,000 s: one ends 400 s, the other 467 s later; a GPU is free in 50 s.

    867 s > 50 s + 0.5 · 533 s saved. In 800 s instead: 867 s < 800 s + 267 s.
    """
    assert not fits(beside(), 1000)
    assert fits(beside(other_s=800), 1000)
    assert not fits(beside(other_s=590), 1000)
    assert fits(beside(other_s=610), 1000)


def test_a_restart_does_not_begin_anew():
    """Told 10,000 s after the machine's boot that pods have been there for 700 s, since a time of
    day in 2026: as if they had been seen all the while.
    """
    found = engine()
    runs(found, 0, 1000, at_s=10_000, held_s=700)
    runs(found, 1, 800, memory_mib=10_000, at_s=10_000, held_s=700)
    assert [residency.since_ns for residency in found.residencies.on(("n0", 0))] == [9_300 * S]
    assert not fits(found, 1000, at_s=10_000)


def test_who_is_soon_over_joins():
    """30 s beside 1,000 s: together for 45 s, of which 28 s are lost; a GPU is free in 50 s."""
    assert fits(beside(), 30)
    assert not fits(beside(other_s=10), 30)


def test_time_that_passed_counts():
    """After 700 s: together for 420 s, 260 s lost and 160 s saved, and 100 s to wait; after 980 s
    of 1,000 together for 28 s, 17 s lost, and 50 s to wait.
    """
    assert fits(beside(other_s=800), 1000)
    assert not fits(beside(other_s=800), 1000, at_s=700)
    assert fits(beside(other_s=1030), 1000, at_s=980)


@pytest.mark.parametrize(("options", "expected_s"), [({"overlap": False}, 1000), ({}, 0)])
def test_by_speeds_where_it_is_not_asked_for_or_not_known(options, expected_s):
    assert fits(beside(**options), expected_s)


def test_by_speeds_where_residents_do_not_say():
    found = engine()
    runs(found, 0, 0)
    runs(found, 1, 0, memory_mib=10_000)
    assert fits(found, 1000)


def ends_one_by_one(residencies, query, speeds, believed):
    """(device, when each pod there ends) where all say how long; log slowdowns [k, k]."""

    def speed(who, co_residents):
        return np.exp(-sum(speeds[index(who), index(other)] for other in co_residents))

    def index(who):
        return NAMES.index(who.application)

    for device in range(len(query.device_pods)):
        there_is = query.table.nodes[query.device_node[device]]
        there = residencies.on((there_is.name, there_is.gpus[query.device_local[device]].index))
        if there and len(there) <= 3 and all(residency.expected_s for residency in there):
            who = [index(residency.resident) for residency in there]
            work = [residency.left_s(residencies.now_ns, speed) for residency in there]
            yield device, slowly(work, believed[np.ix_(who, who)])


def random_event(dice, number, alive):
    """Bound pods come and go, most say how long they take; nodes leave and come back."""
    kind = dice.random()
    if kind < 0.6 and len(alive) < 10:
        place = placement(f"u{number}", f"n{dice.randrange(3)}", dice.randrange(2), memory_mib=100)
        alive.append(place.uid)
        said = msgspec.structs.replace(
            place,
            application=dice.choice(NAMES),
            expected_s=dice.choice([0, *[100, 1000, 4000] * 4]),
        )
        return PodSeenBound(said, held_ns=dice.randrange(50) * S)
    if kind < 0.9 and alive:
        return PodGone(alive.pop(dice.randrange(len(alive))))
    name = f"n{dice.randrange(3)}"
    if dice.random() < 0.5:
        return NodesChanged((), (name,))
    return NodesChanged((node(name, gpus=2, model="T4", memory_mib=10_000),))


@pytest.mark.parametrize("seed", range(few_or_many(2, 4)))
def test_what_is_kept_from_event_to_event_is_what_one_by_one_gives(seed):
    dice, found, alive, seen = random.Random(seed), engine(), [], 0
    found.handle(
        NodesChanged(
            tuple(node(f"n{number}", gpus=2, model="T4", memory_mib=10_000) for number in range(3))
        ),
        0,
    )
    caution, remaining = 0.5, Remaining(found.residencies, 0.5)
    for number in range(150):
        found.handle(random_event(dice, number, alive), (100 + 20 * number) * S)
        mean = np.log(SLOWER * (1.0 if number < 75 else 0.9))
        if number in (0, 75):  # a new table of predictions
            tiers = np.full((1, 3, 3), PredictionTier.MEASURED, dtype=np.int8)
            arrays = (mean[None], mean[None] + 0.1, tiers)
            view = InterferenceView(interference(number, ["T4"], NAMES, arrays))
        query = Query(found.ledger.table, Demand(pod("q", memory_mib=1).shape, found.ledger.table))
        lasting = OverlapTime(query, remaining, view)
        slow = dict(ends_one_by_one(found.residencies, query, mean, mean + caution * 0.1))
        assert lasting.devices.tolist() == list(slow)
        later, _ = lasting.costs("fair", 500.0)
        for at, (device, before) in enumerate(slow.items()):
            seen += 1
            assert lasting._end[: len(before), at].tolist() == pytest.approx(before, rel=1e-9)
            only = np.zeros(len(query.device_pods), dtype=np.bool_)
            only[device] = True
            assert lasting.only(only).costs("fair", 500.0)[0].tolist() == [later[at]]
    assert seen > 100


def test_nobody_looks_where_no_waiting_pod_says_how_long():
    """Nor after the last one that said so is gone: by speeds alone, at their cost."""
    found = beside()
    policy = found.profiles["weft"].policies[0]
    assert fits(found, 0)
    assert policy._remaining is None
    found.handle(PodGone("r0"), 0)
    found.handle(PodGone("r1"), 0)
    assert not found.residencies.expected

"""How long pods would be together: stage by stage, and what follows for who may join."""

import random

import msgspec
import numpy as np
import pytest

from weft.engine import Bind, Engine, PodAdded, PodSeenBound, PolicyInput
from weft.framework import Profile
from weft.framework.interference import INPUT, Tier, interference, to_input
from weft.policies.catalog import built_in
from weft.policies.overlap import finishes
from weft.testing import node, placement, pod

S = 1_000_000_000


def ends(work, slower):
    return finishes(np.array([work], dtype=np.float64), np.array([slower]))[0].tolist()


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
        slower = np.array([[dice.uniform(-0.05, 1.5) * (i != j) for j in range(size)]
                           for i in range(size)])  # fmt: skip
        assert ends(work, slower) == pytest.approx(slowly(work, slower), rel=1e-9)


NAMES = ("fair", "loud")
SLOWER = np.array([[1.15, 1.5, 1.04], [1.4, 2.4, 1.04], [1.04, 1.04, 1.04]])


def engine(**options):
    mean = np.log(SLOWER)[None]
    tiers = np.full(mean.shape, Tier.MEASURED, dtype=np.int8)
    made = built_in().create("interference", **options)
    found = Engine([Profile("weft", [made])], [node("n0", gpus=2, model="T4", memory_mib=10_000)])
    found.handle(
        PolicyInput(INPUT, to_input(interference(1, ["T4"], NAMES, (mean, mean, tiers)))), 0
    )
    return found


def runs(found, gpu, expected_s, memory_mib=100, at_s=0):
    place = placement(f"r{gpu}", "n0", gpu, memory_mib=memory_mib)
    place = msgspec.structs.replace(
        place, application="loud", job_class="best-effort", expected_s=expected_s
    )
    found.handle(PodSeenBound(place, bound_ns=at_s * S), at_s * S)


def fits(found, expected_s, at_s=0):
    new = pod("new", memory_mib=1000, application="fair", job_class="best-effort")
    new = msgspec.structs.replace(new, shape=msgspec.structs.replace(
        new.shape, expected_s=expected_s))  # fmt: skip
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

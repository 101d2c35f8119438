"""Shapes that come are counted as they come, and forgotten."""

from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodBound, PolicyInput
from weft.core.framework import Profile
from weft.core.framework.popularity import FIRST_STEP, ArrivedPods, weight_of
from weft.core.policies.least_stranding import LeastStranding
from weft.lab.simulate.scenario import learning
from weft.model import PodRequest
from weft.testing import node, shape

SMALL, LARGE = shape(milli=300), shape(gpus=1)


def _counts(histogram: object) -> list[int]:
    return [weight for _, weight in histogram]  # type: ignore[attr-defined]


def test_a_pod_counts_half_after_each_half_life() -> None:
    arrived = ArrivedPods(half_life_ns=10)
    arrived.add(SMALL, 0)
    arrived.add(LARGE, 10)
    assert _counts(arrived.histogram(10)) == [500, 1000]
    assert _counts(arrived.histogram(20)) == [250, 500]
    arrived.add(SMALL, 20 + 10 * 12)
    assert _counts(arrived.histogram(20 + 10 * 12)) == [1000]  # the others are forgotten


def test_without_a_half_life_all_count_alike() -> None:
    arrived = ArrivedPods()
    for at, each in enumerate((SMALL, LARGE, SMALL)):
        arrived.add(each, at)
    assert _counts(arrived.histogram(9)) == [2, 1]
    assert [weight_of(age, 100) for age in (0, 100, 300, 1e9)] == [1000, 500, 125, 0]


def test_a_histogram_is_due_each_quarter_more() -> None:
    arrived, due = ArrivedPods(), []
    for at in range(400):
        if arrived.is_due:
            due.append(at)
            arrived.histogram(at)
        arrived.add(SMALL, at)
    assert due == [FIRST_STEP, 100, 150, 200, 250, 313, 392]


def test_policies_learn_before_the_pod_comes_and_only_from_earlier_ones() -> None:
    """Nothing but small shares came: a policy that learnt it leaves no room for halves."""
    engine = Engine([Profile("weft", [LeastStranding()])])
    told: list[PolicyInput] = []

    def handle(event, now_ns):  # type: ignore[no-untyped-def]
        if isinstance(event, PolicyInput):
            told.append(event)
        return engine.handle(event, now_ns)

    learn = learning(handle, 0)
    learn(NodesChanged((node("a", gpus=8), node("b", gpus=8))), 0)
    for at in range(FIRST_STEP + 1):
        assert len(told) == 0
        for command in learn(PodAdded(PodRequest(str(at), f"p{at}", SMALL)), at):
            if isinstance(command, Bind):
                learn(PodBound(str(at)), at)
    (event,) = told
    assert _counts(event.value) == [FIRST_STEP]

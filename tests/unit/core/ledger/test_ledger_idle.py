"""Idle memory of pods: only what moved is written anew, and a question can look past it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.core.explain.counterfactual import nothing_idle
from weft.core.ledger import Ledger, RequestLimits, audit
from weft.testing import node, placement

LENDING = RequestLimits(harvest_permille=1500)
PODS = [("p", "a", 0), ("q", "a", 1), ("r", "a", 0), ("s", "b", 0), ("t", "gone", 0)]


def ledger(limits: RequestLimits = LENDING) -> Ledger:
    made = Ledger([node("a", gpus=2, memory_mib=10_000), node("b", gpus=1)], limits)
    for uid, where, gpu in PODS:
        made.adopt(placement(uid, where, gpu, memory_mib=4_000))
    return made


def moved(made: Ledger, **idle: tuple[int, ...]) -> tuple[int, list[str]]:
    """How far the version moved, and which nodes changed."""
    before = made.version
    made.set_idle(idle)
    table = made.table
    changed = np.flatnonzero(table.changed_at > before).tolist()
    return made.version - before, [table.nodes[row].name for row in changed]


def test_only_nodes_whose_pods_leave_something_else_idle_are_written() -> None:
    made = ledger()
    assert moved(made, p=(100,), q=(100,), s=(9_000,)) == (3, ["a", "b"])
    assert moved(made, s=(9_000,), q=(100,), p=(100,)) == (0, [])
    assert moved(made, p=(100,), q=(100,), s=(4_000, 7)) == (0, [])
    assert moved(made, p=(100,), q=(100,), s=(3_999,)) == (1, ["b"])
    assert moved(made, p=(100,), q=(0,)) == (2, ["a", "b"])
    assert moved(made, t=(50,), nobody=(50,)) == (2, ["a"])
    assert [uid for uid, held in made.holdings.items() if held.idle_mib] == ["t"]
    assert moved(made) == (1, [])
    assert audit(made) == []


def test_a_pod_that_was_released_and_came_back_leaves_idle_what_is_told_of_it_now() -> None:
    made = ledger()
    made.set_idle({"p": (100,)})
    made.checkpoint()
    made.release("p")
    made.rollback()
    assert made.holdings["p"].idle_mib == (100,)
    made.release("p")
    made.adopt(placement("p", "b", 0, memory_mib=4_000))
    assert moved(made, p=(100,)) == (1, ["b"])
    made.release("p")
    assert moved(made) == (0, [])
    assert audit(made) == []


@given(
    st.lists(
        st.dictionaries(st.sampled_from("pqrst"), st.lists(st.integers(-9, 5_000))), max_size=6
    ),
    st.sampled_from([LENDING, RequestLimits(1200, 1500), RequestLimits(1200, 1000)]),
)
def test_whatever_was_told_before_the_last_counts(
    told: list[dict[str, list[int]]], limits: RequestLimits
) -> None:
    made, fresh = ledger(limits), ledger(limits)
    for one in told:
        made.set_idle(one)
    fresh.set_idle(told[-1] if told else {})
    assert made.holdings == fresh.holdings
    assert audit(made) == []


@given(
    st.dictionaries(st.sampled_from("pqrst"), st.tuples(st.integers(0, 5_000))),
    st.dictionaries(st.sampled_from([("a", 0), ("b", 0)]), st.integers(0, 20_000)),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from([LENDING, RequestLimits(1200, 1500), RequestLimits(1200, 1000)]),
)
def test_a_question_about_nothing_idle_finds_what_such_a_ledger_says(
    idle: dict[str, tuple[int]],
    back: dict[tuple[str, int], int],
    seen: list[bool],
    limits: RequestLimits,
) -> None:
    made, blank = ledger(limits), ledger(limits)
    made.set_idle(idle)
    made.hold_back(back)
    made.set_measured(np.array(seen))
    table, version = made.table, made.version
    before = table.device_cells.copy(), table.device_unneeded.copy()
    with nothing_idle(table):
        for column in ("device_memory_harvest", "device_memory_free", "device_unneeded"):
            assert np.array_equal(getattr(table, column), getattr(blank.table, column)), column
    assert (table.device_cells == before[0]).all()
    assert (table.device_unneeded == before[1]).all()
    assert (made.version, audit(made)) == (version, [])

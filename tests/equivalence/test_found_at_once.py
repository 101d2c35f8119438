"""The result of a search, and its score, are the same however much of it is done at once.

A policy is asked about many steps of one GPU request together, and the way of the tightest devices
is tried before all others. With every policy, on partly used nodes whose cards are cut or whole.
"""

from random import Random

import numpy as np
import pytest
from long_form import few_or_many

from weft.core.framework import Profile, assignment
from weft.core.framework.assignment import Assignment
from weft.core.framework.demand import Demand
from weft.core.framework.query import Query
from weft.core.framework.search import AssignmentSearch, SearchResult, nothing
from weft.core.ledger import Ledger
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import GpuMemoryRequest, GpuRequest, Shape
from weft.testing import node, placement, shape

NAMES = [policy.name for policy in BUILT_IN]
GET_STUCK = ("auto", "least-stranding", "spread")
"""Policies to which a search must find what the steps one after the other do not."""
WORLDS = few_or_many(6, 100)


def partly_used(dice: Random) -> Ledger:
    nodes = [
        node("cut", gpus=dice.randint(1, 3), model="A100", memory_mib=40_000, mig=7),
        node("mixed", gpus=2, memory_mib=[8_000, 16_000]),
        node("whole", gpus=dice.randint(2, 5), memory_mib=16_000),
        node("halves", gpus=2, model="A100", memory_mib=40_000, mig=2, broken=[dice.randint(0, 1)]),
    ]
    ledger = Ledger(nodes)
    for one in nodes:
        for gpu in one.gpus:
            used, milli = dice.choice([0, 1_000, 7_000]), dice.choice([0, 100, 600])
            there = placement(
                f"{one.name}-{gpu.index}", one.name, gpu.index, memory_mib=used, milli=milli
            )
            if dice.random() < 0.4 and ledger.fits(there):
                ledger.reserve(there)
    return ledger


def some_shape(dice: Random) -> Shape:
    def request(count: int) -> GpuRequest:
        memory = GpuMemoryRequest("mib", dice.choice([1, 1_500, 4_900, 7_700]))
        return GpuRequest(count, memory, milli=dice.choice([0, 0, 200]))

    counts = dice.choice([[dice.randint(5, 14)], [3, 3], [4, 1, 1], [1] * 6, [2, 5]])
    requests = [request(count) for count in counts]
    if dice.random() < 0.2:
        requests.append(GpuRequest(1, GpuMemoryRequest("mib", 9_000), split=True))
    return shape(gpu_requests=requests, cpu_milli=100)


def placed(ledger: Ledger, asked: Shape, name: str) -> Assignment:
    policy = built_in().create(name)
    query = Query(ledger.table, Demand(policy.pre_filter(asked), ledger.table))
    return assignment.place(query, Profile("weft", [policy]))


def assert_same(one: Assignment, other: Assignment) -> None:
    for column in ("fits", "exact", "codes", "score"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), column)
    np.testing.assert_array_equal(one.chosen[one.fits], other.chosen[one.fits])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_found_does_not_depend_on_how_much_is_done_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, searched, fresh = Random(name), 0, AssignmentSearch._tightest

    def nothing_quick(self: AssignmentSearch) -> SearchResult:
        nonlocal searched
        searched += int(fresh(self).fits.sum())
        return nothing(len(self._nodes.memory), len(self._steps))

    for world in range(WORLDS):
        ledger, asked = partly_used(dice), some_shape(dice)
        known = placed(ledger, asked, name)
        for at_once in few_or_many(((1, 60)[world % 2],), (1, 60)):
            with monkeypatch.context() as fewer:
                fewer.setattr(assignment, "SCORED_AT_ONCE", at_once)
                assert_same(known, placed(ledger, asked, name))
        with monkeypatch.context() as slowly:
            slowly.setattr(AssignmentSearch, "_tightest", nothing_quick)
            assert_same(known, placed(ledger, asked, name))
    if name in GET_STUCK:
        assert searched

"""Several claims within a bound: exact where there is little to look at, and said where not."""

import random

import numpy as np
import pytest

from weft.core.engine import Bind, Engine, PodAdded, Unschedulable
from weft.core.engine.assessment import Assessment, Assessor
from weft.core.framework import Policy, Profile, assignment, device_rows
from weft.core.framework.partial_states import StateSpace
from weft.core.framework.split import SplitRequest, fewest
from weft.core.ledger import Ledger
from weft.core.policies.catalog import built_in
from weft.model import Code, GpuMemoryRequest, GpuRequest, Node, PodRequest, Shape
from weft.testing import node, placement, shape


class Silent(Policy):
    """No opinion."""

    name = "silent"


def mib(memory_mib: int) -> GpuRequest:
    return GpuRequest(memory=GpuMemoryRequest("mib", memory_mib))


def partly_used(*nodes: Node) -> Ledger:
    dice, ledger = random.Random(1), Ledger(nodes)
    for one in nodes:
        for gpu in one.gpus:
            used = dice.randrange(1, 14_000), dice.randrange(0, 900)
            ledger.reserve(
                placement(
                    f"{one.name}-{gpu.index}",
                    one.name,
                    gpu.index,
                    memory_mib=used[0],
                    milli=used[1],
                )
            )
    return ledger


def assess(ledger: Ledger, asked: Shape, policy: str = "") -> Assessment:
    made = built_in().create(policy) if policy else Silent()
    return Assessor(ledger).assess(Profile("test", [made]), asked)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many device states each level of a search looked at."""
    seen: list[int] = []
    follow = StateSpace.follow

    def counting(
        self: StateSpace, states: object, index: int, row: object, device: object
    ) -> object:
        found = follow(self, states, index, row, device)  # type: ignore[arg-type]
        seen.append(len(row) * self.nodes.memory.shape[1])  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(StateSpace, "follow", counting)
    return seen


SEVENTEEN = shape(
    gpu_requests=[mib(size) for size in random.Random(3).sample(range(5000, 9500), 17)]
)
TIGHT = shape(gpu_requests=[mib(size) for size in random.Random(3).sample(range(1500, 3200), 12)])


@pytest.mark.parametrize("policy", ["", "fgd", "elastic-binpack", "elastic-spread"])
@pytest.mark.parametrize("asked", [SEVENTEEN, TIGHT, shape(gpus=7, memory_mib=1000)])
@pytest.mark.parametrize("nodes", [1, 40])
def test_no_search_looks_at_more_than_its_bound(
    looked_at: list[int], policy: str, asked: Shape, nodes: int
) -> None:
    """Twice: the quick way that is to be beaten, and all that could beat it."""
    ledger = partly_used(*(node(f"n{i}", gpus=8, memory_mib=16_160) for i in range(nodes)))
    assess(ledger, asked, policy)
    assert sum(looked_at) <= 2 * device_rows.SEARCH_CELLS


@pytest.mark.parametrize("policy", ["", "elastic-binpack"])
def test_more_than_the_devices_can_hold_is_proven_without_a_search(
    looked_at: list[int], policy: str
) -> None:
    idle = Ledger([node("a", gpus=8, memory_mib=16_160)])
    halves = shape(gpu_requests=[mib(7_400 + 13 * i) for i in range(17)])
    assert assess(idle, halves, policy).codes.tolist() == [Code.TOGETHER]
    cut = Ledger([node("a", gpus=8, model="A100", memory_mib=80_000, mig=7)])
    parts = assess(cut, shape(gpus=57, memory_mib=100), policy)
    assert parts.codes.tolist() in ([Code.GPU_MEMORY], [Code.TOO_FEW_GPUS])
    assert looked_at == []
    assert assess(cut, shape(gpus=56, memory_mib=100), policy).codes.tolist() == [0]


def test_what_was_not_searched_to_the_end_says_so() -> None:
    """Seventeen unlike shares on eight cards: nothing proves that they cannot fit."""
    ledger = Ledger([node("a", gpus=8, memory_mib=16_160)])
    assert assess(ledger, SEVENTEEN).codes.tolist() == [Code.NOT_SEARCHED]
    smaller = Shape(SEVENTEEN.gpu_requests[:4])
    assert assess(ledger, smaller).codes.tolist() == [0]


def test_more_shares_than_are_placed_at_all_say_so_too() -> None:
    ledger = Ledger([node("a", gpus=8, memory_mib=16_160)])
    most = [mib(1)] * assignment.MOST_GPUS
    assert assess(ledger, shape(gpu_requests=most)).codes.tolist() == [0]
    assert assess(ledger, shape(gpu_requests=[*most, mib(1)])).codes.tolist() == [Code.NOT_SEARCHED]


def test_many_shares_on_many_devices_are_tried_on_the_emptiest_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger([node(name, gpus=8, memory_mib=16_160) for name in "abcd"])
    ledger.reserve(placement("p", "a", 0, milli=600))
    ledger.reserve(placement("q", "c", 0, milli=100))
    monkeypatch.setattr(assignment, "GREEDY_CELLS", 6 * 8 * 2)
    six = shape(gpu_requests=[mib(100 + i) for i in range(6)])
    skipped = Code.NOT_SEARCHED
    assert assess(ledger, six).codes.tolist() == [skipped, 0, skipped, 0]
    few = shape(gpu_requests=[mib(100 + i) for i in range(assignment.FEW_GPUS)])
    assert assess(ledger, few).codes.tolist() == [0] * 4


def test_a_place_that_may_not_be_the_best_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = partly_used(node("a", gpus=8, memory_mib=16_160))
    six = Shape(tuple(mib(500 + 700 * i) for i in range(6)))

    def record(cells: int) -> bool:
        monkeypatch.setattr(device_rows, "SEARCH_CELLS", cells)
        engine = Engine([Profile("weft", [built_in().create("elastic-binpack")])])
        engine.ledger.set_nodes(nodes.table.nodes, ())
        for held in nodes.holdings.values():
            engine.ledger.adopt(held.placement)
        done = engine.handle(PodAdded(PodRequest("p", "p", six)), 0)[0]
        assert isinstance(done, Bind)
        return done.record.bounded

    assert record(1)
    assert not record(50_000_000)


def test_who_cannot_be_searched_waits_with_that_reason() -> None:
    engine = Engine([Profile("weft", [Silent()])], [node("a", gpus=8, memory_mib=16_160)])
    done = engine.handle(PodAdded(PodRequest("p", "p", SEVENTEEN)), 0)[0]
    assert isinstance(done, Unschedulable)
    (text,) = done.record.reasons()
    assert text.startswith("too many ways")


def test_a_total_over_many_cut_cards_takes_no_time() -> None:
    """Thirty cut cards are 2^30 ways to choose between a card and its instances."""
    cards, instances = 30, 2
    parent = [-1] * cards + [card for card in range(cards) for _ in range(instances)]
    memory = [40_000] * cards + [19_000] * (cards * instances)
    ok = [True] * len(memory)
    spread = SplitRequest(0, 31, 40_000 * cards - 1_000, 0)
    found = fewest(memory, ok, parent, spread)
    assert found is None  # one card by its instances costs 2,000 MiB
    spread = SplitRequest(0, 31, 40_000 * cards - 2_000, 0)
    found = fewest(memory, ok, parent, spread)
    assert found is not None
    assert len(found) == 31
    assert sum(np.array(memory)[found]) == 40_000 * cards - 2_000

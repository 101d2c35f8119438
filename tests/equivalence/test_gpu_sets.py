"""Sets of connected GPUs, held to every ring and every choice tried one after the other."""

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from fakes.gpu_links import bridged_pairs, dgx_1, nvswitch, pcie_switches
from weft.core.engine.engine import Engine
from weft.core.engine.events import Bind, PodAdded, PodGone, Unschedulable
from weft.core.framework import Profile
from weft.core.framework.gpu_sets import NO_SET, gpu_sets
from weft.core.policies.packing import BestFit
from weft.model import GpuMemoryRequest, GpuRequest, Node, PodRequest
from weft.model.gpu_links import GpuLinks, checked_links, path_strength
from weft.testing.builders import node, pod, shape

WORDS = ("NV1", "NV2", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS")


@st.composite
def links(draw: st.DrawFn, most: int = 6) -> GpuLinks:
    count = draw(st.integers(2, most))
    rows = [["X"] * count for _ in range(count)]
    for one, other in combinations(range(count), 2):
        rows[one][other] = rows[other][one] = draw(st.sampled_from(WORDS))
    numa = tuple(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    paths = tuple(" ".join(row) for row in rows)
    return checked_links(GpuLinks(tuple(range(count)), paths, draw(st.integers(1, 5)), numa), "it")


def slow_quality(told: GpuLinks, places: tuple[int, ...]) -> tuple[int, int]:
    """(weakest path of the best of all rings, −NUMA nodes)."""
    best = max(
        min(
            path_strength(told.path(ring[at], ring[at - 1]), told.nvlink_generation)
            for at in range(len(ring))
        )
        for ring in permutations(places)
    )
    return best, -len({told.numa[place] for place in places} if told.numa else {0})


def all_sets(count: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    for size in range(least, count + 1):
        yield from combinations(range(count), size)


def mask_of(places: tuple[int, ...]) -> int:
    return sum(1 << place for place in places)


@settings(max_examples=few_or_many(10, 400), deadline=None)
@given(links())
def test_the_order_of_sets_is_that_of_their_best_rings_then_numa_nodes(told: GpuLinks) -> None:
    sets = gpu_sets(told)
    known = {
        places: (slow_quality(told, places), int(sets.quality[mask_of(places)]))
        for places in all_sets(len(told.indexes))
    }
    by_hand = sorted(known, key=lambda places: known[places][0])
    for one, other in pairwise(by_hand):
        assert (known[one][0] < known[other][0]) == (known[one][1] < known[other][1])
    for places in all_sets(len(told.indexes)):
        inside = [known[other][1] for other in known if set(other) <= set(places)]
        for size in range(2, len(places) + 1):
            best = max(known[p][1] for p in known if len(p) == size and set(p) <= set(places))
            assert sets.best(size)[mask_of(places)] == best
            assert best in inside
        assert sets.best(len(places) + 1)[mask_of(places)] == NO_SET


@settings(max_examples=few_or_many(10, 400), deadline=None)
@given(links())
def test_what_is_left_for_others_is_the_best_packing_of_disjoint_sets(told: GpuLinks) -> None:
    sets = gpu_sets(told)
    count = len(told.indexes)

    def packed(free: frozenset[int], size: int) -> int:
        most = 0
        for places in combinations(sorted(free), size):
            most = max(most, sets.ring(mask_of(places)) + packed(free - set(places), size))
        return most

    for places in all_sets(count, 0):
        worth = sum(size * packed(frozenset(places), size) for size in (2, 4) if size <= count)
        assert sets.left_for_later[mask_of(places)] == worth


MACHINES = (dgx_1(), bridged_pairs(), pcie_switches(8, 2), nvswitch())


@settings(max_examples=few_or_many(20, 300), deadline=None)
@given(
    st.sampled_from(MACHINES),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=12),
    st.sampled_from(("", "required", "none")),
)
def test_each_pod_gets_the_best_set_of_the_free_gpus(
    told: GpuLinks, arrivals: list[tuple[int, int]], wish: str
) -> None:
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=8, links=told)])
    free = set(range(8))
    running: list[tuple[str, list[int]]] = []
    for number, (gpus, leave) in enumerate(arrivals):
        asks = shape(gpus=gpus, topology=wish) if wish else shape(gpus=gpus)
        uid = f"p{number}"
        command = engine.handle(PodAdded(pod(uid, asks=asks)), number)[0]
        sets = list(combinations(sorted(free), gpus))
        quality = {p: slow_quality(told, p) for p in sets if gpus > 1}
        if isinstance(command, Bind):
            got = tuple(sorted(share.gpu for share in command.placement.shares))
            assert set(got) <= free
            if wish == "none":
                assert got == tuple(sorted(free)[:gpus])
            elif quality:
                assert quality[got] == max(quality.values())
            free -= set(got)
            running.append((uid, list(got)))
        else:
            assert isinstance(command, Unschedulable)
            if sets and quality:
                whole = max(slow_quality(told, p) for p in combinations(range(8), gpus))
                assert wish == "required"
                assert max(quality.values()) < whole
            engine.handle(PodGone(uid), number)
        if leave < 4 and running:
            uid, gone = running.pop(leave % len(running))
            free |= set(gone)
            engine.handle(PodGone(uid), number)


ALONE_MIB = 9_000
"""More than half of a card of 16,384 MiB: two such shares are never on one."""


@settings(max_examples=few_or_many(20, 500), deadline=None)
@given(
    st.sampled_from(MACHINES),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.lists(st.integers(0, 2), min_size=2, max_size=3),
)
def test_several_gpu_requests_that_require_links_are_placed_wherever_they_can_be(
    told: GpuLinks, held: list[int], asked: list[int]
) -> None:
    """`held`: a GPU is free, has a small share, or is full; `asked`: a share, or so many GPUs."""
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=8, links=told)])
    for gpu, how in enumerate(held):
        if how:
            memory_mib = 16_384 if how == 2 else 1_000
            other = shape(memory_mib=memory_mib, uuids=[f"GPU-a-{gpu}"])
            assert any(
                isinstance(c, Bind) for c in engine.handle(PodAdded(pod(f"h{gpu}", asks=other)), 0)
            )
    share = GpuRequest(1, GpuMemoryRequest("mib", ALONE_MIB))
    requests = tuple(GpuRequest(n, whole=True) if n else share for n in asked)
    wanted = pod("wanted", asks=shape(gpu_requests=requests, topology="required"))
    count, whole = sum(n or 1 for n in asked), sum(asked)
    best = max(slow_quality(told, places) for places in combinations(range(8), count))
    possible = [
        places
        for places in combinations([gpu for gpu in range(8) if held[gpu] < 2], count)
        if sum(held[gpu] == 0 for gpu in places) >= whole and slow_quality(told, places) == best
    ]
    command = engine.handle(PodAdded(wanted), 1)[0]
    assert isinstance(command, Bind) == bool(possible)
    if isinstance(command, Bind):
        assert tuple(sorted(s.gpu for s in command.placement.shares)) in possible


@settings(max_examples=few_or_many(10, 200), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=14))
def test_links_change_no_score_node_or_outcome(arrivals: list[tuple[int, int]]) -> None:
    """Other GPUs of a node are taken, in the same states: as long as nobody leaves, whatever comes
    fits alike."""

    def play(nodes: list[Node]) -> list[tuple[str, str, int, tuple[int, ...]]]:
        engine = Engine([Profile("weft", [BestFit()])], nodes)
        seen = []
        for number, (gpus, share) in enumerate(arrivals):
            asks: PodRequest = pod(f"p{number}", gpus=gpus, memory_mib=share * 3_000)
            for command in engine.handle(PodAdded(asks), number):
                if isinstance(command, Bind | Unschedulable):
                    record = command.record
                    amounts = tuple(s.memory_mib for s in record.shares)
                    seen.append((record.outcome, record.node, record.score, amounts))
        return seen

    assert play([node("a", gpus=8)]) == play([node("a", gpus=8, links=dgx_1())])

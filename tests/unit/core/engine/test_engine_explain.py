"""Summaries of reasons: the numbers are those that a slow loop over the nodes finds."""

from random import Random

import numpy as np
import pytest
from engine_talk import bind, engine_of, one_card
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Engine, PodAdded, PodSeenBound
from weft.core.engine.reasons import FeasibilitySummary, reason_of_each, summarise
from weft.core.policies.packing import BestFit
from weft.model import Code, DeviceRule, GpuMemoryRequest, GpuRequest, PodRequest, Reason, Shape
from weft.model.reason import TEXT
from weft.testing import node, placement, random_nodes, random_shape, shape


def summary_of(engine: Engine, asked: Shape) -> FeasibilitySummary:
    known = engine.assessor.assess(engine.profiles["weft"], asked)
    return summarise(engine.ledger.table, known, ())


def said(engine: Engine, asked: Shape) -> list[tuple[Code, int, int, int, str]]:
    reasons = summary_of(engine, asked).reasons
    return [(r.code, r.nodes, r.asked, r.best, r.unit) for r in reasons]


def test_a_cluster_without_nodes_says_so() -> None:
    assert str(summary_of(engine_of(), shape(cpu_milli=1))) == "0/0 nodes: the cluster has no node"


def test_reasons_are_listed_most_common_first_and_read_as_a_sentence() -> None:
    engine = engine_of(
        node("a"), node("b"), one_card("c"), one_card("d"), one_card("e"), node("f", gpus=2)
    )
    for index, name in enumerate("cde"):
        engine.handle(PodSeenBound(placement(name, name, 0, memory_mib=15_000 + 100 * index)), 0)
    summary = summary_of(engine, shape(memory_mib=2000))
    assert str(summary) == (
        f"1/4 GPU nodes: 3 × {TEXT[Code.GPU_MEMORY]} (largest free 1,384 MiB, asked 2,000)"
    )


def test_a_pod_that_asks_for_a_gpu_counts_only_nodes_with_one() -> None:
    engine = engine_of(node("a"), node("b", schedulable=False))
    told = "0/0 GPU nodes: the cluster has no GPU"
    assert str(summary_of(engine, shape(memory_mib=2000))) == told
    assert str(summary_of(engine, Shape())) == f"1/2 nodes: 1 × {TEXT[Code.UNSCHEDULABLE]}"


def test_models_and_uuids_have_their_own_words() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    by_model = replace(shape(memory_mib=1), devices=DeviceRule(models=("none",)))
    assert str(summary_of(engine, by_model)) == f"0/2 GPU nodes: 2 × {TEXT[Code.WRONG_MODEL]}"
    by_uuid = replace(shape(memory_mib=1), devices=DeviceRule(uuids=("none",)))
    said = "0/2 GPU nodes: 2 × no GPU of an accepted model or UUID"
    assert str(summary_of(engine, by_uuid)) == said


def test_cpu_and_host_memory_and_extended_resources() -> None:
    engine = engine_of(
        node("a", cpu_milli=1000),
        node("b", cpu_milli=3000, host_memory_mib=100),
        node("c", cpu_milli=3000, extended={"x": 1}),
    )
    asked = shape(cpu_milli=2000, host_memory_mib=200, extended={"x": 2})
    assert said(engine, asked) == [
        (Code.CPU, 1, 2000, 1000, "m cpu"),
        (Code.NODE_MEMORY, 1, 200, 100, "MiB"),
        (Code.EXTENDED, 1, 2, 1, "x"),
    ]
    assert said(engine, shape(extended={"y": 2}))[0] == (Code.EXTENDED, 3, 2, 0, "y")


def test_overbooked_nodes_have_nothing_free_not_less() -> None:
    engine = engine_of(node("a", cpu_milli=1000))
    engine.handle(PodSeenBound(placement("x", "a", cpu_milli=5000)), 0)
    assert said(engine, shape(cpu_milli=1)) == [(Code.CPU, 1, 1, 0, "m cpu")]


MEMORY_BEYOND = (
    "pods hold more of a GPU's memory than there is (17,000 of 16,384 MiB), so it takes no other "
    "pods"
)
CORES_BEYOND = (
    "pods hold more of a GPU's cores than there is (1,100 of 1,000 m), so it takes no other pods"
)
NO_MEMORY = f"{TEXT[Code.GPU_MEMORY]} (largest free 0 MiB, asked 1,000)"


@pytest.mark.parametrize(
    ("held", "asked", "told"),
    [
        ({"memory_mib": 17_000}, {"milli": 200}, MEMORY_BEYOND),
        ({"memory_mib": 17_000, "milli": 900}, {"milli": 200}, TEXT[Code.GPU_CORES]),
        ({"memory_mib": 17_000}, {"memory_mib": 1000}, NO_MEMORY),
        ({"milli": 1100}, {"memory_mib": 1000}, CORES_BEYOND),
        ({"milli": 1100}, {"milli": 100}, f"{TEXT[Code.GPU_CORES]} (largest free 0 m, "),
    ],
)
def test_what_others_overbooked_is_why_nothing_of_a_gpu_is_free(
    held: dict[str, int], asked: dict[str, int], told: str
) -> None:
    """There is enough of what the pod asks; it gets none, because of the other side."""
    engine = engine_of(one_card("a"), one_card("b"))
    for name in "ab":
        engine.handle(PodSeenBound(placement(name, name, 0, **held)), 0)
    summary = summary_of(engine, shape(**asked))
    assert str(summary).startswith(f"0/2 GPU nodes: 2 × {told}")
    known = engine.assessor.assess(engine.profiles["weft"], shape(**asked))
    each = reason_of_each(engine.ledger.table, known, np.arange(2), ())
    assert all(text.startswith(told) for text in each)


def test_of_several_nodes_only_those_that_are_overbooked_say_so() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    engine.handle(PodSeenBound(placement("x", "a", 0, memory_mib=17_000)), 0)
    engine.handle(PodSeenBound(placement("y", "b", 0, milli=900)), 0)
    asked = shape(milli=200)
    assert said(engine, asked) == [(Code.GPU_CORES, 2, 200, 100, "m")]
    known = engine.assessor.assess(engine.profiles["weft"], asked)
    first, second = reason_of_each(engine.ledger.table, known, np.arange(2), ())
    assert first == MEMORY_BEYOND
    assert second == f"{TEXT[Code.GPU_CORES]} (largest free 100 m, asked 200)"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (shape(gpus=3), (Code.TOO_FEW_GPUS, 3, 2, "GPUs")),
        (shape(gpus=2), (Code.NOT_IDLE, 2, 1, "idle GPUs")),
        (shape(memory_mib=16_000, gpus=2), (Code.GPU_MEMORY, 16_000, 1000, "MiB")),
        (shape(memory_mib=99_999), (Code.GPU_TOO_SMALL, 99_999, 16_384, "MiB")),
        (shape(milli=500, gpus=2), (Code.GPU_CORES, 500, 100, "m")),
        (
            shape(gpu_requests=[GpuRequest(memory=GpuMemoryRequest("mib", 20_000), split=True)]),
            (Code.GPU_MEMORY, 20_000, 17_384, "MiB over all GPUs"),
        ),
    ],
)
def test_what_gpus_lack(asked: Shape, reason: tuple[Code, int, int, str]) -> None:
    """Two cards, one idle, the other with 1,000 MiB and 100 m left: two GPUs want the second."""
    engine = engine_of(node("a", gpus=2))
    engine.handle(PodSeenBound(placement("x", "a", 0, memory_mib=15_384, milli=900)), 0)
    code, want, best, unit = reason
    assert said(engine, asked) == [(code, 1, want, best, unit)]


def test_only_cards_that_the_pod_accepts_count() -> None:
    """A node of a busy T4 and two idle V100s has nothing free for a pod that wants a T4."""
    mixed = node("a", gpus=3, model=["T4", "V100", "V100"], memory_mib=[16_000, 32_000, 32_000])
    engine = engine_of(mixed)
    engine.handle(PodSeenBound(placement("x", "a", 0, memory_mib=15_000, milli=700)), 0)
    t4 = ("T4",)
    assert said(engine, shape(gpus=2, models=t4)) == [(Code.TOO_FEW_GPUS, 1, 2, 1, "GPUs")]
    assert said(engine, shape(gpus=1, models=t4)) == [(Code.NOT_IDLE, 1, 1, 0, "idle GPUs")]
    assert said(engine, shape(milli=500, models=t4)) == [(Code.GPU_CORES, 1, 500, 300, "m")]
    assert said(engine, shape(memory_mib=2000, models=t4)) == [
        (Code.GPU_MEMORY, 1, 2000, 1000, "MiB")
    ]
    by_uuid = shape(memory_mib=2000, uuids=("GPU-a-0",))
    assert said(engine, by_uuid) == [(Code.GPU_MEMORY, 1, 2000, 1000, "MiB")]


def test_a_percentage_is_told_on_the_card_that_lacks_least() -> None:
    engine = engine_of(node("a", gpus=2, model=["S", "L"], memory_mib=[10_000, 40_000]))
    for gpu, used in ((0, 5500), (1, 30_000)):
        engine.handle(PodSeenBound(placement(f"x{gpu}", "a", gpu, memory_mib=used)), 0)
    assert said(engine, shape(percent=50)) == [(Code.GPU_MEMORY, 1, 5000, 4500, "MiB")]


def test_numbers_always_explain_the_refusal_and_nodes_add_up() -> None:
    """In random clusters: what is free is less than what is asked, or no number is given."""
    told: set[Code] = set()
    for seed in range(few_or_many(50, 250)):
        random = Random(seed)
        engine = engine_of(*random_nodes(random, 5), policies=(BestFit(),))
        nodes = engine.ledger.table.nodes
        for index in range(8):
            asks = random_shape(random, nodes)
            engine.handle(PodAdded(PodRequest(f"p{index}", "p", asks)), 0)
        asked = random_shape(random, nodes)
        summary = summary_of(engine, asked)
        assert summary.fits + sum(reason.nodes for reason in summary.reasons) == summary.nodes
        assert summary.nodes == sum(bool(one.gpus) or not asked.gpu_requests for one in nodes)
        counts = [reason.nodes for reason in summary.reasons]
        assert counts == sorted(counts, reverse=True)
        for reason in summary.reasons:
            assert not reason.unit or 0 <= reason.best < reason.asked, (asked, reason)
            told.add(reason.code)
    assert len(told) >= 12, told


def test_host_numbers_are_those_of_a_slow_loop() -> None:
    for seed in range(few_or_many(25, 120)):
        random = Random(seed)
        engine = engine_of(*random_nodes(random, 5))
        for index in range(6):
            asks = random_shape(random, engine.ledger.table.nodes)
            engine.handle(PodAdded(PodRequest(f"p{index}", "p", asks)), 0)
        asked = shape(cpu_milli=3000, host_memory_mib=8192)
        used_cpu: dict[str, int] = {}
        used_memory: dict[str, int] = {}
        for held in engine.ledger.holdings.values():
            at = held.placement.node
            used_cpu[at] = used_cpu.get(at, 0) + held.placement.cpu_milli
            used_memory[at] = used_memory.get(at, 0) + held.placement.memory_mib
        free_cpu, free_memory = [], []
        for one in engine.ledger.table.nodes:
            cpu = one.cpu_milli - used_cpu.get(one.name, 0)
            memory = one.memory_mib - used_memory.get(one.name, 0)
            if one.schedulable and cpu < 3000:
                free_cpu.append(cpu)
            elif one.schedulable and memory < 8192:
                free_memory.append(memory)
        want = {}
        if free_cpu:
            want[Code.CPU] = Reason(Code.CPU, len(free_cpu), 3000, max(free_cpu), "m cpu")
        if free_memory:
            lack = Reason(Code.NODE_MEMORY, len(free_memory), 8192, max(free_memory), "MiB")
            want[Code.NODE_MEMORY] = lack
        found = {reason.code: reason for reason in summary_of(engine, asked).reasons}
        found.pop(Code.UNSCHEDULABLE, None)
        assert found == want


def test_gpu_numbers_are_those_of_a_slow_loop() -> None:
    """One share of memory, of any card: the most free on any usable card of the refusing nodes."""
    refusals = 0
    for seed in range(few_or_many(40, 200)):
        random = Random(seed)
        engine = engine_of(*random_nodes(random, 4, mig=False))
        for index in range(12):
            asks = random_shape(random, engine.ledger.table.nodes)
            engine.handle(PodAdded(PodRequest(f"p{index}", "p", asks)), 0)
        ask = 4096
        most: list[int] = []
        for one in engine.ledger.table.nodes:
            free = {gpu.index: gpu.memory_mib for gpu in one.gpus if gpu.in_service}
            for held in engine.ledger.holdings.values():
                for share in held.placement.shares:
                    if held.placement.node == one.name and share.gpu in free:
                        free[share.gpu] -= share.memory_mib
            if one.schedulable and free and max(free.values()) < ask:
                most.append(max(free.values()))
        found = [
            r
            for r in summary_of(engine, shape(memory_mib=ask)).reasons
            if r.code is Code.GPU_MEMORY
        ]
        want = [Reason(Code.GPU_MEMORY, len(most), ask, max(most), "MiB")] if most else []
        assert found == want
        refusals += len(most)
    assert refusals > few_or_many(15, 30)


def test_a_fitting_pod_s_summary_counts_the_nodes_that_fit() -> None:
    engine = engine_of(one_card("a"), one_card("b"))
    bind(engine, PodRequest("x", "x", shape(gpus=1)))
    assert str(summary_of(engine, shape(memory_mib=1))) == (
        f"1/2 GPU nodes: 1 × {TEXT[Code.GPU_MEMORY]} (largest free 0 MiB, asked 1)"
    )
    assert str(summary_of(engine, Shape())) == "2/2 nodes fit"


def test_units_that_no_card_has_are_told_in_true_mib() -> None:
    """17 GiB on a card of 16: not one MiB more than the card."""
    engine = engine_of(node("a", gpus=2))
    for memory in (
        GpuMemoryRequest("units", 17, unit_mib=1024),
        GpuMemoryRequest("node-units", 17, unit_mib=1024),
    ):
        asked = shape(gpu_requests=[GpuRequest(memory=memory)])
        assert said(engine, asked) == [(Code.GPU_TOO_SMALL, 1, 17_408, 16_384, "MiB")]

"""Causes of stranded GPUs are told apart, and add up."""

import random

import pytest
from long_form import few_or_many

from weft.core.framework.stranded import LIMITS, StrandedGpus, stranded_gpus
from weft.core.ledger import Ledger
from weft.model import DeviceRule, GpuMemoryRequest, GpuRequest, Node, Placement, Shape, Share
from weft.testing import node

HALF, WHOLE = Shape((GpuRequest(milli=500),), 1_000), Shape((GpuRequest(whole=True),), 1_000)
PAIR = Shape((GpuRequest(2, whole=True),), 1_000)


def _of(cluster: Node, *usual: Shape, held_milli: int = 0) -> dict[str, int]:
    ledger = Ledger([cluster])
    if held_milli:
        ledger.adopt(Placement("held", cluster.name, (Share(0, 0, 0, held_milli),)))
    found = stranded_gpus(ledger.table, usual)
    by = dict(zip(LIMITS, found.by[:, 0].tolist(), strict=True))
    return {"usable": int(found.usable[0])} | {name: milli for name, milli in by.items() if milli}


def test_free_shares_that_no_usual_share_fills_are_stranded() -> None:
    cluster = node("a", gpus=2, cpu_milli=64_000)
    assert _of(cluster, HALF, held_milli=200) == {"usable": 1500, "shares": 300}


def test_pods_of_two_gpus_leave_one_alone_in_its_slot() -> None:
    assert _of(node("a", gpus=1, cpu_milli=64_000), PAIR) == {"usable": 0, "slots": 1000}
    assert _of(node("a", gpus=1, cpu_milli=64_000), PAIR, WHOLE) == {"usable": 1000}


def test_cpu_that_is_short_strands_gpus_and_so_does_memory() -> None:
    assert _of(node("a", gpus=4, cpu_milli=2_500), WHOLE) == {"usable": 2500, "cpu": 1500}
    short = Shape((GpuRequest(whole=True),), 1_000, memory_mib=8_192)
    cluster = node("a", gpus=4, cpu_milli=64_000, host_memory_mib=16_384)
    assert _of(cluster, short) == {"usable": 2000, "memory": 2000}


def test_models_and_closed_nodes_are_told_apart() -> None:
    picky = Shape((GpuRequest(whole=True),), devices=DeviceRule(models=("H100",)))
    assert _of(node("a", gpus=1, model="A10"), picky) == {"usable": 0, "models": 1000}
    shut = node("a", gpus=1, schedulable=False)
    assert _of(shut, WHOLE) == {"usable": 0, "nodes": 1000}


def test_shares_by_memory_count_by_their_part_of_the_card() -> None:
    third = Shape((GpuRequest(memory=GpuMemoryRequest("mib", 6_000)),))
    assert _of(node("a", gpus=1, memory_mib=16_000), third) == {"usable": 760, "shares": 240}


@pytest.mark.parametrize("seed", range(few_or_many(5, 100)))
def test_usable_and_stranded_are_what_is_idle(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [
        node(
            f"n{n}",
            gpus=chance.choice((0, 1, 4, 8)),
            model=chance.choice("AB"),
            cpu_milli=chance.choice((0, 4_000, 64_000)),
        )
        for n in range(20)
    ]
    usual = [
        Shape(
            (GpuRequest(chance.choice((1, 2)), whole=True),)
            if chance.random() < 0.4
            else (GpuRequest(milli=chance.choice((70, 333, 810))),),
            chance.choice((0, 1_500, 9_000)),
            devices=DeviceRule(models=("A",)) if chance.random() < 0.3 else DeviceRule(),
        )
        for _ in range(chance.choice((0, 1, 5)))
    ]
    found: StrandedGpus = stranded_gpus(Ledger(nodes).table, usual)
    assert (found.by >= 0).all()
    assert (found.usable + found.by.sum(axis=0) == found.idle).all()

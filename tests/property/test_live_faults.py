"""The whole live scheduler through random faults and crashes, against the fake API server.

`make test` plays some schedules of each kind, `make test-faults` more than a thousand, and says how
often each fault point was hit (build/faults.txt).
"""

import logging
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from live_faults import BINDING_FAULTS
from live_instance import POINTS
from live_story import schedule
from long_form import few_or_many

AT_LEAST = 20
BLOCK = 10
MANY = [(seed, False) for seed in range(0, 800, BLOCK)] + [
    (seed, True) for seed in range(0, 600, BLOCK)
]

FAULT_POINTS = (
    *(f"crash {point}" for point in POINTS),
    "crash in the drain",
    "killed",
    "terminated",
    *BINDING_FAULTS,
    "handed over to one behind",
    "stopped for a while",
    "stopped beyond its lease",
    "slip",
    "lease out of reach",
    "leadership lost",
    "lease: lease deleted",
    "wall clock jumped",
    "watches cut",
    "watch silent",
    "compaction",
    "API server restarted",
    "node deleted",
    "node back",
    "pod made again",
    "pod edited at once",
    "label changed",
    "foreign pod",
    "pod bound by another",
    "pod ungated",
    "pod deletion asked",
    "kube-scheduler gave up waiting",
)
KINDS = ("lease", "list", "watch", "read-back", "fence")  # of requests, whatever goes wrong


def play(block: tuple[int, bool]) -> Counter[str]:
    """One block of schedules. What a broken API server makes of the log is of no interest."""
    first, slips = block
    logging.disable(logging.CRITICAL)
    hits: Counter[str] = Counter()
    try:
        for seed in range(first, first + BLOCK):
            hits += schedule(seed, slips=slips)
    finally:
        logging.disable(logging.NOTSET)
    return hits


def of_kinds(hits: Counter[str]) -> dict[str, int]:
    return {
        f"{kind}: any": sum(n for name, n in hits.items() if name.startswith(f"{kind}: "))
        for kind in KINDS
    }


@pytest.mark.parametrize("first", range(5000, 5000 + few_or_many(10, 60), BLOCK))
def test_whatever_goes_wrong_nothing_is_given_away_twice_and_nobody_forgotten(first: int) -> None:
    hits = play((first, False))
    assert hits["bound"] > 50


@pytest.mark.parametrize("first", range(5000, 5000 + few_or_many(10, 20), BLOCK))
def test_what_slips_through_a_stopped_leader_is_settled(first: int) -> None:
    hits = play((first, True))
    assert hits["stopped beyond its lease"]


def test_a_seed_is_one_story() -> None:
    assert schedule(3) == schedule(3)
    assert schedule(4, slips=True) == schedule(4, slips=True)


@pytest.mark.faults
def test_a_thousand_schedules_hit_every_fault_point() -> None:
    hits: Counter[str] = Counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        for found in pool.map(play, MANY):
            hits += found
    points = {name: hits[name] for name in FAULT_POINTS} | of_kinds(hits)
    table = [
        f"{len(MANY) * BLOCK} schedules, {hits['bound']} pods bound, {hits['slip']} bindings "
        f"by a stopped leader, {hits['evicted']} pods evicted for it"
    ]
    table += [f"{count:7} {name}" for name, count in points.items()]
    path = Path("build/faults.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(table) + "\n")
    print("\n" + "\n".join(table))  # noqa: T201 - the figures are the result
    assert {name: count for name, count in points.items() if count < AT_LEAST} == {}

"""Which fault schedules are played: so many of each way to decide, from which seed on.

Whatever fails names the command that plays that one schedule again.
"""

import traceback
from collections import Counter
from typing import NamedTuple

from live_story import schedule
from ways import CASES, FIRST, SHIPPED, WAYS

BLOCK = 10
OF_SHIPPED, OF_OTHERS = (800, 600), (120, 80)
"""Schedules of each profile that ships, and of each other policy: without processes that are
stopped for longer than their lease, and with."""
KINDS = ("", "stopped")


class Block(NamedTuple):
    """Schedules of one way and kind, one seed after the other."""

    way: str
    kind: str
    first: int
    count: int


class Played(NamedTuple):
    """A block's end: how often each fault point was hit, and what did not hold."""

    block: Block
    hits: Counter[str]
    failed: list[str]


def cases(way: str, kind: str) -> int:
    """How many schedules there are of this way and kind."""
    many = OF_SHIPPED if way in {shipped.name for shipped in SHIPPED} else OF_OTHERS
    return CASES or many[KINDS.index(kind)]


def blocks() -> list[Block]:
    """All there are, in blocks for one process each."""
    return [
        Block(way, kind, FIRST + begin, min(BLOCK, cases(way, kind) - begin))
        for way in WAYS
        for kind in KINDS
        for begin in range(0, cases(way, kind), BLOCK)
    ]


def play(block: Block) -> Played:
    """Every schedule of the block, also after one that fails."""
    hits: Counter[str] = Counter()
    failed = []
    for seed in range(block.first, block.first + block.count):
        try:
            hits += schedule(seed, WAYS[block.way], slips=bool(block.kind))
        except Exception as error:
            failed.append(told(block.way, block.kind, seed, error))
    return Played(block, hits, failed)


def told(way: str, kind: str, seed: int, error: Exception) -> str:
    """The message of a schedule that failed: what did not hold, and how to see it again."""
    what = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
    test = "tests/property/test_live_faults.py::test_whatever_goes_wrong_the_process_lives_on"
    case = f"{way}-{kind}" if kind else way
    again = f"WEFT_FAULT_SEED={seed} WEFT_FAULT_CASES=1 .venv/bin/pytest '{test}[{case}]'"
    return f"{case}, seed {seed}: {what}\nagain: {again}"

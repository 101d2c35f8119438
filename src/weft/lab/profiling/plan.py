"""Which runs, in which order. Pure: the same wishes give the same plan.

First every workload alone, for nothing else can be said without it. Then pairs in a balanced
incomplete design: the workloads stand in a circle, and pairs are taken by how far apart two of
them stand. Each distance pairs every workload with two others, so that after any number of pairs
no workload was in more than two (beside itself: one) more than another. All of it is repeated as a
whole, not run by run: what drifts, drifts through all alike.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class PlannedRun(NamedTuple):
    """One run: these applications (sorted) at the same time, for the `repetition`-th time."""

    applications: tuple[str, ...]
    isolation: str
    repetition: int


def pairs(names: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Every pair once, each application with itself too, the most informative first."""
    circle = sorted(names)
    random.Random(seed).shuffle(circle)
    count = len(circle)
    order: list[tuple[str, str]] = []
    for apart in [*range(1, count // 2 + 1), 0]:
        places = range(count // 2) if 2 * apart == count else range(count)
        for place in places:
            first, second = sorted((circle[place], circle[(place + apart) % count]))
            order.append((first, second))
    return order


def chosen(
    order: Sequence[tuple[str, str]], missing: Callable[[tuple[str, str]], int], runs: int
) -> list[tuple[str, str]]:
    """The first pairs of `order` that `runs` more runs complete.

    `missing` says how many runs a pair lacks; one that lacks none is among them for nothing.
    """
    first = []
    for pair in order:
        runs -= missing(pair)
        if runs < 0:
            break
        first.append(pair)
    return first


def shuffled(together: Sequence[tuple[str, ...]], isolation: str, number: int) -> list[PlannedRun]:
    """One repetition of these, in an order of chance."""
    mixed = sorted(together)
    random.Random(f"{isolation} {number}").shuffle(mixed)
    return [PlannedRun(applications, isolation, number) for applications in mixed]

"""Plans which runs to make, in which order. Pure: the same input gives the same plan.

First every workload alone, since nothing else can be interpreted without it. Then pairs in a
balanced incomplete design: the workloads are arranged in a circle, and pairs are taken by their
distance in it. Each distance pairs every workload with two others, so that after any number of
pairs no workload was in more than two pairs more than another (in one, with itself). The plan is
repeated as a whole, not run by run, so that drift affects all runs alike."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple


class PlannedRun(NamedTuple):
    """One run: these applications (sorted) at the same time, as repetition number `repetition`."""

    applications: tuple[str, ...]
    isolation: str
    repetition: int


def pairs(names: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Return every pair once, including each application with itself, the most informative
    first."""
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
    """Return the first pairs of `order` that can be completed within `runs` more runs.

    `missing` returns how many runs a pair lacks; pairs that lack none cost nothing."""
    first = []
    for pair in order:
        runs -= missing(pair)
        if runs < 0:
            break
        first.append(pair)
    return first


def shuffled(together: Sequence[tuple[str, ...]], isolation: str, number: int) -> list[PlannedRun]:
    """Return one repetition of these combinations, in an order drawn by isolation and number."""
    mixed = sorted(together)
    random.Random(f"{isolation} {number}").shuffle(mixed)
    return [PlannedRun(applications, isolation, number) for applications in mixed]

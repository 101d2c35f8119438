"""Elastic's search and Binpack rater, restated from their description: node score and GPUs.

Depth first over the containers in their order; a share tries every GPU, whole cards take the first
free ones; each leaf is rated, and of equal ratings the last leaf wins.
"""

import random

import pytest
from long_form import few_or_many

from weft.core.engine.assessment import Assessor
from weft.core.engine.deciding import shares_on
from weft.core.framework import NEVER, Profile
from weft.core.ledger import Ledger
from weft.core.policies.elastic import ElasticBinpack
from weft.model import GpuMemoryRequest, GpuRequest, Shape
from weft.model.request import WHOLE_CARD
from weft.testing import node, placement

CASES = few_or_many(150, 1_000)
LEAVES = 520  # of one case, at most
MEMORY = 16_160

Asked = tuple[int, int]
"""(percent of cores, MiB) of a container; from 100 percent on it is whole cards."""


class Original:
    """GPUs as [percent of cores, MiB] that are free."""

    def __init__(self, free: list[list[int]], containers: list[Asked]) -> None:
        self.free, self.containers = free, containers
        self.best: tuple[int, list[list[int]]] | None = None

    def trade(self, index: int = 0, chosen: tuple[tuple[int, ...], ...] = ()) -> None:
        if index == len(self.containers):
            score = self.rate(chosen)
            if self.best is None or score >= self.best[0]:
                self.best = score, [list(gpus) for gpus in chosen]
            return
        core, memory = self.containers[index]
        if core >= 100:
            idle = [g for g, (c, m) in enumerate(self.free) if (c, m) == (100, MEMORY)]
            options = [tuple(idle[: core // 100])] if len(idle) >= core // 100 else []
        else:
            options = [(g,) for g, (c, m) in enumerate(self.free) if c >= core and m >= memory]
        for gpus in options:
            before = [list(gpu) for gpu in self.free]
            for gpu in gpus:
                taken = self.free[gpu] if core >= 100 else (core, memory)
                self.free[gpu] = [a - b for a, b in zip(self.free[gpu], taken, strict=True)]
            self.trade(index + 1, (*chosen, gpus))
            self.free = before

    def rate(self, chosen: tuple[tuple[int, ...], ...]) -> int:
        cores, memory = zip(*self.free, strict=True)
        used = {gpus[0] for gpus in chosen if len(gpus) == 1}
        apart = max(memory) + max(cores) - min(memory) - min(cores)
        return apart // 2 // (len(used) + 1) * 100


def case(dice: random.Random) -> tuple[list[list[int]], list[Asked]]:
    gpus = dice.choice([1, 2, 2, 3, 4, 4, 6, 8])
    free = [[100, MEMORY] for _ in range(gpus)]
    steps = dice.choice([1000, 1, 4000])
    for gpu in free:
        if dice.random() < 0.6:
            gpu[0] -= dice.choice([0, 10, 25, 50, 90])
            gpu[1] -= dice.randrange(1, MEMORY // steps + 1) * steps
    containers: list[Asked] = []
    for _ in range(dice.choice([2, 2, 3, 3, 4, 5])):
        kind = dice.choice(["memory", "memory", "cores", "both", "whole"])
        core = dice.choice([100, 100, 200, 300]) if kind == "whole" else dice.choice([10, 20, 40])
        memory = dice.choice([256, 1000, 3000, 4000, 7000, dice.randrange(1, 9000)])
        containers.append((core if kind != "memory" else 0, memory if kind != "cores" else 0))
    if dice.random() < 0.3:
        containers = [containers[0]] * len(containers)
    while gpus ** len(containers) > LEAVES:
        containers.pop()
    return free, containers


def gpu_request(asked: Asked) -> GpuRequest:
    core, memory = asked
    if core >= 100:
        return GpuRequest(core // 100, WHOLE_CARD, whole=True)
    return GpuRequest(
        memory=GpuMemoryRequest("mib", memory) if memory else GpuMemoryRequest(), milli=core * 10
    )


def decided(free: list[list[int]], containers: list[Asked]) -> tuple[int, list[list[int]]] | None:
    ledger = Ledger([node("a", gpus=len(free), memory_mib=MEMORY)])
    for gpu, (core, memory) in enumerate(free):
        if (core, memory) != (100, MEMORY):
            used = placement(
                f"p{gpu}", "a", gpu, memory_mib=MEMORY - memory, milli=(100 - core) * 10
            )
            assert ledger.reserve(used)
    profile = Profile("test", [ElasticBinpack(compat="exact")])
    known = Assessor(ledger).assess(profile, Shape(tuple(map(gpu_request, containers))))
    if known.total[0] == NEVER:
        return None
    shares = shares_on(ledger.table, 0, known, profile, "")
    gpus = [[s.gpu for s in shares if s.gpu_request == i] for i in range(len(containers))]
    return int(known.total[0]), gpus


@pytest.mark.parametrize("part", range(5))
def test_binpack_is_the_originals_to_the_last_gpu(part: int) -> None:
    dice, placed = random.Random(part), 0
    for number in range(CASES // 5):
        free, containers = case(dice)
        original = Original([list(gpu) for gpu in free], containers)
        original.trade()
        placed += original.best is not None
        assert decided(free, containers) == original.best, (part, number, free, containers)
    assert placed > CASES // 5 * 0.6

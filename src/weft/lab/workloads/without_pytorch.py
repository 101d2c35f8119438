"""Workloads for machines without PyTorch: the standard library on the CPU."""

import random
from operator import mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.lab.workloads.catalog import Sizes, Step


def perceptron_inference(place: None, sizes: "Sizes") -> "Step":
    """Return a step that passes one input after another through layers of equal width."""
    chance = random.Random(1)
    width = sizes["width"]

    def vector() -> list[float]:
        return [chance.gauss(0, width**-0.5) for _ in range(width)]

    layers = [[vector() for _ in range(width)] for _ in range(sizes["layers"])]
    inputs = [vector() for _ in range(sizes["batch"])]

    def step() -> None:
        for each in inputs:
            values = each
            for rows in layers:
                values = [max(0.0, sum(map(mul, row, values))) for row in rows]

    return step

"""Workloads for machines without PyTorch: NumPy on the CPU."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from weft.lab.workloads.catalog import Sizes, Step


def perceptron_inference(place: None, sizes: "Sizes") -> "Step":
    """One forward pass through layers of equal width, in float32."""
    chance = np.random.default_rng(1)
    width = sizes["width"]
    layers = [
        chance.standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
        for _ in range(sizes["layers"])
    ]
    inputs = chance.standard_normal((sizes["batch"], width), dtype=np.float32)

    def step() -> None:
        values = inputs
        for weights in layers:
            values = np.maximum(values @ weights, 0)

    return step

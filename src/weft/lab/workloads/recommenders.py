"""Recommendation models like DLRM: lookups in wide tables, and little arithmetic."""

import torch
from torch import nn
from torch.nn import functional

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace, inference, training

NUMBERS = 13


class Recommender(nn.Module):
    """DLRM's structure: embedding sums and dense features, their pairwise products, and two
    layers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, tables = sizes["width"], sizes["tables"]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(sizes["rows"], width, mode="sum", sparse=True) for _ in range(tables)
        )
        self.bottom = nn.Sequential(
            nn.Linear(NUMBERS, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()
        )
        parts = tables + 1
        self.top = nn.Sequential(
            nn.Linear(parts * parts + width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1)
        )

    def forward(self, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Score a batch; `rows` are [tables, batch, lookups]."""
        dense = self.bottom(numbers)
        sums = [table(row).to(dense.dtype) for table, row in zip(self.tables, rows, strict=True)]
        parts = torch.stack([dense, *sums], dim=1)
        pairs = (parts @ parts.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, pairs], dim=1)).squeeze(1)


def _inputs(place: DevicePlace, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    rows = place.indexes(sizes["rows"], sizes["tables"], sizes["batch"], sizes["lookups"])
    return place.numbers(sizes["batch"], NUMBERS), rows


def dlrm_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step on clicks; only the table rows that were looked up are updated."""
    model = place.put(Recommender(sizes))
    numbers, rows = _inputs(place, sizes)
    clicks = place.indexes(2, sizes["batch"]).float()
    tables = torch.optim.SGD(model.tables.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        tables.zero_grad(set_to_none=True)
        return functional.binary_cross_entropy_with_logits(model(numbers, rows).float(), clicks)

    layers = training([model.bottom, model.top], loss, place)

    def step() -> None:
        layers()
        tables.step()

    return step


def dlrm_inference(place: DevicePlace, sizes: Sizes) -> Step:
    """Return an inference step that scores a batch."""
    return inference(place.put(Recommender(sizes)), _inputs(place, sizes), place)

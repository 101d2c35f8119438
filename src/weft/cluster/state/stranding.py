"""Computes how much of a live cluster's idle GPUs typical pods could use."""

from typing import NamedTuple

import numpy as np

from weft.core.framework.stranded import LIMITS, stranded_gpus
from weft.core.ledger import LedgerTable
from weft.model import Shape


class StrandedModel(NamedTuple):
    """GPUs of one model, in whole GPUs' worth: idle, usable by typical pods, and stranded, by the
    limiting resource."""

    model: str
    gpus: int
    idle: float
    usable: float
    by: dict[str, float]


def stranded_by_model(table: LedgerTable, usual: tuple[Shape, ...]) -> list[StrandedModel]:
    """Return one row for each GPU model, by name; a node with several models counts under its
    first."""
    stranded = stranded_gpus(table, usual)
    models = [node.gpus[0].model if node.gpus else "" for node in table.nodes]
    rows = []
    for model in sorted(
        {model for model, node in zip(models, table.nodes, strict=True) if node.gpus}
    ):
        of = np.array(
            [
                bool(node.gpus) and own == model
                for own, node in zip(models, table.nodes, strict=True)
            ]
        )
        by = stranded.by[:, of].sum(axis=1).tolist()
        rows.append(
            StrandedModel(
                model or "unknown",
                int(table.gpus[of].sum()),
                round(int(stranded.idle[of].sum()) / 1000, 3),
                round(int(stranded.usable[of].sum()) / 1000, 3),
                {name: round(milli / 1000, 3) for name, milli in zip(LIMITS, by, strict=True)},
            )
        )
    return rows

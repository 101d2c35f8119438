"""Someone's own table of slowdowns, such as Co-scheML's `interference.json`, as policies take it.

Told for no GPU model in particular, it counts on all of them that no other table is about.
"""

from collections.abc import Mapping

import numpy as np

from weft.framework.interference import (
    CardTable,
    Interference,
    InterferenceView,
    Tier,
    interference,
)
from weft.model import BadInputError

ANY_MODEL = "*"
FORBIDDEN = -1
"""What the table says of pairs that cannot run together."""

Table = Mapping[str, Mapping[str, float]]


def static_table(told: Table, where: str = "the table", version: int = 1) -> Interference:
    """`{application: {beside: times the time alone}}`, −1 for never together.

    Pairs that are left out, and applications that nobody knows, are UNKNOWN: as the worst known.
    """
    names = tuple(dict.fromkeys([*told, *(other for row in told.values() for other in row)]))
    slower = np.full((len(names) + 1, len(names) + 1), np.nan)
    at = {name: index for index, name in enumerate(names)}
    for name, row in told.items():
        for other, value in row.items():
            if not (value > 0 or value == FORBIDDEN):
                what = f"{value} is no slowdown; write 1.2 for 20 % slower, or -1 for never"
                raise BadInputError(f"{where}, {name}, {other}", what)
            slower[at[name], at[other]] = value
    known, never = ~np.isnan(slower), slower == FORBIDDEN
    worst = float(slower[known & ~never].max(initial=1.0))
    mean = np.log(np.where(known & ~never, slower, worst))
    upper = np.where(never, np.inf, mean)
    tier = np.where(known, Tier.TABLE, Tier.UNKNOWN).astype(np.int8)
    arrays = (mean[None], upper[None], tier[None])
    return interference(version, [ANY_MODEL], names, arrays, [where])


def card_of(view: InterferenceView, model: str) -> CardTable:
    """The pairs on a GPU model: of a table for any model where none is about this one."""
    known = view.source.gpu_models
    if model in known:
        return view.of(model)
    return view.of(next((name for name in (ANY_MODEL, "") if name in known), model))

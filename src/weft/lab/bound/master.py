"""Solves the linear program over the configurations found so far, and returns its prices.

It maximises the GPU of the pods taken: of each group at least as many as must be taken and at most
as many as arrived; their pieces must fit into the chosen configurations, and these into the number
of nodes of each type. Solved by HiGHS through SciPy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from weft.lab.bound.relaxation import Relaxation

Floats = npt.NDArray[np.float64]


class NodeConfiguration(NamedTuple):
    """Pieces that one node of a type can hold together: (piece index, count)."""

    node_type: int
    pieces: tuple[tuple[int, float], ...]


class MasterSolution(NamedTuple):
    """The solution: GPU taken (thousandths); `missing`, the number of pieces that must be taken but
    do not fit; the price of each piece and of a node of each type; and how often each configuration
    is chosen."""

    taken_milli: float
    missing: float
    prices: Floats
    node_prices: Floats
    chosen: Floats


class Demanded(NamedTuple):
    """Per group of pods, how many must be taken, and how many there are."""

    least: Sequence[int]
    most: Sequence[int]


def solve(
    relaxation: Relaxation,
    demanded: Demanded,
    configurations: Sequence[NodeConfiguration],
    missing_price: float,
) -> MasterSolution | None:
    """Return the best mix of these configurations; each missing piece costs `missing_price`.

    None if HiGHS finds no optimum."""
    groups, pieces = len(relaxation.groups), len(relaxation.pieces)
    width = groups + pieces + len(configurations)
    gain = np.zeros(width)
    gain[:groups] = [group.milli for group in relaxation.groups]
    counts = np.array([not piece.is_free for piece in relaxation.pieces], dtype=np.float64)
    gain[groups : groups + pieces] = -missing_price * counts
    most = np.full(width, np.inf)
    least = np.zeros(width)
    least[:groups], most[:groups] = demanded.least, demanded.most
    limits = np.zeros(pieces + len(relaxation.node_types))
    limits[pieces:] = [node_type.count for node_type in relaxation.node_types]
    solved = linprog(
        -gain,
        A_ub=_matrix(relaxation, configurations, (len(limits), width)),
        b_ub=limits,
        bounds=np.stack((least, most), axis=1),
        method="highs",
    )
    if solved.status != 0:
        return None
    prices = np.maximum(-solved.ineqlin.marginals, 0.0)
    x = solved.x
    return MasterSolution(
        float(gain[:groups] @ x[:groups]),
        float(counts @ x[groups : groups + pieces]),
        prices[:pieces],
        prices[pieces:],
        x[groups + pieces :],
    )


def _matrix(
    relaxation: Relaxation, configurations: Sequence[NodeConfiguration], size: tuple[int, int]
) -> csr_array:
    """Build the constraint matrix.

    Rows: pieces taken minus missing ones and those in configurations; then nodes. Columns: groups
    of pods, missing pieces, configurations."""
    groups, pieces = len(relaxation.groups), len(relaxation.pieces)
    entries: list[tuple[int, int, float]] = []
    for at, group in enumerate(relaxation.groups):
        entries += [(piece, at, count) for piece, count in group.pieces]
    entries += [(piece, groups + piece, -1.0) for piece in range(pieces)]
    for at, configuration in enumerate(configurations, groups + pieces):
        entries += [(piece, at, -count) for piece, count in configuration.pieces]
        entries.append((pieces + configuration.node_type, at, 1.0))
    rows, columns, values = zip(*entries, strict=True)
    return coo_array((values, (rows, columns)), shape=size).tocsr()

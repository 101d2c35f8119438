"""The linear program over the configurations found so far, and its prices.

Maximise the GPU of the pods taken in: of each group at least those that must be in and at most
those that arrived, their pieces within the configurations chosen, these no more than there are
nodes of their type. Solved by HiGHS through SciPy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from weft.lab.bound.relaxation import Relaxation

Floats = npt.NDArray[np.float64]


class NodeConfiguration(NamedTuple):
    """Pieces that a node of a type can hold together: (index, how many)."""

    node_type: int
    pieces: tuple[tuple[int, float], ...]


class MasterSolution(NamedTuple):
    """GPU taken in (thousandths), `missing` pieces of pods that must be in and are not, the price
    of each piece, of a node of each type, and how often each configuration is chosen."""

    taken_milli: float
    missing: float
    prices: Floats
    node_prices: Floats
    chosen: Floats


class Demanded(NamedTuple):
    """How many pods of each group must be in, and how many there are to choose from."""

    least: Sequence[int]
    most: Sequence[int]


def solve(
    relaxation: Relaxation,
    demanded: Demanded,
    configurations: Sequence[NodeConfiguration],
    missing_price: float,
) -> MasterSolution | None:
    """The best mix of these configurations; each piece that is missing costs `missing_price`.

    None where HiGHS gave up.
    """
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
    """Rows: pieces taken in, less those missing and those that configurations hold; then nodes.

    Columns: groups of pods, missing pieces, configurations.
    """
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

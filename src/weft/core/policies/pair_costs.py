"""Matches waiting pods and GPUs one to one, by the cost or gain of each pair."""

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from typing import TypeVar

import numpy as np

from weft.core.ledger.table import Ints
from weft.model.interference_table import Floats

Pod = TypeVar("Pod", bound=Hashable)
Gpu = TypeVar("Gpu", bound=Hashable)


def greedy(costs: Iterable[tuple[float, Pod, Gpu]]) -> dict[Pod, Gpu]:
    """Match the cheapest pairs first, each pod and GPU once: (cost, pod, GPU) → {pod: GPU}.

    Pairs of equal cost are matched in the given order."""
    matched: dict[Pod, Gpu] = {}
    taken: set[Gpu] = set()
    for _, pod, gpu in sorted(costs, key=lambda pair: pair[0]):
        if pod not in matched and gpu not in taken:
            matched[pod] = gpu
            taken.add(gpu)
    return matched


def greedy_alike(
    costs: Floats, waiting: Sequence[Sequence[int]], gpus: Sequence[Sequence[int]], own: int
) -> int:
    """Return the GPU that `greedy` would give the first pod of kind `own`; −1 for none.

    Pods of a kind are alike, and GPUs of a group are alike: `costs` is [kinds, groups], +inf for
    forbidden pairs. `waiting` has the numbers of each kind's pods, and `gpus` those of each group's
    GPUs, ascending: `greedy` would get the pairs in the order of these numbers."""
    next_pod, next_gpu = [0] * len(waiting), [0] * len(gpus)
    kinds, groups = (at.tolist() for at in np.nonzero(np.isfinite(costs)))
    cells = sorted(zip(costs[kinds, groups].tolist(), kinds, groups, strict=True))
    for _, level in groupby(cells, key=lambda cell: cell[0]):
        open_to: dict[int, list[int]] = {}
        for _, kind, group in level:
            open_to.setdefault(kind, []).append(group)
        queue = [
            (waiting[kind][next_pod[kind]], kind)
            for kind in open_to
            if next_pod[kind] < len(waiting[kind])
        ]
        heapify(queue)
        while queue:
            _, kind = queue[0]
            free = [
                (gpus[group][next_gpu[group]], group)
                for group in open_to[kind]
                if next_gpu[group] < len(gpus[group])
            ]
            if not free:
                heappop(queue)
                continue
            gpu, group = min(free)
            if kind == own:
                return gpu
            next_gpu[group] += 1
            next_pod[kind] += 1
            if next_pod[kind] < len(waiting[kind]):
                heapreplace(queue, (waiting[kind][next_pod[kind]], kind))
            else:
                heappop(queue)
    return -1


def few_of_each(groups: Ints, most: int) -> Ints:
    """Return the positions of the first `most` members of each group, ascending."""
    order = np.argsort(groups, kind="stable")
    of = groups.take(order)
    begins = np.searchsorted(of, of)
    return np.asarray(np.sort(order[np.arange(len(of)) - begins < most]))


def load_solver() -> None:
    """Import SciPy for `most_valuable` in advance: that takes half a second."""
    from scipy.optimize import linear_sum_assignment  # noqa: F401


def most_valuable(values: Floats) -> Sequence[int]:
    """Compute the matching with the largest sum: for each row its column, −1 for none.

    In `values` [pods, GPUs], pairs at 0 or below are never matched. If several matchings have the
    largest sum, the same one is returned on every machine, as SciPy's algorithm is
    deterministic."""
    from scipy.optimize import linear_sum_assignment  # late, as few need it (`load_solver`)

    worth = np.maximum(values, 0.0)
    rows, columns = linear_sum_assignment(worth, maximize=True)
    mates = [-1] * len(values)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if worth[row, column] > 0.0:
            mates[row] = column
    return mates

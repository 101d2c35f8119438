"""Proves by counting that a pod's GPU requests cannot all fit on a node, so that no search is
needed.

It checks necessary conditions only, each vectorised over nodes: the number of GPUs for each
request, sums, and for some sizes how many shares of at least that size the devices can hold."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.core.framework.partial_states import Asks, DeviceRequest, Nodes
from weft.core.framework.split import SplitRequest
from weft.core.ledger.table import Bools, Ints

_MOST_SIZES = 16
_HUGE = 1 << 60


def cannot_hold(
    nodes: Nodes, asks: Asks, steps: Sequence[int], spread: SplitRequest | None
) -> Bools:
    """Return a mask of nodes whose GPUs cannot hold all steps (and the `split` request),
    [nodes]."""
    counts = Counter(steps)
    lacking = np.zeros(len(nodes.memory), dtype=np.bool_)
    anywhere = np.zeros(nodes.memory.shape, dtype=np.bool_)
    least: list[Ints] = []
    for gpu_request, count in counts.items():
        ask = asks[gpu_request]
        fits = _fits(nodes, ask)
        anywhere |= fits
        lacking |= _most(nodes, fits.astype(np.int64)) < (count if ask.several else 1)
        least.append(np.where(fits, ask.charge_mib, _HUGE).min(axis=1, initial=_HUGE))
    sizes = np.array(least, dtype=np.int64)  # [GPU requests, nodes]
    milli = np.array([asks[gpu_request].milli for gpu_request in counts], dtype=np.int64)
    number = np.array(list(counts.values()), dtype=np.int64)
    room = np.where(anywhere, nodes.memory, 0)
    if spread is not None:
        room = np.where(anywhere | nodes.spreadable, nodes.memory, 0)
    lacking |= _most(nodes, room) < (np.where(sizes < _HUGE, sizes, 0) * number[:, None]).sum(
        axis=0
    )
    cores = np.where(anywhere, nodes.milli, 0)
    lacking |= _most(nodes, cores) < int((milli * number).sum())
    return lacking | _too_many_large(nodes, room, cores, sizes, milli, number)


def _fits(nodes: Nodes, ask: DeviceRequest) -> Bools:
    if ask.whole:
        return np.asarray(ask.allowed & nodes.idle)
    enough = (nodes.milli >= ask.milli) & (nodes.memory >= ask.ask_mib)
    return np.asarray(ask.allowed & enough)


def _most(nodes: Nodes, values: Ints) -> Ints:
    """Return the largest sum usable at once per node: for each GPU its own value, or the sum of its
    MIG instances'."""
    if not nodes.instance.any():
        return np.asarray(values.sum(axis=1))
    rows, width = values.shape
    inside = np.zeros(rows * width, dtype=np.int64)
    cells = (np.arange(rows)[:, None] * width + nodes.family).ravel()
    np.add.at(inside, cells, np.where(nodes.instance, values, 0).ravel())
    card = np.where(nodes.instance, 0, np.maximum(values, inside.reshape(rows, width)))
    return np.asarray(card.sum(axis=1))


def _too_many_large(
    nodes: Nodes, room: Ints, cores: Ints, sizes: Ints, milli: Ints, number: Ints
) -> Bools:
    """Return a mask of nodes that have too little room for all shares of some size or larger."""
    lacking = np.zeros(len(nodes.memory), dtype=np.bool_)
    places = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), _MOST_SIZES)).astype(int))
    by_memory = np.argsort(sizes.max(axis=1, initial=0), kind="stable")
    for place in by_memory[places].tolist():
        size = sizes[place]
        large = (sizes >= size) & (size > 0) & (size < _HUGE)
        thinnest = np.where(large, milli[:, None], _HUGE).min(axis=0)
        fitting = room // np.maximum(size, 1)[:, None]
        by_cores = cores // np.maximum(thinnest, 1)[:, None]
        fitting = np.where((thinnest > 0)[:, None], np.minimum(fitting, by_cores), fitting)
        lacking |= _most(nodes, fitting) < (large * number[:, None]).sum(axis=0)
    by_cores_first = np.argsort(milli, kind="stable")
    for place in by_cores_first[places].tolist():
        if milli[place] > 0:
            many = int(number[milli >= milli[place]].sum())
            lacking |= _most(nodes, cores // milli[place]) < many
    return lacking

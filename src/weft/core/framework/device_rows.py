"""Arranges a query's devices for the search: one row per node, nodes of similar size together."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from weft.core.framework.partial_states import Asks, DeviceRequest, Nodes, StateSpace, by_row, mix
from weft.core.framework.policy import Policy
from weft.core.framework.search import AssignmentSearch, SearchResult, nothing
from weft.core.framework.split import SplitRequest, holds
from weft.core.ledger.table import Bools, Ints

SEARCH_CELLS = 600_000
"""Maximum number of device states that one decision's search considers: 20 to 50 ms."""
_NARROWEST = 8


class DeviceRows:
    """Columns over the devices of some nodes, [d]; `offsets` and `counts` locate each node's
    devices."""

    def __init__(
        self,
        offsets: Ints,
        counts: Ints,
        memory: Ints,
        milli: Ints,
        idle: Bools,
        total: Ints,
        parent: Ints,
        spreadable: Bools,
    ) -> None:
        self._offsets, self._counts = offsets, counts
        self._memory, self._milli, self._idle = memory, milli, idle
        self._total, self._parent, self._spreadable = total, parent, spreadable

    def search(
        self,
        asks: Asks,
        steps: Sequence[int],
        policy: Policy | None,
        spread: SplitRequest | None,
        cluster: int,
    ) -> SearchResult:
        """Return the best way to place all steps on each node (see `AssignmentSearch`); the arrays
        of `asks` are [d].

        `cluster` is the number of nodes: each gets an equal part of the search budget."""
        result = nothing(len(self._counts), len(steps))
        for nodes_at in self._of_one_size():
            nodes, padded = self._padded(nodes_at, asks)
            searchable = np.flatnonzero(~cannot_hold(nodes, padded, steps, spread))
            first, kind_of_node, kinds = _alike(
                _only(nodes, searchable), _asks_of(padded, searchable), steps
            )
            part = searchable[first]
            cells = _cells(_only(nodes, part), kinds[first], len(steps))
            emptiest = np.argsort(-nodes.milli[part].sum(axis=1), kind="stable")
            emptiest = emptiest[cells[emptiest].cumsum() <= max(SEARCH_CELLS, cells.max(initial=0))]
            best = nothing(len(part), len(steps))
            best.exact[:] = False
            searched_at = part[emptiest]
            search = AssignmentSearch(
                _only(nodes, searched_at), _asks_of(padded, searched_at), steps, policy, spread
            )
            widths = np.maximum(SEARCH_CELLS // (cluster * cells[emptiest]), 1)
            best.put(emptiest, search.run(widths))
            result.put(
                nodes_at[searchable], SearchResult._make(column[kind_of_node] for column in best)
            )
        return result

    def hold(self, spread: SplitRequest) -> Bools:
        """Return a mask of nodes whose devices hold a `split` GPU request."""
        holding = np.zeros(len(self._counts), dtype=np.bool_)
        for nodes_at in self._of_one_size():
            nodes, _ = self._padded(nodes_at, {})
            ok = nodes.spreadable & (nodes.milli >= spread.milli)
            holding[nodes_at] = holds(nodes.memory, ok, nodes.family, nodes.instance, spread)
        return holding

    def _of_one_size(self) -> Iterator[Ints]:
        """Yield groups of nodes with up to 8, 16, 32 … devices."""
        widths = np.maximum(self._counts, _NARROWEST)
        widths = 1 << np.ceil(np.log2(widths)).astype(np.int64)
        for width in np.unique(widths).tolist():
            yield np.flatnonzero(widths == width)

    def _padded(self, nodes_at: Ints, asks: Asks) -> tuple[Nodes, dict[int, DeviceRequest]]:
        place = np.arange(max(_NARROWEST, int(self._counts[nodes_at].max(initial=0))))
        is_device = place < self._counts[nodes_at][:, None]
        at = np.where(is_device, self._offsets[nodes_at][:, None] + place, 0)

        def numbers(values: Ints, empty: int = 0) -> Ints:
            padded = (
                np.where(is_device, values[at], empty) if len(values) else np.full(at.shape, empty)
            )
            return np.asfortranarray(padded)  # see `by_row`

        def flags(values: Bools) -> Bools:
            return np.asfortranarray(is_device & values[at] if len(values) else is_device)

        parent = numbers(self._parent, -1)
        nodes = Nodes(
            numbers(self._memory),
            numbers(self._milli),
            flags(self._idle),
            numbers(self._total),
            np.where(parent >= 0, parent, np.asfortranarray(is_device * place)),
            parent >= 0,
            flags(self._spreadable),
            np.asfortranarray(is_device),
        )
        return nodes, {
            gpu_request: ask._replace(
                ask_mib=numbers(ask.ask_mib),
                charge_mib=numbers(ask.charge_mib),
                allowed=flags(ask.allowed),
            )
            for gpu_request, ask in asks.items()
        }


def _only(nodes: Nodes, positions: Ints) -> Nodes:
    return Nodes._make(by_row(column, positions) for column in nodes)


def _asks_of(asks: Asks, positions: Ints) -> dict[int, DeviceRequest]:
    return {
        gpu_request: ask._replace(
            ask_mib=by_row(ask.ask_mib, positions),
            charge_mib=by_row(ask.charge_mib, positions),
            allowed=by_row(ask.allowed, positions),
        )
        for gpu_request, ask in asks.items()
    }


def _alike(nodes: Nodes, asks: Asks, steps: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return the first node of each group of equal nodes, the group of each node, and the number of
    distinct devices on each node."""
    keys = StateSpace(nodes, asks, steps).start().keys
    in_order = np.sort(keys, axis=1)
    kinds = 1 + (in_order[:, 1:] != in_order[:, :-1]).sum(axis=1)
    places = np.arange(keys.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    content = mix(mix(keys + nodes.family.astype(np.uint64)) + places).sum(axis=1, dtype=np.uint64)
    _, first, kind_of_node = np.unique(content, return_index=True, return_inverse=True)
    return first, kind_of_node, kinds


def _cells(nodes: Nodes, kinds: Ints, steps: int) -> Ints:
    """Return how many device states a search considers if it keeps one state per level, [nodes]."""
    width = nodes.memory.shape[1]
    return np.asarray(max(1, steps) * width * np.minimum(width, kinds + steps))


# --- counting what cannot fit ---------------------------------------------------------------------


_MOST_SIZES = 16
_HUGE = 1 << 60


def cannot_hold(
    nodes: Nodes, asks: Asks, steps: Sequence[int], spread: SplitRequest | None
) -> Bools:
    """Return a mask of nodes whose GPUs cannot hold all steps (and the `split` request),
    [nodes].

    Proves by counting that a pod's GPU requests cannot all fit on a node, so that no search is
    needed.

    Only necessary conditions are checked, each vectorised over nodes: the number of GPUs for each
    request, sums of memory and cores, and for some sizes how many shares of at least that size the
    devices can hold.
    """
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

"""FGD: places a pod so that the least GPU becomes useless to typical pods.

The score of a place is the reduction of the node's fragmentation (see `fragments`), through a
sigmoid, truncated to an integer: about 40 thousandths of a GPU make a difference of 1, and ties go
to the first node. Source: Weng et al., ATC'23, and the authors' simulator."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.core.framework import Policy, Query, fragments
from weft.core.framework.fragments import TYPICAL_PODS, Floats, Fragments, NodeShares, TypicalPods
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Shape

CHUNK = 1024
"""Number of places scored at a time, so that the working set stays in the processor's cache."""

_BEYOND = 1 << 20
"""Larger than any share: multiplying by it packs several shares into one number."""

COLD_START = tuple(TypicalPods.shape(cpu, milli) for cpu, milli in ((4000, 500), (8000, 1000)))
"""Pods expected before any arrived: half a GPU, and a whole GPU."""


class Fgd(Policy):
    """Fragmentation gradient descent (FGD), for shared and whole GPUs."""

    name = "fgd"
    summary = "least growth of GPU fragments that the usual pods cannot use"
    source = "FGD (ATC'23)"
    inputs: Mapping[str, Any] = {TYPICAL_PODS: list[tuple[Shape, int]]}

    every_device = False
    """If True, devices in equal states are scored one by one, because they differ in other terms of
    the policy that uses this score."""

    def __init__(self, typical: TypicalPods | None = None) -> None:
        self.typical = typical or TypicalPods(COLD_START)
        self._kept: NodeShares | None = None

    def take_input(self, name: str, value: Any) -> None:
        """Take a new histogram of typical pods, as made by `fragments.typical_input`."""
        self.typical = TypicalPods(dict(value))
        self._kept = None

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes for pods without a GPU or with one request for whole GPUs, which have one
        placement per node, [n]; None for all other pods."""
        need = query.need
        if query.demand.mode == "many" or (need is not None and not need.whole):
            return None
        gpus = need.count if need is not None else 0
        if _is_few(query):
            return self._score_few_nodes(query, gpus)
        nodes = self._nodes_of(query)
        after = nodes.pattern.fragments(
            nodes.free - 1000 * gpus,
            query.cpu_free - query.demand.cpu_milli,
            nodes.lost,
            nodes.fitting - gpus,
            query.node_kind,
        )
        return _score(nodes.fragments - after)

    def score_devices(self, query: Query) -> Ints | None:
        """Score each distinct fitting device as if it took the GPU request, [d]; None for whole
        GPUs, and for a pod without a GPU request."""
        need = query.need
        if need is None or need.whole:
            return None
        fits = query.device_fits
        if not (self.every_device or query.narrowed):
            fits = fits & query.device_first
        chosen = np.flatnonzero(fits)
        if _is_few(query):
            return self._score_few_devices(query, chosen)
        node = query.device_node.take(chosen)
        before = query.device_milli_free.take(chosen)
        after = before - need.milli
        total = np.maximum(query.device_memory_total.take(chosen), 1)
        free = query.device_memory_strict.take(chosen)
        charged = need.memory_mib.take(query.device_kind.take(chosen))
        before = np.minimum(before, free * 1000 // total)
        after = np.minimum(after, np.maximum(free - charged, 0) * 1000 // total)
        scores = np.zeros(len(query.device_local), dtype=np.int64)
        if len(chosen) and (self.every_device or query.narrowed):
            first, state_of = _alike((node * _BEYOND + before) * _BEYOND + after)
            node, before, after = node.take(first), before.take(first), after.take(first)
            scores[chosen] = self._of_places(query, node, before, after).take(state_of)
        else:
            scores[chosen] = self._of_places(query, node, before, after)
        return scores

    def _of_places(self, query: Query, node: Ints, before: Ints, after: Ints) -> Ints:
        """Score places by node and by the GPU's free share before and after, [k]."""
        nodes, cpu_free = self._nodes_of(query), query.cpu_free
        if not query.hypothetical:
            cpu_free = cpu_free - query.demand.cpu_milli
        scores = np.zeros(len(node), dtype=np.int64)
        for begin in range(0, len(scores), CHUNK):
            part = slice(begin, begin + CHUNK)
            on = node[part]
            left_over = nodes.with_change(
                on, before[part], after[part], cpu_free.take(on), query.node_kind.take(on)
            )
            scores[part] = _score(nodes.fragments.take(on) - left_over)
        return scores

    def _score_few_nodes(self, query: Query, gpus: int) -> Ints:
        """Compute `score_nodes` for a few nodes, without arrays over GPUs: often just one node has
        changed."""
        nodes, states = self._kept_of(query.table), []
        for row, cpu_free in zip(_rows(query), query.cpu_free.tolist(), strict=True):
            shares = nodes.shares(row).values()
            states.append(nodes.state(row, shares, cpu_free))
            states.append(nodes.state(row, shares, cpu_free - query.demand.cpu_milli, gpus))
        fragments: Floats = np.array(nodes.pattern.of_nodes(states), dtype=np.float64)
        return _score(fragments[::2] - fragments[1::2])

    def _score_few_devices(self, query: Query, chosen: Ints) -> Ints:
        """Compute `score_devices` for the devices of a few nodes, without arrays over GPUs."""
        nodes, need, table = self._kept_of(query.table), query.demand.need, query.table
        rows, cpu_free = _rows(query), query.cpu_free.tolist()
        now = [nodes.shares(row) for row in rows]
        states = [
            nodes.state(row, shares.values(), cpu)
            for row, shares, cpu in zip(rows, now, cpu_free, strict=True)
        ]
        node = query.device_node.take(chosen)
        places = query.device_local.take(chosen).tolist()
        for on, place in zip(node.tolist(), places, strict=True):
            device = table.start[rows[on]] + place
            state, charged = table.state[device], int(need.memory_mib[table.kind_of[device]])
            share = nodes.share(device, state.milli - need.milli, max(0, state.memory - charged))
            shares = {**now[on], place: share}.values()
            states.append(nodes.state(rows[on], shares, cpu_free[on] - query.demand.cpu_milli))
        fragments: Floats = np.array(nodes.pattern.of_nodes(states), dtype=np.float64)
        scores = np.zeros(len(query.device_local), dtype=np.int64)
        scores[chosen] = _score(fragments.take(node) - fragments[len(rows) :])
        return scores

    def _nodes_of(self, query: Query) -> NodeShares:
        """Return the present fragmentation of the query's nodes."""
        if query.hypothetical:
            return NodeShares.of_query(self._pattern(query.table), query)
        nodes = self._nodes(query.table)
        return nodes if query.rows is None else nodes.only(query.rows)

    def _nodes(self, table: LedgerTable) -> NodeShares:
        """Return the fragmentation of all nodes, updated for nodes that changed."""
        shares = self._kept_of(table)
        shares.mend()
        return shares

    def _kept_of(self, table: LedgerTable) -> NodeShares:
        """Return the cached fragmentation of all nodes, not updated."""
        shares = self._kept
        if shares is None or shares.table is not table:
            shares = self._kept = NodeShares(self._pattern(table), table)
        return shares

    def _pattern(self, table: LedgerTable) -> Fragments:
        shares = self._kept
        if shares is not None and shares.table is table:
            return shares.pattern
        return Fragments(self.typical, [kind.model for kind in table.kinds])


def _alike(states: Ints) -> tuple[Ints, Ints]:
    """Group equal states: return the first position of each group, and each state's group. The
    input must not be empty."""
    order = states.argsort(kind="stable")
    ordered = states.take(order)
    new = np.ones(len(states), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    state_of = np.empty(len(states), dtype=np.int64)
    state_of[order] = new.cumsum() - 1
    return order[new], state_of


def _is_few(query: Query) -> bool:
    return query.rows is not None and query.n <= fragments.FEW and not query.hypothetical


def _rows(query: Query) -> list[int]:
    assert query.rows is not None
    rows: list[int] = query.rows.tolist()
    return rows


def _score(fall: Floats) -> Ints:
    """Compute trunc(100·sigmoid(fall / 1000)); `fall` is the reduction of fragmentation in
    thousandths of a GPU."""
    return (100 / (1 + np.exp(-fall / 1000))).astype(np.int64)

"""Builds a table for changed nodes from the previous one: rows of unchanged nodes are copied. The
result equals a table built and charged from scratch, but costs only the changed nodes' rows and
some copying."""

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from weft.core.ledger.table import DeviceState, Ints, LedgerTable, RequestLimits
from weft.model import Node

Value = TypeVar("Value", bound=Hashable)

_NODE_ARRAYS = ("schedulable", "changed_at", "hosted")
_DEVICE_ARRAYS = ("device_unpromised", "device_unneeded", "device_link_bit")
_DEVICE_LISTS = (
    "memory_used",
    "memory_idle",
    "memory_held_back",
    "milli_used",
    "pods",
    "_memory_left",
    "_milli_left",
    "state",
    "uuid_of",
    "milli_total",
    "_serves",
    "_card",
    "_limit",
    "_harvest_limit",
    "_most",
    "_harvest_total",
)


def relaid(
    old: LedgerTable, nodes: Sequence[Node], limits: RequestLimits
) -> tuple[LedgerTable, Ints]:
    """Return the table of `nodes`, and for each of its rows the old row, −1 for a new or changed
    node, whose row has no charges yet."""
    new = LedgerTable.unfilled(nodes, limits)
    rows = [old.row_of.get(node.name, -1) for node in new.nodes]
    came = [
        node for node, row in zip(new.nodes, rows, strict=True) if row < 0 or node != old.nodes[row]
    ]
    fresh = LedgerTable(came, limits)
    row_of = fresh.row_of
    source = np.array(
        [
            old.count + row_of[node.name] if node.name in row_of else row
            for node, row in zip(new.nodes, rows, strict=True)
        ],
        dtype=np.int64,
    )
    _Merge(old, fresh, new, source).fill()
    return new, np.where(source < old.count, source, -1)


class _Merge:
    """Fills `new` from the rows of `old` followed by the rows of `fresh`: row r gets row
    `source[r]`, and devices likewise."""

    def __init__(self, old: LedgerTable, fresh: LedgerTable, new: LedgerTable, source: Ints):
        self._old, self._fresh, self._new, self._source = old, fresh, new, source
        starts = np.concatenate([old.starts[:-1], fresh.starts[:-1] + old.devices]).take(source)
        counts = np.diff(new.starts)
        own = np.arange(new.devices)
        self._devices = np.repeat(starts - new.starts[:-1], counts) + own

    def fill(self) -> None:
        """Fill all columns, and the values computed over all nodes."""
        new, old, fresh = self._new, self._old, self._fresh
        new.cells[:] = self._rows(old.cells, fresh.cells)
        new.device_cells[:] = self._at(old.device_cells, fresh.device_cells)
        for name in _NODE_ARRAYS:
            setattr(new, name, self._rows(getattr(old, name).T, getattr(fresh, name).T).T.copy())
        for name in _DEVICE_ARRAYS:
            setattr(new, name, self._at(getattr(old, name), getattr(fresh, name)))
        for name in _DEVICE_LISTS:
            setattr(new, name, self._list(getattr(old, name), getattr(fresh, name)))
        new.device_node[:] = np.repeat(np.arange(new.count), np.diff(new.starts))
        self._number_kinds()
        self._tell_parents()
        self._number_links()
        self._take_extended()
        self._take_ports()
        nobody = [0] * fresh.devices
        residents = old.residents
        new.residents = residents.moved(self._list(residents.numbers, nobody))
        new.closed_at = old.closed_at
        new.tell_together()
        self._number_states()

    def _rows(self, one: Any, other: Any) -> Any:
        return np.concatenate([one, other], axis=-1).take(self._source, axis=-1)

    def _at(self, one: Any, other: Any) -> Any:
        return np.concatenate([one, other], axis=-1).take(self._devices, axis=-1)

    def _list(self, one: list[Any], other: list[Any]) -> list[Any]:
        return _taken([*one, *other], self._devices.tolist())

    def _number_kinds(self) -> None:
        new, old, fresh = self._new, self._old, self._fresh
        shift = len(old.kinds)
        kinds, numbers = _numbered(
            [*old.kinds, *fresh.kinds], self._at(old.device_kind, fresh.device_kind + shift)
        )
        new.kinds = {kind: number for number, kind in enumerate(kinds)}
        new.device_kind[:] = numbers
        new.kind_of = numbers.tolist()
        new.node_kind[:] = -1
        with_gpus = np.flatnonzero(new.gpus)
        new.node_kind[with_gpus] = numbers[new.starts[with_gpus]]

    def _tell_parents(self) -> None:
        """Copy MIG parents, converted from rows of the old or fresh table to those of the new
        one: a parent keeps its distance from its instance."""
        new, old = self._new, self._old
        parent = self._at(old.device_parent, self._fresh.device_parent)
        was = np.where(self._devices < old.devices, self._devices, self._devices - old.devices)
        new.device_parent = np.where(parent < 0, -1, parent - was + np.arange(new.devices))
        new.parents = new.device_parent.tolist()

    def _number_states(self) -> None:
        """Convert the device states' kind numbers to the new table's."""
        new = self._new
        kinds = (new.device_kind + ((new.device_parent + 1) << 20)).tolist()
        new.state = [
            state if state.kind == kind else DeviceState(kind, *state[1:])
            for state, kind in zip(new.state, kinds, strict=True)
        ]

    def _number_links(self) -> None:
        new, old, fresh = self._new, self._old, self._fresh
        none = np.int64(-1)
        shifted = np.where(fresh.links_of < 0, none, fresh.links_of + len(old.links))
        links_of = self._rows(old.links_of, shifted)
        linked = np.flatnonzero(links_of >= 0)
        new.links, links_of[linked] = _numbered([*old.links, *fresh.links], links_of[linked])
        new.links_of = links_of

    def _take_extended(self) -> None:
        """Copy extended resources; drop a resource that no node has any more."""
        new, old, fresh = self._new, self._old, self._fresh
        source = self._source.tolist()
        for name in {**old.extended, **fresh.extended}:
            if not any(name in node.extended for node in new.nodes):
                continue
            columns, used = [], list[int]()
            for table in (old, fresh):
                columns.append(table.extended.get(name, np.zeros(table.count, dtype=np.int64)))
                used += table.extended_used.get(name, [0] * table.count)
            new.extended[name] = self._rows(*columns)
            new.extended_used[name] = _taken(used, source)

    def _take_ports(self) -> None:
        rows = {row: at for at, row in enumerate(self._source.tolist())}
        for row, ports in self._old.ports.items():
            if row in rows:
                self._new.ports[rows[row]] = list(ports)


def _taken(values: list[Any], at: list[int]) -> list[Any]:
    if len(at) < 2:
        return [values[each] for each in at]
    return list(itemgetter(*at)(values))


def _numbered(values: Sequence[Value], numbers: Ints) -> tuple[list[Value], Ints]:
    """Return the distinct values in order of first use, and `numbers` converted to that order."""
    first_of = {value: at for at, value in reversed(list(enumerate(values)))}
    same = np.array([first_of[value] for value in values], dtype=np.int64)
    numbers = same.take(numbers)
    # np.unique would do, and loads numpy.ma in the middle of an event
    occur = np.flatnonzero(np.bincount(numbers, minlength=len(values))).tolist()
    in_order = sorted(occur, key=lambda number: int((numbers == number).argmax()))
    renumber = np.zeros(len(values), dtype=np.int64)
    renumber[in_order] = np.arange(len(in_order))
    return [values[at] for at in in_order], renumber.take(numbers)

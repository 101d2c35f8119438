"""Query: a demand over some nodes and their devices, about which a policy is asked.

A *demand* is a pod's shape resolved for one cluster's GPUs: its needs on each kind of device. A
query covers all nodes, or only those whose accounts changed since the last answer. Columns are
arrays over the query's nodes (length n) or over their devices (length d, grouped by node in the
same order). A policy returns arrays of the same lengths and never knows which nodes it is about."""

from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.framework.demand import Demand, Need
from weft.core.framework.residency import NO_RESIDENCIES, Residencies
from weft.core.framework.signals import NO_SIGNALS, Bytes, Floats, SignalsView
from weft.core.ledger.table import DEVICE_COLUMNS, NODE_COLUMNS, Bools, Ints, LedgerTable

NEVER = -(1 << 62)
"""Score of nodes and devices that do not fit."""

_AT_ONCE = 1024
"""Number of devices up to which all columns are gathered together; beyond it, each when first
read."""
_LOCAL_BITS = 12
_LOCAL_MASK = (1 << _LOCAL_BITS) - 1


class _NodeColumn:
    """Column of the query's nodes; the first access sets all node columns as plain attributes."""

    def __init__(self, name: str) -> None:
        self._at = NODE_COLUMNS.index(name)

    def __get__(self, query: "Query", owner: object = None) -> Ints:
        query.__dict__.update(zip(NODE_COLUMNS, query.cells, strict=True))
        column: Ints = query.cells[self._at]
        return column


class _DeviceColumn:
    """Column of the query's devices, gathered on first access; then a plain attribute."""

    def __init__(self, name: str) -> None:
        self._at = DEVICE_COLUMNS.index(name)

    def __set_name__(self, owner: object, name: str) -> None:
        self._name = name
        _DEVICE_ATTRIBUTES.append((name, self._at))

    def __get__(self, query: "Query", owner: object = None) -> Ints:
        column = query._device(self._at)
        if query._device_cells is None:
            query.__dict__[self._name] = column
        else:
            cells = query._device_cells
            query.__dict__.update((name, cells[at]) for name, at in _DEVICE_ATTRIBUTES)
        return column


_DEVICE_ATTRIBUTES: list[tuple[str, int]] = []
"""Device columns by attribute, with their position in the table."""


class _DeviceFlag:
    """Boolean column of the query's devices."""

    def __init__(self, name: str) -> None:
        self._at = DEVICE_COLUMNS.index(name)

    def __get__(self, query: "Query", owner: object = None) -> Bools:
        return np.asarray(query._device(self._at) != 0)


class Observations(NamedTuple):
    """Observed readings of GPUs (`signals`) and progress of pods (`residencies`)."""

    signals: SignalsView = NO_SIGNALS
    residencies: Residencies = NO_RESIDENCIES


NOTHING_OBSERVED = Observations()


class Query:
    """One demand over some rows of the ledger's table. `rows` None means all rows; `cells` are the
    table's columns over them, [columns, n].

    `observed` is for policies that declare in `Policy.reads` that they use it. `residencies` change
    with time, so only `filter_pending`, whose answers are not cached, may use them."""

    hypothetical: ClassVar[bool] = False
    """True if the pod's earlier GPU requests (and its CPU and memory) are already charged here."""

    __slots__ = (
        "__dict__",  # columns that were read
        "_device_cells",
        "_device_rows",
        "_fits",
        "_offsets",
        "cells",
        "demand",
        "n",
        "narrowed",
        "need",
        "observed",
        "rows",
        "table",
    )

    def __init__(
        self,
        table: LedgerTable,
        demand: Demand,
        rows: Ints | None = None,
        observed: Observations = NOTHING_OBSERVED,
    ) -> None:
        self.table, self.demand, self.rows, self.observed = table, demand, rows, observed
        self.need: Need | None = demand.needs[0] if demand.needs else None
        self.cells = table.cells if rows is None else table.cells.take(rows, axis=1)
        self.n = self.cells.shape[1]
        self._device_cells: Ints | None = None
        self._device_rows: Ints | None = None
        self._offsets: Ints | None = None
        self._fits: Bools | None = None
        self.narrowed = False

    @property
    def signals(self) -> SignalsView:
        """Signals of the GPUs, over the whole table."""
        return self.observed.signals

    @property
    def residencies(self) -> Residencies:
        """Progress of running pods."""
        return self.observed.residencies

    def measured(self, column: str) -> tuple[Floats, Bytes]:
        """Return a column of the signals: values, NaN if MISSING, and their freshness, [d] each."""
        values, freshness = self.signals.over(self.table, column)
        return self.take_devices(values), self.take_devices(freshness)

    # --- columns over nodes ------------------------------------------------------------------

    cpu_free = _NodeColumn("cpu_free")
    """Free CPU, thousandths of a core, [n]."""
    cpu_total = _NodeColumn("cpu_total")
    """Allocatable CPU, thousandths of a core, [n]."""
    memory_free = _NodeColumn("memory_free")
    """Free host memory, MiB, [n]."""
    memory_total = _NodeColumn("memory_total")
    """Allocatable host memory, MiB, [n]."""
    milli_free = _NodeColumn("milli_free")
    """Free GPU cores over all usable GPUs, thousandths of a GPU, [n]."""
    max_milli_free = _NodeColumn("max_milli_free")
    """Most free cores on one usable GPU, thousandths; −1 without usable GPUs, [n]."""
    max_memory_free = _NodeColumn("max_memory_free")
    """Most free memory on one usable GPU, MiB; −1 without usable GPUs, [n]."""
    idle = _NodeColumn("idle")
    """Number of usable GPUs without a pod, [n]."""
    gpus = _NodeColumn("gpus")
    """Number of GPUs on the node, [n]."""
    usable_gpus = _NodeColumn("usable_gpus")
    """Number of usable GPUs (see `device_usable`), [n]."""
    node_kind = _NodeColumn("node_kind")
    """Device kind of the node's first GPU, −1 without GPUs, [n]."""

    @property
    def hosted(self) -> Ints:
        """Number of pods by class (0 shared, k on k whole GPUs), [n, classes]."""
        hosted = self.table.hosted
        return hosted if self.rows is None else hosted.take(self.rows, axis=0)

    # --- columns over devices ----------------------------------------------------------------

    def _lay_out(self) -> None:
        """Compute the rows of the query's devices."""
        if self._offsets is not None:
            return
        table = self.table
        if self.rows is None:
            self._offsets = table.starts[:-1]
            return
        counts = self.gpus
        ends = counts.cumsum()
        self._offsets = ends - counts
        total = int(ends[-1]) if self.n else 0
        shift = table.starts.take(self.rows) - self._offsets
        self._device_rows = np.repeat(shift, counts) + np.arange(total)

    def _devices(self) -> Ints:
        """Return all device columns, [columns, d]."""
        if self._device_cells is None:
            self._lay_out()
            cells, rows = self.table.device_cells, self._device_rows
            self._device_cells = cells if rows is None else cells.take(rows, axis=1)
        return self._device_cells

    def _device(self, at: int) -> Ints:
        """Return one device column, [d]."""
        if self._device_cells is None:
            self._lay_out()
            rows = self._device_rows
            if rows is not None and len(rows) > _AT_ONCE:
                return np.asarray(self.table.device_cells[at].take(rows))
        column: Ints = self._devices()[at]
        return column

    @property
    def device_memory_free(self) -> Ints:
        """Memory that the GPU request may take, MiB, 0 on unusable devices, [d]: the free memory,
        or for a harvesting demand the memory that may be lent (`device_memory_harvest`)."""
        return self.device_memory_harvest if self.demand.harvests else self.device_memory_strict

    device_memory_harvest = _DeviceColumn("device_memory_harvest")
    """Memory that a harvesting policy may lend, MiB: within the declared limit, and idle, [d]."""
    device_memory_strict = _DeviceColumn("device_memory_free")
    """Unreserved memory, MiB, [d]."""
    device_memory_promised = _DeviceColumn("device_memory_promised")
    """Memory reserved by the device's pods, MiB, [d]."""
    device_pods = _DeviceColumn("device_pods")
    """Number of other pods with a share of the device, [d]."""
    device_milli_free = _DeviceColumn("device_milli_free")
    """Free cores, thousandths of a GPU, 0 on unusable devices, [d]."""
    device_memory_total = _DeviceColumn("device_memory_total")
    """Device memory, MiB, [d]."""
    device_kind = _DeviceColumn("device_kind")
    """Index of the device's kind (model and size) in the table, [d]."""
    device_local = _DeviceColumn("device_local")
    """Position among the node's devices, [d]."""
    device_idle = _DeviceFlag("device_idle")
    """True for usable devices without a pod, [d]."""
    device_usable = _DeviceFlag("device_usable")
    """True for devices in service that are not overbooked, and of which no MIG instance or (for an
    instance) parent GPU is held, [d]."""
    device_first = _DeviceFlag("device_first")
    """True for the first of each node's devices in equal states, [d]: scoring only these is enough
    for policies that read only requests, unless the query is `narrowed`."""

    @cached_property
    def d(self) -> int:
        """Number of the query's devices."""
        self._lay_out()
        return self.table.devices if self._device_rows is None else len(self._device_rows)

    @property
    def device_co_residents(self) -> Ints:
        """Number of the device's set of co-residents in `table.residents`, 0 for none, [d]."""
        return self.take_devices(self.table.residents.co_residents)

    @property
    def device_node(self) -> Ints:
        """Row, among the query's nodes, of each device's node, [d]."""
        if self.rows is None:
            return self.table.device_node
        return np.repeat(np.arange(self.n), self.gpus)

    @property
    def device_ask_mib(self) -> Ints | int:
        """Memory that the GPU request needs free on each device, MiB: [d], or one number for
        all."""
        need = self._need()
        if need.uniform_ask_mib is not None:
            return need.uniform_ask_mib
        return need.ask_mib.take(self.device_kind)

    @property
    def device_has_memory(self) -> Bools:
        """True if the device has enough memory for the GPU request, [d].

        If similar pods are known to need less than the request, a harvesting demand needs only that
        much measured free; the full request must still be within the declared limit."""
        enough: Bools = self.device_memory_free >= self.device_ask_mib
        expected_mib = self.demand.expected_mib
        if expected_mib:
            table = self.table
            within = self.take_devices(table.device_unpromised) >= self.device_ask_mib
            enough |= within & (self.take_devices(table.device_unneeded) >= expected_mib)
        return enough

    @property
    def device_fits(self) -> Bools:
        """True if the GPU request fits on the device, [d]."""
        if self._fits is None:
            self._fits = self._find_fits()
        return self._fits

    @property
    def room(self) -> Ints:
        """Free amount in the unit of the request: MiB if it requests memory, otherwise milli,
        [d]."""
        need = self._need()
        by_memory = need.asks_memory and not need.whole
        return self.device_memory_free if by_memory else self.device_milli_free

    def narrow(self, mask: Bools) -> None:
        """Restrict the devices that fit to those in `mask` (a policy's `filter_devices`)."""
        self._fits = self.device_fits & mask
        self.narrowed = True

    def only(self, positions: Ints) -> "Query":
        """Return a query for the same demand on the nodes at these positions, in the given order;
        restrictions by `narrow` are kept. A device's fit depends on its node alone, so nothing is
        computed again."""
        rows = positions if self.rows is None else self.rows.take(positions)
        part = Query(self.table, self.demand, rows, self.observed)
        if self.narrowed:
            is_kept = np.zeros(self.n, dtype=np.bool_)
            is_kept[positions] = True
            part._fits = self.device_fits[np.repeat(is_kept, self.gpus)]
            part.narrowed = True
        return part

    def about(self, demand: Demand) -> "Query":
        """Return a query for this demand on the same nodes, without restrictions by `narrow`."""
        return Query(self.table, demand, self.rows, self.observed)

    def _find_fits(self) -> Bools:
        need = self._need()
        if need.whole:
            fits = self.device_idle
        else:
            fits = self.device_milli_free >= need.milli
            if need.asks_memory:
                fits &= self.device_has_memory
            if not need.milli or need.asks_memory:
                fits &= self.device_usable
        if not need.takes_any_kind:
            fits &= need.will_do.take(self.device_kind)
        by_uuid = self.demand.device_accepts
        if by_uuid is not None:
            self._lay_out()
            fits &= by_uuid if self._device_rows is None else by_uuid.take(self._device_rows)
        return fits

    def _need(self) -> Need:
        if self.need is None:
            raise ValueError("this demand asks for no GPU: it has no device columns to fit")
        return self.need

    def take_devices(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a column over all of the table's devices for the query's devices, [D] → [d]."""
        self._lay_out()
        return column if self._device_rows is None else column.take(self._device_rows)

    # --- from devices to nodes -----------------------------------------------------------------

    def count(self, devices: Bools) -> Ints:
        """Return the number of each node's devices for which `devices` is True, [n]."""
        return self.sum(devices.view(np.int8))

    def sum(self, values: npt.NDArray[np.generic]) -> Ints:
        """Return the sums of device columns [d] or [k, d] over each node, [n] or [k, n]."""
        return self._reduce(np.add, values, 0)

    def sum_reals(self, values: Floats) -> Floats:
        """Return the sum of a device column over each node, added from first to last device,
        [n]."""
        if not self.d:
            return np.zeros(self.n)
        return np.bincount(self.device_node, weights=values, minlength=self.n).astype(np.float64)

    def max(self, values: Ints, empty: int) -> Ints:
        """Return the maximum of a device column on each node, `empty` for nodes without devices,
        [n]."""
        return self._reduce(np.maximum, values, empty)

    def min(self, values: Ints, empty: int) -> Ints:
        """Return the minimum of a device column on each node, `empty` for nodes without devices,
        [n]."""
        return self._reduce(np.minimum, values, empty)

    def best(self, scores: Ints, *, last: bool = False) -> tuple[Ints, Ints]:
        """Return each node's best fitting device: (score or NEVER, position on the node), both [n].

        Ties go to the first device, or with `last` to the last. Scores must stay below 2**50."""
        local = self.device_local if last else _LOCAL_MASK - self.device_local
        packed = (scores << _LOCAL_BITS) | local
        packed = np.where(self.device_fits, packed, NEVER)
        best = self.max(packed, NEVER)
        position = best & _LOCAL_MASK
        if not last:
            position = _LOCAL_MASK - position
        return np.where(best == NEVER, NEVER, best >> _LOCAL_BITS), position

    def _reduce(self, reducer: np.ufunc, values: npt.NDArray[np.generic], empty: int) -> Ints:
        self._lay_out()
        assert self._offsets is not None
        counts = self.gpus
        if self.n and counts.all():
            return np.asarray(reducer.reduceat(values, self._offsets, axis=-1, dtype=np.int64))
        result = np.full((*values.shape[:-1], self.n), empty, dtype=np.int64)
        filled = counts.nonzero()[0]
        if len(filled):
            offsets = self._offsets[filled]
            result[..., filled] = reducer.reduceat(values, offsets, axis=-1, dtype=np.int64)
        return result

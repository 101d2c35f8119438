"""Readings of each GPU from the snapshot, with fall-backs for metrics that exporters omit.

Computed once per snapshot for all devices of a table, so that a decision only selects rows. NaN
means not measured; impossible values (below 0, above the GPU's size) are clipped."""

from collections.abc import Callable
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from weft.core.framework import Query
from weft.core.framework.signals import FRESH, MISSING, STALE, Bytes, Floats, SignalsView
from weft.core.ledger.table import RESERVE_MIB, RESERVE_PERMILLE, Bools, Ints, LedgerTable

BUSY_SM, BUSY_OCCUPANCY, BUSY_DRAM = 0.80, 0.45, 0.40
"""CARMA's limits for SM activity, SM occupancy and DRAM activity. A GPU is busy if it reaches
the first and one of the others (or has no reading of these two): another pod would mostly wait."""
MARGIN_MIB = 2048
"""Memory that must be measured free beyond a pod's request if the pod shares a GPU (CARMA)."""
STALE_FACTOR = 1.25
"""Factor by which a stale reading of SM or DRAM is raised."""

SM_WEIGHT, DRAM_WEIGHT, MEMORY_WEIGHT, POWER_WEIGHT = 0.4, 0.3, 0.2, 0.1
"""Weight of each reading in the load; unknown readings are left out of the weighted mean."""

SM = ("sm_active_ratio", "graphics_active_ratio", "gpu_util_ratio")
DRAM = ("dram_active_ratio", "memory_copy_ratio")


class GpuReadingColumns:
    """Readings of one snapshot for one table, [D] each.

    `sm`, `dram`, `occupancy`, `power`, `memory` are shares of 1; STALE readings of SM and DRAM are
    raised. `most_sm` is the larger of the mean and the newest sample of SM. `utilisation` is
    GPU_UTIL while FRESH, `free_mib` the newest free memory, `promised_mib` the most memory reserved
    by pods since that sample. `memory_is_fresh` marks GPUs whose memory may be lent, `known` those
    whose load is not MISSING, `busy` those that CARMA's gate excludes."""

    def __init__(self, view: SignalsView, table: LedgerTable) -> None:
        self.view, self.table = view, table
        self.total: Floats = np.maximum(table.device_memory_total, 1).astype(np.float64)
        with np.errstate(all="ignore"):
            self._read()

    def _read(self) -> None:
        self.sm = self._load(SM)
        self.most_sm = np.fmax(self.sm, self._load(tuple(f"{column}.last" for column in SM)))
        self.dram = self._load(DRAM)
        self.occupancy = self.share("sm_occupancy_ratio")
        self.power = self.first("power_w")[0] / np.maximum(self.first("power_limit_w")[0], 1.0)
        self.power = np.clip(self.power, 0.0, 1.0)
        self.memory = self._memory()
        free = self.first("memory_free_mib.last", "memory_free_mib")[0]
        self.free_mib = np.where(np.isnan(free), (1.0 - self.memory) * self.total, free)
        self.promised_mib = self.first("memory_promised_mib")[0]
        self.memory_is_fresh: Bools = (
            self.first("memory_used_mib", "memory_used_ratio", "memory_free_mib")[1] == FRESH
        )
        values, ages = self.first("gpu_util_ratio", "graphics_active_ratio", "sm_active_ratio")
        self.utilisation = np.where(ages == FRESH, np.clip(values, 0.0, 1.0), np.nan)
        self.known: Bools = ~np.isnan(self.sm)
        self.busy = self._busy()

    @cached_property
    def load(self) -> Floats:
        """Weighted mean of all readings, 0..1; NaN if memory is unknown, [D]."""
        return load_of(self.memory, self.sm, self.dram, self.power)

    def first(self, *columns: str) -> tuple[Floats, Bytes]:
        """Return values and freshness, [D]; for each GPU from the first of these columns that has a
        value."""
        values, ages = self.view.over(self.table, columns[0])
        for column in columns[1:]:
            more, more_ages = self.view.over(self.table, column)
            unknown = np.isnan(values)
            values, ages = np.where(unknown, more, values), np.where(unknown, more_ages, ages)
        absurd = ~np.isfinite(values)
        return np.where(absurd, np.nan, values), np.where(absurd, MISSING, ages).astype(np.int8)

    def share(self, *columns: str) -> Floats:
        """Return the values of `first` clipped to 0..1."""
        return np.asarray(np.clip(self.first(*columns)[0], 0.0, 1.0))

    def _load(self, columns: tuple[str, ...]) -> Floats:
        values, ages = self.first(*columns)
        old = np.where(ages == STALE, STALE_FACTOR, 1.0)
        return np.asarray(np.clip(values * old, 0.0, 1.0))

    def _memory(self) -> Floats:
        used = self.first("memory_used_mib")[0] / self.total
        ratio = self.first("memory_used_ratio")[0]
        by_free = 1.0 - self.first("memory_free_mib")[0] / self.total
        memory = np.where(np.isnan(used), np.where(np.isnan(ratio), by_free, ratio), used)
        return np.asarray(np.clip(memory, 0.0, 1.0))

    def _busy(self) -> Bools:
        unknown = np.isnan(self.occupancy) & np.isnan(self.dram)
        stalls = (self.occupancy >= BUSY_OCCUPANCY) | (self.dram >= BUSY_DRAM)
        return np.asarray((self.sm >= BUSY_SM) & (stalls | unknown))


def load_of(memory: Floats, sm: Floats, dram: Floats, power: Floats) -> Floats:
    """Compute 0.4 SM + 0.3 DRAM + 0.2 memory + 0.1 power of each GPU, 0..1, [k]; unknown parts
    other than memory are left out of the mean."""
    total, weights = MEMORY_WEIGHT * memory, np.full(len(memory), MEMORY_WEIGHT)
    for weight, value in ((SM_WEIGHT, sm), (DRAM_WEIGHT, dram), (POWER_WEIGHT, power)):
        known = ~np.isnan(value)
        total = total + np.where(known, weight * value, 0.0)
        weights = weights + weight * known
    return np.asarray(total / weights)


Made = TypeVar("Made")


class SnapshotCache(Generic[Made]):
    """Caches what `make` computes from the latest snapshot and table, for one policy."""

    def __init__(self, make: Callable[[SignalsView, LedgerTable], Made]) -> None:
        self._make = make
        self._kept: tuple[SignalsView, LedgerTable, Made] | None = None

    def of(self, query: Query) -> Made:
        """Return the computed value, computing it only if the query's signals or table are new."""
        view, table, cached = query.signals, query.table, self._kept
        if cached is None or cached[0] is not view or cached[1] is not table:
            cached = self._kept = (view, table, self._make(view, table))
        return cached[2]


def asked_mib(query: Query) -> Ints | int:
    """Return the memory requested of one device, MiB; 0 for a request split over several GPUs."""
    need = query.need
    return 0 if need is None or need.gpu_request.split else query.device_ask_mib


def needed_mib(query: Query) -> Ints | int:
    """Return the memory that the pod will need on a device, MiB: its request, or its expected peak
    if less."""
    expected_mib = query.demand.expected_mib
    return np.minimum(asked_mib(query), expected_mib) if expected_mib else asked_mib(query)


def fits_requests(query: Query) -> Bools:
    """Mask of devices that fit by requests alone, without borrowed memory, [d]."""
    return np.asarray(query.device_memory_strict >= asked_mib(query))


def may_borrow(query: Query) -> Bools:
    """Mask of devices that fit by requests, or on which the pod may borrow memory, [d].

    Unless a similar pod was watched from start to end, the pod's memory need is unknown, and the
    pods whose idle memory is lent may need it a minute later. Then at most one GPU of a node may be
    overcommitted."""
    if query.demand.expected_mib:
        return np.ones(len(query.device_pods), dtype=np.bool_)
    lends = query.sum((query.device_memory_promised > query.device_memory_total).astype(np.int64))
    return np.asarray(fits_requests(query) | (lends.take(query.device_node) == 0))


def has_compute_left(query: Query, readings: GpuReadingColumns) -> Bools:
    """Mask of devices with enough idle compute for one more pod like those on it, [d].

    Pods that wait for each other's compute finish no sooner by starting sooner: lending memory pays
    only while the pods' SM use, plus their mean for one more, does not fill the GPU. The newest
    sample counts if it is above the mean, as it shows pods that just began. Unknown compute counts
    as idle."""
    pods = query.device_pods
    full = query.take_devices(readings.most_sm) * (pods + 1) > np.maximum(pods, 1)
    return np.asarray(~full)


def short_of_memory(query: Query, readings: GpuReadingColumns, margin_mib: int = 0) -> Bools:
    """Mask of devices with less memory free than the request and a margin, [d]; a device whose free
    memory is unknown is not short.

    Nor is a device short if the request fits by requests, and no more memory is in use than pods
    had reserved when it was measured, plus the reserve: the reading is then of pods that have left
    or will not grow."""
    free = query.take_devices(readings.free_mib)
    short = np.asarray(free < needed_mib(query) + margin_mib)
    if not short.any():
        return short
    promised = np.fmax(query.device_memory_promised, query.take_devices(readings.promised_mib))
    used = query.device_memory_total - free
    explained = fits_requests(query) & (used <= promised + reserve_mib(query))
    return np.asarray(short & ~explained)


def promised_share(query: Query) -> Floats:
    """Return the part of each device's memory that pods have reserved, 0..1, [d]."""
    total = np.maximum(query.device_memory_total, 1)
    return np.asarray(np.clip(query.device_memory_promised / total, 0.0, 1.0))


def room_by_requests(query: Query) -> Ints:
    """Return each device's unreserved MiB; for a request of whole GPUs, or without memory, its
    unreserved thousandths of cores, [d]."""
    need = query.need
    by_memory = need is not None and need.asks_memory and not need.whole
    return query.device_memory_strict if by_memory else query.device_milli_free


def reserve_mib(query: Query) -> Ints:
    """Return the memory that borrowers must leave free on each device, MiB, [d]."""
    return np.maximum(RESERVE_MIB, query.device_memory_total * RESERVE_PERMILLE // 1000)


def is_critical(query: Query) -> bool:
    """Return True if the pod is latency-critical."""
    return query.demand.shape.job_class == "latency-critical"

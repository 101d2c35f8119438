"""Defines a *demand*: a pod's shape resolved for the GPUs of one cluster, with its needs on each
kind of device and the cheapest exact way to check if it fits."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from weft.core.ledger import MemoryAmount
from weft.core.ledger.table import (
    NODE_COLUMNS,
    POD_CLASSES,
    Bools,
    DeviceKind,
    Ints,
    LedgerTable,
    is_small,
)
from weft.model import Code, GpuRequest, Shape
from weft.model.request import LATENCY_CRITICAL

Codes = npt.NDArray[np.int8]

Mode = Literal["none", "node", "device", "many"]


ANY_AMOUNT = -(1 << 62)


class Need:
    """One GPU request, resolved for this cluster's device kinds.

    `memory_mib[k]` is charged on a device of kind k, `ask_mib[k]` must be free there (more than
    charged if the dialect wants headroom), `card_mib[k]` is its total memory, `accepts[k]` is True
    if the model is accepted; `will_do[k]` is False in addition if the device is too small and
    comparing with its free memory would not show that. `lack_code` is the reason if no device
    suffices, `short_code` if too few do."""

    __slots__ = (
        "accepts",
        "ask_mib",
        "asks_memory",
        "card_mib",
        "count",
        "gpu_request",
        "lack_code",
        "memory_mib",
        "milli",
        "short_code",
        "takes_any_kind",
        "uniform_ask_mib",
        "whole",
        "will_do",
    )

    def __init__(
        self,
        gpu_request: GpuRequest,
        shape: Shape,
        kinds: list[DeviceKind],
        overcommits: bool = False,
    ) -> None:
        self.gpu_request, self.count, self.whole = gpu_request, gpu_request.count, gpu_request.whole
        self.milli = 1000 if gpu_request.whole else gpu_request.milli
        asked_mib = [_mib_on(gpu_request, kind) for kind in kinds]
        self.card_mib: Ints = np.array([kind.memory_mib for kind in kinds], dtype=np.int64)
        sizes = self.card_mib
        least = np.array(asked_mib, dtype=np.int64)
        self.memory_mib: Ints = sizes if gpu_request.whole else least
        self.ask_mib: Ints = np.maximum(self.memory_mib, least) + gpu_request.headroom_mib
        rule = shape.devices
        self.accepts: Bools = np.ones(len(kinds), dtype=np.bool_)
        if rule.models or rule.not_models:
            accepted = [rule.accepts_model(kind.model) for kind in kinds]
            self.accepts = np.array(accepted, dtype=np.bool_)
        self.will_do: Bools = self.accepts
        if overcommits:  # more may be free than a card has, but no pod gets more than a card
            self.will_do = self.accepts & (self.ask_mib <= sizes)
        elif gpu_request.whole:
            self.will_do = self.accepts & (least <= sizes)
        self.takes_any_kind = bool(self.will_do.all())
        self.asks_memory = bool((self.ask_mib > 0).any())
        same = len(set(self.ask_mib.tolist())) == 1
        self.uniform_ask_mib = int(self.ask_mib[0]) if same else None
        if gpu_request.whole:
            self.lack_code = Code.NOT_IDLE
        elif self.asks_memory:
            self.lack_code = Code.GPU_SHARE if self.milli else Code.GPU_MEMORY
        else:
            self.lack_code = Code.GPU_CORES if self.milli else Code.OUT_OF_SERVICE
        # Enough GPUs may be in service and yet exclude each other (MIG).
        in_service = self.lack_code == Code.OUT_OF_SERVICE
        self.short_code = Code.TOO_FEW_GPUS if in_service else self.lack_code


def _mib_on(gpu_request: GpuRequest, kind: DeviceKind) -> int:
    """Return the memory requested of a GPU of this kind; a `split` request requests at most the
    GPU's memory."""
    card_mib = kind.memory_mib
    memory = gpu_request.memory
    asked_mib = memory.value  # of MiB, the same on every card
    if memory.kind != "mib":
        asked_mib = memory.on_node(kind.unit_mib).mib_on(card_mib)
    if gpu_request.least_mib:
        asked_mib = max(asked_mib, min(gpu_request.least_mib, card_mib))
    return min(asked_mib, card_mib) if gpu_request.split else asked_mib


class Demand:
    """A pod's shape, resolved for this cluster's ledger.

    `mode` is the cheapest exact way to check it: `none` (no GPU), `node` (node aggregates are
    enough), `device` (device by device), `many` (several GPU requests, or several shared GPUs: a
    search). `need` is the only GPU request of a `node` or `device` demand. `milli` is the pod's
    total in thousandths of a GPU, `gpus` its number of GPUs, `pod_class` is 0 for one shared GPU
    and k for k whole GPUs. `harvests`: the pod may use memory that other pods hold but leave idle;
    possible only for a share of one GPU, and not for a latency-critical pod. `expected_mib` is the
    memory that a harvesting pod is expected to need, judged by similar pods, 0 if unknown; `asks`
    passes `harvests` and `expected_mib` to the ledger. `small[k]`: the pod is latency-critical, and
    all its requests together are small on a device of kind k (`is_small`)."""

    def __init__(self, shape: Shape, table: LedgerTable, *, harvests: bool = False) -> None:
        self.shape = shape
        kinds = list(table.kinds)
        self.needs = tuple(
            Need(gpu_request, shape, kinds, table.overcommits) for gpu_request in shape.gpu_requests
        )
        self.cpu_milli = shape.cpu_milli
        self.memory_mib = shape.memory_mib
        self.extended = shape.extended
        if self.needs:
            self.need = self.needs[0]
        self.gpus = sum(need.count for need in self.needs)
        self.milli = sum(need.count * need.milli for need in self.needs)
        self.device_accepts = self._by_uuid(table)
        self.small = (False,) * len(kinds)
        if shape.job_class == LATENCY_CRITICAL:
            self.small = tuple(
                is_small(
                    shape.job_class,
                    int(sum(need.memory_mib[at] for need in self.needs)),
                    sum(need.milli for need in self.needs),
                    (kind.memory_mib, kind.milli),
                )
                for at, kind in enumerate(kinds)
            )
        self.harvests = harvests and table.harvests and self._takes_one_share()
        self.expected_mib = self.needs[0].gpu_request.expected_mib if self.harvests else 0
        self.asks = MemoryAmount(self.harvests, self.expected_mib)
        self.mode: Mode = self._cheapest_mode(table)
        self.node_columns, self.node_needs, self.code_of = self._node_checks()
        shared = self.gpus == 1 and not self.needs[0].whole and self.milli < 1000
        self.pod_class = 0 if shared else min(self.gpus, POD_CLASSES - 1)

    def _takes_one_share(self) -> bool:
        """Return True if the pod may borrow idle memory: it requests memory of a single shared GPU,
        is not latency-critical, and has no minimum after running out of memory (`least_mib`)."""
        if self.gpus != 1 or self.shape.job_class == LATENCY_CRITICAL:
            return False
        need = self.needs[0]
        return not need.whole and need.asks_memory and not need.gpu_request.least_mib

    def _by_uuid(self, table: LedgerTable) -> Bools | None:
        rule = self.shape.devices
        if not rule.uuids and not rule.not_uuids:
            return None
        return np.array([rule.accepts_uuid(uuid) for uuid in table.uuid_of], dtype=np.bool_)

    def _node_checks(self) -> tuple[Ints, Ints, Codes]:
        """Return the node columns to compare, their least values [checks, 1], and a table of codes.
        The table is indexed by the failed checks as bits, the first check highest
        (`np.packbits`)."""
        # A pod without a request is not refused on a node that others overbooked (as in
        # kube-scheduler).
        checks = [
            ("cpu_free", self.cpu_milli or ANY_AMOUNT, Code.CPU),
            ("memory_free", self.memory_mib or ANY_AMOUNT, Code.NODE_MEMORY),
        ]
        if self.mode == "node":
            need = self.need
            column, least = "max_milli_free", need.milli
            if need.whole:
                column, least = "idle", need.count
            elif need.asks_memory:
                column, least = "max_memory_free", need.uniform_ask_mib or 0
            checks.append((column, least, need.lack_code))
        codes = np.zeros(256, dtype=np.int8)
        for bit, (_, _, code) in reversed(list(enumerate(checks))):
            failing = np.arange(256) >> (7 - bit) & 1 == 1
            codes[failing] = code
        columns = [NODE_COLUMNS.index(column) for column, _, _ in checks]
        least_of = np.array([[least] for _, least, _ in checks], dtype=np.int64)
        return np.array(columns, dtype=np.int64), least_of, codes

    def _cheapest_mode(self, table: LedgerTable) -> Mode:
        if not self.needs:
            return "none"
        need = self.needs[0]
        # Counting a node's GPUs is enough unless MIG makes some exclude each other.
        countable = need.whole and not table.has_parents
        if len(self.needs) > 1 or need.gpu_request.split or (need.count > 1 and not countable):
            return "many"
        by_memory = need.asks_memory and not need.milli and need.uniform_ask_mib is not None
        one_number = need.whole or not need.asks_memory or by_memory
        if not self.harvests and table.uniform and self.device_accepts is None and one_number:
            return "node"
        return "device"

"""A pod's shape resolved on the cards of one cluster: what it needs of each kind of device."""

from typing import Literal

import numpy as np

from weft.ledger.table import POD_CLASSES, Bools, Ints, Table
from weft.model import GpuClaim, Shape

Mode = Literal["none", "node", "device", "many"]


class Need:
    """One claim on this cluster's device kinds.

    `memory_mib[k]` is charged on a device of kind k, `ask_mib[k]` must be free there (more than
    charged where the dialect wants headroom), `accepts[k]` says whether the kind will do.
    """

    __slots__ = ("accepts", "ask_mib", "asks_memory", "claim", "count", "memory_mib", "milli",
                 "takes_any_kind", "uniform_ask_mib", "whole")  # fmt: skip

    def __init__(self, claim: GpuClaim, shape: Shape, kinds: list[tuple[str, int, int]]) -> None:
        self.claim, self.count, self.whole = claim, claim.count, claim.whole
        self.milli = 1000 if claim.whole else claim.milli
        memory = [m if claim.whole else claim.memory.mib_on(m) for _, m, _ in kinds]
        self.memory_mib: Ints = np.array(memory, dtype=np.int64)
        self.ask_mib: Ints = self.memory_mib + claim.headroom_mib
        self.accepts: Bools = np.array(
            [shape.devices.accepts_model(model) for model, _, _ in kinds], dtype=np.bool_
        )
        self.takes_any_kind = bool(self.accepts.all())
        self.asks_memory = bool((self.ask_mib > 0).any())
        same = len(set(self.ask_mib.tolist())) == 1
        self.uniform_ask_mib = int(self.ask_mib[0]) if same else None


class Demand:
    """A shape as this cluster's ledger understands it.

    `mode` is the cheapest exact way to check it: `none` (no GPU), `node` (node aggregates tell),
    `device` (device by device), `many` (several claims, or several shared GPUs: a search).
    `milli` is the pod's total in thousandths of a GPU, `gpus` the number of GPUs it takes,
    `pod_class` 0 for one shared GPU and k for k whole ones.
    """

    def __init__(self, shape: Shape, table: Table) -> None:
        self.shape = shape
        kinds = list(table.kinds)
        self.needs = tuple(Need(claim, shape, kinds) for claim in shape.claims)
        self.cpu_milli = shape.cpu_milli
        self.memory_mib = shape.memory_mib
        self.extended = shape.extended
        self.gpus = sum(need.count for need in self.needs)
        self.milli = sum(need.count * need.milli for need in self.needs)
        self.device_accepts = self._by_uuid(table)
        self.mode: Mode = self._cheapest_mode(table)
        shared = self.gpus == 1 and not self.needs[0].whole and self.milli < 1000
        self.pod_class = 0 if shared else min(self.gpus, POD_CLASSES - 1)

    @property
    def need(self) -> Need:
        """The only claim of a `node` or `device` demand."""
        return self.needs[0]

    def _by_uuid(self, table: Table) -> Bools | None:
        rule = self.shape.devices
        if not rule.uuids and not rule.not_uuids:
            return None
        return np.array([rule.accepts_uuid(uuid) for uuid in table.uuid_of], dtype=np.bool_)

    def _cheapest_mode(self, table: Table) -> Mode:
        if not self.needs:
            return "none"
        need = self.needs[0]
        if len(self.needs) > 1 or need.claim.split or (need.count > 1 and not need.whole):
            return "many"
        one_number = need.whole or not (need.asks_memory and need.milli)
        if table.uniform and self.device_accepts is None and one_number:
            return "node"
        return "device"

"""Columns of the ledger: one row per node, one row per device, devices grouped by node.

Rows are not padded: a node with 56 MIG instances has 56 device rows and costs its neighbours
nothing. Rows are in tie-break order (`Node.rank`, then name), so that the first best row is the
decision, and a table rebuilt from the same nodes decides alike. *Declared* columns (`*_total`,
`in_service`, `schedulable`) come from nodes, *used* columns from holdings. `refresh_row` alone
derives from both all `*_free` columns, `idle`, `usable` and every node aggregate.

*Co-residents* are the pods on a device (`Resident`), in any order. Devices with equal co-residents
have equal numbers, so that policies judge each set once; 0 is the empty set."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from weft.core.ledger.node_labels import NodeLabels, NodeTaints
from weft.model import ClosedNode, Gpu, HostPort, Node, Placement
from weft.model.gpu_links import GpuLinks
from weft.model.request import LATENCY_CRITICAL
from weft.model.slowdown_limit import SlowdownLimit, percent_on

# --- co-residents of each GPU, by number ----------------------------------------------------------

KEPT = 4096
"""Sets of co-residents are renumbered once there are more than this many, plus two for each device.
"""


SMALL_PART = 4
"""A pod is small if it requests at most one part in `SMALL_PART` of its GPU's memory, and of its
cores."""


class Resident(NamedTuple):
    """Application and class of one pod on a GPU; both "" if unknown. Set only for a
    latency-critical pod: `bound_percent`, its SLO's slowdown limit in percent of its time alone,
    rounded by `percent_on` (0: none), and `small`: its request is small (`is_small`)."""

    application: str
    job_class: str
    bound_percent: int = 0
    small: bool = False


CoResidents = tuple[Resident, ...]


def is_small(job_class: str, memory_mib: int, milli: int, card: tuple[int, int]) -> bool:
    """Return True if a pod with this request (MiB, milli) is latency-critical and small on a GPU of
    size `card` (MiB, milli). A pod that requests neither memory nor cores is of unknown size, so
    not small."""
    if job_class != LATENCY_CRITICAL or not (memory_mib or milli):
        return False
    return SMALL_PART * memory_mib <= card[0] and SMALL_PART * milli <= card[1]


def own_percent(job_class: str, slowdown_limit: SlowdownLimit, gpu_model: str) -> int:
    """Return the slowdown limit of a latency-critical pod on this GPU model, in percent, rounded so
    that few values differ; 0 for other classes."""
    return percent_on(slowdown_limit, gpu_model) if job_class == LATENCY_CRITICAL else 0


def resident_on(placement: Placement, gpu: Gpu) -> Resident:
    """Return the pod as a resident, from its share of this GPU."""
    if placement.job_class != LATENCY_CRITICAL:
        return Resident(placement.application, placement.job_class)
    shares = [share for share in placement.shares if share.gpu == gpu.index]
    memory_mib, milli = (sum(s.memory_mib for s in shares), sum(s.milli for s in shares))
    return Resident(
        placement.application,
        LATENCY_CRITICAL,
        own_percent(LATENCY_CRITICAL, placement.slowdown_limit, gpu.model),
        is_small(LATENCY_CRITICAL, memory_mib, milli, (gpu.memory_mib, gpu.milli)),
    )


class Residents:
    """Numbers sets of co-residents: `co_residents[d]` is the number of the set on device d,
    `members[number]` the set's sorted members. Numbers are stable until `epoch` changes, which
    renumbers all sets."""

    def __init__(self, devices: int) -> None:
        self.co_residents: npt.NDArray[np.int64] = np.zeros(devices, dtype=np.int64)
        self.members: list[CoResidents] = [()]
        self.epoch = 0
        self._number: dict[CoResidents, int] = {(): 0}
        self._now = [0] * devices

    @property
    def numbers(self) -> list[int]:
        """The number of each device's set of co-residents, as a list."""
        return self._now

    def moved(self, numbers: list[int]) -> "Residents":
        """Return the numbering for a new layout, in which `numbers` has each device's set number.
        This object must not be used afterwards."""
        moved = Residents(0)
        moved.co_residents, moved._now = np.array(numbers, dtype=np.int64), numbers
        moved.members, moved._number, moved.epoch = self.members, self._number, self.epoch
        return moved

    def on(self, device: int) -> CoResidents:
        """Return the set of pods on the device."""
        return self.members[self._now[device]]

    def change(self, device: int, resident: Resident, sign: int) -> None:
        """Add a pod to the device's set (`sign` 1), or remove it (−1)."""
        co_residents = list(self.on(device))
        if sign > 0:
            co_residents.append(resident)
            co_residents.sort()
        else:
            if resident not in co_residents:
                raise RuntimeError(f"{resident} leaves device {device}, and was not on it")
            co_residents.remove(resident)
        self._put(device, tuple(co_residents))
        if len(self.members) > 2 * len(self._now) + KEPT:
            self._renumber()

    def _put(self, device: int, co_residents: CoResidents) -> None:
        number = self._number.get(co_residents)
        if number is None:
            number = self._number[co_residents] = len(self.members)
            self.members.append(co_residents)
        self._now[device] = number
        self.co_residents[device] = number

    def _renumber(self) -> None:
        """Number all sets anew, without those that no device has any more."""
        everywhere = [self.members[number] for number in self._now]
        self.members, self._number = [()], {(): 0}
        for device, co_residents in enumerate(everywhere):
            self._put(device, co_residents)
        self.epoch += 1


# --- the table ------------------------------------------------------------------------------------

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

State = Literal["reserved", "committed"]
FAR = 1 << 62

POD_CLASSES = 18
"""Number of columns of `hosted`: 0 for pods on a shared GPU, k for pods on k whole GPUs (the last
for 17 and more)."""

NODE_COLUMNS = (
    "cpu_free",
    "memory_free",
    "milli_free",
    "max_milli_free",
    "max_memory_free",
    "idle",
    "gpus",
    "usable_gpus",
    "cpu_total",
    "memory_total",
    "node_kind",
    "unit_mib",
)
"""Rows of `LedgerTable.cells`, in order: one gather fetches all of them for the nodes asked for."""
CPU_FREE, MEMORY_FREE, MILLI_FREE, MAX_MILLI_FREE, MAX_MEMORY_FREE, IDLE = range(6)
"""Row numbers of the columns that code reads or writes by number."""

DEVICE_COLUMNS = (
    "device_memory_free",
    "device_milli_free",
    "device_idle",
    "device_usable",
    "device_first",
    "device_kind",
    "device_local",
    "device_memory_total",
    "device_memory_harvest",
    "device_pods",
    "device_memory_promised",
)
"""Rows of `LedgerTable.device_cells`, in order."""
DEVICE_MEMORY_FREE, DEVICE_MILLI_FREE, DEVICE_IDLE, DEVICE_USABLE, DEVICE_FIRST = range(5)
DEVICE_KIND, DEVICE_PROMISED = 5, 10
_FREE, _AVAILABLE = slice(MILLI_FREE, IDLE + 1), slice(DEVICE_USABLE + 1)
_HELD = slice(DEVICE_COLUMNS.index("device_memory_harvest"), DEVICE_PROMISED + 1)

RESERVE_MIB, RESERVE_PERMILLE = 512, 20
"""Memory that harvesting always leaves free on a GPU, the larger of the two, for contexts of new
processes and for growth between two samples."""


KNOWN_ONLY_UP_TO = 2000
"""Thousandths of a GPU's memory: with a harvest limit up to this, only pods with a known peak lend;
with a larger limit, all pods."""

OWED = -(1 << 62)
"""Smallest value of a free column: pods that others placed may overuse a resource without limit."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """A pod's placement, and its state. `deadline_ns` ends a reservation.

    `idle_mib` is the part of each share's memory that the last measurement showed as unneeded; ()
    if unknown, which counts as none. `expected_mib` is the memory that the pod was expected to need
    when placed on a single GPU share, from similar pods; 0 if unknown."""

    placement: Placement
    state: State
    deadline_ns: int = FAR
    idle_mib: tuple[int, ...] = ()
    expected_mib: int = 0

    @property
    def pod_class(self) -> int:
        """Class of the pod: 0 for a shared GPU, k for k whole GPUs, −1 without a GPU (as in
        GpuClustering)."""
        shares = self.placement.shares
        if not shares:
            return -1
        if len(shares) == 1 and shares[0].milli < 1000:
            return 0
        return min(len({share.gpu for share in shares}), POD_CLASSES - 1)


class DeviceKind(NamedTuple):
    """Properties by which requests distinguish devices: model, size (MiB, core thousandths), and
    the gpushare unit in which the node counts (MiB, 0 if unknown)."""

    model: str
    memory_mib: int
    milli: int
    unit_mib: int = 0

    def __str__(self) -> str:
        return str(self[: 4 if self.unit_mib else 3])


class RequestLimits(NamedTuple):
    """Declared limits for reserving more than a GPU's memory, in thousandths of it.

    `overcommit_permille` limits all reservations, regardless of measurements. `harvest_permille`
    limits harvesting policies, and the memory must also be measured idle. With `known_only`, only
    pods whose peak is known from similar pods lend memory."""

    overcommit_permille: int = 1000
    harvest_permille: int = 1000
    known_only: bool = False

    @classmethod
    def declared(cls, overcommit_permille: int = 1000, harvest_permille: int = 1000) -> Self:
        """Return the limits for the configured values; with a harvest limit of at most
        `KNOWN_ONLY_UP_TO`, only pods of known peak lend."""
        known_only = harvest_permille <= KNOWN_ONLY_UP_TO
        return cls(overcommit_permille, harvest_permille, known_only)


STRICT = RequestLimits()


class DeviceState(NamedTuple):
    """State of one device; devices of a node with equal states are interchangeable."""

    kind: int
    milli: int
    memory: int
    usable: bool
    idle: bool
    harvest: int
    unpromised: int
    unneeded: int


class LedgerTable:
    """Columns over nodes and devices.

    Node columns, N rows: `cpu_free` (thousandths), `memory_free` (MiB), `gpus`, `milli_free` (sum
    over usable GPUs), `max_milli_free` and `max_memory_free` (largest of a usable GPU, −1 if there
    is none), `idle` (usable GPUs without a pod), `hosted` (pods by class).

    Device columns, D rows, of which node n has `start[n]:start[n + 1]`: total and free memory (MiB)
    and cores (thousandths), `device_idle`, `device_kind` (number of its `DeviceKind`),
    `device_first` (first device of its node in its state: enumerating these is enough),
    `device_pods` (number of pods), `device_memory_promised` (sum of the pods' shares).
    `device_link_bit` is the GPU's position among the node's linked GPUs as a bit, 0 for devices
    without links, such as MIG instances.

    `device_memory_harvest` is the memory that a harvesting policy may give to a pod: within the
    declared limit of requests, and within the idle memory less the reserve; free memory on a device
    without a pod. A pod whose peak is known must fit its request in `device_unpromised` (what is
    left of the limit) and its peak in `device_unneeded` (measured free; −1 unless `measured` marks
    the device).

    Lists hold the used amounts (`memory_used`, `milli_used`, `pods`), as they are written one
    device at a time and never scanned; also `memory_idle`, the part of `memory_used` measured as
    unneeded, and `memory_held_back`, memory that is held back from lending, on top of the reserve.

    `residents` has the pods on each device, `extended_used` the used amount of each extended
    resource. `closed_at` is the ledger's version at which a node was last closed within this
    layout. `kinds` numbers the device kinds in order of occurrence. `links` are the distinct ways
    in which nodes' GPUs are connected, `links_of[n]` the number of node n's, −1 if unknown."""

    cpu_free: Ints
    memory_free: Ints
    milli_free: Ints
    max_milli_free: Ints
    max_memory_free: Ints
    idle: Ints
    gpus: Ints
    usable_gpus: Ints
    cpu_total: Ints
    memory_total: Ints
    node_kind: Ints
    unit_mib: Ints
    device_memory_free: Ints
    device_milli_free: Ints
    device_idle: Ints
    device_usable: Ints
    device_memory_harvest: Ints
    device_pods: Ints
    device_memory_promised: Ints
    device_first: Ints
    device_kind: Ints
    device_local: Ints
    device_memory_total: Ints

    def __init__(self, nodes: Sequence[Node], limits: RequestLimits = STRICT) -> None:
        """Lay out `nodes`, sorting them."""
        self._allocate(nodes, limits)
        self._tell_all(limits)

    @classmethod
    def unfilled(cls, nodes: Sequence[Node], limits: RequestLimits) -> Self:
        """Return a table of these nodes whose columns `core/ledger/relayout.py` fills."""
        table = cls.__new__(cls)
        table._allocate(nodes, limits)
        return table

    def _allocate(self, nodes: Sequence[Node], limits: RequestLimits) -> None:
        self.nodes: list[Node] = sorted(nodes, key=lambda node: (node.rank, node.name))
        self.row_of = {node.name: row for row, node in enumerate(self.nodes)}
        self.kinds: dict[DeviceKind, int] = {}
        self.count = len(self.nodes)
        self.start: list[int] = [0]
        for node in self.nodes:
            self.start.append(self.start[-1] + len(node.gpus))
        self.starts = np.asarray(self.start, dtype=np.int64)
        self.devices = self.start[-1]
        self.cells: Ints = np.zeros((len(NODE_COLUMNS), self.count), dtype=np.int64)
        self.device_cells: Ints = np.zeros((len(DEVICE_COLUMNS), self.devices), dtype=np.int64)
        for name, column in zip(NODE_COLUMNS, self.cells, strict=True):
            setattr(self, name, column)
        for name, column in zip(DEVICE_COLUMNS, self.device_cells, strict=True):
            setattr(self, name, column)
        self.device_node: Ints = np.zeros(self.devices, dtype=np.int64)
        self.device_unpromised: Ints = np.zeros(self.devices, dtype=np.int64)
        self.device_unneeded: Ints = np.full(self.devices, -1, dtype=np.int64)
        self.measured: Bools = np.zeros(self.devices, dtype=np.bool_)
        self.schedulable: Bools = np.zeros(self.count, dtype=np.bool_)
        self.hosted = np.zeros((self.count, POD_CLASSES), dtype=np.int64)
        self.extended: dict[str, Ints] = {}
        self.extended_used: dict[str, list[int]] = {}
        self.ports: dict[int, list[HostPort]] = {}
        self.has_taints = any(node.taints for node in self.nodes)
        self.all_deliver = all(node.delivers is None for node in self.nodes)
        self.some_silent = any(node.silent_since for node in self.nodes)
        self.tells_isolation = any(node.isolation is not None for node in self.nodes)
        self.uuid_of: list[str] = []
        self.links: list[GpuLinks] = []
        self.links_of: Ints = np.full(self.count, -1, dtype=np.int64)
        self.device_link_bit: Ints = np.zeros(self.devices, dtype=np.int64)
        self.memory_used = [0] * self.devices
        self.memory_idle = [0] * self.devices
        self.memory_held_back = [0] * self.devices
        self.milli_used = [0] * self.devices
        self.pods = [0] * self.devices
        self.residents = Residents(self.devices)
        self._memory_left = [0] * self.devices
        self._milli_left = [0] * self.devices
        self.state = [DeviceState(0, 0, 0, False, False, 0, 0, 0)] * self.devices
        self.changed_at = np.zeros(self.count, dtype=np.int64)
        self.closed_at = 0
        self.overcommits = limits.overcommit_permille > 1000
        self.harvests = limits.harvest_permille > 1000
        self._labels: NodeLabels | None = None
        self._taints: NodeTaints | None = None

    @property
    def labels(self) -> NodeLabels:
        """Label columns of the nodes."""
        if self._labels is None:
            self._labels = NodeLabels(self.nodes)
        return self._labels

    @property
    def taints(self) -> NodeTaints:
        """Distinct sets of taints of the nodes."""
        if self._taints is None:
            self._taints = NodeTaints(self.nodes)
        return self._taints

    def tell_together(self) -> None:
        """Compute the values over all nodes and devices. `told_apart` changes if a request may have
        to be checked differently: it has the kinds of GPU by number, and facts on MIG and mixed
        nodes."""
        self.has_parents = any(parent >= 0 for parent in self.parents)
        self.uniform = not self.has_parents and self._each_node_is_of_one_kind()
        self.told_apart: tuple[object, ...] = (self.uniform, self.has_parents, *self.kinds)
        self._serving: Bools = np.asarray(self._serves, dtype=np.bool_)
        self.all_in_service = bool(self._serving.all())

    def _tell_all(self, limits: RequestLimits) -> None:
        """Fill the declared columns from the nodes, whole columns at a time."""
        nodes = self.nodes
        gpus = [gpu for node in nodes for gpu in node.gpus]
        self.cpu_total[:] = [node.cpu_milli for node in nodes]
        self.memory_total[:] = [node.memory_mib for node in nodes]
        self.cpu_free[:] = self.cpu_total
        self.memory_free[:] = self.memory_total
        self.gpus[:] = [len(node.gpus) for node in nodes]
        self.unit_mib[:] = [node.unit_mib for node in nodes]
        self.schedulable[:] = [node.schedulable for node in nodes]
        self.device_memory_total[:] = [gpu.memory_mib for gpu in gpus]
        self.device_node[:] = np.repeat(np.arange(self.count), self.gpus)
        self.device_local[:] = np.arange(self.devices) - self.starts[self.device_node]
        self.uuid_of = [gpu.uuid for gpu in gpus]
        self.device_kind[:] = [
            self._kind(gpu, node.unit_mib) for node in nodes for gpu in node.gpus
        ]
        self.parents = [-1] * len(gpus)
        for row, node in enumerate(nodes):
            self._tell_odd_parts(row, node)
        self.device_parent: Ints = np.array(self.parents, dtype=np.int64)
        self._serves = [gpu.in_service for gpu in gpus]
        self.tell_together()
        self.node_kind[:] = -1
        with_gpus = np.flatnonzero(self.gpus)
        self.node_kind[with_gpus] = self.device_kind[self.starts[with_gpus]]
        self.kind_of: list[int] = self.device_kind.tolist()
        self.milli_total = [gpu.milli for gpu in gpus]
        totals = self.device_memory_total
        self._card = totals.tolist()
        self._limit = (totals * limits.overcommit_permille // 1000).tolist()
        self._harvest_limit = (totals * limits.harvest_permille // 1000).tolist()
        self._most = (totals * max(limits) // 1000).tolist()
        reserves = np.maximum(RESERVE_MIB, totals * RESERVE_PERMILLE // 1000)
        self._harvest_total = (totals - reserves).tolist()
        self._tell_links()
        for row in range(self.count):
            self.refresh_row(row)

    def _kind(self, gpu: Gpu, unit_mib: int) -> int:
        key = DeviceKind(gpu.model, gpu.memory_mib, gpu.milli, unit_mib)
        return self.kinds.setdefault(key, len(self.kinds))

    def _tell_odd_parts(self, row: int, node: Node) -> None:
        """Fill MIG parents and extended resources, which are rare, one node at a time."""
        for name, amount in node.extended.items():
            column = self.extended.get(name)
            if column is None:
                column = self.extended[name] = np.zeros(self.count, dtype=np.int64)
                self.extended_used[name] = [0] * self.count
            column[row] = amount
        local = {gpu.index: offset for offset, gpu in enumerate(node.gpus)}
        for offset, gpu in enumerate(node.gpus):
            if gpu.parent is not None and gpu.parent in local:
                self.parents[self.start[row] + offset] = self.start[row] + local[gpu.parent]

    def _tell_links(self) -> None:
        numbers: dict[GpuLinks, int] = {}
        for row, node in enumerate(self.nodes):
            if not isinstance(node.links, GpuLinks):
                continue
            self.links_of[row] = numbers.setdefault(node.links, len(numbers))
            place = {index: place for place, index in enumerate(node.links.indexes)}
            for offset, gpu in enumerate(node.gpus):
                if gpu.parent is None and gpu.index in place:
                    self.device_link_bit[self.start[row] + offset] = 1 << place[gpu.index]
        self.links = list(numbers)

    def _each_node_is_of_one_kind(self) -> bool:
        if self.devices == 0:
            return True
        first = self.device_kind[self.starts[self.device_node]]
        return bool((self.device_kind == first).all())

    def use_extended(self, name: str, row: int, amount: int) -> None:
        """Add to the used amount of a resource on node `row` (negative: subtract) and update the
        free amount, clipped to 64 bits."""
        used = self.extended_used[name]
        used[row] += amount
        self.extended[name][row] = max(OWED, self.nodes[row].extended.get(name, 0) - used[row])

    def close(self, row: int, closed: ClosedNode) -> None:
        """Update the taints and `schedulable` of the node in this row."""
        taints, schedulable = closed.taints, closed.schedulable
        self.nodes[row] = replace(self.nodes[row], taints=taints, schedulable=schedulable)
        self.schedulable[row], self._taints = schedulable, None
        self.has_taints = self.has_taints or bool(taints)

    def serving(self) -> Bools:
        """Return a mask of devices in service, held or not, [D]."""
        return self._serving

    def promised(self, device: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return ((MiB held, maximum), (thousandths of cores held, maximum)) of a device. A device
        beyond either maximum takes no more pods. None if the device is out of service."""
        if not self._serves[device]:
            return None
        memory = self.memory_used[device], int(self._most[device])
        return memory, (self.milli_used[device], self.milli_total[device])

    def in_service(self) -> Ints:
        """Return the number of GPUs in service on each node, held or not, [N]."""
        counts = np.zeros(self.count, dtype=np.int64)
        np.add.at(counts, self.device_node, self._serving)
        return counts

    def device_row(self, row: int, gpu_index: int) -> int:
        """Return the device row of the GPU with this index on node row `row`; −1 if the node has
        none."""
        gpus = self.nodes[row].gpus
        if gpu_index < len(gpus) and gpus[gpu_index].index == gpu_index:
            return self.start[row] + gpu_index
        for offset, gpu in enumerate(gpus):
            if gpu.index == gpu_index:
                return self.start[row] + offset
        return -1

    def states_of(self, row: int) -> Sequence[DeviceState]:
        """Return the present states of the devices of node `row`."""
        return self.state[self.start[row] : self.start[row + 1]]

    def gpu(self, row: int, device: int) -> Gpu:
        """Return the inventory of a device of node row `row`."""
        return self.nodes[row].gpus[device - self.start[row]]

    def short_of(self, device: int) -> int:
        """Return by how many MiB the need of a device's pods exceeds its memory without the
        reserve; negative if they need less."""
        needed = self.memory_used[device] - self.memory_idle[device]
        return needed + self.memory_held_back[device] - self.lendable(device)

    def lendable(self, device: int) -> int:
        """Return the device's memory without the reserve, in MiB."""
        return int(self._harvest_total[device])

    def limit_of(self, device: int) -> int:
        """Return the memory that may be reserved on the device without lending, in MiB."""
        return int(self._limit[device])

    def lent(self) -> Bools:
        """Return a mask of devices with more memory reserved than `limit_of` allows, [D]."""
        return np.asarray(np.asarray(self.memory_used) > np.asarray(self._limit), dtype=np.bool_)

    def refresh_row(self, row: int, devices: Sequence[int] | None = None) -> None:
        """Derive the free columns of node `row` from declared and used columns.

        `devices` are the device rows whose use changed; None: all of the node."""
        begin, end = self.start[row], self.start[row + 1]
        if begin == end:
            self.max_milli_free[row] = self.max_memory_free[row] = -1
            return
        if devices is None or self.has_parents:
            devices = range(begin, end)
        for device in devices:
            self._derive_device(device)
        states = self.state[begin:end]
        distinct = set(states)
        if len(distinct) == end - begin:
            self.device_first[begin:end] = 1
        else:
            self.device_first[begin:end] = 0
            for state in distinct:
                self.device_first[begin + states.index(state)] = 1
        milli = self._milli_left[begin:end]
        usable = idle = 0
        for state in states:
            usable += state[3]
            idle += state[4]
        self.cells[_FREE, row] = (
            (sum(milli), max(milli), max(self._memory_left[begin:end]), idle)
            if usable
            else (0, -1, -1, 0)
        )
        self.usable_gpus[row] = usable

    def _derive_device(self, device: int) -> None:
        usable = (
            self._serves[device]
            and not self._overbooked(device)
            and not (self.has_parents and self._relative_is_busy(device))
        )
        milli = memory = harvest = unpromised = 0
        unneeded = -1
        if usable:
            milli = max(0, self.milli_total[device] - self.milli_used[device])
            used = self.memory_used[device]
            memory = max(0, self._limit[device] - used)
            harvest = memory
            if self.harvests and self.pods[device]:
                within = max(0, -self.short_of(device))
                unpromised = max(0, self._harvest_limit[device] - used)
                unneeded = within if self.measured[device] else -1
                # Requests that fit the GPU are no loan: neither measurements nor the reserve limit
                # them.
                harvest = max(0, self._card[device] - used, min(unpromised, within))
        idle = usable and self.pods[device] == 0
        # A MIG instance's parent is part of its state: instances of two GPUs are not
        # interchangeable.
        kind = self.kind_of[device] + ((self.parents[device] + 1) << 20)
        self._milli_left[device] = milli
        self._memory_left[device] = memory
        self.state[device] = DeviceState(
            kind, milli, memory, usable, idle, harvest, unpromised, unneeded
        )
        if self.harvests:
            self.device_unpromised[device], self.device_unneeded[device] = unpromised, unneeded
        self.device_cells[_AVAILABLE, device] = (memory, milli, idle, usable)
        self.device_cells[_HELD, device] = (harvest, self.pods[device], self.memory_used[device])

    def _overbooked(self, device: int) -> bool:
        """Return True if the device's pods hold more than may be reserved; the device then takes no
        more pods."""
        return (
            self.memory_used[device] > self._most[device]
            or self.milli_used[device] > self.milli_total[device]
        )

    def _relative_is_busy(self, device: int) -> bool:
        """Return True if this instance's GPU, or a MIG instance of this GPU, is held."""
        parent = self.parents[device]
        if parent >= 0 and self.pods[parent]:
            return True
        row = int(self.device_node[device])
        return any(
            self.parents[other] == device and self.pods[other]
            for other in range(self.start[row], self.start[row + 1])
        )

"""Reads ResourceSlices: the GPUs that drivers of dynamic resource allocation publish, by node.

    slice ──▶ its pool's newest generation, if complete ──▶ devices that are GPUs ──▶ a node's cards

Two devices are one card where they have the same UUID, or the same PCI address: two drivers may
publish it, or one driver in two forms. A partition is a GPU with a parent: a device that names its
parent's UUID, or one that shares a counter set with a larger device. Partitions that are created
only when a claim requests one are never assigned by Weft: they are listed as out of service. While
a claim holds one, no other pod gets its card.

While a pool's newest generation is incomplete, its last complete state counts, as drivers replace
slices one by one; after a restart such a pool has no devices until it is complete.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from weft.dialects.inventory import UNKNOWN_MIB
from weft.dialects.node_gpus import InventorySource, ReportedGpu
from weft.kube.dra import DeviceAttribute, DeviceCapacity, ResourceSlice, SliceDevice
from weft.kube.watch import Change, Deleted
from weft.model import BadInputError, Gpu, parse_quantity
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS
from weft.model.gpu_links import MOST_LINKED, SELF, UNKNOWN_NUMA, GpuLinks, checked_links

DeviceKey = tuple[str, str, str]
"""Driver, pool and device, as a claim names a device."""
PoolKey = tuple[str, str]
"""Driver and pool."""

MEMORY = ("memory", "addressablememory", "vram")
CORES = ("cores", "millicores")
"""Names of the capacities that are a GPU's memory in bytes (`MEMORY`), and its cores (`CORES`) in
any unit, since only their fraction of the whole GPU counts."""
SHARES = "shares"
"""The capacity that states among how many claims a driver divides a GPU, whatever memory they
request."""
_PCI = ("pcibusid", "pciaddress", "pciaddr")
_NUMBERS = ("index", "cardindex", "minor")
_MODELS = ("productname", "model")
_NUMA, _ROOT = ("numanode", "numanodeid"), "pcieroot"
_PARTS, _WHOLE = ("mig", "partition"), ("gpu", "vfio", "hami-gpu", "amdgpu")
"""Values of the attribute `type` of devices that are parts of GPUs, and of whole GPUs."""
_KEEPS_OFF = ("NoSchedule", "NoExecute")
_MIB = 2**20


class SliceGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU, or a part of one, as a slice shows it.

    `node` is "" unless it is on exactly one node. `memory_mib`, `cores` and `shares` are 0 if
    unknown; its index (`number`) and NUMA node (`numa`) are −1 if unknown. `root` is its PCIe root.
    `sets` are the counter sets that it consumes. `is_part` and `is_whole`: the slice says that it
    is a part of a GPU, or a whole GPU.
    """

    node: str
    uuid: str = ""
    pci: str = ""
    memory_mib: int = 0
    memory_bytes: int = 0
    cores: int = 0
    model: str = ""
    number: int = -1
    parent_uuid: str = ""
    sets: tuple[str, ...] = ()
    is_part: bool = False
    tainted: bool = False
    numa: int = UNKNOWN_NUMA
    root: str = ""
    shares: int = 0
    is_whole: bool = False


PoolDevices = dict[str, SliceGpu | None]
"""A pool's devices by name; None for those that are no GPUs."""


class PoolReading(NamedTuple):
    """A pool as read from its slices. `problem` is the reason why they cannot be used, "" if they
    can."""

    devices: PoolDevices
    problem: str = ""


class NodeCards(NamedTuple):
    """A node's GPUs as its ResourceSlices alone show them, and the index of each device's GPU."""

    gpus: tuple[Gpu, ...] = ()
    index_of: Mapping[DeviceKey, int] = {}
    problems: tuple[str, ...] = ()
    links: GpuLinks | None = None

    @property
    def source(self) -> InventorySource | None:
        """The GPUs as one of the sources of the node's inventory; None if there are none."""
        if not self.gpus:
            return None
        cards = tuple(
            ReportedGpu(gpu.memory_mib, gpu.memory_mib, gpu.model, gpu.uuid)
            if gpu.memory_mib != UNKNOWN_MIB
            else ReportedGpu(model=gpu.model, uuid=gpu.uuid)
            for gpu in self.gpus
            if gpu.parent is None
        )
        return InventorySource("ResourceSlices", cards, self.gpus, links=self.links)


# --- one device ----------------------------------------------------------------------------------


def local(name: str) -> str:
    """Return an attribute's or capacity's name without its domain, in lower case."""
    return name.rpartition("/")[2].lower()


def is_read(name: str) -> bool:
    """Return True for an attribute or capacity of a device that Weft reads."""
    connected = (*_NUMA, _ROOT)
    known = ("uuid", "parentuuid", "type", *_PCI, *_NUMBERS, *_MODELS, *connected)
    return local(name) in (*known, *MEMORY, *CORES, SHARES)


def read_device(driver: str, device: SliceDevice, node: str) -> SliceGpu | None:
    """Return the device if it is a GPU or a part of one: it says so, or it has memory and a UUID or
    PCI address; else None."""
    says = _own_first(driver, device.attributes or {})
    uuid, pci = _text(says, "uuid"), _pci(next((_text(says, n) for n in _PCI if n in says), ""))
    kind = _text(says, "type").lower()
    memory = _amount(driver, device.capacity, MEMORY)
    named = uuid.startswith(("GPU-", "MIG-")) or kind in (*_WHOLE, *_PARTS)
    if not named and not (memory and (uuid or pci)):
        return None
    parent = _text(says, "parentuuid")
    return SliceGpu(
        node,
        uuid,
        pci,
        min(memory // _MIB, MOST_GPU_MIB),
        memory,
        _amount(driver, device.capacity, CORES),
        next((_text(says, name) for name in _MODELS if name in says), ""),
        next((_number(says[name]) for name in _NUMBERS if name in says), -1),
        parent,
        tuple(sorted({use.counter_set for use in device.consumes_counters or ()})),
        bool(parent) or kind in _PARTS or uuid.startswith("MIG-"),
        any(taint.effect in _KEEPS_OFF for taint in device.taints or ()),
        next((_number(says[name]) for name in _NUMA if name in says), UNKNOWN_NUMA),
        _text(says, _ROOT),
        _amount(driver, device.capacity, (SHARES,)),
        kind in _WHOLE and not parent,
    )


def _own_first(
    driver: str, attributes: Mapping[str, DeviceAttribute]
) -> dict[str, DeviceAttribute]:
    """Return the attributes by name without domain; if two domains have the same name, the driver's
    own counts."""
    says: dict[str, DeviceAttribute] = {}
    for name, value in attributes.items():
        domain, key = name.rpartition("/")[0], local(name)
        if key not in says or domain in ("", driver):
            says[key] = value
    return says


def _text(says: Mapping[str, DeviceAttribute], name: str) -> str:
    value = says.get(name)
    return (value.string or "") if value is not None else ""


def _number(value: DeviceAttribute | None) -> int:
    number = value.int_ if value is not None else None
    if number is None and value is not None and value.ints:
        number = value.ints[0]
    return number if number is not None and 0 <= number < MOST_GPUS else -1


def _pci(text: str) -> str:
    """Return the address in one form: Linux writes domains with four digits, NVML with eight."""
    address = text.lower()
    domain, colon, rest = address.partition(":")
    return f"{domain[-4:]:0>4}{colon}{rest}" if rest.count(":") == 1 else address


def _amount(
    driver: str, capacity: Mapping[str, DeviceCapacity] | None, names: tuple[str, ...]
) -> int:
    """Return the capacity with one of these names, in its own unit; 0 if missing or unreadable."""
    found = {local(name): each for name, each in (capacity or {}).items()}
    for name in names:
        if name in found:
            try:
                return parse_quantity(found[name].value, f"{driver}: {name}")
            except BadInputError:
                return 0
    return 0


# --- a pool --------------------------------------------------------------------------------------


def read_pool(slices: Iterable[ResourceSlice]) -> PoolReading:
    """Read the slices of one pool: those of its newest generation, if all of them exist."""
    there = list(slices)
    newest = max((each.spec.pool.generation for each in there), default=0)
    current = [each for each in there if each.spec.pool.generation == newest]
    wanted = max((each.spec.pool.resource_slice_count for each in current), default=0)
    if len(current) != wanted:
        return PoolReading({}, f"{len(current)} of {wanted} slices of generation {newest}")
    devices: PoolDevices = {}
    for each in sorted(current, key=lambda each: each.metadata.name):
        for device in each.spec.devices or ():
            if device.name in devices:
                return PoolReading({}, f"device {device.name} is listed twice")
            node = each.spec.node_name or device.node_name
            devices[device.name] = read_device(each.spec.driver, device, node)
    return PoolReading(devices)


# --- a node --------------------------------------------------------------------------------------


class _Card:
    """One card, or one partition of a card, which one or more devices stand for."""

    def __init__(self, parent: "_Card | None" = None) -> None:
        self.devices: dict[DeviceKey, SliceGpu] = {}
        self.parent = parent
        self.parts_uuid = ""  # as its partitions state it
        self.index = -1

    def add(self, key: DeviceKey, facts: SliceGpu) -> None:
        self.devices[key] = facts

    @property
    def uuid(self) -> str:
        """The UUID, NVIDIA's if a device has one; a passed-through card has another UUID as
        well."""
        uuids = [self.devices[key].uuid for key in sorted(self.devices)]
        named = [uuid for uuid in uuids if uuid]
        return next((u for u in named if u.startswith("GPU-")), (*named, self.parts_uuid)[0])

    @property
    def memory_mib(self) -> int:
        sizes = [facts.memory_mib for facts in self.devices.values() if facts.memory_mib]
        return min(sizes, default=0)

    @property
    def number(self) -> int:
        numbers = [facts.number for facts in self.devices.values() if facts.number >= 0]
        return min(numbers) if numbers else _trailing(min(self.devices)[2]) if self.devices else -1

    @property
    def numa(self) -> int:
        return max((facts.numa for facts in self.devices.values()), default=UNKNOWN_NUMA)

    @property
    def root(self) -> str:
        return max((facts.root for facts in self.devices.values()), default="")

    @property
    def order(self) -> tuple[str, str, DeviceKey]:
        pci = min((f.pci for f in self.devices.values() if f.pci), default="~")
        return pci, self.uuid, min(self.devices, default=("", "", ""))


def _trailing(name: str) -> int:
    match = re.search(r"(\d{1,4})$", name)
    number = int(match[1]) if match else -1
    return number if number < MOST_GPUS else -1


def cards_of(devices: Mapping[DeviceKey, SliceGpu]) -> NodeCards:
    """Return the GPUs among the devices of one node. The order of the devices does not matter."""
    parents = _parents(devices)
    by_identity: dict[str, _Card] = {}
    cards: list[_Card] = []
    for key in sorted(devices):
        facts = devices[key]
        if facts.is_part or key in parents:
            continue
        names = [name for name in (facts.uuid, facts.pci) if name]
        same = list(dict.fromkeys(by_identity[name] for name in names if name in by_identity))
        if not same:
            cards.append(_Card())
        card = same[0] if same else cards[-1]
        for other in same[1:]:  # one driver has its UUID, another its address, this one both
            cards.remove(other)
            card.devices |= other.devices
            by_identity |= {name: card for name, each in by_identity.items() if each is other}
        card.add(key, facts)
        by_identity |= dict.fromkeys(names, card)
    parts = _cut(devices, parents, cards, by_identity)
    _number_all(cards, parts)
    index_of = {key: card.index for card in (*cards, *parts) for key in card.devices}
    gpus = tuple(_gpu(card, parts) for card in sorted((*cards, *parts), key=lambda c: c.index))
    return NodeCards(gpus[:MOST_GPUS], index_of, tuple(_problems(devices)), _links(cards))


def _parents(devices: Mapping[DeviceKey, SliceGpu]) -> dict[DeviceKey, DeviceKey]:
    """Find partitions by shared counters: of the devices of a counter set, its one GPU, or else its
    one largest device, is the parent of the others.

    Sets that several GPUs consume are ignored: they count what cards have in common.
    """
    sets: dict[tuple[str, str, str], list[DeviceKey]] = {}
    for key, facts in devices.items():
        for name in facts.sets:
            sets.setdefault((key[0], key[1], name), []).append(key)
    parents: dict[DeviceKey, DeviceKey] = {}
    for _, together in sorted(sets.items()):
        whole = [key for key in together if not devices[key].is_part]
        gpus = [key for key in whole if devices[key].is_whole]
        whole.sort(key=lambda key: (-devices[key].memory_mib, key))
        first = gpus or whole
        if len(first) == 1 or (not gpus and whole and _is_larger(devices, whole)):
            for key in together:
                if key != first[0]:
                    parents.setdefault(key, first[0])
    return parents


def _is_larger(devices: Mapping[DeviceKey, SliceGpu], keys: list[DeviceKey]) -> bool:
    return devices[keys[0]].memory_mib > devices[keys[1]].memory_mib


def _cut(
    devices: Mapping[DeviceKey, SliceGpu],
    parents: Mapping[DeviceKey, DeviceKey],
    cards: list[_Card],
    by_identity: dict[str, _Card],
) -> list[_Card]:
    """Return the partitions, each with its card; a card that no slice shows is added to `cards`."""
    card_of = {key: card for card in cards for key in card.devices}
    parts: dict[str | DeviceKey, _Card] = {}
    for key in sorted(devices):
        facts = devices[key]
        if not facts.is_part and key not in parents:
            continue
        card = by_identity.get(facts.parent_uuid) if facts.parent_uuid else None
        if card is None and key in parents:
            card = card_of.get(parents[key])
        if card is None:
            name = facts.parent_uuid or facts.pci or f"{key[0]}/{key[1]}/{facts.sets[:1]}"
            card = by_identity.get(name)
            if card is None:
                card = by_identity[name] = _Card()
                card.parts_uuid = facts.parent_uuid
                cards.append(card)
        part = parts.setdefault(facts.uuid or key, _Card(card))
        part.add(key, facts)
    return list(parts.values())


def _number_all(cards: list[_Card], parts: list[_Card]) -> None:
    """Number the cards, by their own numbers if all have one, else in order, and then the
    partitions."""
    numbers = [card.number for card in cards]
    own = min(numbers, default=-1) >= 0 and len(set(numbers)) == len(numbers)
    for place, card in enumerate(sorted(cards, key=lambda card: card.order)):
        card.index = card.number if own else place
    first = max((card.index for card in cards), default=-1) + 1

    def order(part: _Card) -> tuple[int, tuple[str, str, DeviceKey]]:
        assert part.parent is not None
        return part.parent.index, part.order

    for place, part in enumerate(sorted(parts, key=order)):
        part.index = first + place


def _gpu(card: _Card, parts: list[_Card]) -> Gpu:
    facts = list(card.devices.values())
    memory_mib = card.memory_mib
    if not facts:  # only partitions of the card are shown
        sizes = [part.memory_mib for part in parts if part.parent is card]
        cut_ahead = not any(f.sets for p in parts if p.parent is card for f in p.devices.values())
        memory_mib = sum(sizes) if cut_ahead else max(sizes, default=0)
    on_demand = card.parent is not None and any(each.sets for each in facts)
    return Gpu(
        card.index,
        memory_mib or UNKNOWN_MIB,
        next((each.model for each in facts if each.model), ""),
        card.uuid,
        parent=card.parent.index if card.parent is not None else None,
        in_service=bool(facts) and not on_demand and not all(each.tainted for each in facts),
    )


def _links(cards: Iterable[_Card]) -> GpuLinks | None:
    """Derive the slowest connection that each two cards may have from their NUMA nodes and PCIe
    roots; None if fewer than two cards report a NUMA node.

    Slices say nothing of NVLinks, nor of switches below one root.
    """
    known = sorted((card for card in cards if card.numa >= 0), key=lambda card: card.index)
    known = known[:MOST_LINKED]
    if len(known) < 2:
        return None
    paths = tuple(" ".join(_path(one, other) for other in known) for one in known)
    indexes, numa = (tuple(card.index for card in known), tuple(card.numa for card in known))
    return checked_links(GpuLinks(indexes, paths, numa=numa), "ResourceSlices")


def _path(one: _Card, other: _Card) -> str:
    if one is other:
        return SELF
    if one.numa != other.numa:
        return "SYS"
    return "PHB" if one.root and one.root == other.root else "NODE"


def _problems(devices: Mapping[DeviceKey, SliceGpu]) -> Iterable[str]:
    """Yield warnings about UUIDs that several devices of a driver have."""
    uuids = Counter((key[0], facts.uuid) for key, facts in devices.items() if facts.uuid)
    for (driver, uuid), count in sorted(uuids.items()):
        if count > 1:
            yield f"{count} devices of {driver} have the UUID {uuid}: they count as one GPU"


# --- all of them ---------------------------------------------------------------------------------


class SliceView:
    """The existing slices. `problems` are pools that cannot be used now, with the reason. `moved`
    are nodes whose devices may have changed since `moved` was last emptied."""

    def __init__(self) -> None:
        self.problems: dict[PoolKey, str] = {}
        self.moved: set[str] = set()
        self._slices: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pool_of: dict[str, PoolKey] = {}
        self._pools: dict[PoolKey, PoolDevices] = {}
        self._on_node: dict[str, set[PoolKey]] = {}
        self._cards: dict[str, NodeCards] = {}
        self._drivers: Counter[str] = Counter()  # pools that have GPUs, by driver

    def take(self, change: Change[ResourceSlice]) -> tuple[PoolKey, set[str]]:
        """Take in an added, changed or deleted slice; return its pool, and the nodes whose GPUs may
        have changed."""
        shown = change.object  # type: ignore[union-attr]
        pool = shown.spec.driver, shown.spec.pool.name
        name, nodes = shown.metadata.name, set[str]()
        before = self._pool_of.pop(name, pool)
        if before != pool:  # drivers may rename a slice's pool
            self._slices[before].pop(name, None)
            nodes |= self._read(before)
        there = self._slices.setdefault(pool, {})
        if isinstance(change, Deleted):
            there.pop(name, None)
        else:
            there[name] = shown
            self._pool_of[name] = pool
        return pool, nodes | self._read(pool)

    def _read(self, pool: PoolKey) -> set[str]:
        before = self._pools.get(pool, {})
        reading = read_pool(self._slices[pool].values())
        if not self._slices[pool]:
            del self._slices[pool]
            self.problems.pop(pool, None)
        elif reading.problem:
            self.problems[pool] = reading.problem
            return set()  # the last complete state counts
        else:
            self.problems.pop(pool, None)
        self._pools[pool] = reading.devices
        was, nodes = _nodes_of(before), _nodes_of(reading.devices)
        self._drivers[pool[0]] += bool(nodes) - bool(was)
        for name in was - nodes:
            self._on_node[name].discard(pool)
        for name in nodes:
            self._on_node.setdefault(name, set()).add(pool)
        if not self._slices.get(pool):
            del self._pools[pool]
        if before == reading.devices:
            return set()
        for name in was | nodes:
            self._cards.pop(name, None)
        self.moved |= was | nodes
        return was | nodes

    def cards(self, node: str) -> NodeCards:
        """Return the node's GPUs according to slices."""
        known = self._cards.get(node)
        if known is None:
            devices = {
                (*pool, name): facts
                for pool in self._on_node.get(node, ())
                for name, facts in self._pools[pool].items()
                if facts is not None and facts.node == node
            }
            known = self._cards[node] = cards_of(devices)
        return known

    def doubles(self) -> dict[str, tuple[str, ...]]:
        """Return warnings about UUIDs that several devices have, by node, for the nodes whose cards
        were read."""
        return {node: known.problems for node, known in self._cards.items() if known.problems}

    def has(self, key: DeviceKey) -> bool:
        """Return True if a complete pool shows this device, even if it is no GPU."""
        return key[2] in self._pools.get(key[:2], ())

    def facts(self, key: DeviceKey) -> SliceGpu | None:
        """Return the device if it is a GPU of a complete pool, else None."""
        return self._pools.get(key[:2], {}).get(key[2])

    def is_of_gpus(self, driver: str) -> bool:
        """Return True if some pool of this driver has a GPU."""
        return self._drivers[driver] > 0


def _nodes_of(devices: PoolDevices) -> set[str]:
    return {facts.node for facts in devices.values() if facts is not None}

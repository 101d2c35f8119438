"""Reports of the original systems by GET: gpushare's `inspect` and Elastic GPU's `status`."""

from collections.abc import Callable

import msgspec

from weft.core.ledger import Ledger
from weft.dialects.gpushare import UNIT_MIB
from weft.model import Gpu, GpuMemoryRequest, Node

ELASTIC_RESOURCES = ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")

NameOf = Callable[[str], tuple[str, str]]
"""Function that returns a pod's namespace and name by its UID."""


class InspectedPod(msgspec.Struct, frozen=True, rename="camel"):
    """Share of one device that a pod holds, in gpushare's units."""

    name: str
    namespace: str
    used_gpu: int = msgspec.field(name="usedGPU")


class InspectedDevice(msgspec.Struct, frozen=True):
    """Memory of one GPU, in gpushare's units."""

    id: int
    total_gpu: int = msgspec.field(name="totalGPU")
    used_gpu: int = msgspec.field(name="usedGPU")
    pods: list[InspectedPod]


class InspectedNode(msgspec.Struct, frozen=True):
    """Memory of one node's GPUs, in gpushare's units."""

    name: str
    total_gpu: int = msgspec.field(name="totalGPU")
    used_gpu: int = msgspec.field(name="usedGPU")
    devs: list[InspectedDevice]


class Inspection(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer of gpushare's `inspect`; `error` is left out if empty."""

    nodes: list[InspectedNode]
    error: str = ""


class _Card(msgspec.Struct, frozen=True, rename="pascal"):
    core_available: int
    memory_available: int
    core_total: int
    memory_total: int


def inspect(ledger: Ledger, unit: str, name_of: NameOf, node: str = "") -> Inspection:
    """Report every node with a GPU, or `node` alone; `unit` applies to nodes that do not state a
    unit."""
    rows = ledger.table.row_of
    if node and node not in rows:
        return Inspection([], f"node {node} is not known")
    asked = [ledger.table.nodes[rows[node]]] if node else ledger.table.nodes
    default_mib = UNIT_MIB.get(unit, 1024)
    return Inspection(
        [_inspect_node(ledger, host, default_mib, name_of) for host in asked if host.gpus or node]
    )


def _inspect_node(ledger: Ledger, node: Node, default_mib: int, name_of: NameOf) -> InspectedNode:
    unit_mib = node.unit_mib or default_mib
    devices = [_inspect_device(ledger, node, gpu, unit_mib, name_of) for gpu in node.gpus]
    cards = [card for card, gpu in zip(devices, node.gpus, strict=True) if gpu.parent is None]
    used = sum(device.used_gpu for device in devices)
    return InspectedNode(node.name, sum(card.total_gpu for card in cards), used, devices)


def _inspect_device(
    ledger: Ledger, node: Node, gpu: Gpu, unit_mib: int, name_of: NameOf
) -> InspectedDevice:
    units = gpu.memory_mib // unit_mib
    pods = []
    for uid in ledger.occupants(node.name, gpu.index):
        shares = ledger.holdings[uid].placement.shares
        used_mib = sum(share.memory_mib for share in shares if share.gpu == gpu.index)
        used = _units(used_mib, gpu.memory_mib, unit_mib)
        namespace, name = name_of(uid)
        pods.append(InspectedPod(name, namespace, used))
    return InspectedDevice(gpu.index, units, sum(pod.used_gpu for pod in pods), pods)


def _units(used_mib: int, card_mib: int, unit_mib: int) -> int:
    """Convert MiB of this GPU to units; a partly used unit counts as a whole one.

    All units together are the whole GPU, so a unit may be larger than `unit_mib`."""
    units = card_mib // unit_mib
    if units == 0:
        return 0
    least = used_mib * units // card_mib
    exact = GpuMemoryRequest("units", least, unit_mib).mib_on(card_mib) == used_mib
    return least if exact else least + 1


def status(ledger: Ledger) -> dict[str, str]:
    """Return, by Elastic GPU's resource, one JSON string that is the same for all resources: each
    node's GPUs, with cores in percent and memory in MiB, available and in total."""
    cards_of: dict[str, list[_Card]] = {}
    for row, node in enumerate(ledger.table.nodes):
        if node.gpus:
            first = ledger.table.start[row]
            cards_of[node.name] = [_card(ledger, first + i, gpu) for i, gpu in enumerate(node.gpus)]
    text = msgspec.json.encode(cards_of).decode()
    return dict.fromkeys(ELASTIC_RESOURCES, text)


def _card(ledger: Ledger, device: int, gpu: Gpu) -> _Card:
    used = ledger.table
    return _Card(
        max(0, gpu.milli - used.milli_used[device]) // 10,
        max(0, gpu.memory_mib - used.memory_used[device]),
        gpu.milli // 10,
        gpu.memory_mib,
    )

"""What each system writes about a node's GPUs, read one by one.

Most count memory in units of their own, rounded: such a source says "between so much and so much
MiB". `inventory` compares and combines them. Pure functions.
"""

import fnmatch
from collections.abc import Mapping, Sequence

import msgspec

from weft.dialects.alnair import NODE_COUNT, NODE_UNITS, NODE_UUIDS
from weft.dialects.gpushare import GPU_COUNT, GPU_MEM, UNIT_MIB, gpushare_unit_of
from weft.dialects.shares import MOST_LETTERS
from weft.kube.pods import Quantities
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu, parse_quantity
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPU_MILLI, MOST_GPUS

INVENTORY = "weft.dev/inventory"
DELIVERS, BY_NAME = "weft.dev/delivers", "by-name"
"""The annotation by which an agent says that what is bound there reaches its containers, whatever
the kubelet knows of it."""
GFD_COUNT = "nvidia.com/gpu.count"
GFD_MEMORY = "nvidia.com/gpu.memory"
GFD_PRODUCT = "nvidia.com/gpu.product"
WHOLE = "nvidia.com/gpu"
# What a card of unknown size counts as: every GPU has this much, and percentages of it are exact.
UNKNOWN_MIB = 100
_ELASTIC = (
    ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"),
    ("elasticgpu.com/gpu-core", "elasticgpu.com/gpu-memory"),
)


class ReportedGpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU as one source knows it: `least` to `most` MiB, equal where the source is exact.

    Both 0: the source does not say.
    """

    least: int = 0
    most: int = 0
    model: str = ""
    uuid: str = ""


class InventorySource(msgspec.Struct, frozen=True):
    """What one source says. `exact` are the GPUs in full, where it knows everything."""

    name: str
    cards: tuple[ReportedGpu, ...]
    exact: tuple[Gpu, ...] = ()


class NodeGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Weft's own annotation, JSON: `{"gpus": [{"index": 0, "memory_mib": 16160, …}]}`."""

    gpus: list[Gpu]


class InventoryFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `inventory:` in the configuration: nodes whose GPUs nobody tells.

    `nodes` is a shell pattern on the node's name; `labels` must all be on the node. The first
    rule that fits is the node's.
    """

    count: int
    memory_mib: int
    model: str = ""
    nodes: str = "*"
    labels: dict[str, str] = {}

    def fits(self, node: KubeNode) -> bool:
        """Whether it is about this node."""
        labels = node.metadata.labels or {}
        return fnmatch.fnmatchcase(node.metadata.name, self.nodes) and all(
            labels.get(key) == value for key, value in self.labels.items()
        )


def own(node: KubeNode) -> InventorySource | None:
    """Weft's annotation."""
    text = (node.metadata.annotations or {}).get(INVENTORY)
    if text is None:
        return None
    try:
        gpus = msgspec.json.decode(text, type=NodeGpus).gpus
    except msgspec.DecodeError as error:
        raise BadInputError(INVENTORY, str(error)) from error
    except RecursionError:
        raise BadInputError(INVENTORY, "is nested too deeply") from None
    indexes = [gpu.index for gpu in gpus]
    if len(set(indexes)) < len(indexes) or any(gpu.memory_mib < 0 for gpu in gpus):
        raise BadInputError(INVENTORY, "indexes must differ and memory must not be negative")
    if len(gpus) > MOST_GPUS or any(gpu.memory_mib > MOST_GPU_MIB for gpu in gpus):
        raise BadInputError(INVENTORY, f"no node has {MOST_GPUS} GPUs, and none {MOST_GPU_MIB} MiB")
    if any(not (0 <= gpu.index < 2**31 and 0 <= gpu.milli <= MOST_GPU_MILLI) for gpu in gpus):
        raise BadInputError(INVENTORY, f"indexes are 0 or more, and no GPU has {MOST_GPU_MILLI} m")
    if any(len(name) > MOST_LETTERS for gpu in gpus for name in (gpu.model, gpu.uuid)):
        raise BadInputError(INVENTORY, f"a model or UUID has more than {MOST_LETTERS} characters")
    cards = tuple(
        ReportedGpu(gpu.memory_mib, gpu.memory_mib, gpu.model, gpu.uuid)
        for gpu in gpus
        if gpu.parent is None
    )
    return InventorySource(
        "Weft's annotation", cards, tuple(sorted(gpus, key=lambda gpu: gpu.index))
    )


def write_own(gpus: Sequence[Gpu]) -> str:
    """The annotation's value for these GPUs."""
    return msgspec.json.encode(NodeGpus(list(gpus))).decode()


def alnair(node: KubeNode) -> InventorySource | None:
    """Alnair's annotations: units of 1 GiB, half rounded up, one number a GPU or one for all."""
    marks = node.metadata.annotations or {}
    if NODE_COUNT not in marks:
        return None
    count = _whole(marks, NODE_COUNT)
    text = next((marks[name] for name in NODE_UNITS if marks.get(name)), "")
    units = [_whole({NODE_UNITS[0]: part}, NODE_UNITS[0]) for part in _parts(text)]
    uuids = _parts(marks.get(NODE_UUIDS, ""))
    if not count or not units:
        return None
    if count > MOST_GPUS or max(units) * 1024 > MOST_GPU_MIB:
        raise BadInputError(NODE_COUNT, f"{count} GPUs of {max(units)} GiB: no node has that")
    if any(len(uuid) > MOST_LETTERS for uuid in uuids):
        raise BadInputError(NODE_UUIDS, f"a UUID has more than {MOST_LETTERS} characters")
    cards = []
    for index in range(count):
        # The original's scheduler reads the first number for every card.
        size = (units[index] if len(units) == count else units[0]) * 1024
        uuid = uuids[index] if len(uuids) == count else ""
        cards.append(ReportedGpu(max(size - 512, 0), size + 511, uuid=uuid))
    return InventorySource("Alnair's annotations", tuple(cards))


def discovery(node: KubeNode) -> InventorySource | None:
    """GPU feature discovery's labels. Shared GPUs are told with `-SHARED` behind the product."""
    labels = node.metadata.labels or {}
    if GFD_COUNT not in labels or GFD_MEMORY not in labels:
        return None
    count, memory = _whole(labels, GFD_COUNT), _whole(labels, GFD_MEMORY)
    model = labels.get(GFD_PRODUCT, "").removesuffix("-SHARED")
    return _alike("GPU feature discovery's labels", count, memory, memory, model)


def gpushare(node: KubeNode) -> tuple[InventorySource | None, int]:
    """gpushare's capacity divided by its count, and the node's unit in MiB (0 if it has none)."""
    capacity = node.status.capacity or {}
    total, count = _quantity(capacity, GPU_MEM), _quantity(capacity, GPU_COUNT)
    if not total or not count:
        return None, 0
    units = total // count
    unit_mib = UNIT_MIB[gpushare_unit_of(units)]
    most = units * unit_mib + unit_mib - 1
    return _alike("gpushare's capacity", count, units * unit_mib, most), unit_mib


def elastic(node: KubeNode) -> InventorySource | None:
    """Elastic GPU's allocatable cores (100 a card) and MiB, divided evenly."""
    allocatable = node.status.allocatable or {}
    for cores, memory in _ELASTIC:
        count = _quantity(allocatable, cores) // 100
        if count:
            size = _quantity(allocatable, memory) // count
            return _alike("Elastic GPU's allocatable", count, size, size)
    return None


def configured(node: KubeNode, rules: Sequence[InventoryFallback]) -> InventorySource | None:
    """The first rule of the configuration that is about this node."""
    for rule in rules:
        if rule.fits(node):
            size = rule.memory_mib
            return _alike("the configuration", rule.count, size, size, rule.model)
    return None


def device_plugin(node: KubeNode) -> InventorySource | None:
    """NVIDIA's device plugin: a count and nothing else."""
    count = _quantity(node.status.allocatable or {}, WHOLE)
    return _alike("nvidia.com/gpu", count, 0, 0) if count else None


def _alike(name: str, count: int, least: int, most: int, model: str = "") -> InventorySource | None:
    if not 0 < count <= MOST_GPUS or most > MOST_GPU_MIB:
        if not count:
            return None
        raise BadInputError(name, f"{count} GPUs of {most} MiB are more than a node has")
    return InventorySource(name, (ReportedGpu(least, most, model),) * count)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(marks: Mapping[str, str], name: str) -> int:
    text = marks[name].strip()
    if not text.isdecimal() or len(text) > 9:
        raise BadInputError(name, f"{text[:40]!r} is no whole number")
    return int(text)


def _quantity(amounts: Quantities, name: str) -> int:
    return parse_quantity(amounts[name], name) if name in amounts else 0

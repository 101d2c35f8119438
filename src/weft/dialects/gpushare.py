"""gpushare (Alibaba Cloud): `aliyun.com/gpu-mem`, and one card for the whole pod.

The unit is not in the pod: the node's device plugin counts GiB (rounded down) or MiB, so the same
manifest can mean either. So each node's own unit decides how much a pod requests, or one setting of
the cluster; without either, the unit is guessed from the number.

A bound pod is read by its node's unit too. Its annotations say in how many units the card was
counted when the pod was placed. If that, or the setting, contradicts the node (its device plugin
now counts in another unit), the larger amount that fits on the card is charged.
"""

import json
from collections.abc import Sequence

from msgspec.structs import replace

from weft.dialects.dialect import DialectSettings, PodAnnotations, UnitSettings
from weft.dialects.evidence import anothers
from weft.dialects.node_gpus import (
    InventorySource,
    advertised_by_agent,
    equal_gpus,
    quantity,
)
from weft.dialects.resources import (
    ContainerRequests,
    ContainerSlot,
    PodWords,
    amount,
    one_card,
    units,
)
from weft.dialects.shares import by_container, find, placement_of, share_on
from weft.dialects.system import BaseDialect, build
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest, Shape
from weft.model.manifest import NodeManifest, PodManifest

GPU_MEM = "aliyun.com/gpu-mem"
GPU_COUNT = "aliyun.com/gpu-count"
PREFIX = "ALIYUN_COM_GPU_MEM_"
ASSIGNED, ASSUME_TIME = f"{PREFIX}ASSIGNED", f"{PREFIX}ASSUME_TIME"
UNIT_MIB = {"GiB": 1024, "MiB": 1}
UNIT_NAME = {mib: name for name, mib in UNIT_MIB.items()}
ALLOCATION = "scheduler.framework.gpushare.allocation"
NO_CGPU = "cgpu.disable.isolation"
"""Label of a node on which containers run without cGPU, Alibaba's isolation in the kernel."""
UNHEALTHY_NAMESPACE = "kube-system"
UNHEALTHY_PREFIX = "unhealthy-gpu-"

# No card held more GiB than this when the unit was fixed, and no job asks for as few MiB.
MOST_GIB = 192


def gpushare_unit_of(total_units_per_gpu: int) -> str:
    """Return the unit that a node advertising so many units per GPU counts in: "GiB" or "MiB"."""
    return "MiB" if total_units_per_gpu > 100 else "GiB"


class Gpushare(BaseDialect):
    """gpushare's dialect: GPU memory in the node's or the cluster's unit; of equally good cards the
    one with the lowest index is taken."""

    name = "gpushare"
    card_marks = (f"{PREFIX}IDX", ALLOCATION)
    resources = (GPU_MEM, GPU_COUNT)
    resource_pattern = r"aliyun\.com/gpu-"
    counted = (GPU_MEM,)
    written = (f"{PREFIX}*", ALLOCATION)

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return the number of whole units in the card's own memory; gpushare itself uses the first
        card's number for all cards."""
        units = gpu.memory_mib // UNIT_MIB[settings.gpushare_unit]
        return {GPU_MEM: settings.promised(units), GPU_COUNT: 1}

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: its total, on one card."""
        return self._build(words, settings, "")

    def _build(self, words: PodWords, settings: DialectSettings, application: str) -> PodRequest:
        notes: list[str] = []
        places = words.slots
        layout, unit_mib = _layout(places, settings, notes)
        if any(amount(slot, GPU_COUNT) for slot in places):
            notes.append(f"{GPU_COUNT} gives a pod nothing: it counts a node's cards")
        shape = Shape(unit_mib=unit_mib, application=application)
        return build(words, self.name, layout, shape=shape, shared=True, warnings=notes)

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return the five annotations of gpushare's scheduler extender, and the variables of its
        device plugin."""
        share = placement.shares[0]
        memory = request.shape.gpu_requests[share.gpu_request].memory.on_node(node.unit_mib)
        gpu = find(node, str(share.gpu))
        on_card = str(memory.units_on(gpu.memory_mib if gpu else 0))
        annotations = {
            PREFIX + "IDX": str(share.gpu),
            PREFIX + "DEV": on_card,
            PREFIX + "POD": str(memory.value),
            # "false" is what the device plugin looks for; it turns it to "true" at Allocate.
            ASSIGNED: "false",
            ASSUME_TIME: str(now_ns),
        }
        units = {c.name: c.asked.memory.value for c in request.containers if c.asked}
        env = {
            name: {
                "NVIDIA_VISIBLE_DEVICES": str(share.gpu),
                PREFIX + "IDX": str(share.gpu),
                # Here POD is what this one Allocate gave, unlike the annotation of that name.
                PREFIX + "POD": str(units[name]),
                PREFIX + "CONTAINER": str(units[name]),
                PREFIX + "DEV": on_card,
            }
            for name in by_container(request, placement)
        }
        if node.labels.get(NO_CGPU) == "true":
            env = {name: {**values, "CGPU_DISABLE": "true"} for name, values in env.items()}
        return PodAnnotations(annotations=annotations, env=env)

    def annotate_started(
        self,
        pod: PodManifest,
        request: PodRequest,
        placement: Placement,
        others: Sequence[PodManifest],
        now_ns: int,
    ) -> dict[str, str]:
        """Return the annotations that mark the pod as assigned now, as gpushare's device plugin
        writes them at Allocate; {} unless the pod is marked as not assigned yet."""
        if (pod.metadata.annotations or {}).get(ASSIGNED) != "false":
            return {}
        return {ASSIGNED: "true", ASSUME_TIME: str(now_ns)}

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement on the card in the index annotation, or in gpushare 2.0's allocation
        if that is one card; else None."""
        annotations = pod.metadata.annotations or {}
        allocated = annotations.get(ALLOCATION, "")
        gpu = find(node, annotations.get(PREFIX + "IDX") or _single_card(allocated))
        if gpu is None:
            return None
        gpu_request = request.shape.gpu_requests[0]
        gpu_request = replace(gpu_request, memory=gpu_request.memory.on_node(node.unit_mib))
        return placement_of(request, node, [share_on(0, gpu_request, gpu)])

    def on_node(
        self, pod: PodManifest, request: PodRequest, node: Node, settings: DialectSettings
    ) -> tuple[PodRequest, str]:
        """Return the request in the node's unit, and a sentence about any doubt, "" for none. If
        the pod's annotations or the setting have a larger unit, that one counts, as long as the
        amount fits on a card."""
        if not request.shape.gpu_requests:
            return request, ""
        gpu_request, card_mib = request.shape.gpu_requests[0], _largest_mib(node)
        configured = UNIT_MIB.get(settings.gpushare_unit, 0)
        foreign = anothers(pod, request, node)
        marked = 0 if foreign else _marked_unit_mib(pod, card_mib)
        node_mib = node.unit_mib or configured
        unit_mib = node_mib or gpu_request.memory.unit_mib
        units = GpuMemoryRequest("node-units", gpu_request.memory.value, unit_mib)
        readings = [units.on_node(mib) for mib in (0, configured, marked)]
        # A pod cannot hold more than a card has.
        held = [memory for memory in readings if memory.mib_on(card_mib) <= card_mib]
        most = max(held, key=lambda memory: memory.mib_on(card_mib), default=readings[0])
        doubt = ""
        if marked and node_mib and marked != node_mib:
            source = "its node" if node.unit_mib else "gpushareUnit"
            doubt = (
                f"it asks for {units.value} {GPU_MEM}: {source} counts in {UNIT_NAME[node_mib]}, "
                f"its annotations in {UNIT_NAME[marked]}; the larger amount that its card can "
                "hold is charged"
            )
        gpu_requests = (replace(gpu_request, memory=most),)
        return replace(request, shape=replace(request.shape, gpu_requests=gpu_requests)), doubt


def _layout(
    places: list[ContainerSlot], settings: DialectSettings, notes: list[str]
) -> tuple[ContainerRequests, int]:
    values = [units(slot, GPU_MEM, "units") for slot in places]
    if settings.compat == "exact":  # the original adds up the main containers only
        values = [v if s.role == "main" else 0 for v, s in zip(values, places, strict=True)]
    if not any(values):
        return one_card(places, [None] * len(places)), 0
    unit = settings.gpushare_unit
    guess = "MiB" if max(values) > MOST_GIB else "GiB"
    unit_mib = UNIT_MIB.get(unit) or UNIT_MIB[guess]
    requests = [GpuMemoryRequest("node-units", value, unit_mib) for value in values]
    told_mib = 0
    if unit != "node":
        told_mib = requests[0].unit_mib
        requests = [memory.on_node(told_mib) for memory in requests]
    if unit == "auto":
        notes.append(
            f"{GPU_MEM}: unit assumed to be {guess}, as the number alone suggests; "
            "a node's own unit, or --gpushare-unit, takes precedence"
        )
    asks = [GpuRequest(memory=memory) if memory.value else None for memory in requests]
    return one_card(places, asks), told_mib


def _largest_mib(node: Node) -> int:
    return max((gpu.memory_mib for gpu in node.gpus), default=0)


def _marked_unit_mib(pod: PodManifest, card_mib: int) -> int:
    """Return the unit, in MiB, in which the card was counted when the pod was placed on it; 0 if
    unknown."""
    units = (pod.metadata.annotations or {}).get(PREFIX + "DEV", "")
    if not (units.isascii() and units.isdecimal()) or len(units) > 9 or not int(units):
        return 0
    # The card's size decides: the limit lies between one unit for a MiB and one for a GiB.
    return 1 if int(units) * 32 > card_mib else 1024


def _single_card(text: str) -> str:
    """Return the one GPU in `{"<container>": {"<gpu>": units}}`; "" if there are several or
    none."""
    try:
        cards = {gpu for card in json.loads(text).values() for gpu in card}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return str(cards.pop()) if len(cards) == 1 else ""


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return GPUs of equal size: the node's capacity of GPU memory divided by its count of GPUs;
    None without both."""
    capacity = node.status.capacity or {}
    total, count = quantity(capacity, GPU_MEM), quantity(capacity, GPU_COUNT)
    if not total or not count or advertised_by_agent(node, GPU_MEM):
        return None
    units = total // count
    unit_mib = UNIT_MIB[gpushare_unit_of(units)]
    most = units * unit_mib + unit_mib - 1
    source = equal_gpus("gpushare's capacity", count, units * unit_mib, most)
    return source and replace(source, unit_mib=unit_mib)


def agent_unit_mib(total: int, gpus: Sequence[Gpu]) -> int:
    """Return the size in MiB of the unit in which Weft's agent counts these GPUs, which are `total`
    units together.

    The GPUs' reported sizes decide, not `total` alone: for GPUs above 100 GiB, or with lent memory,
    that would look like a number of MiB.
    """
    total_mib = sum(gpu.memory_mib for gpu in gpus if gpu.parent is None)
    # Up to ten times a GPU's memory may be promised.
    return 1 if total * 32 > total_mib else 1024


def unhealthy_name(node: str) -> str:
    """Return the name of the ConfigMap that says which of a node's GPUs are broken."""
    return UNHEALTHY_PREFIX + node

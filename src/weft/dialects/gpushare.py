"""gpushare (Alibaba Cloud): `aliyun.com/gpu-mem`, and one card for the whole pod.

The unit is not in the API: the node's device plugin counts GiB (rounded down) or MiB, and the same
manifest means both. So it is one setting of the cluster, or read off the nodes; only without
either is it guessed from the number.
"""

import json

from weft.dialects.containers import Layout, one_card
from weft.dialects.dialect import Marks, Settings
from weft.dialects.requests import build
from weft.dialects.resources import Slot, amount, slots, units
from weft.dialects.shares import find, placement_of, share_on
from weft.dialects.system import System, by_container
from weft.model import GpuClaim, Memory, Node, Placement, PodManifest, PodRequest, Shape

GPU_MEM = "aliyun.com/gpu-mem"
GPU_COUNT = "aliyun.com/gpu-count"
PREFIX = "ALIYUN_COM_GPU_MEM_"
ALLOCATION = "scheduler.framework.gpushare.allocation"

# No card held more GiB than this when the unit was fixed, and no job asks for as few MiB.
MOST_GIB = 192


def gpushare_unit_of(total_units_per_gpu: int) -> str:
    """The unit that a node advertising so many units per GPU counts in: "GiB" or "MiB"."""
    return "MiB" if total_units_per_gpu > 100 else "GiB"


class Gpushare(System):
    """GPU memory in the cluster's unit; ties go to the lowest index."""

    name = "gpushare"
    resources = (GPU_MEM, GPU_COUNT)

    def parse(self, pod: PodManifest, settings: Settings) -> PodRequest:
        """The pod's total on one card."""
        return self._build(pod, settings, "")

    def _build(self, pod: PodManifest, settings: Settings, application: str) -> PodRequest:
        notes: list[str] = []
        places = slots(pod)
        layout, unit_mib = _layout(places, settings, notes)
        if any(amount(slot, GPU_COUNT) for slot in places):
            notes.append(f"{GPU_COUNT} gives a pod nothing: it counts a node's cards")
        shape = Shape(unit_mib=unit_mib, application=application)
        return build(pod, self.name, layout, shape=shape, shared=True, warnings=notes)

    def marks(self, request: PodRequest, placement: Placement, node: Node, now_ns: int) -> Marks:
        """The five annotations of the extender, and the variables of its device plugin."""
        share = placement.shares[0]
        memory = request.shape.claims[share.claim].memory
        gpu = find(node, str(share.gpu))
        on_card = str(memory.units_on(gpu.memory_mib if gpu else 0))
        annotations = {
            PREFIX + "IDX": str(share.gpu),
            PREFIX + "DEV": on_card,
            PREFIX + "POD": str(memory.value),
            # "false" is what the device plugin looks for; it turns it to "true" at Allocate.
            PREFIX + "ASSIGNED": "false",
            PREFIX + "ASSUME_TIME": str(now_ns),
        }
        asked = {c.name: c.asked.memory.value for c in request.containers if c.asked}
        env = {
            name: {
                "NVIDIA_VISIBLE_DEVICES": str(share.gpu),
                PREFIX + "IDX": str(share.gpu),
                # Here POD is what this one Allocate gave, unlike the annotation of that name.
                PREFIX + "POD": str(asked[name]),
                PREFIX + "CONTAINER": str(asked[name]),
                PREFIX + "DEV": on_card,
            }
            for name in by_container(request, placement)
        }
        return Marks(annotations=annotations, env=env)

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """From the index annotation, or gpushare 2.0's allocation where that is one card."""
        marks = pod.metadata.annotations or {}
        gpu = find(node, marks.get(PREFIX + "IDX") or _single_card(marks.get(ALLOCATION, "")))
        if gpu is None:
            return None
        return placement_of(request, node, [share_on(0, request.shape.claims[0], gpu)])


def _layout(places: list[Slot], settings: Settings, notes: list[str]) -> tuple[Layout, int]:
    values = [units(slot, GPU_MEM, "units") for slot in places]
    if settings.compat == "exact":  # the original adds up the main containers only
        values = [v if s.role == "main" else 0 for v, s in zip(values, places, strict=True)]
    if not any(values):
        return one_card(places, [None] * len(places)), 0
    unit_mib = _unit_mib(max(values), settings, notes)
    asks = [
        GpuClaim(memory=Memory("mib", v) if unit_mib == 1 else Memory("units", v, unit_mib))
        if v else None
        for v in values
    ]  # fmt: skip
    return one_card(places, asks), unit_mib


def _unit_mib(largest: int, settings: Settings, notes: list[str]) -> int:
    unit = settings.gpushare_unit
    if unit == "auto":
        unit = "MiB" if largest > MOST_GIB else "GiB"
        notes.append(
            f"{GPU_MEM}: unit assumed to be {unit}, as the number alone suggests; "
            "the nodes or --gpushare-unit decide"
        )
    return 1 if unit == "MiB" else 1024


def _single_card(text: str) -> str:
    """The one GPU in `{"<container>": {"<gpu>": units}}`; "" where there are several or none."""
    try:
        cards = {gpu for card in json.loads(text).values() for gpu in card}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    return str(cards.pop()) if len(cards) == 1 else ""

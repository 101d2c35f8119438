"""Volcano: `volcano.sh/vgpu-number: n` cards, each shared, with vgpu-memory, percentage and cores.

Memory of each card is requested in the plugin's units (`gpuMemoryFactor` MiB each, a setting) or as
a percentage, all of it if neither is given; cores are percent of each card. Requests of init
containers are ignored, as in Volcano. Its older mode, gpushare, counts MiB of one card, or whole
cards.

A bound pod's cards and MiB are in `volcano.sh/vgpu-ids-new`, container by container. These MiB are
exact, whatever `gpuMemoryFactor` is. The older mode's annotation has only the card's index.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from weft.dialects.dialect import DialectSettings, PodAnnotations, UnitSettings
from weft.dialects.hami import (
    NOUSE_TYPE,
    PARTS,
    USE_TYPE,
    container_part,
    device_entry,
    environment_of,
)
from weft.dialects.node_gpus import InventorySource, ReportedGpu
from weft.dialects.resources import (
    ContainerRequests,
    ContainerSlot,
    PodWords,
    amount,
    asked_of,
    one_card,
    per_container,
    percent,
    units,
    whole_cards,
)
from weft.dialects.shares import asked_on, find, of_container, placement_of, share_on, visible
from weft.dialects.system import BaseDialect, build, listed
from weft.model import (
    BadInputError,
    DeviceRule,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    NodeManifest,
    Placement,
    PodManifest,
    PodRequest,
    Shape,
    Share,
)
from weft.model.bad_input import WrongMark
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS
from weft.model.nearest import unknown
from weft.model.request import WHOLE_CARD

NUMBER = "volcano.sh/vgpu-number"
MEM = "volcano.sh/vgpu-memory"
MEM_PERCENT = "volcano.sh/vgpu-memory-percentage"
CORES = "volcano.sh/vgpu-cores"
OLD_MEM = "volcano.sh/gpu-memory"
OLD_NUMBER = "volcano.sh/gpu-number"
VGPU, OLD = (NUMBER, MEM, MEM_PERCENT, CORES), (OLD_MEM, OLD_NUMBER)

USE_UUID = "volcano.sh/vgpu-use-gpuuuid"
NOUSE_UUID = "volcano.sh/vgpu-nouse-gpuuuid"
MODE = "volcano.sh/vgpu-mode"
TOGETHER = "volcano.sh/vgpu-podgroup-policy"
_ISOLATION = {"hami-core": "hook", "mig": "mig", "mps": "mps"}

IDS = "volcano.sh/vgpu-ids-new"
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
NODE = "volcano.sh/vgpu-node"
TIME = "volcano.sh/vgpu-time"
PHASE = "volcano.sh/bind-phase"
BIND_TIME = "volcano.sh/bind-time"
OLD_INDEX = "volcano.sh/gpu-index"
REGISTER = "volcano.sh/node-vgpu-register"

_ENTRY = re.compile(r"([^,;:]{1,253}),([^,;:]*),(\d{1,9}),(\d{1,4})", re.ASCII)
_CARD = re.compile(
    r"([^,:]{1,253}),(\d{1,9}),(\d{1,9}),([^,:]*),(true|false)(?:,[^,:]*)?", re.ASCII
)


class MarkedShare(NamedTuple):
    """A container's part of a card in Volcano's annotation: `milli` thousandths of its cores."""

    uuid: str
    memory_mib: int
    milli: int


class Volcano(BaseDialect):
    """Volcano's dialect: n distinct GPUs for each container, each shared."""

    name = "volcano"
    title = "Volcano"
    scheduler_names = ("volcano",)
    resources = (*VGPU, *OLD)
    resource_pattern = r"volcano\.sh/v?gpu-"
    counted = (NUMBER, OLD_MEM, OLD_NUMBER)  # its device plugins report no other
    unhonoured = (TOGETHER,)  # the group's other pods are unknown
    kept_marks = (IDS, OLD_INDEX)
    served_by_itself = True

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's vgpu-number (how many pods may share it), units of memory, and percent
        of memory and of cores."""
        return {
            NUMBER: pieces * PARTS,
            MEM: settings.promised(gpu.memory_mib // settings.volcano_memory_factor),
            MEM_PERCENT: settings.promised(100 * pieces),
            CORES: 100 * pieces,
        }

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: memory and cores of each of n GPUs for each container, or what
        the older mode's resources ask for."""
        mains = [slot for slot in words.slots if slot.role == "main"]
        older = any(asked_of(slot, OLD) for slot in mains)
        if older and any(asked_of(slot, VGPU) for slot in mains):
            raise BadInputError(
                "spec.containers", f"asks by {OLD_MEM} or {OLD_NUMBER}, and by {NUMBER}; keep one"
            )
        notes = [
            f"container {slot.container.name}: Volcano gives init containers no GPU"
            for slot in words.slots
            if slot.role != "main" and asked_of(slot, self.resources)
        ]
        if older:
            layout, shared = _older(words.slots)
        else:
            factor = settings.volcano_memory_factor
            asks = [_ask(s, factor, notes) if s.role == "main" else None for s in words.slots]
            layout, shared = per_container(words.slots, asks), False
        # Sidecars count as init containers: its marks list the main ones alone.
        roles = zip(words.slots, layout.containers, strict=True)
        layout = layout._replace(
            containers=tuple(replace(each, init=slot.role != "main") for slot, each in roles)
        )
        shape = Shape(devices=_rule(words), isolation=_isolation(words))
        return build(words, self.name, layout, shape=shape, shared=shared, warnings=notes)

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return Volcano's annotations, with `UUID,NVIDIA,MiB,percent:` for each GPU and `;`
        between containers, or the older mode's with the cards' indexes; and the environment."""
        seconds = str(now_ns // 10**9)
        if _is_older(request):
            indexes = ",".join(str(share.gpu) for share in placement.shares)
            return PodAnnotations({OLD_INDEX: indexes}, env=visible(request, placement))
        parts, env = [], {}
        for container in request.containers:
            if container.init:
                continue
            held = of_container(request, container, placement)
            own = [container_part(request, container, share, node) for share in held]
            parts.append("".join(map(device_entry, own)))
            if container.asked is not None:
                env[container.name] = environment_of(own)
        devices = ";".join(parts)
        annotations = {
            IDS: devices,
            TO_ALLOCATE: devices,
            NODE: node.name,
            TIME: seconds,
            PHASE: "allocating",
            BIND_TIME: seconds,
        }
        return PodAnnotations(annotations, env=env)

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement by the cards in the pod's annotation, container by container, or
        by the older mode's index; None if the annotation gives none."""
        return _held(pod, request, node)[0]

    def wrong_marks(self, pod: PodManifest, request: PodRequest, node: Node) -> WrongMark | None:
        """Return what in the annotation cannot be read, or is less than the pod requests; None if
        nothing."""
        return _held(pod, request, node)[1] if request.shape.gpu_requests else None

    def perhaps_on(self, pod: PodManifest, node: Node) -> frozenset[int]:
        """Return the cards of the node that the older mode's annotation names by index."""
        text = (pod.metadata.annotations or {}).get(OLD_INDEX, "")
        indexes = {part.strip() for part in text.split(",")}
        cards = (gpu.index for gpu in node.gpus if gpu.parent is None)
        return frozenset(index for index in cards if str(index) in indexes)


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return the GPUs by Volcano's annotation, `UUID,slots,MiB,type,health,mode` for each card
    joined by `:`; None without it. `BadInputError` if it is invalid."""
    text = (node.metadata.annotations or {}).get(REGISTER, "")
    gpus: list[Gpu] = []
    for index, entry in enumerate(part for part in text.split(":") if part.strip()):
        match = _CARD.fullmatch(entry.strip())
        if match is None or int(match[3]) > MOST_GPU_MIB or index >= MOST_GPUS:
            wrong = f"{entry[:60]!r} is not a GPU: UUID,slots,MiB,type,health,mode"
            raise BadInputError(f"metadata.annotations[{REGISTER}]", wrong)
        health = match[5] == "true"
        gpus.append(Gpu(index, int(match[3]), match[4], match[1], in_service=health))
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise BadInputError(f"metadata.annotations[{REGISTER}]", "names a card twice")
    cards = tuple(ReportedGpu(g.memory_mib, g.memory_mib, g.model, g.uuid) for g in gpus)
    return InventorySource("Volcano's annotation", cards, tuple(gpus)) if gpus else None


def marked_devices(text: str, containers: int) -> list[list[MarkedShare]] | None:
    """Return the cards that Volcano's annotation gives each of so many containers; None if it
    cannot be read."""
    parts = text.split(";")
    if len(parts) == containers + 1 and not parts[-1]:
        parts.pop()
    if len(parts) != containers:
        return None
    devices: list[list[MarkedShare]] = []
    for part in parts:
        matches = [_ENTRY.fullmatch(entry) for entry in part.split(":") if entry]
        known = [match for match in matches if match is not None]
        if len(known) < len(matches):
            return None
        devices.append([MarkedShare(m[1], int(m[3]), int(m[4]) * 10) for m in known])
    return devices


def _held(
    pod: PodManifest, request: PodRequest, node: Node
) -> tuple[Placement | None, WrongMark | None]:
    """Return the placement that the pod's annotation gives, None if it gives none; and what is
    wrong with the annotation, None if nothing."""
    marks = pod.metadata.annotations or {}
    if _is_older(request):
        return _by_index(marks.get(OLD_INDEX, ""), request, node)
    if not (text := marks.get(IDS, "")):
        return None, None
    devices = marked_devices(text, len(pod.spec.containers))
    if devices is None:
        text = f"{IDS} is not as Volcano writes it for {len(pod.spec.containers)} containers"
        return None, WrongMark("mark-unreadable", text)
    shares: list[Share] = []
    wrong: list[str] = []
    mains = [container for container in request.containers if not container.init][-len(devices) :]
    for container, held in zip(mains, devices, strict=True):
        asked = container.asked.count if container.asked is not None else 0
        cards = [find(node, each.uuid) for each in held]
        if len({each.uuid for each in held}) != asked or None in cards:
            gives = ", ".join(each.uuid for each in held) or "none"
            text = f"{IDS} gives container {container.name} the cards {gives[:200]}"
            text += f": the container requests {asked}, all from its node"
            return None, WrongMark("mark-names-unknown-card", text)
        for each, gpu in zip(held, cards, strict=True):
            if gpu is not None:
                index = container.gpu_requests[0]
                shares.append(_exact(index, request, each, gpu, wrong))
    fault = WrongMark("amounts-contradict", "; ".join(wrong)) if wrong else None
    return placement_of(request, node, shares), fault


def _exact(
    index: int, request: PodRequest, marked: MarkedShare, gpu: Gpu, wrong: list[str]
) -> Share:
    """Return the share that the annotation gives, but no less than the pod requests, and no more
    than the card has."""
    gpu_request = request.shape.gpu_requests[index]
    least = asked_on(index, gpu_request, gpu)
    least_mib = least.memory_mib if gpu_request.memory.kind == "mib" else 0
    if marked.memory_mib < least_mib or marked.milli < least.milli:
        wrong.append(
            f"{IDS} says {marked.memory_mib:,} MiB and {marked.milli // 10} % of GPU {gpu.index}, "
            f"the pod asks for {least_mib:,} MiB and {least.milli // 10} %"
        )
    memory_mib = min(max(marked.memory_mib, least_mib), gpu.memory_mib)
    milli = min(max(marked.milli, least.milli), gpu.milli)
    return Share(index, gpu.index, memory_mib, milli, gpu.uuid)


def _by_index(
    text: str, request: PodRequest, node: Node
) -> tuple[Placement | None, WrongMark | None]:
    """Return the placement on the cards that the older mode's annotation names by index, in the
    order in which containers ask, None if it gives none; and what is wrong with the annotation,
    None if nothing."""
    if not text:
        return None, None
    indexes = [part.strip() for part in text.split(",") if part.strip()]
    cards = [gpu for gpu in node.gpus if gpu.parent is None and str(gpu.index) in indexes]
    asked = request.shape.gpu_requests
    if not len(indexes) == len(set(indexes)) == len(cards) == sum(ask.count for ask in asked):
        wrong = (
            f"{OLD_INDEX} ({text[:40]!r}) does not name as many cards of its node as it asks for"
        )
        return None, WrongMark("mark-names-unknown-card", wrong)
    shares = []
    for index, gpu_request in enumerate(asked):
        own, cards = cards[: gpu_request.count], cards[gpu_request.count :]
        shares += [share_on(index, gpu_request, gpu) for gpu in own]
    return placement_of(request, node, shares), None


def _is_older(request: PodRequest) -> bool:
    """Return True if the pod asks in the form of the older mode, which has no cores."""
    asked = request.shape.gpu_requests
    return request.shared_by_containers or any(ask.whole for ask in asked)


def _ask(slot: ContainerSlot, factor: int, notes: list[str]) -> GpuRequest | None:
    count, mib = amount(slot, NUMBER), units(slot, MEM, "units of memory") * factor
    share, cores = percent(slot, MEM_PERCENT), percent(slot, CORES)
    if not (count or mib or share or cores):
        return None
    name = slot.container.name
    if not count:
        notes.append(f"container {name}: {NUMBER} is missing and counts as 1")
    if mib and share:
        notes.append(f"container {name}: {MEM_PERCENT} is ignored, as {MEM} is set too")
    memory = WHOLE_CARD
    if mib:
        memory = GpuMemoryRequest("mib", mib)
    elif share:
        memory = GpuMemoryRequest("percent", share)
    return GpuRequest(count=count or 1, memory=memory, milli=cores * 10)


def _older(slots: Sequence[ContainerSlot]) -> tuple[ContainerRequests, bool]:
    """Return the older mode's requests (MiB of one card for the whole pod, or whole cards), and
    whether containers share that card."""
    mains = [slot.role == "main" for slot in slots]
    mib = [
        units(slot, OLD_MEM, "MiB") if main else 0 for slot, main in zip(slots, mains, strict=True)
    ]
    counts = [
        amount(slot, OLD_NUMBER) if main else 0 for slot, main in zip(slots, mains, strict=True)
    ]
    if any(mib) and any(counts):
        raise BadInputError("spec.containers", f"asks by {OLD_MEM} and {OLD_NUMBER}; keep one")
    if any(counts):
        return per_container(slots, [whole_cards(n) if n else None for n in counts]), False
    asks = [GpuRequest(memory=GpuMemoryRequest("mib", n)) if n else None for n in mib]
    return one_card(slots, asks), True


def _rule(words: PodWords) -> DeviceRule:
    annotations = words.annotations
    return DeviceRule(
        models=listed(annotations, USE_TYPE),
        not_models=listed(annotations, NOUSE_TYPE),
        how="contains",
        uuids=listed(annotations, USE_UUID),
        not_uuids=listed(annotations, NOUSE_UUID),
    )


def _isolation(words: PodWords) -> str:
    mode = words.annotations.get(MODE, "")
    if mode and mode not in _ISOLATION:
        raise BadInputError(
            f"metadata.annotations[{MODE}]", unknown(mode[:40], _ISOLATION, "write")
        )
    return _ISOLATION.get(mode, "")

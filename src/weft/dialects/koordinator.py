"""Koordinator: percents and bytes of GPU memory for the pod as a whole, on one card or several.

    nvidia.com/gpu: n                              n whole cards, under its schedulerName
    koordinator.sh/gpu: p                          p percent of cores and memory; 200 is two cards
    gpu-core: p, with gpu-memory or -memory-ratio  percent of cores, and bytes or percent of memory
    gpu-memory alone                               bytes
    gpu.shared: n with these                       they are totals over n cards

Other combinations are invalid in Koordinator, and an error here. A bound pod's cards are in an
annotation by *minor number*, which is not NVML's index: the node's `Device` object maps it to a
UUID. Without that object the card is unknown.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from weft.dialects.dialect import DialectSettings, PodAnnotations
from weft.dialects.node_gpus import InventorySource, ReportedGpu
from weft.dialects.nvidia import GPU
from weft.dialects.resources import PodWords, amount, peak, pod_wide, whole_cards
from weft.dialects.shares import asked_on, find, placement_of, visible
from weft.dialects.system import BaseDialect, build
from weft.model import (
    BadInputError,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    ObjectMeta,
    Placement,
    PodManifest,
    PodRequest,
    Shape,
    Share,
    parse_quantity,
)
from weft.model.bad_input import BadInputKind, WrongMark
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.manifest import Api, Quantities
from weft.model.request import WHOLE_CARD

SHARE = "koordinator.sh/gpu"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
SHARED = "koordinator.sh/gpu.shared"
ISOLATION_LABEL = "koordinator.sh/gpu-isolation-provider"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
HINT = "scheduling.koordinator.sh/device-allocate-hint"
PARTITION = "scheduling.koordinator.sh/gpu-partition-spec"
SOURCE = "Koordinator's Device"
_MINOR = "koordinator/"
_MIB = 2**20


class DeviceInfo(Api, frozen=True, gc=False):
    """One device of a node; `id` is a GPU's UUID."""

    type: str = ""
    id: str = ""
    minor: int | None = None
    health: bool = False
    resources: Quantities | None = None


class DeviceSpec(Api, frozen=True, gc=False):
    """spec of a Device."""

    devices: list[DeviceInfo] | None = None


class KoordinatorDevice(Api, frozen=True, gc=False):
    """scheduling.koordinator.sh/v1alpha1 Device: a node's devices, under the node's name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceSpec = DeviceSpec()


class Koordinator(BaseDialect):
    """Koordinator's dialect: the pod's amounts on each of n cards; every container sees all
    cards."""

    name = "koordinator"
    title = "Koordinator"
    scheduler_names = ("koord-scheduler",)
    resources = (SHARE, CORE, MEMORY, RATIO, SHARED)
    resource_pattern = r"koordinator\.sh/(?:shared-)?gpu"
    carried_by = (GPU,)
    pod_asks_as_one = True
    kept_marks = (ALLOCATED,)
    served_by_itself = True

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True for Koordinator's own resources, and for plain GPUs under its
        schedulerName."""
        if super().carries(words, settings):
            return True
        return words.manifest.spec.scheduler_name in self.scheduler_names and words.asks_for((GPU,))

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: its amounts on each card."""
        asked = {name: _peak(words, name) for name in (GPU, *self.resources)}
        by_hook = words.labels.get(ISOLATION_LABEL) == "HAMi-core"
        shape = Shape(isolation="hook") if by_hook else None
        notes = [
            f"annotation {name} is ignored: Weft chooses cards by its policy"
            for name in (HINT, PARTITION)
            if words.annotations.get(name)
        ]
        layout = pod_wide(words.slots, [_request(asked)] if any(asked.values()) else [])
        return build(words, self.name, layout, shape=shape, shared=True, warnings=notes)

    def delivered_by(self, words: PodWords) -> tuple[str, ...]:
        """Return NVIDIA's resource if the pod asks for it, as such a pod may name none of
        Koordinator's resources."""
        return (GPU,) if words.asks_for((GPU,)) else ()

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return the annotation with the cards' minor numbers, if the node's Device object has
        them, and the environment."""
        env = visible(request, placement)
        minors = {uuid: name.removeprefix(_MINOR) for name, uuid in _minors(node).items()}
        cards = {gpu.index: gpu for gpu in node.gpus}
        if not all(share.uuid in minors and share.gpu in cards for share in placement.shares):
            return PodAnnotations(env=env)
        devices = [
            {
                "minor": int(minors[share.uuid]),
                "resources": {
                    CORE: str(share.milli // 10),
                    MEMORY: f"{share.memory_mib}Mi",
                    RATIO: str(share.memory_mib * 100 // max(cards[share.gpu].memory_mib, 1)),
                },
            }
            for share in placement.shares
        ]
        text = json.dumps({"gpu": devices}, separators=(",", ":"))
        return PodAnnotations({ALLOCATED: text}, env=env)

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement by the minor numbers and amounts in the pod's annotation; None if
        it gives none."""
        return _held(pod, request, node)[0]

    def wrong_marks(self, pod: PodManifest, request: PodRequest, node: Node) -> WrongMark | None:
        """Return what in the annotation cannot be read, or contradicts itself; None if nothing."""
        return _held(pod, request, node)[1] if request.shape.gpu_requests else None

    def perhaps_on(self, pod: PodManifest, node: Node) -> frozenset[int]:
        """Return the indexes of the cards that the pod's annotation names by minor numbers of the
        Device object."""
        names = _minors(node)
        uuids = (names.get(f"{_MINOR}{minor}", "") for minor, _ in _given(pod) or ())
        cards = (find(node, uuid) for uuid in uuids)
        return frozenset(gpu.index for gpu in cards if gpu is not None)


def minor_names(device: KoordinatorDevice | None) -> dict[str, str]:
    """Return the UUIDs of the node's GPUs by name; a GPU's name is its minor number after a
    prefix."""
    return {f"{_MINOR}{gpu.minor}": gpu.id for gpu in _gpus(device) if gpu.id}


def reported_by(device: KoordinatorDevice | None) -> InventorySource | None:
    """Return the node's GPUs as its Device object has them, in the order of their minor numbers;
    None if it lists no GPU, or one without its amount of memory."""
    cards, gpus = [], []
    for index, each in enumerate(_gpus(device)):
        mib = _bytes((each.resources or {}).get(MEMORY, 0)) // _MIB
        if not 0 < mib <= MOST_GPU_MIB:
            return None
        cards.append(ReportedGpu(mib, mib, uuid=each.id))
        gpus.append(Gpu(index, mib, uuid=each.id, in_service=each.health))
    return InventorySource(SOURCE, tuple(cards), tuple(gpus)) if gpus else None


def _gpus(device: KoordinatorDevice | None) -> list[DeviceInfo]:
    """Return the Device object's valid GPUs by rising minor number; no minor number or UUID occurs
    twice."""
    found: dict[int, DeviceInfo] = {}
    for each in (device.spec.devices or ()) if device is not None else ():
        fits = each.minor is not None and 0 <= each.minor < MOST_GPUS
        known = {gpu.id for gpu in found.values()}
        if each.type == "gpu" and fits and len(each.id) <= MOST_LETTERS and each.id not in known:
            found.setdefault(each.minor or 0, each)
    return [found[minor] for minor in sorted(found)]


def _minors(node: Node) -> Mapping[str, str]:
    names = {} if node.called is UNSET else node.called.cards
    return {name: uuid for name, uuid in names.items() if name.startswith(_MINOR)}


def _peak(words: PodWords, name: str) -> int:
    return peak([(slot.role, amount(slot, name)) for slot in words.naming.get(name, ())])


def _request(asked: Mapping[str, int]) -> GpuRequest:
    """Return the pod's GPU request, the same for each card; `BadInputError` for combinations that
    Koordinator rejects."""
    named = {name for name, value in asked.items() if value and name != SHARED}
    core, ratio, count = asked[CORE], asked[RATIO], asked[SHARED]
    if named == {GPU} and not count:
        return whole_cards(asked[GPU])
    if named == {SHARE}:
        core = ratio = asked[SHARE]
    elif named not in ({CORE, MEMORY}, {CORE, RATIO}, {MEMORY}):
        how = "together" if len(named) > 1 else "alone"
        raise BadInputError(
            "spec.containers",
            f"asks for {' and '.join(sorted(named)) or SHARED} {how}"
            f": write {SHARE}, or {CORE} with {MEMORY} or {RATIO}, or {MEMORY} alone",
        )
    if not count and ratio > 100:
        if ratio % 100:
            text = f"{ratio} is more than a card and no multiple of 100; write 100, 200, …"
            raise BadInputError(f"spec.containers[{SHARE if asked[SHARE] else RATIO}]", text)
        return whole_cards(ratio // 100)
    count = count or 1
    if max(core, ratio) > 100 * count:
        raise BadInputError(
            f"spec.containers[{CORE}]", f"{max(core, ratio)} percent is more than {count} cards"
        )
    if ratio == core == 100 * count:
        return whole_cards(count)
    memory = GpuMemoryRequest("mib", -(-asked[MEMORY] // (_MIB * count)))
    if ratio:
        memory = GpuMemoryRequest("millionths", ratio * 10_000 // count)
    if ratio == 100 * count:
        memory = WHOLE_CARD
    return GpuRequest(count, memory, milli=core * 10 // count)


def _held(
    pod: PodManifest, request: PodRequest, node: Node
) -> tuple[Placement | None, WrongMark | None]:
    """Return the placement that the pod's annotation gives, None if it gives none; and what is
    wrong with the annotation, None if nothing."""
    if not (pod.metadata.annotations or {}).get(ALLOCATED):
        return None, None
    if (given := _given(pod)) is None:
        return None, WrongMark("mark-unreadable", f"{ALLOCATED} is not as Koordinator writes it")
    gpu_request = request.shape.gpu_requests[0]
    names = _minors(node)
    lacking = [minor for minor, _ in given if f"{_MINOR}{minor}" not in names]
    if lacking:
        known = "has no GPU of that minor number" if names else "is not known"
        text = f"{ALLOCATED} names minor {lacking[0]}: its node's Device object {known}"
        kind: BadInputKind = "mark-names-unknown-card" if names else "device-object-missing"
        return None, WrongMark(kind, text)
    cards = [find(node, names[f"{_MINOR}{minor}"]) for minor, _ in given]
    if len({minor for minor, _ in given}) != gpu_request.count or None in cards:
        minors = ", ".join(str(minor) for minor, _ in given)[:80]
        asked = f"the pod asks for {gpu_request.count}, all from its node"
        text = f"{ALLOCATED} names the cards of minor {minors or 'none'}: {asked}"
        return None, WrongMark("mark-names-unknown-card", text)
    wrong: list[str] = []
    shares = [
        _exact(gpu_request, resources, gpu, wrong)
        for (_, resources), gpu in zip(given, cards, strict=True)
        if gpu is not None
    ]
    shares.sort(key=lambda share: share.gpu)
    fault = WrongMark("amounts-contradict", "; ".join(wrong)) if wrong else None
    return placement_of(request, node, shares), fault


def _given(pod: PodManifest) -> list[tuple[int, dict[str, Any]]] | None:
    """Return the minor numbers and amounts in the pod's annotation; None if it cannot be read."""
    text = (pod.metadata.annotations or {}).get(ALLOCATED) or "{}"
    try:
        entries = json.loads(text).get("gpu") or []
        return [(_minor(each), dict(each.get("resources") or {})) for each in entries]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _exact(
    gpu_request: GpuRequest, resources: Mapping[str, Any], gpu: Gpu, wrong: list[str]
) -> Share:
    """Return the share that the annotation gives; the larger amount if it contradicts itself or the
    pod's request."""
    least = asked_on(0, gpu_request, gpu)
    by_bytes = -(-_bytes(resources.get(MEMORY, 0)) // _MIB)
    by_ratio = min(_bytes(resources.get(RATIO, 0)), 100) * gpu.memory_mib // 100
    marked_milli = min(_bytes(resources.get(CORE, 0)), 100) * 10
    near = gpu.memory_mib // 50 + 1  # the ratio is rounded to percent, bytes by the driver
    if by_bytes and by_ratio and abs(min(by_bytes, gpu.memory_mib) - by_ratio) > near:
        wrong.append(
            f"{ALLOCATED} says {by_bytes:,} MiB of GPU {gpu.index}, its ratio says {by_ratio:,} MiB"
        )
    # Koordinator and Weft may round a percentage to MiB that differ by one; cores are whole
    # percent.
    marked_mib = max(by_bytes, by_ratio if not by_bytes or wrong else 0)
    if marked_mib + near < least.memory_mib or marked_milli < least.milli // 10 * 10:
        wrong.append(
            f"{ALLOCATED} says {marked_mib:,} MiB and {marked_milli // 10} % of GPU {gpu.index}, "
            f"the pod asks for {least.memory_mib:,} MiB and {least.milli / 10:g} %"
        )
        marked_mib = max(marked_mib, least.memory_mib)
    if gpu_request.whole:
        return least
    memory_mib = min(marked_mib, gpu.memory_mib)
    return Share(0, gpu.index, memory_mib, max(marked_milli, least.milli), gpu.uuid)


def _minor(entry: Mapping[str, Any]) -> int:
    minor = entry.get("minor", 0)  # Go leaves out a 0
    if isinstance(minor, bool) or not isinstance(minor, int):
        raise ValueError(minor)
    return minor


def _bytes(text: Any) -> int:
    """Return the quantity; 0 if it cannot be read."""
    try:
        short = isinstance(text, str | int | float) and len(str(text)) <= 40
        return max(parse_quantity(text, ""), 0) if short else 0
    except BadInputError:
        return 0

"""Alnair: GiB of GPU memory rounded to the nearest, and percent of a card's cores.

Alnair's scheduler compares the pod's total with one card, so one card serves the whole pod.
Alnair's device plugin may pick memory on one card and cores on another; Weft gives both on the card
that it chose, and writes the plugin's annotations. If the plugin runs and has picked cards itself,
the plugin's choice counts.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import count, islice

from msgspec.structs import replace

from weft.dialects.dialect import DialectSettings, PodAnnotations, UnitSettings
from weft.dialects.node_gpus import InventorySource, ReportedGpu, listed_parts, whole_number
from weft.dialects.resources import ContainerSlot, PodWords, amount, one_card, units
from weft.dialects.shares import by_container, find, identity, placement_of, share_on
from weft.dialects.system import BaseDialect, build
from weft.model import BadInputError, Gpu, Node, NodeManifest, Placement, PodManifest, Share
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.request import GpuMemoryRequest, GpuRequest, PodRequest

MEMORY = "alnair/vgpu-memory"
COMPUTE = "alnair/vgpu-compute"
TIMESTAMP = "ai.centaurus.io/scheduler-timestamp"
GPU_ID = "ai.centaurus.io/alnair-gpu-id"  # the device plugin writes both, at Allocate
OWN_ID = "ai.centaurus.io/alnair-id"
# A node's annotations. The device plugin writes the first of the two counts with a letter missing,
# the scheduler reads the second: Weft writes both and reads either.
NODE_COUNT = "ai.centaurus.io/physical-gpu-count"
NODE_UUIDS = "ai.centaurus.io/physical-gpu-uuids"
NODE_UNITS = ("ai.centaurus.io/vitual-gpu-count", "ai.centaurus.io/virtual-gpu-count")


class Alnair(BaseDialect):
    """Alnair's dialect: memory in units of 1 GiB, half rounded up; of equally good cards the one
    with the first UUID is taken."""

    name = "alnair"
    title = "Alnair"
    card_marks = (GPU_ID,)
    scheduler_names = ("alnair-cost-saving", "alnair-high-performance")
    tie_break = "uuid"
    resources = (MEMORY, COMPUTE)
    resource_pattern = r"alnair/vgpu-"
    agent_annotation = GPU_ID
    written = (TIMESTAMP, GPU_ID, OWN_ID)
    written_on_nodes = (NODE_COUNT, NODE_UUIDS, *NODE_UNITS)

    def card_units(self, gpu: Gpu, pieces: int, settings: UnitSettings) -> dict[str, int]:
        """Return one card's GiB of memory, rounded to the nearest, and its percent of cores."""
        return {MEMORY: settings.promised((gpu.memory_mib + 512) // 1024), COMPUTE: 100 * pieces}

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the pod's request: its total, on one card."""
        notes: list[str] = []
        asks: list[GpuRequest | None] = []
        for slot in words.slots:
            ignored = settings.compat == "exact" and slot.role != "main"
            asks.append(None if ignored else _ask(slot, notes))
        layout = one_card(words.slots, asks)
        if layout.gpu_requests and layout.gpu_requests[0].memory.kind == "none":
            notes.append(f"{COMPUTE} without {MEMORY}: no GPU memory is charged")
        if sum(ask.milli for ask in asks if ask) > 1000:
            notes.append(
                f"{COMPUTE}: the containers ask for more than 100 percent together; "
                "they share one card, so at most a whole card is charged"
            )
        return build(words, self.name, layout, shared=True, warnings=notes)

    def annotate(
        self, request: PodRequest, placement: Placement, node: Node, now_ns: int
    ) -> PodAnnotations:
        """Return the timestamp annotation of Alnair's scheduler, and the variables of its device
        plugin.

        The device plugin's annotations are left out: the plugin looks for pods without them, and
        crashes if it finds no such pod. If Weft's agent replaces the plugin, `annotate_started`
        writes them later.
        """
        requests = {c.name: c.asked for c in request.containers if c.asked}
        env = {
            name: _environment(",".join(map(identity, held)), _short_id(request.uid, name))
            for name, held in by_container(request, placement).items()
        }
        for name, ask in requests.items():
            if ask.milli:
                env[name]["ALNAIR_VGPU_COMPUTE_PERCENTILE"] = str(ask.milli // 10)
        return PodAnnotations(annotations={TIMESTAMP: str(now_ns)}, env=env)

    def annotate_started(
        self,
        pod: PodManifest,
        request: PodRequest,
        placement: Placement,
        others: Sequence[PodManifest],
        now_ns: int,
    ) -> dict[str, str]:
        """Return the annotations that Alnair's device plugin writes at Allocate: identifiers of
        the card, one for each GiB that the pod requests (the first that no other pod has), and a
        short identifier for each container that requests memory. {} if the pod requests no
        memory, or has such annotations."""
        memory = request.shape.gpu_requests[0].memory if request.shape.gpu_requests else None
        has = pod.metadata.annotations or {}
        if memory is None or memory.kind != "units" or not placement.shares or GPU_ID in has:
            return {}
        texts = ((other.metadata.annotations or {}).get(GPU_ID, "") for other in others)
        taken = {part for text in texts for part in text.split(",")}
        card = identity(placement.shares[0])
        free = (f"{card}_{number}" for number in count() if f"{card}_{number}" not in taken)
        asking = [c.name for c in request.containers if c.asked and c.asked.memory.value]
        return {
            GPU_ID: ",".join(islice(free, memory.value)),
            OWN_ID: ",".join(_short_id(request.uid, name) for name in asking),
        }

    def env_when_bound(
        self, pod: PodManifest, request: PodRequest, env: dict[str, dict[str, str]]
    ) -> dict[str, dict[str, str]]:
        """Replace each ALNAIR_ID by the identifier that Alnair's device plugin gave the container
        and named a folder after.

        The plugin gives an identifier to each container that requests memory, in the order of their
        start.
        """
        text = (pod.metadata.annotations or {}).get(OWN_ID, "")
        ids = listed_parts(text) if len(text) <= MOST_LETTERS else []
        asking = [c.name for c in request.containers if c.asked and c.asked.memory.value]
        if len(ids) != len(asking):
            return env
        own = dict(zip(asking, ids, strict=True))
        return {
            name: {**values, "ALNAIR_ID": own[name]} if name in own else values
            for name, values in env.items()
        }

    def recover(self, pod: PodManifest, request: PodRequest, node: Node) -> Placement | None:
        """Return the placement by the device IDs in the pod's annotation; None if there are none,
        or the node lacks one of the GPUs.

        Alnair's device plugin may have spread the pod's units over several cards. With fewer IDs
        than units requested the spread is unknown, and each card is charged the whole request.
        """
        text = (pod.metadata.annotations or {}).get(GPU_ID, "")
        ids = dict.fromkeys(part for part in text.split(",") if part)
        chunks = Counter(part.rpartition("_")[0] for part in ids)
        cards = [(find(node, uuid), n) for uuid, n in chunks.items()]
        gpu_request = request.shape.gpu_requests[0]
        all_said = len(ids) >= gpu_request.memory.value
        shares: list[Share] = []
        for gpu, n in cards:
            if gpu is None:
                return None
            if len(cards) == 1 or not all_said:
                shares.append(share_on(0, gpu_request, gpu))
                continue
            part = replace(gpu_request.memory, kind="units", value=n)
            milli = 0 if shares else gpu_request.milli
            shares.append(Share(0, gpu.index, part.mib_on(gpu.memory_mib), milli, gpu.uuid))
        return placement_of(request, node, shares) if shares else None


def _ask(slot: ContainerSlot, notes: list[str]) -> GpuRequest | None:
    memory = units(slot, MEMORY, "GiB")
    compute = amount(slot, COMPUTE)
    if compute > 100:
        notes.append(
            f"container {slot.container.name}: {COMPUTE} {compute} counts as 100, a whole card"
        )
        compute = 100
    if not memory and not compute:
        return None
    charged = GpuMemoryRequest()
    if memory:
        charged = GpuMemoryRequest("units", memory, unit_mib=1024, half_up=True)
    return GpuRequest(memory=charged, milli=compute * 10)


def _environment(uuid: str, alnair_id: str) -> dict[str, str]:
    return {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "ALNAIR_ID": alnair_id,
        "ALNAIR_WORKSPACE_PATH": "/var/lib/alnair/workspace",
        "ALNAIR_SOCKET": "/run/alnair/alnair.sock",
        "LD_PRELOAD": "/opt/alnair/libcuinterpose.so",
    }


def _short_id(uid: str, container: str) -> str:
    """Return a container's identifier: five characters, like Alnair's random ones, but the same
    after a restart of Weft."""
    return hashlib.sha256(f"{uid}/{container}".encode()).hexdigest()[:5]


def reported_gpus(node: NodeManifest) -> InventorySource | None:
    """Return the GPUs in Alnair's node annotations; None without these. `BadInputError` if they
    are invalid. Sizes are in units of 1 GiB, half rounded up: one number for each GPU, or one
    for all GPUs."""
    annotations = node.metadata.annotations or {}
    if NODE_COUNT not in annotations:
        return None
    count = whole_number(annotations, NODE_COUNT)
    text = next((annotations[name] for name in NODE_UNITS if annotations.get(name)), "")
    units = [whole_number({NODE_UNITS[0]: part}, NODE_UNITS[0]) for part in listed_parts(text)]
    uuids = listed_parts(annotations.get(NODE_UUIDS, ""))
    if not count or not units:
        return None
    if count > MOST_GPUS or max(units) * 1024 > MOST_GPU_MIB:
        raise BadInputError(
            NODE_COUNT, f"{count} GPUs of {max(units)} GiB are more than a node has"
        )
    if any(len(uuid) > MOST_LETTERS for uuid in uuids):
        raise BadInputError(NODE_UUIDS, f"a UUID has more than {MOST_LETTERS} characters")
    cards = []
    for index in range(count):
        # Alnair's scheduler reads the first number for every card.
        size = (units[index] if len(units) == count else units[0]) * 1024
        uuid = uuids[index] if len(uuids) == count else ""
        cards.append(ReportedGpu(max(size - 512, 0), size + 511, uuid=uuid))
    return InventorySource("Alnair's annotations", tuple(cards))


def node_annotations(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the annotations about these GPUs that the device plugin writes on a node, with both
    spellings of the units' name."""
    cards = [gpu for gpu in gpus if gpu.parent is None]
    units = ",".join(str((card.memory_mib + 512) // 1024) for card in cards)
    return {
        NODE_COUNT: str(len(cards)),
        NODE_UUIDS: ",".join(card.uuid for card in cards),
        **dict.fromkeys(NODE_UNITS, units),
    }

"""Reads which GPUs NVIDIA's device plugin gave to bound pods, as the node's agent reports.

With time slicing or MPS the plugin offers each card as several devices, all alike, under the name
`nvidia.com/gpu` or `nvidia.com/gpu.shared`, and the kubelet picks some for each container. Of each
card a pod holds the fraction devices/replicas: of memory and of cores, rounded down, so that all
devices of a card together are at most the card. Undivided cards and MIG instances are offered as
one device.
"""

import functools
import re
from typing import NamedTuple

from msgspec import UNSET

from weft.dialects.catalog import NONE
from weft.dialects.dialect import DialectSettings
from weft.dialects.nvidia import Nvidia
from weft.dialects.registry import choose
from weft.dialects.resources import (
    FULL_MILLI,
    HELD,
    ContainerSlot,
    amount,
    peak,
    slots,
    whole_cards,
)
from weft.model import (
    BadInputError,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    NodeManifest,
    PodManifest,
    PodRequest,
    Share,
)
from weft.model.annotations import PLUGIN_GPUS
from weft.model.ceilings import MOST_GPUS
from weft.model.plugin_gpus import NONE_GIVEN, GivenGpu, PluginGpus, decode_plugin_gpus

SHARED = "nvidia.com/gpu.shared"
REPLICAS = "nvidia.com/gpu.replicas"
_DEVICE = re.compile(r"nvidia\.com/(?:gpu|mig-[^/]+?)(?:\.shared)?")
_MILLIONTHS = 1_000_000


class GivenShares(NamedTuple):
    """The shares of the GPUs that the plugin gave a pod, and a sentence about them (`told`). There
    are no shares if the agent reports none, or if its report cannot be right, for the reason in
    `problem`."""

    shares: tuple[Share, ...] = ()
    told: str = ""
    problem: str = ""


@functools.lru_cache(maxsize=1024)
def is_device(resource: str) -> bool:
    """Return True for resources that count devices of NVIDIA's device plugin, such as
    `nvidia.com/gpu.shared`."""
    return _DEVICE.fullmatch(resource) is not None


def read_plugin_gpus(node: NodeManifest) -> PluginGpus:
    """Read the agent's report on the node; `BadInputError` if it cannot be read."""
    text = (node.metadata.annotations or {}).get(PLUGIN_GPUS)
    if text is None:
        return NONE_GIVEN
    try:
        return decode_plugin_gpus(text)
    except ValueError as error:
        raise BadInputError(PLUGIN_GPUS, str(error)) from None


def devices_held(pod: PodManifest, request: PodRequest) -> int:
    """Return how many devices of the plugin the pod's main containers and sidecars have together; 0
    for pods that are read as another system's."""
    named = any(is_device(name) for name, _ in request.shape.extended)
    if request.dialect != Nvidia.name and not (request.dialect == NONE.name and named):
        return 0
    return sum(_devices(slot) for slot in slots(pod) if slot.role != "init")


def given_shares(pod: PodManifest, devices: int, node: Node) -> GivenShares:
    """Return the shares of a pod that has this many devices of the plugin on this node."""
    told = NONE_GIVEN if node.called is UNSET else node.called.given
    given = told.pods.get(pod.metadata.uid, ())
    if not given:
        return GivenShares()
    if (total := sum(gpu.devices for gpu in given)) != devices:
        return GivenShares(problem=f"reports {total:,} devices, but the pod requests {devices:,}")
    gpus = {gpu.uuid: gpu for gpu in node.gpus if gpu.uuid}
    lacking = [uuid for gpu in given if (uuid := told.cards[gpu.card]) not in gpus]
    if lacking:
        more = f" and {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
        return GivenShares(problem=f"names {lacking[0]}{more}, which the node does not show")
    shares = [(_share(gpus[told.cards[each.card]], each), each) for each in given]
    shares.sort(key=lambda pair: pair[0].gpu)
    parts = [f"{_part(each)}GPU {share.gpu}" for share, each in shares]
    words = f"has {', '.join(parts)} by NVIDIA's device plugin, as its node's agent reports"
    return GivenShares(tuple(share for share, _ in shares), words)


def _part(given: GivenGpu) -> str:
    return "" if given.devices == given.replicas else f"{given.devices}/{given.replicas} of "


def anywhere(pod: PodManifest, node: Node) -> GpuRequest | None:
    """Return a GPU request for the most that a pod with `nvidia.com/gpu.shared` may hold of each
    card, used if its card is unknown; None for pods without that resource."""
    devices = peak([(slot.role, amount(slot, SHARED, HELD)) for slot in slots(pod)])
    if not devices:
        return None
    replicas = _replicas(node)
    if not replicas:  # it may have several cards, or parts of one
        return whole_cards(min(devices, MOST_GPUS))
    part = min(devices, replicas)
    millionths = -(-_MILLIONTHS * part // replicas)
    memory = GpuMemoryRequest("millionths", millionths)
    return GpuRequest(memory=memory, milli=FULL_MILLI * part // replicas)


def _devices(slot: ContainerSlot) -> int:
    asked = slot.container.resources
    names = {*(asked.limits or ()), *(asked.requests or ())}
    return sum(amount(slot, name, HELD) for name in names if is_device(name))


def _share(gpu: Gpu, given: GivenGpu) -> Share:
    part, of = given.devices, given.replicas
    return Share(0, gpu.index, gpu.memory_mib * part // of, gpu.milli * part // of, gpu.uuid)


def _replicas(node: Node) -> int:
    """Return the number of devices that each card is offered as; 0 if unknown."""
    text = node.labels.get(REPLICAS, "")
    if re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) and int(text) > 1:
        return int(text)
    devices = node.extended.get(SHARED, 0)
    cards = sum(gpu.parent is None for gpu in node.gpus)
    return devices // cards if cards and devices and devices % cards == 0 else 0


def card_of(device: str) -> str:
    """Return the UUID of the card or instance in a device's id: `GPU-…`, `GPU-…::3`, `MIG-…::0`."""
    uuid, _, replica = device.partition("::")
    return uuid if not replica or replica.isdecimal() else device


def asks_plugin(pod: PodManifest, settings: DialectSettings) -> bool:
    """Return True for pods that ask NVIDIA's device plugin for devices and no other system for
    GPUs."""
    if not any(_devices(slot) for slot in slots(pod)):
        return False
    try:
        return choose(pod, settings)[0].name in (Nvidia.name, NONE.name)
    except BadInputError:
        return False

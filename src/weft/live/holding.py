"""What a bound pod holds: from its marks, or where these say nothing, the most it may hold.

A pod whose marks name its GPUs holds exactly those. Others were placed by someone who wrote nothing
down, and whatever is not charged would be given away twice:
- whole cards (nvidia.com/gpu): that many cards without pods, the last of the node first, for Weft
  itself fills nodes from the first. Which cards the device plugin took, nobody says: keep such
  pods and shared ones on different nodes.
- a share: it is charged on every card of the node, for it may be on any of them.
- a pod that cannot be read but names a GPU resource: every card of the node, wholly.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from weft.dialects import registry
from weft.dialects.dialect import Settings
from weft.dialects.resources import GPU_RESOURCE, slots
from weft.dialects.shares import PLACEMENT, placement_of, share_on
from weft.kube.pods import Pod
from weft.live.reading import plain_shape, read_bound
from weft.model import BadInputError, Gpu, GpuClaim, Node, Placement, PodRequest, Share

IsIdle = Callable[[Gpu], bool]


class Held(NamedTuple):
    """What is charged for a pod. `why` says, where its marks did not, what was assumed."""

    placement: Placement
    why: str = ""


def placed_by_weft(pod: Pod) -> bool:
    """Whether Weft wrote where this bound pod is: for this very pod, on this very node."""
    try:
        value = json.loads((pod.metadata.annotations or {}).get(PLACEMENT, "null"))
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.get("pod") == pod.metadata.uid
        and bool(pod.spec.node_name)
        and value.get("node") == pod.spec.node_name
    )


def held_by(pod: Pod, node: Node, settings: Settings, is_idle: IsIdle) -> Held:
    """What to charge for this bound pod on its node."""
    try:
        request = read_bound(pod, settings)
    except BadInputError as error:
        return _unreadable(pod, node, error)
    known = registry.dialect(request.dialect).read(pod, request, node)
    if known is not None:
        return Held(known)
    return _guessed(request, node, is_idle)


def without_node(pod: Pod, settings: Settings) -> Held:
    """What to charge while the pod's node is not known: all but GPUs."""
    try:
        shape = read_bound(pod, settings).shape
    except BadInputError:
        shape = plain_shape(pod)
    request = PodRequest(pod.metadata.uid, pod.metadata.name, shape)
    return Held(placement_of(request, Node(pod.spec.node_name), ()))


def _guessed(request: PodRequest, node: Node, is_idle: IsIdle) -> Held:
    cards = [gpu for gpu in node.gpus if gpu.parent is None]
    idle = [gpu for gpu in reversed(cards) if is_idle(gpu)]
    shares: list[Share] = []
    lacking = 0
    for index, claim in enumerate(request.shape.claims):
        if claim.whole:
            taken, idle = idle[: claim.count], idle[claim.count :]
            lacking += claim.count - len(taken)
            shares += [share_on(index, claim, gpu) for gpu in taken]
        else:
            shares += [_upper_bound(index, claim, gpu) for gpu in cards]
    why = "does not say which GPUs it has: "
    if lacking:
        why += f"{lacking} of its whole cards are not to be had beside what is known there"
    elif any(claim.whole for claim in request.shape.claims):
        why += "the last idle cards of its node are taken to be its"
    else:
        why += "its share is charged on every card of its node"
    return Held(placement_of(request, node, shares), why)


def _upper_bound(index: int, claim: GpuClaim, gpu: Gpu) -> Share:
    """What the claim takes of this card if it is there; no more than the card has."""
    mib = min(claim.memory.mib_on(gpu.memory_mib), gpu.memory_mib)
    return Share(index, gpu.index, mib, min(claim.milli, gpu.milli), gpu.uuid)


def _unreadable(pod: Pod, node: Node, error: BadInputError) -> Held:
    request = PodRequest(pod.metadata.uid, pod.metadata.name, plain_shape(pod))
    if not _names_gpus(pod):
        return Held(placement_of(request, node, ()), f"cannot be read ({error})")
    shares = [
        Share(0, gpu.index, gpu.memory_mib, gpu.milli, gpu.uuid)
        for gpu in node.gpus
        if gpu.parent is None
    ]
    why = f"cannot be read ({error}): all GPUs of its node are taken to be its"
    return Held(placement_of(request, node, shares), why)


def _names_gpus(pod: Pod) -> bool:
    return any(
        GPU_RESOURCE.match(name)
        for slot in slots(pod)
        for asked in (slot.container.resources.limits, slot.container.resources.requests)
        for name in asked or ()
    )

"""Decides which bound pods may be moved: evicted, created again by their controller, and placed
again."""

from collections.abc import Callable

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.pod_facts import job_class_of
from weft.kube.pods import Pod
from weft.model import BadInputError, PodRequest
from weft.model.annotations import MOVABLE
from weft.model.request import LATENCY_CRITICAL

_TIED_KINDS = ("DaemonSet", "Node")
"""Owners that recreate a pod on the same node, or not at all."""


def why_it_stays(pod: Pod) -> str:
    """Return the reason why the pod may not be moved; "" if the pod itself allows it."""
    owners = pod.metadata.owner_references or ()
    controller = next((owner for owner in owners if owner.controller), None)
    if controller is None:
        return "no controller"
    if controller.kind in _TIED_KINDS:
        return "tied to its node"
    if pod.metadata.deletion_timestamp:
        return "terminating"
    if job_class_of(pod) == LATENCY_CRITICAL:
        return "latency-critical"
    if (pod.metadata.annotations or {}).get(MOVABLE) == "false":
        return f"{MOVABLE} is false"
    return "" if placed_by_weft(pod) else "not placed by Weft"


def made_anew(pod: Pod) -> Pod:
    """Return the pod as its controller would create it again: without a node."""
    return replace(pod, spec=replace(pod.spec, node_name=""))


def says_it_moves(pod: Pod) -> bool:
    """Return True if the pod's annotation allows moving it for other pods."""
    return (pod.metadata.annotations or {}).get(MOVABLE) == "true"


def said_to_move(pod: Pod, parse: Callable[[Pod], PodRequest]) -> PodRequest | UnsetType:
    """Return the request with which the pod would come again, if the pod allows moving it for
    others; unset for other pods, and for pods of a group, which start together."""
    if not says_it_moves(pod) or why_it_stays(pod):
        return UNSET
    try:
        request = parse(made_anew(pod))
    except BadInputError:
        return UNSET
    stays = request.gang or request.shape.job_class == LATENCY_CRITICAL
    return UNSET if stays else request

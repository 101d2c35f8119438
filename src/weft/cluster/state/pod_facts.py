"""Reads a pod's age and binding time, and compares two versions of a pod."""

import datetime
from collections.abc import Callable

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.cluster.state.bound_share import placed_by_weft
from weft.cluster.state.resizes import as_set_aside
from weft.dialects.catalog import AGENT_ANNOTATIONS, KEPT_NAMES
from weft.dialects.shares import encode
from weft.dialects.system import USED_ANNOTATIONS
from weft.kube.pods import Pod
from weft.model import BadInputError, Placement, PodRequest
from weft.model.annotations import CLASS, MOVABLE, PLACEMENT, PLACEMENT_COPY
from weft.model.request import LATENCY_CRITICAL


def same(known: Pod, pod: Pod) -> bool:
    """Return True if both versions of the pod request and hold the same. Most changes only concern
    its status."""
    was, now = known.metadata, pod.metadata
    return (
        known.ended == pod.ended
        and was.deletion_timestamp == now.deletion_timestamp
        and was.annotations == now.annotations
        and was.labels == now.labels
        and was.owner_references == now.owner_references
        and known.spec == pod.spec
        and as_set_aside(known).spec == as_set_aside(pod).spec
        and known.status.extended_resource_claim_status == pod.status.extended_resource_claim_status
    )


def came_as_decided(known: Pod, pod: Pod, placed: Placement) -> bool:
    """Return True if the API shows the pod exactly as this placement's Binding left it: the same
    spec except for the node, and the annotations that Weft wrote, without any that agents write."""
    known_annotations, says = known.metadata.annotations or {}, pod.metadata.annotations or {}
    text = says.get(PLACEMENT)
    return (
        all(known_annotations.get(key) == says.get(key) for key in USED_ANNOTATIONS)
        and says.keys().isdisjoint(AGENT_ANNOTATIONS)
        and KEPT_NAMES.isdisjoint(pod.metadata.labels or {})
        and KEPT_NAMES.isdisjoint(says)
        and text == encode(placed)
        and says.get(PLACEMENT_COPY, text) == text
        and replace(known.spec, node_name=placed.node) == pod.spec
    )


def bound_ns(pod: Pod) -> int:
    """Return the time of the pod's binding, or else creation, as the API shows it, nanoseconds
    since 1970; 0 if unknown."""
    return moment_ns(pod.bound_at or pod.metadata.creation_timestamp)


def moment_ns(text: str | None) -> int:
    """Return an RFC 3339 time as nanoseconds since 1970, rounded down to the second; 0 if the text
    is None or not a time."""
    try:
        return int(datetime.datetime.fromisoformat(text or "").timestamp()) * 10**9
    except ValueError:
        return 0


def job_class_of(pod: Pod) -> str:
    """Return the job class that the pod states; "" for none."""
    return (pod.metadata.annotations or {}).get(CLASS, "")


def age(pod: Pod) -> tuple[str, str]:
    """Return a sort key: the oldest pod first, those of the same age by name."""
    return pod.metadata.creation_timestamp or "", pod.metadata.name


def since(pod: Pod) -> tuple[str, str]:
    """Return a sort key: the oldest pod first, those of the same age by UID."""
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


# --- pods that may be moved -----------------------------------------------------------------------


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
    """Return the request with which the pod would be created again, if the pod allows that it is
    moved for other pods. Unset if it does not, if it may not be moved (`why_it_stays`), if it is
    latency-critical, or if it belongs to a group, whose pods start together."""
    if not says_it_moves(pod) or why_it_stays(pod):
        return UNSET
    try:
        request = parse(made_anew(pod))
    except BadInputError:
        return UNSET
    stays = request.gang or request.shape.job_class == LATENCY_CRITICAL
    return UNSET if stays else request

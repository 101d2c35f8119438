"""What a pod's object says beside what it asks: whether it is as before, since when it is there."""

import datetime

from weft.kube.pods import Pod


def same(known: Pod, pod: Pod) -> bool:
    """Whether the pod asks, holds and is the same as before. Most changes are of its status."""
    was, now = known.metadata, pod.metadata
    return (
        known.ended == pod.ended
        and was.deletion_timestamp == now.deletion_timestamp
        and was.annotations == now.annotations
        and was.labels == now.labels
        and was.owner_references == now.owner_references
        and known.spec == pod.spec
    )


def bound_ns(pod: Pod) -> int:
    """When it was bound (else made), by the API, nanoseconds since 1970; 0 where it is unknown."""
    text = pod.bound_at or pod.metadata.creation_timestamp or ""
    try:
        return int(datetime.datetime.fromisoformat(text).timestamp()) * 10**9
    except ValueError:
        return 0


def age(pod: Pod) -> tuple[str, str]:
    """The oldest first, and of those by name."""
    return pod.metadata.creation_timestamp or "", pod.metadata.name


def since(pod: Pod) -> tuple[str, str]:
    """The oldest first, and of those by UID: everybody's order."""
    return pod.metadata.creation_timestamp or "", pod.metadata.uid

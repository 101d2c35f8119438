"""Finds the pod and container that own a process, by its cgroup.

The kubelet puts every container below a cgroup that names its pod's UID. The path's spelling
depends on the kubelet's cgroup driver, and the container's part of it on the runtime:

cgroupfs   /kubepods/burstable/pod<uid>/<id>                       (cri-o: crio-<id>)
systemd    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/
           cri-containerd-<id>.scope   (crio-<id>.scope, docker-<id>.scope)

In a slice's name the UID's `-` are `_`. The part before varies (a kubelet's own cgroup root, a
kubelet that is itself in a container, a path relative to the agent's cgroup namespace) and is
ignored. If a path names several pods, the outermost counts: below its own cgroup a container can
choose names itself. /proc/<pid>/cgroup has a line for each controller with cgroup v1, one line with
v2, and both in a hybrid: the first line that names a pod counts.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

# A UID, or the hash that is a static pod's (its mirror in the API has it as an annotation).
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD = re.compile(rf"pod({_UID})|(?:[\w.-]*-)?pod({_UID})\.slice")
_CONTAINER = re.compile(r"(?:[a-z]+(?:-[a-z]+)*[-_])?([0-9a-f]{32,64})(?:\.scope)?")
_MOST_BYTES = 1 << 16


class ProcessOwner(NamedTuple):
    """A pod's UID, and the runtime's id of the container ("" for a process outside the pod's
    containers)."""

    pod_uid: str
    container_id: str = ""


def owner_of(proc: Path, pid: int) -> ProcessOwner | None:
    """Return the pod and container that own the process, from `proc` (/proc); None if no pod owns
    it, or the process has ended."""
    try:
        with (proc / str(pid) / "cgroup").open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return owner_in(text)


def pods_with_processes(proc: Path, uids: Collection[str]) -> set[str]:
    """Return which of the pods with these UIDs have a process, from `proc` (/proc)."""
    found: set[str] = set()
    for entry in proc.iterdir() if uids else ():
        owner = owner_of(proc, int(entry.name)) if entry.name.isdecimal() else None
        if owner is not None and owner.pod_uid in uids:
            found.add(owner.pod_uid)
            if len(found) == len(uids):
                break
    return found


def owner_in(text: str) -> ProcessOwner | None:
    """Return the pod and container named in the text of /proc/<pid>/cgroup; None if it names no
    pod."""
    for line in text.splitlines():
        owner = _owner_by(line.partition(":")[2].partition(":")[2])
        if owner is not None:
            return owner
    return None


def name_of(proc: Path, pid: int) -> str:
    """Return the process' name (`comm`); "" if it has ended."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def _owner_by(path: str) -> ProcessOwner | None:
    segments = path.split("/")
    for segment, inner in zip(segments, [*segments[1:], ""], strict=True):
        pod = _POD.fullmatch(segment)
        if pod:
            container = _CONTAINER.fullmatch(inner)
            uid = (pod[1] or pod[2]).replace("_", "-")
            return ProcessOwner(uid, container[1] if container else "")
    return None

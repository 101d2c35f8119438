"""Finds the containers in pods' status that ended because a GPU had no memory left. Pure.

No exit code means "out of GPU memory". The evidence is the container's own message
(`state.terminated.message`: its termination log, or its last log lines with
terminationMessagePolicy FallbackToLogsOnError), or an annotation by a program that saw it end:

    weft.dev/out-of-memory: {"end": "…", "peak_mib": 9000}

`end` is any text of at most 253 characters that differs for each end of a container. If the
annotation can be read, messages are ignored. OOMKilled does not count: then host memory ran out, or
the container reached its limit of host memory.
"""

import re

import msgspec

from weft.kube.pods import ContainerStatus, Pod, Terminated
from weft.model.annotations import OUT_OF_MEMORY
from weft.model.ceilings import MOST_GPU_MIB, MOST_LETTERS

_WORDS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "cuda_error_out_of_memory",
    "cudaerrormemoryallocation",
    "cudamalloc failed: out of memory",
    "torch.outofmemoryerror",
    "torch.cuda.outofmemoryerror",
    "cupy.cuda.memory.outofmemoryerror",
)
# In one line: JAX and TensorFlow report it for any device's memory, and name the device.
_EXHAUSTED, _A_GPU = "resource_exhausted:", re.compile(r"\b(?:gpu|cuda)")
_ALLOCATING, _GPU_POOL = "allocat", re.compile(r"\bgpu_\d+_bfc")
_KILLED, _TERMINATED = 137, 143  # by another process: the log does not say why


class OomEnd(msgspec.Struct, frozen=True, gc=False):
    """One end of a container by lack of GPU memory. `name` identifies this end: every process that
    reads the pod, at any time, finds the same name.

    `peak_mib` is the most GPU memory that the container was seen to use; 0 if unknown.
    """

    name: str
    peak_mib: int = 0


class _Mark(msgspec.Struct, frozen=True):
    """The value of the annotation `weft.dev/out-of-memory`."""

    end: str
    peak_mib: int = 0


def out_of_memory(pod: Pod) -> list[OomEnd]:
    """Return the containers' ends by lack of GPU memory: the one in the pod's annotation, else
    those that its status still shows, oldest first for each container."""
    uid, annotation, status = pod.metadata.uid, _mark(pod), pod.status
    if annotation is not None:
        return [OomEnd(f"{uid}/{annotation.end}", annotation.peak_mib)]
    ends = []
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        for number, ended in _ends(container):
            if for_want_of_memory(ended):
                ends.append(OomEnd(f"{uid}/{ended.container_id or f'{container.name}/{number}'}"))
    return ends


def _ends(status: ContainerStatus) -> list[tuple[int, Terminated]]:
    """Return the container's ends that its status still shows, each with its number from 0."""
    before, now = status.last_state.terminated, status.state.terminated
    ends = [(status.restart_count - 1, before)] if before is not None else []
    return [*ends, (status.restart_count, now)] if now is not None else ends


def for_want_of_memory(ended: Terminated) -> bool:
    """Return True if the container ended because its GPU had no memory left."""
    if ended.exit_code in (0, _KILLED, _TERMINATED) or ended.reason == "OOMKilled":
        return False
    return bool(ended.message) and _tells(ended.message.lower())


def _tells(words: str) -> bool:
    if any(phrase in words for phrase in _WORDS):
        return True
    if _EXHAUSTED not in words and "_bfc" not in words:
        return False
    for line in words.splitlines():
        _, exhausted, device = line.partition(_EXHAUSTED)
        if exhausted and _A_GPU.search(device):
            return True
        _, allocating, pool = line.partition(_ALLOCATING)
        if allocating and _GPU_POOL.search(pool):
            return True
    return False


def _mark(pod: Pod) -> _Mark | None:
    text = (pod.metadata.annotations or {}).get(OUT_OF_MEMORY, "")
    try:
        annotation = msgspec.json.decode(text, type=_Mark) if text else None
    except (msgspec.DecodeError, RecursionError):  # RecursionError: nested a thousand deep
        return None
    good = (
        annotation is not None
        and 0 < len(annotation.end) <= MOST_LETTERS
        and 0 <= annotation.peak_mib <= MOST_GPU_MIB
    )
    return annotation if good else None

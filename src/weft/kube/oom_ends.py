"""Finds containers that ended for want of GPU memory, in their pod's status. Pure.

No exit code means "the GPU has no more memory". What tells are a container's own last words
(`state.terminated.message`: what it wrote to its termination log, or its last lines of log where
its terminationMessagePolicy is FallbackToLogsOnError), or an annotation by an agent that saw it:

    weft.dev/out-of-memory: {"end": "…", "peak_mib": 9000}

`end` is anything of at most 253 characters that is another at each end. Where it stands and can be
read, last words are not looked at.

OOMKilled is no such end: there the node's own memory ran out, or the container's limit of it.
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
# In one line: JAX and TensorFlow say so of any device's memory, and which device it was.
_EXHAUSTED, _A_GPU = "resource_exhausted:", re.compile(r"\b(?:gpu|cuda)")
_ALLOCATING, _GPU_POOL = "allocat", re.compile(r"\bgpu_\d+_bfc")
_KILLED, _TERMINATED = 137, 143  # by somebody else: what stands in the log is not why


class OomEnd(msgspec.Struct, frozen=True, gc=False):
    """One end. `name` is the same whenever and by whomever it is seen, and no other end's.

    `peak_mib` is what was seen to be used at most; 0 if unknown.
    """

    name: str
    peak_mib: int = 0


class _Mark(msgspec.Struct, frozen=True):
    """The annotation."""

    end: str
    peak_mib: int = 0


def out_of_memory(pod: Pod) -> list[OomEnd]:
    """The ends that the pod's status still shows, the oldest first."""
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
    """The container's ends that are still told, each with its number, from 0."""
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

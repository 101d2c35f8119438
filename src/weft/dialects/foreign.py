"""Names GPU requests that no dialect reads: other systems', other makers', and misspelled ones.

A pod that asks in such words gets no GPU from Weft, and is told so. Where a device plugin counts
the resource by itself, any scheduler may choose the node, so Weft counts it like every extended
resource; what needs a scheduler of its own, or is in no system's vocabulary, keeps the pod waiting.
"""

import difflib
import functools
import itertools
import re
from typing import NamedTuple

from weft.dialects.catalog import NONE, RESOURCES, is_gpu_resource
from weft.dialects.kai import FRACTION, MEMORY
from weft.dialects.resources import PodWords, names_any
from weft.model import PodManifest


class ForeignSystem(NamedTuple):
    """A system whose words no dialect reads: its names, `owner` in the genitive.

    `way_out` is there where the system needs a scheduler of its own.
    """

    pattern: re.Pattern[str]
    owner: str
    way_out: str = ""


class ForeignRequest(NamedTuple):
    """One name that asks for GPUs and is not placed; `text` says whose it is and a remedy.

    `containers` name it, none where it is an annotation. `waits`: the pod stays pending for it.
    """

    name: str
    text: str
    waits: bool = False
    containers: tuple[str, ...] = ()


_SYSTEMS = (
    ForeignSystem(re.compile(r"nvidia\.com/mig-"), "NVIDIA's device plugin's, an instance of MIG"),
    ForeignSystem(
        re.compile(r"nvidia\.com/.+\.shared$"), "NVIDIA's device plugin's, a turn by time-slicing"
    ),
    ForeignSystem(re.compile(r"amd\.com/(?:gpu$|[a-z]+_nps)"), "AMD's device plugin's"),
    ForeignSystem(re.compile(r"gpu\.intel\.com/"), "Intel's device plugin's"),
    ForeignSystem(
        re.compile(r"tencent\.com/vcuda-"),
        "Tencent's GPU manager's",
        "leave the pod to a scheduler with its extender, gpu-admission",
    ),
)
_BY_NODE = " on a GPU, and only counts it by node"
ANNOTATIONS = (FRACTION, MEMORY)
"""Annotations with which KAI Scheduler's pods ask."""
_KAI_WAY_OUT = "name the schedulerName weft or kai-scheduler"
_IGNORED = ("nvidia.com/priority",)  # HAMi's: of those who share a GPU, whose kernels go first
READ = frozenset((*RESOURCES, *_IGNORED, "cpu", "memory", "ephemeral-storage"))
"""Resources that are somebody's here; most pods name no others."""
_KNOWN = (*RESOURCES, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
_ALIKE, _ALIKE_AND_GPU = 0.85, 0.75  # like `nvidia.com/gpu`: `nvidia.com/gpus` 0.97, `…/nic` 0.79
_MOST_NAMES = 16  # of one pod that are looked at; it may have thousands, and each takes its time
_MOST_LETTERS = 64


def foreign_requests(pod: PodManifest, *, by: str = NONE.name) -> list[ForeignRequest]:
    """`foreign_in` a manifest."""
    return foreign_in(PodWords(pod), by=by)


def foreign_in(words: PodWords, *, by: str) -> list[ForeignRequest]:
    """Return the pod's requests for GPUs that no dialect reads; `by` is the dialect that reads
    others.

    An annotation beside another's words is only ignored: its name alone is too common to keep a
    pod waiting.
    """
    unread = itertools.islice((name for name in words.naming if name not in READ), _MOST_NAMES)
    foreign = [request for name in unread if (request := foreign_resource(name)) is not None]
    requests = []
    for request in foreign:
        containers = [slot.container for slot in words.naming[request.name]]
        asking = tuple(c.name for c in containers if names_any(c, {request.name}))
        requests += [request._replace(containers=asking)] if asking else []
    for name in ANNOTATIONS:
        if words.annotations.get(name) and by != "kai":
            end = f"Weft does not place it; {_KAI_WAY_OUT}"
            if by != NONE.name:
                end = "next to another system's request it is ignored"
            text = f"annotation {name} is KAI Scheduler's: {end}"
            requests.append(ForeignRequest(name, text, waits=by == NONE.name))
    return requests


@functools.lru_cache(maxsize=1024)
def foreign_resource(name: str) -> ForeignRequest | None:
    """Describes a resource that asks for GPUs in words no dialect reads; None of others."""
    native = "/" not in name and "gpu" not in name.lower()
    if native or name in READ:
        return None
    for system in _SYSTEMS:
        if system.pattern.match(name):
            end = f"; {system.way_out}" if system.way_out else _BY_NODE
            text = f"{name} is {system.owner}: Weft does not place it{end}"
            return ForeignRequest(name, text, waits=bool(system.way_out))
    short = name[:_MOST_LETTERS].lower()
    dropped = is_gpu_resource(name)  # in the name space of a dialect, and counted by nobody
    called_gpu = dropped or "gpu" in name.lower()
    alike = _ALIKE_AND_GPU if called_gpu else _ALIKE
    near = difflib.get_close_matches(short, _KNOWN, n=1, cutoff=alike)
    if not (near or called_gpu):
        return None
    text = f"{name} is not a GPU resource that Weft supports: Weft does not place the pod"
    text += "" if dropped else _BY_NODE
    text += f"; did you mean {near[0]}?" if near else ""
    return ForeignRequest(name, text, waits=dropped)

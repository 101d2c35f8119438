"""Finds GPU requests that no dialect reads: of other systems or vendors, or misspelled.

A pod with such a request gets no GPU for it, and a warning. A resource that a device plugin counts
is treated like every extended resource. A resource that needs a scheduler of its own, or is named
like a dialect's resources but unknown to Weft, keeps the pod pending.
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
    """A system whose requests no dialect reads: the pattern of its resource names, and for messages
    its `owner`, such as "Intel's device plugin's".

    `way_out` is a remedy, if the system needs a scheduler of its own.
    """

    pattern: re.Pattern[str]
    owner: str
    way_out: str = ""


class ForeignRequest(NamedTuple):
    """One resource or annotation that requests GPUs and that Weft does not serve; `text` names its
    system and a remedy.

    `containers` are the names of the containers that request it, empty for an annotation. `waits`:
    the pod stays pending because of it.
    """

    name: str
    text: str
    waits: bool = False
    containers: tuple[str, ...] = ()


_SYSTEMS = (
    ForeignSystem(re.compile(r"nvidia\.com/mig-"), "NVIDIA's device plugin's, a MIG instance"),
    ForeignSystem(
        re.compile(r"nvidia\.com/.+\.shared$"),
        "NVIDIA's device plugin's, a GPU shared by time-slicing",
    ),
    ForeignSystem(re.compile(r"amd\.com/(?:gpu$|[a-z]+_nps)"), "AMD's device plugin's"),
    ForeignSystem(re.compile(r"gpu\.intel\.com/"), "Intel's device plugin's"),
    ForeignSystem(
        re.compile(r"tencent\.com/vcuda-"),
        "Tencent's GPU manager's",
        "leave the pod to a scheduler with its extender, gpu-admission",
    ),
)
_BY_NODE = " on a GPU; it only compares the amount with what each node has"
ANNOTATIONS = (FRACTION, MEMORY)
"""Annotations by which KAI Scheduler's pods request GPUs."""
_KAI_WAY_OUT = "name the schedulerName weft or kai-scheduler"
_IGNORED = ("nvidia.com/priority",)  # HAMi's: priority of kernels among pods that share a GPU
READ = frozenset((*RESOURCES, *_IGNORED, "cpu", "memory", "ephemeral-storage"))
"""Resources that a dialect or Kubernetes reads; most pods name no others."""
_KNOWN = (*RESOURCES, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
_ALIKE, _ALIKE_AND_GPU = 0.85, 0.75  # like `nvidia.com/gpu`: `nvidia.com/gpus` 0.97, `…/nic` 0.79
_MOST_NAMES = 16  # checked for one pod, which may name thousands
_MOST_LETTERS = 64


def foreign_requests(pod: PodManifest, *, by: str = NONE.name) -> list[ForeignRequest]:
    """Return the pod's requests for GPUs that no dialect reads; see `foreign_in`."""
    return foreign_in(PodWords(pod), by=by)


def foreign_in(words: PodWords, *, by: str) -> list[ForeignRequest]:
    """Return the pod's requests for GPUs that no dialect reads; `by` is the dialect that reads its
    other requests.

    An annotation next to another system's requests is only ignored: its name is too common to keep
    a pod pending.
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
    """Describe a resource by which pods request GPUs and that no dialect reads; None for any other
    resource."""
    native = "/" not in name and "gpu" not in name.lower()
    if native or name in READ:
        return None
    for system in _SYSTEMS:
        if system.pattern.match(name):
            end = f"; {system.way_out}" if system.way_out else _BY_NODE
            text = f"{name} is {system.owner}: Weft does not place it{end}"
            return ForeignRequest(name, text, waits=bool(system.way_out))
    short = name[:_MOST_LETTERS].lower()
    dropped = is_gpu_resource(name)  # named like a dialect's resources, but counted by no plugin
    called_gpu = dropped or "gpu" in name.lower()
    alike = _ALIKE_AND_GPU if called_gpu else _ALIKE
    near = difflib.get_close_matches(short, _KNOWN, n=1, cutoff=alike)
    if not (near or called_gpu):
        return None
    text = f"{name} is not a GPU resource that Weft supports: Weft does not place the pod"
    text += "" if dropped else _BY_NODE
    text += f"; did you mean {near[0]}?" if near else ""
    return ForeignRequest(name, text, waits=dropped)

"""Genius: five pod labels, no resources. Genius itself reserves nothing and goes by measured
memory.

Weft charges what the labels request (nothing with compat `exact`, as in Genius), so that two pods
cannot be promised the same free memory. Genius requires more free memory than
`genius/gpu-memory-each`, so one MiB must be free beyond the charge.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from weft.dialects.dialect import DialectSettings
from weft.dialects.nvidia import GPU
from weft.dialects.resources import (
    ContainerRequests,
    ContainerSlot,
    PodWords,
    amount,
    label_number,
    per_container,
    pod_wide,
    whole_cards,
)
from weft.dialects.system import BaseDialect, build
from weft.model import DeviceRule, GpuMemoryRequest, GpuRequest, PodRequest, Shape
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, within_priorities
from weft.model.errors import BadInputError

NUMBER = "genius/gpu-number"
EACH = "genius/gpu-memory-each"
TOTAL = "genius/gpu-memory-total"
MODEL = "genius/gpu-model"
PRIORITY = "genius/priority"

_MOST = {
    NUMBER: (MOST_GPUS, "any node"),
    EACH: (MOST_GPU_MIB, "any card"),
    TOTAL: (MOST_GPUS * MOST_GPU_MIB, "any node"),
}


class GeniusDialect(BaseDialect):
    """Genius's dialect: counts, MiB and a GPU model pattern for the pod as a whole."""

    name = "genius"
    title = "Genius"
    scheduler_names = ("genius-scheduler",)
    asking_labels = (NUMBER, EACH, TOTAL, MODEL)
    counted = (GPU,)
    asks_by_name = True
    pod_asks_as_one = True

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True if a label asks for GPUs; genius/priority alone does not."""
        return any(name in words.labels for name in self.asking_labels)

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the request by the labels; if containers request `nvidia.com/gpu` too, the larger
        of the two requests."""
        labels = words.labels
        notes: list[str] = []
        requested = {name: _number(labels, name, notes) for name in (NUMBER, EACH, TOTAL)}
        exact = settings.compat == "exact"
        gpu_requests = (_uncharged if exact else _charged)(requested, notes)
        places = words.slots
        shared = not words.asks_for((GPU,))
        layout = pod_wide(places, gpu_requests) if shared else merged(places, gpu_requests, notes)
        if not layout.gpu_requests and MODEL not in labels and not exact:
            notes.append(
                "no genius label asks for a GPU: the pod goes to any GPU node and is charged "
                f"nothing; write {NUMBER} or {EACH}"
            )
        shape = Shape(devices=_rule(labels), needs_gpu_node=not layout.gpu_requests)
        priority = _priority(labels, notes)
        shared = shared and bool(layout.gpu_requests)
        request = build(words, self.name, layout, shape=shape, shared=shared, warnings=notes)
        return replace(request, queue_priority=priority)


def merged(
    places: Sequence[ContainerSlot], gpu_requests: Sequence[GpuRequest], notes: list[str]
) -> ContainerRequests:
    """Return the larger of the containers' `nvidia.com/gpu` and the request by the pod's labels.

    Whole cards count as more than parts of as many cards. If the labels request more cards, the
    first container with `nvidia.com/gpu` gets the difference.
    """
    counts = [amount(slot, GPU) for slot in places]
    wanted = max((request.count for request in gpu_requests if not request.split), default=0)
    mains = [i for i, n in enumerate(counts) if n and places[i].role == "main"]
    missing = wanted - sum(counts[i] for i in mains)
    if mains and missing > 0:
        counts[mains[0]] += missing
    if any(gpu_request.split for gpu_request in gpu_requests):
        notes.append(f"{TOTAL} is not checked: {GPU} decides how many whole cards there are")
    return per_container(places, [whole_cards(n) if n else None for n in counts])


def _charged(requested: Mapping[str, int], notes: list[str]) -> list[GpuRequest]:
    number, each, total = requested[NUMBER], requested[EACH], requested[TOTAL]
    if each:
        if not number:
            notes.append(f"{EACH} without {NUMBER} means one GPU (the original ignores it)")
        count = number or 1
        memory = GpuMemoryRequest("mib", each)
        gpu_requests = [GpuRequest(count=count, memory=memory, headroom_mib=1)]
        rest = total - count * each
        if rest > 0:  # this much more must be free on any of the node's GPUs
            gpu_requests.append(GpuRequest(memory=GpuMemoryRequest("mib", rest), split=True))
        return gpu_requests
    if total:
        return [GpuRequest(count=number or 1, memory=GpuMemoryRequest("mib", total), split=True)]
    return [whole_cards(number)] if number else []


def _uncharged(requested: Mapping[str, int], notes: list[str]) -> list[GpuRequest]:
    """Return requests that only filter, as Genius does: so many cards, each with more than the
    requested memory free, and no charge."""
    number, each, total = requested[NUMBER], requested[EACH], requested[TOTAL]
    if total:
        # GPU requests cannot express a sum over cards that is not charged.
        notes.append(f"{TOTAL} is charged even with compat exact")
        return _charged(requested, notes)
    if each and not number:
        notes.append(f"{EACH} without {NUMBER} is ignored, as in the original")
    if not number:
        return []
    return [GpuRequest(count=number, headroom_mib=each + 1 if each else 0)]


def _rule(labels: Mapping[str, str]) -> DeviceRule:
    pattern = labels.get(MODEL, "")
    if not pattern:
        return DeviceRule()
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as broken:
        raise BadInputError(
            f"metadata.labels[{MODEL}]",
            f"{pattern!r} is not a regular expression ({broken}); write a part of the model's "
            "name, "
            "a dot for each space",
        ) from None
    return DeviceRule(models=(pattern,), how="regex")


def _number(labels: Mapping[str, str], name: str, notes: list[str]) -> int:
    most, unit = _MOST[name]
    number = label_number(labels, name, most, unit)
    if number is None and name in labels:
        notes.append(f"label {name}: {labels[name]!r} is not a whole number and counts as 0")
    return number or 0


def _priority(labels: Mapping[str, str], notes: list[str]) -> int:
    text = labels.get(PRIORITY, "0").strip()
    if not re.fullmatch(r"-?[0-9]{1,63}", text, re.ASCII):
        notes.append(f"label {PRIORITY}: {text!r} is not a whole number and counts as 0")
        return 0
    priority = within_priorities(int(text))
    if priority != int(text):
        notes.append(f"label {PRIORITY}: {text} is beyond 32 bits and counts as {priority}")
    return priority

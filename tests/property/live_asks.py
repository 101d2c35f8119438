"""Pods in the words of several systems, what each asks for, and what each holds: read off the
API's objects alone, slowly, by nothing that the scheduler itself uses."""

import datetime
import json
import math
from collections import Counter
from random import Random
from typing import Any, NamedTuple

from fakes.api_time import LoopClock

Json = dict[str, Any]
CARD_MIB, CARD_MILLI = 16_000, 1_000
ANOTHER = "default-scheduler"  # its pods kube-scheduler judges, asking Weft


class Ask(NamedTuple):
    """So many GPUs, so much of each; `spare_mib` must stay free besides."""

    count: int
    mib: int
    milli: int = 0
    whole: bool = False
    spare_mib: int = 0


def limits(amounts: dict[str, int]) -> Json:
    told = {name: str(amount) for name, amount in amounts.items()}
    return {"containers": [{"name": "c", "resources": {"limits": told}}]}


def random_spec(random: Random) -> tuple[Json, Json]:
    """A pod's spec and labels."""
    mib = random.choice((3_000, 4_000, 6_000, 8_000, 12_000))
    if random.random() < 0.25:
        labels = {"genius/gpu-number": "1", "genius/gpu-memory-each": str(mib)}
        return {"containers": [{"name": "c"}]}, labels
    asked = random.choice(
        (
            {"weft.dev/gpu-count": 1},
            {"nvidia.com/gpu": 1},
            {"elasticgpu.io/gpu-memory": mib},
            {"weft.dev/gpu-memory": mib},
            {"weft.dev/gpu-memory": mib, "weft.dev/gpu-cores": 40},
            {"weft.dev/gpu-memory": mib, "weft.dev/gpu-count": 2},
        )
    )
    return limits(asked), {}


def ask_of(pod: Json) -> Ask:
    """The pod's request, by the rules of its system."""
    labels = pod["metadata"].get("labels") or {}
    if "genius/gpu-number" in labels:
        count, mib = int(labels["genius/gpu-number"]), int(labels["genius/gpu-memory-each"])
        return Ask(count, mib, spare_mib=1)
    told = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    if "nvidia.com/gpu" in told:
        return Ask(int(told["nvidia.com/gpu"]), CARD_MIB, CARD_MILLI, whole=True)
    mib = int(told.get("weft.dev/gpu-memory", told.get("elasticgpu.io/gpu-memory", 0)))
    count = int(told.get("weft.dev/gpu-count", 1 if mib else 0))
    if count and not mib:
        return Ask(count, CARD_MIB, CARD_MILLI, whole=True)
    return Ask(count, mib, int(told.get("weft.dev/gpu-cores", 0)) * 10)


def ended(pod: Json) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Json) -> str:
    return pod["spec"].get("nodeName", "")


def waits(pod: Json) -> bool:
    """Tells whether somebody should find a node for it."""
    gone = pod["metadata"].get("deletionTimestamp")
    return not (node_of(pod) or ended(pod) or gone or pod["spec"].get("schedulingGates"))


def marks_of(pod: Json) -> list[tuple[int, int, int]] | None:
    """(GPU, MiB, milli) of each share that Weft wrote down for this pod here; None for nothing."""
    text = (pod["metadata"].get("annotations") or {}).get("weft.dev/placement")
    told = json.loads(text) if text else {}
    if told.get("pod") != pod["metadata"]["uid"] or told.get("node") != node_of(pod):
        return None
    return sorted((gpu, mib, milli) for _, gpu, mib, milli, _ in told["shares"])


def not_its_marks(pod: Json) -> str:
    """Names what is wrong with whose the marks are; "" for nothing."""
    return "its marks are another pod's or another node's" if marks_of(pod) is None else ""


def mismatch(pod: Json, *, at_least: bool = False) -> str:
    """How the marks differ from what the pod asks; "" for not at all. `at_least`: they may say
    more, of a policy that gives more than is asked."""
    ask, shares = ask_of(pod), marks_of(pod)
    if shares is None:
        return not_its_marks(pod)
    if len({gpu for gpu, _, _ in shares}) != ask.count or len(shares) != ask.count:
        return f"{shares} are not {ask.count} GPUs"
    for _, mib, milli in shares:
        exact = (mib, milli) == (ask.mib, ask.milli)
        if not exact and not (at_least and mib >= ask.mib and milli >= ask.milli):
            return f"{shares} is not what {ask} means"
    return ""


def cpu_of(pod: Json) -> int:
    """Thousandths of a core that a bound pod counts with: the most of what it asks, and what its
    node has set aside for it."""
    asked = (pod["spec"]["containers"][0].get("resources") or {}).get("requests") or {}
    said = (pod.get("status") or {}).get("containerStatuses") or []
    has = said[0]["allocatedResources"] if said else {}
    return max(int(each.get("cpu", "0m")[:-1]) for each in (asked, has))


def bound_at(pod: Json) -> str:
    """When it was bound, as the API server wrote it; "" where it did not."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    times = [one["lastTransitionTime"] for one in conditions if one["type"] == "PodScheduled"]
    return times[0] if times else ""


def bound_since_s(pod: Json) -> float:
    """For how long it is bound; for ever where the API server did not write it."""
    told = bound_at(pod)
    if not told:
        return math.inf
    return (LoopClock().wall() - datetime.datetime.fromisoformat(told)).total_seconds()


def overbooked(pods: list[Json], node: str) -> list[int]:
    """GPUs of this node that pods bound by Weft hold more than wholly."""
    memory: Counter[int] = Counter()
    milli: Counter[int] = Counter()
    for pod in pods:
        if node_of(pod) == node and not ended(pod):
            for gpu, mib, part in marks_of(pod) or ():
                memory[gpu] += mib
                milli[gpu] += part
    return [gpu for gpu in memory if memory[gpu] > CARD_MIB or milli[gpu] > CARD_MILLI]


def on_gpu(pods: list[Json], gpu: int) -> list[Json]:
    """Those of one node's pods that Weft bound to this GPU."""
    return [pod for pod in pods if any(one == gpu for one, _, _ in marks_of(pod) or ())]


def expected(pod: Json, gpus: int) -> list[tuple[int, int, int]] | None:
    """The charge of a bound pod on a node of so many GPUs; None where it is a guess.

    What it was decided to hold, whatever its labels say since. Without marks, what its resources
    ask; labels count only under the name of the scheduler that reads them.
    """
    shares, ask = marks_of(pod), ask_of(pod)
    if shares is not None:
        return shares
    labels = pod["metadata"].get("labels") or {}
    if "genius/gpu-number" in labels and pod["spec"]["schedulerName"] != "genius-scheduler":
        return []
    if ask.whole:
        return None
    return [(gpu, ask.mib, ask.milli) for gpu in range(gpus)] if ask.count else []


def fits(ask: Ask, free: list[tuple[int, int, bool]]) -> bool:
    """Tells whether GPUs with so much (MiB, milli, idle) free could take it."""
    good = [
        1
        for mib, milli, idle in free
        if mib >= ask.mib + ask.spare_mib and milli >= ask.milli and (idle or not ask.whole)
    ]
    return len(good) >= ask.count

"""Generates pods for studies of waiting: openb's requests and lifetimes, Poisson arrivals.

Pure: the same seed gives the same pods in the same order on every machine and at every load.
Requests and lifetimes are those of `generate.py`, drawn independently. No pod runs longer than a
day, which is our choice: a longer one holds its GPUs for most of a run, whose result would then
depend on that one pod."""

import random
from collections.abc import Sequence
from enum import StrEnum

from weft.lab.simulate.gang_jobs import HostSize
from weft.lab.simulate.generate import (
    CLASS_WEIGHTS,
    CLASSES,
    LIFETIMES,
    PodKind,
    WorkloadMix,
    one_of,
)
from weft.lab.simulate.openb import TracePod, shape_of
from weft.model import BadInputError

MOST_S = 86_400
NAMESPACES = 8
"""Number of namespaces that pods belong to: the first has most pods, the k-th 1/k as many."""


class PodMix(StrEnum):
    """Mixes of pods: small shares that delay large pods, or many large pods."""

    SHARES = "shares"
    MANY_GPU = "many-gpu"


_DEFAULT = CLASS_WEIGHTS[WorkloadMix.DEFAULT]
WEIGHTS = {
    PodMix.SHARES: (0, 2 * _DEFAULT[1], _DEFAULT[2], *(4 * each for each in _DEFAULT[3:])),
    PodMix.MANY_GPU: (0, *CLASS_WEIGHTS[WorkloadMix.MULTIGPU][1:]),
}
"""Weights of pods of each class in `CLASSES`: openb's with twice the shares and four times the pods
of several GPUs, or its variant with many multi-GPU pods. Pods without a GPU are left out."""


def waiting_pods(
    hosts: Sequence[HostSize],
    *,
    mix: PodMix,
    pods: int,
    load: float,
    seed: int,
    movable: float = 0,
    restart_s: int = 60,
) -> list[TracePod]:
    """Return `pods` pods by arrival; every pod fits some empty node.

    `movable` (0 to 1) is the share of pods with a part of a GPU that may be moved, and then repeat
    `restart_s` seconds; pods movable at a lower share are movable at a higher one too.
    `BadInputError` if no node has room for a pod with a GPU."""
    rng = random.Random(f"weft-waiting-{mix}-{seed}")
    classes = [
        ((gpus, fitting), weight)
        for (gpus, kinds), weight in zip(CLASSES, WEIGHTS[mix], strict=True)
        if (fitting := _fitting(hosts, gpus, kinds)) and weight
    ]
    if not classes:
        raise BadInputError("the nodes", "have no room for a pod with a GPU; use larger ones")
    of_namespaces = [(f"team-{at}", 840 // at) for at in range(1, NAMESPACES + 1)]
    drawn = []
    for _ in range(pods):
        gpus, kinds = one_of(rng, classes)
        kind, lasts_s = one_of(rng, kinds), min(LIFETIMES.at(rng.random()), MOST_S)
        drawn.append((gpus, kind, round(lasts_s), rng.expovariate(1), one_of(rng, of_namespaces)))
    moves = [rng.random() < movable for _ in drawn]
    asked_s = sum(gpus * kind.milli * lasts_s for gpus, kind, lasts_s, *_ in drawn)
    mean_gap_s = asked_s / (load * 1000 * sum(host.gpus for host in hosts)) / pods
    came_s, listed = 0.0, list[TracePod]()
    for number, (gpus, kind, lasts_s, gap, namespace) in enumerate(drawn):
        came_s += gap * mean_gap_s
        begins_s = round(came_s, 3)
        listed.append(
            TracePod(
                f"{namespace}-{number}",
                shape_of(kind.cpu_milli, kind.memory_mib, gpus, kind.milli),
                gpus,
                kind.milli,
                begins_s,
                begins_s + lasts_s,
                begins_s,
                listed_queue=namespace,
                restart_s=restart_s if moves[number] and kind.milli < 1000 else None,
            )
        )
    return listed


def _fitting(
    hosts: Sequence[HostSize], gpus: int, kinds: Sequence[PodKind]
) -> list[tuple[PodKind, int]]:
    return [
        (kind, kind.weight)
        for kind in kinds
        if any(
            host.gpus >= gpus
            and host.cpu_milli >= kind.cpu_milli
            and host.memory_mib >= kind.memory_mib
            for host in hosts
        )
    ]

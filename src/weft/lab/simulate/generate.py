"""Generates clusters and workloads like those of a published production trace, as openb CSV text.

Pure functions: the same seed gives the same text on every machine."""

import random
from collections.abc import Sequence
from typing import TypeVar

from weft.lab.simulate import generate_shapes as shapes
from weft.lab.simulate.generate_shapes import NODE_KINDS, NodeKind, PodKind, WorkloadMix
from weft.model.errors import BadInputError

_Value = TypeVar("_Value")

FULL_SIZE = 6_212
"""GPUs of the cluster that the statistics describe."""
LARGEST = 1_000_000
DEMO_GPUS = 800

NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
POD_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)


def generate_nodes(*, gpus: int | None = None, count: int | None = None, seed: int = 42) -> str:
    """Return a node list with exactly `gpus` GPUs, or with `count` nodes; models as in the trace.

    The seed shuffles which machine gets which name, since names break ties between equal nodes."""
    if gpus is not None and count is not None:
        raise BadInputError("--gpus and --count", "both set the size; give one of them")
    if count is not None:
        _check("--count", count)
        kinds = _by_count(count)
    else:
        gpus = FULL_SIZE if gpus is None else gpus
        _check("--gpus", gpus)
        kinds = _by_gpus(gpus)
    random.Random(f"weft-nodes-{seed}").shuffle(kinds)
    digits = len(str(len(kinds) - 1))
    rows = [
        f"node-{i:0{digits}d},{kind.cpu_milli},{kind.memory_mib},{kind.gpus},{kind.model}"
        for i, kind in enumerate(kinds)
    ]
    return "\n".join([NODE_HEADER, *rows]) + "\n"


def generate_pods(
    *,
    gpus: int = FULL_SIZE,
    count: int | None = None,
    mix: WorkloadMix = WorkloadMix.DEFAULT,
    load: float = 0.8,
    seed: int = 42,
) -> str:
    """Return a pod list for a cluster of `gpus` GPUs: `count` pods, or as many as ask for all of
    them.

    Times are seconds. Arrivals are a Poisson process whose rate makes GPU request × lifetime `load`
    of the cluster's GPU time. Every pod fits an empty node of `generate_nodes(gpus=gpus)`."""
    _check("--gpus", gpus)
    if count is not None:
        _check("--count", count)
    if not 0 < load <= 100:
        raise BadInputError("--load", f"{load:g} is not a share of the cluster; write e.g. 0.8")
    rng = random.Random(f"weft-pods-{seed}")
    machines = set(_by_gpus(gpus))
    pods = _draw_pods(rng, gpus, count, mix, machines)
    lifetimes = [shapes.LIFETIMES.at(rng.random()) for _ in pods]
    milli_s = sum(n * kind.milli * life for (n, kind), life in zip(pods, lifetimes, strict=True))
    span = milli_s / (load * gpus * 1000) or 60.0 * len(pods)
    arrivals = sorted(rng.random() * span for _ in pods)
    digits = len(str(len(pods) - 1))
    rows = []
    for i, ((n, kind), lifetime) in enumerate(zip(pods, lifetimes, strict=True)):
        spec = _spec(rng, _hosts(machines, n, kind)) if mix is WorkloadMix.SPEC and n else ""
        created = round(arrivals[i])
        started = created + round(shapes.WAITS.at(rng.random()))
        ended = started + max(1, round(lifetime))
        rows.append(
            f"pod-{i:0{digits}d},{kind.cpu_milli},{kind.memory_mib},{n},{kind.milli},{spec},"
            f"{kind.qos},{_one_of(rng, shapes.PHASES)},{created},{ended},{started}"
        )
    return "\n".join([POD_HEADER, *rows]) + "\n"


def demo_cluster(seed: int = 42) -> tuple[str, str]:
    """Return a node list and a pod list small enough to compare seven policies in half a minute.

    800 GPUs on about 160 nodes; about 1,050 pods that together ask for all GPUs."""
    return generate_nodes(gpus=DEMO_GPUS, seed=seed), generate_pods(gpus=DEMO_GPUS, seed=seed)


def _check(option: str, value: int) -> None:
    if not 1 <= value <= LARGEST:
        raise BadInputError(option, f"{value} is not between 1 and {LARGEST:,}")


def _by_count(count: int) -> list[NodeKind]:
    """Return `count` nodes in the trace's proportions: whole shares first, then largest
    remainders."""
    total = sum(kind.weight for kind in NODE_KINDS)
    shares = [kind.weight * count / total for kind in NODE_KINDS]
    numbers = [int(share) for share in shares]
    missing = count - sum(numbers)
    for i in _largest_remainders(shares)[:missing]:
        numbers[i] += 1
    return _repeat(numbers)


def _by_gpus(gpus: int) -> list[NodeKind]:
    """Return nodes with `gpus` GPUs in total, as close to the trace's proportions as whole nodes
    allow."""
    shares = [kind.weight * gpus / FULL_SIZE for kind in NODE_KINDS]
    numbers = [int(share) for share in shares]
    missing = gpus - sum(n * kind.gpus for n, kind in zip(numbers, NODE_KINDS, strict=True))
    order = _largest_remainders(shares)
    while missing:
        for i in order:
            if NODE_KINDS[i].gpus <= missing:
                numbers[i] += 1
                missing -= NODE_KINDS[i].gpus
    return _repeat(numbers)


def _largest_remainders(shares: list[float]) -> list[int]:
    return sorted(range(len(shares)), key=lambda i: int(shares[i]) - shares[i])


def _repeat(numbers: list[int]) -> list[NodeKind]:
    return [kind for n, kind in zip(numbers, NODE_KINDS, strict=True) for _ in range(n)]


def _draw_pods(
    rng: random.Random, gpus: int, count: int | None, mix: WorkloadMix, machines: set[NodeKind]
) -> list[tuple[int, PodKind]]:
    """Draw each pod's GPU count and request, its class first; only pods that some machine can
    hold."""
    classes = []
    for (n, kinds), weight in zip(shapes.CLASSES, shapes.CLASS_WEIGHTS[mix], strict=True):
        fitting = [(kind, kind.weight) for kind in kinds if _hosts(machines, n, kind)]
        if fitting:
            classes.append(((n, fitting), weight))
    pods: list[tuple[int, PodKind]] = []
    drawn_milli = 0
    while drawn_milli < gpus * 1000 if count is None else len(pods) < count:
        n, fitting = _one_of(rng, classes)
        kind = _one_of(rng, fitting)
        pods.append((n, kind))
        drawn_milli += n * kind.milli
    return pods


def _hosts(machines: set[NodeKind], gpus: int, pod: PodKind) -> set[str]:
    """Return the models of machines that can hold such a pod when empty."""
    large = (m for m in machines if m.gpus >= gpus and m.memory_mib >= pod.memory_mib)
    return {machine.model for machine in large if machine.cpu_milli >= pod.cpu_milli}


def _spec(rng: random.Random, models: set[str]) -> str:
    """Draw the models that a pod requires ("" for any), at least one of them in `models`."""
    fitting = [(s, weight) for s, weight in shapes.SPECS if not s or models & set(s.split("|"))]
    return _one_of(rng, fitting)


def _one_of(rng: random.Random, weighted: Sequence[tuple[_Value, int]]) -> _Value:
    """Draw one value by weight."""
    mark = rng.randrange(sum(weight for _, weight in weighted))
    for value, weight in weighted:
        mark -= weight
        if mark < 0:
            return value
    raise AssertionError("weights sum to more than the mark")

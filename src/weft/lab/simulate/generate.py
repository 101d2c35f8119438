"""Generates clusters and workloads like those of a published production trace, as openb CSV text.

Pure functions: the same seed gives the same text on every machine."""

import random
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec

from weft.model.errors import BadInputError

# --- Shapes of generated clusters and workloads: summaries of a published production trace --------
#
# Shares and sizes follow the statistics of Alibaba's cluster-trace-gpu-v2023 (openb): 1,213 GPU
# nodes, 8,152 pods. A weight is how often a shape occurs there. Shapes below 1 % of their class and
# lifetimes above ten days are mostly left out.


class WorkloadMix(StrEnum):
    """The mix of pods in a workload."""

    DEFAULT = "default"
    MULTIGPU = "multigpu"
    SHARED = "shared"
    SPEC = "spec"


class NodeKind(msgspec.Struct, frozen=True):
    """A machine type, of which a cluster of 6,212 GPUs has `weight` nodes."""

    weight: int
    model: str
    gpus: int
    cpu_milli: int
    memory_mib: int


def _kind(weight: int, model: str, gpus: int, cpus: int, gib: int) -> NodeKind:
    return NodeKind(weight, model, gpus, cpus * 1000, gib * 1024)


NODE_KINDS = (
    _kind(549, "G2", 8, 96, 384),
    _kind(387, "T4", 2, 104, 512),
    _kind(17, "T4", 4, 96, 384),
    _kind(39, "G3", 8, 128, 768),
    _kind(107, "P100", 2, 16, 120),
    _kind(22, "P100", 2, 64, 256),
    _kind(2, "P100", 2, 8, 60),
    _kind(3, "P100", 1, 8, 60),
    _kind(21, "V100M32", 8, 96, 768),
    _kind(9, "V100M32", 4, 48, 368),
    _kind(28, "V100M16", 4, 32, 128),
    _kind(19, "V100M16", 1, 8, 32),
    _kind(7, "V100M16", 8, 64, 256),
    _kind(1, "V100M16", 8, 82, 336),
    _kind(2, "A10", 1, 128, 1024),
)


class PodKind(msgspec.Struct, frozen=True):
    """A common request: CPU and memory are correlated with the GPU share, as in the trace."""

    weight: int
    cpu_milli: int
    memory_mib: int
    milli: int
    qos: str


def _kinds(*rows: tuple[int, int, int, int, str]) -> tuple[PodKind, ...]:
    return tuple(PodKind(*row) for row in rows)


SHARED = _kinds(
    (1047, 3152, 5600, 810, "BE"),
    (31, 4152, 10600, 810, "BE"),
    (388, 11908, 47104, 470, "LS"),
    (360, 8000, 30517, 470, "BE"),
    (115, 4000, 22888, 320, "BE"),
    (80, 4000, 15258, 320, "BE"),
    (74, 8000, 30517, 320, "BE"),
    (59, 4000, 30517, 320, "BE"),
    (237, 11908, 47104, 650, "LS"),
    (16, 8000, 30517, 650, "BE"),
    (84, 4000, 30517, 230, "BE"),
    (38, 4000, 22888, 230, "BE"),
    (18, 8000, 30517, 230, "BE"),
    (62, 6000, 6144, 460, "LS"),
    (36, 6000, 12288, 460, "LS"),
    (30, 6000, 18432, 460, "LS"),
    (75, 3152, 5600, 590, "BE"),
    (54, 4000, 15258, 160, "BE"),
    (20, 6000, 22888, 160, "BE"),
    (72, 4152, 10600, 550, "BE"),
    (32, 4000, 15258, 220, "BE"),
    (30, 8000, 30517, 220, "BE"),
    (47, 4152, 10600, 370, "BE"),
    (26, 4000, 22888, 110, "BE"),
    (22, 4000, 22888, 480, "BE"),
    (18, 4000, 22888, 340, "BE"),
    (7, 6000, 22888, 50, "BE"),
)
"""Shares of one GPU, most frequent sizes first: 810, 470, 320, 650, 230, 460, 590 milli, …"""

WHOLE = _kinds(
    (857, 11300, 49152, 1000, "LS"),
    (534, 11400, 48128, 1000, "LS"),
    (470, 3152, 5600, 1000, "BE"),
    (255, 18708, 64512, 1000, "LS"),
    (195, 9810, 41560, 1000, "LS"),
    (103, 12000, 24576, 1000, "LS"),
    (55, 12000, 24576, 1000, "Burstable"),
    (158, 15700, 58368, 1000, "LS"),
    (153, 11908, 47104, 1000, "BE"),
    (108, 16000, 32768, 1000, "LS"),
    (104, 8000, 16384, 1000, "LS"),
    (104, 4000, 24576, 1000, "LS"),
    (99, 12000, 16384, 1000, "LS"),
    (93, 14200, 58368, 1000, "LS"),
    (84, 24200, 93184, 1000, "LS"),
    (65, 11400, 77824, 1000, "LS"),
    (55, 8000, 32768, 1000, "LS"),
    (51, 11900, 77824, 1000, "LS"),
    (44, 12000, 15360, 1000, "LS"),
    (41, 8200, 33792, 1000, "LS"),
    (40, 4000, 31250, 1000, "LS"),
    (36, 15200, 80896, 1000, "LS"),
)
TWO = _kinds(
    (7, 16200, 66560, 1000, "LS"),
    (3, 6000, 65536, 1000, "LS"),
    (3, 30200, 160768, 1000, "LS"),
    (2, 17400, 43008, 1000, "LS"),
    (1, 14000, 60000, 1000, "Burstable"),
)
FOUR = _kinds(
    (9, 32200, 132096, 1000, "LS"),
    (3, 32000, 131072, 1000, "LS"),
    (3, 60200, 320512, 1000, "LS"),
)
EIGHT = _kinds(
    (18, 88000, 327680, 1000, "Burstable"),
    (18, 64200, 263168, 1000, "LS"),
    (3, 120000, 737280, 1000, "Burstable"),
    (3, 64000, 262144, 1000, "LS"),
    (2, 120200, 640000, 1000, "LS"),
)
CPU_ONLY = _kinds(
    (364, 12500, 57344, 0, "LS"),
    (284, 32000, 49152, 0, "BE"),
    (163, 8000, 30517, 0, "BE"),
    (120, 15400, 51200, 0, "LS"),
    (95, 16500, 51200, 0, "LS"),
    (62, 8000, 15625, 0, "LS"),
)

CLASSES = ((0, CPU_ONLY), (1, SHARED), (1, WHOLE), (2, TWO), (4, FOUR), (8, EIGHT))
"""GPUs per pod, and the requests of pods with this number of GPUs."""

CLASS_WEIGHTS = {
    WorkloadMix.DEFAULT: (1088, 3078, 3911, 16, 15, 44),
    WorkloadMix.MULTIGPU: (1088, 3078, 3911, 222, 206, 556),
    WorkloadMix.SHARED: (1088, 7064, 0, 0, 0, 0),
    WorkloadMix.SPEC: (1088, 3078, 3911, 16, 15, 44),
}
"""Pods of each class in `CLASSES`, for the trace's four variants."""

SPECS = (
    ("", 4676),
    ("T4", 1291),
    ("G2", 331),
    ("P100", 279),
    ("V100M16|V100M32", 163),
    ("P100|V100M16|V100M32", 103),
    ("G3", 86),
    ("G2|P100|T4|V100M16|V100M32", 42),
    ("P100|T4|V100M16|V100M32", 36),
    ("A10|G2|T4|V100M16|V100M32", 27),
    ("V100M32", 20),
    ("A10|T4", 6),
    ("P100|V100M16", 4),
)
"""GPU models that pods of the mix `spec` require, with weights; "": any model, for two of three."""

PHASES = (("Running", 5193), ("Failed", 1870), ("Succeeded", 192))


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution of seconds, given by its quantiles and log-linear between them."""

    shares: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the value below which `share` (0 to 1) of the distribution lies."""
        i = min(max(bisect_right(self.shares, share) - 1, 0), len(self.shares) - 2)
        low, high = self.shares[i], self.shares[i + 1]
        ratio: float = self.seconds[i + 1] / self.seconds[i]
        grown: float = self.seconds[i] * ratio ** ((share - low) / (high - low))
        return grown


LIFETIMES = Quantiles(
    (0, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1),
    (4, 23, 50, 73, 175, 616, 2_241, 7_764, 18_064, 114_348, 864_000),
)
"""Seconds from start to end. Half the pods end within ten minutes, 1 % run for over a day."""

WAITS = Quantiles(
    (0, 0.30, 0.50, 0.75, 0.90, 0.95, 0.99, 1),
    (0.3, 1.4, 2, 35, 106, 241, 890, 14_330),
)
"""Seconds from creation to start."""

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
        raise BadInputError("--gpus and --count", "both set the size; specify only one")
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
    """Return a pod list for a cluster of `gpus` GPUs: `count` pods, or as many as request all GPUs.

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
    lifetimes = [LIFETIMES.at(rng.random()) for _ in pods]
    milli_s = sum(n * kind.milli * life for (n, kind), life in zip(pods, lifetimes, strict=True))
    span = milli_s / (load * gpus * 1000) or 60.0 * len(pods)
    arrivals = sorted(rng.random() * span for _ in pods)
    digits = len(str(len(pods) - 1))
    rows = []
    for i, ((n, kind), lifetime) in enumerate(zip(pods, lifetimes, strict=True)):
        spec = _spec(rng, _hosts(machines, n, kind)) if mix is WorkloadMix.SPEC and n else ""
        created = round(arrivals[i])
        started = created + round(WAITS.at(rng.random()))
        ended = started + max(1, round(lifetime))
        rows.append(
            f"pod-{i:0{digits}d},{kind.cpu_milli},{kind.memory_mib},{n},{kind.milli},{spec},"
            f"{kind.qos},{one_of(rng, PHASES)},{created},{ended},{started}"
        )
    return "\n".join([POD_HEADER, *rows]) + "\n"


def demo_cluster(seed: int = 42) -> tuple[str, str]:
    """Return a node list and a pod list small enough to compare seven policies in half a minute.

    800 GPUs on about 160 nodes; about 1,050 pods that together request all GPUs."""
    return generate_nodes(gpus=DEMO_GPUS, seed=seed), generate_pods(gpus=DEMO_GPUS, seed=seed)


def _check(option: str, value: int) -> None:
    if not 1 <= value <= LARGEST:
        raise BadInputError(option, f"{value} is not between 1 and {LARGEST:,}")


def _by_count(count: int) -> list[NodeKind]:
    """Return `count` nodes in the trace's proportions, rounded by largest remainders."""
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
    """Draw each pod's GPU count, then its request; only pods that fit some machine."""
    classes = []
    for (n, kinds), weight in zip(CLASSES, CLASS_WEIGHTS[mix], strict=True):
        fitting = [(kind, kind.weight) for kind in kinds if _hosts(machines, n, kind)]
        if fitting:
            classes.append(((n, fitting), weight))
    pods: list[tuple[int, PodKind]] = []
    drawn_milli = 0
    while drawn_milli < gpus * 1000 if count is None else len(pods) < count:
        n, fitting = one_of(rng, classes)
        kind = one_of(rng, fitting)
        pods.append((n, kind))
        drawn_milli += n * kind.milli
    return pods


def _hosts(machines: set[NodeKind], gpus: int, pod: PodKind) -> set[str]:
    """Return the GPU models of machines on which the pod fits when they are empty."""
    large = (m for m in machines if m.gpus >= gpus and m.memory_mib >= pod.memory_mib)
    return {machine.model for machine in large if machine.cpu_milli >= pod.cpu_milli}


def _spec(rng: random.Random, models: set[str]) -> str:
    """Draw the models that a pod requires ("" for any), at least one of them in `models`."""
    fitting = [(s, weight) for s, weight in SPECS if not s or models & set(s.split("|"))]
    return one_of(rng, fitting)


def one_of(rng: random.Random, weighted: Sequence[tuple[_Value, int]]) -> _Value:
    """Draw one value with probability proportional to its weight."""
    mark = rng.randrange(sum(weight for _, weight in weighted))
    for value, weight in weighted:
        mark -= weight
        if mark < 0:
            return value
    raise AssertionError("the mark is less than the sum of the weights")

"""Shapes of generated clusters and workloads: summaries of a published production trace.

Shares and sizes follow the statistics of Alibaba's cluster-trace-gpu-v2023 (openb): 1,213 GPU
nodes, 8,152 pods. A weight is how often a shape occurs there. Shapes below 1 % of their class and
lifetimes above ten days are mostly left out."""

from bisect import bisect_right
from enum import StrEnum

import msgspec


class WorkloadMix(StrEnum):
    """The mix of pods in a workload."""

    DEFAULT = "default"
    MULTIGPU = "multigpu"
    SHARED = "shared"
    SPEC = "spec"


class NodeKind(msgspec.Struct, frozen=True):
    """A machine type; a cluster of 6,212 GPUs has `weight` such nodes."""

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
"""GPUs per pod, and the requests of pods in that class."""

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
"""GPU models required by pods of the mix `spec`, with weights; one pod in three requires any."""

PHASES = (("Running", 5193), ("Failed", 1870), ("Succeeded", 192))


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution of seconds by its quantiles, log-linear in between."""

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

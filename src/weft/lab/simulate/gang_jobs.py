"""Generates jobs of one or many pods, with sizes and durations like those of Philly.

Pure: the same seed gives the same jobs on every machine. Sources of the numbers:

- Sizes: Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads*
  (USENIX ATC'19), describe Philly's jobs of 1, 2 to 4, 5 to 8 and more GPUs. Narayanan et al.,
  *Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads* (Gavel, OSDI'20),
  section 7.1, derive shares from it: 70 % of jobs have one worker, 25 % two to four (their
  generator: 10 % two, 15 % four), 5 % eight. Of these 5 %, we give a fifth 16 and a tenth 32
  workers: our choice, since no share above eight is published.
- Durations: Gavel's, section 7.1: 10^x minutes, x uniform in [1.5, 3] for 80 % of jobs and in [3,
  4] for 20 %.
- Larger jobs run longer (Jeon et al., figure 2). By how much is our choice: the share of jobs in
  [3, 4] grows with the size, and stays near 20 % over all jobs.
- Requests: those of openb's pods with one GPU or a share of a GPU (`generate.py`). All pods of a
  job have the same request and arrive together."""

import random
from collections.abc import Sequence

import msgspec

from weft.lab.simulate.generate import SHARED, WHOLE, PodKind, one_of
from weft.lab.simulate.openb import LISTED, TracePod, shape_of
from weft.model import BadInputError, Gang, Node

SIZES = ((1, 700), (2, 100), (4, 150), (8, 35), (16, 10), (32, 5))
"""(Pods per job, number of such jobs in a thousand)."""
LONG_SHARES = {1: 0.15, 2: 0.25, 4: 0.25, 8: 0.35, 16: 0.45, 32: 0.45}
"""Share of jobs of each size that last 10^3 to 10^4 minutes; the others last 10^1.5 to 10^3."""
SHARED_RATIO = 0.44
"""Share of jobs whose pods request a share of a GPU: 3,078 of openb's 6,989 pods with one GPU."""


class HostSize(msgspec.Struct, frozen=True):
    """A node: GPUs, CPU in thousandths of a core, memory in MiB."""

    gpus: int
    cpu_milli: int
    memory_mib: int

    @classmethod
    def of(cls, node: Node) -> "HostSize":
        """Return the size of this node."""
        return cls(len(node.gpus), node.cpu_milli, node.memory_mib)

    def room_for(self, pod: PodKind) -> int:
        """Return how many pods of this kind fit on the empty node."""
        by_gpu = self.gpus * (1000 // pod.milli)
        return min(
            by_gpu, self.cpu_milli // pod.cpu_milli, self.memory_mib // max(1, pod.memory_mib)
        )


def gang_jobs(
    hosts: Sequence[HostSize],
    *,
    jobs: int,
    load: float,
    seed: int,
    shared_ratio: float = SHARED_RATIO,
) -> list[TracePod]:
    """Return the pods of `jobs` jobs by arrival; the pods of a job with several are a gang.

    Arrivals are a Poisson process whose rate makes GPU request × duration `load` of the GPUs' time.
    A seed's jobs and their order are the same at every load. Every job fits the empty cluster;
    `BadInputError` if the nodes have no room for any pod."""
    rng = random.Random(f"weft-gangs-{seed}")
    room: dict[PodKind, int] = {}

    def fits(kind: PodKind, size: int) -> bool:
        if kind not in room:
            room[kind] = sum(host.room_for(kind) for host in hosts)
        return room[kind] >= size

    if not any(fits(kind, 1) for kind in (*SHARED, *WHOLE)):
        raise BadInputError("the nodes", "have no room for a pod of one GPU; use larger ones")
    drawn: list[tuple[int, PodKind, float, float]] = []
    while len(drawn) < jobs:
        size = one_of(rng, SIZES)
        kinds = SHARED if rng.random() < shared_ratio else WHOLE
        kind = one_of(rng, [(kind, kind.weight) for kind in kinds])
        is_long, at, gap = rng.random() < LONG_SHARES[size], rng.random(), rng.expovariate(1.0)
        if fits(kind, size):
            minutes = 10 ** (3 + at if is_long else 1.5 + 1.5 * at)
            drawn.append((size, kind, 60 * minutes, gap))
    asked_s = sum(size * kind.milli * lasts_s for size, kind, lasts_s, _ in drawn)
    mean_gap_s = asked_s / (load * 1000 * sum(host.gpus for host in hosts)) / jobs
    pods: list[TracePod] = []
    came_s = 0.0
    for number, (size, kind, lasts_s, gap) in enumerate(drawn):
        came_s += gap * mean_gap_s
        pods += _pods_of(f"job-{number}", size, kind, round(came_s), round(lasts_s))
    return pods


def _pods_of(name: str, size: int, kind: PodKind, came_s: int, lasts_s: int) -> list[TracePod]:
    shape = shape_of(kind.cpu_milli, kind.memory_mib, 1, kind.milli)
    gang = Gang(LISTED, "default", name, size) if size > 1 else None
    names = [name] if size == 1 else [f"{name}-{at}" for at in range(size)]
    times = came_s, came_s + lasts_s, came_s
    return [TracePod(each, shape, 1, kind.milli, *times, listed_gang=gang) for each in names]

"""Workloads modelled on Kube-Knots' (CLUSTER'19): mixes of Rodinia and Djinn & Tonic; training.

The paper names the programs, the mixes, arrivals and the threshold of 150 ms, but no program's
memory or load. Ours are invented to match its statements: batch programs use all of their memory 6
% of the time, their load peaks far above its median, a query takes little of a GPU and an image
query 90 ms, 80 % of batch jobs are short and use 20 % of the time. So compare policies by these
workloads, but not exact values with the paper's."""

import random

import msgspec

from weft.lab.simulate.sharing.gpus import power_of
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase, QueryStream
from weft.model import Gpu, Node
from weft.model.request import BATCH, LATENCY_CRITICAL

P100_MIB = 16_280
QUERY_LIMIT_MS = 150
P100 = power_of("P100")
"""Power of a P100, linear in utilisation as in Kube-Knots' paper."""
SHORT_SHARE, SHORT_FACTOR, LONG_FACTOR = 0.8, 0.25, 4.0
"""80 % of batch jobs take a quarter of the mean time, the others four times the mean, so that short
jobs take a fifth of all time."""
BATCH_SHARE = 12_951 / (12_951 + 11_089)
"""Share of batch jobs in the trace from which Kube-Knots' paper takes arrivals."""


class BatchProgram(msgspec.Struct, frozen=True):
    """A batch program: memory and load of its plateau and of its short peaks, and mean seconds."""

    name: str
    seconds: float
    plateau_mib: int
    peak_mib: int
    plateau_ratio: float
    peak_ratio: float


class QueryProgram(msgspec.Struct, frozen=True):
    """A service: its memory, request and load, and milliseconds of one query alone."""

    name: str
    memory_mib: int
    asks_mib: int
    ratio: float
    query_ms: float


class KnotsMix(msgspec.Struct, frozen=True):
    """A mix of applications: `load` is seconds of work alone that arrive per second and GPU,
    `sigma` the burstiness of arrivals."""

    batch: tuple[str, ...]
    queries: tuple[str, ...]
    load: float
    sigma: float


_BATCH = [
    BatchProgram("leukocyte", 240, 1_500, 3_200, 0.70, 1.0),
    BatchProgram("heartwall", 200, 1_900, 4_000, 0.60, 1.0),
    BatchProgram("particlefilter", 160, 900, 2_600, 0.30, 1.0),
    BatchProgram("mummergpu", 220, 2_400, 5_000, 0.50, 0.9),
    BatchProgram("pathfinder", 150, 1_300, 3_100, 0.30, 0.9),
    BatchProgram("lud", 180, 700, 1_800, 0.45, 1.0),
    BatchProgram("kmeans", 140, 1_600, 3_900, 0.25, 0.8),
    BatchProgram("streamcluster", 210, 1_100, 2_800, 0.30, 0.9),
    BatchProgram("myocyte", 170, 500, 1_400, 0.10, 0.6),
]
_QUERIES = [
    QueryProgram("face", 1_500, 4_000, 0.20, 60),
    QueryProgram("key", 800, 2_400, 0.10, 40),
    QueryProgram("chk", 600, 2_000, 0.08, 30),
    QueryProgram("ner", 600, 2_000, 0.08, 30),
    QueryProgram("pos", 600, 2_000, 0.08, 35),
    QueryProgram("imc", 2_400, 6_500, 0.25, 90),
]
BATCH_PROGRAMS = {program.name: program for program in _BATCH}
QUERY_PROGRAMS = {program.name: program for program in _QUERIES}
MIXES = {
    1: KnotsMix(
        ("leukocyte", "heartwall", "particlefilter", "mummergpu"), ("face", "key"), 1.0, 0.6
    ),
    2: KnotsMix(("pathfinder", "lud", "kmeans", "streamcluster"), ("chk", "ner", "pos"), 0.7, 1.0),
    3: KnotsMix(("particlefilter", "streamcluster", "lud", "myocyte"), ("imc", "face"), 0.4, 1.6),
}
"""Programs, load (high, medium, low) and variation (low, medium, high) as in Kube-Knots' table."""
SERVICE_S = 120.0
"""Lifetime of a service in the mixes."""
QUERIES_EACH_S = 5.0
START_NS = SECOND_NS
"""Delay of a container's start: in Kube-Knots' set-up images and frameworks are loaded already."""
PEAK_SHARE = 0.06
TRAINING_S, TRAINING_SIGMA = 5_400.0, 1.2
"""Median and sigma of training jobs' time alone (log-normal, as Tiresias' trace is described)."""

GPUS_OF_TRAINING = 1, 1, 1, 2, 4, 8
"""GPUs of a training job: half take one, a sixth each two, four and eight, like the sixty jobs
published with Tiresias' simulator, which Kube-Knots' paper uses."""


def cluster(gpus: int, of_node: int, model: str = "P100") -> tuple[Node, ...]:
    """Return nodes with `gpus` GPUs in total, `of_node` on each node; the last may have fewer."""
    return tuple(
        Node(
            f"node-{first // of_node:03d}",
            tuple(Gpu(at, P100_MIB, model) for at in range(min(of_node, gpus - first))),
            cpu_milli=48_000,
            memory_mib=192 * 1024,
        )
        for first in range(0, gpus, of_node)
    )


def mix_jobs(mix: int, count: int, seed: int) -> tuple[Job, ...]:
    """Return `count` jobs of an application mix, all arriving at 0; callers draw arrival times."""
    rng = random.Random(f"weft-knots-mix-{mix}-{seed}")
    chosen = MIXES[mix]
    made = []
    for number in range(count):
        if rng.random() < BATCH_SHARE:
            program = BATCH_PROGRAMS[rng.choice(chosen.batch)]
            factor = SHORT_FACTOR if rng.random() < SHORT_SHARE else LONG_FACTOR
            made.append(batch_job(program, f"job-{number:05d}", factor * rng.uniform(0.8, 1.2)))
        else:
            service = QUERY_PROGRAMS[rng.choice(chosen.queries)]
            seconds = SERVICE_S * rng.uniform(0.5, 1.5)
            made.append(service_job(service, f"job-{number:05d}", seconds))
    return tuple(made)


def batch_job(program: BatchProgram, uid: str, factor: float = 1.0) -> Job:
    """Return a run of a batch program, `factor` times its mean length: two thirds at its plateau, a
    peak of 6 % of its time, then the plateau again."""
    total = program.seconds * factor
    plateau = program.plateau_mib, program.plateau_ratio
    peak = program.peak_mib, program.peak_ratio
    parts = (
        (0.02, program.plateau_mib // 4, 0.02),
        (0.62, *plateau),
        (PEAK_SHARE, *peak),
        (0.30, *plateau),
    )
    phases = tuple(_phase(total * share, mib, ratio) for share, mib, ratio in parts)
    return Job(uid, program.name, 0, program.peak_mib, phases, START_NS, job_class=BATCH)


def service_job(program: QueryProgram, uid: str, seconds: float) -> Job:
    """Return a job of a service that answers queries for `seconds`."""
    queries = QueryStream(round(program.query_ms * 1e6), QUERY_LIMIT_MS * 1_000_000, QUERIES_EACH_S)
    phases = (_phase(seconds, program.memory_mib, program.ratio),)
    return Job(
        uid,
        program.name,
        0,
        program.asks_mib,
        phases,
        START_NS,
        job_class=LATENCY_CRITICAL,
        queries=queries,
    )


def training_jobs(training: int, inference: int, seed: int) -> tuple[Job, ...]:
    """Return training and inference jobs as simulated in Kube-Knots' paper, in random order, all
    arriving at 0."""
    rng = random.Random(f"weft-knots-training-{seed}")
    order = [True] * training + [False] * inference
    rng.shuffle(order)
    return tuple(
        _training_job(rng, f"dlt-{number:05d}") if trains else _inference_job(rng, number)
        for number, trains in enumerate(order)
    )


def workers_of(job: Job, seed: int) -> tuple[Job, ...]:
    """Return one single-GPU job per GPU of the job, all with the job's arrival time."""
    if job.job_class != BATCH:
        return (job,)
    gpus = random.Random(f"weft-knots-gpus-{seed}-{job.uid}").choice(GPUS_OF_TRAINING)
    return tuple(msgspec.structs.replace(job, uid=f"{job.uid}-{number}") for number in range(gpus))


def _training_job(rng: random.Random, uid: str) -> Job:
    seconds = min(43_200.0, TRAINING_S * rng.lognormvariate(0.0, TRAINING_SIGMA))
    plateau_mib, ratio = rng.randrange(2_000, 9_000, 100), rng.uniform(0.35, 0.85)
    peak_mib = round(plateau_mib * rng.uniform(1.05, 1.5))
    asks_mib = min(P100_MIB, round(peak_mib * rng.uniform(1.0, 1.4)))
    kind = f"train-{plateau_mib // 1000}g"
    phases = (
        _phase(min(30.0, seconds * 0.1), plateau_mib // 3, 0.05),
        _phase(seconds * 0.6, plateau_mib, ratio),
        _phase(seconds * 0.05, peak_mib, min(1.0, ratio * 1.2)),
        _phase(seconds * 0.35, plateau_mib, ratio),
    )
    return Job(uid, kind, 0, asks_mib, phases, 4 * SECOND_NS, job_class=BATCH)


def _inference_job(rng: random.Random, number: int) -> Job:
    service = QUERY_PROGRAMS[rng.choice(sorted(QUERY_PROGRAMS))]
    return service_job(service, f"dli-{number:05d}", rng.uniform(2.0, 60.0))


def _phase(seconds: float, mib: int, ratio: float) -> JobPhase:
    work_ns = max(1_000_000, round(seconds * SECOND_NS))
    return JobPhase(work_ns, mib, ratio, ratio / 2, min(1.0, ratio * 1.1))

"""Jobs modelled on published measurements of a V100 (Ferikoglou et al., PARMA-DITAM 2021).

Nothing is copied from the published logs: the parameters are fitted to them, at 0 and 100 % of
over-provisioning. Thirty MLPerf inference jobs arrive at one GPU of 32,510 MiB; each requests the
memory that it needs times (1 + over-provisioning). Results at other levels are predictions."""

from enum import StrEnum

import msgspec
import numpy as np

from weft.lab.simulate.sharing.gpus import ByResidents
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase, stretched
from weft.model import Gpu, Node

CARD_MIB = 32510
JOBS_A_GPU = 30
CALIBRATED_PERCENTS = (0, 100)
"""Levels of over-provisioning (%) that the parameters were fitted at."""
ARRIVAL_LEAST_S, ARRIVAL_MOST_S = 20, 40
"""Range of seconds between the arrivals of two jobs, drawn uniformly."""
FIRST_NS = 6 * SECOND_NS
"""Time from the start of an experiment, from which its makespan counts, to its first job."""

START_NS, END_NS = 3_600_000_000, 900_000_000
"""Time from binding to the container's start, and from its exit to the job's completion."""

FEW_PERMILLE, MANY_PERMILLE = (1000, 1030, 1030), (1250, 1250, 1460, 1460)
"""Run time in permille of the time alone, for 1 to 3 jobs on a GPU, and for 4, 5, 6 and 7.

These jobs are bound by the CPU, and two hardly slow each other. Fitted to gpushare's run at 100 %
(two; three is interpolated, as the fitted runs hardly have three) and to gpushare's and the
Kube-Knots-like run at 0 % (four, five, six). Seven and more occur only while jobs die loading: at
50 and 100 % jobs took no longer next to them than in a group of six."""

DRIFT_PERMILLE = 132
"""Growth of a job's time alone, in permille: 131.5 s at 0 % over-provisioning, 148.8 s at 100 %.

It applies to one to three jobs on a GPU, but not to four and more: the three Kube-Knots-like runs
took 172, 173 and 171 s. No cause is published; we assume a straight line in between, and a constant
beyond."""

SPREAD = 0.035
"""Relative standard deviation of a job's work."""


class JobMix(StrEnum):
    """Names of job mixes; `MIXES` has the programs of each."""

    SSD = "ssd"
    RIGID = "rigid"
    MIXED = "mixed"
    PEAKY = "peaky"
    LATE = "late"
    GROWN = "grown"


class JobModel(msgspec.Struct, frozen=True):
    """A program: its memory need, and its phases alone on a GPU.

    `early_phases`, if given, apply to the first third of its jobs."""

    name: str
    need_mib: int
    phases: tuple[JobPhase, ...]
    early_phases: tuple[JobPhase, ...] = ()


def _loading(
    seconds: float, plateau_mib: int, util: float, fallback_mib: tuple[int, ...] = ()
) -> tuple[JobPhase, ...]:
    """Return phases of imports, a CUDA context and the graph, then a phase with all memory until
    the end."""

    def took(share: float) -> int:
        return round(seconds * share * SECOND_NS)

    return (
        JobPhase(took(0.068), 0),
        JobPhase(took(0.032), min(318, plateau_mib)),
        JobPhase(took(0.032), min(540, plateau_mib)),
        JobPhase(took(0.868), plateau_mib, util, util / 2, util, fallback_mib),
    )


def _with_peak(seconds: float, plateau_mib: int, peak_mib: int) -> tuple[JobPhase, ...]:
    """Return phases with a short memory peak late in the work, which cannot be measured
    beforehand."""
    early = _loading(seconds * 0.7, plateau_mib, 0.15)
    rest = round(seconds * 0.3 * SECOND_NS)
    peak = JobPhase(rest // 3, peak_mib, 0.3, 0.15, 0.3)
    return (*early, peak, JobPhase(rest * 2 // 3, plateau_mib))


def _with_late_growth(seconds: float, plateau_mib: int, peak_mib: int) -> tuple[JobPhase, ...]:
    """Return phases with little memory for nine tenths of the work, then all memory until the
    end."""
    return (
        *_loading(seconds * 0.9, plateau_mib, 0.15),
        JobPhase(round(seconds * 0.1 * SECOND_NS), peak_mib, 0.15, 0.075, 0.15),
    )


FALLBACK_MIB = (2887, 839)
"""Memory in MiB that the program falls back to if too little is free: in the logs the fifth
container on a GPU holds 2,887 MiB, the sixth 839, and both complete."""
SSD = JobModel("ssd-mobilenet", 6994, _loading(131.5, 6994, 0.15, FALLBACK_MIB))
RIGID = JobModel("ssd-mobilenet", 6994, _loading(131.5, 6994, 0.15))
RESNET = JobModel("resnet50", 8388, _loading(160.0, 8388, 0.2))
MOBILENET = JobModel("mobilenet", 872, _loading(60.0, 872, 0.05))
PEAKY = JobModel("peaky", 6994, _with_peak(131.5, 4000, 6994))
LATE = JobModel("late", 6994, _with_late_growth(400.0, 4000, 6994))
GROWN = JobModel("grown", 6994, _loading(131.5, 6994, 0.15), _loading(131.5, 4000, 0.15))
MIXES = {
    JobMix.SSD: (SSD,),
    JobMix.RIGID: (RIGID,),
    JobMix.MIXED: (RIGID, RESNET, MOBILENET),
    JobMix.PEAKY: (PEAKY,),
    JobMix.LATE: (LATE,),
    JobMix.GROWN: (GROWN,),
}
"""Programs of each mix. Only `ssd` is calibrated. In `rigid` a program dies if it cannot get all of
its memory, as most programs would. Run times of `resnet50` and `mobilenet` are not in the logs;
`peaky`, `late` and `grown` are invented."""


def request_mib(need_mib: int, percent: int) -> int:
    """Return the request of a job over-provisioned by `percent`, at most the GPU's memory."""
    return min(need_mib * (100 + percent) // 100, CARD_MIB)


def slowdown(percent: int) -> ByResidents:
    """Return the slowdown model at `percent` over-provisioning; a job alone takes its measured
    time at that level."""
    drift = 1000 + DRIFT_PERMILLE * min(percent, 100) // 100
    return ByResidents((*(few * drift // 1000 for few in FEW_PERMILLE), *MANY_PERMILLE))


def cluster(gpus: int) -> tuple[Node, ...]:
    """Return one node with `gpus` V100s."""
    cards = tuple(Gpu(index, CARD_MIB, "V100", f"GPU-{index}") for index in range(gpus))
    return (Node("gpu-node", cards, cpu_milli=64000, memory_mib=512 * 1024),)


def jobs(percent: int, seed: int, gpus: int = 1, mix: JobMix = JobMix.SSD) -> tuple[Job, ...]:
    """Return the jobs of one seed, over-provisioned by `percent`, which changes their requests
    only."""
    chance = np.random.default_rng([seed, 0])
    models = MIXES[mix]
    count = JOBS_A_GPU * gpus
    gaps = chance.integers(ARRIVAL_LEAST_S, ARRIVAL_MOST_S + 1, count) * SECOND_NS // gpus
    gaps[0] = FIRST_NS
    factors = np.clip(chance.normal(1.0, SPREAD, count), 0.8, 1.2)
    kinds = chance.permutation(np.arange(count) % len(models))
    arrives = np.cumsum(gaps)
    made = []
    for number in range(count):
        model = models[kinds[number]]
        early = model.early_phases if 3 * number < count else ()
        work = stretched(early or model.phases, round(float(factors[number]) * 1000))
        name, arrives_ns = f"job-{number:03d}", int(arrives[number])
        asks_mib = request_mib(model.need_mib, percent)
        made.append(Job(name, model.name, arrives_ns, asks_mib, work, START_NS, END_NS))
    return tuple(made)

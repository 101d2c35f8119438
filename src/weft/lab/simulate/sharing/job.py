"""A job's true GPU use: phases of work, each with its memory and load."""

import msgspec

from weft.lab.simulate.sharing.queries import NO_QUERIES, QueryStream
from weft.model.slowdown_limit import SlowdownLimit

SECOND_NS = 1_000_000_000


class JobPhase(msgspec.Struct, frozen=True, gc=False):
    """A part of a job's work with constant memory and load.

    `work_ns` is its duration alone on a GPU; sharing stretches it. Ratios are of the GPU. If the
    GPU has less than `memory_mib` free, the job takes the largest of `fallback_mib` that fits, and
    runs at the same speed; if none fits, it dies."""

    work_ns: int
    memory_mib: int
    sm_active_ratio: float = 0.0
    dram_active_ratio: float = 0.0
    gpu_util_ratio: float = 0.0
    fallback_mib: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, gc=False):
    """The work of one pod, run once to the end.

    `kind` is its program: pods of one kind use the same memory, and slow each other down equally.
    `request_mib` is what the pod requests, whatever it uses. `start_ns` passes between binding and
    the container's start, `end_ns` between its exit and the job's completion. `job_class` and
    `slowdown_limit` are as in `Shape`; `expected_s` is the run time alone that the pod declares, 0
    for none. `queries` are those it answers; `image_mib` is the size of its image, which is named
    after its kind."""

    uid: str
    kind: str
    arrives_ns: int
    request_mib: int
    phases: tuple[JobPhase, ...]
    start_ns: int = 0
    end_ns: int = 0
    job_class: str = ""
    expected_s: int = 0
    slowdown_limit: SlowdownLimit = ()
    queries: QueryStream = NO_QUERIES
    image_mib: int = 0

    @property
    def work_ns(self) -> int:
        """The container's run time alone on a GPU."""
        return sum(phase.work_ns for phase in self.phases)

    @property
    def peak_mib(self) -> int:
        """The most memory that it uses at any time."""
        return max((phase.memory_mib for phase in self.phases), default=0)


def stretched(phases: tuple[JobPhase, ...], permille: int) -> tuple[JobPhase, ...]:
    """Return the phases with each duration multiplied by `permille` / 1000."""
    return tuple(
        msgspec.structs.replace(phase, work_ns=phase.work_ns * permille // 1000) for phase in phases
    )


def needing_compute(job: Job, ratio: float) -> Job:
    """Return the job with this share of a GPU's SMs in all its phases."""
    phases = tuple(
        msgspec.structs.replace(phase, sm_active_ratio=ratio, gpu_util_ratio=ratio)
        for phase in job.phases
    )
    return msgspec.structs.replace(job, phases=phases)

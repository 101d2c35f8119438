"""A job's true use of a GPU: phases of work, each with its memory and load."""

import msgspec

from weft.lab.simulate.sharing.queries import NO_QUERIES, QueryStream
from weft.model.slowdown_limit import SlowdownLimit

SECOND_NS = 1_000_000_000


class JobPhase(msgspec.Struct, frozen=True, gc=False):
    """A stretch of work during which memory and load stay the same.

    `work_ns` is how long it takes alone on a card; sharing stretches it. Ratios are of the card.
    Where the card has less than `memory_mib` left, the job makes do with the largest of
    `fallback_mib` for which there is room, at the same speed; without any room it dies.
    """

    work_ns: int
    memory_mib: int
    sm_active_ratio: float = 0.0
    dram_active_ratio: float = 0.0
    gpu_util_ratio: float = 0.0
    fallback_mib: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, gc=False):
    """One pod's work, run once to the end.

    `kind` says which program it is (pods of one kind use memory alike, and slow each other down
    alike). `request_mib` is what the pod asks for, whatever it uses. `start_ns` passes between the
    binding and the container's start, `end_ns` between its exit and the job's completion.
    `job_class` is as in `Shape`, `expected_s` what the pod says of its time alone, 0 for nothing,
    `slowdown_limit` is as in `Shape`. `queries` are what it answers, `image_mib` is the size of its
    image, which is called after its kind.
    """

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
        """The time that the container runs alone on a card."""
        return sum(phase.work_ns for phase in self.phases)

    @property
    def peak_mib(self) -> int:
        """The most memory it ever uses."""
        return max((phase.memory_mib for phase in self.phases), default=0)


def stretched(phases: tuple[JobPhase, ...], permille: int) -> tuple[JobPhase, ...]:
    """The same phases, each `permille` thousandths as long."""
    return tuple(
        msgspec.structs.replace(phase, work_ns=phase.work_ns * permille // 1000) for phase in phases
    )


def needing_compute(job: Job, ratio: float) -> Job:
    """The same job, which needs this share of a card's SMs from its first phase to its last."""
    phases = tuple(
        msgspec.structs.replace(phase, sm_active_ratio=ratio, gpu_util_ratio=ratio)
        for phase in job.phases
    )
    return msgspec.structs.replace(job, phases=phases)

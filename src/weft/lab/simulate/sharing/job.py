"""A job's true GPU use: phases of work, each with its memory and load; and its queries."""

from collections.abc import Mapping

import msgspec

from weft.model.slowdown_limit import SlowdownLimit

SECOND_NS = 1_000_000_000


# --- Queries that jobs answer: latencies next to other jobs, and how many were late ---------------
#
# A query takes `alone_ns` alone, and is slowed down as much as the job's work. If users send a
# fixed number per second, those sent while the pod is pending are late.


class QueryStream(msgspec.Struct, frozen=True, gc=False):
    """A job's queries: each takes `alone_ns` alone on a GPU (0: the job answers none).

    A query that takes longer than `limit_ns` is late (0: none is). `each_s` are sent per second
    from the job's creation on; 0: each is sent when the previous one is answered, as in MLPerf's
    SingleStream."""

    alone_ns: int = 0
    limit_ns: int = 0
    each_s: float = 0.0

    def count(self, work_ns: int) -> int:
        """Return the number of queries of a job whose work takes `work_ns` alone."""
        if not self.alone_ns:
            return 0
        if self.each_s:
            return max(1, round(self.each_s * work_ns / SECOND_NS))
        return max(1, work_ns // self.alone_ns)


NO_QUERIES = QueryStream()


class AnsweredQueries(msgspec.Struct, frozen=True):
    """Results of a job's queries; percentiles in seconds over answered queries, None without
    any."""

    queries: int = 0
    late: int = 0
    p90_s: float | None = None
    p99_s: float | None = None


def outcome_of(
    stream: QueryStream, work_ns: int, served: Mapping[int, int], waited_ns: int
) -> AnsweredQueries:
    """Return the results for a job that did `served` ns of work at each slowdown in permille.

    `waited_ns` is the time that the job was pending, plus the run time lost when its containers
    died."""
    queries = stream.count(work_ns)
    if not queries:
        return AnsweredQueries()
    done = sum(served.values())
    late = round(stream.each_s * waited_ns / SECOND_NS) if stream.limit_ns else 0
    if done and stream.limit_ns:
        slow = sum(
            work
            for permille, work in served.items()
            if stream.alone_ns * permille > stream.limit_ns * 1000
        )
        late += round(max(0, queries - late) * (slow / done))
    ends = [_quantile(served, done, share) for share in (0.9, 0.99)] if done else [None, None]
    times = [None if end is None else round(stream.alone_ns * end / 1e12, 6) for end in ends]
    return AnsweredQueries(queries, min(queries, late), *times)


def _quantile(served: Mapping[int, int], done: int, share: float) -> int:
    """Return the smallest slowdown that this share of the work did not exceed."""
    so_far = 0
    for permille in sorted(served):
        so_far += served[permille]
        if so_far >= share * done:
            return permille
    return max(served)


# --- jobs ----------------------------------------------------------------------------------------


class JobPhase(msgspec.Struct, frozen=True, gc=False):
    """A part of a job's work with constant memory and load.

    `work_ns` is its duration alone on a GPU, which sharing lengthens. Ratios are of the GPU. If
    less than `memory_mib` is free, the job takes the largest of `fallback_mib` that fits, and runs
    at the same speed; if none fits, its container dies."""

    work_ns: int
    memory_mib: int
    sm_active_ratio: float = 0.0
    dram_active_ratio: float = 0.0
    gpu_util_ratio: float = 0.0
    fallback_mib: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, gc=False):
    """The work of one pod, run once to the end.

    `kind` is its program: pods of one kind use the same memory, and slow each other down equally.
    `request_mib` is the pod's request, however much it uses. `start_ns` passes between binding and
    the container's start, `end_ns` between its exit and the job's completion. `job_class` and
    `slowdown_limit` are as in `Shape`; `expected_s` is the run time alone that the pod declares, 0
    for none. `queries` are those that it answers; `image_mib` is the size of its image, which is
    named after its kind."""

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
        """The most GPU memory that the job uses at any time, in MiB."""
        return max((phase.memory_mib for phase in self.phases), default=0)


def stretched(phases: tuple[JobPhase, ...], permille: int) -> tuple[JobPhase, ...]:
    """Return the phases with each duration multiplied by `permille` / 1000."""
    return tuple(
        msgspec.structs.replace(phase, work_ns=phase.work_ns * permille // 1000) for phase in phases
    )


def needing_compute(job: Job, ratio: float) -> Job:
    """Return the job with `ratio` of a GPU's SMs in use in all its phases."""
    phases = tuple(
        msgspec.structs.replace(phase, sm_active_ratio=ratio, gpu_util_ratio=ratio)
        for phase in job.phases
    )
    return msgspec.structs.replace(job, phases=phases)

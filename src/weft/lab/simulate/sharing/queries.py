"""Queries that jobs answer: latencies next to other jobs, and how many were late.

A query takes `alone_ns` alone, and is slowed down as much as the job's work. If users send a fixed
number per second, those sent while the pod is pending are late."""

from collections.abc import Mapping

import msgspec

SECOND_NS = 1_000_000_000


class QueryStream(msgspec.Struct, frozen=True, gc=False):
    """A job's queries: `alone_ns`, the time of one alone (0: the job answers none), and `limit_ns`,
    from when on one is late (0: never).

    `each_s` are sent per second from the job's creation on; 0: each is sent when the one before is
    answered, as in MLPerf's SingleStream."""

    alone_ns: int = 0
    limit_ns: int = 0
    each_s: float = 0.0

    def count(self, work_ns: int) -> int:
        """Return the number of queries of a job with this work alone."""
        if not self.alone_ns:
            return 0
        if self.each_s:
            return max(1, round(self.each_s * work_ns / SECOND_NS))
        return max(1, work_ns // self.alone_ns)


NO_QUERIES = QueryStream()


class AnsweredQueries(msgspec.Struct, frozen=True):
    """Results of a job's queries; percentiles in seconds, over answered ones."""

    queries: int = 0
    late: int = 0
    p90_s: float | None = None
    p99_s: float | None = None


def outcome_of(
    stream: QueryStream, work_ns: int, served: Mapping[int, int], waited_ns: int
) -> AnsweredQueries:
    """Return the results for a job that did `served` ns of work at each slowdown in permille.

    `waited_ns` is the time that it was pending, or lost by dying."""
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

"""Queries that jobs answer: how long they take beside others, and how many were late.

A query alone takes `alone_ns`, and beside others as much longer as the job's work does. Where
users send so many a second whether the job runs or not, those sent while its pod waits are late.
"""

from collections.abc import Mapping

import msgspec

SECOND_NS = 1_000_000_000


class QueryStream(msgspec.Struct, frozen=True, gc=False):
    """Queries of a job: the time of one alone, and that from which on it is late (0: never).

    `each_s` are sent every second from the job's creation on; 0: the next one is sent when the
    last one is answered, as MLPerf's SingleStream does. `alone_ns` 0: the job answers none.
    """

    alone_ns: int = 0
    limit_ns: int = 0
    each_s: float = 0.0

    def count(self, work_ns: int) -> int:
        """How many there are, for a job that takes this long alone."""
        if not self.alone_ns:
            return 0
        if self.each_s:
            return max(1, round(self.each_s * work_ns / SECOND_NS))
        return max(1, work_ns // self.alone_ns)


NO_QUERIES = QueryStream()


class AnsweredQueries(msgspec.Struct, frozen=True):
    """The outcome of a job's queries; percentiles in seconds, over those that were answered."""

    queries: int = 0
    late: int = 0
    p90_s: float | None = None
    p99_s: float | None = None


def outcome_of(
    stream: QueryStream, work_ns: int, served: Mapping[int, int], waited_ns: int
) -> AnsweredQueries:
    """The outcome of a job that did so much work (`served`) at each slowdown in permille, and
    waited so long for its GPU, or lost what it had done."""
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
    """The slowdown that this share of the work did not pass."""
    so_far = 0
    for permille in sorted(served):
        so_far += served[permille]
        if so_far >= share * done:
            return permille
    return max(served)

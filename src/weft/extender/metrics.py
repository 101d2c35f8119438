"""What the extender counts, and how Prometheus reads it."""

from bisect import bisect_left

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
REQUESTS = "weft_extender_requests_total"
DURATION = "weft_extender_request_duration_seconds"
REJECTED = "weft_extender_rejected_total"


class Metrics:
    """Requests by path, verb and result; their durations; what was turned away, and why.

    Labels come from routes and from words in the code, never from requests: bounded.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.rejected: dict[str, int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def answered(self, path: str, verb: str, result: str, took_s: float) -> None:
        """One request; `result` is "ok" or "error"."""
        key = (path, verb, result)
        self.requests[key] = self.requests.get(key, 0) + 1
        buckets = self._buckets.setdefault((path, verb), [0] * (len(BUCKETS_S) + 1))
        buckets[bisect_left(BUCKETS_S, took_s)] += 1
        self._sums[path, verb] = self._sums.get((path, verb), 0.0) + took_s

    def turned_away(self, why: str) -> None:
        """One request that was not looked at."""
        self.rejected[why] = self.rejected.get(why, 0) + 1

    def text(self) -> str:
        """All of it, in Prometheus' text format."""
        lines = [f"# HELP {REQUESTS} Requests answered.", f"# TYPE {REQUESTS} counter"]
        for (path, verb, result), count in self.requests.items():
            lines.append(f'{REQUESTS}{{path="{path}",verb="{verb}",result="{result}"}} {count}')
        lines += [
            f"# HELP {REJECTED} Requests turned away unread.",
            f"# TYPE {REJECTED} counter",
            *(f'{REJECTED}{{why="{why}"}} {count}' for why, count in self.rejected.items()),
            f"# HELP {DURATION} From the last byte of a request to the answer's first.",
            f"# TYPE {DURATION} histogram",
        ]
        for (path, verb), buckets in self._buckets.items():
            where, total = f'path="{path}",verb="{verb}"', 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), buckets, strict=True):
                total += count
                lines.append(f'{DURATION}_bucket{{{where},le="{bound}"}} {total}')
            lines.append(f"{DURATION}_sum{{{where}}} {self._sums[path, verb]:.6f}")
            lines.append(f"{DURATION}_count{{{where}}} {total}")
        return "\n".join(lines) + "\n"

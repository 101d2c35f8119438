"""Withholds evictions for a slow pod if its neighbours are not the cause, or if enough pods were
evicted. State: which pods were evicted for which, which pods were slow alone, and the evictions of
this poll. A pure function of what `SlowdownEviction` reports: windows and evictions.

    slow alone on its GPUs                           ──▶ no eviction for it, until it is seen
                                                         within its bound
    three were evicted for it within an hour         ──▶ no eviction for it in that hour
    more than a third of the critical pods are slow  ──▶ no eviction at this poll
    one of a hundred GPUs lost a pod at this poll    ──▶ no other eviction at this poll

Pods of every class are checked. For pods that are not latency-critical this matters if the pods of
a GPU get less done together than one alone, which may also be the effect of a wrong solo rate.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from weft.core.ledger import Ledger

BROKEN = 2
"""A pod is too slow if this many of its last windows are bad."""
TRIES, TRIED_NS = 3, 3600 * 1_000_000_000
"""After this many evictions within this time, the pod's neighbours are taken not to be the cause,
as few pods share a GPU. A good window in between does not change this, as a pod can report one
falsely."""
FULL_SPEED = 1.10
"""If a pod that is not latency-critical has a larger slowdown than this while alone on its GPUs,
its solo rate is wrong or there is a cause other than its neighbours."""
COMMON_PART, COMMON_LEAST = 3, 3
"""If more than one in three latency-critical pods are slow, there is one common cause. With fewer
than three slow pods, no common cause is assumed."""
GPUS_EACH = 100
"""One in this many GPUs with pods may lose a pod in one poll, at least one: an unforeseen error
would then take half an hour, not a minute, to evict pods from all GPUs, and is noticed before."""
LOOK_NS = 10 * 1_000_000_000
"""Reports within this time belong to one poll; polls are 15 s apart."""

Why = Literal["alone", "in-vain", "common", "enough"]
_WORDS: dict[Why, str] = {
    "alone": "it was also too slow while alone on its GPUs",
    "in-vain": f"{TRIES} pods were already evicted for it within an hour",
    "common": "more than a third of the latency-critical pods are too slow at once, so the pods "
    "that share their GPUs are not the cause",
    "enough": "as many pods were evicted at the last poll as the limit allows; the next poll looks "
    "again",
}
WHYS = tuple(_WORDS)


def why_withheld_in_words(why: Why) -> str:
    """Say why no pod is evicted for a pod that is too slow."""
    return f"no pod is evicted for it: {_WORDS[why]}"


class SlowdownSample(NamedTuple):
    """One sample of a pod: its slowdown (None if not counted), and True if its answers were
    late."""

    slowdown: float | None
    late: bool


def bad_windows(windows: Iterable[SlowdownSample], bound: float) -> tuple[int, int]:
    """Return in how many windows the pod was slower than its bound, and in how many its answers
    were late."""
    samples = list(windows)
    slow = sum(sample.slowdown is not None and sample.slowdown > bound for sample in samples)
    return slow, sum(sample.late for sample in samples)


class _Leaving(NamedTuple):
    """The slow pod for which another pod is evicted, and the time of the request."""

    slow_pod: str
    asked_ns: int


class EvictionLimits:
    """Withholds evictions of one ledger's pods. `withheld_evictions` lists the pods for which no
    other pod was evicted at their last poll, and why."""

    def __init__(self, ledger: Ledger) -> None:
        self.withheld_evictions: dict[str, Why] = {}
        self._ledger = ledger
        self._alone: dict[str, bool] = {}
        """Pods that were slow alone; True if their answers were late, but their rate was within the
        bound."""
        self._for: dict[str, list[int]] = {}
        """Times of the requests to evict pods for the slow pod (key), within the last hour."""
        self._leaving: dict[str, _Leaving] = {}
        self._went_ns: dict[str, int] = {}
        self._common = False

    # --- what is seen ---

    def record(
        self, uid: str, windows: Sequence[SlowdownSample], bound: float, *, alone: bool
    ) -> bool:
        """Record the last windows of a latency-critical pod, the newest last, and return True if it
        is too slow. One bad window is enough here, so that a cause common to many pods is seen at
        once.
        """
        slow, late = bad_windows(windows, bound)
        newest = windows[-1]
        bad = any(bad_windows([newest], bound))
        if not bad and (newest.slowdown is not None or self._alone.get(uid, False)):
            self._alone.pop(uid, None)
        elif alone:
            slow_last, late_last = bad_windows(list(windows)[-BROKEN:], bound)
            if max(slow_last, late_last) >= BROKEN:  # a good window in between would clear it
                self._alone[uid] = slow_last < BROKEN
        return bad or max(slow, late) >= BROKEN

    def record_other(self, uid: str, windows: Iterable[SlowdownSample], *, alone: bool) -> None:
        """Record the windows of a pod that is not latency-critical; lateness is ignored."""
        on_time = [window._replace(late=False) for window in windows]
        self.record(uid, on_time, FULL_SPEED, alone=alone)

    def observe(self, too_slow: Collection[bool], now_ns: int) -> None:
        """Note how many latency-critical pods are too slow now; `too_slow` has an entry for each
        such pod."""
        many = sum(too_slow)
        self._common = many >= COMMON_LEAST and many * COMMON_PART > len(too_slow)
        self._went_ns = {u: at for u, at in self._went_ns.items() if now_ns - at < LOOK_NS}

    def forget(self, uids: Iterable[str]) -> None:
        """Drop withheld evictions for these pods, which are about to be checked, or have no
        sample."""
        for uid in uids:
            self.withheld_evictions.pop(uid, None)

    # --- evictions ---

    def allows(self, uid: str, slow_pod: str, co_residents: Iterable[str], now_ns: int) -> bool:
        """Return True if the pod may be evicted for the slow pod; else note why not in
        `withheld_evictions`. `co_residents` are the other pods whose measurements led to this
        eviction; their measurements must be trustworthy too.
        """
        doubted = (
            pod_uid
            for pod_uid in (slow_pod, *co_residents)
            if self._doubt(pod_uid, now_ns) is not None
        )
        blocking_uid = next(doubted, slow_pod)
        why = self._why_not(blocking_uid, now_ns)
        if why is not None:
            self.withheld_evictions[blocking_uid] = why
            return False
        self._went_ns[uid] = now_ns
        self._leaving[uid] = _Leaving(slow_pod, now_ns)
        return True

    def _doubt(self, uid: str, now_ns: int) -> Why | None:
        """Return the reason to distrust the pod's measurements, None if there is none."""
        if uid in self._alone:
            return "alone"
        went = sum(now_ns - asked_ns < TRIED_NS for asked_ns in self._for.get(uid, ()))
        return "in-vain" if went >= TRIES else None

    def _why_not(self, uid: str, now_ns: int) -> Why | None:
        doubt = self._doubt(uid, now_ns)
        if doubt is not None:
            return doubt
        if self._common:
            return "common"
        return "enough" if self._went_ns and len(self._went_ns) >= self._most() else None

    def _most(self) -> int:
        """Return the most evictions allowed in one poll."""
        places = (holding.placement for holding in self._ledger.holdings.values())
        gpus = {(place.node, share.gpu) for place in places for share in place.shares}
        return max(1, len(gpus) // GPUS_EACH)

    def not_evicted(self, uid: str) -> None:
        """Note that the requested eviction of the pod did not happen."""
        self._leaving.pop(uid, None)
        self._went_ns.pop(uid, None)

    def gone(self, uid: str) -> None:
        """Note that the pod is gone; this counts against the limit of the pod that it was evicted
        for."""
        self._alone.pop(uid, None)
        self._for.pop(uid, None)
        self.withheld_evictions.pop(uid, None)
        eviction = self._leaving.pop(uid, None)
        if eviction is not None and eviction.slow_pod in self._ledger.holdings:
            before = self._for.get(eviction.slow_pod, [])
            lately = [at for at in before if eviction.asked_ns - at < TRIED_NS]
            self._for[eviction.slow_pod] = [*lately, eviction.asked_ns]

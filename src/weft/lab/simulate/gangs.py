"""Follows gangs in timed runs: when each starts to run, and the GPU time that its pods waste
before.

A gang starts to run when its minimum number of pods hold places at the same time. A pod placed
later runs at once, if other pods of the gang run or a pod of the gang has completed. The time
between a pod's placement and its start is wasted. Times are ns, amounts thousandths of a GPU."""

from collections.abc import Sequence

import numpy as np

from weft.lab.simulate.preempted import MILLI_NS_PER_GPU_S
from weft.lab.simulate.results import GangTimes
from weft.model import Gang


class _FollowedGang:
    """One gang's pods by number: `held` maps placed pods that do not run yet to the time of their
    placement, `running` maps pods to the time at which they started.

    `came_ns` is when the gang's minimum number of pods had arrived, `began_ns` when it first
    ran."""

    __slots__ = ("began_ns", "came", "came_ns", "has_ended", "held", "least", "running")

    def __init__(self, least: int) -> None:
        self.least, self.came, self.has_ended = max(1, least), 0, False
        self.came_ns: int | None = None
        self.began_ns: int | None = None
        self.held: dict[int, int] = {}
        self.running: dict[int, int] = {}


class GangClock:
    """Follows all gangs of a run; pods are identified by number."""

    def __init__(self) -> None:
        self._gangs: dict[str, _FollowedGang] = {}
        self._of: dict[int, _FollowedGang] = {}
        self._milli: dict[int, int] = {}
        self._wasted = self._preempted = 0
        self._first_ns: int | None = None
        self._last_end_ns = 0

    def comes(self, number: int, gang: Gang, milli: int, now_ns: int) -> None:
        """Record that a pod of the gang, which requests `milli` thousandths of GPUs, arrives for
        the first time."""
        followed = self._gangs.setdefault(gang.key, _FollowedGang(gang.least))
        self._of[number], self._milli[number] = followed, milli
        if self._first_ns is None:
            self._first_ns = now_ns
        followed.came += 1
        if followed.came == followed.least:
            followed.came_ns = now_ns

    def is_over_for_some(self, number: int) -> bool:
        """Return True if another pod of the gang has completed, so that no pod waits for the gang
        any more."""
        return self._of[number].has_ended

    def is_held(self, number: int) -> bool:
        """Return True if the pod holds a place but does not run yet."""
        return number in self._of and number in self._of[number].held

    def placed(self, number: int, now_ns: int) -> Sequence[int]:
        """Record that the pod was placed, and return the pods of its gang that start to run now."""
        gang = self._of[number]
        gang.held[number] = now_ns
        if not (gang.running or gang.has_ended) and len(gang.held) < gang.least:
            return ()
        begin, gang.held = gang.held, {}
        for each, since_ns in begin.items():
            self._wasted += self._milli[each] * (now_ns - since_ns)
            gang.running[each] = now_ns
        if gang.began_ns is None:
            gang.began_ns = now_ns
        return list(begin)

    def waiting_with(self, number: int) -> Sequence[int]:
        """Return the pods of the pod's gang that hold places but do not run yet."""
        return list(self._of[number].held)

    def ends(self, number: int, now_ns: int) -> None:
        """Record that the pod completed, or is deleted before it ran."""
        if (gang := self._of.get(number)) is None:
            return
        if gang.running.pop(number, None) is not None:
            self._last_end_ns = max(self._last_end_ns, now_ns)
            gang.has_ended = True
        self._gives_back(gang, number, now_ns)

    def loses_place(self, number: int, now_ns: int) -> int:
        """Record that a gang's pod is evicted, and return the ns that it had run, which are
        lost."""
        gang = self._of[number]
        ran_ns = now_ns - gang.running.pop(number, now_ns)
        self._preempted += self._milli[number] * ran_ns
        self._gives_back(gang, number, now_ns)
        return ran_ns

    def _gives_back(self, gang: _FollowedGang, number: int, now_ns: int) -> None:
        since_ns = gang.held.pop(number, None)
        if since_ns is not None:
            self._wasted += self._milli[number] * (now_ns - since_ns)

    def result(self, now_ns: int) -> GangTimes | None:
        """Return the measures at the run's end; None if no pod belongs to a gang."""
        gangs = list(self._gangs.values())
        if not gangs:
            return None
        wasted = self._wasted + sum(
            self._milli[number] * (now_ns - since_ns)
            for gang in gangs
            for number, since_ns in gang.held.items()
        )
        waits_ns = [
            gang.began_ns - gang.came_ns
            for gang in gangs
            if gang.began_ns is not None and gang.came_ns is not None
        ]
        waits_s = np.array(waits_ns or [0], dtype=np.float64) / 1_000_000_000
        p50, p95, p99 = (float(each) for each in np.percentile(waits_s, [50, 95, 99]))
        first_ns = self._first_ns or 0
        return GangTimes(
            gangs=len(gangs),
            never_ran=len(gangs) - len(waits_ns),
            wait_mean_s=round(float(waits_s.mean()), 3),
            wait_p50_s=round(p50, 3),
            wait_p95_s=round(p95, 3),
            wait_p99_s=round(p99, 3),
            wait_max_s=round(float(waits_s.max()), 3),
            makespan_s=round(max(0, self._last_end_ns - first_ns) / 1_000_000_000, 3),
            wasted_gpu_s=round(wasted / MILLI_NS_PER_GPU_S, 3),
            preempted_gpu_s=round(self._preempted / MILLI_NS_PER_GPU_S, 3),
        )

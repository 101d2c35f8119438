"""One hollow pod's life: what its containers do, and when. Pure: it is told what time it is.

    starting ──▶ running ──▶ ended           (or from anywhere: deleted, killed, refused)
                  ▲    │
                  │    ▼  as the restart policy says: at once, then after 10, 20 … 300 s
                 waiting

What is due is asked (`due`) and done (`step`) at exactly that moment, however late that is: a
hollow kubelet that slept catches up in the same order. All main containers start, use memory and
end together. A run of `SOUND_S` makes the next restart a prompt one again.
"""

import math
from typing import Literal, NamedTuple

from fakes.hollow_pod import HollowPod, seconds_of
from fakes.hollow_profile import HollowProfile

Stage = Literal["starting", "running", "waiting", "ended"]

FAILED, KILLED, TERMINATED = 1, 137, 143
COMPLETED, ERROR = "Completed", "Error"
SOUND_S = 600.0
_FIRST_WAIT_S, _MOST_WAIT_S = 10.0, 300.0
# At one moment ends come first: what ends makes room for what grows.
ENDS, GROWS = 0, 1


class Exit(NamedTuple):
    """The end of a run; `started_s` is None where the containers never ran.

    `log` is the last that was logged, as far as that matters.
    """

    code: int
    reason: str
    started_s: float | None
    finished_s: float
    log: str = ""


class Due(NamedTuple):
    """The next thing to happen, and its rank among those of the same moment."""

    at_s: float
    rank: int


class Life:
    """A pod from its admission on; times are seconds since 1970.

    `second` is how far into the run its memory has been followed. `last` is how the latest run
    ended.
    """

    def __init__(self, pod: HollowPod, profile: HollowProfile, now_s: float) -> None:
        self.profile = profile
        self.stage: Stage = "starting"
        self.born_s = now_s
        self.since_s = now_s
        self.restarts = 0
        self.second = 0.0
        self.last: Exit | None = None
        self.stopping = False
        self._again = pod.restarts_after
        self._failures = 0
        self._until_s = now_s + profile.start_up_s
        self._stop: tuple[float, int] = (math.inf, 0)
        self._known = False  # whether the next run was written already, before a restart

    @property
    def phase(self) -> str:
        """As status.phase has it."""
        if self.stage != "ended":
            return "Pending" if self.stage == "starting" else "Running"
        return "Succeeded" if self.last is not None and self.last.code == 0 else "Failed"

    def due(self) -> Due:
        """The next event; at infinity where there is none."""
        if self.stage == "ended":
            return Due(math.inf, ENDS)
        if self.stage != "running":
            return Due(self._until_s, GROWS)
        grows_s = self.since_s + self.profile.next_change_s(self.second)
        return min(Due(min(self._until_s, self._stop[0]), ENDS), Due(grows_s, GROWS))

    def step(self) -> bool:
        """Do what is due. Whether the pod's status is another one now."""
        at_s, rank = self.due()
        if self.stage != "running":
            uninterrupted, self._known = self._known, False
            self._run(at_s, uninterrupted)
            return not uninterrupted
        if rank == GROWS:
            self.second = self.profile.next_change_s(self.second)
            return False
        if self._stop[0] <= at_s:
            return self.exit(at_s, self._stop[1], ERROR)
        code = self.profile.exit_code
        return self.exit(at_s, code, ERROR if code else COMPLETED)

    def exit(self, now_s: float, code: int, reason: str, log: str = "") -> bool:
        """The containers end now; they run again if the restart policy says so.

        Whether this is worth a status: a prompt restart is one change with the end before it.
        """
        began = self.since_s if self.stage == "running" else None
        self.last = Exit(code, reason, began, now_s, log)
        if self.stopping or not self._again[bool(code)]:
            self.stage = "ended"
            return True
        if began is not None and now_s - began >= SOUND_S:
            self._failures = 0
        self.stage = "waiting"
        self._until_s = now_s + _wait_s(self._failures)
        return self._failures > 0

    def stop(self, now_s: float, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after the grace; a later call can only make it end sooner."""
        if self.stage == "ended":
            return
        own_s = math.inf if self.profile.stop_s is None else self.profile.stop_s
        planned = (now_s + min(own_s, grace_s), TERMINATED if own_s <= grace_s else KILLED)
        self.stopping = True
        if self.stage == "running" or self._known:
            self._stop = min(self._stop, planned)
        elif self.last is not None:
            self.stage = "ended"
        else:
            self.exit(now_s, KILLED, "ContainerStatusUnknown")

    def end(self) -> None:
        """Somebody else has written that it is over."""
        self.stage = "ended"

    def recover(self, pod: HollowPod) -> None:
        """Go on from what a hollow kubelet wrote of this pod before it was restarted.

        How often it failed since its last sound run is not written anywhere: every restart counts.
        """
        status = pod.status
        if status.start_time:
            self.born_s = seconds_of(status.start_time)
            self._until_s = self.born_s + self.profile.start_up_s
        for container in (status.container_statuses or ())[:1]:
            self.restarts = self._failures = container.restart_count
            before = container.last_state.terminated
            if before is not None and before.finished_at:
                began = seconds_of(before.started_at) if before.started_at else None
                ended_s = seconds_of(before.finished_at)
                self.last = Exit(before.exit_code, before.reason, began, ended_s, before.message)
                if began is not None and ended_s - began >= SOUND_S:
                    self._failures = 0
                self.stage = "waiting"
                self._until_s = ended_s + _wait_s(self._failures)
            if container.state.running is not None and container.state.running.started_at:
                # It runs already: its run is gone through again from its beginning.
                self._until_s = seconds_of(container.state.running.started_at)
                self._known = True

    def _run(self, now_s: float, known: bool) -> None:
        if self.stage == "waiting" and not known:
            self.restarts += 1
            self._failures += 1
        self.stage, self.since_s, self.second = "running", now_s, 0.0
        run_s = self.profile.run_s
        self._until_s = math.inf if run_s is None else now_s + run_s


def _wait_s(failures: int) -> float:
    """Before the restart after so many: none at first, then 10 s, doubled each time."""
    return min(_FIRST_WAIT_S * 2.0 ** (failures - 1), _MOST_WAIT_S) if failures else 0.0

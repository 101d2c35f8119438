"""Ferikoglou's whole scheduler as it ran, on simulated cards: loop, queue, pauses and rules.

`kube_knots_slowly` is one decision; this is what surrounded it, from the published logs and code
(tests/golden/test_ece.py holds the order of the queue to the logs):

    take a pod ─0.3 s─▶ ask the rules ─admitted, 0.5 s─▶ bind ─5 s─▶ take a pod
                          │ refused: the next pod; nobody left: 0.5 s ─▶ take a pod

One card. Memory that nobody asked for comes back for one finished pod a round. What Prometheus has
of the card changes every seven seconds, though it is asked for every second: so it is in the logs.
"""

from collections.abc import Mapping, Sequence

from kube_knots_slowly import PUBLISHED, KnotsRule, Rules, decide, window_start

from weft.lab.simulate.sharing.gpus import GpuKey, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS, Job
from weft.lab.simulate.sharing.outcome import JobOutcome, seconds
from weft.lab.simulate.sharing.run import SharedScenario

POLL_NS, ASK_NS, BIND_NS, PAUSE_NS = 500_000_000, 300_000_000, 500_000_000, 5 * SECOND_NS
REFRESH_S = 7
"""The logged series change every 6 or 8 s, in turn."""
UNSEEN_MIB = 1
"""Free and used memory add up to this much less than the card."""


class GoHeap:
    """container/heap for items that all weigh the same: no comparison ever moves one."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def push(self, item: str) -> None:
        self.items.append(item)

    def pop(self) -> str:
        self.items[0], self.items[-1] = self.items[-1], self.items[0]
        return self.items.pop()


class WatchedCard:
    """One simulated card: jobs put on it, and its used memory as Prometheus has it."""

    def __init__(self, scenario: SharedScenario) -> None:
        (node,) = scenario.nodes
        (card,) = node.gpus
        self.capacity_mib = card.memory_mib
        self.key: GpuKey = (node.name, card.index)
        self.gpus = SimulatedGpus({self.key: card.memory_mib}, scenario.slowdown)
        self.used_mib: list[int] = []
        """At every refresh of the exporter."""
        self.bound_ns: dict[str, int] = {}
        self.finished_ns: dict[str, int] = {}
        self.restarts: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}

    def put(self, job: Job, now_ns: int) -> None:
        """The job's pod was bound."""
        self.until(now_ns)
        self._jobs[job.uid] = job
        self.bound_ns[job.uid] = now_ns
        self.restarts[job.uid] = 0
        self.gpus.put(job, self.key, now_ns)

    def until(self, now_ns: int) -> None:
        """Everything that happens on the card up to now."""
        while len(self.used_mib) * REFRESH_S * SECOND_NS <= now_ns:
            self._happen(len(self.used_mib) * REFRESH_S * SECOND_NS)
            self.used_mib.append(self.gpus.used_mib(self.key))
        self._happen(now_ns)

    def _happen(self, until_ns: int) -> None:
        while (due := self.gpus.next_ns()) is not None and due <= until_ns:
            for ended in self.gpus.advance(due):
                assert ended.how != "failed"
                self.restarts[ended.uid] += ended.how == "oom"
                if ended.how == "done":
                    self.finished_ns[ended.uid] = due + self._jobs[ended.uid].end_ns

    def series(self, from_s: int, to_s: int) -> list[int]:
        """Used memory at every second, as last refreshed; nothing from before the run."""
        return [self.used_mib[at // REFRESH_S] for at in range(max(0, from_s), to_s + 1)]

    def outcomes(self, jobs: Sequence[Job]) -> list[JobOutcome]:
        """How every job went; all must have finished."""
        return [
            JobOutcome(
                job.uid,
                job.kind,
                seconds(job.arrives_ns),
                seconds(self.bound_ns[job.uid]),
                seconds(self.finished_ns[job.uid]),
                self.restarts[job.uid],
            )
            for job in jobs
        ]


class OriginalScheduler:
    """The loop. `admitted` counts by rule."""

    def __init__(self, scenario: SharedScenario, rules: Rules = PUBLISHED) -> None:
        self.scenario, self.rules = scenario, rules
        self.card = WatchedCard(scenario)
        self.available_mib = rules.capacity_mib
        self.heap = GoHeap()
        self.running: list[Job] = []
        self.last_bind_ns = 0
        self.admitted: dict[KnotsRule, int] = dict.fromkeys(KnotsRule, 0)
        self._jobs = {job.uid: job for job in scenario.jobs}
        self._to_come = sorted(scenario.jobs, key=lambda job: (job.arrives_ns, job.uid))

    def go(self) -> list[JobOutcome]:
        """Schedule every job and wait until the last has finished."""
        now_ns = 0
        while self._to_come or self.heap.items:
            now_ns = self._round(now_ns)
        while len(self.card.finished_ns) < len(self.scenario.jobs):
            due = self.card.gpus.next_ns()
            assert due is not None
            self.card.until(due)
        return self.card.outcomes(self.scenario.jobs)

    def _round(self, now_ns: int) -> int:
        """One turn of the loop; when the next begins."""
        self._come(now_ns)
        now_ns += ASK_NS if self.heap.items else 0
        self.card.until(now_ns)
        self._give_back(now_ns)
        refused: list[str] = []
        admitted = None
        while self.heap.items and admitted is None:
            job = self._jobs[self.heap.pop()]
            if self._may_go(job, now_ns):
                admitted = job
            else:
                refused.append(job.uid)
        for uid in refused:
            self.heap.push(uid)
        return now_ns + POLL_NS if admitted is None else self._bind(admitted, now_ns + BIND_NS)

    def _come(self, now_ns: int) -> None:
        while self._to_come and self._to_come[0].arrives_ns <= now_ns:
            self.heap.push(self._to_come.pop(0).uid)

    def _give_back(self, now_ns: int) -> None:
        """The walk over running pods stops after the first that it removes."""
        for job in self.running:
            if self.card.finished_ns.get(job.uid, now_ns + 1) <= now_ns:
                self.running.remove(job)
                self.available_mib += job.request_mib
                return

    def _may_go(self, job: Job, now_ns: int) -> bool:
        now_s = now_ns // SECOND_NS
        start_s = window_start(now_s, self.last_bind_ns // SECOND_NS, self.rules)
        used = self.card.series(start_s, now_s)
        free = [self.card.capacity_mib - UNSEEN_MIB - mib for mib in used]
        verdict = decide(job.request_mib, self.available_mib, free, used, self.rules)
        self.admitted[verdict.why] += verdict.admits
        return verdict.admits

    def _bind(self, job: Job, now_ns: int) -> int:
        self.card.put(job, now_ns)
        self.running.append(job)
        self.available_mib -= job.request_mib
        self.last_bind_ns = now_ns
        return now_ns + PAUSE_NS


def placed_as_logged(scenario: SharedScenario, placed_ns: Mapping[str, int]) -> list[JobOutcome]:
    """The card alone: every job bound when the log says, whatever the card holds."""
    card = WatchedCard(scenario)
    for job in sorted(scenario.jobs, key=lambda job: placed_ns[job.uid]):
        card.put(job, placed_ns[job.uid])
    while len(card.finished_ns) < len(scenario.jobs):
        due = card.gpus.next_ns()
        assert due is not None
        card.until(due)
    return card.outcomes(scenario.jobs)

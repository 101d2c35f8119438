"""One run: jobs arrive, the engine places their pods, cards run them, policies are shown it all.

The engine is the one that runs live, told by the same events. What it cannot know (what a pod will
use, how much two of them slow each other down) is in `Cards`; it learns of it as it would from
Prometheus, through `Pipeline`, or not at all.
"""

import heapq
from typing import Any

import msgspec

from weft.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
    SignalsChanged,
    Tick,
    Wake,
)
from weft.framework import Policy, Profile
from weft.ledger import Limits
from weft.model import GpuClaim, Memory, Node, PodRequest, Shape
from weft.simulate.sharing.cards import Cards
from weft.simulate.sharing.exporter import SOUND, Exporters, Faults
from weft.simulate.sharing.job import SECOND_NS, Job
from weft.simulate.sharing.outcome import JobOutcome, SharedRun, percentiles, seconds
from weft.simulate.sharing.pipeline import Pipeline, Watching
from weft.simulate.sharing.slowdown import Slowdown

PROFILE = "weft"
_ENDS, _SCRAPES, _ARRIVES, _WAKES, _NOTHING = range(5)
"""At one instant: containers end, then cards are looked at, then pods come, then retries."""

RECREATE_NS = SECOND_NS
"""How long a Job takes to make a new pod for one that was evicted."""


class SharedScenario(msgspec.Struct, frozen=True):
    """GPUs, the jobs that come to them, how these slow each other down, and what is seen of it.

    `harvest_permille` is the declared limit of overcommitment by harvesting, of a card's memory.
    A container that ran out of memory comes back in place (restartPolicy OnFailure), or where not
    `in_place`, its pod fails and its Job makes another one. `inputs` are told to policies before
    anything comes; where not `measured`, nobody looks at the cards.
    """

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    slowdown: Slowdown
    watching: Watching = Watching()
    faults: Faults = SOUND
    harvest_permille: int = 4000
    seed: int = 0
    in_place: bool = True
    inputs: dict[str, Any] = {}
    measured: bool = True


class JobPod:
    """A job's present pod."""

    __slots__ = ("bound_ns", "evictions", "finished_ns", "job", "number", "restarts", "uid")

    def __init__(self, job: Job) -> None:
        self.job, self.uid = job, job.uid
        self.bound_ns: int | None = None
        self.finished_ns: int | None = None
        self.restarts = self.evictions = self.number = 0


class Run:
    """The clock, the heap of what is to come, and what was measured so far."""

    def __init__(self, scenario: SharedScenario, policy: Policy) -> None:
        self.scenario, self.policy = scenario, policy
        self.engine = Engine(
            [Profile(PROFILE, [policy])],
            scenario.nodes,
            seed=scenario.seed,
            limits=_limits(policy, scenario.harvest_permille),
        )
        gpus = {
            (node.name, gpu.index): gpu.memory_mib for node in scenario.nodes for gpu in node.gpus
        }
        self.cards = Cards(gpus, scenario.slowdown)
        looks = scenario.measured and _looks(policy)
        self.pipeline = _pipeline(scenario, self.cards) if looks else None
        self.pods = {job.uid: JobPod(job) for job in scenario.jobs}
        self.waiting = len(self.pods)
        self.heap: list[tuple[int, int, str]] = []
        self.wake_ns: int | None = None
        self.now = self.began = min((job.arrives_ns for job in scenario.jobs), default=0)
        self.resident_ns = self.used_mib_ns = 0

    def go(self) -> SharedRun:
        """Run to the end: until every job completed or failed for good."""
        for name, value in self.scenario.inputs.items():
            self.tell(PolicyInput(name, value))
        for job in self.scenario.jobs:
            heapq.heappush(self.heap, (job.arrives_ns, _ARRIVES, job.uid))
        if self.pipeline is not None:
            heapq.heappush(self.heap, (self.began, _SCRAPES, ""))
        while self.waiting and (due := self._next()) is not None:
            self._pass(due[0])
            if due[1] == _ENDS:
                self._ends()
            else:
                heapq.heappop(self.heap)
                self._happens(due[1], due[2])
        return self._measured()

    def _next(self) -> tuple[int, int, str] | None:
        """What comes next, containers' ends first; None where nothing will ever happen."""
        ends = self.cards.next_ns()
        head = self.heap[0] if self.heap else None
        if ends is not None and (head is None or (ends, _ENDS) <= head[:2]):
            return ends, _ENDS, ""
        only_scrapes = len(self.heap) == 1 and head is not None and head[1] == _SCRAPES
        if only_scrapes and ends is None and self._hopeless():
            return None
        return head

    def _hopeless(self) -> bool:
        """Nothing runs and nothing will come, and the last look at idle cards changed nothing."""
        return not self.cards.where and self.now - self._last_change() > 3600 * SECOND_NS

    def _last_change(self) -> int:
        return max((pod.finished_ns or pod.job.arrives_ns for pod in self.pods.values()), default=0)

    def _pass(self, now_ns: int) -> None:
        """Account for the time until `now_ns`."""
        passed = now_ns - self.now
        self.resident_ns += passed * len(self.cards.where)
        self.used_mib_ns += passed * self.cards.all_used_mib
        self.now = now_ns

    def _happens(self, kind: int, uid: str) -> None:
        if kind == _ARRIVES:
            self.tell(PodAdded(request_of(self.pods[uid], self.now)))
        elif kind == _SCRAPES and self.pipeline is not None:
            period = self.scenario.watching.scrape_ns
            heapq.heappush(self.heap, (self.now + period, _SCRAPES, ""))
            self.tell(SignalsChanged(self.pipeline.tick(self.now, self.engine.ledger)))
        elif kind == _WAKES:
            self.tell(Tick())

    def _ends(self) -> None:
        for ended in self.cards.happen(self.now):
            pod = self.pods[_job_uid(ended.uid)]
            pod.restarts += ended.how != "done"
            if ended.how != "oom":
                self._over(pod, ended.how == "done")
            elif not self.scenario.in_place:
                self._again(pod, out_of_memory=True)

    def _over(self, pod: JobPod, done: bool) -> None:
        """The job completed, or failed for good."""
        self.waiting -= 1
        pod.finished_ns = self.now + pod.job.end_ns if done else None
        self._forget(pod.uid)
        self.tell(PodGone(pod.uid, completed=done))

    def _again(self, pod: JobPod, *, out_of_memory: bool = False) -> None:
        """The pod is gone and its work lost; its Job makes a new one."""
        uid = pod.uid
        self.cards.take(uid, self.now)
        self._forget(uid)
        pod.number += 1
        pod.uid = f"{pod.job.uid}/{pod.number}"
        heapq.heappush(self.heap, (self.now + RECREATE_NS, _ARRIVES, pod.job.uid))
        self.tell(PodGone(uid, out_of_memory, workload=pod.job.uid if out_of_memory else ""))

    def tell(self, event: Event) -> None:
        """Hand an event to the engine and carry out what it wants."""
        commands: list[Command] = self.engine.handle(event, self.now)
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Any) -> None:
        if isinstance(command, Bind):
            self._bind(command)
        elif isinstance(command, Evict):
            pod = self.pods[_job_uid(command.placement.uid)]
            pod.evictions += 1
            self._again(pod)
        elif isinstance(command, Wake) and (
            self.wake_ns is None or command.at_ns < self.wake_ns or self.wake_ns <= self.now
        ):
            self.wake_ns = command.at_ns
            heapq.heappush(self.heap, (command.at_ns, _WAKES, ""))

    def _bind(self, command: Bind) -> None:
        uid, placement = command.pod.uid, command.placement
        pod = self.pods[_job_uid(uid)]
        pod.bound_ns = self.now if pod.bound_ns is None else pod.bound_ns
        self.engine.handle(PodBound(uid), self.now)
        if self.pipeline is not None:
            self.pipeline.bound_ns[uid] = self.now
            self.pipeline.application_of[uid] = pod.job.kind
        job = msgspec.structs.replace(pod.job, uid=uid)
        self.cards.put(job, (placement.node, placement.shares[0].gpu), self.now)
        self.tell(PodSeenBound(placement, bound_ns=self.now))

    def _forget(self, uid: str) -> None:
        if self.pipeline is not None:
            self.pipeline.bound_ns.pop(uid, None)
            self.pipeline.application_of.pop(uid, None)

    def _measured(self) -> SharedRun:
        outcomes = tuple(self._outcome(pod) for pod in self.pods.values())
        ended = [pod.finished_ns for pod in self.pods.values() if pod.finished_ns is not None]
        total_mib = sum(gpu.memory_mib for node in self.scenario.nodes for gpu in node.gpus)
        gpus = sum(len(node.gpus) for node in self.scenario.nodes)
        span = max(1, self.now - self.began)
        return SharedRun(
            policy=self.policy.name, seed=self.scenario.seed, jobs=len(outcomes),
            unfinished=sum(one.finished_s is None for one in outcomes),
            makespan_s=seconds(max(ended, default=0)),
            **percentiles(outcomes),
            ooms=self.cards.ooms, evictions=sum(pod.evictions for pod in self.pods.values()),
            lost_s=seconds(self.cards.lost_ns),
            residents=round(self.resident_ns / span / max(1, gpus), 3),
            memory_used_percent=round(100 * self.used_mib_ns / span / max(1, total_mib), 2),
            outcomes=outcomes,
        )  # fmt: skip

    def _outcome(self, pod: JobPod) -> JobOutcome:
        return JobOutcome(
            pod.job.uid, pod.job.kind, seconds(pod.job.arrives_ns),
            None if pod.bound_ns is None else seconds(pod.bound_ns),
            None if pod.finished_ns is None else seconds(pod.finished_ns),
            pod.restarts, pod.evictions,
        )  # fmt: skip


def run_shared(scenario: SharedScenario, policy: Policy) -> SharedRun:
    """One policy on one workload, to the end."""
    return Run(scenario, policy).go()


def _looks(policy: Policy) -> bool:
    """Whether anything that is measured can change what the policy decides."""
    return "signals" in policy.reads or policy.harvests


def _limits(policy: Policy, permille: int) -> Limits:
    """How far memory may be promised: by harvesting; outright, where the original did just that."""
    if policy.unsafe and not policy.harvests:
        return Limits(overcommit_permille=permille)
    return Limits(harvest_permille=permille)


def _pipeline(scenario: SharedScenario, cards: Cards) -> Pipeline:
    keys = [(node.name, gpu.index) for node in scenario.nodes for gpu in node.gpus]
    exporters = Exporters(cards, keys, scenario.faults, scenario.seed)
    return Pipeline(exporters, scenario.nodes, scenario.watching, scenario.faults.delay_ns)


def _job_uid(uid: str) -> str:
    return uid.partition("/")[0]


def request_of(pod: JobPod, now_ns: int) -> PodRequest:
    """The pod as its dialect would read it: one share of one GPU, so much memory."""
    job = pod.job
    claim = GpuClaim(memory=Memory("mib", job.request_mib))
    shape = Shape((claim,), application=job.kind, job_class=job.job_class)
    return PodRequest(
        pod.uid, pod.uid.replace("/", "-"), shape, created_ns=now_ns, workload=job.uid
    )  # fmt: skip

"""Runs one simulation: jobs arrive, the engine places their pods, GPUs run them, policies see
metrics.

The engine is the one that runs in a cluster, and gets the same events. Facts that it cannot know
there (how much GPU a pod will use, how much pods slow each other) are in `SimulatedGpus`; it
observes them as from Prometheus, through `SimulatedTelemetry`, or not at all."""

from typing import Any

import msgspec

from weft.core.engine import Bind, Evict, events
from weft.core.framework import Profile
from weft.core.ledger import RequestLimits
from weft.core.record import DecisionsWriter
from weft.lab.simulate.event_loop import (
    ARRIVES,
    ENDS,
    LOOKS,
    SCRAPES,
    WAKES,
    Decider,
    EventLoop,
    engine_on_record,
    going_on,
    profile_of,
)
from weft.lab.simulate.sharing.feedback import Feedback, SimulatedProgress
from weft.lab.simulate.sharing.gpus import (
    AS_MEASURED,
    V100_INFERENCE,
    ComputeSharing,
    PowerModel,
    SimulatedGpus,
    SlowdownModel,
)
from weft.lab.simulate.sharing.job import SECOND_NS, Job, outcome_of
from weft.lab.simulate.sharing.outcome import (
    JobOutcome,
    SharedRun,
    UsagePoint,
    percentiles,
    seconds,
)
from weft.lab.simulate.sharing.pipeline import (
    SOUND,
    ExporterFaults,
    ScrapeOptions,
    SimulatedExporters,
    SimulatedTelemetry,
)
from weft.model import GpuMemoryRequest, GpuRequest, Node, PodRequest, Shape
from weft.model.request import rounded_s

# Container images on nodes: pulled when a container first needs one, and kept from then on
#
# A node pulls one image after another, which is the kubelet's default.


class NodeImages:
    """Images on nodes, pulled at `mib_per_s`; 0: every node has all images."""

    def __init__(self, mib_per_s: float) -> None:
        self._mib_per_s = mib_per_s
        self._ready_ns: dict[tuple[str, str], int] = {}
        self._busy_until_ns: dict[str, int] = {}

    def wait_ns(self, node: str, image: str, image_mib: int, now_ns: int) -> int:
        """Return the ns that a container which starts now waits for its image."""
        if not self._mib_per_s or not image_mib:
            return 0
        ready_ns = self._ready_ns.get((node, image))
        if ready_ns is None:
            begins_ns = max(now_ns, self._busy_until_ns.get(node, 0))
            ready_ns = begins_ns + round(image_mib / self._mib_per_s * 1_000_000_000)
            self._ready_ns[node, image] = self._busy_until_ns[node] = ready_ns
        return max(0, ready_ns - now_ns)


RECREATE_NS = SECOND_NS
"""Time that a Job takes to create a new pod for an evicted one."""


class SharedScenario(msgspec.Struct, frozen=True):
    """GPUs, the jobs that arrive, their slowdowns on shared GPUs, and the metrics that policies
    see.

    `harvest_permille` limits how far a GPU's memory may be overcommitted by harvesting. A container
    that ran out of memory is restarted in place (restartPolicy OnFailure), or, without `in_place`,
    its pod fails and its Job creates another. `inputs` go to policies before the first job arrives;
    without `measured`, GPUs are not scraped. `feedback` are the settings of polling jobs' progress
    (None: no polling). `power` is the GPUs' power model, `sharing` the slowdown of containers that
    together need more compute than the GPU has. Nodes pull images at `pull_mib_per_s`, 0: images
    are present. Without `knows_kinds`, pods do not name their program, so that nothing is known
    from earlier runs."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    slowdown: SlowdownModel
    watching: ScrapeOptions = ScrapeOptions()
    faults: ExporterFaults = SOUND
    harvest_permille: int = 4000
    seed: int = 0
    in_place: bool = True
    inputs: dict[str, Any] = {}
    measured: bool = True
    feedback: Feedback | None = None
    power: PowerModel = V100_INFERENCE
    sharing: ComputeSharing = AS_MEASURED
    pull_mib_per_s: float = 0.0
    knows_kinds: bool = True


class JobPod:
    """A job's present pod, and the job's times and counts."""

    __slots__ = (
        "bound_ns",
        "evictions",
        "finished_ns",
        "job",
        "number",
        "restarts",
        "uid",
        "work_ns",
    )

    def __init__(self, job: Job) -> None:
        self.job, self.uid, self.work_ns = job, job.uid, job.work_ns
        self.bound_ns: int | None = None
        self.finished_ns: int | None = None
        self.restarts = self.evictions = self.number = 0


class SharingRun(EventLoop[str]):
    """The run of one scenario: simulated GPUs, their telemetry, and measurements."""

    nobody = ""

    def __init__(
        self, scenario: SharedScenario, decider: Decider, decisions: DecisionsWriter | None = None
    ) -> None:
        self.scenario, self.profile = scenario, profile_of(decider)
        limits = _limits(self.profile, scenario.harvest_permille)
        engine, forgiving = engine_on_record(self.profile, scenario.seed, limits, decisions)
        self.began = min((job.arrives_ns for job in scenario.jobs), default=0)
        super().__init__(engine, going_on(forgiving), [], self.began)
        self.name = decider.name
        self._handle(events.NodesChanged(scenario.nodes), 0)
        nodes = scenario.nodes
        gpus = {(node.name, gpu.index): gpu.memory_mib for node in nodes for gpu in node.gpus}
        self.cards = SimulatedGpus(
            gpus, scenario.slowdown, self.began, scenario.power, scenario.sharing
        )
        self.images = NodeImages(scenario.pull_mib_per_s)
        looks = scenario.measured and _looks(self.profile)
        self.pipeline = _pipeline(scenario, self.cards) if looks else None
        self.progress = None
        if scenario.feedback is not None:
            self.progress = SimulatedProgress(
                scenario.feedback, self.cards, nodes, scenario.inputs, scenario.seed
            )
        self.slowdown_evictions = 0
        self.pods = {job.uid: JobPod(job) for job in scenario.jobs}
        self.waiting = len(self.pods)
        self._untold: list[int] = []
        self.resident_ns = self.used_mib_ns = 0
        self.without_place = 0
        self.gpu_count = sum(len(node.gpus) for node in nodes)
        self.usage: list[UsagePoint] = []

    def go(self) -> SharedRun:
        """Run until every job has completed or failed for good, and return the results."""
        for name, value in self.scenario.inputs.items():
            self.tell(events.PolicyInput(name, value))
        for job in self.scenario.jobs:
            self.schedule(job.arrives_ns, ARRIVES, job.uid)
        if self.pipeline is not None:
            self.pipeline.begin(self.began)
            self.schedule(self.began, SCRAPES, "")
        if self.progress is not None:
            self.schedule(self.began, LOOKS, "")
        self.run()
        return self._measured()

    def _next(self) -> tuple[int, int, str] | None:
        """Return the next event; of several at the same time, a container's end comes first.

        None at the end, or if no job can ever be placed."""
        if not self.waiting:
            return None
        ends = self.cards.next_ns()
        head = self.heap[0] if self.heap else None
        if ends is not None and (head is None or (ends, ENDS) <= head[:2]):
            return ends, ENDS, ""
        if ends is None and self._only_looks() and self._hopeless():
            return None
        return head

    def _only_looks(self) -> bool:
        """Return True if only scrapes and polls are left in the heap."""
        return 0 < len(self.heap) <= 2 and all(kind in {SCRAPES, LOOKS} for _, kind, _ in self.heap)

    def _hopeless(self) -> bool:
        """Return True if no job has run or arrived for an hour of simulated time, so that none ever
        will."""
        return not self.cards.where and self.now - self._last_change() > 3600 * SECOND_NS

    def _last_change(self) -> int:
        return max((pod.finished_ns or pod.job.arrives_ns for pod in self.pods.values()), default=0)

    def _advance(self, at_ns: int, kind: int) -> None:
        """Add up use over the time until the next event, and pass the delayed snapshots to the
        engine."""
        if kind != SCRAPES:
            self._tell_looks()
        passed = at_ns - self.now
        self.resident_ns += passed * len(self.cards.where)
        self.used_mib_ns += passed * self.cards.all_used_mib
        self.now = at_ns

    def _note_usage(self) -> None:
        """Add a point of use if anything changed; of several at one time the last is kept."""
        cards, points = self.cards, self.usage
        point = UsagePoint(
            seconds(self.now),
            round(100 * cards.all_util / max(1, self.gpu_count), 3),
            cards.all_used_mib,
            round(cards.all_watts, 3),
            len(cards.where),
            self.without_place,
        )
        if points and points[-1].at_s == point.at_s:
            points[-1] = point
        elif not points or msgspec.structs.replace(points[-1], at_s=point.at_s) != point:
            points.append(point)

    def _happens(self, kind: int, key: str) -> None:
        if kind == ENDS:
            self._ends()
        else:
            self._comes(kind, key)
        self._note_usage()

    def _comes(self, kind: int, uid: str) -> None:
        if kind == ARRIVES:
            self.without_place += 1
            request = request_of(self.pods[uid], self.now, self.scenario.knows_kinds)
            self.tell(events.PodAdded(request))
        elif kind == SCRAPES and self.pipeline is not None:
            self.schedule(self.now + self.scenario.watching.scrape_ns, SCRAPES, "")
            self.pipeline.scrape(self.now, self.engine.ledger)
            self._untold.append(self.now)
            if not self._can_wait():
                self._tell_looks()
        elif kind == WAKES:
            self.tell(events.Tick())
        elif kind == LOOKS and self.progress is not None and self.scenario.feedback is not None:
            self.schedule(self.now + self.scenario.feedback.period_ns, LOOKS, "")
            self._look_at(self.progress)

    def _look_at(self, progress: SimulatedProgress) -> None:
        """Poll jobs' progress, and pass it to the engine and the policies."""
        looked = progress.look(self.now)
        if looked is not None:
            self.tell(looked)
        due = progress.due(self.now)
        if due is not None:
            self.tell(due)

    def _can_wait(self) -> bool:
        """Return True if new snapshots cannot change decisions before the next event: no pod
        borrows, and every pending pod requests more than any GPU has free."""
        if self.pipeline is None or not self.pipeline.can_wait or self.profile.harvests:
            return False
        if self.wake_ns is not None and self.wake_ns > self.now:
            return False
        uids = [_job_uid(waiting.pod.uid) for waiting in self.engine.queue.waiting()]
        least = min((self.pods[uid].job.request_mib for uid in uids), default=None)
        return least is None or least > int(self.engine.ledger.table.device_memory_free.max())

    def _tell_looks(self) -> None:
        """Pass the delayed snapshots to the engine, each at its time, all with the contents of the
        newest."""
        if not self._untold or self.pipeline is None:
            return
        looks, self._untold = self._untold, []
        version = self.engine.signals.version + len(looks)
        last = self.pipeline.snapshot(looks[-1], version)
        for ago, at_ns in zip(range(len(looks) - 1, -1, -1), looks, strict=True):
            snapshot = msgspec.structs.replace(last, version=version - ago)
            self.tell(events.SignalsChanged(snapshot), at_ns)

    def _ends(self) -> None:
        for ended in self.cards.advance(self.now):
            pod = self.pods[_job_uid(ended.uid)]
            if ended.uid != pod.uid:  # an earlier end at this instant has replaced the pod
                continue
            pod.restarts += ended.how != "done"
            if ended.how != "oom":
                self._over(pod, ended.how == "done")
            elif not self.scenario.in_place:
                self._again(pod, out_of_memory=True)

    def _over(self, pod: JobPod, done: bool) -> None:
        """Handle a job that completed or failed for good."""
        self.waiting -= 1
        pod.finished_ns = self.now + pod.job.end_ns if done else None
        self._forget(pod.uid)
        self.tell(events.PodGone(pod.uid, completed=done))

    def _again(self, pod: JobPod, *, out_of_memory: bool = False, keeps_work: bool = False) -> None:
        """Delete the pod and schedule its replacement; its work is lost unless `keeps_work`."""
        uid = pod.uid
        if keeps_work:
            pod.job = msgspec.structs.replace(pod.job, phases=self.cards.suspend(uid, self.now))
        else:
            self.cards.take(uid, self.now)
        self._forget(uid)
        pod.number += 1
        pod.uid = f"{pod.job.uid}/{pod.number}"
        self.schedule(self.now + RECREATE_NS, ARRIVES, pod.job.uid)
        self.tell(events.PodGone(uid, out_of_memory, workload=pod.job.uid if out_of_memory else ""))

    def _evict(self, command: Evict) -> None:
        pod, feedback = self.pods[_job_uid(command.placement.uid)], self.scenario.feedback
        pod.evictions += 1
        keeps = False
        if self.progress is not None and command.record.slowed is not None:
            self.slowdown_evictions += 1
            keeps = feedback is not None and feedback.keeps_work
            apart = self.progress.separate(command, self.now)
            if apart is not None:
                self.tell(apart)
        self._again(pod, keeps_work=keeps)

    def _bind(self, command: Bind) -> None:
        uid, placement = command.pod.uid, command.placement
        pod = self.pods[_job_uid(uid)]
        self.without_place -= 1
        pod.bound_ns = self.now if pod.bound_ns is None else pod.bound_ns
        self._handle(events.PodBound(uid), self.now)
        if self.pipeline is not None:
            self.pipeline.bound_s[uid] = self.now / SECOND_NS
        job = msgspec.structs.replace(pod.job, uid=uid)
        pull_ns = self.images.wait_ns(placement.node, job.kind, job.image_mib, self.now)
        if pull_ns:
            job = msgspec.structs.replace(job, start_ns=job.start_ns + pull_ns)
        self.cards.put(job, (placement.node, placement.shares[0].gpu), self.now)
        self.tell(events.PodSeenBound(placement, bound_ns=self.now))

    def _forget(self, uid: str) -> None:
        if self.pipeline is not None:
            self.pipeline.bound_s.pop(uid, None)

    def _measured(self) -> SharedRun:
        outcomes = tuple(self._outcome(pod) for pod in self.pods.values())
        ended = [pod.finished_ns for pod in self.pods.values() if pod.finished_ns is not None]
        total_mib = sum(gpu.memory_mib for node in self.scenario.nodes for gpu in node.gpus)
        gpus = self.gpu_count
        span = max(1, self.now - self.began)
        util_s, energy_j = self.cards.used_until(self.now)
        idle_w = self.scenario.power.watts(used=False, activity=0.0)
        return SharedRun(
            policy=self.name,
            seed=self.scenario.seed,
            jobs=len(outcomes),
            unfinished=sum(outcome.finished_s is None for outcome in outcomes),
            makespan_s=seconds(max(ended, default=0)),
            **percentiles(outcomes),
            ooms=self.cards.ooms,
            evictions=sum(pod.evictions for pod in self.pods.values()),
            lost_s=seconds(self.cards.lost_ns),
            slowdown_evictions=self.slowdown_evictions,
            critical_slow_percent=_slow_percent(self.progress),
            residents=round(self.resident_ns / span / max(1, gpus), 3),
            memory_used_percent=round(100 * self.used_mib_ns / span / max(1, total_mib), 2),
            gpu_util_percent=round(100 * util_s / seconds(span) / max(1, gpus), 2),
            energy_kj=round(energy_j / 1000, 3),
            idle_energy_kj=round(idle_w * gpus * seconds(span) / 1000, 3),
            outcomes=outcomes,
            usage=tuple(self.usage),
        )

    def _outcome(self, pod: JobPod) -> JobOutcome:
        job, work_ns = pod.job, pod.work_ns
        bound_ns = self.now if pod.bound_ns is None else pod.bound_ns
        waited_ns = bound_ns - job.arrives_ns + self.cards.lost_of.get(job.uid, 0)
        asked = outcome_of(job.queries, work_ns, self._served(pod), waited_ns)
        return JobOutcome(
            job.uid,
            job.kind,
            seconds(job.arrives_ns),
            None if pod.bound_ns is None else seconds(pod.bound_ns),
            None if pod.finished_ns is None else seconds(pod.finished_ns),
            pod.restarts,
            pod.evictions,
            seconds(work_ns),
            asked.queries,
            asked.late,
            asked.p90_s,
            asked.p99_s,
        )

    def _served(self, pod: JobPod) -> dict[int, int]:
        """Return the job's ns of work by slowdown in permille, summed over its pods."""
        all_served: dict[int, int] = {}
        for number in range(pod.number + 1):
            uid = f"{pod.job.uid}/{number}" if number else pod.job.uid
            for permille, work in self.cards.served.get(uid, {}).items():
                all_served[permille] = all_served.get(permille, 0) + work
        return all_served


def run_shared(
    scenario: SharedScenario, decider: Decider, decisions: DecisionsWriter | None = None
) -> SharedRun:
    """Run one policy or profile on one workload to the end, with the metrics that it reads.

    Decisions are written to `decisions`, if given."""
    watching = scenario.watching.read_by(profile_of(decider).policies)
    shown = msgspec.structs.replace(scenario, watching=watching)
    return SharingRun(shown, decider, decisions).go()


def _looks(profile: Profile) -> bool:
    """Return True if metrics can change the profile's decisions."""
    return "signals" in profile.reads or profile.harvests


def _limits(profile: Profile, permille: int) -> RequestLimits:
    """Return the limits on overcommitting memory: of harvested memory only, or of all requests if
    the original of a policy overcommits."""
    if not profile.harvests and any(policy.unsafe for policy in profile.policies):
        return RequestLimits(overcommit_permille=permille)
    return RequestLimits.declared(harvest_permille=permille)


def _pipeline(scenario: SharedScenario, cards: SimulatedGpus) -> SimulatedTelemetry:
    keys = [(node.name, gpu.index) for node in scenario.nodes for gpu in node.gpus]
    faults = scenario.faults
    exporters = SimulatedExporters(cards, keys, faults, scenario.seed)
    return SimulatedTelemetry(exporters, scenario.nodes, scenario.watching, faults.delay_ns)


def _slow_percent(progress: SimulatedProgress | None) -> float | None:
    if progress is None or not progress.looks:
        return None
    return round(100 * progress.slow_looks / progress.looks, 3)


def _job_uid(uid: str) -> str:
    return uid.partition("/")[0]


def request_of(pod: JobPod, now_ns: int, knows_kinds: bool = True) -> PodRequest:
    """Return the pod's request as a dialect would read it: a share of one GPU with its requested
    memory."""
    job = pod.job
    gpu_request = GpuRequest(memory=GpuMemoryRequest("mib", job.request_mib))
    expected_s = rounded_s(job.expected_s) if job.expected_s else 0
    shape = Shape(
        (gpu_request,),
        application=job.kind if knows_kinds else job.uid,
        job_class=job.job_class,
        expected_s=expected_s,
        slowdown_limit=job.slowdown_limit,
    )
    name = pod.uid.replace("/", "-")
    return PodRequest(pod.uid, name, shape, created_ns=now_ns, workload=job.uid)

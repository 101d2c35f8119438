"""Lists the parts that run only in the leader, and connects each to its events.

    a container ended          `ends`, which tells the engine if it ran out of memory
    a pod was bound, or left   `started`, `preemptor`; `groups` (left)
    a node changed             `units`; `guard`, which checks its GPUs
    events were handled        `guard`, `past_scheduler`
    the engine's commands      `evictor`, `preemptor`, `guard`, `oom_history`

Each part takes what it needs in its constructor; the cluster starts and stops them with
leadership."""

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.eviction.evictor import Evictor
from weft.cluster.eviction.overbooking_guard import OverbookingGuard
from weft.cluster.eviction.past_scheduler import PastScheduler, Treatment
from weft.cluster.eviction.preemptor import Preemptor
from weft.cluster.leader.gpushare_units import UnitMismatches
from weft.cluster.leader.group_conditions import GroupConditions
from weft.cluster.leader.group_status import GroupStatuses
from weft.cluster.leader.started_marks import StartedMarks
from weft.cluster.stores.oom_history_store import OomHistoryStore
from weft.cluster.telemetry.oom_watch import OomWatch
from weft.core.engine import (
    Evict,
    EvictionWaived,
    Learnt,
    Nominate,
    PeakLearnt,
    SlowdownReason,
)
from weft.core.engine.reasons import summarise
from weft.core.explain.sentences import pending_in_words
from weft.dialects.groups import KUBERNETES, SCHEDULER_PLUGINS
from weft.kube.configmap import OwnConfigMap
from weft.model import PodRequest


class LeaderParts:
    """Parts of one live cluster that run only in the leader.

    `config_map` stores the OOM history and learnt peaks; `past_scheduler` says how to treat pods
    with Weft's schedulerName that another party bound. `group_status`: statuses of
    scheduler-plugins' PodGroups are written."""

    def __init__(
        self,
        live: EngineCluster,
        *,
        config_map: OwnConfigMap | None = None,
        past_scheduler: Treatment = "charge",
        group_status: bool = True,
    ) -> None:
        self.live = live
        client, pods, nodes = live.client, live.pods, live.nodes
        self.evictor = Evictor(
            client,
            pods,
            notify=live.notice,
            report=live.handle,
            may_write=live.may_write,
            on_slowdown_eviction=self._slowed,
        )
        self.preemptor = Preemptor(
            client,
            pods,
            live.engine,
            notify=live.notice,
            report=live.handle,
            may_write=live.may_write,
        )
        self.guard = OverbookingGuard(
            client,
            live.engine,
            pods,
            nodes,
            notify=live.notice,
            report=live.handle,
            evictor=self.evictor,
        )
        self.past_scheduler = PastScheduler(
            client, pods, live.notice, live.may_write, past_scheduler
        )
        self.started = StartedMarks(client, pods, nodes, live.may_write)
        self.groups = GroupConditions(client, pods, self._waits_for, live.may_write)
        self.group_statuses = GroupStatuses(client, pods, live.may_write)
        self._group_status = group_status
        self.units = UnitMismatches(nodes, live.options.gpushare_unit, live.notice)
        self.ends = OomWatch(pods, self._peak_mib)
        self.oom_history = OomHistoryStore(
            client, config_map, live.engine, live.handle, live.may_write
        )
        self._listen()

    def _listen(self) -> None:
        live, hooks = self.live, self.live.hooks
        hooks.ends.append(self.ends.of)
        hooks.bound += (self.started.observe, self.preemptor.observe)
        hooks.gone += (self.started.forget, self.groups.forget, self.preemptor.forget)
        hooks.nodes.append(self.units.check)
        hooks.touched.append(self.guard.touch)
        hooks.accounts += (self.guard.check, self.past_scheduler.check)
        if live.engine.preemption.on:  # otherwise decisions are of no interest
            live.on_decision.append(self.preemptor.hear)
        live.carry(Evict, self._evict)
        live.carry(Nominate, self.preemptor.nominate)
        live.carry(EvictionWaived, self.guard.waive)
        live.carry(Learnt, self._keep)
        live.carry(PeakLearnt, self._keep)
        live.stores.append(self.oom_history)
        live.pods.groups.on_follow.append(self._followed)
        live.parts += (self.evictor, self.guard, self.past_scheduler, self.started, self.units)
        live.parts += (self.groups, self.preemptor)

    def _evict(self, command: Evict) -> None:
        if why := command.record.preempted:
            self.preemptor.end(command, why)
        else:
            self.evictor.evict(command)

    def _followed(self, system: str) -> None:
        live, statuses = self.live, self.group_statuses
        if system == KUBERNETES:  # otherwise decisions are of no interest
            live.on_decision.append(self.groups.hear)
        if system == SCHEDULER_PLUGINS and self._group_status:
            live.on_decision.append(statuses.hear)
            live.hooks.bound.append(statuses.observe)
            live.hooks.gone.append(statuses.forget)
            live.parts.append(statuses)
            if live.leadership.here:
                statuses.lead()

    def _waits_for(self, request: PodRequest) -> str:
        engine = self.live.engine
        known = engine.assess(engine.profile_of(request), request)
        summary = summarise(engine.ledger.table, known, request.warnings)
        return pending_in_words(summary, request.shape.constraints.unsupported, "")

    def _keep(self, command: Learnt | PeakLearnt) -> None:
        with self.live.faults.beside("writing learnt peaks"):
            self.oom_history.learnt(command)

    def _slowed(self, slowed: SlowdownReason) -> None:
        for hook in self.live.hooks.slowdown_evictions:
            with self.live.faults.beside("reporting an eviction"):
                hook(slowed)

    def _peak_mib(self, uid: str) -> int:
        most_mib = 0
        for peak_mib in self.live.hooks.peaks:
            with self.live.faults.beside("reading what a pod used"):
                most_mib = max(most_mib, peak_mib(uid))
        return most_mib

"""The engine: events in, commands out.

What may change here: the ledger, the queue, and which pods are bound or being bound. It must not
know the time (passed in), the outside world (hosts), or how policies compute scores (it asks and
compares). Every decision is a pure function of the events so far, the configuration and the seed.

A pod's life here
    PodAdded ──▶ queue ──cycle──▶ reserved ───────────▶ Bind command
                   ▲                 │                      │ PodBound ──▶ committed
                   │   BindFailed / expired ◀────────────────┘
                   └─────────────────┘         PodGone, from anywhere ──▶ forgotten, share freed
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.ma  # np.unique imports it at its first call: 40 ms that no event should take
from msgspec import UNSET

from weft.core.constraints import ExistingPods, ImagesOnNodes, PodAnswer, PodWishes, answers
from weft.core.engine import (
    bind_on,
    deciding,
    decision_faults,
    events,
    gang_preempting,
    gang_search,
    head_of_line,
    inputs,
    nomination_events,
    pair_matching,
    preempting,
)
from weft.core.engine.assessment import (
    LOOKS_BESIDE,
    LOOKS_LAID_OUT,
    LOOKS_MATCHED,
    LOOKS_WAITING,
    LOOKS_WOKEN,
    TURN_LOOKS,
    TURN_NS,
    Assessment,
    Assessor,
)
from weft.core.engine.deciding import (
    DecisionAttempt,
    EvictionReason,
    Journal,
    PlacedPod,
)
from weft.core.engine.decision_faults import Faulted, SideTasks
from weft.core.engine.events import Command, Event, Evict, Unschedulable, Wake
from weft.core.engine.fair_order import FairPods
from weft.core.engine.forecasts import NO_FORECASTS, Forecasts
from weft.core.engine.gangs import MISSING_GRACE_NS, GangMembers
from weft.core.engine.harvest import RAN_LONG_NS, HarvestRules
from weft.core.engine.kept_places import NONE_KEPT, KeptPlaces
from weft.core.engine.nominations import Nomination, Preemption
from weft.core.engine.oom_history import OomHistory, OutOfMemory, workload_of
from weft.core.engine.parked import FreedNode
from weft.core.engine.peak_usage import Peaks
from weft.core.engine.pricing import PRICING, PriceLists
from weft.core.engine.queue import Queue, WaitingPod
from weft.core.engine.records import PreemptionPlan
from weft.core.engine.slowdown_eviction import SlowdownEviction, tolerance_of
from weft.core.engine.team_queues import NO_TEAMS, TeamQueues
from weft.core.framework import Policy, Profile
from weft.core.framework import policy as ask
from weft.core.framework.policy import SlowdownTolerance
from weft.core.framework.query import Observations
from weft.core.framework.residency import Residencies
from weft.core.framework.signals import NO_SIGNALS, SignalsSnapshot, SignalsView
from weft.core.ledger import FAR, STRICT, Holding, Ledger, RequestLimits
from weft.core.policies.queue import DISCIPLINES
from weft.model import Code, Node, PodRequest, Shape
from weft.model.queue_rules import (
    NO_MOVES,
    NO_QUEUES,
    NOTHING_KEPT,
    HeadOfLine,
    MoveRules,
    QueueRules,
)

_LEARNING = "learning what pods use"


class Engine:
    """Makes the scheduling decisions of one or several profiles, and keeps the ledger of what pods
    hold.

    A pod's schedulerName selects one of `profiles` (see `profile_of` for other names). `seed` is
    for policies that choose at random; `keep_top` is how many of the best nodes each record lists;
    `bind_timeout_ns` is how long a `Bind` may go unanswered before the place is free again;
    `limits` say how far GPUs' memory may be overcommitted. `turn_looks`: after this many looks at
    nodes the work of one event, or of several at one moment, pauses; an immediate `Wake` asks for a
    `Tick`, which continues it, and until then pods are only queued (0: never). `queues` are teams'
    shares of the cluster; `head_of_line` says when places are kept for waiting gangs and pods,
    `moves` when pods are moved for them. A `Wake` is also sent when prices are new, so that scores
    are computed between decisions."""

    def __init__(
        self,
        profiles: Sequence[Profile],
        nodes: Iterable[Node] = (),
        *,
        seed: int = 0,
        keep_top: int = 0,
        bind_timeout_ns: int = FAR,
        limits: RequestLimits = STRICT,
        turn_looks: int = 0,
        queues: QueueRules = NO_QUEUES,
        head_of_line: HeadOfLine = NOTHING_KEPT,
        moves: MoveRules = NO_MOVES,
    ) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self.by_residents = any("co_residents" in profile.reads for profile in profiles)
        self.ledger = Ledger(nodes, limits)
        self.harvest = HarvestRules(self.ledger)
        self.slowdown_eviction = SlowdownEviction(self.ledger, self.harvest)
        self.side_tasks = SideTasks()
        self.journal = Journal(self.ledger, keep_top, self.side_tasks)
        self.oom_history, self.peaks = OomHistory(), Peaks()
        self.assessor = Assessor(self.ledger)
        self.price_lists = PriceLists(self.policies, self.ledger, self.side_tasks)
        self.residencies = Residencies()
        self.observe(NO_SIGNALS)
        self.teams = NO_TEAMS if queues is NO_QUEUES else TeamQueues(queues, self.ledger)
        rules, goes_next = head_of_line, DISCIPLINES[head_of_line.discipline]
        self.forecasts = Forecasts(rules, self.ledger) if goes_next.forecasts else NO_FORECASTS
        order = self.forecasts.order if goes_next.orders else None
        self.queue = Queue(self.teams, FairPods(self.teams) if self.teams.is_fair else None, order)
        self.existing, self.images = ExistingPods(), ImagesOnNodes()
        preempts, gang_of = any(each.preempts for each in profiles), self.queue.gangs.of_placed
        self.preemption = Preemption(self.ledger, self.existing, gang_of, moves, on=preempts)
        off = head_of_line is NOTHING_KEPT
        self.kept_places = NONE_KEPT if off else KeptPlaces(head_of_line, self.ledger)
        self.fits_only = Assessor(self.ledger)  # answers without scores, for trials
        self.placed: dict[str, PlacedPod] = {}
        self.seed, self.keep_top = seed, keep_top
        self.bind_timeout_ns, self.turn_looks = bind_timeout_ns, turn_looks
        self._stopped, self._until, self._turn_began_ns = False, 0, -FAR
        self._default = profiles[0]

    @property
    def policies(self) -> list[Policy]:
        """Return all profiles' policies."""
        return [policy for profile in self.profiles.values() for policy in profile.policies]

    @property
    def signals(self) -> SignalsView:
        """Return the GPUs' signals, as policies see them."""
        return self.assessor.observed.signals

    def observe(self, signals: SignalsView) -> None:
        """Set the signals that policies see from now on."""
        self.assessor.observed = Observations(signals, self.residencies)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Handle one event at `now_ns` (of any monotonic clock), and return commands. Raises only
        if the ledger is inconsistent.
        """
        out: list[Command] = []
        self._begin_turn(event, now_ns)
        self.residencies.now_ns = now_ns
        if isinstance(event, events.PodBound):
            self.ledger.commit(event.uid)
            self.queue.gangs.is_bound(event.uid)
            self._work_ahead()
            return [*self.side_tasks.take_faults()]
        self._take_in(event, now_ns, out)
        self.queue.tick(now_ns)
        self.assessor.looked += LOOKS_WOKEN * self.queue.groups_looked_at()
        if isinstance(event, events.Tick) or not self._stopped:
            # Cycles, until the work budget is used up; a `Tick` runs at least one.
            until = self._until if self.turn_looks else FAR
            is_over = self.assessor.looked >= until and not isinstance(event, events.Tick)
            while True:
                if self.existing.has_moved or self.existing.volumes.moved:
                    self.queue.wake_for_pods(self.existing.take_moved(), now_ns)
                if is_over or (waiting := self.queue.pop()) is None:
                    break
                began = self.assessor.looked
                self._try(waiting, now_ns, out)
                self.queue.worked(waiting, self.assessor.looked - began)
                is_over = self.assessor.looked >= until
            self._stopped = self.queue.active
            self.queue.take_turns(by_turns=self._stopped)
        wake = self.queue.next_ns()
        if self.price_lists.lists:
            self._price(partial(self.price_lists.renew, now_ns))
        if isinstance(event, events.WORKS_AHEAD):
            self._work_ahead()
        if self.peaks.fresh:
            out.extend(self.side_tasks.run(_LEARNING, self.peaks.news, []))
        if self.side_tasks.faults:
            out.extend(self.side_tasks.take_faults())
        preemption, kept = self.preemption, self.kept_places
        if self._stopped or self.assessor.dear:
            wake = now_ns
        wake = kept.next_ns(wake, now_ns) if kept.turns or kept.paused else wake
        wake = preemption.moves.next_ns(wake) if preemption.moves.since else wake
        if wake is not None:
            out.append(Wake(wake))
        return out

    def _take_in(self, event: Event, now_ns: int, out: list[Command]) -> None:
        """Apply the event. If it reports measurements, and handling it fails, the engine continues
        without them."""
        try:
            self._apply(event, now_ns, out)
        except Exception as error:
            if not isinstance(event, events.MEASURED) or self.journal.stops_by(error):
                raise
            inputs.leave_out(self, event)
            task = f"taking in {type(event).__name__}"
            record = self.journal.broke_off(None, now_ns, decision_faults.in_words(error, task))
            out.append(Faulted(record, error))
        preemption, kept = self.preemption, self.kept_places
        if preemption.nominations or preemption.gathers_since or kept.turns or kept.paused:
            head_of_line.look(self, now_ns, out)

    def _begin_turn(self, event: Event, now_ns: int) -> None:
        """Start a new work budget for the event, or continue with the budget of earlier events of
        the same moment."""
        late = now_ns - self._turn_began_ns >= TURN_NS
        if late or isinstance(event, events.Tick) or not self.turn_looks:
            self._until = self.assessor.looked + (self.turn_looks or TURN_LOOKS)
            self._turn_began_ns = now_ns

    def _apply(self, event: Event, now_ns: int, out: list[Command]) -> None:
        match event:
            case events.PodAdded():
                self._add(event.pod, now_ns, out)
            case events.PodGone():
                self._gone(event, now_ns, out)
            case events.NodesChanged():
                self._nodes_changed(event, now_ns, out)
            case events.BindOn():
                self._bind_requested(event, now_ns, out)
            case events.PodFitsNowhere():
                self._comes(event.uid, now_ns)
            case events.PodSeenBound():
                self._seen_bound(event, now_ns, out)
            case events.BindFailed():
                self._bind_failed(event.uid, now_ns, out)
            case events.Tick():
                self._tick(now_ns, out)
            case events.NodesClosed():
                self.ledger.close(event.nodes)
            case events.VolumesChanged():
                event.tell(self.existing.volumes)
            case events.SignalsChanged():
                _signals_changed(self, event.signals, now_ns, out)
            case _:
                inputs.apply(self, event, now_ns, out)

    def _nodes_changed(self, event: events.NodesChanged, now_ns: int, out: list[Command]) -> None:
        if changed := self.ledger.set_nodes(event.nodes, event.removed):
            if self.teams.count:
                self.teams.nodes_changed(changed)
            self.assessor.looked += LOOKS_LAID_OUT * self.ledger.table.count
            if event.nodes or self.existing.are_counted:  # fewer domains: another minimum
                self.queue.wake_all(now_ns)
            if self.preemption.nominations or self.preemption.moves.since:
                nomination_events.nodes_changed(self, event.removed, now_ns, out)
            if self.kept_places.on:
                head_of_line.nodes_changed(self, changed, now_ns)
        self._price(partial(self.price_lists.nodes_changed, now_ns))

    def _work_ahead(self) -> None:
        """After new prices, score ahead the shapes about which pods are likely to ask, if the work
        budget is not used up."""
        if not self._stopped and self.assessor.dear:
            self.side_tasks.run(
                "scoring ahead", partial(self.assessor.work_ahead, self._until), None
            )

    def _price(self, make: Callable[[], bool]) -> None:
        """Recompute prices by `make`, which returns True if scores are now out of date."""
        try:
            if make():
                self.assessor.reprice()
        except Exception as error:
            self.side_tasks.broke_off(PRICING, error)

    def _tick(self, now_ns: int, out: list[Command]) -> None:
        for uid in self.ledger.expire(now_ns):
            self._unwind(uid, now_ns, out)
        gang_search.evict_broken(self, now_ns, out)
        if self.preemption.on:
            nomination_events.due(self, now_ns)

    # --- one event each ----------------------------------------------------------------------

    def profile_of(self, pod: PodRequest) -> Profile:
        """Return the profile of the pod's scheduler, else that of the system whose resources it
        requests, else the first one."""
        names = (pod.scheduler_name, *pod.system_names)
        return next((self.profiles[name] for name in names if name in self.profiles), self._default)

    def _add(self, pod: PodRequest, now_ns: int, out: list[Command]) -> None:
        if pod.uid in self.placed or pod.uid in self.ledger.holdings:
            return
        profile, first = self.profile_of(pod), False
        if self.teams.count:
            self.teams.belongs(pod.uid, pod.team_queue)
        self._comes(pod.uid, now_ns)
        if self.oom_history.owed:
            goes_first = partial(self.oom_history.goes_first, pod)
            first = self.side_tasks.run(_LEARNING, goes_first, instead=False)
        try:
            as_old = self.queue.gangs.comes(pod, now_ns) if pod.gang else pod
            order = ask.queue_order(profile.lead, as_old)
            self.queue.add(pod, profile, now_ns, order, first=first)
        except Exception as error:  # the policy fails to order the pod: it waits until it changes
            self._broke_off(DecisionAttempt(pod, profile.name, 0), error, now_ns, out)
        if pod.gang:
            gang_search.tell_if_gathering(self, pod, now_ns, out)

    def _comes(self, uid: str, now_ns: int) -> None:
        if self.price_lists.lists:
            self._price(partial(self.price_lists.comes, uid, now_ns))

    def _gone(self, event: events.PodGone, now_ns: int, out: list[Command]) -> None:
        uid, gangs = event.uid, self.queue.gangs
        if event.completed:
            gangs.is_done(uid)
        members = None if event.completed else self._gang_of(uid)
        ended = self._ended_unasked(uid) if members and uid in members.bound else None
        self.queue.remove(uid, now_ns)
        self.queue.lost_place(uid, now_ns)
        self.side_tasks.run(PRICING, partial(self.price_lists.gone, uid), None)
        placed = self.placed.pop(uid, None)
        holding = self.ledger.release(uid)
        if self.forecasts.on:
            self.forecasts.ends(uid, now_ns, completed=event.completed)
        self._leaves(uid)
        self.slowdown_eviction.gone(uid)
        team = self.teams.forget(uid) if self.teams.count else ""
        if self.preemption.on:
            nomination_events.gone(self, uid, holding, now_ns, out)
        if members is not None and (since_ns := gangs.lacks(members, now_ns)) is not None:
            out.append(Wake(max(now_ns, since_ns + MISSING_GRACE_NS)))
        if holding is None:
            if team and self.teams.is_limited(team):  # kept places count as held
                self.queue.wake_for_team(team, now_ns)
            return
        learn = partial(self._learn, event, holding, placed, out)
        if self.side_tasks.run(_LEARNING, learn, instead=False):
            self.queue.wake_all(now_ns, skip_backoff=True)
        if members is not None and ended is not None:
            head_of_line.keep_for_successor(self, members, holding.placement, ended, now_ns)
        self.wake_for_freed(holding.placement.node, now_ns, team)

    def _gang_of(self, uid: str) -> GangMembers[WaitingPod] | None:
        """Return the gang of a pod that is placed or waits; None if it has none, or one of which no
        pod was in the queue: it may be another scheduler's."""
        waiting = self.queue.get(uid)
        members = self.queue.gangs.of_placed(uid)
        if waiting is not None and waiting.pod.gang:
            members = self.queue.gangs.of(waiting.pod.gang)
        return members if members is not None and members.queued else None

    def _ended_unasked(self, uid: str) -> int | None:
        """Return the priority of a pod that Weft did not ask to leave; None of others, and where
        its priority is not known."""
        if uid in self.preemption.going or self.harvest.is_leaving(uid):
            return None
        if (placed := self.placed.get(uid)) is not None:
            return placed.pod.priority
        standing = self.preemption.standings.get(uid)
        return None if standing is None else standing[0]

    def _learn(
        self, event: events.PodGone, holding: Holding, placed: PlacedPod | None, out: list[Command]
    ) -> bool:
        """Learn from a pod's end; return True if pods like it are now expected to use more or
        less memory than before."""
        uid = event.uid
        if event.out_of_memory and holding.placement.shares:
            workload = event.workload or (workload_of(placed.pod) if placed else uid)
            end = OutOfMemory(holding.placement, workload, uid, event.peak_mib, over=True)
            inputs.learn(self, end, placed, out)
        elif placed is not None and event.completed:
            return self.peaks.ran(placed.pod, self.signals.source.peaks_mib.get(uid, 0))
        return False

    def _seen_bound(self, event: events.PodSeenBound, now_ns: int, out: list[Command]) -> None:
        """Account for a pod that the API shows bound, even if on a node other than the one decided
        here."""
        placement = event.placement
        self.harvest.seen_bound(placement.uid, event.bound_ns, event.job_class, unsure=event.unsure)
        self.queue.remove(placement.uid, now_ns)
        before = self.ledger.holdings.get(placement.uid)
        team = event.queue if self.teams.count else UNSET
        if team and (left := self.teams.belongs(placement.uid, team)):
            self.queue.wake_for_team(left, now_ns)
        if self.preemption.on:
            nomination_events.seen_bound(self, event, now_ns, out)
        self.ledger.adopt(placement)
        if self.teams.rules.reclaim and before is None:
            self.holds_more(self.teams.name_of(placement.uid), now_ns)
        if self.kept_places.turns:  # another scheduler may have bound it on a kept place
            self.kept_places.keep_on(placement.node)
        if event.gang:
            self.queue.has_place(placement.uid, event.gang, now_ns)
            self.queue.gangs.is_bound(placement.uid)
        if event.marks:
            self.existing.put(placement.uid, placement.node, event.marks, event.mounted)
        else:
            self.existing.moved_to(placement.uid, placement.node)
        self.residencies.add(placement, now_ns - max(0, event.held_ns))
        self.forecasts.seen_bound(event, now_ns)
        if before is not None and before.placement != placement:
            team = self.teams.name_of(placement.uid)
            self.wake_for_freed(before.placement.node, now_ns, team)
        if self.by_residents and (before is None or before.placement != placement):
            self.wake_for_freed(placement.node, now_ns)

    def _bind_failed(self, uid: str, now_ns: int, out: list[Command]) -> None:
        """Free the place of a pod whose Binding failed, and queue the pod after a back-off. A pod
        that the API showed bound keeps its place: a request that timed out may have arrived."""
        held = self.ledger.holdings.get(uid)
        if held is not None and held.state == "reserved":
            self.ledger.release(uid)
            self._unwind(uid, now_ns, out)

    def evict(
        self, holding: Holding, reason: EvictionReason, now_ns: int, out: list[Command]
    ) -> None:
        """Evict the pod, with a record."""
        record = self.journal.asked_to_leave(
            holding, self.placed.get(holding.placement.uid), now_ns, reason
        )
        self.harvest.mark_leaving(holding.placement.uid)
        self.slowdown_eviction.mark_leaving(holding, now_ns)
        out.append(Evict(holding.placement, record))

    def tolerance_of(self, uid: str) -> SlowdownTolerance | None:
        """Return the slowdown that the pod tolerates, by its profile, or by the first profile if
        this engine did not place it; None if no pod is evicted for it."""
        placed, holding = self.placed.get(uid), self.ledger.holdings.get(uid)
        profile = placed.profile if placed else self._default
        return tolerance_of(profile.policies, holding.placement if holding else None, self.ledger)

    def _unwind(self, uid: str, now_ns: int, out: list[Command]) -> None:
        """Release the pod's reservation, and put the pod back into the queue."""
        placed, members = self.placed.pop(uid), self.queue.gangs.of_placed(uid)
        self._leaves(uid)
        self.queue.lost_place(uid, now_ns)
        if members is not None and not members.has_quorum:
            gang_search.is_short(self, members, now_ns, out)
        if (back := placed if placed.queued else placed.own) is not None:
            self.queue.retry(back.pod, back.profile, back.tries, now_ns)
        team = self.teams.name_of(uid) if self.teams.count else ""
        nomination_events.freed(self, uid, placed.record.node, now_ns)
        self.wake_for_freed(placed.record.node, now_ns, team)

    def wake_for_freed(self, node: str, now_ns: int, team: str = "") -> None:
        """Wake pods that the capacity freed on this node could help, and pods that the limit of
        this team's queue may now let in."""
        if self.kept_places.turns:
            head_of_line.freed(self, node, now_ns)
        if (row := self.ledger.table.row_of.get(node)) is not None:
            self.queue.wake_for_freed(FreedNode.on(self.ledger, row), now_ns)
        if self.preemption.nominations or self.preemption.moves.since:
            nomination_events.wake_nominated(self, node, now_ns)
        if team and self.teams.is_limited(team):
            self.queue.wake_for_team(team, now_ns)

    def holds_more(self, queue: str, now_ns: int) -> None:
        """Wake pods that may reclaim, as this team's queue holds more than before."""
        nomination_events.holds_more(self, queue, now_ns)

    @contextmanager
    def trial(self, gone: Sequence[str] = (), beside: Sequence[Nomination] = ()) -> Iterator[None]:
        """Undo all changes at the end of the context. At its start, the pods `gone` are removed,
        and for each nomination in `beside` the free part of its kept place is reserved."""
        self.ledger.checkpoint()
        try:
            with self.existing.trial():
                for uid in gone:
                    self.ledger.release(uid)
                    self.existing.remove(uid)
                for each in beside:
                    self.preemption.keep(each)
                yield
        finally:
            self.ledger.rollback()

    # --- the cycle -----------------------------------------------------------------------------

    def _try(self, waiting: WaitingPod, now_ns: int, out: list[Command]) -> None:
        """Run a scheduling cycle for the pod. If it fails, its changes are undone and the pod is
        parked."""
        if self.journal.stop is not None:
            self.journal.begin()
        try:
            self._cycle(waiting, now_ns, out)
        except Exception as error:  # only this pod is affected
            self.undo(waiting.pod.uid, now_ns)
            self.preemption.keep_again(waiting.pod)
            self.queue.park_faulty(waiting, now_ns)
            self._broke_off(DecisionAttempt.of(waiting), error, now_ns, out)

    def undo(self, uid: str, now_ns: int) -> None:
        """Undo everything that a failed decision did."""
        self.queue.lost_place(uid, now_ns)
        self.preemption.standings.pop(uid, None)
        ledger, placed = self.ledger, self.placed.pop(uid, None)
        (ledger.forget if placed is None else ledger.release)(uid)
        self._leaves(uid)

    def _leaves(self, uid: str) -> None:
        """Drop what was recorded about the pod at its place."""
        self.existing.remove(uid)
        self.harvest.gone(uid)
        self.residencies.remove(uid)
        if self.forecasts.on:
            self.forecasts.durations.forget(uid)

    def _broke_off(
        self, tried: DecisionAttempt, error: Exception, now_ns: int, out: list[Command]
    ) -> None:
        record = self.journal.broke_off(tried, now_ns, decision_faults.in_words(error))
        out.append(Faulted(record, error, tried.pod))

    def _cycle(self, waiting: WaitingPod, now_ns: int, out: list[Command]) -> None:
        """Run one scheduling cycle: assess all nodes (filter and score), choose one, reserve, ask
        for the Binding."""
        pod, profile = waiting.pod, waiting.profile
        if pod.gang and (members := self.queue.gangs.of(pod.gang)) and members.head is waiting:
            if not (profile.preempts and self.queue.yields(waiting)):
                head_of_line.decide(self, waiting, members, now_ns, out)
            return
        if self.kept_places.turns and pod.uid in self.kept_places.turns:
            head_of_line.decide_alone(self, waiting, now_ns, out)
            return
        if self.preemption.nominations and pod.uid in self.preemption.nominations:
            with self.kept_places.aside(waiting):
                preempting.try_nominated(self, waiting, now_ns, out)
            return
        known = self._assess(profile, pod)
        row = deciding.best_row(known, profile, f"{self.seed}/{pod.uid}/{waiting.tries}")
        if row < 0 and (self.kept_places.turns or self.kept_places.serves_pods):
            head_of_line.decide_alone(self, waiting, now_ns, out)
            return
        if row < 0:
            on, known = self.preemption.on, known.filled()
            if not on or not preempting.makes_room(self, waiting, known, now_ns, out):
                self.parks(waiting, known, now_ns, out)
            return
        if not self.queue.defers(waiting, known.shape):
            deciding.place(self, waiting, known, row, now_ns, out)

    def parks(
        self, waiting: WaitingPod, known: Assessment, now_ns: int, out: list[Command]
    ) -> None:
        """Park a pod that fits nowhere, until an event that could help."""
        record = deciding.refused(self, waiting, known, now_ns)
        self.queue.park(waiting, known.shape, known.demand, now_ns, known.never)
        out.append(Unschedulable(waiting.pod, record))

    def _bind_requested(self, event: events.BindOn, now_ns: int, out: list[Command]) -> None:
        pod, own = event.pod, self.queue.get(event.pod.uid)
        is_held = pod.uid in self.ledger.holdings
        if not is_held:
            self._comes(pod.uid, now_ns)
        try:
            profile = self.profiles.get(event.profile, self._default)
            bind_on.bind_on(self, event, profile, now_ns, out)
        except Exception as error:
            if not is_held:
                self.undo(pod.uid, now_ns)
            if own is not None and pod.uid not in self.queue:
                self.queue.retry(own.pod, own.profile, own.tries, now_ns)
            self._broke_off(DecisionAttempt(pod, event.profile, 1), error, now_ns, out)
            out.append(events.BindOnRefused(pod, event.node, Code.FAULT))

    def follow_first(self) -> None:
        """Recompute prices with each change of the ledger, until the first pod comes."""
        if self.price_lists.lists and not self.price_lists.has_begun:
            self._price(self.price_lists.follow)

    def assess(
        self, profile: Profile, pod: PodRequest, beside: Sequence[PodRequest] | None = ()
    ) -> Assessment:
        """Return fit and score of the nodes for the pod now; reserves nothing. `beside` are pods
        that wait outside the queue; None ignores waiting pods."""
        return self._assess(profile, pod, beside).filled()

    def _assess(
        self, profile: Profile, pod: PodRequest, beside: Sequence[PodRequest] | None = ()
    ) -> Assessment:
        """Return the same as `assess`; the result is valid only until the ledger changes."""
        self.follow_first()
        shape = self.shape_of(profile, pod)
        known = self.asked_of(self.assessor, profile, shape, pod)
        if profile.matcher is None or beside is None or not known.counts[0]:
            return known
        self.assessor.looked += LOOKS_WAITING * len(self.queue)
        waiting = pair_matching.pending(self.queue, profile, pod, shape, beside)
        matched = pair_matching.among(self.ledger.table, known, profile, waiting)
        if matched is not known:
            self.assessor.looked += LOOKS_MATCHED
        return matched

    def makes_room_for(
        self, head: WaitingPod, members: GangMembers[WaitingPod], now_ns: int, out: list[Command]
    ) -> PreemptionPlan | None:
        """Evict pods of lower priority for a gang that fits nowhere; return None if that would not
        help."""
        preempts = head.profile.preempts
        return gang_preempting.makes_room(self, head, members, now_ns, out) if preempts else None

    def shape_of(self, profile: Profile, pod: PodRequest) -> Shape:
        """Return the shape for placing the pod: its own request, adjusted by what was learnt from
        pods like it and by policies."""
        shape = pod.shape
        if self.oom_history.known or self.peaks.known:
            shape = self.side_tasks.run(_LEARNING, partial(self._learnt_shape, profile, pod), shape)
        return profile.shaped(shape) if profile.pre_filters else shape

    def asked_of(
        self, assessor: Assessor, profile: Profile, shape: Shape, pod: PodRequest
    ) -> Assessment:
        """Return the assessor's answers about the shape, narrowed by the pod's and other pods'
        rules about each other."""
        constraints, existing, table = shape.constraints, self.existing, self.ledger.table
        has_rules = constraints.pods or constraints.storage
        found: Sequence[PodAnswer] = ()
        bare = assessor.without_rules(shape) if has_rules else shape
        if constraints.judged_elsewhere or constraints.unsupported:
            return assessor.assess(profile, bare)
        if has_rules or existing.owners:
            shape = existing.filled_in(pod, shape)
            found = answers(existing, table, constraints.pods, shape.constraints, pod)
            assessor.looked += len(found) * table.count // LOOKS_BESIDE
        known = assessor.assess(profile, bare, found)
        if pod.gang:
            known = gang_search.in_domain(known, self.queue.gangs, self.ledger, pod.gang)
        if self.teams.count:
            kept = self.preemption.not_below(pod.priority)
            known = self.teams.within_limits(known, pod, kept)
        if shape.constraints.pods or shape.constraints.storage:
            known = known.among(shape, found)
        disliked = table.has_taints and table.taints.are_disliked
        wants = pod.preferences or existing.drawers or disliked
        if wants and profile.preferences and known.counts[0]:
            wishes = PodWishes(existing, self.images, table, pod, constraints)
            assessor.looked += wishes.rules * table.count // LOOKS_BESIDE
            known = known.preferring(wishes) if wishes.rules else known
        return known

    def _learnt_shape(self, profile: Profile, pod: PodRequest) -> Shape:
        """Return the pod's shape, adjusted by what was learnt from pods like it."""
        shape = self.oom_history.shape_of(pod)
        if profile.harvests and self.ledger.table.harvests:
            shape = self.peaks.shape_of(pod, shape)
        return shape


# --- inputs of policies and rules: signals, progress, OOM history ---------------------------------


def _signals_changed(
    engine: Engine, source: SignalsSnapshot, now_ns: int, out: list[Command]
) -> None:
    """Replace the signals that policies see; only nodes whose signals changed are assessed again.
    Evict pods that borrow GPU memory which the lending pods need again."""
    if source.version <= engine.signals.version:
        return
    before = engine.signals
    engine.observe(SignalsView(source))
    readers = [policy for policy in engine.policies if "signals" in policy.reads]
    if engine.ledger.table.harvests:
        running = partial(engine.peaks.running, engine.placed, source.peaks_mib)
        engine.side_tasks.run(_LEARNING, running, None)
    needs = engine.peaks.needs(engine.placed) if engine.peaks.known else None
    ran_long = partial(engine.residencies.is_there_since, now_ns - RAN_LONG_NS)
    for holding, eviction in engine.harvest.observe(engine.signals, needs, ran_long):
        engine.evict(holding, eviction, now_ns, out)
    table = engine.ledger.table
    if readers:
        moved = engine.signals.moved(before, table)
        if len(moved) and any("cluster" in policy.reads for policy in readers):
            moved = np.arange(table.count)
        engine.ledger.touch(moved)
    if readers or table.harvests:
        engine.queue.wake_all(now_ns, skip_backoff=True)

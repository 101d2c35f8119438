"""The engine: events in, commands out, nothing else.

What may change here: the ledger, the queue, and which pods are bound or being bound. It must not
know the time (passed in), the world (hosts), or how a policy thinks (it asks and compares).
Every decision is a pure function of the events so far, the configuration and the seed.

A pod's life here
    PodAdded ──▶ queue ──cycle──▶ reserved ──(permit)──▶ Bind command
                   ▲                 │                      │ PodBound ──▶ committed
                   │   BindFailed / expired / not permitted ◀┘
                   └─────────────────┘         PodGone, from anywhere ──▶ forgotten, room is free
"""

from collections.abc import Iterable, Sequence

from weft.engine import choosing
from weft.engine.assess import Assessment, Assessor
from weft.engine.events import (
    Bind,
    BindFailed,
    BindOn,
    Command,
    Event,
    NodesChanged,
    Permit,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
    Refused,
    Tick,
    Unschedulable,
    Wake,
)
from weft.engine.explain import best_nodes
from weft.engine.queue import Queue, Waiting
from weft.engine.records import Candidate, Outcome, Record
from weft.framework import NEVER, Profile
from weft.ledger import Ledger
from weft.ledger.ledger import FAR
from weft.model import Code, Node, Placement, PodRequest, Share


class Placed:
    """A pod with a place that is not certain yet, or is: what unwinding it needs."""

    __slots__ = ("own", "pod", "profile", "queued", "record", "tries", "waits")

    def __init__(self, waiting: Waiting, record: Record) -> None:
        self.pod, self.profile, self.tries = waiting.pod, waiting.profile, waiting.tries
        self.record = record
        self.waits = False
        self.queued = waiting.state != "asked"
        self.own: Waiting | None = None  # what it was in our queue when kube-scheduler bound it

    def tell_lost(self) -> None:
        """Tell the policies that the place is lost before the pod was bound."""
        for policy in self.profile.policies:
            policy.unreserved(self.pod, self.record.node)


class Engine:
    """Decides for its profiles on one ledger.

    `profiles` by schedulerName (the first also serves unknown names), `seed` for policies that
    draw, `keep_top` how many best nodes each record lists, `bind_timeout_ns` how long a `Bind`
    may go unanswered before the place is free again.
    """

    def __init__(
        self,
        profiles: Sequence[Profile],
        nodes: Iterable[Node] = (),
        *,
        seed: int = 0,
        keep_top: int = 0,
        bind_timeout_ns: int = FAR,
    ) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self.ledger = Ledger(nodes)
        self.assessor = Assessor(self.ledger)
        self.queue = Queue()
        self.placed: dict[str, Placed] = {}
        self.seed, self.keep_top = seed, keep_top
        self.bind_timeout_ns = bind_timeout_ns
        self._seq = 0
        self._stop: tuple[int, type[Exception]] | None = None
        self._default = profiles[0]

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in one event at `now_ns` (any clock that does not go back); what to do about it."""
        out: list[Command] = []
        if isinstance(event, PodBound):
            self.ledger.commit(event.uid)
            return out
        self._take_in(event, now_ns, out)
        self.queue.tick(now_ns)
        while (waiting := self.queue.pop()) is not None:
            self._cycle(waiting, now_ns, out)
        wake = self.queue.next_ns()
        if wake is not None:
            out.append(Wake(wake))
        return out

    def _take_in(self, event: Event, now_ns: int, out: list[Command]) -> None:
        match event:
            case PodAdded():
                self._add(event.pod, now_ns)
            case PodGone():
                self._gone(event.uid, now_ns)
            case NodesChanged():
                if self.ledger.set_nodes(event.nodes, event.removed) and event.nodes:
                    self.queue.wake_all(now_ns)
            case BindOn():
                self._bind_on(event, now_ns, out)
            case PodSeenBound():
                self._seen_bound(event.placement, now_ns)
            case BindFailed():
                self._lost(event.uid, now_ns)
            case Permit():
                self._permitted(event, now_ns, out)
            case PolicyInput():
                self._policy_input(event, now_ns)
            case Tick():
                for uid in self.ledger.expire(now_ns):
                    self._unwind(uid, now_ns)

    def stop_before(self, seq: int, error: type[Exception]) -> None:
        """Raise `error` instead of making decision number `seq`, to look at the state it meets."""
        self._stop = (seq, error)

    # --- one event each ----------------------------------------------------------------------

    def profile_of(self, pod: PodRequest) -> Profile:
        """The profile that decides for this pod."""
        return self.profiles.get(pod.scheduler_name, self._default)

    def _add(self, pod: PodRequest, now_ns: int) -> None:
        if pod.uid not in self.placed and pod.uid not in self.ledger.holdings:
            self.queue.add(pod, self.profile_of(pod), now_ns)

    def _gone(self, uid: str, now_ns: int) -> None:
        self.queue.remove(uid, now_ns)
        placed = self.placed.pop(uid, None)
        held = self.ledger.release(uid)
        if held is None:
            return
        if placed is not None and held.state == "reserved":
            placed.tell_lost()
        self._room_on(held.placement.node, now_ns)

    def _seen_bound(self, placement: Placement, now_ns: int) -> None:
        """The API is right: a pod that we put elsewhere, or still hold at permit, is there."""
        self.queue.remove(placement.uid, now_ns)
        placed = self.placed.get(placement.uid)
        if placed is not None:
            placed.waits = False
        before = self.ledger.holdings.get(placement.uid)
        self.ledger.adopt(placement)
        if before is not None and before.placement != placement:
            self._room_on(before.placement.node, now_ns)

    def _lost(self, uid: str, now_ns: int) -> None:
        """The bind was refused: free the place and try again after a rest.

        A pod known to be bound stays: a request that timed out may have arrived all the same.
        """
        held = self.ledger.holdings.get(uid)
        if held is not None and held.state == "reserved":
            self.ledger.release(uid)
            self._unwind(uid, now_ns)

    def _permitted(self, event: Permit, now_ns: int, out: list[Command]) -> None:
        placed = self.placed.get(event.uid)
        if placed is None or not placed.waits:
            return
        placed.waits = False
        held = self.ledger.holdings.get(event.uid)
        if event.allow and held is not None:
            self.ledger.hold_until(event.uid, now_ns + self.bind_timeout_ns)
            self._bind(placed, held.placement, now_ns, out)
        else:
            self._lost(event.uid, now_ns)

    def _policy_input(self, event: PolicyInput, now_ns: int) -> None:
        policies = [policy for profile in self.profiles.values() for policy in profile.policies]
        takers = [policy for policy in policies if policy.name == event.policy]
        for policy in takers:
            policy.take_input(event.value)
        if takers:
            self.assessor.forget()
            self.queue.wake_all(now_ns)

    def _unwind(self, uid: str, now_ns: int) -> None:
        """The pod's reservation is released: back into the queue, and its room is for others."""
        placed = self.placed.pop(uid)
        placed.tell_lost()
        if placed.queued:
            self.queue.retry(placed.pod, placed.profile, placed.tries, now_ns)
        elif placed.own is not None:
            own = placed.own
            self.queue.retry(own.pod, own.profile, own.tries, now_ns)
        self._room_on(placed.record.node, now_ns)

    def _room_on(self, node: str, now_ns: int) -> None:
        """Room appeared on this node: wake whom it could help."""
        row = self.ledger.table.row_of.get(node)
        if row is not None:
            self.queue.room_on(self.ledger.table.cells[:, row].tolist(), now_ns)

    # --- the cycle -----------------------------------------------------------------------------

    def _cycle(self, waiting: Waiting, now_ns: int, out: list[Command]) -> None:
        """One pod's turn: preFilter, filter and score (assess), choose, reserve, permit."""
        if self._stop is not None and self._stop[0] == self._seq + 1:
            raise self._stop[1]
        pod, profile = waiting.pod, waiting.profile
        known = self.assess(profile, pod)
        key = f"{self.seed}/{pod.uid}/{waiting.tries}"
        row = self._best_row(known, profile, key)
        if row < 0:
            self.queue.park(waiting, known.shape, known.demand, now_ns)
            record = self._record(waiting, known, now_ns, "unschedulable")
            out.append(Unschedulable(pod, record))
            return
        placed, placement = self._take_place(waiting, known, row, key, now_ns)
        self.queue.done(waiting)
        self.queue.next_of_group(waiting, now_ns)
        waits = [policy.permit(pod, placement.node, now_ns) for policy in profile.permitters]
        wait_ns = min((wait for wait in waits if wait > 0), default=0) if waits else 0
        if wait_ns:
            placed.waits = True
            self.ledger.hold_until(pod.uid, now_ns + wait_ns)
            out.append(Wake(now_ns + wait_ns))
            return
        self._bind(placed, placement, now_ns, out)

    def _bind_on(self, event: BindOn, now_ns: int, out: list[Command]) -> None:
        """kube-scheduler chose the node; the GPUs are chosen now, from the accounts of now."""
        pod, table = event.pod, self.ledger.table
        held = self.ledger.holdings.get(pod.uid)
        if held is not None:
            placed = self.placed.get(pod.uid)
            if placed is not None and held.placement.node == event.node:
                out.append(Bind(pod, held.placement, placed.record))
            else:
                out.append(Refused(pod, event.node, Code.OTHER_NODE))
            return
        profile = self.profiles.get(event.profile, self._default)
        waiting = Waiting(pod, profile, 0)
        waiting.state, waiting.tries = "asked", 1
        known = self.assess(profile, pod)
        row = table.row_of.get(event.node, -1)
        if row < 0 or known.codes[row]:
            code = Code(int(known.codes[row])) if row >= 0 else Code.UNSCHEDULABLE
            out.append(Refused(pod, event.node, code))
            return
        key = f"{self.seed}/{pod.uid}/1"
        own = self.queue.get(pod.uid)
        self.queue.remove(pod.uid, now_ns)
        placed, placement = self._take_place(waiting, known, row, key, now_ns)
        placed.own = own
        self._bind(placed, placement, now_ns, out)

    def assess(self, profile: Profile, pod: PodRequest) -> Assessment:
        """Which nodes fit the pod and how good they are, now: a pure question."""
        shape = pod.shape
        for policy in profile.pre_filters:
            shape = policy.pre_filter(shape)
        return self.assessor.assess(profile, shape)

    def _take_place(
        self, waiting: Waiting, known: Assessment, row: int, key: str, now_ns: int
    ) -> tuple[Placed, Placement]:
        """Choose devices on node `row`, which fits, and reserve them."""
        pod, profile, shape = waiting.pod, waiting.profile, known.shape
        shares = choosing.shares_on(self.ledger.table, row, known, profile, key)
        placement = Placement(
            pod.uid, self.ledger.table.nodes[row].name, shares,
            shape.cpu_milli, shape.memory_mib, shape.extended, shape.constraints.ports,
        )  # fmt: skip
        record = self._record(waiting, known, now_ns, "placed", row, shares)
        if not self.ledger.reserve(placement, now_ns + self.bind_timeout_ns):
            raise RuntimeError(f"{profile.lead.name} chose a place that does not fit: {placement}")
        placed = self.placed[pod.uid] = Placed(waiting, record)
        for policy in profile.reservers:
            policy.reserved(pod, placement.node)
        return placed, placement

    def _bind(self, placed: Placed, placement: Placement, now_ns: int, out: list[Command]) -> None:
        out.append(Bind(placed.pod, placement, placed.record))
        if self.bind_timeout_ns < FAR:
            out.append(Wake(now_ns + self.bind_timeout_ns))

    def _best_row(self, known: Assessment, profile: Profile, key: str) -> int:
        if len(known.total) == 0:
            return -1
        row = int(known.total.argmax())
        best = known.total[row]
        if best == NEVER:
            return -1
        if profile.breaks_ties:
            rows = (known.total == best).nonzero()[0]
            row = int(rows[profile.lead.choose_node(rows, key)])
        return row

    def _record(
        self, waiting: Waiting, known: Assessment, now_ns: int, outcome: Outcome,
        row: int = -1, shares: tuple[Share, ...] = (),
    ) -> Record:  # fmt: skip
        self._seq += 1
        pod = waiting.pod
        return Record(
            self._seq, now_ns, pod.uid, pod.namespace, pod.name, waiting.profile.name,
            waiting.tries, known.version, outcome,
            self.ledger.table.nodes[row].name if row >= 0 else "",
            shares,
            int(known.total[row]) if row >= 0 else 0,
            tuple(known.counts.tolist()),
            self._top(known, waiting.profile) if self.keep_top else (),
        )  # fmt: skip

    def _top(self, known: Assessment, profile: Profile) -> tuple[Candidate, ...]:
        return tuple(best_nodes(self.ledger.table, known, profile, self.keep_top))

"""Keeps places for gangs, and pods of several GPUs, that wait at the head of their line.

    among the first ──`after_ns`──▶ its place is KEPT ──▶ it starts, or is gone
            ▲                               │ `keep_for_ns` over, or no place would do
            └─ as long again has passed ◀── PAUSED: the next one's turn

The free part of a kept place is reserved under a UID of its own, as for nominated pods, and so is
capacity that becomes free there later. Pods of a higher priority, and earlier pods of the same
priority, take it as if it were free (`aside`). All of a kept place becomes free when pods that run
there end, so kept places never wait for each other. Nothing is stored: a new process starts without
kept places.

If a running pod of a gang ends before it was done, its place is kept in the same way for the pod
that replaces it, for `REPLACED_NS` (`VacatedTurn`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from msgspec.structs import replace

from weft.core.engine.gangs import GangMembers
from weft.core.engine.nominations import KEPT, free_part
from weft.core.engine.parked import Key
from weft.core.engine.queue import GroupKey, WaitingPod
from weft.core.ledger import FAR, Ledger
from weft.core.policies.queue import DISCIPLINES
from weft.core.policies.queue.discipline import Reservation
from weft.model import Placement, PodRequest
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine

WAITS = f"{KEPT}line/"
OUTCOMES = ("kept", "moved", "started", "preempts", "gone", "time", "nowhere")
"""Outcomes of a turn: a place is kept or moved; its pods start, preempt others, or no longer wait;
its time is over; no place would be enough."""
OTHERS_WAIT = 5
"""Pods of one GPU or less get a turn after this many times the wait of pods of several GPUs, and
one at a time: they seldom need a kept place, but none may wait forever."""

UNFIT_NS = 1_800_000_000_000
"""A pod for which no place would do is passed over for at most this time, even if `keep_for_ns` is
longer: rules about other pods may have changed."""


REPLACED_NS = 30_000_000_000
"""The place of a gang's pod that ended is kept this long for the pod that replaces it: controllers
create one within seconds, after the second failure within 20 s."""
MOST_REPLACED, MOST_VACATED = 16, 32
"""Nothing is kept for successors of a gang of which more pods end within that time, as it is
probably being deleted, or once places are kept for so many gangs: each costs every decision."""
REPLACES = "replaces/"

LineOf = Literal["gangs", "several", "others", "successors"]


class QueueLine(NamedTuple):
    """A line of waiting pods of one profile and priority. Gangs, pods of several GPUs and all other
    pods have separate lines, so that settings for one line do not affect turns in another."""

    profile: str
    priority: int
    of: LineOf


def line_of(head: WaitingPod) -> QueueLine:
    """Return the line in which the pod, or its gang, waits."""
    pod = head.pod
    of: LineOf = "gangs" if pod.gang else "several" if pod.shape.gpus > 1 else "others"
    return QueueLine(head.profile.name, pod.priority, of)


def came(pod: PodRequest, number: int) -> tuple[int, int]:
    """Return the time from which the pod's age counts, and its number in the queue: smaller is
    earlier."""
    return pod.came_ns, number


class LineTurn:
    """The turn of a gang (`members`) or a pod to have a place kept for it. It is due at `due_ns`;
    from then until `until_ns` the `places` are kept. `asks` says in words what it waits for.
    `reservation` is its kept place as queue disciplines see it."""

    __slots__ = (
        *("asks", "came", "due_ns", "line", "members", "order", "places", "reservation"),
        *("until_ns", "waiting"),
    )

    def __init__(
        self, head: WaitingPod, members: GangMembers[WaitingPod] | None, due_ns: int
    ) -> None:
        self.waiting, self.members = head, members
        self.line, self.order = line_of(head), head.key
        self.came = came(head.pod, head.key[-1])
        self.places: Sequence[Placement] = ()
        self.due_ns, self.until_ns, self.asks = due_ns, FAR, ""
        self.reservation = Reservation()

    @property
    def head(self) -> WaitingPod | None:
        """Return the pod in the queue that waits with this turn; None if it no longer waits."""
        if self.members is not None:
            return self.members.head
        return self.waiting if self.waiting.state != "gone" else None

    @property
    def nodes(self) -> list[str]:
        """Return the nodes on which places are kept."""
        return list(dict.fromkeys(place.node for place in self.places))

    def times(self) -> tuple[int, int, int]:
        """Return when the turn is due, when it is over, and when its place counts as late if not
        all of it is free by then (`FAR` if unknown)."""
        whole_ns = self.reservation.due_ns
        return self.due_ns, self.until_ns, FAR if whole_ns is None else whole_ns + 1

    @property
    def key(self) -> str:
        """Return the key of the turn: its owner's."""
        return self.owner

    @property
    def owner(self) -> str:
        """Return the key of the gang, or the UID of the pod, for which the place is kept."""
        return self.members.gang.key if self.members else key_of(self.waiting.pod)

    @property
    def name(self) -> str:
        """Return the gang's or pod's name, with its namespace."""
        if self.members:
            return str(self.members.gang)
        return f"{self.waiting.pod.namespace}/{self.waiting.pod.name}"


class VacatedTurn(LineTurn):
    """The places of a gang's pods that ended before they were done, kept for the pods that replace
    them, each for `REPLACED_NS`; `over_ns` is until when, by UID of the place. No other pod of this
    priority or a lower one takes them."""

    __slots__ = ("over_ns",)
    members: GangMembers[WaitingPod]

    def __init__(self, members: GangMembers[WaitingPod], priority: int) -> None:
        self.members, self.line = members, QueueLine("", priority, "successors")
        self.order, self.came = (), (-FAR, -1)
        self.places: Sequence[Placement] = ()
        self.over_ns: dict[str, int] = {}
        self.due_ns, self.until_ns, self.asks = FAR, FAR, ""
        self.reservation = Reservation()

    def times(self) -> tuple[int, int, int]:
        """Return when the first of its places is given up."""
        return FAR, min((self.over_ns[place.uid] for place in self.places), default=FAR), FAR

    @property
    def key(self) -> str:
        """Return the key of the turn: its gang may have another turn beside it."""
        return REPLACES + self.owner


def key_of(pod: PodRequest) -> str:
    """Return the key of the pod's turn, or of its gang's."""
    return pod.gang.key if pod.gang else pod.uid


def goes_before(pod: PodRequest, number: int, turn: LineTurn) -> bool:
    """Return True if the pod may take what is kept for the turn: it has a higher priority, or the
    same and came earlier."""
    if key_of(pod) == turn.owner:
        return False
    priority = turn.line.priority
    return pod.priority > priority or (pod.priority == priority and came(pod, number) < turn.came)


def _rank(turn: LineTurn) -> tuple[int, tuple[int, int]]:
    return -turn.line.priority, turn.came


def _order(turn: LineTurn) -> Key:
    return turn.order


class KeptPlaces:
    """Holds turns by key, and until when pods and gangs are passed over after an unsuccessful turn
    (`paused`). `counts` are the places kept and moved so far, and those given up, by outcome."""

    def __init__(self, rules: HeadOfLine, ledger: Ledger) -> None:
        discipline = DISCIPLINES[rules.discipline]
        keeps = discipline.reserves
        self._most: dict[LineOf, int] = {
            "gangs": discipline.at_once or rules.most_places(gang=True),
            "several": discipline.at_once or rules.most_places(gang=False),
            "others": 1,
        }
        self.rules, self.on = rules, keeps and (rules.after_ns > 0 or rules.pods_after_ns > 0)
        self.serves_pods = keeps and rules.pods_after_ns > 0
        self.lends = discipline.lends
        self.turns: dict[str, LineTurn] = {}
        self.paused: dict[str, int] = {}
        self._unfit: dict[GroupKey, int] = {}
        self.counts: Counter[str] = Counter()
        self._ledger = ledger
        self._aside: set[str] = set()
        self._freed: set[str] | None = None

    def kept(self) -> list[LineTurn]:
        """Return the turns with a kept place, the highest priority first."""
        kept = [turn for turn in self.turns.values() if turn.places]
        return sorted(kept, key=_rank)

    def enters(
        self, head: WaitingPod, members: GangMembers[WaitingPod] | None, now_ns: int
    ) -> None:
        """Give the waiting gang or pod a turn if it is among the first of its line."""
        after_ns = self._after_ns(head.pod, members)
        key, line = key_of(head.pod), line_of(head)
        if not after_ns or key in self.turns or self.paused.get(key, now_ns) > now_ns:
            return
        if members is not None and members.most < members.least:
            return
        if self._unfit.get(head.group, now_ns) > now_ns:
            return
        there = [turn for turn in self.turns.values() if turn.line == line]
        if len(there) >= self._most[line.of]:
            last = max((turn for turn in there if not turn.places), key=_order, default=None)
            if last is None or last.order <= head.key:
                return
            del self.turns[last.key]
        self.turns[key] = LineTurn(head, members, now_ns + after_ns)

    def _after_ns(self, pod: PodRequest, members: GangMembers[WaitingPod] | None) -> int:
        """Return how long the gang or pod waits before its turn is due; 0 if it gets no turn."""
        if members is not None:
            return self.rules.after_ns
        after_ns = 0 if pod.gang else self.rules.pods_after_ns
        return after_ns if pod.shape.gpus > 1 else OTHERS_WAIT * after_ns

    def pause(self, turn: LineTurn, why: str, now_ns: int) -> None:
        """Pass the pod or gang over for as long as a place may be kept, as its turn was
        unsuccessful; for at most `UNFIT_NS` if no place would do, and for no longer than the wait
        for a turn if places kept for other pods may be the reason."""
        until_ns, head = now_ns + self.keep_for_ns(turn), turn.waiting
        if why == "nowhere":
            until_ns = min(until_ns, now_ns + UNFIT_NS)
        if why == "nowhere" and self.closed_to(head.pod, head.key[-1]):
            until_ns = min(until_ns, now_ns + self._after_ns(head.pod, turn.members))
        self.paused[turn.key] = until_ns

    def keep_for_ns(self, turn: LineTurn) -> int:
        """Return for how long the turn's place is kept at most."""
        return self.rules.keeps_for_ns(gang=turn.members is not None)

    def fits_nowhere(self, head: WaitingPod, now_ns: int) -> None:
        """Pass over pods like `head`, too, until nodes change, for at most `UNFIT_NS`: no place
        would be enough even if all pods ended. Does nothing if places kept for other pods may be
        the reason."""
        if not self.closed_to(head.pod, head.key[-1]):
            still = {key: until for key, until in self._unfit.items() if until > now_ns}
            keep_ns = self.rules.keeps_for_ns(gang=bool(head.pod.gang))
            self._unfit = {**still, head.group: now_ns + min(keep_ns, UNFIT_NS)}

    def nodes_changed(self) -> None:
        """Let pods for which no place would do get turns again."""
        self._unfit.clear()

    def end_pauses(self, now_ns: int) -> list[str]:
        """Drop pauses that are over; return the keys of the pods and gangs that may have a turn
        again."""
        over = [key for key, until_ns in self.paused.items() if until_ns <= now_ns]
        for key in over:
            del self.paused[key]
        return over

    def next_ns(self, wake_ns: int | None, now_ns: int) -> int | None:
        """Return the earliest of `wake_ns` and the times, later than now, at which a turn is due or
        over, or a pause ends."""
        times = [at for turn in self.turns.values() for at in turn.times()]
        soonest = min(
            (at for at in (*times, *self.paused.values()) if now_ns < at < FAR), default=FAR
        )
        return soonest if soonest < (FAR if wake_ns is None else wake_ns) else wake_ns

    def uids(self, turns: Collection[LineTurn]) -> list[str]:
        """Return the UIDs under which capacity is held for these turns."""
        uids = (place.uid for turn in turns for place in turn.places)
        return [uid for uid in uids if uid in self._ledger.holdings]

    def open_to(self, pod: PodRequest, number: int = -1) -> list[LineTurn]:
        """Return the turns whose places this pod may take: it has a higher priority, or came
        earlier. `number` is its number in the queue, −1 if it is not queued."""
        return [turn for turn in self.kept() if goes_before(pod, number, turn)]

    def lent(self, turns: Iterable[LineTurn], now_ns: int) -> list[LineTurn]:
        """Return those of these `turns` whose kept places are now lent to pods that fit nowhere
        else."""
        if not self.lends:
            return []
        ends_ns = now_ns + self.rules.keeps_for_ns(gang=False) // 2
        return [turn for turn in turns if turn.members is None and ends_ns < turn.until_ns]

    def below(self, priority: int) -> list[LineTurn]:
        """Return the turns of pods of a lower priority that have a kept place."""
        return [turn for turn in self.kept() if turn.line.priority < priority]

    def closed_to(self, pod: PodRequest, number: int = -1) -> list[LineTurn]:
        """Return the turns of other pods whose kept places this pod may not take."""
        kept = (turn for turn in self.kept() if turn.owner != key_of(pod))
        return [turn for turn in kept if not goes_before(pod, number, turn)]

    # --- pods of gangs that are to be replaced ---

    def vacated(
        self, members: GangMembers[WaitingPod], ended: Placement, priority: int, now_ns: int
    ) -> VacatedTurn | None:
        """Keep the place of a gang's pod that ended before it was done for the pod that replaces
        it; return what is kept for the gang, None if the place is not kept."""
        turn = VacatedTurn(members, priority)
        known = self.turns.get(turn.key)
        if not (self.on and self.rules.after_ns) or (known is None and self._are_many_vacated):
            return None
        if isinstance(known, VacatedTurn) and known.members is members:
            turn = known
        else:
            members.arrived = 0
        lately = members.owed_ns[-MOST_REPLACED - 1 :]
        if len(lately) > MOST_REPLACED and now_ns - lately[0] < REPLACED_NS:
            turn.over_ns = dict.fromkeys(turn.over_ns, now_ns)
            return None
        if known is not None:
            self.let_go(known)
        self.turns[turn.key] = turn
        place = replace(ended, uid=WAITS + ended.uid)
        turn.places, turn.over_ns[place.uid] = (*turn.places, place), now_ns + REPLACED_NS
        self._hold(turn.places)
        return turn

    @property
    def _are_many_vacated(self) -> bool:
        vacated = (turn for turn in self.turns.values() if isinstance(turn, VacatedTurn))
        return sum(1 for _ in vacated) >= MOST_VACATED

    def still_kept(self, turn: VacatedTurn, now_ns: int) -> list[Placement]:
        """Return those of the places that are still kept: not as many as pods of the gang were
        bound since, first those that are taken, and none whose time is over."""
        whole, arrived = self.whole_of(turn), turn.members.arrived
        turn.members.arrived = 0
        there = sorted(turn.places, key=lambda place: place.uid in whole)[arrived:]
        return [place for place in there if now_ns < turn.over_ns[place.uid]]

    # --- what is held ---

    def take(self, turn: LineTurn, places: Sequence[Placement]) -> None:
        """Keep these places for the turn, instead of its previous ones."""
        self.let_go(turn)
        before = turn.nodes
        turn.places = [replace(place, uid=WAITS + place.uid) for place in places]
        self.counts["moved" if before and before != turn.nodes else "kept"] += before != turn.nodes
        self._hold(turn.places)

    def hold(self, turn: LineTurn) -> None:
        """Reserve what is free of the turn's places."""
        self.let_go(turn)
        self._hold(turn.places)

    def let_go(self, turn: LineTurn) -> None:
        """Release everything held for the turn."""
        for place in turn.places:
            self._ledger.release(place.uid)

    def keep_on(self, node: str) -> list[LineTurn]:
        """Reserve what is free of the places kept on the node; return the turns of the pods and
        groups that they are kept for."""
        there = self.lift(node)
        self._hold([place for turn in there for place in turn.places if place.node == node])
        return there

    def keep_on_later(self, node: str, held: Sequence[Placement]) -> bool:
        """During a decision, leave newly freed capacity to that decision: reserve `held` again, and
        the newly freed part only once the decision is over. Returns False outside a decision."""
        if self._freed is None:
            return False
        self._freed.add(node)
        for place in held:
            self._ledger.reserve(place)
        return True

    def held_on(self, node: str) -> list[Placement]:
        """Return what is reserved on the node for kept places, except places released for the pod
        being decided (`aside`)."""
        holdings = self._ledger.holdings
        there = (place for turn in self._on(node) for place in turn.places if place.node == node)
        return [holdings[place.uid].placement for place in there if place.uid in holdings]

    def _on(self, node: str) -> list[LineTurn]:
        kept = self.kept()
        return [turn for turn in kept if node in turn.nodes and turn.key not in self._aside]

    def lift(self, node: str) -> list[LineTurn]:
        """Release what is held for kept places on the node; return their turns."""
        there = self._on(node)
        for turn in there:
            for place in turn.places:
                if place.node == node:
                    self._ledger.release(place.uid)
        return there

    def _hold(self, places: Sequence[Placement]) -> None:
        for place in places:
            part = free_part(self._ledger, place, place.uid)
            if part is not None and not self._ledger.reserve(part):
                self._ledger.reserve(replace(part, shares=(), ports=()))

    def hold_from(self, priority: int, own: Collection[str]) -> list[str]:
        """Reserve again, of the places released for the pod being decided (`aside`), those that a
        later pod of this priority may not take, except those of turns with a key in `own`; return
        the UIDs of these holdings."""
        kept = (turn for turn in self.kept() if turn.key in self._aside and turn.owner not in own)
        closed = [turn for turn in kept if turn.line.priority >= priority]
        for turn in closed:
            self._hold(turn.places)
        return self.uids(closed)

    def whole_of(self, turn: LineTurn) -> set[str]:
        """Return those of the turn's places, by UID, that are entirely free and reserved."""
        holdings = self._ledger.holdings
        held = ((place, holdings.get(place.uid)) for place in turn.places)
        return {place.uid for place, it in held if it is not None and it.placement == place}

    def is_whole(self, turn: LineTurn) -> bool:
        """Return True if the turn's places are entirely free and reserved."""
        return len(self.whole_of(turn)) == len(turn.places)

    @contextmanager
    def aside(
        self, waiting: WaitingPod, passed: Sequence[LineTurn] = ()
    ) -> Iterator[list[LineTurn]]:
        """For the duration of the context, release the places that this pod may take, may backfill
        (`passed`), or owns; afterwards, reserve what is left of them. Yields the turns concerned.
        """
        turns = self.open_to(waiting.pod, waiting.key[-1]) if self.turns else []
        turns += passed
        turns += [turn for turn in self.turns.values() if turn.owner == key_of(waiting.pod)]
        self._aside, self._freed = {turn.key for turn in turns}, set()
        for turn in turns:
            self.let_go(turn)
        try:
            yield turns
        finally:
            freed, self._aside, self._freed = self._freed, set(), None
            for turn in sorted(turns, key=_rank):
                if self.turns.get(turn.key) is turn:
                    self.hold(turn)
            for node in sorted(freed):
                self.keep_on(node)


NONE_KEPT = KeptPlaces(NOTHING_KEPT, Ledger())

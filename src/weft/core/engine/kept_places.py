"""Keeps places for gangs that wait at the head of their priority.

    first of its priority ──`after_ns`──▶ its place is KEPT ──▶ it starts, or is gone
            ▲                                   │ `keep_for_ns` over, or no place would do
            └── as long again has passed ◀── PAUSED: the next one's turn

What is free of a place is held under a UID of its own, as for nominated pods, and what gets free
there later too. Pods of a higher priority, and those of the same that came earlier, take it as if
nobody held it (`aside`). All of a place becomes free when pods that run there end, so places that
are kept wait for no other place. Nothing of it is stored: a new process begins anew.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from weft.core.engine.gangs import GangMembers
from weft.core.engine.nominations import KEPT, free_part
from weft.core.engine.queue import WaitingPod
from weft.core.ledger import FAR, Ledger
from weft.model import Placement, PodRequest
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine

WAITS = f"{KEPT}line/"
OUTCOMES = ("kept", "moved", "started", "preempts", "gone", "time", "nowhere")
"""Outcomes of a turn: a place is kept, or moved; its gang starts, ends others for its place, or
waits no more; its time is over; no place would do."""
Line = tuple[str, int]
"""A profile and a priority: gangs of both wait in one line."""


def line_of(head: WaitingPod) -> Line:
    """The line in which a gang waits."""
    return head.profile.name, head.pod.priority


def came(pod: PodRequest, number: int) -> tuple[int, int]:
    """When the pod, or its gang, came, and its number in the queue: smaller is earlier."""
    return pod.gang.created_ns if pod.gang else pod.created_ns, number


class LineTurn:
    """The gang at the head of a line. `places` are kept for its pods, none before `due_ns`;
    `until_ns` is when that ends, `asks` what it waits for, in words."""

    __slots__ = ("asks", "came", "due_ns", "line", "members", "places", "until_ns")

    def __init__(self, head: WaitingPod, members: GangMembers[WaitingPod], due_ns: int) -> None:
        self.line, self.came = line_of(head), came(head.pod, head.key[-1])
        self.members = members
        self.places: Sequence[Placement] = ()
        self.due_ns, self.until_ns, self.asks = due_ns, FAR, ""

    @property
    def nodes(self) -> list[str]:
        """Nodes on which places are kept."""
        return list(dict.fromkeys(place.node for place in self.places))

    @property
    def gang(self) -> str:
        """The gang's key."""
        return self.members.gang.key

    @property
    def name(self) -> str:
        """The gang's name, with its namespace."""
        return str(self.members.gang)


def goes_before(pod: PodRequest, number: int, turn: LineTurn) -> bool:
    """True if the pod may take what is kept for the gang: it has a higher priority, or the same and
    came earlier."""
    if pod.gang and pod.gang.key == turn.gang:
        return False
    priority = turn.line[1]
    return pod.priority > priority or (pod.priority == priority and came(pod, number) < turn.came)


class KeptPlaces:
    """Turns by line, and gangs that had one in vain, until when others go before them. `counts`:
    places kept, moved, and given up by why, so far."""

    def __init__(self, rules: HeadOfLine, ledger: Ledger) -> None:
        self.rules, self.on = rules, rules.after_ns > 0
        self.turns: dict[Line, LineTurn] = {}
        self.paused: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self._ledger = ledger

    def kept(self) -> list[LineTurn]:
        """Turns with a place that is kept, those of the highest priority first."""
        kept = [turn for turn in self.turns.values() if turn.places]
        return sorted(kept, key=lambda turn: (-turn.line[1], turn.came))

    def of_gang(self, gang: str) -> LineTurn | None:
        """The turn of this gang, if it has one."""
        return next((turn for turn in self.turns.values() if turn.gang == gang), None)

    def next_ns(self, wake_ns: int | None, now_ns: int) -> int | None:
        """`wake_ns`, or when a turn is due or over, if that is sooner; later than now."""
        times = (at for turn in self.turns.values() for at in (turn.due_ns, turn.until_ns))
        soonest = min((at for at in times if now_ns < at < FAR), default=FAR)
        return soonest if soonest < (FAR if wake_ns is None else wake_ns) else wake_ns

    def uids(self, turns: Collection[LineTurn]) -> list[str]:
        """UIDs under which something is held for these."""
        uids = (place.uid for turn in turns for place in turn.places)
        return [uid for uid in uids if uid in self._ledger.holdings]

    def open_to(self, pod: PodRequest, number: int = -1) -> list[LineTurn]:
        """Turns whose places this pod may take: it has a higher priority, or came earlier. One that
        is not in the queue has no number there."""
        return [turn for turn in self.kept() if goes_before(pod, number, turn)]

    def closed_to(self, pod: PodRequest, number: int = -1) -> list[LineTurn]:
        """Turns whose places are kept from this pod."""
        own = pod.gang.key if pod.gang else ""
        kept = (turn for turn in self.kept() if turn.gang != own)
        return [turn for turn in kept if not goes_before(pod, number, turn)]

    # --- what is held ---

    def take(self, turn: LineTurn, places: Sequence[Placement]) -> None:
        """Keep these places for it, instead of those before."""
        self.let_go(turn)
        before = turn.nodes
        turn.places = [replace(place, uid=WAITS + place.uid) for place in places]
        self.counts["moved" if before and before != turn.nodes else "kept"] += before != turn.nodes
        self._hold(turn.places)

    def let_go(self, turn: LineTurn) -> None:
        """Hold nothing for it."""
        for place in turn.places:
            self._ledger.release(place.uid)

    def keep_on(self, node: str) -> list[LineTurn]:
        """More, or less, is free on the node: hold what is of the places there; whose these are."""
        there = self.lift(node)
        self._hold([place for turn in there for place in turn.places if place.node == node])
        return there

    def lift(self, node: str) -> list[LineTurn]:
        """Hold nothing of the places on the node; whose these are."""
        there = [turn for turn in self.kept() if node in turn.nodes]
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

    def is_whole(self, turn: LineTurn) -> bool:
        """True if all that is kept for it is free."""
        holdings = self._ledger.holdings
        held = (holdings.get(place.uid) for place in turn.places)
        pairs = zip(turn.places, held, strict=True)
        return all(holding is not None and holding.placement == place for place, holding in pairs)

    @contextmanager
    def aside(self, waiting: WaitingPod) -> Iterator[bool]:
        """Hold nothing meanwhile that this pod may take, and what is left of it afterwards; True if
        that is anything."""
        turns = self.open_to(waiting.pod, waiting.key[-1]) if self.turns else ()
        for turn in turns:
            self.let_go(turn)
        try:
            yield bool(turns)
        finally:
            for turn in turns:
                if self.turns.get(turn.line) is turn:
                    self.let_go(turn)
                    self._hold(turn.places)


NONE_KEPT = KeptPlaces(NOTHING_KEPT, Ledger())

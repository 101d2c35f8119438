"""Places that are kept for who waits at the head of its line, in the faulty world: by the settings
that ship, and by the same with shorter times, so that places are kept within a story."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace
from ways import SHIPPED_BY

from weft.cluster.control.interface import Event
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.engine import Command, Engine
from weft.core.engine.kept_places import WAITS, VacatedTurn
from weft.core.ledger import audit
from weft.model import PodRequest
from weft.model.queue_rules import HeadOfLine

if TYPE_CHECKING:
    from faulty_world import World

SHIPS = SHIPPED_BY["config defaults"].queue.rules()
SOON = replace(
    SHIPS,
    after_ns=2_000_000_000,
    keep_for_ns=40_000_000_000,
    pods_keep_for_ns=None,
    pods_at_once=None,
)
"""Two seconds until a place is kept, and forty until it is no more; for pods as for groups."""
FACTS = ("overbooked", "holds a GPU that the node does not have")
"""An account may say so: of bindings by others, and of a GPU that was lost."""
LATE_S = 1.0
"""So long after its time a place may be kept by a process that has heard of nothing since."""


def kept_by(seed: int) -> HeadOfLine:
    """In every other story places are kept soon; in half of these for pods of several GPUs, too,
    and two at once."""
    if seed % 2 == 0:
        return SHIPS
    return SOON if seed % 4 == 1 else replace(SOON, pods_after_ns=SOON.after_ns, at_once=2)


class LiveLine:
    """See this module's head."""

    def __init__(self, world: "World") -> None:
        self.world, self.rules = world, kept_by(world.seed)

    @property
    def soon(self) -> bool:
        """True if places may be kept within the story."""
        return self.rules is not SHIPS

    def watch(self, live: EngineCluster) -> None:
        """Look at what is kept after all that the cluster's engine is told."""
        decide, counted = live.decide, Counter[str]()

        def decided(event: Event, now_ns: int) -> list[Command]:
            commands = decide(event, now_ns)
            counts = live.engine.kept_places.counts
            if counts != counted:
                for name, count in (counts - counted).items():
                    self.world.hits[f"line: {name}"] += count
                counted.update(counts - counted)
            for wrong in wrongly_kept(live.engine, now_ns):
                self.world.violation(f"{wrong}, after {type(event).__name__}")
            return commands

        live.decide = decided

    def turned(self) -> int:
        """How many places were kept, moved, and given up so far, in all processes."""
        return sum(count for name, count in self.world.hits.items() if name.startswith("line: "))

    def settled(self, live: EngineCluster) -> None:
        """All has settled: what is kept is for somebody who waits, and not past its time."""
        now_ns = int((asyncio.get_running_loop().time() - LATE_S) * 1e9)
        for wrong in wrongly_kept(live.engine, now_ns):
            self.world.violation(wrong)


def wrongly_kept(engine: Engine, now_ns: int) -> Iterator[str]:
    """Tell what is wrong with places that are kept."""
    line = engine.kept_places
    if not line.turns:
        return
    known: set[str] = set()
    for turn in line.turns.values():
        until_ns = turn.times()[1]
        if isinstance(turn, VacatedTurn):  # its pods are yet to come
            if not (turn.places and turn.members.there):
                yield f"a turn is {turn.name}'s, of which nobody is there"
        elif turn.head is None:
            yield f"a turn is {turn.name}'s, of which nobody waits"
        if turn.places and until_ns <= now_ns:
            late_s = (now_ns - until_ns) / 1e9
            yield f"a place is kept for {turn.name} {late_s:.1f} s past its time"
        known.update(place.uid for place in turn.places)
    held = {uid: each for uid, each in engine.ledger.holdings.items() if uid.startswith(WAITS)}
    for uid in held.keys() - known:
        yield f"{uid} is held, and kept for nobody"
    if not held:
        return
    more = {
        f"{each.placement.node} GPU {share.gpu}: {what} "
        for each in held.values()
        for share in each.placement.shares
        for what, amount in (("memory", share.memory_mib), ("cores", share.milli))
        if amount
    }
    for text in audit(engine.ledger):
        if not any(fact in text for fact in FACTS) or text.startswith((*more,)) or WAITS in text:
            yield text


def is_in_line(uid: str) -> bool:
    """True for what is held of a place that is kept for who waits at the head of its line."""
    return uid.startswith(WAITS)


def open_to(engine: Engine, pod: PodRequest) -> list[str]:
    """List UIDs that hold places which the pod may take, or that are kept for it or its gang."""
    line, waiting = engine.kept_places, engine.queue.get(pod.uid)
    closed = line.closed_to(pod, waiting.key[-1] if waiting else -1)
    return line.uids([turn for turn in line.kept() if turn not in closed])


def let_go(engine: Engine) -> None:
    """Nothing is kept any more, as where a process begins anew."""
    line = engine.kept_places
    for turn in line.turns.values():
        line.let_go(turn)
    line.turns.clear()

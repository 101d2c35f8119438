"""The part that all stories of an engine's queue have in common: events to come, in order of time,
and what follows from the engine's commands."""

import heapq
import itertools
from collections.abc import Iterable

from weft.core.engine import Bind, Command, Engine, Event, PodBound, PodGone, Tick, Wake
from weft.core.engine.nominations import is_kept
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit, FirstFit
from weft.model import PodRequest

SECOND = 1_000_000_000
POLICIES = (FirstFit, BestFit, LeastStranding)


class EventStory:
    """Events to come. A story says by `binds` what follows from a Binding."""

    now_ns = 0

    def begin(self) -> None:
        self.heap: list[tuple[int, int, Event]] = []
        self.order, self.names = itertools.count(), itertools.count()

    def at(self, at_ns: int, event: Event) -> None:
        heapq.heappush(self.heap, (at_ns, next(self.order), event))

    def next_event(self) -> Event:
        """Go on to the time of the next event, and return it."""
        self.now_ns, _, event = heapq.heappop(self.heap)
        return event

    def carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Wake):
                self.at(max(command.at_ns, self.now_ns + 1), Tick())
            elif isinstance(command, Bind):
                self.at(self.now_ns, PodBound(command.pod.uid))
                self.binds(command.pod)

    def binds(self, one: PodRequest) -> None:
        """A pod has its place from now on."""
        raise NotImplementedError

    def ends(self, one: PodRequest, after_s: int, *, completed: bool = True) -> None:
        """The pod is over so long from now."""
        self.at(self.now_ns + after_s * SECOND, PodGone(one.uid, completed=completed))


def kept_for(engine: Engine) -> list[str]:
    """Names the gangs and pods for which places are kept. Each of them waits, and nothing is held
    but for them: small pods have turns too, after a longer time."""
    kept = engine.kept_places
    turns = kept.kept()
    assert all(turn.head is not None for turn in turns)
    assert {uid for uid in engine.ledger.holdings if is_kept(uid)} == {*kept.uids(turns)}
    return [turn.key for turn in turns]

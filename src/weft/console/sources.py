"""The interface of sources of pictures, and the source of a simulated cluster."""

from collections.abc import Callable, Iterable
from time import time
from typing import Literal, Protocol

from weft.console.picture import (
    SECOND_NS,
    Picture,
    PictureMaker,
    PodFacts,
    ShownEvent,
    UsualShapes,
)
from weft.console.waiting import WaitingReasons
from weft.core.engine import Engine
from weft.core.engine.nominations import KEPT
from weft.core.explain.explanation import Explanation
from weft.core.explain.of_engine import explanation_of
from weft.model import PodRequest, Shape

Kind = Literal["cluster", "snapshot", "decisions", "demo"]
SNAPSHOT_SLICE_S = 5.0
"""Seconds of search, once at the start, for changes that would help a snapshot's pending pods."""
LIVING_SLICE_S = 0.05
"""Seconds of search, for each picture of a changing cluster, for changes that would help pending
pods: a tenth of the time between two pictures."""


BEFORE = "(bound before)"
"""Text shown instead of a namespace that the record does not contain."""


class PictureSource(Protocol):
    """A source of pictures. `kind` and `about` describe it for viewers; `lives` is True if its
    picture changes with time."""

    kind: Kind
    about: str
    lives: bool

    def picture(self) -> Picture:
        """Return the present picture."""
        ...

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return what `weft explain pod` says; None if there is no such pod."""
        ...


# --- a simulation ---------------------------------------------------------------------------------


class LivedEvent(Protocol):
    """An event in a simulated cluster."""

    @property
    def number(self) -> int:
        """The event's number, one higher than that of the previous event."""
        ...

    @property
    def at_ns(self) -> int:
        """The time of the event, nanoseconds since 1970."""
        ...

    @property
    def kind(self) -> str:
        """The event's kind, one word."""
        ...

    @property
    def text(self) -> str:
        """The event in words."""
        ...

    @property
    def pod(self) -> str:
        """The pod, as NAMESPACE/NAME; "" if the event is not about a pod."""
        ...

    @property
    def node(self) -> str:
        """The node's name; "" if the event is not about a node."""
        ...


class Living(Protocol):
    """A simulated cluster whose engine's clock is nanoseconds since 1970."""

    engine: Engine

    def live_until(self, now_ns: int) -> None:
        """Process all events due up to this time."""
        ...

    def events(self) -> Iterable[LivedEvent]:
        """Return the latest events."""
        ...


class LivingSource:
    """Source of a simulated cluster that runs in real time."""

    kind: Kind = "demo"
    lives = True

    def __init__(self, cluster: Living, about: str, clock: Callable[[], float] = time) -> None:
        self._cluster, self.about, self._clock = cluster, about, clock
        self._reasons = WaitingReasons(cluster.engine, LIVING_SLICE_S)
        self._last_ns, self._maker = 0, PictureMaker(cluster.engine)
        self._usual = UsualShapes(lambda: shapes_in(cluster.engine))

    def picture(self) -> Picture:
        """Simulate the cluster up to the present time, and return its picture."""
        self._last_ns = max(self._last_ns, int(self._clock() * SECOND_NS))  # clocks may be set back
        self._cluster.live_until(self._last_ns)
        engine = self._cluster.engine
        return self._maker.picture(
            self._last_ns / SECOND_NS,
            lambda uid: facts_of(engine, uid),
            self._reasons.rows(waiting.pod for waiting in engine.queue.waiting()),
            (_shown(event) for event in self._cluster.events()),
            self._usual.at(self._last_ns / SECOND_NS),
        )

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return the explanation of a pod that exists now; None if there is no such pod."""
        engine = self._cluster.engine
        for pod in (*(p.pod for p in engine.placed.values()), *queued_in(engine)):
            if (pod.namespace, pod.name) == (namespace, name):
                return explanation_of(engine, pod.uid)
        return None


def facts_of(engine: Engine, uid: str) -> PodFacts:
    """Return the facts of a pod that is placed, or for which a place is reserved. If the pod was
    bound before the record began, only its UID is known."""
    placed = engine.placed.get(uid)
    if placed is not None:
        return PodFacts.of_placed(placed)
    waiting = engine.queue.get(uid.removeprefix(KEPT))
    return PodFacts(BEFORE, uid) if waiting is None else PodFacts.of_request(waiting.pod, 0.0)


def shapes_in(engine: Engine) -> Iterable[Shape]:
    """Return the shapes of the pods that the engine placed, and of pending pods."""
    yield from (placed.pod.shape for placed in engine.placed.values())
    yield from (pod.shape for pod in queued_in(engine))


def queued_in(engine: Engine) -> Iterable[PodRequest]:
    """Return the engine's pending pods."""
    return (waiting.pod for waiting in engine.queue.waiting())


def _shown(event: LivedEvent) -> ShownEvent:
    at_s = event.at_ns / SECOND_NS
    return ShownEvent(event.number, at_s, event.kind, event.text, event.pod, event.node)

"""Sources of the picture: a snapshot, and a simulation that lives."""

from collections.abc import Callable, Iterable
from time import time
from typing import Literal, Protocol

from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.snapshot.state import SnapshotState
from weft.cluster.state.pod_facts import bound_ns, moment_ns
from weft.console.picture import (
    SECOND_NS,
    Picture,
    PodFacts,
    ShownEvent,
    ShownWaiting,
    picture_of,
)
from weft.console.waiting import WaitingReasons
from weft.core.engine import Engine
from weft.core.engine.nominations import KEPT
from weft.core.explain.explanation import Explanation
from weft.core.explain.of_engine import explanation_of
from weft.core.explain.sentences import state_in_words
from weft.core.explain.smallest_change import Rank
from weft.model import BadInputError, PodRequest

Kind = Literal["snapshot", "demo"]
SNAPSHOT_SLICE_S = 5.0
"""Computing time of the search for what would help a snapshot's pods: once, at the start."""
LIVING_SLICE_S = 0.05
"""And for each picture of a cluster that lives: a tenth of the time between two."""


class PictureSource(Protocol):
    """A source of pictures. `kind` and `about` say what is shown; a picture of one that `lives`
    is another each time."""

    kind: Kind
    about: str
    lives: bool

    def picture(self) -> Picture:
        """Return the picture of now."""
        ...

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return what `weft explain pod` says; None if there is no such pod."""
        ...


# --- a snapshot -----------------------------------------------------------------------------------


class SnapshotSource:
    """The state in a snapshot file. `about` says which."""

    kind: Kind = "snapshot"
    lives = False

    def __init__(self, state: SnapshotState, about: str) -> None:
        self._state, self.about = state, about
        self._explainer = Explainer(state.live, state.parts.guard, None)

    def picture(self) -> Picture:
        """Return the picture of the moment at which the snapshot was taken."""
        state = self._state
        at_s = moment_ns(state.snapshot.taken_at) / SECOND_NS
        return picture_of(state.engine, at_s, self._facts, self._waiting())

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return what `weft explain pod --snapshot` says."""
        return await self._explainer.explain(namespace, name)

    def _facts(self, uid: str) -> PodFacts:
        live = self._state.live
        pod = live.pods.by_uid(uid)
        if pod is None:
            namespace, _, name = live.pods.name_of(uid).removeprefix("claim ").rpartition("/")
            return PodFacts(namespace, name, claim=live.pods.claims.holds(uid))
        try:
            request = live.parse(pod)
        except BadInputError:  # another scheduler bound it unread
            meta = pod.metadata
            return PodFacts(meta.namespace, meta.name, since_s=bound_ns(pod) / SECOND_NS)
        return PodFacts.of_request(request, bound_ns(pod) / SECOND_NS)

    def _waiting(self) -> list[ShownWaiting]:
        state = self._state
        requests, unreadable = state.pending()
        decided: list[PodRequest] = []
        rows = []
        for request in requests:
            settled = self._settled(request)
            rows += [settled] if settled is not None else []
            decided += [request] if settled is None else []
        for bad in unreadable:
            namespace, _, name = bad.name.partition("/")
            pod = state.live.pods.pods[namespace, name]
            text = state_in_words("bad", bad.why)
            since_s = moment_ns(pod.metadata.creation_timestamp) / SECOND_NS
            group = "contradicts itself"
            rows.append(
                ShownWaiting(pod.metadata.uid, namespace, name, group, text, since_s=since_s)
            )
        reasons = WaitingReasons(state.engine, SNAPSHOT_SLICE_S, self._rank_for, self._name)
        return [*reasons.rows(decided), *rows]

    def _settled(self, request: PodRequest) -> ShownWaiting | None:
        """Return the row of a pod for which nothing is to be decided now, such as another
        scheduler's; else None."""
        pod = self._state.live.pods.by_uid(request.uid)
        settled = self._explainer.settled(pod) if pod is not None else None
        if settled is None:
            return None
        return ShownWaiting(
            request.uid,
            request.namespace,
            request.name,
            settled.text,
            settled.text,
            dialect=request.dialect,
            priority=request.priority,
            since_s=request.created_ns / SECOND_NS,
        )

    def _rank_for(self, request: PodRequest) -> Rank:
        """Rank pods that could be ended as `Explainer` does: those of lower priority first."""

        def rank(uid: str) -> int:
            pod = self._state.live.pods.by_uid(uid)
            return int(((pod.spec.priority or 0) if pod else 0) >= request.priority)

        return rank

    def _name(self, uid: str) -> str:
        pods = self._state.live.pods
        known = pods.by_uid(uid) is not None or pods.claims.holds(uid)
        return pods.name_of(uid) if known else ""


# --- a simulation ---------------------------------------------------------------------------------


class LivedEvent(Protocol):
    """Something that happened in a living cluster."""

    @property
    def number(self) -> int:
        """Its number, one higher than that of the event before."""
        ...

    @property
    def at_ns(self) -> int:
        """When, nanoseconds since 1970."""
        ...

    @property
    def kind(self) -> str:
        """Its kind, one word."""
        ...

    @property
    def text(self) -> str:
        """The event in words."""
        ...

    @property
    def pod(self) -> str:
        """NAMESPACE/NAME; "" if it is not about a pod."""
        ...

    @property
    def node(self) -> str:
        """The node; "" if it is not about one."""
        ...


class Living(Protocol):
    """A simulated cluster whose engine's clock is nanoseconds since 1970."""

    engine: Engine

    def live_until(self, now_ns: int) -> None:
        """Let everything happen that is due by then."""
        ...

    def events(self) -> Iterable[LivedEvent]:
        """Return the latest events."""
        ...


class LivingSource:
    """A simulated cluster that lives by the wall clock."""

    kind: Kind = "demo"
    lives = True

    def __init__(self, cluster: Living, about: str, clock: Callable[[], float] = time) -> None:
        self._cluster, self.about, self._clock = cluster, about, clock
        self._reasons = WaitingReasons(cluster.engine, LIVING_SLICE_S)
        self._last_ns = 0

    def picture(self) -> Picture:
        """Let the cluster live until now, and return its picture."""
        self._last_ns = max(self._last_ns, int(self._clock() * SECOND_NS))  # clocks may be set back
        self._cluster.live_until(self._last_ns)
        engine = self._cluster.engine
        return picture_of(
            engine,
            self._last_ns / SECOND_NS,
            lambda uid: _facts_of(engine, uid),
            self._reasons.rows(waiting.pod for waiting in engine.queue.waiting()),
            (_shown(event) for event in self._cluster.events()),
        )

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return the explanation of a pod that is there now."""
        engine = self._cluster.engine
        for pod in (*(p.pod for p in engine.placed.values()), *_queued(engine)):
            if (pod.namespace, pod.name) == (namespace, name):
                return explanation_of(engine, pod.uid)
        return None


def _facts_of(engine: Engine, uid: str) -> PodFacts:
    """Return the facts of a pod with a place, or with one that is kept for it."""
    placed = engine.placed.get(uid)
    if placed is not None:
        return PodFacts.of_placed(placed)
    waiting = engine.queue.get(uid.removeprefix(KEPT))
    return PodFacts("", uid) if waiting is None else PodFacts.of_request(waiting.pod, 0.0)


def _queued(engine: Engine) -> Iterable[PodRequest]:
    return (waiting.pod for waiting in engine.queue.waiting())


def _shown(event: LivedEvent) -> ShownEvent:
    at_s = event.at_ns / SECOND_NS
    return ShownEvent(event.number, at_s, event.kind, event.text, event.pod, event.node)

"""Sources of pictures made from a cluster's objects: a snapshot, and a live cluster.

Neither has a queue: pending pods are read from the API's objects, and assessed for each picture.
"""

from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace

from weft.cluster.control.interface import ClusterView
from weft.cluster.control.pending_pods import pending_of
from weft.cluster.control.server_contact import ServerContact
from weft.cluster.scheduler.explain_service import Explainer, OverbookedAccounts
from weft.cluster.snapshot.state import SnapshotState
from weft.cluster.state.pod_facts import bound_ns, moment_ns
from weft.console.happenings import Happenings
from weft.console.picture import (
    SECOND_NS,
    Picture,
    PictureMaker,
    PodFacts,
    ShownWaiting,
    UsualShapes,
)
from weft.console.sources import LIVING_SLICE_S, Kind
from weft.console.waiting import WaitingReasons
from weft.core.explain.explanation import Explanation
from weft.core.explain.sentences import state_in_words
from weft.core.explain.smallest_change import Rank
from weft.model import BadInputError, PodRequest, Shape

ALONE = (
    "the scheduler did not answer, so this is read from the API server's objects: the decision's "
    "score, the predicted slowdown and the observed slowdown are missing"
)
SNAPSHOT_SLICE_S = 5.0
"""Seconds of search, once at the start, for changes that would help a snapshot's pending pods."""


class ClusterPictures:
    """Makes pictures from a cluster's present objects. `slice_s`: seconds of search, for each
    picture, for changes that would help pending pods."""

    def __init__(self, live: ClusterView, accounts: OverbookedAccounts, slice_s: float) -> None:
        self._live = live
        self._explainer = Explainer(live, accounts, None)
        self._reasons = WaitingReasons(live.engine, slice_s, self._rank_for, self._name)
        self._read: dict[str, tuple[object, PodFacts]] = {}
        self._shapes: dict[str, Shape] = {}
        self._usual = UsualShapes(self._bound_shapes)
        self._maker = PictureMaker(live.engine)

    def picture(self, at_s: float) -> Picture:
        """Return the present picture, with the time `at_s`, seconds since 1970."""
        waiting, usual = self._waiting(), self._usual.at(at_s)
        picture = self._maker.picture(at_s, self._facts, waiting, usual=usual)
        for uid in self._read.keys() - picture.pods.keys():
            del self._read[uid]
            self._shapes.pop(uid, None)
        return picture

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return what `weft explain pod` says; None if there is no such pod."""
        return await self._explainer.explain(namespace, name)

    def _bound_shapes(self) -> Iterable[Shape]:
        for uid in self._live.engine.ledger.holdings:
            self._facts(uid)
        return self._shapes.values()

    def _facts(self, uid: str) -> PodFacts:
        live = self._live
        pod = live.pods.by_uid(uid)
        if pod is None:
            namespace, _, name = live.pods.name_of(uid).removeprefix("claim ").rpartition("/")
            return PodFacts(namespace, name, claim=live.pods.claims.holds(uid))
        read = self._read.get(uid)
        if read is not None and read[0] is pod:  # reading thousands again takes too long
            return read[1]
        since_s = bound_ns(pod) / SECOND_NS
        try:
            request = live.parse(pod)
            self._shapes[uid] = request.shape
            facts = PodFacts.of_request(request, since_s)
        except BadInputError:  # another scheduler bound it unread
            meta = pod.metadata
            queue = live.pods.queue_of(uid)
            facts = PodFacts(meta.namespace, meta.name, since_s=since_s, queue=queue)
        self._read[uid] = pod, facts
        return facts

    def _waiting(self) -> list[ShownWaiting]:
        requests, unreadable = pending_of(self._live)
        decided: list[PodRequest] = []
        rows = []
        for request in requests:
            settled = self._settled(request)
            rows += [settled] if settled is not None else []
            decided += [request] if settled is None else []
        for bad in unreadable:
            namespace, _, name = bad.name.partition("/")
            pod = self._live.pods.pods[namespace, name]
            text = state_in_words("bad", bad.why)
            since_s = moment_ns(pod.metadata.creation_timestamp) / SECOND_NS
            group = "invalid request"
            rows.append(
                ShownWaiting(pod.metadata.uid, namespace, name, group, text, since_s=since_s)
            )
        return [*self._reasons.rows(decided), *rows]

    def _settled(self, request: PodRequest) -> ShownWaiting | None:
        """Return the row of a pod for which nothing is to be decided now, such as another
        scheduler's; else None."""
        pod = self._live.pods.by_uid(request.uid)
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
            queue=request.team_queue,
            gpus=request.shape.gpus,
        )

    def _rank_for(self, request: PodRequest) -> Rank:
        """Return a function that ranks pods that could be ended for this pod: those of lower
        priority first."""

        def rank(uid: str) -> int:
            pod = self._live.pods.by_uid(uid)
            return int(((pod.spec.priority or 0) if pod else 0) >= request.priority)

        return rank

    def _name(self, uid: str) -> str:
        pods = self._live.pods
        known = pods.by_uid(uid) is not None or pods.claims.holds(uid)
        return pods.name_of(uid) if known else ""


class SnapshotSource:
    """Source of the state in a snapshot file; `about` names the file."""

    kind: Kind = "snapshot"
    lives = False

    def __init__(self, state: SnapshotState, about: str) -> None:
        self.about = about
        self._pictures = ClusterPictures(state.live, state.parts.guard, SNAPSHOT_SLICE_S)
        self._at_s = moment_ns(state.snapshot.taken_at) / SECOND_NS

    def picture(self) -> Picture:
        """Return the picture of the moment at which the snapshot was taken."""
        return self._pictures.picture(self._at_s)

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return what `weft explain pod --snapshot` says; None if there is no such pod."""
        return await self._pictures.explain(namespace, name)


class ClusterSource:
    """Source of a live cluster. While `contact` with its API server is lost, pictures show the
    last state that the API server reported. `ask` requests a pod's explanation from the scheduler,
    which alone knows its past decisions and the observed slowdown of pods."""

    kind: Kind = "cluster"
    lives = True

    def __init__(
        self,
        live: ClusterView,
        accounts: OverbookedAccounts,
        contact: ServerContact,
        about: str,
        ask: Callable[[str, str], Awaitable[Explanation]] | None = None,
    ) -> None:
        self.about, self._live, self._ask = about, live, ask
        self._pictures = ClusterPictures(live, accounts, LIVING_SLICE_S)
        self._clock, self._contact, self._happenings = live.client.clock, contact, Happenings()

    def picture(self) -> Picture:
        """Return the present picture, with the events since the first picture."""
        silence = self._contact.silence()
        lost_s = silence.for_s if silence is not None else 0.0
        picture = self._pictures.picture(self._clock.wall().timestamp() - lost_s)
        if silence is not None:
            picture = replace(picture, lost=silence.why, lost_s=round(lost_s, 1))
        return self._happenings.on(picture)

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        """Return the scheduler's explanation of the pod; if the scheduler does not answer, one that
        this process makes from the cluster's objects alone. None if there is no such pod."""
        pod = self._live.pod(namespace, name)
        if pod is None:
            return None
        why = ""
        try:
            said = await self._ask(namespace, name) if self._ask is not None else None
            if said is not None and said.uid == pod.metadata.uid:
                return said
        except BadInputError as error:
            why = f" ({error})"
        alone = await self._pictures.explain(namespace, name)
        return None if alone is None else replace(alone, notes=(*alone.notes, ALONE + why))

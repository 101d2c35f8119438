"""Answers the extender's requests, from bytes to bytes; the HTTP layer is `server.py`.

Rules
  1. filter, prioritize and preempt reserve nothing, because kube-scheduler may skip the rest of
     its cycle, and asks for one pod before it binds another. One exception: a pod that fits
     nowhere is reported once to the engine, as no bind will follow.
  2. bind decides again, from the present ledger. If it refuses, kube-scheduler retries the pod.
  3. A pod that already holds GPUs may only go to their node.
  4. Errors have HTTP 200 with `Error`, but 500 for a failed bind on the original systems' paths,
     and 400 for an invalid request whose result has no error field.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import NamedTuple

from weft.cluster.control.interface import LiveCluster
from weft.cluster.extender import protocol
from weft.cluster.extender.protocol import (
    ArgsReader,
    BindArgs,
    ErrorAnswer,
    FilterAnswer,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeList,
    PreemptAnswer,
    encode,
)
from weft.cluster.extender.routes import Route
from weft.core.engine import Bind, BindOn, BindOnRefused, PodFitsNowhere
from weft.core.engine.questions import (
    Answers,
    OfferedVictims,
    RowLookup,
    offered_victims,
    scores,
    which_fit,
)
from weft.core.explain.sentences import CHANGED, NO_LEASE, NOT_READY, UNANSWERED, UNKNOWN_NODE
from weft.core.framework import Profile
from weft.kube.bind import AlreadyBound, Bound, Conflict, Gated, Gone, NotLeader, Outcome
from weft.kube.bind import Refused as WriteRefused
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.pods import Pod, Volume
from weft.model import BadInputError, PodRequest
from weft.model.reason import TEXT

# --- cached pods ----------------------------------------------------------------------------------


LARGE_BYTES = 65_536
"""Largest pod JSON that is cached. Pods have some kB; the limit bounds memory for any input."""


class PodCache:
    """Caches the requests of pods; the least recently used are dropped.

    A pod is parsed again when its content or the `settings` by which pods are read have changed.
    `parsed` counts parses.

    The cache key is the pod's whole content, never just the UID in the request: a request with
    another pod's UID but different content is answered for that content, and does not change the
    other pod's entry.
    """

    def __init__(self, parse: Callable[[Pod], PodRequest], keep: int = 10_000) -> None:
        self.parsed = 0
        self._parse = parse
        self._keep = keep
        self._known: OrderedDict[Hashable, PodRequest] = OrderedDict()

    def sent(self, pod: Pod, raw: bytes, settings: Hashable) -> PodRequest:
        """Return the request of a pod sent as `raw`; `BadInputError` if the pod contradicts itself.

        A pod larger than `LARGE_BYTES` is not cached.
        """
        if len(raw) > LARGE_BYTES:
            return self._parsed(pod)
        return self._request(pod, (blake2b(raw, digest_size=16).digest(), settings))

    def watched(self, pod: Pod, settings: Hashable) -> PodRequest:
        """Return the request of a pod from the API server, identified by UID and resource
        version."""
        meta = pod.metadata
        return self._request(pod, (meta.uid, meta.resource_version, settings))

    def _request(self, pod: Pod, key: Hashable) -> PodRequest:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._parsed(pod)
            if len(self._known) > self._keep:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _parsed(self, pod: Pod) -> PodRequest:
        self.parsed += 1
        return self._parse(pod)


_NO_NODES = "has neither Nodes nor NodeNames; send one of them"


class ExtenderReply(NamedTuple):
    """HTTP status and JSON of an answer. `failed`: the answer is an error, for metrics."""

    status: int
    body: bytes
    failed: bool = False


_NO_BODY = ExtenderReply(400, encode(ErrorAnswer("Please send a request body")), failed=True)


class Extender:
    """Answers the extender's requests for one live cluster.

    A bind that arrives before this process leads waits up to `leads_within_s`: short enough for
    kube-scheduler's default timeout of five seconds."""

    def __init__(
        self, cluster: LiveCluster, *, keep_pods: int = 10_000, leads_within_s: float = 3.0
    ) -> None:
        self.cluster, self._leads_within_s = cluster, leads_within_s
        self.pods = PodCache(cluster.parse_asked, keep_pods)
        self._reader, self._lookup = ArgsReader(), RowLookup()

    # --- questions -------------------------------------------------------------------------------

    def filter(self, route: Route, body: bytes) -> ExtenderReply:
        """Return the nodes that could take the pod now, and for each other node the reason why it
        cannot."""
        if not body:
            return _NO_BODY
        try:
            args = self._reader.read(body)
            if not args.has_nodes:
                raise BadInputError("the request", _NO_NODES)
        except BadInputError as error:
            return ExtenderReply(200, encode(FilterAnswer(error=str(error))), failed=True)
        try:
            pod, profile = self._asked(route, args.pod, args.raw_pod)
            answers = self._where_held(pod, args.names) or which_fit(
                self.cluster.engine, profile, pod, args.names, self._lookup, self._beside(profile)
            )
        except BadInputError as error:
            return ExtenderReply(200, encode(FilterAnswer(error=str(error))), failed=True)
        except Exception as error:
            why = self._broke_off(args.pod, error)
            return ExtenderReply(200, encode(FilterAnswer(error=why)), failed=True)
        if not answers.fits and self.cluster.engine.price_lists.expects(pod.uid):
            self.cluster.handle(PodFitsNowhere(pod.uid))
        for name in answers.unknown:
            answers.failed[name] = UNKNOWN_NODE
        nodes = args.nodes
        answer = FilterAnswer(
            None if nodes is None else NodeList([nodes[name] for name in answers.fits]),
            self._reader.answer(args, answers.fits) if nodes is None else None,
            answers.failed,
            answers.unresolvable,
        )
        return ExtenderReply(200, encode(answer))

    def prioritize(self, route: Route, body: bytes) -> ExtenderReply:
        """Return the score of each node, 0 to 10; all 0 for a pod that cannot be read."""
        if not body:
            return _NO_BODY
        try:
            args = self._reader.read(body)
        except BadInputError as error:
            return ExtenderReply(400, encode(ErrorAnswer(str(error))), failed=True)
        try:
            pod, profile = self._asked(route, args.pod, args.raw_pod)
            node_scores = scores(self.cluster.engine, profile, pod, args.names, self._lookup)
        except BadInputError:
            node_scores = [0] * len(args.names)
        except Exception as error:
            self._broke_off(args.pod, error)
            node_scores = [0] * len(args.names)
        return ExtenderReply(200, encode(list(map(HostPriority, args.names, node_scores))))

    def preempt(self, route: Route, body: bytes) -> ExtenderReply:
        """Return the nodes on which preempting pods would free the requested GPUs, each with its
        victims: those that kube-scheduler proposed if they are enough, otherwise other pods on the
        GPUs."""
        if not body:
            return _NO_BODY
        try:
            args = protocol.read_preempt(body)
            pod, profile = self._asked(route, args.pod, args.raw_pod)
        except BadInputError as error:
            return ExtenderReply(400, encode(ErrorAnswer(str(error))), failed=True)
        try:
            proposed = {
                node: OfferedVictims(tuple(victims.uids), victims.pdb_violations)
                for node, victims in args.victims.items()
            }
            by_sums = not _has_rules_beyond_sums(args.pod)
            offers = offered_victims(self.cluster.engine, profile, pod, proposed, by_sums=by_sums)
        except Exception as error:
            why = self._broke_off(args.pod, error)
            return ExtenderReply(400, encode(ErrorAnswer(why)), failed=True)
        answers = {
            node: MetaVictims([MetaPod(uid) for uid in offer.uids], offer.violations)
            for node, offer in offers.items()
        }
        return ExtenderReply(200, encode(PreemptAnswer(answers)))

    # --- bind ------------------------------------------------------------------------------------

    async def bind(self, route: Route, body: bytes) -> ExtenderReply:
        """Choose the GPUs, reserve them, and write a Binding; answer when it is written."""
        if not body:
            return _NO_BODY
        args = None
        try:
            args = protocol.read_bind(body)
            error = await self._bind(route, args)
        except BadInputError as bad:
            error = str(bad)
        except Exception as fault:
            error = self.cluster.faults.answering(args, fault)
        return ExtenderReply(
            route.bind_failure if error else 200, encode(ErrorAnswer(error)), bool(error)
        )

    async def _bind(self, route: Route, args: BindArgs) -> str:
        """Bind the pod; return the reason of a failure, "" on success."""
        cluster = self.cluster
        if not cluster.ready:
            return NOT_READY
        follows = await cluster.leadership.why_not(self._leads_within_s)
        if follows:
            return follows
        watched = await self._truth(args)
        if watched is None:
            return f"pod {args.namespace}/{args.name} ({args.uid}) does not exist"
        pod = cluster.parse_asked(watched)
        profile = self._profile(route, pod)
        for command in cluster.handle(BindOn(pod, args.node, profile.name)):
            if isinstance(command, BindOnRefused) and command.pod.uid == args.uid:
                return f"{args.node}: {TEXT[command.code]}"
            if isinstance(command, Bind) and command.pod.uid == args.uid:
                return _why_not(await cluster.bind(command), args.node)
        return f"{args.node}: Weft made no decision about this pod"

    async def _truth(self, args: BindArgs) -> Pod | None:
        """Return the pod from the API server, as a binding must not trust the content sent with
        filter; None if no such pod exists."""
        pod = self.cluster.pod(args.namespace, args.name)
        if pod is None or pod.metadata.uid != args.uid:
            try:
                pod = await self.cluster.fetch(args.namespace, args.name)
            except (ApiError, LostError, NotSentError) as error:
                raise BadInputError("", f"the pod can't be read: {error}") from error
        return pod if pod is not None and pod.metadata.uid == args.uid else None

    # --- about a pod -----------------------------------------------------------------------------

    def name_of(self, uid: str) -> tuple[str, str]:
        """Return a pod's namespace and name; "" and the UID if unknown."""
        watched = self.cluster.pod_by_uid(uid)
        if watched is not None:
            return watched.metadata.namespace, watched.metadata.name
        placed = self.cluster.engine.placed.get(uid)
        return (placed.pod.namespace, placed.pod.name) if placed is not None else ("", uid)

    def _broke_off(self, pod: Pod, error: Exception) -> str:
        """Count an error in Weft itself, and return the text to answer."""
        return self.cluster.faults.answering(pod.metadata, error)

    def _asked(self, route: Route, pod: Pod, raw: bytes) -> tuple[PodRequest, Profile]:
        if not self.cluster.ready:
            raise BadInputError("", NOT_READY)
        request = self.pods.sent(pod, raw, self.cluster.settings)
        return request, self._profile(route, request)

    def _beside(self, profile: Profile) -> list[PodRequest]:
        """Return the other pending pods that are not in the engine's queue, for policies that
        consider waiting pods."""
        waiting = []
        for pod in self.cluster.pods.unbound() if profile.matcher is not None else ():
            if pod.metadata.uid in self.cluster.engine.queue:
                continue
            try:
                waiting.append(self.pods.watched(pod, self.cluster.settings))
            except Exception:  # its error is reported when it is asked about itself
                continue
        return waiting

    def _profile(self, route: Route, pod: PodRequest) -> Profile:
        engine = self.cluster.engine
        return engine.profiles[route.policy] if route.policy else engine.profile_of(pod)

    def _where_held(self, pod: PodRequest, names: list[str]) -> Answers | None:
        """Return the answer for a pod that already holds GPUs; None for other pods."""
        holding = self.cluster.engine.ledger.holdings.get(pod.uid)
        if holding is None:
            return None
        node = holding.placement.node
        why = f"the pod's GPUs are reserved on {node}"
        elsewhere = {name: why for name in names if name != node}
        return Answers([name for name in names if name == node], elsewhere, {}, [])


def _has_rules_beyond_sums(pod: Pod) -> bool:
    """Return True if kube-scheduler may propose victims because of rules other than resource
    sums."""
    affinity, spec = pod.spec.affinity, pod.spec
    about_pods = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
    disks = (each for each in spec.volumes or () if each != Volume(each.name, image=each.image))
    return bool(
        about_pods or spec.topology_spread_constraints or spec.resource_claims or any(disks)
    )


def _why_not(outcome: Outcome, node: str) -> str:
    """Return the error text for kube-scheduler about a binding's outcome; "" if bound."""
    match outcome:
        case Bound():
            return ""
        case AlreadyBound():
            return "" if outcome.node == node else f"the pod is bound to {outcome.node} already"
        case Gated():
            return f"the pod has scheduling gates: {', '.join(outcome.gates)}"
        case Gone() | Conflict() | WriteRefused():
            return outcome.why or CHANGED
        case NotLeader():
            return NO_LEASE
        case _:
            return UNANSWERED

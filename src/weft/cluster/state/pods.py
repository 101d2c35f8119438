"""Turns what the API shows of pods into the engine's events.

A pod as the API shows it          the engine's event
    Succeeded, Failed, or gone         PodGone (never at deletionTimestamp: it still holds its GPU)
    has a node                         PodSeenBound
    ours, free to be scheduled         PodAdded, once it may be decided here
    ours, but contradicts itself       nothing; it is in `bad` with the reason
    gated, being deleted, another's    PodGone, if it was added before
No event is repeated. A pod is *ours* if its schedulerName is one of our profiles'.

If a pod holds whole GPUs and no marks say which, they are guessed: on each node after all pods that
say what they hold, the oldest first, and again with each change of the node's pods. So the guesses
follow from what the API shows, not from the order in which it came; after a restart they are the
same.

ResourceClaims hold GPUs too (`claims.py`). Their unknown GPUs are guessed before those of pods, and
resources that a claim gives to a pod are not charged to the pod again.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.cluster.state.bound_share import (
    AsSeenFirst,
    BoundReading,
    BoundShare,
    Doubt,
    GuessedUse,
    HowFull,
    account,
    fault_in_words,
    placed_by_weft,
    seen_as_decided,
    seen_first,
)
from weft.cluster.state.claims import ClaimView, beside_claims, log_problem
from weft.cluster.state.groups import GroupView
from weft.cluster.state.namespaces import NamespaceView
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_facts import age, bound_ns, came_as_decided, said_to_move, same, since
from weft.cluster.state.pod_reader import marks_of, namespace_selectors_of, read, workload_of
from weft.cluster.state.resizes import as_set_aside
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Event, PodAdded, PodGone, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.dialects.kai import card_names, groups_of
from weft.dialects.queues import queue_of
from weft.dialects.shares import keeps, said_by
from weft.dialects.system import deadline_of
from weft.kube.clock import Clock
from weft.kube.pods import ENDED, Pod
from weft.model import (
    BadInputError,
    Gang,
    MountedVolumes,
    Node,
    Placement,
    PodMarks,
    PodRequest,
)
from weft.model.ceilings import MOST_GANG_PODS
from weft.model.log_fields import about
from weft.model.node import CardNames
from weft.model.queue_rules import NO_QUEUES, QueueRules

log = logging.getLogger("weft.cluster")

Key = tuple[str, str]
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of mirror pods, by which the API shows the static pods of a node."""
_UNNAMED = CardNames()
_MOST_QUEUES = 20_000
"""The most unconfigured queues that are remembered as reported."""


class GroupedPods:
    """The pods in KAI's GPU groups on each node, and the names that they give to the node's GPUs.

    A pod's charge depends on these names, and so on other pods of its node: if the names changed,
    all pods of the node with a group are charged again. `counted` returns a pod as it counts for
    its charge, regardless of later edits.
    """

    def __init__(self, counted: Callable[[Pod], Pod]) -> None:
        self._counted = counted
        self._here: dict[str, dict[str, Pod]] = {}
        self._known: dict[str, CardNames] = {}
        self._stale: dict[str, CardNames] = {}  # changed nodes, with the names known before

    def take(self, pod: Pod) -> None:
        """Take in a bound pod that is new or changed."""
        name, uid = pod.spec.node_name, pod.metadata.uid
        if (pod.metadata.labels and groups_of(self._counted(pod))) or uid in self._here.get(
            name, ()
        ):
            self._here.setdefault(name, {})[uid] = pod
            self._forget(name)

    def drop(self, pod: Pod) -> None:
        """Remove a pod that left its node."""
        here = self._here.get(pod.spec.node_name, {})
        if here.pop(pod.metadata.uid, None) is not None:
            self._forget(pod.spec.node_name)
            if not here:
                del self._here[pod.spec.node_name]

    def of(self, name: str) -> CardNames:
        """Return the names that KAI's GPU groups give to this node's GPUs."""
        if name not in self._here:
            return _UNNAMED
        known = self._known.get(name)
        if known is None:
            known = card_names(map(self._counted, self._here[name].values()))
            self._known[name] = known
        return known

    def renamed(self) -> list[str]:
        """Return the nodes on which names of GPUs changed since the last call."""
        stale, self._stale = self._stale, {}
        return sorted(name for name, before in stale.items() if self.of(name) != before)

    def on_node(self, name: str) -> Iterable[Pod]:
        """Return the pods of this node that have a group."""
        return list(self._here.get(name, {}).values())

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        if name not in self._stale:
            self._stale[name] = known if known is not None else _UNNAMED


class PodView:
    """The existing pods. `bad` are our pods that cannot be read, by UID, with the reason; `on_bad`
    is called with each new reason, and with "" once the pod can be read. `ledger` is the engine's,
    and only read.

    `faults` counts errors in Weft when reading a pod, which then counts as unreadable. `assumed`
    says in words what is charged because marks are missing, `told` what nodes' agents report of
    pods without marks, and `doubts` what is wrong with the marks of bound pods. `deciding` is False
    while another process decides: pending pods are then not sent to the engine. `tells_priority`:
    some profile preempts, so events of bound pods that may be preempted have a priority.
    `tells_durations`: the queue uses running times, so events of bound pods have a workload and a
    deadline. `clock` is used for the time since binding. If `queues` are counted, events of bound
    pods name the pod's queue.
    """

    def __init__(
        self,
        names: Collection[str],
        nodes: NodeView,
        volumes: VolumeView,
        ledger: Ledger,
        settings: DialectSettings,
        *,
        on_bad: Callable[[Pod, str], None],
        clock: Clock,
        queues: QueueRules = NO_QUEUES,
        gang_pods: int = MOST_GANG_PODS,
    ) -> None:
        self.pods: dict[Key, Pod] = {}
        self.bad: dict[str, str] = {}
        self.assumed: dict[str, str] = {}
        self.doubts: dict[str, tuple[Doubt, ...]] = {}
        self.told: dict[str, str] = {}
        self.faults = 0
        self.settings = settings
        self.claims = ClaimView(nodes.slices, nodes.nodes.get, clock.wall, log_problem)
        self.deciding = self.tells_priority = self.tells_durations = False
        self._clock, self._queues = clock, queues
        self._known_queues = {terms.name for terms in queues.queues}
        self._ours, self._nodes, self._volumes = frozenset(names), nodes, volumes
        self.namespaces, self.groups = NamespaceView(), GroupView(self._ours, gang_pods)
        self._ledger, self._on_bad = ledger, on_bad
        self._by_uid: dict[str, Pod] = {}
        self.by_uid: Callable[[str], Pod | None] = self._by_uid.get
        self._on_node: dict[str, dict[str, Pod]] = {}
        self._leaving: set[str] = set()
        self._faulty: dict[str, str] = {}  # errors that were logged
        self._sent: dict[str, PodRequest | Placement] = {}
        self._marks: dict[
            str,
            tuple[
                PodMarks,
                MountedVolumes | UnsetType,
                Gang | UnsetType,
                str | UnsetType,
                PodRequest | UnsetType,
            ],
        ] = {}  # of bound pods, as last sent
        self._first: dict[str, AsSeenFirst] = {}  # bound pods
        self._bound_ns: dict[str, int] = {}  # binding times, monotonic clock
        self._by_claim: dict[Key, str] = {}  # pods whose extended resources a claim provides
        self._guessed_on: dict[str, set[str]] = {}  # pods with guessed whole GPUs, by node
        self._to_guess: set[str] = set()  # nodes whose guesses have to be made again
        self._names = GroupedPods(self.counted)

    def queue_of(self, uid: str) -> str:
        """Return the team's queue of a known pod; "" for other holders, such as ResourceClaims."""
        pod = self.by_uid(uid)
        return "" if pod is None else queue_of(pod)

    def decided(self, uid: str) -> Placement | None:
        """Return the placement that the engine holds for this pod or claim; None if there
        is none."""
        holding = self._ledger.holdings.get(uid)
        return holding.placement if holding is not None else None

    def unsure(self, uid: str) -> bool:
        """Return True if the pod may hold less than is charged for it, or be elsewhere on its node:
        its marks are in doubt, or its share is assumed."""
        return (
            uid in self.assumed
            or uid in self.told
            or uid in self.claims.assumed
            or any(doubt.unsure for doubt in self.doubts.get(uid, ()))
        )

    def name_of(self, uid: str) -> str:
        """Return a holder's name for people: a pod's or a claim's, else the UID."""
        if self.claims.holds(uid):
            return self.claims.name_of(uid)
        pod = self._by_uid.get(uid)
        return uid if pod is None else f"{pod.metadata.namespace}/{pod.metadata.name}"

    def claim_moved(
        self, events: list[Event], nodes: Collection[str], claim: Key = ("", "")
    ) -> list[Event]:
        """Return the events of a changed claim, with those of pods that it affects: `nodes` are
        those on which claims hold other GPUs than before, and `claim` may provide its pod's
        extended resources."""
        self._to_guess.update(nodes)
        pod = self._by_uid.get(self._by_claim.get(claim, ""))
        return self.in_safe_order([*events, self.update(pod) if pod is not None else None])

    def frees_nothing(self, events: Sequence[Event], claim: Key) -> bool:
        """Return True if these events of this claim free nothing, so that guessing GPUs anew can
        wait for the events of other claims."""
        return claim not in self._by_claim and all(
            isinstance(event, PodSeenBound) and self.decided(event.placement.uid) is None
            for event in events
        )

    def update(self, pod: Pod) -> Event | None:
        """Take in the pod as it is now; return the event for the engine, if any."""
        meta = pod.metadata
        known = self.pods.get((meta.namespace, meta.name))
        self.pods[meta.namespace, meta.name] = self._by_uid[meta.uid] = pod
        if pod.spec.node_name and meta.uid not in self._bound_ns:
            became = known is not None and known.metadata.uid == meta.uid
            at_ns = 0 if became else bound_ns(pod)
            wall_ns = int(self._clock.wall().timestamp() * 1e9)
            held_ns = max(0, wall_ns - at_ns) if at_ns else 0
            self._bound_ns[meta.uid] = int(self._clock.monotonic() * 1e9) - held_ns
        if pod.spec.volumes:
            self._volumes.use(pod, waits=self._is_pending(pod))
        if pod.spec.affinity is not None and (selectors := namespace_selectors_of(pod)):
            self.namespaces.use(meta.uid, selectors)
        if known is not None or meta.labels or meta.annotations or pod.spec.scheduling_group:
            self.groups.use(pod)
        if (backed := pod.status.extended_resource_claim_status) is not None:
            self._by_claim[meta.namespace, backed.resource_claim_name] = meta.uid
        if known is not None and known.metadata.uid == meta.uid:
            if known is not pod and meta.uid in self._sent and same(known, pod):
                if pod.spec.node_name:
                    self._on_node[pod.spec.node_name][meta.uid] = pod
                return None  # only its status changed
            if known.spec.node_name:
                self._leave_node(known)
            elif (placed := self._arrived(known, pod)) is not None:
                self._note_bound(pod)
                return self._seen(pod, placed)
        return self._classify(pod)

    @property
    def has_moved(self) -> bool:
        """True if `moved` has pods whose events it would yield."""
        return self.namespaces.has_moved or bool(self.groups.moved)

    def moved(self, most: int) -> Iterator[Event]:
        """Yield events of at most `most` pods whose affinity terms select other namespaces than
        before, or whose group changed."""
        uids = self.namespaces.take_moved(most)
        for uid in (*uids, *self.groups.take_moved(most - len(uids))):
            pod, placed = self._by_uid.get(uid), self._sent.get(uid)
            if pod is None:
                continue
            self.groups.use(pod)
            event = (
                self._seen(pod, placed) if isinstance(placed, Placement) else self._classify(pod)
            )
            if event is not None:
                yield event

    def held_ns(self, uid: str) -> int:
        """Return the time since the pod was bound, ns, 0 if unknown. If it was already bound when
        this process first saw it, the API's binding time counts."""
        now_ns = int(self._clock.monotonic() * 1e9)
        return now_ns - self._bound_ns.get(uid, now_ns)

    def forget(self, pod: Pod) -> Event | None:
        """Take in that the pod is gone from the API; return the event for the engine, if any."""
        meta = pod.metadata
        known = self.pods.get((meta.namespace, meta.name))
        if known is not None and known.metadata.uid == meta.uid:
            del self.pods[meta.namespace, meta.name]
        self._faulty.pop(meta.uid, None)
        self._first.pop(meta.uid, None)
        self._bound_ns.pop(meta.uid, None)
        self.namespaces.release(meta.uid)
        self.groups.release(pod)
        known = self._by_uid.pop(meta.uid, None)
        if known is not None:
            if (backed := known.status.extended_resource_claim_status) is not None:
                self._by_claim.pop((meta.namespace, backed.resource_claim_name), None)
            self._volumes.release(known)
            self._leave_node(known)
        return self._over(meta.uid)

    def resend(self, uid: str) -> Event | None:
        """Return the pod's event once more, after a failed binding, as the pod may have changed
        since; None if the engine needs none."""
        pod = self._by_uid.get(uid)
        if pod is None:
            return None
        before = self._sent.pop(uid, None)
        event = self._classify(pod)
        if event is None and before is not None and uid not in self._sent:
            return PodGone(uid)  # the pod is not to be scheduled any more
        return event

    def mark_gone(self, uid: str) -> None:
        """Note that the engine already knows that the pod is gone."""
        self._sent.pop(uid, None)

    def there(self, name: str) -> Node | None:
        """Return the node with other systems' names of its GPUs, which reading bound pods needs;
        None if there is no such node."""
        return self._nodes.called(name, self._names.of(name))

    def is_placed_by_weft(self, pod: Pod) -> bool:
        """Return True if Weft placed this bound pod: its annotations say so now, or did when it was
        first seen."""
        first = self._first.get(pod.metadata.uid)
        return placed_by_weft(pod) or (first is not None and bool(first.bound_with))

    def counted(self, pod: Pod) -> Pod:
        """Return the bound pod as it counts for its charge: with the requests it had when it was
        first seen."""
        first = self._first.get(pod.metadata.uid)
        return BoundReading(pod, first).counted if first is not None else pod

    def _renamed(self) -> list[Event]:
        """Return the events of pods on nodes whose GPUs have other names now."""
        pods = [
            pod
            for name in self._names.renamed()
            for pod in self._names.on_node(name)
            if pod.metadata.uid in self._on_node.get(name, {})
        ]
        events = [self._charged_anew(pod) for pod in sorted(pods, key=since)]
        return [event for event in events if event is not None]

    def in_safe_order(self, events: Iterable[Event | None]) -> list[Event]:
        """Return these events, and events of changed guesses, in a safe order: everything new is
        charged before anything is freed, as the engine decides at each event."""
        changes = [event for event in events if event is not None]
        changes += self._renamed()
        leaving = {_uid(event) for event in changes}
        names, self._to_guess = self._to_guess, set()
        for name in sorted(names):
            for uid, held in self._guesses(name, leaving).items():
                event: Event | None
                if self.claims.holds(uid):
                    event = self.claims.seen(uid, held.placement.shares, held.why)
                else:
                    pod = self._by_uid[uid]
                    self._note(pod, held)
                    event = self._seen(pod, held.placement)
                changes += [event] if event is not None else []
        if len(changes) < 2:
            return changes
        wider = {id(e): self._also_before(e) for e in changes if isinstance(e, PodSeenBound)}
        return [*wider.values(), *(event for event in changes if wider.get(id(event)) is not event)]

    def remove_node(self, node: str) -> None:
        """Drop the assumptions and doubts about pods on a node that is gone."""
        for uid in self._on_node.get(node, ()):
            self.assumed.pop(uid, None)
            self.doubts.pop(uid, None)
            self.told.pop(uid, None)
        for holder in self.claims.holders_on(node):
            self.claims.assumed.pop(holder, None)

    def on_node(self, name: str) -> list[Pod]:
        """Return the pods that hold, or may hold, something on this node."""
        return list(self._on_node.get(name, {}).values())

    def perhaps_stuck(self) -> list[Pod]:
        """Return bound pods on nodes that are not ready or do not exist, and pods being deleted."""
        known, dead = self._nodes.objects, self._nodes.not_ready
        names = [name for name in self._on_node if name in dead or name not in known]
        stuck = {uid: pod for name in names for uid, pod in self._on_node[name].items()}
        stuck |= {uid: self._by_uid[uid] for uid in self._leaving if uid in self._by_uid}
        return list(stuck.values())

    def pending(self) -> list[Pod]:
        """Return our pods that wait for a node, the highest priority first, then the oldest."""
        waiting = [pod for pod in self._by_uid.values() if self._is_pending(pod)]
        return sorted(waiting, key=lambda pod: (-(pod.spec.priority or 0), age(pod)))

    def unbound(self) -> list[Pod]:
        """Return all pods that wait for a node, of any scheduler, except pods with scheduling
        gates."""
        return [
            pod
            for pod in self._by_uid.values()
            if not pod.spec.node_name
            and not pod.spec.scheduling_gates
            and not pod.ended
            and not pod.metadata.deletion_timestamp
        ]

    def ours(self, pod: Pod) -> bool:
        """Return True if the pod's schedulerName is that of one of our profiles."""
        return (pod.spec.scheduler_name or "default-scheduler") in self._ours

    def _is_pending(self, pod: Pod) -> bool:
        return (
            not pod.spec.node_name
            and pod.status.phase not in ENDED
            and self.ours(pod)
            and not pod.spec.scheduling_gates
            and not pod.metadata.deletion_timestamp
        )

    def _classify(self, pod: Pod) -> Event | None:
        uid = pod.metadata.uid
        before = self.bad.pop(uid, "")
        event: Event | None = None
        try:
            if pod.status.phase in ENDED:
                event = self._over(uid)
            elif pod.spec.node_name:
                event = self._bound(pod)
            elif not self._is_pending(pod):
                event = self._gone(uid)
            elif self.deciding:
                request = self._parse(pod)
                if self._sent.get(uid) != request:
                    self._sent[uid] = request
                    if request.queue and self._queues.count:
                        self._note_queue(pod, request.queue)
                    event = PodAdded(request)
        except Exception as error:  # an error in Weft affects this pod only
            contradicts = isinstance(error, BadInputError) and not pod.spec.node_name
            why = str(error) if contradicts else self.fault(pod, error)
            if not pod.spec.node_name:
                event = self._gone(uid)
                self.bad[uid] = why
        why = self.bad.get(uid, "")
        if why != before:
            self._on_bad(pod, why)
        return event

    def _parse(self, pod: Pod) -> PodRequest:
        return read(pod, self.settings, self._volumes, self.namespaces, self.groups)

    def fault(self, pod: Pod, error: Exception) -> str:
        """Count an error in Weft about the pod, and log it once; return the reason to report on the
        pod."""
        self.faults += 1
        meta, why = pod.metadata, fault_in_words(error)
        if self._faulty.get(meta.uid) != why:
            self._faulty[meta.uid] = why
            text = f"pod {meta.namespace}/{meta.name} cannot be read; this is a mistake in Weft"
            log.error("%s: %s", text, why, exc_info=error, extra=about(meta))
        return f"cannot be read: {why}"

    def _note_queue(self, pod: Pod, queue: str) -> None:
        """Log that the queue which the pod names is not configured; once for each queue."""
        if queue in self._known_queues or len(self._known_queues) > _MOST_QUEUES:
            return
        self._known_queues.add(queue)
        log.warning(
            "pod %s/%s names queue %s, which queues.teams does not list: it gets weight 1, no "
            "guarantee and no limits",
            pod.metadata.namespace,
            pod.metadata.name,
            queue,
            extra=about(pod.metadata),
        )

    def _bound(self, pod: Pod) -> Event | None:
        self._note_bound(pod)
        return self._charged_anew(pod)

    def _charged_anew(self, pod: Pod) -> Event | None:
        share = self._held(pod, self.there(pod.spec.node_name))
        self._note(pod, share)
        return self._seen(pod, share.placement)

    def _note_bound(self, pod: Pod) -> None:
        uid, name = pod.metadata.uid, pod.spec.node_name
        self._on_node.setdefault(name, {})[uid] = pod
        self._to_guess.add(name)
        self._names.take(pod)
        if pod.metadata.deletion_timestamp:
            self._leaving.add(uid)

    def _seen(self, pod: Pod, placement: Placement) -> Event | None:
        uid, marks = pod.metadata.uid, marks_of(pod, self.namespaces)
        mounted = self._volumes.mounted(pod) if pod.spec.volumes else UNSET
        queue = queue_of(pod) if self._queues.count else UNSET
        movable = said_to_move(pod, self._parse) if self.tells_priority else UNSET
        told = (marks, mounted, self.groups.read(pod).gang, queue, movable)
        if self._sent.get(uid) == placement and self._marks.get(uid) == told:
            return None
        self._sent[uid], self._marks[uid] = placement, told
        return self.seen_at(placement)

    def seen_at(self, placement: Placement) -> PodSeenBound:
        """Return the event that a pod is bound with this placement, with all known facts of it."""
        uid = placement.uid
        known = self._marks.get(uid, (UNSET, UNSET, UNSET, UNSET, UNSET))
        pod = self._by_uid.get(uid)
        at_ns, held_ns = 0 if pod is None else bound_ns(pod), self.held_ns(uid)
        job_class, unsure = placement.job_class, self.unsure(uid)
        seen = PodSeenBound(placement, at_ns, job_class, held_ns, unsure, *known)
        if self.tells_durations and pod is not None:
            deadline_s = deadline_of(pod)
            seen = replace(seen, workload=workload_of(pod) or UNSET, deadline_s=deadline_s)
        if self.tells_priority and pod is not None and self._may_be_ended(pod):
            return replace(seen, priority=pod.spec.priority or 0)
        return seen

    def _may_be_ended(self, pod: Pod) -> bool:
        """Return True if the pod may be preempted: Weft placed it, or its schedulerName is ours,
        and it is no static pod."""
        of_node = MIRROR in (pod.metadata.annotations or {})
        return not of_node and (self.ours(pod) or self.is_placed_by_weft(pod))

    def _arrived(self, known: Pod, pod: Pod) -> Placement | None:
        """Return the placement decided here if the API shows the pod bound as decided, and
        otherwise unchanged; else None.

        Most bound pods come back like this, and need not be read again.
        """
        name = pod.spec.node_name
        placed = self.decided(pod.metadata.uid) if name and not pod.ended else None
        if placed is None or placed.node != name or len(self._nodes.counted.get(name, ())) != 1:
            return None
        request = self._sent.get(pod.metadata.uid)  # the pod may have changed since the decision
        if isinstance(request, PodRequest) and not keeps(placed, request.shape):
            return None
        if not came_as_decided(known, pod, placed):
            return None
        self._first[pod.metadata.uid] = seen_as_decided(placed)
        return placed

    def _held(self, pod: Pod, node: Node | None) -> BoundShare:
        uid = pod.metadata.uid
        share = self._charge(pod, node, GuessedUse(node or Node("")).how_full)
        if node is None or not share.moves:
            self._guessed_on.get(pod.spec.node_name, set()).discard(uid)
            return share
        self._guessed_on.setdefault(node.name, set()).add(uid)
        return self._guesses(node.name, {uid})[uid]

    def _charge(self, pod: Pod, node: Node | None, how_full: HowFull) -> BoundShare:
        """Return the pod's charge, by its marks and statements from when it was first seen
        bound."""
        first = self._first.get(pod.metadata.uid) or seen_first(pod)
        shown = self._nodes.objects.get(node.name) if node is not None else None
        if not first.bound_with and (covered := self.claims.covered(pod)):
            pod = beside_claims(pod, covered)
        pod = as_set_aside(pod)
        share = account(BoundReading(pod, first), node, self.settings, how_full, shown)
        if share.fault is not None:
            self.fault(pod, share.fault)
        if first.said is None:
            first = first._replace(said=said_by(share.placement))
        self._first[pod.metadata.uid] = first
        return share

    def _guesses(self, name: str, leaving: Collection[str]) -> dict[str, BoundShare]:
        """Guess the GPUs of all pods and claims on this node that do not say which they hold;
        return the charges by UID.

        A GPU that the engine holds for a pod which no watch has shown bound yet is not idle. GPUs
        of pods in `leaving`, whose events are about to be sent, count as idle.
        """
        node, uids = self.there(name), self._guessed_on.get(name, set())
        if node is None or not (uids or self.claims.guesses_on(name)):
            return {}
        cards, here = GuessedUse(node), self._on_node.get(name, {})
        for shares in self.claims.known_on(name):
            cards.known(shares)
        for uid in here:
            placement = self._sent.get(uid)
            if isinstance(placement, Placement) and uid not in uids and uid not in self.assumed:
                cards.known(placement.shares)
        engine_has = {uid for gpu in node.gpus for uid in self._ledger.occupants(name, gpu.index)}
        for uid in engine_has - here.keys() - self.claims.holders_on(name) - set(leaving):
            self._to_guess.add(name)  # a failed binding causes no other event: guess again
            placed = self.decided(uid)
            cards.known(placed.shares if placed is not None else ())
        guesses = dict(self.claims.guess(node, cards))
        for pod in sorted((here[uid] for uid in uids), key=since):
            uid = pod.metadata.uid
            guesses[uid] = self._charge(pod, node, cards.how_full)
            cards.guessed(guesses[uid].placement.shares)
        return guesses

    def _also_before(self, event: PodSeenBound) -> PodSeenBound:
        """Return the event with the shares that the engine still charges for the pod on that node
        added to the new ones."""
        new, old = event.placement, self.decided(event.placement.uid)
        if old is None or old.node != new.node:
            return event
        beside = tuple(share for share in old.shares if share not in new.shares)
        wider = replace(new, shares=new.shares + beside)
        return replace(event, placement=wider) if beside else event

    def _note(self, pod: Pod, held: BoundShare) -> None:
        """Record and log what is reported about this pod's charge."""
        uid, why = pod.metadata.uid, held.why
        before = self.assumed.pop(uid, "")
        self.told.pop(uid, None)
        if held.told:
            self.told[uid] = held.told
        self.doubts.pop(uid, None)
        if held.doubts:
            self.doubts[uid] = held.doubts
        if why:
            self.assumed[uid] = why
        if why and why != before:
            where = f"{pod.metadata.namespace}/{pod.metadata.name} on {pod.spec.node_name}"
            fields = about(pod.metadata, node=pod.spec.node_name)
            log.warning("pod %s %s", where, why, extra=fields)

    def _over(self, uid: str) -> Event | None:
        """Return the event that ends what a pod holds; also for a pod that an extender bound and no
        watch has shown bound. None if it holds nothing."""
        holds = self.decided(uid) is not None
        return self._gone(uid) or (self._end(uid) if holds else None)

    def _gone(self, uid: str) -> Event | None:
        self.bad.pop(uid, None)
        self.assumed.pop(uid, None)
        self.doubts.pop(uid, None)
        self.told.pop(uid, None)
        self._first.pop(uid, None)
        self._marks.pop(uid, None)
        pod = self._by_uid.get(uid)
        if pod is not None:
            self._leave_node(pod)
        return self._end(uid) if self._sent.pop(uid, None) is not None else None

    def _end(self, uid: str) -> PodGone:
        pod = self._by_uid.get(uid)
        return PodGone(uid, completed=pod is not None and pod.status.phase == "Succeeded")

    def _leave_node(self, pod: Pod) -> None:
        name, uid = pod.spec.node_name, pod.metadata.uid
        self._leaving.discard(uid)
        here = self._on_node.get(name)
        if here is not None and here.pop(uid, None) is not None:
            self._to_guess.add(name)
            self._names.drop(pod)
            guessed = self._guessed_on.get(name, set())
            guessed.discard(uid)
            if not guessed:
                self._guessed_on.pop(name, None)
            if not here:
                del self._on_node[name]


def _uid(event: Event) -> str:
    if isinstance(event, PodSeenBound):
        return event.placement.uid
    return event.uid if isinstance(event, PodGone) else ""

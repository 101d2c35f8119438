"""Pods: what the API shows of them, made the engine's events.

A pod as the API shows it          what the engine is told
    Succeeded, Failed, or gone         PodGone (never at deletionTimestamp: it still holds its GPU)
    has a node                         PodSeenBound
    ours, free to be scheduled         PodAdded, once it may be decided here
    ours, but contradicts itself       nothing; it is in `bad` with the reason
    gated, being deleted, another's    PodGone, if it was told before
Nothing is told twice. A pod is *ours* if its schedulerName is one of our profiles'.
"""

import logging
from collections.abc import Callable, Collection, Iterator

from weft.dialects.dialect import Settings
from weft.engine import Event, PodAdded, PodGone, PodSeenBound
from weft.kube.pods import Pod
from weft.live.constraints import claims_of, keeps_away
from weft.live.holding import Held, held_by, without_node
from weft.live.nodes import NodeView
from weft.live.reading import read
from weft.live.volumes import VolumeView
from weft.model import BadInputError, Gpu, Node, Placement, PodRequest

log = logging.getLogger("weft.live")

Occupants = Callable[[str, int], list[str]]
Key = tuple[str, str]


class PodView:
    """The pods there are. `bad` are ours that cannot be read, by UID, and why.

    `deciding` is off while another process decides: pending pods are then kept, not told.
    """

    def __init__(
        self, names: Collection[str], nodes: NodeView, volumes: VolumeView, occupants: Occupants
    ) -> None:
        self.pods: dict[Key, Pod] = {}
        self.bad: dict[str, str] = {}
        self.assumed: dict[str, str] = {}
        self.settings = Settings()
        self.deciding = False
        self._names, self._nodes, self._volumes = frozenset(names), nodes, volumes
        self._occupants = occupants
        self._by_uid: dict[str, Pod] = {}
        self._on_node: dict[str, dict[str, Pod]] = {}
        self._told: dict[str, PodRequest | Placement] = {}
        self._guesses: dict[str, tuple[Node, Held]] = {}

    def by_uid(self, uid: str) -> Pod | None:
        """The pod with this UID."""
        return self._by_uid.get(uid)

    def take(self, pod: Pod) -> Event | None:
        """The pod as it is now; what to tell the engine, if anything."""
        meta = pod.metadata
        known = self.pods.get((meta.namespace, meta.name))
        if known is not None and known.spec.node_name and known.metadata.uid == meta.uid:
            self._leave_node(known)
        self.pods[meta.namespace, meta.name] = self._by_uid[meta.uid] = pod
        return self._classify(pod)

    def forget(self, pod: Pod) -> Event | None:
        """The pod is gone from the API."""
        meta = pod.metadata
        known = self.pods.get((meta.namespace, meta.name))
        if known is not None and known.metadata.uid == meta.uid:
            del self.pods[meta.namespace, meta.name]
        known = self._by_uid.pop(meta.uid, None)
        if known is not None:
            self._leave_node(known)
        return self._gone(meta.uid)

    def again(self, uid: str) -> Event | None:
        """Tell once more what this pod asks (its binding failed; it may have changed since)."""
        pod = self._by_uid.get(uid)
        if pod is None:
            return None
        self._told.pop(uid, None)
        return self._classify(pod)

    def settled(self, uid: str) -> None:
        """The engine has learnt otherwise that the pod is gone."""
        self._told.pop(uid, None)

    def on_node(self, name: str) -> list[Pod]:
        """The pods that hold something of this node, or may."""
        return list(self._on_node.get(name, {}).values())

    def pending(self) -> list[Pod]:
        """Ours that wait for a node, the most important first, then the oldest."""
        found = [pod for pod in self._by_uid.values() if self._is_pending(pod)]
        return sorted(found, key=lambda pod: (-(pod.spec.priority or 0), _age(pod)))

    def with_claims(self) -> Iterator[Pod]:
        """Ours that wait and mount a PersistentVolumeClaim."""
        return (pod for pod in self.pending() if claims_of(pod))

    def ours(self, pod: Pod) -> bool:
        """Whether one of our profiles decides for it."""
        return (pod.spec.scheduler_name or "default-scheduler") in self._names

    def _is_pending(self, pod: Pod) -> bool:
        return (
            not pod.spec.node_name
            and not pod.ended
            and self.ours(pod)
            and not pod.spec.scheduling_gates
            and not pod.metadata.deletion_timestamp
        )

    def _classify(self, pod: Pod) -> Event | None:
        uid = pod.metadata.uid
        self.bad.pop(uid, None)
        if pod.ended:
            return self._gone(uid)
        if pod.spec.node_name:
            return self._bound(pod)
        if not self._is_pending(pod):
            return self._gone(uid)
        return self._pending(pod) if self.deciding else None

    def _pending(self, pod: Pod) -> Event | None:
        uid = pod.metadata.uid
        try:
            request = read(pod, self.settings, self._volumes)
        except BadInputError as error:
            event = self._gone(uid)
            self.bad[uid] = str(error)
            return event
        if self._told.get(uid) == request:
            return None
        self._told[uid] = request
        return PodAdded(request)

    def _bound(self, pod: Pod) -> Event | None:
        uid, name = pod.metadata.uid, pod.spec.node_name
        self._on_node.setdefault(name, {})[uid] = pod
        self._nodes.keep_away(name, uid, keeps_away(pod.spec))
        node = self._nodes.nodes.get(name)
        held = without_node(pod, self.settings) if node is None else self._held(pod, node)
        if self._told.get(uid) == held.placement:
            return None
        self._told[uid] = held.placement
        return PodSeenBound(held.placement)

    def _held(self, pod: Pod, node: Node) -> Held:
        uid = pod.metadata.uid
        guess = self._guesses.get(uid)
        if guess is not None and guess[0] == node:
            held = held_by(pod, node, self.settings, lambda _: False)
            return guess[1] if held.why else held

        def is_idle(gpu: Gpu) -> bool:
            return all(other == uid for other in self._occupants(node.name, gpu.index))

        held = held_by(pod, node, self.settings, is_idle)
        if held.why:
            self._guesses[uid] = (node, held)
            if self.assumed.get(uid) != held.why:
                log.warning("pod %s/%s on %s %s", pod.metadata.namespace, pod.metadata.name,
                            node.name, held.why)  # fmt: skip
            self.assumed[uid] = held.why
        return held

    def _gone(self, uid: str) -> Event | None:
        self.bad.pop(uid, None)
        self.assumed.pop(uid, None)
        self._guesses.pop(uid, None)
        pod = self._by_uid.get(uid)
        if pod is not None:
            self._leave_node(pod)
        return PodGone(uid) if self._told.pop(uid, None) is not None else None

    def _leave_node(self, pod: Pod) -> None:
        name, uid = pod.spec.node_name, pod.metadata.uid
        here = self._on_node.get(name)
        if here is not None and here.pop(uid, None) is not None:
            self._nodes.keep_away(name, uid, False)
            if not here:
                del self._on_node[name]


def _age(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.name

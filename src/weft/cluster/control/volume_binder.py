"""Binds a placed pod's claims to the chosen volumes, before the pod itself is bound.

    bind ──▶ each volume gets its claimRef, each claim to be provisioned its selected-node
         ──▶ wait for the controller, and a provisioner, to bind them ──▶ "" (bound)
         └─▶ otherwise, or after the time-out: the reason. The pod loses its place, and is retried

Every write carries the object's UID and version: of two concurrent writes the second is refused, so
no volume is given twice. All state is in the API: after a crash the next process finds a volume
reserved for its claim, or a claim with its selected node, and continues. As with kube-scheduler,
writes are not undone: a claim that was begun is completed on that node.
"""

import asyncio
import json
from collections.abc import Callable, Sequence

from weft.cluster.state.storage_objects import SELECTED_NODE, bound_terms, is_bound, is_for
from weft.cluster.state.volumes import VolumeView
from weft.core.constraints.volumes import reaches
from weft.core.engine import Bind
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import CLAIMS, VOLUMES, Resource
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.structs import PersistentVolumeClaim
from weft.model import ChosenVolume, Node, PodRequest
from weft.model.manifest import ObjectMeta

TIMEOUT_S = 600.0
"""The default of kube-scheduler's bindTimeoutSeconds."""
_WRITE_S, _LOOK_EVERY_S = 3.0, 5.0
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class _NotNowError(Exception):
    """The claim or volume is not as it was at the decision: the pod has to be decided again."""


class VolumeBinder:
    """Binds the claims of pods. `may_write` is called before each write. `wanted_on` returns the
    node if the pod (by UID) still is to be bound there; None if the pod, the node or leadership is
    gone."""

    def __init__(
        self,
        client: ApiClient,
        view: VolumeView,
        *,
        may_write: Callable[[float], bool] | None,
        wanted_on: Callable[[str, str], Node | None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.timeout_s = timeout_s
        self._client, self._view = client, view
        self._may_write, self._wanted_on = may_write, wanted_on
        self._changed: dict[str, asyncio.Event] = {}
        self._written: dict[str, int] = {}  # versions written, by UID, until a watch shows them
        self._reserved: dict[str, str] = {}  # volumes reserved, by the claim's UID

    def changed(self) -> None:
        """Check waiting pods again, as a volume or claim changed, or a pod is gone."""
        for event in self._changed.values():
            event.set()

    async def bind(self, command: Bind) -> str:
        """Bind the pod's claims as chosen; return the reason why this failed, "" if it did not."""
        pod, node = command.pod, command.placement.node
        try:
            for chosen in _scarce_first(command.volumes):
                await self._write(pod.namespace, chosen, node)
        except (_NotNowError, ApiError, LostError, NotSentError) as error:
            return f"binding its volumes failed: {error}"
        changed = self._changed[pod.uid] = asyncio.Event()
        try:
            return await self._wait(command, changed)
        finally:
            del self._changed[pod.uid]

    # --- writing ---

    async def _write(self, namespace: str, chosen: ChosenVolume, node: str) -> None:
        claim = self._claim(namespace, chosen.claim)
        if is_bound(claim):
            return  # by another pod of this claim; `_is_done` checks the volume
        if chosen.volume:
            await self._reserve(claim, chosen.volume)
        else:
            await self._select(claim, node)

    async def _reserve(self, claim: PersistentVolumeClaim, name: str) -> None:
        """Reserve the volume for the claim by its claimRef, as kube-scheduler does."""
        volume = self._view.volumes.get(name)
        if volume is None:
            raise _NotNowError(f"volume {name} is gone")
        ref, meta = volume.spec.claim_ref, claim.metadata
        if ref is not None and not is_for(volume, claim):
            raise _NotNowError(
                f"volume {name} is now reserved for claim {ref.namespace}/{ref.name}"
            )
        if ref is not None and ref.uid:
            return
        if (other := self._other_reserved(claim, name)) is not None:
            raise _NotNowError(f"volume {other} was just reserved for claim {meta.name}")
        wanted = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        # A volume reserved by hand keeps that: without the mark it is not freed with the claim.
        marks = {} if ref is not None else {BOUND_BY_CONTROLLER: "yes"}
        change = {"metadata": {"annotations": marks}, "spec": {"claimRef": wanted}}
        await self._patch(VOLUMES, volume.metadata, change)
        self._reserved[meta.uid] = name

    def _other_reserved(self, claim: PersistentVolumeClaim, name: str) -> str | None:
        """Return the other volume that an earlier try reserved for the claim, even if no watch
        shows that yet; None if there is none."""
        other = self._reserved.pop(claim.metadata.uid, name)
        volume = self._view.volumes.get(other)
        if other == name or volume is None:
            return None
        if self._is_shown(volume.metadata) and not is_for(volume, claim):
            return None
        self._reserved[claim.metadata.uid] = other
        return other

    async def _select(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Select this node for provisioning the claim's volume."""
        selected = (claim.metadata.annotations or {}).get(SELECTED_NODE)
        if selected == node:
            return
        if selected is not None:
            raise _NotNowError(f"claim {claim.metadata.name} already gets its volume on {selected}")
        change = {"metadata": {"annotations": {SELECTED_NODE: node}}}
        await self._patch(CLAIMS, claim.metadata, change)

    async def _patch(self, kind: Resource, meta: ObjectMeta, change: dict) -> None:  # type: ignore[type-arg]
        """Patch the object in the version that was seen. If it has changed since, the write is
        refused with a conflict, and the pod is tried again with the state that the watch then
        shows."""
        if self._may_write is not None and not self._may_write(2 * _WRITE_S):
            raise _NotNowError("this process no longer leads")
        seen = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **seen}}
        path = kind.of(meta.namespace, meta.name)
        encoded = json.dumps(body).encode()
        answer = await self._client.call("PATCH", path, encoded, content_type=MERGE_PATCH)
        self._written[meta.uid] = _number(kind.decode(answer).metadata.resource_version)

    def _is_shown(self, meta: ObjectMeta) -> bool:
        """Return True if a watch has shown what was written to this object, or a later version."""
        written = self._written.get(meta.uid)
        if written is None or _number(meta.resource_version) >= written:
            self._written.pop(meta.uid, None)
            return True
        return False

    # --- waiting ---

    async def _wait(self, command: Bind, changed: asyncio.Event) -> str:
        pod, name = command.pod, command.placement.node
        clock = self._client.clock
        until = clock.monotonic() + self.timeout_s
        while True:
            changed.clear()
            if (node := self._wanted_on(pod.uid, name)) is None:
                return "no longer waiting for its volumes: the pod, the node or leadership is gone"
            try:
                waiting = [each for each in command.volumes if not self._is_done(pod, each, node)]
            except _NotNowError as error:
                return f"binding its volumes failed: {error}"
            if not waiting:
                return ""
            left_s = until - clock.monotonic()
            if left_s <= 0:
                return self._late(waiting, name)
            await self._sleep(changed, min(left_s, _LOOK_EVERY_S))

    def _late(self, waiting: list[ChosenVolume], node: str) -> str:
        """Return a message about claims that were not bound in time."""
        names = ", ".join(each.claim for each in waiting)
        made = any(not each.volume for each in waiting)
        who = f"no volume was made on {node}" if made else "the controller bound no volume"
        return f"{who} for PersistentVolumeClaim {names} within {self.timeout_s:g} s"

    async def _sleep(self, changed: asyncio.Event, at_most_s: float) -> None:
        waiting = asyncio.create_task(changed.wait())
        limit = asyncio.create_task(self._client.clock.sleep(at_most_s))
        try:
            await asyncio.wait({waiting, limit}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            limit.cancel()

    def _is_done(self, pod: PodRequest, chosen: ChosenVolume, node: Node) -> bool:
        """Return True if the claim is bound to a volume that reaches the node. Raises
        `_NotNowError` if it will not be bound as chosen."""
        claim = self._claim(pod.namespace, chosen.claim)
        if not self._is_shown(claim.metadata):
            return False
        name = claim.spec.volume_name
        if is_bound(claim) and (volume := self._view.volumes.get(name)) is not None:
            if not reaches(bound_terms(volume), node.name, node.labels):
                why = f"volume {name}, which cannot be used on node {node.name}"
                raise _NotNowError(f"claim {chosen.claim} was bound to {why}")
            return True
        if name:
            return False  # being bound; the watch may not show the volume yet
        if not chosen.volume:
            selected = (claim.metadata.annotations or {}).get(SELECTED_NODE)
            if selected != node.name:
                raise _NotNowError(f"no volume can be made on node {node.name} for {chosen.claim}")
            return False
        wanted = self._view.volumes.get(chosen.volume)
        if wanted is None:
            raise _NotNowError(f"volume {chosen.volume} is gone")
        if self._is_shown(wanted.metadata) and not is_for(wanted, claim):
            raise _NotNowError(f"volume {chosen.volume} is no longer for claim {chosen.claim}")
        return False

    def _claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        claim = self._view.claims.get((namespace, name))
        if claim is None or claim.metadata.deletion_timestamp:
            raise _NotNowError(f"PersistentVolumeClaim {name} is gone")
        return claim


def _scarce_first(volumes: Sequence[ChosenVolume]) -> list[ChosenVolume]:
    """Return existing volumes before volumes to be provisioned. If the process is killed in
    between, an existing volume is reserved, and the other can still be provisioned on its node; in
    the other order, the existing volume of that node might be given to another claim."""
    return sorted(volumes, key=lambda each: not each.volume)


def _number(version: str) -> int:
    """Return a resource version as a number: later ones are larger."""
    return int(version) if version.isdecimal() else 0

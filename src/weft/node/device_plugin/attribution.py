"""Finds out which container some devices are for, and gives it what its pod's record says.

A kubelet calls Allocate without naming the pod, and the answer belongs to the container for its
whole life. It calls PreStartContainer before each start, and by then the kubelet's own record
(`KubeletRecord`) says whose the devices are. So Allocate decides nothing, or makes a guess that is
checked later:

the runtime knows CDI   Allocate: a new CDI name without a meaning yet
                        PreStart: the name gets the meaning of the container's record
it does not know CDI    Allocate: the environment of the only possible container, which has no
                        devices yet, requests this many, and is being admitted by the kubelet; if
                        several containers would get different shares, no GPU is visible
                        PreStart: refused, and the pod evicted, if the guess was wrong

Either way a container starts with what its own record says, or not at all; the kubelet retries a
refused start. Allocate itself never fails, as that would end the pod for good.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from weft.dialects.resources import amount, slots
from weft.model import BadInputError, PodManifest, WeftError
from weft.model.delivery import VISIBLE, DeliveryRecord
from weft.node.agent.container_grant import NOTHING, ContainerGrant, NotGrantedError
from weft.node.agent.node_pods import NodePod
from weft.node.agent.pod_events import PodName
from weft.node.device_plugin import device_plugin_pb2 as plugin
from weft.node.device_plugin import pod_resources_pb2 as resources
from weft.node.device_plugin.cdi_files import CdiFiles, own_names
from weft.node.device_plugin.kubelet_api import KubeletError
from weft.node.device_plugin.kubelet_record import HeldDevices, KubeletRecordError

log = logging.getLogger("weft.agent")

NAMED, GUESSED, OPEN = "named", "guessed", "open"
"""How Allocate answered: by a CDI name, by a guess of the container, or with no GPU visible."""
STARTED, REFUSED, WRONG = "started", "refused", "wrong"
"""How PreStartContainer answered; `wrong`: the container had been given another container's
devices."""

_WAIT_S = 2.0
_LOOKS, _LOOK_S = 20, 0.05
_REMEMBERED = 10_000
_ONE_BY_ONE = 2
"""Most pods about which the kubelet is asked one by one before it is asked for all: it limits the
rate of requests."""


class NotAttributedError(WeftError):
    """A container must not start: it is unknown which container the devices are for or which
    share is its own, or it was given another container's devices."""


class HeldSource(Protocol):
    """Source of the devices that containers hold; `KubeletRecord` implements it."""

    def held(self) -> Sequence[HeldDevices]:
        """Return every container's devices."""
        ...


class PodSource(Protocol):
    """Source of the node's pods; `NodePods` implements it."""

    @property
    def pods(self) -> Mapping[str, NodePod]:
        """The pods by UID, including ended ones."""
        ...

    async def known(self, uid: str, within_s: float) -> NodePod | None:
        """Return the pod with this UID; if the API server has not reported it yet, wait for it up
        to `within_s` seconds. None if it stays unknown."""
        ...


class KubeletPods(Protocol):
    """Source of the pods that the kubelet manages; `PodResourcesClient` implements it."""

    async def pod(self, namespace: str, name: str) -> resources.PodResources | None:
        """Return one pod; None if the kubelet does not know it."""
        ...

    async def names(self) -> set[tuple[str, str]]:
        """Return namespace and name of all pods."""
        ...


class LikelyContainer(NamedTuple):
    """A container that some devices may be for, with its pod and the pod's record."""

    pod: NodePod
    container: str
    record: DeliveryRecord


class AttributionWorld(NamedTuple):
    """The sources that attribution reads, and the functions that it calls.

    `grant` returns what a record's container gets. `objection` returns why a pod's record must not
    be applied now, given the records of other pods that hold devices; "" if it may. `on_refused` is
    called with the pod of a refused container and the reason, `on_wrong` if the container had been
    given another container's devices. `cdi`: where the container runtime reads CDI specifications;
    None if it does not read any.
    """

    pods: PodSource
    held: HeldSource
    kubelet: KubeletPods
    grant: Callable[[DeliveryRecord, str], Awaitable[ContainerGrant]]
    objection: Callable[[NodePod, Sequence[DeliveryRecord]], str]
    on_refused: Callable[[PodName, str], None]
    on_wrong: Callable[[PodName, str], None]
    cdi: CdiFiles | None = None


class Attribution:
    """Answers Allocate and PreStartContainer for all resources; `counts` are answers by kind."""

    def __init__(self, world: AttributionWorld) -> None:
        kinds = (NAMED, GUESSED, OPEN, STARTED, REFUSED, WRONG)
        self.counts: Counter[str] = Counter(dict.fromkeys(kinds, 0))
        self._world = world
        self._asks: dict[tuple[str, str], tuple[PodManifest, list[tuple[str, int]]]] = {}

    async def allocate(self, resource: str, size: int) -> plugin.ContainerAllocateResponse:
        """Answer for a container that is given `size` devices of this resource. Never raises."""
        if self._world.cdi is not None:
            self.counts[NAMED] += 1
            name = plugin.CDIDevice(name=self._world.cdi.new_name())
            # So that a runtime that ignores the name shows the container no GPU.
            return plugin.ContainerAllocateResponse(envs=NOTHING.env, cdi_devices=[name])
        try:
            answers = await self._answers(await self._narrowed(resource, size))
        except (NotGrantedError, KubeletError, KubeletRecordError) as error:
            log.warning("%s: %s: no GPU is handed out", resource, error)
            answers = []
        if answers and all(answer == answers[0] for answer in answers):
            self.counts[GUESSED] += 1
            return answers[0]
        log.warning(
            "%s: %d devices may be for any of %d containers with different shares: the container "
            "that gets them sees no GPU",
            resource,
            size,
            len(answers),
        )
        self.counts[OPEN] += 1
        return answer_of(NOTHING)

    async def pre_start(self, resource: str, ids: frozenset[str]) -> None:
        """Let the container with these devices start, or raise `NotAttributedError` with the
        reason."""
        try:
            holders = [
                held
                for held in self._world.held.held()
                if held.resource == resource and held.ids == ids
            ]
            # An init container's devices are reused by a later container of its pod.
            if not holders:
                raise NotAttributedError(
                    "the kubelet's record does not say which pod has these devices"
                )
            for holder in holders:
                await self._start(holder)
        except (NotGrantedError, KubeletRecordError, OSError) as error:
            self.counts[REFUSED] += 1
            raise NotAttributedError(f"weft: {error}") from error
        except NotAttributedError:
            self.counts[REFUSED] += 1
            raise
        self.counts[STARTED] += 1

    def wanted_gpus(self, resource: str, size: int) -> tuple[int, ...]:
        """Return the GPUs assigned to the container that probably gets `size` devices next; empty
        if none is likely."""
        try:
            candidates = self.candidates(resource, size)
        except KubeletRecordError:
            return ()
        for candidate in candidates[:1]:
            part = candidate.record.containers[candidate.container]
            return tuple(share.gpu for share in part.shares)
        return ()

    def candidates(self, resource: str, size: int) -> list[LikelyContainer]:
        """Return the containers that may be given `size` devices next: of each pod, only the first
        container that still lacks its devices."""
        having = {
            (held.pod, held.container)
            for held in self._world.held.held()
            if held.resource == resource
        }
        candidates = []
        for uid, pod in self._world.pods.pods.items():
            for name, asked in self._asked(uid, pod.manifest, resource):
                if (uid, name) in having:
                    continue
                if (
                    asked == size
                    and pod.record is not None
                    and name in pod.record.containers
                    and not pod.ended
                ):
                    candidates.append(LikelyContainer(pod, name, pod.record))
                break  # its later containers are admitted after this one
        return candidates

    def tidy(self) -> int:
        """Remove CDI files of containers that no longer hold devices; return how many."""
        if self._world.cdi is None:
            return 0
        held = self._world.held.held()
        named = (own_names(device.name for device in each.answer.cdi_devices) for each in held)
        return self._world.cdi.forget_all_but({name for names in named for name in names})

    def _asked(self, uid: str, manifest: PodManifest, resource: str) -> list[tuple[str, int]]:
        """Return the containers that request this resource, with their amounts, in order of
        admission."""
        known = self._asks.get((uid, resource))
        if known is None or known[0] is not manifest:
            if len(self._asks) > _REMEMBERED:
                self._asks.clear()
            known = self._asks[uid, resource] = manifest, _asked(manifest, resource)
        return known[1]

    async def _narrowed(self, resource: str, size: int) -> list[LikelyContainer]:
        """Return the candidates whose pods the kubelet is managing.

        The kubelet admits one pod after another: at this moment it knows the pods that have their
        devices, and the pod that it is admitting.
        """
        for _ in range(_LOOKS):
            candidates = await self._in_hand(self.candidates(resource, size))
            if candidates:
                return candidates
            await asyncio.sleep(_LOOK_S)  # the kubelet may learn of a pod before the agent does
        return []

    async def _in_hand(self, candidates: list[LikelyContainer]) -> list[LikelyContainer]:
        # The oldest candidate is usually the right one; if it has no devices, no other pod is being
        # admitted.
        for asked in range(min(_ONE_BY_ONE, len(candidates))):
            if await self._world.kubelet.pod(*_key(candidates[asked])) is not None:
                return [candidates[asked]]
        if len(candidates) <= _ONE_BY_ONE:
            return []
        known = await self._world.kubelet.names()
        return [each for each in candidates if _key(each) in known]

    async def _answers(
        self, candidates: Sequence[LikelyContainer]
    ) -> list[plugin.ContainerAllocateResponse]:
        return [
            answer_of(await self._world.grant(candidate.record, candidate.container))
            for candidate in candidates
        ]

    async def _start(self, holder: HeldDevices) -> None:
        pod = await self._world.pods.known(holder.pod, _WAIT_S)
        if pod is None:
            raise NotAttributedError(f"weft: pod {holder.pod} is not known yet")
        name = _name_of(pod)
        if pod.record is None:
            raise self._refusal(name, pod.problem or "no record says which share is the pod's")
        if why := self._world.objection(pod, self._others(holder)):
            raise self._refusal(name, why)
        try:
            grant = await self._world.grant(pod.record, holder.container)
        except NotGrantedError as error:
            raise self._refusal(name, f"container {holder.container}: {error}") from error
        names = own_names(device.name for device in holder.answer.cdi_devices)
        if names and self._world.cdi is not None:
            for each in names:
                self._world.cdi.write(each, grant)
            return
        part = pod.record.containers.get(holder.container)
        own = {VISIBLE: grant.env.get(VISIBLE, ""), **(part.env if part is not None else {})}
        given = given_env(holder.answer)
        if not own.items() <= given.items():
            self.counts[WRONG] += 1
            text = (
                f"container {holder.container} was given {given.get(VISIBLE, 'nothing')[:80]!r}, "
                f"its record says {own[VISIBLE][:80]!r}: the kubelet names no container when it "
                "allocates devices, and the agent guessed wrong"
            )
            self._world.on_wrong(name, text)
            raise NotAttributedError(f"weft: {text}")

    def _refusal(self, pod: PodName, why: str) -> NotAttributedError:
        self._world.on_refused(pod, why)
        return NotAttributedError(f"weft: {why}")

    def _others(self, holder: HeldDevices) -> list[DeliveryRecord]:
        """Return the records of other pods that hold devices and have not ended."""
        pods = self._world.pods.pods
        holding = {held.pod for held in self._world.held.held()} - {holder.pod}
        others = (pods.get(uid) for uid in sorted(holding))
        return [pod.record for pod in others if pod and pod.record and not pod.ended]


def _key(candidate: LikelyContainer) -> tuple[str, str]:
    meta = candidate.pod.manifest.metadata
    return meta.namespace, meta.name


def answer_of(grant: ContainerGrant) -> plugin.ContainerAllocateResponse:
    """Build the answer to Allocate that gives a container this grant."""
    return plugin.ContainerAllocateResponse(
        envs=grant.env,
        mounts=[
            plugin.Mount(
                container_path=mount.container, host_path=mount.host, read_only=mount.read_only
            )
            for mount in grant.mounts
        ],
        devices=[
            plugin.DeviceSpec(container_path=path, host_path=path, permissions="rw")
            for path in grant.paths
        ],
        cdi_devices=[plugin.CDIDevice(name=name) for name in grant.cdi],
    )


def given_env(answer: plugin.ContainerAllocateResponse) -> dict[str, str]:
    """Return the environment in an answer."""
    return dict(answer.envs)


def _asked(manifest: PodManifest, resource: str) -> list[tuple[str, int]]:
    try:
        asked = [(slot.container.name, amount(slot, resource)) for slot in slots(manifest)]
        return [each for each in asked if each[1]]
    except BadInputError:
        return []


def _name_of(pod: NodePod) -> PodName:
    meta = pod.manifest.metadata
    return PodName(meta.namespace, meta.name, meta.uid)

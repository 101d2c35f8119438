"""Delivers shares through NRI: a container gets what its pod's record says when it is created.

    the record names the container       granted, if it agrees with the pod's requests and placement
                                         (`NodePods`) and the node can deliver (`container_grant`)
    requests a share, has no record yet  refused: the kubelet tries again
    requests another plugin's GPUs       left alone; refused if the node has no such plugin
    requests no GPU                      sees no GPU, except in exempt namespaces
    its pod is not known yet             left alone unless marked as Weft's; checked again once
                                         the pod is known

The record in the sandbox's annotations comes first: the kubelet passes it on, so containers start
while the API server is unreachable. The requests of such a pod are checked once the API server has
reported it.

The runtime says which pods hold GPUs: those with a container that was given its share, until their
sandbox stops. But containerd does not report the end of sandboxes older than its own restart. So a
pod is also released once the API server does not show it any more and it has no process on this
machine. That is checked every five seconds, and before a container is refused.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from weft.dialects.foreign import foreign_requests
from weft.model.annotations import DELIVERY
from weft.model.delivery import VISIBLE, DeliveryRecord, decode_delivery
from weft.model.log_fields import about
from weft.node.agent.container_grant import (
    NO_GPU,
    NOTHING,
    ContainerGrant,
    Granter,
    NotGrantedError,
    why_refused,
)
from weft.node.agent.device_nodes import MissingNodeError, device_node
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.node_pods import NodePod, NodePods, is_static
from weft.node.agent.pod_events import PodName
from weft.node.nri import nri_pb2 as nri
from weft.node.nri.connection import CallError
from weft.node.nri.marks import PLUGIN, says_ours

log = logging.getLogger("weft.agent")

GIVEN, REFUSED, HIDDEN, EXEMPT = "given", "refused", "hidden", "exempt"
FOREIGN, UNKNOWN = "foreign", "unknown"
OUTCOMES = (GIVEN, REFUSED, HIDDEN, EXEMPT, FOREIGN, UNKNOWN)

_ALIVE = (nri.CONTAINER_CREATED, nri.CONTAINER_PAUSED, nri.CONTAINER_RUNNING)
_MOST_UNKNOWN = 10_000


class HeldRecord(NamedTuple):
    """A pod's delivered record and the sandbox it was delivered to: a pod may get another sandbox
    later."""

    sandbox: nri.PodSandbox
    record: DeliveryRecord
    pod: PodName


class DeliveryOptions(msgspec.Struct, frozen=True):
    """`exempt`: namespaces in which containers without a share see the GPUs that their image
    requests; the agent's own namespace is added. `wait_s`: how long to wait for a pod that the API
    server has not reported yet. `look_s`: seconds between checks for pods that are gone."""

    exempt: tuple[str, ...] = ("kube-system",)
    wait_s: float = 0.8
    look_s: float = 5.0


class Delivery:
    """A `RuntimeHooks`, and a part of the agent. `counts` are containers by outcome.

    `with_processes` returns which of the pods with these UIDs have a process on this machine.
    `on_refused` gets a pod and why its container did not start; `on_without` a pod to be evicted,
    as its container runs without its share; `on_stranger` a pod whose container sees GPUs that it
    was not assigned, as it started while no agent ran (`strangers` counts these containers).
    `cdi_device` returns a CDI device that brings a grant, "" if the runtime cannot apply it.
    """

    def __init__(
        self,
        pods: NodePods,
        devices: DeviceWatch,
        granter: Granter,
        options: DeliveryOptions | None = None,
        *,
        with_processes: Callable[[Collection[str]], Collection[str]],
        on_refused: Callable[[PodName, str], None],
        on_without: Callable[[PodName, str], None],
        on_stranger: Callable[[PodName, str], None],
        cdi_device: Callable[[ContainerGrant], str],
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._held: dict[str, HeldRecord] = {}
        self._unjudged: set[str] = set()  # holders whose pod the API server has not reported yet
        self._absent: set[str] = set()  # holders that the API server does not show (any more)
        self._with_processes = with_processes
        self._pods, self._devices, self._granter = pods, devices, granter
        self._options = options or DeliveryOptions()
        self.strangers = 0
        self._on_refused, self._on_without = on_refused, on_without
        self._on_stranger = on_stranger
        self._told_strangers: dict[str, set[str]] = {}
        self._cdi_device = cdi_device
        self._unknown: dict[str, dict[str, tuple[nri.PodSandbox, nri.Container]]] = {}
        pods.listeners.append(self._heard_of)

    # --- the runtime's hooks ---

    async def synchronize(
        self, pods: list[nri.PodSandbox], containers: list[nri.Container]
    ) -> None:
        """Learn which pods hold which GPUs, and find containers that run without their share."""
        by_sandbox = {pod.id: pod for pod in pods}
        self._held.clear()
        self._unjudged.clear()
        self._unknown.clear()
        for container in containers:
            pod = by_sandbox.get(container.pod_sandbox_id)
            if pod is not None and container.state in _ALIVE:
                self._look_at(pod, container)

    async def create_container(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> nri.ContainerAdjustment:
        """Return the container's environment, devices and mounts; `CallError` keeps it from
        starting."""
        self._unknown.get(pod.uid, {}).pop(container.name, None)  # its earlier container has ended
        try:
            outcome, grant = await self._decide(pod, container)
            names = self._names_for_twice_set(container, grant)
            adjustment = _adjustment(msgspec.structs.replace(grant, cdi=(*grant.cdi, *names)))
        except (NotGrantedError, MissingNodeError) as error:
            self.counts[REFUSED] += 1
            self._on_refused(_name_of(pod), f"container {container.name}: {error}")
            raise CallError(f"{PLUGIN}: {error}") from error
        self.counts[outcome] += 1
        return adjustment

    def _names_for_twice_set(
        self, container: nri.Container, grant: ContainerGrant
    ) -> tuple[str, ...]:
        """Return a CDI device with the grant's environment if image and pod both set one of its
        variables, else nothing.

        containerd (2.2, NRI 0.11) lists such a variable twice and adjusts only the first: the pod's
        value would win. CDI devices are applied later.
        """
        twice = _twice_set(container, grant)
        if not twice:
            return ()
        try:
            device = self._cdi_device(ContainerGrant(env=grant.env))
        except OSError as error:
            raise NotGrantedError(f"its environment cannot be written: {error}") from error
        if device:
            return (device,)
        name, own = next(iter(twice.items()))
        raise NotGrantedError(
            f"its image and its pod both set {name}, and the runtime would give it the pod's "
            f"value, {own[:80]!r}: remove it from the pod's manifest"
        )

    def validate(
        self, pod: nri.PodSandbox, container: nri.Container, adjust: nri.ContainerAdjustment
    ) -> str:
        """Return why a container with a share must not start: its share is missing from the
        adjustments of all plugins together; "" if it is there."""
        record, _ = self._record_of(pod)
        part = record.containers.get(container.name) if record is not None else None
        if part is None or not part.shares:
            return ""
        env = {each.key: each.value for each in adjust.env}
        if all(env.get(key) == value for key, value in part.env.items()) and VISIBLE in env:
            return ""
        return f"{PLUGIN}: container {container.name} would start without its share"

    def pod_event(self, event: int, pod: nri.PodSandbox) -> None:
        """Release the GPUs that a pod held when its sandbox stops."""
        if event in (nri.STOP_POD_SANDBOX, nri.REMOVE_POD_SANDBOX):
            held = self._held.get(pod.uid)
            if held is not None and held.sandbox.id == pod.id:
                del self._held[pod.uid]
            waiting = self._unknown.pop(pod.uid, {})
            if left := {name: each for name, each in waiting.items() if each[0].id != pod.id}:
                self._unknown[pod.uid] = left

    # --- what a container gets ---

    async def _decide(
        self, pod: nri.PodSandbox, container: nri.Container
    ) -> tuple[str, ContainerGrant]:
        if pod.uid not in self._held and pod.uid not in self._pods.pods:
            await self._wait_for(pod)
        known = self._pods.pods.get(pod.uid)
        record, problem = self._record_of(pod)
        if record is None and not problem and known is not None:
            problem = known.problem if known.forged or known.asks == "share" else ""
        if known is None and not problem and pod.uid not in self._held:
            unheard = says_ours(pod) if record is None else not self._pods.problem
            problem = "the pod is not known yet: the API server has not reported it" * unheard
        if problem:
            raise NotGrantedError(problem)
        if record is not None:
            return await self._give(pod, container, record)
        if known is None:
            self._remember(pod, container)
            return UNKNOWN, ContainerGrant()
        if known.asks == "share":
            raise NotGrantedError("the pod's share is not known yet")
        if known.asks == "foreign":
            return self._leave(pod, container, known)
        return self._hide(pod)

    def _leave(
        self, pod: nri.PodSandbox, container: nri.Container, known: NodePod
    ) -> tuple[str, ContainerGrant]:
        """Leave a container to the device plugin whose GPUs it requests; `NotGrantedError` if this
        node has none."""
        match self._pods.served(known.manifest, container.name):
            case "others":
                return FOREIGN, ContainerGrant()
            case "nobody":
                raise NotGrantedError(
                    "nothing delivers the GPUs that it requests: Weft did not place it, and no "
                    "other plugin serves them on this node"
                )
        return self._hide(pod)

    async def _give(
        self, pod: nri.PodSandbox, container: nri.Container, record: DeliveryRecord
    ) -> tuple[str, ContainerGrant]:
        problem = self._why_not(record, pod.uid)
        if problem and await self._forget_gone():
            problem = self._why_not(record, pod.uid)
        if problem:
            raise NotGrantedError(problem)
        if container.name not in record.containers:
            if self._asks_elsewhere(pod, container):
                return FOREIGN, ContainerGrant()
            return self._hide(pod)
        grant = await self._granter.grant(record, container.name)
        self._hold(pod, record)
        return GIVEN, grant

    def _why_not(self, record: DeliveryRecord, uid: str) -> str:
        held = self.held
        # A pod may have again what it was given before, whatever the settings allow now.
        others = [] if uid in held else list(held.values())
        devices, most = self._devices.devices, self._pods.most_permille
        return why_refused(record, uid, self._pods.node_name, devices, others, most)

    def _asks_elsewhere(self, pod: nri.PodSandbox, container: nri.Container) -> bool:
        """Return True if the container requests GPUs from another device plugin of this node."""
        known = self._pods.pods.get(pod.uid)
        if known is None:
            return False
        foreign = foreign_requests(known.manifest)
        asks = any(container.name in request.containers for request in foreign)
        return asks and self._pods.served(known.manifest, container.name) == "others"

    def _hide(self, pod: nri.PodSandbox) -> tuple[str, ContainerGrant]:
        if pod.namespace in self._options.exempt:
            return EXEMPT, ContainerGrant()
        return HIDDEN, NOTHING

    @property
    def held(self) -> dict[str, DeliveryRecord]:
        """Delivery records of the pods that hold GPUs, by UID, without pods that have ended."""
        ended = {uid for uid, pod in self._pods.pods.items() if pod.ended}
        return {uid: held.record for uid, held in self._held.items() if uid not in ended}

    # --- pods that are gone ---

    async def run(self) -> None:
        """Release periodically the shares of pods that are gone, until cancelled."""
        while True:
            await asyncio.sleep(self._options.look_s)
            await self._forget_gone()
            if self._pods.synced.is_set() and not self._pods.problem:
                self._absent = self._held.keys() - self._pods.pods.keys()

    async def _forget_gone(self) -> bool:
        """Release the shares of pods that neither the API server nor this machine shows; return
        True if there were any.

        A pod that the API server has never shown may only be late: it counts as absent if it was
        also missing at the last check.
        """
        shown = self._pods.pods
        absent = {uid: self._held[uid] for uid in self._absent & self._held.keys() - shown.keys()}
        if not absent:
            return False
        running = await asyncio.to_thread(self._with_processes, absent.keys())
        gone = [uid for uid in absent.keys() - set(running) if self._held.get(uid) is absent[uid]]
        for uid in gone:
            pod = self._held.pop(uid).pod
            text = "pod %s is gone, which the runtime did not report: its share is free"
            log.info(text, pod, extra=about(pod))
        return bool(gone)

    async def _wait_for(self, pod: nri.PodSandbox) -> NodePod | None:
        """Return the pod if the API server reports it within `wait_s`, else None; return None at
        once for static pods and pods outside Kubernetes, which the API server may not know."""
        if not pod.uid or is_static(pod.uid):
            return None
        return await self._pods.known(pod.uid, self._options.wait_s)

    def _record_of(self, pod: nri.PodSandbox) -> tuple[DeliveryRecord | None, str]:
        """Return the pod's record, None if there is none, and what is wrong with the record ("" if
        nothing)."""
        held = self._held.get(pod.uid)
        if held is not None:
            return held.record, ""
        text, known = pod.annotations.get(DELIVERY), self._pods.pods.get(pod.uid)
        if text is None:
            return (known.record if known is not None else None), ""
        try:
            record = decode_delivery(text)
        except ValueError as error:
            return None, f"annotation {DELIVERY} cannot be read: {error}"
        if known is None:
            return record, ""
        problem = self._pods.objection(pod.uid, record, pod.annotations)
        return (None if problem else record), problem

    # --- containers that started without the agent ---

    def _look_at(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        record, problem = self._record_of(pod)
        known = self._pods.pods.get(pod.uid)
        if known is not None and problem:
            if _visible_to(container) not in NO_GPU:
                self._distrust(pod, known, problem)
            return
        if record is None:
            if not problem and (known is None or known.asks == "share" or not self._pods.node):
                self._remember(pod, container)  # its record may come later
            if known is not None and self._pods.node is not None:
                self._look_at_stranger(pod, container, known)
            return
        part = record.containers.get(container.name)
        if part is None or not part.shares:
            if known is not None and self._pods.node is not None:
                self._look_at_stranger(pod, container, known)
            return
        derived = known is not None and known.derived
        if runs_with(container.env, record, container.name, derived=derived):
            self._hold(pod, record)
            return
        text = f"container {container.name} runs without its share: it started while no agent ran"
        self._on_without(_name_of(pod), text)

    def _look_at_stranger(
        self, pod: nri.PodSandbox, container: nri.Container, known: NodePod
    ) -> None:
        """Report a container that sees GPUs which the agent would have hidden from it."""
        sees = _visible_to(container)
        if sees in NO_GPU or pod.namespace in self._options.exempt:
            return
        if known.asks == "share" and known.record is None and sees != "all":
            return  # another system's agent may have given them, and mark the pod later
        served = known.asks == "foreign" and self._pods.served(known.manifest, container.name)
        told = self._told_strangers.setdefault(pod.uid, set())
        if container.id in told or served == "others" or self._asks_elsewhere(pod, container):
            return
        told.add(container.id)
        self.strangers += 1
        text = (
            f"container {container.name} sees GPUs ({sees[:80]}) that Weft did not assign: it "
            "started while no agent ran"
        )
        self._on_stranger(_name_of(pod), text)

    def _hold(self, pod: nri.PodSandbox, record: DeliveryRecord) -> None:
        self._held[pod.uid] = HeldRecord(pod, record, _name_of(pod))
        if pod.uid not in self._pods.pods:
            self._unjudged.add(pod.uid)

    def _distrust(self, pod: nri.PodSandbox, known: NodePod, why: str) -> None:
        """Handle a running pod whose record is refused. If it requests no GPU, it is evicted. If it
        requests GPUs, it is only reported, as changed settings may be the reason, and its new
        containers do not start."""
        self._held.pop(pod.uid, None)
        tell = self._on_without if known.asks == "nothing" else self._on_refused
        tell(_name_of(pod), f"it runs with GPUs that are not its own: {why}")

    def _remember(self, pod: nri.PodSandbox, container: nri.Container) -> None:
        if len(self._unknown) < _MOST_UNKNOWN:
            self._unknown.setdefault(pod.uid, {})[container.name] = (pod, container)

    def _heard_of(self, uid: str) -> None:
        """Check the containers that could not be judged before their pod was added or changed."""
        known = self._pods.pods.get(uid)
        if known is None:
            self._told_strangers.pop(uid, None)
            if uid in self._held:
                self._absent.add(uid)
        if known is not None and uid in self._unjudged:
            self._unjudged.discard(uid)
            held = self._held.get(uid)
            if held is not None:
                annotations = held.sandbox.annotations
                if why := self._pods.objection(uid, held.record, annotations):
                    self._distrust(held.sandbox, known, why)
        if known is None or (known.record is None and self._pods.node is None):
            return
        if uid in self._unknown:
            for pod, container in self._unknown.pop(uid).values():
                self._look_at(pod, container)


def runs_with(env: Sequence[str], record: DeliveryRecord, container: str, *, derived: bool) -> bool:
    """Return True if a container with this environment has the GPUs of its share.

    If the record is derived, the agent of the system that placed the pod may have set other
    variables: an environment counts if it has one of the record's variables, or names some GPUs but
    not all.
    """
    part = record.containers[container]
    has = dict(entry.partition("=")[::2] for entry in env)
    if VISIBLE in part.env and has.get(VISIBLE) == part.env[VISIBLE]:
        return True
    names = has.get(VISIBLE, "")
    if derived:
        return names not in ("", "all") or bool(has.keys() & part.env.keys() - {VISIBLE})
    by_uuid = [share.uuid for share in part.shares]
    by_index = [str(share.gpu) for share in part.shares]
    return sorted(names.split(",")) in (sorted(by_uuid), sorted(by_index))


def _visible_to(container: nri.Container) -> str:
    return dict(entry.partition("=")[::2] for entry in container.env).get(VISIBLE, "")


def _name_of(pod: nri.PodSandbox) -> PodName:
    return PodName(pod.namespace, pod.name, pod.uid)


def _twice_set(container: nri.Container, grant: ContainerGrant) -> dict[str, str]:
    """Return the variables, with the pod's values, that image and pod both set and to which the
    grant gives another value than the pod."""
    values: dict[str, list[str]] = {}
    for entry in container.env:
        name, _, value = entry.partition("=")
        values.setdefault(name, []).append(value)
    twice = {name: own[-1] for name, own in values.items() if len(own) > 1}
    return {name: own for name, own in twice.items() if grant.env.get(name, own) != own}


def _adjustment(grant: ContainerGrant) -> nri.ContainerAdjustment:
    """Convert the grant to NRI's message."""
    adjustment = nri.ContainerAdjustment(
        env=[nri.KeyValue(key=key, value=value) for key, value in grant.env.items()],
        CDI_devices=[nri.CDIDevice(name=name) for name in grant.cdi],
        mounts=[
            nri.Mount(
                source=mount.host,
                destination=mount.container,
                type="bind",
                options=["rbind", "rprivate", "ro" if mount.read_only else "rw"],
            )
            for mount in grant.mounts
        ],
    )
    adjustment.linux.devices.extend(_devices(grant.paths))
    return adjustment


def _devices(paths: Iterable[str]) -> Iterable[nri.LinuxDevice]:
    for path in paths:
        node = device_node(path)
        yield nri.LinuxDevice(
            path=node.path,
            type=node.type,
            major=node.major,
            minor=node.minor,
            file_mode=nri.OptionalFileMode(value=node.mode),
            uid=nri.OptionalUInt32(value=node.uid),
            gid=nri.OptionalUInt32(value=node.gid),
        )

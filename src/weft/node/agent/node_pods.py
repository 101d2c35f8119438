"""This node's pods by list-watch: what each requests, and what it was assigned.

a Binding of Weft's                          the delivery record is in the pod's annotations
another system's scheduler, an older Weft    derived from the pod's other annotations and the
                                             node's reported GPUs

A record in an annotation is accepted only if the pod's requests and placement justify it: without
admission policies, any user may have written it. An accepted record does not change, as a container
may have been given its GPUs: later edits of annotations have no effect. (When the node's reported
GPUs change, derived records are derived again.)
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from weft.dialects.catalog import NONE, is_gpu_resource
from weft.dialects.delivery import derived_record, why_not_due
from weft.dialects.dialect import DialectSettings
from weft.dialects.foreign import foreign_requests, foreign_resource
from weft.dialects.inventory import InventoryFallback, inventory
from weft.dialects.kai import card_names, groups_of, is_reservation
from weft.dialects.nvidia import GPU as NVIDIA_GPU
from weft.dialects.queues import queue_of
from weft.dialects.registry import choose, parse_pod
from weft.dialects.resources import names_any, slots
from weft.kube.client import ApiClient
from weft.kube.codec import NODES, Resource
from weft.kube.pods import ENDED, OwnedMeta
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Change, Deleted, ListWatch, Modified, WatchOptions
from weft.model import BadInputError, Node
from weft.model.annotations import DELIVERY, SCHEDULE, SCHEDULE_ENABLED
from weft.model.delivery import DeliveryRecord, decode_delivery
from weft.model.log_fields import about
from weft.model.manifest import Api, PodManifest, PodStatus
from weft.model.node import CardNames
from weft.node.agent.accounting import own_resources
from weft.node.agent.usage import WatchedPod

# --- a pod as the kubelet shows it ----------------------------------------------------------------


class RunningContainer(Api, frozen=True, gc=False):
    """One entry of a list of container statuses; the id begins with the runtime's name."""

    name: str = ""
    container_id: str = msgspec.field(default="", name="containerID")


class RunningStatus(PodStatus, frozen=True, gc=False):
    """The pod's status, with its containers of all three kinds. The kubelet writes `start_time`
    once it has admitted the pod, and thus given it its devices."""

    start_time: str | None = None
    container_statuses: list[RunningContainer] | None = None
    init_container_statuses: list[RunningContainer] | None = None
    ephemeral_container_statuses: list[RunningContainer] | None = None


class PodOnNode(PodManifest, frozen=True, gc=False):
    """A pod as the agent of its node reads it."""

    metadata: OwnedMeta = OwnedMeta()
    status: RunningStatus = RunningStatus()

    @property
    def bare(self) -> bool:
        """True if no controller would recreate the pod."""
        return not any(owner.controller for owner in self.metadata.owner_references or ())

    def containers_by_id(self) -> dict[str, str]:
        """Return the names of the pod's containers by the runtime's ids."""
        return {
            container.container_id.partition("://")[2]: container.name
            for container in self._containers()
            if container.container_id
        }

    def _containers(self) -> Iterator[RunningContainer]:
        status = self.status
        yield from status.init_container_statuses or ()
        yield from status.container_statuses or ()
        yield from status.ephemeral_container_statuses or ()


PODS_ON_NODE = Resource("/api/v1", "pods", PodOnNode)


log = logging.getLogger("weft.agent")

DEFAULT_SCHEDULER = "default-scheduler"
_MIRROR = "kubernetes.io/config.mirror"
_STATIC_UID = re.compile(r"[0-9a-f]{32}")
Asks = Literal["nothing", "share", "foreign"]
_SOON = WatchOptions(most_delay_s=5)
"""Short delays between the watch's attempts to reconnect: when the API server returns, the kubelet
learns of pods at once and starts their containers."""


class NodePod(msgspec.Struct, frozen=True):
    """A pod of this node. `uid` is the UID that the runtime uses.

    `asks` says whether it requests no GPU (`nothing`), a `share` delivered here, or GPUs that
    another plugin delivers (`foreign`). `record` says what it gets; `derived` is True if that was
    derived from other annotations. `problem` says why a required record is missing. `forged`: the
    pod carries a record that its requests or its placement do not justify.
    """

    uid: str
    manifest: PodOnNode
    asks: Asks
    record: DeliveryRecord | None = None
    derived: bool = False
    problem: str = ""
    forged: bool = False

    @property
    def ended(self) -> bool:
        """True once none of its containers will run again."""
        return self.manifest.status.phase in ENDED


class PodRules(msgspec.Struct, frozen=True):
    """The cluster's configuration for reading pods and nodes.

    `most_permille`: how much of a GPU's memory may be promised, in thousandths.
    """

    settings: DialectSettings = DialectSettings(gpushare_unit="node")
    inventory: tuple[InventoryFallback, ...] = ()
    most_permille: int = 1000


class NodePods:
    """Follows the node and its pods. Run `run()` as a task.

    `workload_of` returns the name of the workload that recreates a pod. `listeners` are called with
    the UID of each pod that was added, changed or removed. `synced` is set once all pods are known;
    `node` describes this node's GPUs as the API server has them, None until known.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        rules: PodRules | None = None,
        workload_of: Callable[[PodOnNode], str] = lambda pod: "",
    ) -> None:
        self.node_name, self._workload_of = node_name, workload_of
        self.node: Node | None = None
        self.synced = asyncio.Event()
        self.listeners: list[Callable[[str], None]] = []
        self._rules = rules or PodRules()
        self._pods: dict[str, NodePod] = {}
        on_node = {"fieldSelector": f"spec.nodeName={node_name}"}
        this_node = {"fieldSelector": f"metadata.name={node_name}"}
        self._pod_watch: ListWatch[PodOnNode] = ListWatch(
            client, PODS_ON_NODE, selectors=on_node, options=_SOON
        )
        self._node_watch: ListWatch[KubeNode] = ListWatch(client, NODES, selectors=this_node)
        self._others: frozenset[str] | None = None

    @property
    def pods(self) -> Mapping[str, NodePod]:
        """The pods by UID, including ended ones."""
        return self._pods

    @property
    def records(self) -> dict[str, DeliveryRecord]:
        """The delivery records of the pods that have not ended, by UID."""
        live = (pod for pod in self._pods.values() if not pod.ended)
        return {pod.uid: pod.record for pod in live if pod.record is not None}

    @property
    def problem(self) -> str:
        """Why the API server cannot be watched now; "" while it can."""
        return self._pod_watch.last_error

    @property
    def most_permille(self) -> int:
        """How much of a GPU's memory may be promised, in thousandths."""
        return self._rules.most_permille

    def objection(self, uid: str, record: DeliveryRecord, annotations: Mapping[str, str]) -> str:
        """Return why a record from the annotations of a known pod's sandbox is refused; "" if it is
        accepted."""
        pod = self._pods[uid]
        if pod.forged:
            return pod.problem
        if pod.record is not None and not pod.derived:
            same = pod.record == record
            return "" if same else f"{DELIVERY} differs from the one that the pod had at first"
        meta = msgspec.structs.replace(pod.manifest.metadata, annotations=dict(annotations))
        return self._why_not_due(record, msgspec.structs.replace(pod.manifest, metadata=meta))

    def watched(self, uid: str) -> WatchedPod | None:
        """Return the pod in the form that watching its processes needs; None if unknown."""
        pod = self._pods.get(uid)
        if pod is None:
            return None
        meta, containers = pod.manifest.metadata, pod.manifest.containers_by_id()
        workload, labels = self._workload_of(pod.manifest), meta.labels or {}
        queue = queue_of(pod.manifest)
        name = meta.namespace, meta.name
        return WatchedPod(uid, *name, pod.record, containers, workload, labels, queue)

    def served(self, manifest: PodManifest, container: str) -> Literal["others", "nobody", ""]:
        """Return `others` if another device plugin on this node serves the container's GPUs, or the
        node is not known yet; `nobody` if no plugin serves them; "" if the container requests none.

        A kubelet also admits pods with resources that its node does not advertise. Such a request
        must not let a container see all GPUs that its image asks for.
        """
        if self._others is None:
            return "others"  # the node is not known yet
        requests = foreign_requests(manifest)
        asking = {each.name: each.containers for each in requests if each.containers}
        if whole := _naming(manifest, NVIDIA_GPU):
            asking[NVIDIA_GPU] = whole
        # A request by labels and annotations only is served by any plugin with GPUs here.
        asked = asking.keys() or {name for name in self._others if _is_gpus(name)}
        if asked & self._others:
            return "others"
        if asking:
            return "nobody" if any(container in names for names in asking.values()) else ""
        return "nobody" if self._asks_by_labels(manifest) else ""

    def _asks_by_labels(self, manifest: PodManifest) -> bool:
        try:
            return bool(parse_pod(manifest, self._rules.settings).shape.gpu_requests)
        except BadInputError:
            return True

    async def run(self) -> None:
        """Follow the node and its pods until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_node())
            tasks.create_task(self._follow_pods())

    async def known(self, uid: str, within_s: float) -> NodePod | None:
        """Return the pod with this UID; if it is unknown and the API server answers, wait for it up
        to `within_s` seconds. None if it stays unknown."""
        pod = self._pods.get(uid)
        if pod is not None or self.problem:
            return pod
        came = asyncio.Event()

        def listen(changed: str) -> None:
            if changed == uid:
                came.set()

        self.listeners.append(listen)
        try:
            async with asyncio.timeout(within_s):
                await came.wait()
        except TimeoutError:
            return None
        finally:
            self.listeners.remove(listen)
        return self._pods.get(uid)

    async def _follow_pods(self) -> None:
        async for batch in self._pod_watch.batches():
            for change in batch:
                self._take(change)
            self.synced.set()

    async def _follow_node(self) -> None:
        async for batch in self._node_watch.batches():
            for change in batch:
                if isinstance(change, Added | Modified):
                    self._take_node(change.object)

    def _take(self, change: Change[PodOnNode]) -> None:
        if isinstance(change, Deleted):
            uid = uid_on_node(change.object)
            if (gone := self._pods.pop(uid, None)) is not None:
                self._tell(uid)
                self._read_group(gone.manifest)
        elif isinstance(change, Added | Modified):
            pod = self._read(change.object)
            self._pods[pod.uid] = pod
            self._tell(pod.uid)
            self._read_group(pod.manifest)

    def _read_group(self, manifest: PodOnNode) -> None:
        """Read KAI's pods again if this is a reservation pod, which says on which card they are."""
        if is_reservation(manifest):
            self._read_again(pod for pod in self._pods.values() if groups_of(pod.manifest))

    def _read_again(self, pods: Iterable[NodePod]) -> None:
        for pod in list(pods):
            if pod.record is None or pod.derived:
                self._pods[pod.uid] = self._read(pod.manifest)
                self._tell(pod.uid)

    def _take_node(self, node: KubeNode) -> None:
        before = self.node
        self.node, warnings = inventory(node, rules=self._rules.inventory)
        changed = before is None or (before.gpus, before.unit_mib) != (
            self.node.gpus,
            self.node.unit_mib,
        )
        # Resources seen once stay: their plugin may be about to register with a restarted kubelet.
        there = (self._others or frozenset()).union(node.status.capacity or ())
        self._others = there - own_resources(node)
        if not changed:
            return
        for warning in warnings:
            log.warning("node %s: %s", self.node_name, warning, extra=about(node=self.node_name))
        self._read_again(self._pods.values())

    def _read(self, manifest: PodOnNode) -> NodePod:
        uid = uid_on_node(manifest)
        before = self._pods.get(uid)
        if before is not None and before.record is not None and not before.derived:
            return msgspec.structs.replace(before, manifest=manifest)
        settings = self._rules.settings
        asks, problem = what_it_asks(manifest, settings)
        if DELIVERY in (manifest.metadata.annotations or {}):
            return self._recorded(uid, manifest, asks)
        if asks == "nothing" or problem or manifest.spec.node_name != self.node_name:
            return NodePod(uid, manifest, asks, problem=problem)
        derived, problem = self._derived(manifest)
        if derived is not None:
            return NodePod(uid, manifest, "share", derived, derived=True)
        return NodePod(uid, manifest, asks, problem=problem)

    def _recorded(self, uid: str, manifest: PodOnNode, asks: Asks) -> NodePod:
        """Read a pod that carries a record."""
        try:
            record = decode_delivery((manifest.metadata.annotations or {})[DELIVERY])
        except ValueError as error:
            problem = f"annotation {DELIVERY} cannot be read: {error}"
            return NodePod(uid, manifest, "share", problem=problem)
        if problem := self._why_not_due(record, manifest):
            return NodePod(uid, manifest, asks, problem=problem, forged=True)
        return NodePod(uid, manifest, "share", record)

    def _why_not_due(self, record: DeliveryRecord, manifest: PodOnNode) -> str:
        node = self.node or Node(self.node_name)
        return why_not_due(record, manifest, node, self._rules.settings)

    def _derived(self, manifest: PodOnNode) -> tuple[DeliveryRecord | None, str]:
        """Derive the record of a pod that carries none; return it, or why there is none."""
        if self.node is None:
            return None, "the node's GPUs are not known yet"
        settings, most = self._rules.settings, self._rules.most_permille
        try:
            node = msgspec.structs.replace(self.node, called=self._card_names())
            record = derived_record(manifest, node, settings, most_permille=most)
        except BadInputError as error:
            return None, str(error)
        return record, "" if record else nobody_says(manifest.spec.scheduler_name)

    def _card_names(self) -> CardNames:
        return card_names(pod.manifest for pod in self._pods.values() if not pod.ended)

    def _tell(self, uid: str) -> None:
        for listen in tuple(self.listeners):
            listen(uid)


def nobody_says(scheduler_name: str) -> str:
    """Explain why a bound pod gets nothing if neither a record nor an annotation names its GPUs."""
    if scheduler_name in ("", DEFAULT_SCHEDULER):
        why = (
            f"{DEFAULT_SCHEDULER} placed it, which assigns no GPU shares; label its namespace "
            f"{SCHEDULE}={SCHEDULE_ENABLED}, or write schedulerName: weft, and create it again"
        )
    else:
        why = (
            f"it names the scheduler {scheduler_name} and was not placed by Weft; create it again "
            "with a schedulerName of Weft's, and without nodeName"
        )
    return f"no record says which GPU of this node is the pod's: {why}"


def uid_on_node(manifest: PodManifest) -> str:
    """Return the pod's UID as the runtime knows it.

    A static pod's UID is a hash, found in an annotation of its mirror in the API server. Any user
    may write that annotation: but a kubelet runs no such pod, and no other pod's UID is a hash.
    """
    mirrored = (manifest.metadata.annotations or {}).get(_MIRROR, "")
    return mirrored if is_static(mirrored) else manifest.metadata.uid


def is_static(uid: str) -> bool:
    """Return True if the UID is that of a static pod, which comes from a file on the node."""
    return _STATIC_UID.fullmatch(uid) is not None


def what_it_asks(manifest: PodManifest, settings: DialectSettings) -> tuple[Asks, str]:
    """Return how the pod requests GPUs, and what is wrong with its request ("" if nothing).

    Resources that another device plugin also serves (NVIDIA's, or that of a system running next to
    Weft) count as `foreign`: that plugin delivers, unless a record or the pod's annotations say
    otherwise.
    """
    try:
        system, _ = choose(manifest, settings)
    except BadInputError as error:
        return "share", str(error)
    if system is NONE:
        return ("foreign" if foreign_requests(manifest) else "nothing"), ""
    heard_by_nvidia = NVIDIA_GPU in (*system.counted, *system.resources)
    return ("foreign" if heard_by_nvidia or system.served_by_itself else "share"), ""


def _naming(manifest: PodManifest, resource: str) -> tuple[str, ...]:
    """Return the names of the pod's containers that request this resource."""
    containers = (slot.container for slot in slots(manifest))
    return tuple(each.name for each in containers if names_any(each, {resource}))


def _is_gpus(resource: str) -> bool:
    return is_gpu_resource(resource) or foreign_resource(resource) is not None


def rules_of(
    unit: Literal["auto", "GiB", "MiB"],
    fallbacks: Sequence[InventoryFallback],
    most_permille: int,
    volcano_memory_factor: int = 1,
) -> PodRules:
    """Build the rules from the settings that scheduler and agent share."""
    settings = DialectSettings(
        gpushare_unit="node" if unit == "auto" else unit,
        lends=most_permille > 1000,
        volcano_memory_factor=volcano_memory_factor,
    )
    return PodRules(settings, tuple(fallbacks), most_permille)

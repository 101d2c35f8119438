"""Collects for `weft inspect` how much of each GPU is reserved, and how much is used.

Reservations come from the API: a pod's delivery record, its system's annotations, or the node's
agent's report on NVIDIA's device plugin. Use comes from the agents, through the API server's proxy,
or from a metrics server."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from weft.cluster.reading.claims import NO_CLAIMS, ReadClaims
from weft.cluster.reading.reading import AGENTS, HowToRead, read_cluster
from weft.cluster.state.bound_share import GuessedUse, held_by, placed_by_weft
from weft.cluster.state.card_names import called_by
from weft.cluster.state.claims import ClaimView, beside_claims
from weft.cluster.state.others import claims_share, pods_share
from weft.core.explain.explanation import OthersShare
from weft.dialects.delivery import derived_record
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.koordinator import reported_by
from weft.dialects.nvidia import Nvidia
from weft.dialects.nvidia_plugin import devices_held
from weft.dialects.registry import read_bound
from weft.kube.client import ApiClient
from weft.kube.pods import Pod
from weft.kube.services import SERVING_PODS, ServingPod, everything, proxy_path
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu, Node, Placement, Share
from weft.model.agent_offer import AgentOffer, decode_offer
from weft.model.annotations import AGENT, DELIVERY
from weft.model.delivery import DeliveredCard, DeliveryRecord, decode_delivery
from weft.model.metric import Metric

if TYPE_CHECKING:
    from weft.telemetry.meaning.join import Devices
    from weft.telemetry.sources.source import MetricSource

METRICS = (Metric.MEMORY_USED_MIB, Metric.GPU_UTIL_RATIO, Metric.SM_ACTIVE_RATIO)
PORT = 9400
BACK_S = 60.0
_TIMEOUT_S = 5.0


class PodOnGpu(msgspec.Struct):
    """A pod on a GPU: reserved MiB and thousandths of the GPU's cores, used MiB and the share of
    time in use (None: unknown).

    `by` is the source of the reservation: the delivery record, the system's own annotations, or,
    for GPUs that NVIDIA's device plugin gave, the node's agent. If it is "claim", the reservation
    is a ResourceClaim's, and `name` is the claim's. `placed_by_others` is set for a share that Weft
    did not place, and names its holder and the source that names the GPU."""

    namespace: str
    name: str
    uid: str
    phase: str
    dialect: str
    isolation: str
    by: Literal["record", "annotations", "agent", "claim"]
    memory_mib: int
    milli: int
    used_mib: int | None = None
    util_ratio: float | None = None
    placed_by_others: OthersShare | None = None

    @property
    def full_name(self) -> str:
        """Namespace and name as shown to users."""
        return f"{'claim ' if self.by == 'claim' else ''}{self.namespace}/{self.name}"


class GpuReport(msgspec.Struct):
    """A GPU or MIG instance. `others_mib` is the part of `used_mib` that belongs to none of its
    `pods`: to pods without a share, and to processes outside pods."""

    index: int
    uuid: str
    model: str
    memory_mib: int
    milli: int
    in_service: bool
    parent: int | None = None
    promised_mib: int = 0
    promised_milli: int = 0
    used_mib: int | None = None
    util_ratio: float | None = None
    sm_active_ratio: float | None = None
    others_mib: int | None = None
    pods: list[PodOnGpu] = []


class NodeReport(msgspec.Struct):
    """A node with GPUs; `agent` is its agent's offer, `problem` why its use is unknown.

    `unplaced` are pods whose GPU is unknown, `gone` indexes of GPUs that pods hold but the node no
    longer has."""

    name: str
    ready: bool
    agent: AgentOffer | None
    gpus: list[GpuReport]
    unplaced: list[str]
    problem: str = ""
    cordoned: bool = False
    gone: list[int] = []


class ClusterReport(msgspec.Struct):
    """Nodes of the cluster with GPUs; `source` names the source of measured use, "" for none."""

    nodes: list[NodeReport]
    source: str
    problems: list[str]


class InspectWish(NamedTuple):
    """A request to inspect nodes by name (none: all), with the settings by which pods and nodes are
    read, and a factory of the source of measured use (None: the agents)."""

    names: Sequence[str] = ()
    how: HowToRead = HowToRead()
    source: "Callable[[Devices, Mapping[str, str]], MetricSource] | None" = None


async def inspect_cluster(client: ApiClient, wish: InspectWish) -> ClusterReport:
    """Read the cluster's present state; `BadInputError` if a named node does not exist."""
    read = await read_cluster(client, wish.how, agents=False)
    kube_nodes = {node.metadata.name: node for node in read.nodes}
    for name in wish.names:
        if name not in kube_nodes:
            raise BadInputError("node", f"there is no node {name}")
    chosen = [kube_nodes[name] for name in wish.names or sorted(kube_nodes)]
    nodes, seen = promises(chosen, read.pods, read.how, read.claims)
    inspected = ClusterReport(nodes, "", [])
    if nodes:
        await _look(
            client, inspected, seen, {name: _address(n) for name, n in kube_nodes.items()}, wish
        )
    return inspected


# --- reserved -------------------------------------------------------------------------------------


def promises(
    kube_nodes: Iterable[KubeNode],
    pods: Iterable[Pod],
    how: HowToRead,
    claims: ReadClaims = NO_CLAIMS,
) -> tuple[list[NodeReport], list[Node]]:
    """Return reports of what these pods and claims hold of the nodes' GPUs, and the nodes that have
    GPUs."""
    there: dict[str, list[Pod]] = {}
    for pod in pods:
        if not pod.ended:
            there.setdefault(pod.spec.node_name, []).append(pod)
    reports, nodes = [], []
    for each in kube_nodes:
        device = how.devices.get(each.metadata.name)
        slices = claims.source(each.metadata.name) or reported_by(device)
        node = inventory(each, rules=how.rules, slices=slices)[0]
        if node.gpus:
            nodes.append(node)
            here = [_beside(pod, claims.view) for pod in there.get(node.name, [])]
            seen = called_by(node, here, device, each)
            reports.append(_inspected(each, seen, here, how.settings))
            _add_claims(reports[-1], claims.view, seen)
    return reports, nodes


def _beside(pod: Pod, claims: ClaimView) -> Pod:
    """Return the pod without the GPUs that ResourceClaims give it."""
    covered = claims.covered(pod)
    return beside_claims(pod, covered) if covered else pod


def _add_claims(report: NodeReport, claims: ClaimView, node: Node) -> None:
    """Add the shares that ResourceClaims hold on the node; on-demand partitions are listed only if
    held."""
    gpus = {gpu.index: gpu for gpu in report.gpus}
    for charge in claims.charges_on(report.name):
        meta = charge.claim.metadata
        for share in charge.shares:
            gpu = gpus.get(share.gpu)
            if gpu is None:
                continue
            gpu.promised_mib += share.memory_mib
            gpu.promised_milli += share.milli
            mib, milli = share.memory_mib, share.milli
            held = PodOnGpu(meta.namespace, meta.name, meta.uid, "", "", "", "claim", mib, milli)
            held.placed_by_others = claims_share(charge, share, node)
            gpu.pods.append(held)
        if charge.anywhere:
            report.unplaced.append(f"claim {meta.namespace}/{meta.name}")
    report.gpus = [
        gpu for gpu in report.gpus if gpu.parent is None or gpu.in_service or gpu.promised_mib
    ]


def _inspected(
    kube_node: KubeNode, node: Node, pods: Iterable[Pod], settings: DialectSettings
) -> NodeReport:
    gpus = {gpu.index: _gpu(gpu) for gpu in node.gpus}
    unplaced: list[str] = []
    gone: list[int] = []
    for pod in sorted(pods, key=lambda pod: (pod.metadata.namespace, pod.metadata.name)):
        record, by = _record(pod, node, settings)
        if by == "nobody":
            unplaced.append(f"{pod.metadata.namespace}/{pod.metadata.name}")
        if record is None or by is None or by == "nobody":
            continue
        is_told = by == "agent"
        others = is_told or (by == "annotations" and not placed_by_weft(pod))
        request = read_bound(pod, node, settings)[0] if others else None
        for card in record.cards:
            share = Share(0, card.gpu, card.memory_mib, card.milli, card.uuid)
            if card.gpu not in gpus:  # the GPU is gone, but the pod still holds it
                missing = Gpu(card.gpu, 0, uuid=card.uuid, milli=0, in_service=False)
                gpus[card.gpu] = _gpu(missing)
                gone.append(card.gpu)
            gpu = gpus[card.gpu]
            gpu.promised_mib += card.memory_mib
            gpu.promised_milli += card.milli
            meta = pod.metadata
            gpu.pods.append(
                PodOnGpu(
                    meta.namespace,
                    meta.name,
                    meta.uid,
                    pod.status.phase,
                    record.dialect,
                    record.isolation,
                    by,
                    card.memory_mib,
                    card.milli,
                    placed_by_others=pods_share(pod, request, share, node, is_told=is_told)
                    if others
                    else None,
                )
            )
    offer = _offer(kube_node)
    ordered = [gpus[index] for index in sorted(gpus)]
    return NodeReport(
        kube_node.metadata.name,
        kube_node.ready,
        offer,
        ordered,
        unplaced,
        cordoned=kube_node.spec.unschedulable,
        gone=gone,
    )


def _gpu(gpu: Gpu) -> GpuReport:
    return GpuReport(
        gpu.index,
        gpu.uuid,
        gpu.model,
        gpu.memory_mib,
        gpu.milli,
        gpu.in_service,
        gpu.parent,
        pods=[],
    )


def _record(
    pod: Pod, node: Node, settings: DialectSettings
) -> tuple[DeliveryRecord | None, Literal["record", "annotations", "agent", "nobody"] | None]:
    """Return the pod's record and its source; `nobody` if the pod requests GPUs but nothing records
    their place, None if it requests none."""
    text = (pod.metadata.annotations or {}).get(DELIVERY, "")
    try:
        record = decode_delivery(text) if text else None
    except (ValueError, RecursionError):
        record = None
    if record is not None and (record.pod, record.node) == (pod.metadata.uid, node.name):
        return record, "record"
    try:
        derived = derived_record(pod, node, settings)
        request = read_bound(pod, node, settings)[0]
    except BadInputError:
        return None, "nobody"
    if derived is not None:
        return derived, "annotations"
    if devices_held(pod, request):
        share = held_by(pod, node, settings, GuessedUse(node).how_full)
        if share.told:
            return _as_record(share.placement), "agent"
        return None, "nobody" if share.why else None
    return None, "nobody" if request.shape.gpu_requests else None


def _as_record(placement: Placement) -> DeliveryRecord:
    """Return a delivery record of GPUs that NVIDIA's device plugin gave."""
    cards = tuple(
        DeliveredCard(s.gpu, s.uuid, s.memory_mib, s.milli, s.memory_mib, s.milli)
        for s in placement.shares
    )
    return DeliveryRecord(placement.uid, placement.node, Nvidia.name, cards, {})


def _offer(node: KubeNode) -> AgentOffer | None:
    text = (node.metadata.annotations or {}).get(AGENT, "")
    try:
        return decode_offer(text) if text else None
    except ValueError:
        return None


def _address(node: KubeNode) -> str:
    addresses = node.status.addresses or ()
    return next((a.address for a in addresses if a.type == "InternalIP"), "")


def troubles_of(node: NodeReport) -> list[str]:
    """Return one sentence for each problem of the node and its GPUs."""
    troubles = [] if node.ready else [f"Node {node.name} is not ready."]
    if node.cordoned:
        troubles.append(f"Node {node.name} is cordoned: it takes no more pods.")
    there = [gpu for gpu in node.gpus if gpu.index not in node.gone]
    out = [str(gpu.index) for gpu in there if not gpu.in_service and not _cut(node, gpu)]
    if out:
        troubles.append(f"Out of service on {node.name}: GPU {', '.join(out)}.")
    for gpu in node.gpus:
        if gpu.index in node.gone:
            holders = ", ".join(pod.full_name for pod in gpu.pods)
            troubles.append(
                f"GPU {gpu.index} of {node.name} is gone, but {holders} still holds it."
            )
            continue
        beyond = gpu.promised_mib - gpu.memory_mib
        if beyond > 0:
            where = f"GPU {gpu.index} of {node.name}"
            others = "; ".join(p.placed_by_others.text for p in gpu.pods if p.placed_by_others)
            but = f" Not placed by Weft: {others}." if others else ""
            troubles.append(f"{where}: {beyond:,} MiB more are promised than the GPU has.{but}")
    return troubles


def _cut(node: NodeReport, gpu: GpuReport) -> bool:
    """Return True if the GPU is partitioned into MIG instances."""
    return any(each.parent == gpu.index for each in node.gpus)


# --- used -----------------------------------------------------------------------------------------


async def _look(
    client: ApiClient,
    inspected: ClusterReport,
    nodes: Sequence[Node],
    addresses: Mapping[str, str],
    wish: InspectWish,
) -> None:
    """Fill in the measured use of GPUs and pods, if the source has it."""
    from weft.telemetry.meaning.join import Devices

    names = {node.name for node in nodes}
    known = {name: address for name, address in addresses.items() if name in names}
    devices = Devices(nodes, {address: name for name, address in known.items() if address})
    if wish.source is not None:
        source = wish.source(devices, known)
    else:
        targets = await _agents(client, inspected)
        if not targets:
            return
        source = _agents_source(client, targets, devices)
    try:
        reading = await source.read(METRICS, BACK_S)
    finally:
        await source.close()
    failed = {asked.about: str(asked.error) for asked in reading.asked if asked.error is not None}
    for node in inspected.nodes:
        node.problem = failed.pop(node.name, node.problem)
    inspected.problems += list(dict.fromkeys(failed.values()))
    if reading.answers:
        inspected.source = "a metrics server" if wish.source is not None else "Weft's agents"
        _fill(inspected, devices, reading.answers)


async def _agents(client: ApiClient, inspected: ClusterReport) -> dict[str, str]:
    """Return the agents' metrics URLs by node, through the API server's proxy; set `problem` of
    nodes without a ready agent."""
    from weft.model import WeftError

    try:
        pods = await everything(client, SERVING_PODS, selector=AGENTS)
    except WeftError as error:
        inspected.problems.append(f"agents cannot be listed: {error}")
        return {}
    ready = {pod.spec.node_name: _page(pod) for pod in pods if pod.ready}
    there = {pod.spec.node_name for pod in pods}
    for node in inspected.nodes:
        if node.name not in ready:
            node.problem = "the agent is not ready" if node.name in there else "no agent runs there"
    names = {node.name for node in inspected.nodes}
    return {name: page for name, page in ready.items() if name in names}


def _page(pod: ServingPod) -> str:
    named = {port.name: port.container_port for port in pod.ports()}
    meta, port = pod.metadata, str(named.get("metrics", PORT))
    return f"{proxy_path('pods', meta.namespace, meta.name, port)}/metrics"


def _agents_source(
    client: ApiClient, targets: Mapping[str, str], devices: "Devices"
) -> "MetricSource":
    from weft.model.metric_aliases import ALIASES
    from weft.telemetry.sources.api_proxy import ApiProxyTransport
    from weft.telemetry.sources.exporters import MOST_MIB, ExporterSource, NameIndex
    from weft.telemetry.sources.transport import ResponseLimits

    fetch = ApiProxyTransport(client, "", limits=ResponseLimits(_TIMEOUT_S, MOST_MIB)).get
    known = NameIndex(ALIASES, lambda: devices)
    return ExporterSource(lambda: targets, fetch=fetch, known=known)


def _fill(inspected: ClusterReport, devices: "Devices", answers: Sequence[Any]) -> None:
    from weft.telemetry.meaning.join import SeriesJoiner

    joiner = SeriesJoiner(devices)
    newest: dict[tuple[Metric, int], tuple[float, float]] = {}
    own: dict[tuple[Metric, int, str], float] = {}
    for answer in answers:
        for joined in joiner.join(answer):
            samples = zip(
                joined.rows.tolist(), joined.times.tolist(), joined.values.tolist(), strict=True
            )
            for row, at_s, value in samples:
                key = joined.metric, row
                if math.isfinite(value) and at_s >= newest.get(key, (0.0, 0.0))[0]:
                    newest[key] = at_s, value
        for sample in joiner.pods(answer, lambda row, namespace, pod: f"{namespace}/{pod}"):
            own[sample.metric, sample.row, sample.pod] = sample.value
    oldest_s = time.time() - BACK_S
    for node in inspected.nodes:
        for gpu in node.gpus:
            row = devices.row_of.get((node.name, gpu.index), -1)
            values = {
                metric: newest[metric, row][1]
                for metric in METRICS
                if (metric, row) in newest and newest[metric, row][0] >= oldest_s
            }
            _fill_gpu(gpu, values, {(m, pod): v for (m, r, pod), v in own.items() if r == row})


def _fill_gpu(
    gpu: GpuReport, values: Mapping[Metric, float], own: Mapping[tuple[Metric, str], float]
) -> None:
    used = values.get(Metric.MEMORY_USED_MIB)
    if used is None:
        return
    gpu.used_mib = round(used)
    gpu.util_ratio = values.get(Metric.GPU_UTIL_RATIO)
    gpu.sm_active_ratio = values.get(Metric.SM_ACTIVE_RATIO)
    by_pod = any(metric is Metric.MEMORY_USED_MIB for metric, _ in own)
    for pod in gpu.pods:
        name = pod.full_name
        mib = own.get((Metric.MEMORY_USED_MIB, name))
        # A source that reports any pod reports all of them: an unnamed pod uses nothing.
        pod.used_mib = round(mib) if mib is not None else 0 if by_pod or not used else None
        pod.util_ratio = own.get((Metric.GPU_UTIL_RATIO, name))
    known = [pod.used_mib for pod in gpu.pods]
    if None not in known:
        gpu.others_mib = max(0, gpu.used_mib - sum(mib for mib in known if mib is not None))

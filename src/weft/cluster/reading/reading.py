"""Reads a cluster's objects once, for all questions about it; Secrets are never read."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from weft.cluster.config.form import Configuration
from weft.cluster.reading.claims import NO_CLAIMS, ReadClaims, read_claims, taken_in
from weft.cluster.reading.finding import DoctorFinding, good, wrong
from weft.cluster.rights import HOW_TO_GET
from weft.cluster.state.koordinator_devices import devices_by_node
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import InventoryFallback, inventory
from weft.dialects.koordinator import KoordinatorDevice, reported_by
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.codec import PODS, Resource
from weft.kube.pods import Pod
from weft.kube.preflight import lacking_of
from weft.kube.services import SERVING_PODS, ServingPod, everything
from weft.kube.structs import KubeNode, KubeNodeStatus
from weft.model import Node
from weft.model.annotations import ADVERTISES, AGENT
from weft.model.manifest import Api

AGENTS = "app.kubernetes.io/name=weft-agent"
"""Label of the agents' pods in Weft's manifests."""


class NodeSystem(Api, frozen=True, gc=False):
    """Fields of status.nodeInfo that Weft reads."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class SystemStatus(KubeNodeStatus, frozen=True, gc=False):
    """A node's status with its software versions."""

    node_info: NodeSystem = NodeSystem()


class SystemNode(KubeNode, frozen=True, gc=False):
    """A node with its software versions."""

    status: SystemStatus = SystemStatus()

    @property
    def advertised(self) -> frozenset[str]:
        """Resources that Weft's agent advertises on this node."""
        text = (self.metadata.annotations or {}).get(ADVERTISES, "")
        return frozenset(filter(None, text.split(",")))


SYSTEM_NODES = Resource("/api/v1", "nodes", SystemNode)


class HowToRead(NamedTuple):
    """Settings by which nodes and pods are read, from the scheduler's configuration. `devices` are
    Koordinator's Device objects, by node."""

    settings: DialectSettings = DialectSettings(gpushare_unit="node")
    rules: Sequence[InventoryFallback] = ()
    devices: Mapping[str, KoordinatorDevice] = MappingProxyType({})


def how_to_read(config: Configuration) -> HowToRead:
    """Return the settings by which a scheduler with this configuration reads pods and nodes."""
    unit = config.gpushare_unit
    return HowToRead(
        DialectSettings(
            "node" if unit == "auto" else unit, volcano_memory_factor=config.volcano_memory_factor
        ),
        tuple(
            InventoryFallback(rule.count, rule.memory_mib, rule.model, rule.nodes, rule.labels)
            for rule in config.inventory
        ),
    )


class ClusterReading(NamedTuple):
    """Nodes, pods, agents and claims of a cluster. `gpu_nodes` have GPUs that Weft knows of; on
    `blind_nodes` the agent reports no GPU in service. `devices_unread` is True if Koordinator's
    Devices exist but the caller may not read them."""

    how: HowToRead
    nodes: Sequence[SystemNode]
    gpu_nodes: Sequence[SystemNode]
    blind_nodes: Sequence[SystemNode]
    pods: Sequence[Pod]
    agents: Sequence[ServingPod]
    claims: ReadClaims = NO_CLAIMS
    devices_unread: bool = False

    def inventory(self, node: SystemNode) -> Node:
        """Return the node with its GPUs, as a scheduler with these settings reads it."""
        slices = self.claims.source(node.metadata.name)
        slices = slices or reported_by(self.how.devices.get(node.metadata.name))
        return inventory(node, rules=self.how.rules, slices=slices)[0]


async def read_cluster(client: ApiClient, how: HowToRead, *, agents: bool = True) -> ClusterReading:
    """Read nodes, pods and, unless `agents` is False, the agents' pods; raises the client's
    errors."""
    nodes = await everything(client, SYSTEM_NODES)
    devices = await devices_by_node(client)
    how = how._replace(devices=devices or {})
    read = ClusterReading(
        how,
        nodes,
        gpu_nodes=[],
        blind_nodes=[node for node in nodes if _is_blind(node)],
        pods=await everything(client, PODS),
        agents=await everything(client, SERVING_PODS, selector=AGENTS) if agents else (),
        claims=taken_in(await read_claims(client), nodes, how.rules),
        devices_unread=devices is None,
    )
    return read._replace(gpu_nodes=[node for node in nodes if read.inventory(node).gpus])


def _is_blind(node: SystemNode) -> bool:
    if AGENT not in (node.metadata.annotations or {}):
        return False
    return not any(gpu.in_service for gpu in inventory(node)[0].gpus)


async def rights_finding(
    client: ApiClient, needed: Iterable[ResourceRight], whose: str
) -> DoctorFinding:
    """Check that the caller has the `needed` rights; `whose` is "yours" or "the agent"."""
    check = "your rights" if whose == "yours" else f"rights of {whose}"
    if lacking := await lacking_of(client, needed):
        mend = (
            "apply deploy/agent.yaml, which grants the agent's rights"
            if whose == "the agent"
            else HOW_TO_GET
        )
        return wrong(check, f"no permission to {', '.join(map(str, lacking))}", mend)
    return good(check, "complete")

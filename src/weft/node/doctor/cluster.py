"""Checks of a cluster as its API server shows it: rights, agents, runtimes, other GPU plugins."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from weft.dialects.catalog import is_gpu_resource
from weft.dialects.inventory import InventoryFallback, inventory
from weft.kube.access import ResourceRight, may_i
from weft.kube.client import ApiClient
from weft.kube.codec import PODS, Resource
from weft.kube.pods import Pod
from weft.kube.services import SERVING_PODS, ServingPod, everything
from weft.kube.structs import KubeNode, KubeNodeStatus
from weft.model import BadInputError, parse_quantity
from weft.model.agent_offer import BY_NAME, AgentOffer, decode_offer
from weft.model.annotations import ADVERTISES, AGENT
from weft.model.manifest import Api
from weft.node.doctor.finding import DoctorFinding, advice, good, wrong
from weft.node.nri.runtimes import how_to_close

AGENTS = "app.kubernetes.io/name=weft-agent"
ASSUMED = "elasticgpu.io/assumed"
LEAST_CONTAINERD = (1, 7)
FAIL_CLOSED_CONTAINERD = (2, 2)
_VERSION = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")
_MOST_NAMES = 8

PERSON = (
    ResourceRight("list", "nodes"),
    ResourceRight("list", "pods"),
    ResourceRight("get", "pods/proxy"),
)
"""The rights that `weft inspect` and `weft doctor` need."""
NODE_AGENT = (
    ResourceRight("list", "pods"),
    ResourceRight("watch", "pods"),
    ResourceRight("list", "nodes"),
    ResourceRight("watch", "nodes"),
    ResourceRight("get", "nodes"),
    ResourceRight("patch", "nodes/status"),
    ResourceRight("create", "pods/eviction"),
    ResourceRight("create", "events", "events.k8s.io"),
    ResourceRight("patch", "events", "events.k8s.io"),
)
"""The rights that `weft agent` needs: deploy/agent.yaml grants them."""


class NodeSystem(Api, frozen=True, gc=False):
    """status.nodeInfo."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class SystemStatus(KubeNodeStatus, frozen=True, gc=False):
    """status of a node, with its software."""

    node_info: NodeSystem = NodeSystem()


class SystemNode(KubeNode, frozen=True, gc=False):
    """A node, with its software."""

    status: SystemStatus = SystemStatus()

    @property
    def advertised(self) -> frozenset[str]:
        """The resources that Weft's agent advertises there."""
        text = (self.metadata.annotations or {}).get(ADVERTISES, "")
        return frozenset(filter(None, text.split(",")))


SYSTEM_NODES = Resource("/api/v1", "nodes", SystemNode)


class ClusterFacts(NamedTuple):
    """The facts that the checks look at; `gpu_nodes` are those with GPUs that Weft knows of; on
    `blind_nodes` the agent says of none that it is in service."""

    gpu_nodes: Sequence[SystemNode]
    blind_nodes: Sequence[SystemNode]
    agents: Sequence[ServingPod]
    pods: Sequence[Pod]


async def facts_of(client: ApiClient, rules: Sequence[InventoryFallback] = ()) -> ClusterFacts:
    """Ask the API server; raises what the client raises. `rules` are the configuration's."""
    nodes = await everything(client, SYSTEM_NODES)
    return ClusterFacts(
        [node for node in nodes if inventory(node, rules=rules)[0].gpus],
        [node for node in nodes if _is_blind(node)],
        await everything(client, SERVING_PODS, selector=AGENTS),
        await everything(client, PODS),
    )


def _is_blind(node: SystemNode) -> bool:
    if AGENT not in (node.metadata.annotations or {}):
        return False
    return not any(gpu.in_service for gpu in inventory(node)[0].gpus)


async def rights(client: ApiClient, needed: Iterable[ResourceRight], whose: str) -> DoctorFinding:
    """Whoever asks may do what is needed."""
    check = f"rights of {whose}"
    lacking = [str(right) for right in needed if not await may_i(client, right)]
    if lacking:
        mend = (
            "deploy/agent.yaml grants the agent's"
            if whose == "the agent"
            else ("ask for a role with these; kubectl auth can-i --list shows what you may")
        )
        return wrong(check, f"may not {', '.join(lacking)}", mend)
    return good(check, "all that is needed")


def agents_per_node(facts: ClusterFacts) -> DoctorFinding:
    """Every node with GPUs has an agent that is ready."""
    check = "agents"
    if not facts.gpu_nodes:
        return advice(
            check,
            "no node has GPUs that Weft knows of",
            "apply deploy/agent.yaml, or write inventory: into the configuration",
        )
    ready = {pod.spec.node_name for pod in facts.agents if pod.ready}
    there = {pod.spec.node_name for pod in facts.agents}
    names = [node.metadata.name for node in facts.gpu_nodes]
    unready = [name for name in names if name in there - ready]
    none = [name for name in names if name not in there]
    if unready:
        mend = "kubectl -n weft-system describe pod of it, and its log, say why"
        return wrong(check, f"the agent is not ready on {some(unready)}", mend)
    if none:
        mend = (
            "apply deploy/agent.yaml, and see that its node selector and tolerations fit these "
            "nodes; without it the systems' own device plugins must deliver"
        )
        return advice(check, f"no agent on {some(none)}", mend)
    return good(check, f"ready on all {len(names)} nodes with GPUs")


def offers(facts: ClusterFacts) -> DoctorFinding:
    """Checks that the agents' offers are known, of one version, and closed where the runtime can
    be."""
    check = "agents' offers"
    offers: dict[str, AgentOffer] = {}
    broken = []
    for node in facts.gpu_nodes:
        text = (node.metadata.annotations or {}).get(AGENT)
        if text is not None:
            try:
                offers[node.metadata.name] = decode_offer(text)
            except ValueError as error:
                broken.append(f"{node.metadata.name}: {error}")
    if broken:
        return wrong(check, f"{AGENT} is damaged on {broken[0]}", "restart the agent there")
    versions = sorted({offer.version for offer in offers.values()})
    if len(versions) > 1:
        return advice(
            check, f"agents run versions {', '.join(versions)}", "finish rolling out the agent"
        )
    by_name = {name: offer for name, offer in offers.items() if offer.delivery == BY_NAME}
    if opened := [name for name, offer in by_name.items() if not offer.fail_closed]:
        first = by_name[min(opened)]
        why = f" ({first.open_because})" * bool(first.open_because)
        text = "a container may start without its share while the agent is away"
        return advice(check, f"{text}, on {some(opened)}{why}", how_to_close(first.runtime))
    made = sum(bool(offer.drop_in) for offer in by_name.values())
    waits = f"; on {made} containerd waits for the agent by its drop-in" * bool(made)
    return good(check, f"{len(offers)} nodes: {_modes(offers)}{waits}")


def drivers(facts: ClusterFacts) -> DoctorFinding:
    """Every agent sees GPUs: where its machine has no driver it runs on without any."""
    check = "agents' drivers"
    blind = [node.metadata.name for node in facts.blind_nodes]
    if blind:
        mend = (
            "install NVIDIA's driver there, and see that nvidia-smi answers: the agent finds it by "
            "itself; weft doctor on the node says more"
        )
        return wrong(check, f"the agent sees no GPU in service on {some(blind)}", mend)
    return good(check, "each agent sees GPUs in service")


def inventories(facts: ClusterFacts) -> DoctorFinding:
    """Everybody who says which GPUs a node has says the same."""
    check = "GPUs of nodes"
    told = {}
    for node in facts.gpu_nodes:
        if warnings := inventory(node)[1]:
            told[node.metadata.name] = "; ".join(warnings)
    if told:
        first = min(told)
        more = f" (and {len(told) - 1} more nodes)" if len(told) > 1 else ""
        mend = f"kubectl describe node {first}: remove what is out of date, or restart its plugin"
        return advice(check, f"{first}: {told[first]}{more}", mend)
    return good(check, "nobody contradicts anybody")


def runtimes(facts: ClusterFacts) -> DoctorFinding:
    """Container runtimes are new enough for delivery by name."""
    check = "container runtimes"
    old, open_ones, unknown = [], [], []
    for node in facts.gpu_nodes:
        name, text = node.metadata.name, node.status.node_info.container_runtime_version
        match = _VERSION.match(text)
        version = (int(match[2]), int(match[3])) if match else (0, 0)
        if match is None or match[1] != "containerd":
            unknown.append(f"{name} ({text or 'unknown'})")
        elif version < LEAST_CONTAINERD:
            old.append(f"{name} ({text})")
        elif version < FAIL_CLOSED_CONTAINERD:
            open_ones.append(f"{name} ({text})")
    if old:
        mend = "containerd 1.7 or newer, or weft agent --device-plugins there"
        return wrong(check, f"without NRI: {some(old)}", mend)
    if open_ones:
        mend = "containerd 2.2 refuses to start containers while the agent is away"
        return advice(check, f"older than containerd 2.2: {some(open_ones)}", mend)
    if unknown:
        mend = "see that NRI is on (cri-o: enable_nri = true)"
        return advice(check, f"other than containerd: {some(unknown)}", mend)
    return good(check, f"containerd 2.2 or newer on {len(facts.gpu_nodes)} nodes")


def other_resources(facts: ClusterFacts) -> DoctorFinding:
    """GPU resources that somebody else advertises on nodes with an agent."""
    check = "other GPU plugins"
    others: dict[str, list[str]] = {}
    for node in facts.gpu_nodes:
        if AGENT in (node.metadata.annotations or {}):
            for name, amount in (node.status.allocatable or {}).items():
                if is_gpu_resource(name) and name not in node.advertised and _some_of(amount):
                    others.setdefault(name, []).append(node.metadata.name)
    if others:
        text = "; ".join(f"{name} on {some(nodes)}" for name, nodes in sorted(others.items()))
        mend = (
            "whoever advertises them hands out the same GPUs and knows nothing of shares: remove "
            "that plugin there, or keep the two kinds of pods on nodes apart"
        )
        return advice(check, f"advertised beside Weft's agent: {text}", mend)
    return good(check, "none beside Weft's agent")


def merged_labels(facts: ClusterFacts) -> DoctorFinding:
    """Labels of a Binding reach the pod only where admission merges them; nothing relies on it."""
    check = "labels of Bindings"
    marked = [
        pod
        for pod in facts.pods
        if pod.spec.node_name and (pod.metadata.annotations or {}).get(ASSUMED) == "true"
    ]
    bare = [pod for pod in marked if (pod.metadata.labels or {}).get(ASSUMED) != "true"]
    if bare:
        meta = bare[0].metadata
        mend = (
            "Weft reads annotations and needs none; what selects by label "
            f"{ASSUMED} needs the admission plugin PodTopologyLabels"
        )
        return advice(check, f"not merged into pods ({meta.namespace}/{meta.name})", mend)
    return good(check, "merged" if marked else "nothing relies on them")


def _modes(offers: Mapping[str, AgentOffer]) -> str:
    modes = sorted({mode for offer in offers.values() for mode in offer.isolation})
    return f"isolation {', '.join(modes)}" if modes else "no agent says anything yet"


def _some_of(amount: str | int | float) -> bool:
    try:
        return parse_quantity(amount, "allocatable") > 0
    except BadInputError:
        return False


def some(names: Collection[str]) -> str:
    """These names, or the first of them and how many more."""
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown

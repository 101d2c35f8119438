"""Findings about nodes: their agents, container runtimes, and other plugins that allocate their
GPUs."""

import datetime
import re
from collections.abc import Mapping

from weft.cluster.reading.finding import DoctorFinding, advice, good, some, wrong
from weft.cluster.reading.reading import ClusterReading
from weft.dialects.catalog import is_gpu_resource
from weft.dialects.inventory import inventory
from weft.kube.client import ApiClient
from weft.kube.codec import LEASES
from weft.kube.errors import ApiError
from weft.kube.services import everything
from weft.kube.structs import Lease
from weft.model import BadInputError, parse_quantity
from weft.model.agent_offer import (
    BY_NAME,
    HEARTBEAT_LATE_S,
    HEARTBEAT_PREFIX,
    AgentOffer,
    decode_offer,
)
from weft.model.annotations import AGENT
from weft.model.runtimes import how_to_close

ASSUMED = "elasticgpu.io/assumed"
_HEARTBEATS = "agents' heartbeats"
_DEFAULT_NAMESPACE = "weft-system"
_CLOCKS_S = 46.0
"""Seconds by which clocks of nodes and of this machine may differ before a heartbeat counts as
late."""
LEAST_CONTAINERD = (1, 7)
FAIL_CLOSED_CONTAINERD = (2, 2)
_VERSION = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")


def agents_per_node(cluster: ClusterReading) -> DoctorFinding:
    """Check that every node with GPUs has a ready agent."""
    check = "agents"
    if not cluster.gpu_nodes:
        return advice(
            check,
            "no node has GPUs that Weft knows of",
            "apply deploy/agent.yaml, or write inventory: into the configuration",
        )
    ready = {pod.spec.node_name for pod in cluster.agents if pod.ready}
    there = {pod.spec.node_name for pod in cluster.agents}
    names = [node.metadata.name for node in cluster.gpu_nodes]
    unready = [name for name in names if name in there - ready]
    none = [name for name in names if name not in there]
    if unready:
        mend = "kubectl -n weft-system describe pod NAME, and see its log"
        return wrong(check, f"the agent is not ready on {some(unready)}", mend)
    if none:
        mend = (
            "apply deploy/agent.yaml, and see that its node selector and tolerations fit these "
            "nodes; without it the systems' own device plugins must deliver"
        )
        return advice(check, f"no agent on {some(none)}", mend)
    return good(check, f"ready on all {len(names)} nodes with GPUs")


def offers(cluster: ClusterReading) -> DoctorFinding:
    """Check that agents' offers (node annotations) can be read and are of one version, and that no
    container starts without its share while an agent is away."""
    check = "agents' offers"
    offers: dict[str, AgentOffer] = {}
    broken = []
    for node in cluster.gpu_nodes:
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
    waits = f"; on {made} of them, a drop-in makes containerd wait for the agent" * bool(made)
    return good(check, f"{len(offers)} nodes: {_modes(offers)}{waits}")


def drivers(cluster: ClusterReading) -> DoctorFinding:
    """Check that every agent sees GPUs: without a driver an agent keeps running, but sees none."""
    check = "agents' drivers"
    blind = [node.metadata.name for node in cluster.blind_nodes]
    if blind:
        mend = (
            "install NVIDIA's driver there, and check that nvidia-smi works: the agent detects "
            "it by "
            "itself; weft doctor on the node has details"
        )
        return wrong(check, f"the agent sees no GPU in service on {some(blind)}", mend)
    return good(check, "each agent sees GPUs in service")


def inventories(cluster: ClusterReading) -> DoctorFinding:
    """Check that all sources of a node's GPUs agree."""
    check = "GPUs of nodes"
    told = {}
    for node in cluster.gpu_nodes:
        if warnings := inventory(node)[1]:
            told[node.metadata.name] = "; ".join(warnings)
    if told:
        first = min(told)
        more = f" (and {len(told) - 1} more nodes)" if len(told) > 1 else ""
        mend = f"kubectl describe node {first}: remove what is out of date, or restart its plugin"
        return advice(check, f"{first}: {told[first]}{more}", mend)
    return good(check, "all sources agree")


def runtimes(cluster: ClusterReading) -> DoctorFinding:
    """Check that container runtimes support delivery through NRI."""
    check = "container runtimes"
    old, open_ones, unknown = [], [], []
    for node in cluster.gpu_nodes:
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
        mend = "upgrade to containerd 1.7, or run weft agent --device-plugins on these nodes"
        return wrong(check, f"without NRI: {some(old)}", mend)
    if open_ones:
        mend = "upgrade: containerd 2.2 refuses to start containers while the agent is away"
        return advice(check, f"older than containerd 2.2: {some(open_ones)}", mend)
    if unknown:
        mend = "see that NRI is on (cri-o: enable_nri = true)"
        return advice(check, f"other than containerd: {some(unknown)}", mend)
    return good(check, f"containerd 2.2 or newer on {len(cluster.gpu_nodes)} nodes")


def other_resources(cluster: ClusterReading) -> DoctorFinding:
    """Find GPU resources that other plugins advertise on nodes with an agent."""
    check = "other GPU plugins"
    others: dict[str, list[str]] = {}
    for node in cluster.gpu_nodes:
        if AGENT in (node.metadata.annotations or {}):
            for name, amount in (node.status.allocatable or {}).items():
                if is_gpu_resource(name) and name not in node.advertised and _some_of(amount):
                    others.setdefault(name, []).append(node.metadata.name)
    if others:
        text = "; ".join(f"{name} on {some(nodes)}" for name, nodes in sorted(others.items()))
        mend = (
            "another device plugin allocates the same GPUs and does not know about shares: remove "
            "it there, or keep the two kinds of pods on separate nodes"
        )
        return advice(check, f"advertised in addition to Weft's agent: {text}", mend)
    return good(check, "nodes with Weft's agent advertise no other GPU resources")


def merged_labels(cluster: ClusterReading) -> DoctorFinding:
    """Report if pods get their Binding's labels, which only the admission plugin PodTopologyLabels
    copies. Weft does not need them."""
    check = "labels of Bindings"
    marked = [
        pod
        for pod in cluster.pods
        if pod.spec.node_name and (pod.metadata.annotations or {}).get(ASSUMED) == "true"
    ]
    bare = [pod for pod in marked if (pod.metadata.labels or {}).get(ASSUMED) != "true"]
    if bare:
        meta = bare[0].metadata
        mend = (
            f"Weft itself needs no labels; tools that select pods by label {ASSUMED} "
            "need the admission plugin PodTopologyLabels"
        )
        return advice(check, f"not merged into pods ({meta.namespace}/{meta.name})", mend)
    return good(check, "merged" if marked else "nothing relies on them")


def _modes(offers: Mapping[str, AgentOffer]) -> str:
    modes = sorted({mode for offer in offers.values() for mode in offer.isolation})
    return f"isolation {', '.join(modes)}" if modes else "no agent has reported its modes yet"


def _some_of(amount: str | int | float) -> bool:
    try:
        return parse_quantity(amount, "allocatable") > 0
    except BadInputError:
        return False


# --- heartbeats -----------------------------------------------------------------------------------


async def heartbeats(client: ApiClient, cluster: ClusterReading) -> list[DoctorFinding]:
    """Report each node whose agent's heartbeat is late, or whose agent reports that it does not
    deliver."""
    leases: dict[str, Lease] = {}
    for namespace in {pod.metadata.namespace for pod in cluster.agents} or {_DEFAULT_NAMESPACE}:
        try:
            found = await everything(client, LEASES, namespace)
        except ApiError as error:
            if error.code != 403:
                raise
            mend = "ask for the right to list leases there (ClusterRole weft-inspect has it)"
            return [advice(_HEARTBEATS, f"unknown: you may not read leases in {namespace}", mend)]
        leases |= {lease.metadata.name: lease for lease in found}
    names = [node.metadata.name for node in cluster.gpu_nodes]
    silent = _silent({name: leases.get(HEARTBEAT_PREFIX + name) for name in names}, client)
    findings = []
    for name, why in silent.items():
        where = f"--field-selector spec.nodeName={name}"
        mend = (
            f"kubectl get pods -A -l app.kubernetes.io/name=weft-agent {where}, and its log, show "
            "why; pending pods are placed on other nodes"
        )
        findings.append(wrong(_HEARTBEATS, f"{name} gets no pods with shares: {why}", mend))
    known = sum(HEARTBEAT_PREFIX + name in leases for name in names)
    return findings or [
        good(_HEARTBEATS, f"{known} of {len(names)} nodes have a heartbeat, none is late")
    ]


def _silent(leases: Mapping[str, Lease | None], client: ApiClient) -> dict[str, str]:
    now, silent = client.clock.wall(), {}
    for name, lease in leases.items():
        if lease is None:
            continue  # an older agent, or none: another check reports it
        renewed = lease.spec.renew_time or "its start"
        if not lease.spec.holder_identity:
            silent[name] = (
                f"its agent has not delivered since {renewed}: it was ended, or the container "
                "runtime (NRI), or the kubelet, does not call it"
            )
        elif _age_s(lease, now) > HEARTBEAT_LATE_S + _CLOCKS_S:
            lease_name = f"{HEARTBEAT_PREFIX}{name}"
            silent[name] = f"its agent has been silent since {renewed} (Lease {lease_name})"
    return silent


def _age_s(lease: Lease, now: datetime.datetime) -> float:
    try:
        return (now - datetime.datetime.fromisoformat(lease.spec.renew_time or "")).total_seconds()
    except (ValueError, TypeError):
        return 0.0

"""Checks of a cluster by `weft doctor`, from objects read before. Reads no Secrets."""

from collections.abc import Collection

from weft.cluster.reading import node_findings as nodes
from weft.cluster.reading import pod_findings as pods
from weft.cluster.reading.admission_findings import admission
from weft.cluster.reading.claims import claim_findings
from weft.cluster.reading.finding import DoctorFinding
from weft.cluster.reading.reading import ClusterReading
from weft.kube.client import ApiClient

EXEMPT = ("kube-system", "weft-system")
"""Namespaces whose containers may see all GPUs."""


async def cluster_checks(
    client: ApiClient, read: ClusterReading, names: Collection[str], *, inside: bool = False
) -> list[DoctorFinding]:
    """Check nodes, agents and pods; `names` are Weft's schedulerNames. `inside` an agent's pod,
    which has no right to read claims and policies, checks of those are left out."""
    found = [
        nodes.agents_per_node(read),
        *await nodes.heartbeats(client, read),
        nodes.drivers(read),
        nodes.inventories(read),
        nodes.offers(read),
        nodes.runtimes(read),
        nodes.other_resources(read),
        nodes.merged_labels(read),
        *pods.holders(read, names, client.clock.wall()),
        pods.contradicting(read),
        pods.visible_devices(read, EXEMPT),
    ]
    if not inside:
        found += claim_findings(read.claims, read.pods)
        found += await admission(client)
    return found

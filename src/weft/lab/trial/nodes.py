"""The nodes of a turn, and which of them have GPUs, so that metric samples are expected from
them."""

from collections.abc import Iterable
from typing import NamedTuple

from weft.kube.client import ApiClient
from weft.kube.codec import NODES, SkippedObjects
from weft.kube.structs import KubeNode
from weft.lab.experiment.spec.cluster import Cluster
from weft.model import BadInputError
from weft.model.request import parse_quantity

_NVIDIA = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Prefixes of the resources of NVIDIA's device plugin, including `nvidia.com/gpu.shared` and
MIG."""


class TurnNodes(NamedTuple):
    """Names of the nodes that pods may run on, and of those that are Ready and have GPUs.

    A node has GPUs if its capacity has `nvidia.com/gpu`, MIG instances, or a resource that one of
    the cluster's schedulers is asked by. Labels are not considered."""

    names: frozenset[str]
    with_cards: frozenset[str] = frozenset()


async def read_nodes(client: ApiClient, cluster: Cluster) -> TurnNodes:
    """Read the cluster's nodes; `BadInputError` if `nodeSelector` matches none."""
    wanted = ",".join(f"{name}={value}" for name, value in cluster.node_selector.items())
    query = {"labelSelector": wanted} if wanted else {}
    page = NODES.decode_page(await client.call("GET", NODES.of(""), query=query), SkippedObjects())
    if not page.items:
        what = f"no node of the cluster has these labels: {wanted}" if wanted else "no nodes"
        raise BadInputError("cluster.nodeSelector", what)
    return turn_nodes(page.items, (each.request.resource for each in cluster.schedulers))


def turn_nodes(nodes: Iterable[KubeNode], resources: Iterable[str]) -> TurnNodes:
    """Return the names of these nodes; `resources` count as GPUs besides NVIDIA's."""
    asked = {name for name in resources if name}
    names, with_cards = set(), set()
    for node in nodes:
        names.add(node.metadata.name)
        if not node.ready:
            continue  # It runs none of the turn's pods, and its exporter is probably down too.
        # Allocatable drops to 0 while a device plugin is down; the cards still draw power.
        has = [*(node.status.capacity or {}).items(), *(node.status.allocatable or {}).items()]
        if any(
            (name in asked or name.startswith(_NVIDIA)) and parse_quantity(amount) > 0
            for name, amount in has
        ):
            with_cards.add(node.metadata.name)
    return TurnNodes(frozenset(names), frozenset(with_cards))

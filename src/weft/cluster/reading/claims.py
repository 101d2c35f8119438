"""Reads a cluster's ResourceSlices and ResourceClaims once, for questions about its GPUs."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from weft.cluster.reading.finding import DoctorFinding, advice, good, some
from weft.cluster.reading.objects import read_objects
from weft.cluster.rights import HOW_TO_GET
from weft.cluster.state.claims import ClaimView, is_left
from weft.cluster.state.slices import SliceView
from weft.dialects.inventory import InventoryFallback, inventory
from weft.dialects.node_gpus import InventorySource
from weft.kube.client import ApiClient
from weft.kube.codec import Resource
from weft.kube.dra import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    WATCHED,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from weft.kube.pods import Pod
from weft.kube.preflight import serves
from weft.kube.structs import KubeNode
from weft.kube.watch import Added
from weft.model import Node

_CHECK = "ResourceClaims"
_MOST_NAMED = 4


class ClaimObjects(NamedTuple):
    """API objects about claims. `unread` lists the kinds that the caller may not read."""

    slices: Sequence[ResourceSlice] = ()
    classes: Sequence[DeviceClass] = ()
    claims: Sequence[ResourceClaim] = ()
    unread: tuple[str, ...] = ()


class ReadClaims(NamedTuple):
    """Contents of a `ClaimObjects`, loaded into the scheduler's views of slices and claims."""

    slices: SliceView
    view: ClaimView
    unread: tuple[str, ...] = ()

    def source(self, node: str) -> InventorySource | None:
        """Return the node's GPUs according to its ResourceSlices; None if it has none."""
        return self.slices.cards(node).source


async def read_claims(client: ApiClient) -> ClaimObjects:
    """Read slices, classes and claims; empty if the API server does not serve them. Raises the
    client's errors."""
    if not await serves(client, WATCHED):
        return ClaimObjects()
    wanted: dict[str, tuple[Resource[Any], str]] = {each.name: (each, "") for each in WATCHED}
    read = await read_objects(client, wanted)
    return ClaimObjects(
        read.of[RESOURCE_SLICES.name],
        read.of[DEVICE_CLASSES.name],
        read.of[RESOURCE_CLAIMS.name],
        read.unread,
    )


def taken_in(
    objects: ClaimObjects, nodes: Iterable[KubeNode], rules: Sequence[InventoryFallback]
) -> ReadClaims:
    """Load the objects into the scheduler's views, and match claims with these nodes' GPUs."""
    slices, shown = SliceView(), {node.metadata.name: node for node in nodes}
    for each in objects.slices:
        slices.take(Added(each))

    @cache
    def node(name: str) -> Node | None:
        known, cards = shown.get(name), slices.cards(name)
        return inventory(known, rules=rules, slices=cards.source)[0] if known else None

    view = ClaimView(slices, node)
    for device_class in objects.classes:
        view.take_class(Added(device_class))
    for claim in objects.claims:
        view.take(Added(claim))
    return ReadClaims(slices, view, objects.unread)


NO_CLAIMS = ReadClaims(SliceView(), ClaimView())


def claim_findings(read: ReadClaims, pods: Iterable[Pod]) -> list[DoctorFinding]:
    """Return the problems of claims and slices; without problems one good finding, or none if there
    are no claims."""
    findings = []
    if read.unread:
        text = (
            f"no permission to list {', '.join(read.unread)}: GPUs that claims hold are not shown"
        )
        findings.append(advice(_CHECK, text, HOW_TO_GET))
    for (driver, pool), problem in sorted(read.slices.problems.items())[:_MOST_NAMED]:
        text = f"pool {pool} of {driver} has {problem}: its GPUs count once it is complete"
        findings.append(advice(_CHECK, text, f"see the pods of the driver {driver}"))
    for node, problems in sorted(read.slices.doubles().items())[:_MOST_NAMED]:
        text = f"on {node} {'; '.join(problems)}"
        findings.append(advice(_CHECK, text, "see the slices of that driver: pools share a GPU"))
    view = read.view
    wrong = {uid: text for uid, text in view.problems.items() if uid in view.claims}
    for uid in sorted(wrong, key=view.name_of)[:_MOST_NAMED]:
        findings.append(_finding(view, uid, wrong[uid]))
    if len(wrong) > _MOST_NAMED:
        text = f"{len(wrong) - _MOST_NAMED} more claims have problems"
        findings.append(advice(_CHECK, text, "kubectl get resourceclaims -A"))
    there = {pod.metadata.uid for pod in pods}
    left = [claim for claim in view.claims.values() if is_left(claim, there.__contains__)]
    if left:
        names = [f"{claim.metadata.namespace}/{claim.metadata.name}" for claim in left]
        text = f"{some(names)}: still allocated for pods that are gone; their GPUs stay reserved"
        findings.append(advice(_CHECK, text, "read kube-controller-manager's log, or delete them"))
    if not findings and view.claims:
        findings.append(good(_CHECK, f"{len(view.claims)} are allocated, all on known devices"))
    return findings


def _finding(view: ClaimView, uid: str, problem: str) -> DoctorFinding:
    assumed = next((why for holder, why in view.assumed.items() if holder.startswith(uid)), "")
    text = f"{view.name_of(uid)}: {problem}"
    if assumed or view.is_anywhere(uid):
        text += "; Weft reserves the most that the claim may hold"
    return advice(_CHECK, text, "kubectl get resourceslices; see the pods of its driver")

"""Filters nodes by a pod's volumes: kube-scheduler's VolumeBinding (of claims that wait for their
first consumer), VolumeRestrictions and NodeVolumeLimits filters, for all nodes at once.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.constraints.answer import PodAnswer
from weft.core.constraints.volumes import ServingVolumes, by_size, reaches
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import (
    Code,
    FreeVolume,
    Node,
    PodRequest,
    Requirement,
    StorageCapacity,
    StorageRules,
    Term,
    UnboundClaim,
)
from weft.model.storage import Attached, mounted_by


class Served(NamedTuple):
    """Masks of nodes where a claim can be served, [N] each: by a free volume; by provisioning one,
    if capacity is ignored; and by provisioning one with enough capacity left."""

    by_volume: Bools
    by_making: Bools
    enough: Bools


def storage_answers(
    volumes: ServingVolumes, table: LedgerTable, rules: StorageRules, pod: PodRequest
) -> list[PodAnswer]:
    """Return the answers about everything that the pod's `rules` say it mounts."""
    if rules.waits_for:
        return [_all(table, Code.CLAIM_WAITS, rules.waits_for)]
    found = [
        _all(table, Code.CLAIM_TAKEN, _taken_words(claim))
        for claim in rules.mounts.lone_claims
        if volumes.in_use(claim)
    ]
    if rules.mounts.disks:
        found.append(_disks(volumes, table, rules))
    told = tuple(pod.claims or ())
    for index, served in enumerate(served_of(volumes, table, rules.claims)):
        found += _claim(volumes, table, rules.claims[index], told[index], served)
    mounted = mounted_by(rules, pod.namespace, told)
    return found + _limits(volumes, table, mounted.attached if mounted else ())


def _all(table: LedgerTable, code: Code, words: str) -> PodAnswer:
    return PodAnswer(code, np.ones(table.count, dtype=np.bool_), lambda row: words)


def _taken_words(claim: str) -> str:
    name = claim.partition("/")[2]
    return f"PersistentVolumeClaim {name} is ReadWriteOncePod and another pod uses it"


def _disks(volumes: ServingVolumes, table: LedgerTable, rules: StorageRules) -> PodAnswer:
    by_row = {
        row: disk
        for mine in rules.mounts.disks
        for node, disk in volumes.conflicts(mine)
        if (row := table.row_of.get(node)) is not None
    }
    refuses = np.zeros(table.count, dtype=np.bool_)
    refuses[list(by_row)] = True
    return PodAnswer(Code.DISK_TAKEN, refuses, lambda row: f"a pod there uses {by_row[row]}")


# --- claims that wait for their first consumer ----------------------------------------------------


def served_of(
    volumes: ServingVolumes, table: LedgerTable, claims: Sequence[UnboundClaim]
) -> list[Served]:
    """Return where each of a pod's claims can be served, in their order. The smaller claim is
    served first, by the smallest volume that the node can reach. A volume serves one claim, but may
    serve different claims on different nodes. Claims without a common candidate volume are handled
    separately.
    """
    asked = {index: _asked(volumes, claims[index]) for index in range(len(claims))}
    found: dict[int, Served] = {}
    given: list[tuple[set[str], list[tuple[FreeVolume, Bools]]]] = []
    for index in by_size(claims):
        claim, candidates = claims[index], asked[index]
        names = {volume.name for volume in candidates}
        before = [each for others, each in given if not names.isdisjoint(others)]
        others = (asked[other] for other in asked if other != index)
        if any(volume.name in names for each in others for volume in each):
            each_given = _given(table, candidates, [pair for each in before for pair in each])
            given.append((names, each_given))
            by_volume = np.zeros(table.count, dtype=np.bool_)
            for _, rows in each_given:
                by_volume |= rows
        else:
            by_volume = _any(table, [volume.terms for volume in candidates])
        found[index] = Served(by_volume, *_making(volumes, table, claim))
    return [found[index] for index in range(len(claims))]


def _asked(volumes: ServingVolumes, claim: UnboundClaim) -> list[FreeVolume]:
    return [] if claim.selected_node is not None else volumes.candidates(claim)


def _given(
    table: LedgerTable,
    candidates: Sequence[FreeVolume],
    before: Sequence[tuple[FreeVolume, Bools]],
) -> list[tuple[FreeVolume, Bools]]:
    """Return each volume that serves the claim on some node, with a mask of those nodes; nodes
    where the volume serves an earlier claim of the pod (`before`) are left out."""
    left, found = np.ones(table.count, dtype=np.bool_), []
    for volume in candidates:
        rows = left & _any(table, [volume.terms])
        for other, there in before:
            if other.name == volume.name:
                rows &= ~there
        if rows.any():
            left &= ~rows
            found.append((volume, rows))
        if not left.any():
            break
    return found


def _making(
    volumes: ServingVolumes, table: LedgerTable, claim: UnboundClaim
) -> tuple[Bools, Bools]:
    """Return a mask of the nodes where a volume may be provisioned for the claim, and one of the
    nodes with enough capacity left (all nodes if its class does not report capacity)."""
    nothing, everything = np.zeros(table.count, np.bool_), np.ones(table.count, np.bool_)
    how = volumes.classes.get(claim.storage_class)
    if how is None or not how.provisioner:
        return nothing, everything
    may = _any(table, how.topologies) if how.topologies else everything
    if claim.selected_node is not None:
        row = table.row_of.get(claim.selected_node)
        only = nothing.copy()
        if row is not None:
            only[row] = may[row]
        may = only
    if not how.counts_capacity:
        return may, everything
    large = [
        each for each in volumes.capacities_of(how.name) if each.size_bytes >= claim.size_bytes
    ]
    return may, _of_topologies(table, large)


def _of_topologies(table: LedgerTable, capacities: Sequence[StorageCapacity]) -> Bools:
    told = [each.topology for each in capacities if each.topology is not None]
    if any(not topology for topology in told):
        return np.ones(table.count, dtype=np.bool_)
    return _any(table, [Term(topology) for topology in told])


def _any(table: LedgerTable, terms: Iterable[Term | Sequence[Term] | None]) -> Bools:
    """Return a mask of the nodes that one of these terms matches; None matches all nodes.

    With thousands of volumes, each of one node or zone, terms that require values of a single label
    are evaluated together.
    """
    values: dict[str, dict[str, None]] = {}
    rest: dict[Term, None] = {}
    for each in terms:
        if each is None:
            return np.ones(table.count, dtype=np.bool_)
        for term in (each,) if isinstance(each, Term) else each:
            only = term.labels[0] if len(term.labels) == 1 and not term.fields else None
            if only is not None and only.operator == "In":
                values.setdefault(only.key, {}).update(dict.fromkeys(only.values))
            else:
                rest[term] = None
    together = [Term((Requirement(key, "In", tuple(said)),)) for key, said in values.items()]
    return table.labels.any_of([*together, *rest])


def _claim(
    volumes: ServingVolumes, table: LedgerTable, claim: UnboundClaim, name: str, served: Served
) -> list[PodAnswer]:
    """Return the nodes that refuse a claim, by kube-scheduler's two reasons: no volume matches or
    can be provisioned, or too little capacity is left."""
    words = _ClaimWords(volumes, table, claim, name)
    nowhere = ~served.by_volume & ~served.by_making
    full = ~served.by_volume & served.by_making & ~served.enough
    answers = [PodAnswer(Code.NO_VOLUME, nowhere, words.no_volume)] if nowhere.any() else []
    if full.any():
        answers.append(PodAnswer(Code.STORAGE_CAPACITY, full, words.capacity))
    return answers


class _ClaimWords:
    """Says in numbers why a claim cannot be served on a node."""

    def __init__(
        self, volumes: ServingVolumes, table: LedgerTable, claim: UnboundClaim, name: str
    ) -> None:
        self._volumes, self._table, self._claim = volumes, table, claim
        self._name = f"PersistentVolumeClaim {name}"

    def no_volume(self, row: int) -> str:
        """Say why no volume exists on the node, and none can be provisioned."""
        claim, node = self._claim, self._table.nodes[row]
        if claim.selected_node is not None and claim.selected_node != node.name:
            return f"{self._name} gets its volume on node {claim.selected_node}"
        asks = f"{self._name} asks for {size_in_words(claim.size_bytes)}"
        asks += f" of class {claim.storage_class}"
        return f"{asks}: {self._why_no_volume(node)}, and {self._why_none_is_made()}"

    def _why_no_volume(self, node: Node) -> str:
        claim = self._claim
        free = self._volumes.of_class(claim.storage_class)
        right = self._volumes.candidates(claim)
        if claim.reserved and right and right[0].name == claim.reserved:
            return f"its volume {claim.reserved} does not reach the node"
        if not free:
            return "no volume is free"
        large = [each for each in free if each.size_bytes >= claim.size_bytes]
        if not large:
            largest = max(each.size_bytes for each in free)
            return f"the largest of {len(free):,} free volumes has {size_in_words(largest)}"
        if not right:
            return (
                f"none of {len(large):,} free volumes of that size has the modes and labels asked"
            )
        if any(reaches(each.terms, node.name, node.labels) for each in right):
            return "the free volumes that reach the node are too few for all claims of the pod"
        return f"none of {len(right):,} suitable free volumes reaches the node"

    def _why_none_is_made(self) -> str:
        how = self._volumes.classes.get(self._claim.storage_class)
        if how is None or not how.provisioner:
            return "the class provisions none"
        return f"{how.provisioner} provisions none on this node (allowedTopologies)"

    def capacity(self, row: int) -> str:
        """Say that a volume would be provisioned there, but too little capacity is left."""
        claim, node = self._claim, self._table.nodes[row]
        left = [
            each.size_bytes
            for each in self._volumes.capacities_of(claim.storage_class)
            if each.topology is not None and all(r.matches(node.labels) for r in each.topology)
        ]
        has = f"{size_in_words(max(left))} at most" if left else "none by its driver's report"
        asks = f"{self._name} asks for {size_in_words(claim.size_bytes)}"
        return f"{asks} of class {claim.storage_class}; capacity left there: {has}"


_UNITS = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))


def size_in_words(size_bytes: int) -> str:
    """Format a volume's size as in a manifest: `10Gi`, `1.5Gi`; rounded to two decimals."""
    for unit, per in _UNITS:
        if size_bytes >= per:
            return f"{size_bytes / per:.2f}".rstrip("0").rstrip(".") + unit
    return f"{size_bytes} bytes"


def exact_size(size_bytes: int) -> str:
    """Format a size exactly, without rounding, so that it can be written into a claim."""
    for unit, per in _UNITS:
        if size_bytes % per == 0:
            return f"{size_bytes // per}{unit}"
    return f"{size_bytes} bytes"


# --- limits of attached volumes -------------------------------------------------------------------


def _limits(
    volumes: ServingVolumes, table: LedgerTable, new: Sequence[Attached]
) -> list[PodAnswer]:
    """Return the nodes that refuse volumes by attach limits: a node's CSINode states how many
    volumes of a driver it can have; a volume that a pod on the node already uses does not count
    again."""
    found = []
    for driver in dict.fromkeys(driver for driver, _ in new):
        limits = volumes.attached.limits(table, driver)
        if limits is None:
            continue
        mine = [volume for volume in dict.fromkeys(new) if volume[0] == driver]
        more = np.full(table.count, len(mine), dtype=np.int64)
        for volume in mine:
            for node in volumes.attached.with_volume(volume):
                if (row := table.row_of.get(node)) is not None:
                    more[row] -= 1
        used = volumes.attached.used(table, driver)
        refuses = (more > 0) & (used + more > limits)
        if refuses.any():
            found.append(PodAnswer(Code.VOLUME_LIMIT, refuses, _limit_words(driver, used, limits)))
    return found


def _limit_words(driver: str, used: Ints, limits: Ints) -> Callable[[int], str]:
    def words(row: int) -> str:
        return (
            f"node has {int(used[row]):,} volumes of {driver} attached, "
            f"of {int(limits[row]):,} that it can have"
        )

    return words

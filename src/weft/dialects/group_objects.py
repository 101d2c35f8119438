"""PodGroups: the objects in which three systems say how many pods of a group must start together.

    kubernetes         scheduling.k8s.io v1beta1 (1.37), v1alpha2 (1.36)
    scheduler-plugins  scheduling.x-k8s.io v1alpha1
    volcano            scheduling.volcano.sh v1beta1

One struct has the fields of all three, which do not overlap. Fields with numbers are decoded as any
type: a group that cannot be read causes a warning on its pods, which stay pending.
"""

from typing import Any, NamedTuple

import msgspec

from weft.dialects.groups import KUBERNETES, SCHEDULER_PLUGINS, VOLCANO, least_of
from weft.dialects.system import timestamp_ns
from weft.model import BadInputError
from weft.model.ceilings import MOST_LETTERS
from weft.model.manifest import Api, Condition, ObjectMeta

_MOST_MEMBERS, _MOST_TASKS, _MOST_SHOWN = 2**31 - 1, 1_000, 40
_NO_COMPOSITE = "and Weft does not place several PodGroups together"
HARD = "hard"
"""Value of Volcano's networkTopology.mode that requires all pods of the group below one
HyperNode."""


AS_ONE = "PodGroup"
"""Kubernetes 1.36's disruptionMode with which all pods of a group are preempted together."""


class GangPolicy(Api, frozen=True, gc=False):
    """The field spec.schedulingPolicy.gang of a Kubernetes PodGroup."""

    min_count: Any = 0


class PodGroupPolicy(Api, frozen=True, gc=False):
    """The field spec.schedulingPolicy of a Kubernetes PodGroup: either `basic` or `gang` is set."""

    basic: dict[str, Any] | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Api, frozen=True, gc=False):
    """One entry of the field spec.schedulingConstraints.topology of a Kubernetes PodGroup."""

    key: str = ""


class GroupConstraints(Api, frozen=True, gc=False):
    """spec.schedulingConstraints."""

    topology: list[TopologyConstraint] | None = None


class PodGroupSpec(Api, frozen=True, gc=False):
    """spec of a PodGroup, of whichever system. `disruption_mode` is a word in Kubernetes 1.36
    (Pod, PodGroup), an object with one key since (single, all)."""

    scheduling_policy: PodGroupPolicy | None = None
    scheduling_constraints: GroupConstraints | None = None
    disruption_mode: Any = None
    parent_composite_pod_group_name: str | None = None
    min_member: Any = None
    min_task_member: dict[str, Any] | None = None
    network_topology: dict[str, Any] | None = None
    sub_group_policy: list[Any] | None = None


class PodGroupStatus(Api, frozen=True, gc=False):
    """status of a PodGroup, as far as Weft writes it: `conditions` for Kubernetes' own PodGroups,
    the other fields for those of scheduler-plugins."""

    conditions: list[Condition] | None = None
    phase: Any = ""
    running: Any = 0
    succeeded: Any = 0
    failed: Any = 0
    occupied_by: Any = ""
    schedule_start_time: Any = None


class WrittenFields(Api, frozen=True, gc=False):
    """fieldsV1 of one entry of managedFields: only the fields of the status."""

    status: dict[str, Any] | None = msgspec.field(default=None, name="f:status")


class ManagedFields(Api, frozen=True, gc=False):
    """One entry of metadata.managedFields: the fields that a client wrote."""

    manager: str = ""
    fields_v1: WrittenFields = WrittenFields()


class PodGroupMeta(ObjectMeta, frozen=True, gc=False):
    """metadata of a PodGroup."""

    managed_fields: list[ManagedFields] | None = None


class KubePodGroup(Api, frozen=True, gc=False):
    """A PodGroup of Kubernetes, of scheduler-plugins, or of Volcano."""

    metadata: PodGroupMeta = PodGroupMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class GroupPolicy(NamedTuple):
    """A PodGroup's rules for its pods; fields are as in `Gang`. `is_gang`: its pods depend on each
    other in some way; else each is scheduled alone. `unhonoured`: a demand that Weft does not
    support, so that the pods stay pending; "" for none."""

    is_gang: bool = True
    least: int = 1
    created_ns: int = 0
    topology_key: str = ""
    least_by_task: tuple[tuple[str, int], ...] = ()
    ends_as_one: bool = False
    warnings: tuple[str, ...] = ()
    unhonoured: str = ""


def policy_of(system: str, group: KubePodGroup) -> GroupPolicy:
    """Read a PodGroup of this system. Never raises: each part that cannot be read becomes a warning
    of the policy."""
    warnings: list[str] = []
    try:
        created_ns = timestamp_ns(group.metadata.creation_timestamp)
    except BadInputError:
        created_ns = 0
    read = _kubernetes if system == KUBERNETES else _by_min_member
    policy = read(group.spec, warnings)
    where = f"PodGroup {group.metadata.namespace}/{group.metadata.name}"
    told = tuple(f"{where}: {each}" for each in warnings)
    unhonoured = f"{where}: {policy.unhonoured}" if policy.unhonoured else ""
    return policy._replace(created_ns=created_ns, warnings=told, unhonoured=unhonoured)


def _kubernetes(spec: PodGroupSpec, warnings: list[str]) -> GroupPolicy:
    policy = spec.scheduling_policy or PodGroupPolicy()
    least = 1
    if policy.gang is not None:
        least = _size("spec.schedulingPolicy.gang.minCount", policy.gang.min_count, warnings)
    elif policy.basic is None:
        warnings.append("spec.schedulingPolicy is neither basic nor gang, and is read as basic")
    keys = _topology_keys(spec, warnings)
    unhonoured, parent = "", spec.parent_composite_pod_group_name
    if parent:
        unhonoured = f"it is part of CompositePodGroup {parent[:_MOST_SHOWN]}, {_NO_COMPOSITE}"
    as_one = ends_as_one(spec.disruption_mode, warnings)
    key = keys[0] if keys else ""
    return GroupPolicy(
        policy.gang is not None or bool(key) or as_one,
        least,
        topology_key=key,
        ends_as_one=as_one,
        unhonoured=unhonoured,
    )


def _topology_keys(spec: PodGroupSpec, warnings: list[str]) -> list[str]:
    constraints = spec.scheduling_constraints or GroupConstraints()
    keys = [each.key for each in constraints.topology or () if each.key]
    if len(keys) > 1:
        listed = ", ".join(key[:_MOST_SHOWN] for key in keys[:3])
        warnings.append(
            f"spec.schedulingConstraints.topology has several keys ({listed}): the "
            "first counts; keep one"
        )
    return keys


def ends_as_one(mode: Any, warnings: list[str]) -> bool:
    """Return True if all pods of the group are preempted together; an unknown mode adds a
    warning."""
    if isinstance(mode, dict) and len(mode) == 1:
        mode = next(iter(mode))
    if mode in (AS_ONE, "all"):
        return True
    if mode not in (None, "Pod", "single"):
        shown = repr(mode)[:_MOST_SHOWN]
        warnings.append(f"spec.disruptionMode is {shown}, which Weft does not know: read as single")
    return False


def _by_min_member(spec: PodGroupSpec, warnings: list[str]) -> GroupPolicy:
    """Read a PodGroup of scheduler-plugins or Volcano; minMember is 1 if left out."""
    least = 1
    if spec.min_member is not None:
        least = _size("spec.minMember", spec.min_member, warnings)
    tasks = dict(sorted((spec.min_task_member or {}).items())[:_MOST_TASKS])
    by_task = tuple(
        (task[:MOST_LETTERS], _size(f"spec.minTaskMember[{task[:_MOST_SHOWN]}]", size, warnings))
        for task, size in tasks.items()
        if size != 0
    )
    if any(not size for _, size in by_task):
        least = 0
    hard = (spec.network_topology or {}).get("mode", "") == HARD
    unhonoured = "spec.networkTopology with mode hard is not honoured by Weft" if hard else ""
    if spec.sub_group_policy:
        warnings.append("spec.subGroupPolicy is not honoured: its pods are one group")
    return GroupPolicy(True, least, least_by_task=by_task, unhonoured=unhonoured)


def _size(where: str, size: Any, warnings: list[str]) -> int:
    """Return the number of pods in `size`; if that is not a number of pods, 0 with a warning, and
    the group's pods wait."""
    if not isinstance(size, int) or isinstance(size, bool) or size > _MOST_MEMBERS:
        text = f"{where} is {repr(size)[:_MOST_SHOWN]}, no number of pods"
        warnings.append(f"{text}: its pods wait")
        return 0
    return least_of(where, size, warnings)


OBJECT_SYSTEMS = (KUBERNETES, SCHEDULER_PLUGINS, VOLCANO)
"""Systems whose groups are API objects."""

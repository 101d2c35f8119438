"""Rows of `weft parse`, one per pod or workload: as JSON, as a table, and their total."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from weft.cli.output import table_with
from weft.dialects.dialect import PodAnnotations
from weft.dialects.foreign import ForeignRequest
from weft.dialects.groups import GroupWords
from weft.model import (
    Constraints,
    ContainerRequest,
    Gang,
    GpuRequest,
    InterPodRules,
    PodRequest,
    Preferences,
)
from weft.model.request import GpuMemoryRequest

if TYPE_CHECKING:
    from weft.cli.text_table import TextTable
    from weft.kube.pods import Pod


class NotPlaced(msgspec.Struct, frozen=True):
    """A request that Weft does not place: its containers (empty: the whole pod), and the reason."""

    name: str
    containers: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, request: ForeignRequest) -> "NotPlaced":
        """Convert a pod's request that Weft does not place."""
        return cls(request.name, request.containers, request.text)


class Written(msgspec.Struct, frozen=True):
    """The annotations and labels that Weft writes with a pod's Binding."""

    annotations: dict[str, str]
    labels: dict[str, str]


class Group(msgspec.Struct, frozen=True):
    """The group with which the pod is placed.

    `least` is the minimum number of pods; None if only the group's object in the cluster has it.
    `waits` is how long the group's own scheduler would hold places for it, "" if it does not
    say."""

    system: str
    namespace: str
    name: str
    least: int | None
    topology_key: str
    least_by_task: dict[str, int]
    ends_as_one: bool
    waits: str

    @classmethod
    def of(cls, gang: Gang | UnsetType, words: GroupWords) -> "Group | None":
        """Convert the gang and its other fields; None for a pod without a group."""
        if gang is UNSET:
            return None
        return cls(
            gang.system,
            gang.namespace,
            gang.name,
            gang.least or None,
            gang.topology_key,
            dict(gang.least_by_task),
            gang.ends_as_one,
            words.waits,
        )

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.name} ({self.system})"
        if self.least is None:
            return f"with its group {name}, whose size this file does not say"
        parts = [f"with its group {name}: {self.least:,} at once"]
        parts += [f"{least:,} of them {task}" for task, least in self.least_by_task.items()]
        parts += [f"in one {self.topology_key}"] if self.topology_key else []
        parts += ["preempted together"] if self.ends_as_one else []
        parts += (
            [f"the group's own waiting time ({self.waits}) reserves no places"]
            if self.waits
            else []
        )
        return ", ".join(parts)


class Row(msgspec.Struct, frozen=True):
    """One pod, or the pods of one workload, in the output.

    `namespace` is None if the manifest names none. `replicas` run at once, None for a DaemonSet.
    `needs_env` are the variables that each container needs to use its GPUs; the node's agent or
    plugin sets them. `constraints` are rules on where the pod may run besides free capacity,
    `preferences` those on where it should preferably run; fields in `not_honoured` keep it pending
    for ever. `group` is the group with which it is placed."""

    file: str
    kind: str
    namespace: str | None
    name: str
    replicas: int | None
    dialect: str | None
    containers: list[dict[str, Any]]
    shared_by_containers: bool
    constraints: list[str]
    preferences: list[str]
    not_honoured: list[str]
    not_placed: list[NotPlaced]
    warnings: list[str]
    writes: Written
    needs_env: dict[str, dict[str, str]]
    group: Group | None = None

    @property
    def full_name(self) -> str:
        """The kind and name, such as `Deployment/web`, after the namespace if there is one."""
        return "/".join(filter(None, (self.namespace, self.kind, self.name)))


class PodReading(msgspec.Struct, frozen=True):
    """A row, and the GPU requests of each of its pods."""

    row: Row
    gpu_requests: tuple[GpuRequest, ...]


def reading_of(
    row_of: dict[str, Any],
    request: PodRequest,
    foreign: Sequence[ForeignRequest],
    preview: PodAnnotations,
    not_honoured: Sequence[str] = (),
    volumes: Sequence[str] = (),
) -> PodReading:
    """Build a reading; `row_of` are the fields that identify the pods.

    `volumes` are lines of `volumes_in_words`."""
    row = Row(
        **row_of,
        dialect=None if request.dialect == "none" else request.dialect,
        containers=[_container(container) for container in request.containers],
        shared_by_containers=request.shared_by_containers,
        constraints=[*constraints_in_words(request.shape.constraints), *volumes],
        preferences=preferences_in_words(request.preferences or Preferences()),
        not_honoured=list(not_honoured),
        not_placed=[NotPlaced.of(each) for each in foreign],
        # requests that are not placed are reported once, as errors
        warnings=[each for each in request.warnings if each not in {f.text for f in foreign}],
        writes=Written(preview.annotations, preview.labels),
        needs_env=preview.env,
    )
    return PodReading(row, request.shape.gpu_requests)


def constraints_in_words(constraints: Constraints) -> list[str]:
    """Describe the rules that a node, and the pods near it, must meet for the pod to be placed
    there."""
    lines = [f"on nodes with {key}={value}" for key, value in constraints.selector]
    if constraints.affinity is not None:
        terms = [", ".join(map(str, (*term.labels, *term.fields))) for term in constraints.affinity]
        lines.append(f"on nodes with {' or '.join(filter(None, terms)) or 'no label: on no node'}")
    rules = constraints.pods or InterPodRules()
    lines += [f"near {term.pods}, by {term.topology_key}" for term in rules.affinity]
    lines += [f"away from {term.pods}, by {term.topology_key}" for term in rules.anti_affinity]
    lines += [
        f"spread by {rule.topology_key}: at most {rule.max_skew} more than in the domain with the "
        f"fewest, of {rule.pods}"
        for rule in rules.spread
    ]
    if constraints.ports:
        ports = ", ".join(f"{port.port}/{port.protocol}" for port in constraints.ports)
        lines.append(f"on nodes where no pod has host port {ports}")
    return lines


def volumes_in_words(pod: "Pod", claim_templates: Sequence[Any] = ()) -> list[str]:
    """Describe the requirements of the pod's volumes on its node.

    Claims are known only in the cluster, except those created for the pod itself, also by a
    StatefulSet's `claim_templates`."""
    from weft.cluster.state.storage_objects import disks_of
    from weft.cluster.state.volume_rules import mounted_claims

    own = {f"{pod.metadata.name}-{volume.name}": volume for volume in pod.spec.volumes or ()}
    lines = []
    for mounted in mounted_claims(pod):
        if mounted.is_own:
            volume = own[mounted.claim]
            lines.append(_own(volume.name, _within(volume.ephemeral, "volumeClaimTemplate")))
        else:
            lines.append(
                f"where PersistentVolumeClaim {mounted.claim} has a volume or one can be "
                "provisioned"
            )
    lines += [_own(_within(each, "metadata", "name"), each) for each in claim_templates]
    for disk in disks_of(pod):
        does = "writes to" if disk.read_only else "has"
        lines.append(f"on nodes where no pod {does} {disk}")
    return lines


def _own(name: Any, template: Any) -> str:
    """Describe a volume created for the pod: its name, size and class, as far as its template has
    them."""
    size = _within(template, "spec", "resources", "requests", "storage") or "of any size"
    of_class = _within(template, "spec", "storageClassName")
    of = f"class {of_class}" if of_class else "the default class"
    return f"where its own volume exists or can be provisioned: {name}, {size} of {of}"


def _within(value: Any, *path: str) -> Any:
    """Return the value at this path in nested mappings; None if a step is missing."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def preferences_in_words(preferences: Preferences) -> list[str]:
    """Describe where the pod should preferably run; image locality is left out, as nearly every pod
    has it."""
    lines = []
    for wish in preferences.nodes:
        rules = ", ".join(map(str, (*wish.term.labels, *wish.term.fields)))
        where = f"on nodes with {rules}" if rules else "on no node, as the term names no label"
        lines.append(f"{where} (weight {wish.weight})")
    for near in preferences.pods:
        where = "near" if near.weight > 0 else "away from"
        by = f"by {near.term.topology_key} (weight {abs(near.weight)})"
        lines.append(f"{where} {near.term.pods}, {by}")
    if preferences.by_default:  # not in the manifest
        return lines
    return lines + [f"spread by {rule.topology_key}, of {rule.pods}" for rule in preferences.spread]


def _container(container: ContainerRequest) -> dict[str, Any]:
    asked = container.asked
    memory = asked.memory if asked else GpuMemoryRequest()
    return {
        "name": container.name,
        "gpus": asked.count if asked else 0,
        "memory_mib": memory.value if memory.kind in ("mib", "none") else None,
        "memory": {"kind": memory.kind, "value": memory.value},
        "gpu_milli": asked.milli if asked else 0,
    }


def table_of(rows: Sequence[Row]) -> "TextTable":
    """Build a table with one line per container."""
    headers = "POD|>REPLICAS|DIALECT|CONTAINER|>GPUS|MEMORY|>CORES"
    named = any(row.namespace for row in rows)
    table = table_with(f"NAMESPACE|{headers}" if named else headers)
    for row in rows:
        replicas = "1 a node" if row.replicas is None else str(row.replicas)
        dialect = row.dialect or ("not placed" if row.not_placed else "none")
        for i, container in enumerate(row.containers):
            head = (*([row.namespace or "-"] * named), f"{row.kind}/{row.name}", replicas, dialect)
            cells = _cells(container, row.not_placed)
            table.add_row(*([""] * len(head) if i else head), *cells)
    return table


def _cells(container: dict[str, Any], not_placed: Sequence[NotPlaced]) -> tuple[str, ...]:
    from weft.core.explain.amounts import memory_in_words

    memory, gpus = GpuMemoryRequest(**container["memory"]), container["gpus"]
    if not gpus:
        name = container["name"]
        # A request of the pod itself (annotation, ResourceClaim) counts for each container.
        asked = [each.name for each in not_placed if not each.containers or name in each.containers]
        return (name, "?", ", ".join(asked), "-") if asked else (name, "0", "-", "-")
    milli = container["gpu_milli"]
    cores = f"{milli / 10:g} %" if milli else "-"
    return container["name"], str(gpus), memory_in_words(memory), cores


def written_lines(row: Row) -> list[str]:
    """Describe where the pods may be placed, what Weft writes for them, and what containers
    need."""
    lines = [f"placed {row.group}"] if row.group is not None else []
    lines += [f"placed only {line}" for line in row.constraints]
    lines += [f"placed preferably {line}" for line in row.preferences]
    for kind, values in (("annotation", row.writes.annotations), ("label", row.writes.labels)):
        lines += [f"writes {kind} {key}={value}" for key, value in values.items()]
    for container, env in row.needs_env.items():
        lines += [f"needs {key}={value} in {container}" for key, value in env.items()]
    return [f"{row.full_name}: {line}" for line in lines]


NEEDS_NOTE = (
    "weft agent sets the variables that a container needs; without it a device plugin has to"
)


def total_line(readings: Sequence[PodReading]) -> str:
    """Return a line with the number of pods that run at once, and the GPUs that they request in
    total."""
    placed = [r for r in readings if r.row.replicas is not None]
    a_node = [r for r in readings if r.row.replicas is None]
    pods = sum(r.row.replicas or 0 for r in placed)
    text = f"total: {pods:,} pod{'s' * (pods != 1)}, {_gpus_in_words(placed)}"
    if a_node:
        text += f"; on each node of a DaemonSet: {_gpus_in_words(a_node)}"
    left = sum(r.row.replicas or 1 for r in readings if r.row.not_placed)
    return text + (f"; {left:,} not placed by Weft" if left else "")


def _gpus_in_words(readings: Sequence[PodReading]) -> str:
    whole = shares = mib = unknown = 0
    for reading in readings:
        replicas = 1 if reading.row.replicas is None else reading.row.replicas
        for ask in reading.gpu_requests:
            gpus = ask.count * replicas
            whole += gpus if ask.whole else 0
            shares += 0 if ask.whole else gpus
            by_mib = ask.memory.kind == "mib" and not ask.whole
            mib += (replicas if ask.split else gpus) * ask.memory.value if by_mib else 0
            unknown += gpus if not ask.whole and ask.memory.kind not in ("mib", "none") else 0
    parts = [f"{whole:,} whole GPU{'s' * (whole != 1)}"] if whole else []
    if shares:
        size = f"{mib:,} MiB" if mib else ""
        size += (" and " if mib and unknown else "") + (
            f"{unknown:,} sized by the card" if unknown else ""
        )
        parts.append(
            f"{shares:,} share{'s' * (shares != 1)} of a GPU" + (f" ({size})" * bool(size))
        )
    return ", ".join(parts) or "no GPU"

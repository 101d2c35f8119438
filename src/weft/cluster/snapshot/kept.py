"""Reduces objects to what Weft reads, so that a snapshot contains no secrets.

Left out: values of environment variables, arguments, messages, all annotations except those of GPU
scheduling systems, and `weft.dev/delivery`, which holds environment variables. Names of images are
hashed, and nodes keep only images that a pod uses."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

from msgspec.structs import replace

from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.state.pod_reader import image_name, images_of
from weft.cluster.state.resizes import as_set_aside
from weft.cluster.state.slices import is_read
from weft.cluster.state.storage_objects import BIND_COMPLETED, SELECTED_NODE, class_name
from weft.dialects.catalog import ALL, ASKING_LABELS
from weft.dialects.foreign import ANNOTATIONS
from weft.dialects.gpushare import UNHEALTHY_NAMESPACE, UNHEALTHY_PREFIX
from weft.dialects.group_objects import (
    AS_ONE,
    HARD,
    GangPolicy,
    KubePodGroup,
    PodGroupPolicy,
    ends_as_one,
)
from weft.dialects.groups import READ_ANNOTATIONS
from weft.dialects.kai import RESERVED_CARD
from weft.dialects.koordinator import DeviceSpec, Koordinator, KoordinatorDevice
from weft.dialects.queues import READ_ANNOTATIONS as QUEUE_ANNOTATIONS
from weft.kube.dra import DeviceTaint, ResourceClaim, ResourceSlice
from weft.kube.oom_ends import for_want_of_memory
from weft.kube.pods import (
    ContainerState,
    ContainerStatus,
    ImageSource,
    MountedDisk,
    OwnedMeta,
    Pod,
    PodContainer,
    ScheduledSpec,
    ScheduledStatus,
    Terminated,
    TimedCondition,
    Volume,
)
from weft.kube.structs import (
    ClaimRef,
    ConfigMap,
    CsiSource,
    KubeNode,
    KubeNodeStatus,
    OldDisk,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeSpec,
)
from weft.model.annotations import DELIVERY, RESOURCES
from weft.model.declared_features import NEEDED
from weft.model.manifest import EnvVar, NodeImage, ObjectMeta

HARMLESS_ENV = ("", "none", "void")
"""Values of the variables in `_GPU_ENV` that give a container no GPU; a snapshot keeps them."""
_GPU_ENV = ("NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD")
"""The environment variables that a snapshot has. Other values than those in `HARMLESS_ENV` are left
out, so that it shows only that the container sets the variable."""
_HIDDEN = re.compile(r"image-[0-9a-z]+:hashed")
_HIDDEN_DISK = re.compile(r"[0-9a-f]{16}:hashed")
_OLD_DISKS = ("gce_persistent_disk", "aws_elastic_block_store", "azure_disk", "cinder")
KEPT_OF_CLAIMS = (SELECTED_NODE, BIND_COMPLETED)
"""Annotations of PersistentVolumeClaims that a snapshot has."""
_OUT_OF_MEMORY = "CUDA out of memory"
_NAMES = {
    *(name for s in ALL for name in (*s.resources, *s.written, *s.kept_marks, *s.written_on_nodes)),
    *ASKING_LABELS,
    *ANNOTATIONS,
    RESERVED_CARD,
}
DOMAINS = frozenset({RESOURCES.rstrip("/"), *(n.partition("/")[0] for n in _NAMES if "/" in n)})
"""Domains (before the slash) of GPU scheduling systems' annotations, labels and resources."""
BARE = tuple(sorted({name.rstrip("*") for name in _NAMES if "/" not in name}))
"""Names of GPU scheduling systems' annotations, labels and resources without a domain, or prefixes
of such names."""

M = TypeVar("M", bound=ObjectMeta)
D = TypeVar("D", MountedDisk, OldDisk)
V = TypeVar("V")


def is_systems_own(key: str) -> bool:
    """Return True if an annotation, label or resource is defined by a GPU scheduling system."""
    domain, slash, _ = key.partition("/")
    if not slash:
        return key.startswith(BARE)
    return domain in DOMAINS or any(domain.endswith(f".{known}") for known in DOMAINS)


def kept(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot reduced to what a file may contain; reducing twice changes nothing."""
    maps = (config_map for config_map in snapshot.config_maps if _names_broken_gpus(config_map))
    more: dict[str, Any] = {
        field: tuple(replace(each, metadata=_meta(each.metadata)) for each in objects)
        for field, objects in (
            ("namespaces", snapshot.namespaces),
            ("persistent_volumes", map(_persistent_volume, snapshot.persistent_volumes)),
            ("csi_nodes", snapshot.csi_nodes),
            ("storage_classes", snapshot.storage_classes),
            ("csi_drivers", snapshot.csi_drivers),
            ("storage_capacities", snapshot.storage_capacities),
            ("volume_attachments", snapshot.volume_attachments),
            ("priority_classes", snapshot.priority_classes),
            ("disruption_budgets", snapshot.disruption_budgets),
            ("device_classes", snapshot.device_classes),
        )
    }
    pods = tuple(map(_pod, snapshot.pods))
    used = {name for pod in pods for name in images_of(pod.spec)}
    return replace(
        snapshot,
        nodes=tuple(_node(node, used) for node in snapshot.nodes),
        pods=pods,
        config_maps=tuple(map(_config_map, maps)),
        resource_slices=tuple(map(_slice, snapshot.resource_slices)),
        resource_claims=tuple(map(_claim, snapshot.resource_claims)),
        devices=tuple(map(_device, snapshot.devices)),
        persistent_volume_claims=tuple(map(_volume_claim, snapshot.persistent_volume_claims)),
        pod_groups=tuple(map(_pod_group, snapshot.pod_groups)),
        scheduler_plugins_pod_groups=tuple(map(_pod_group, snapshot.scheduler_plugins_pod_groups)),
        volcano_pod_groups=tuple(map(_pod_group, snapshot.volcano_pod_groups)),
        **more,
    )


def hidden_image(name: str) -> str:
    """Return a hash of an image's name, the same with the tag "latest" and without a tag; an
    empty or already hashed name is returned unchanged."""
    if _HIDDEN.fullmatch(name) or not name:
        return name
    hashed = hashlib.blake2b(image_name(name).encode(), digest_size=8).hexdigest()
    return f"image-{hashed}:hashed"


def _node_images(images: Iterable[NodeImage] | None, used: Set[str]) -> list[NodeImage] | None:
    found = []
    for image in images or ():
        names = [name for each in image.names or () if (name := hidden_image(each)) in used]
        found += [NodeImage(names, image.size_bytes)] if names else []
    return found or None


def _node(node: KubeNode, used: Set[str]) -> KubeNode:
    status = node.status
    kept_status = KubeNodeStatus(
        status.capacity,
        status.allocatable,
        _conditions(status.conditions or ()) or None,
        declared_features=[n for n in status.declared_features or () if n in NEEDED] or None,
        images=_node_images(status.images, used),
    )
    return KubeNode(metadata=_meta(node.metadata), spec=node.spec, status=kept_status)


def _pod(pod: Pod) -> Pod:
    pod = as_set_aside(pod)  # the statuses that tell of resizes are not kept
    spec, status = pod.spec, pod.status
    kept_spec: ScheduledSpec = replace(
        spec,
        containers=_containers(spec.containers) or [],
        init_containers=_containers(spec.init_containers),
        volumes=[_volume(volume) for volume in spec.volumes or ()] or None,
    )
    bound = [c for c in status.conditions or () if c.type == "PodScheduled"]
    kept_status = ScheduledStatus(
        phase=status.phase,
        conditions=_conditions(bound) or None,
        nominated_node_name=status.nominated_node_name,
        container_statuses=_ends(status.container_statuses),
        init_container_statuses=_ends(status.init_container_statuses),
        extended_resource_claim_status=status.extended_resource_claim_status,
    )
    return Pod(metadata=_meta(pod.metadata), spec=kept_spec, status=kept_status)


def _device(device: KoordinatorDevice) -> KoordinatorDevice:
    gpus = [
        replace(
            each,
            resources={
                name: amount
                for name, amount in (each.resources or {}).items()
                if name in Koordinator.resources
            },
        )
        for each in device.spec.devices or ()
        if each.type == "gpu"
    ]
    meta = ObjectMeta(name=device.metadata.name)
    return KoordinatorDevice(metadata=meta, spec=DeviceSpec(gpus))


def _pod_group(group: KubePodGroup) -> KubePodGroup:
    """Return the PodGroup with only the parts of policy and topology that Weft reads."""
    spec, policy = group.spec, group.spec.scheduling_policy
    if policy is not None:
        gang = None if policy.gang is None else GangPolicy(_count(policy.gang.min_count))
        policy = PodGroupPolicy(None if policy.basic is None else {}, gang)
    tasks = {task: _count(least) for task, least in (spec.min_task_member or {}).items()}
    hard = (spec.network_topology or {}).get("mode") == HARD
    spec = replace(
        spec,
        scheduling_policy=policy,
        disruption_mode=AS_ONE if ends_as_one(spec.disruption_mode, []) else None,
        min_member=_count(spec.min_member),
        min_task_member=tasks or None,
        network_topology={"mode": HARD} if hard else None,
        sub_group_policy=[{}] if spec.sub_group_policy else None,
    )
    return KubePodGroup(metadata=_meta(replace(group.metadata, managed_fields=None)), spec=spec)


def _count(value: Any) -> int | str | None:
    """Return a number or None unchanged, and "unreadable" for any other value."""
    return value if value is None or isinstance(value, int) else "unreadable"


def _config_map(config_map: ConfigMap) -> ConfigMap:
    data = {key: text for key, text in (config_map.data or {}).items() if key == "gpus"}
    return ConfigMap(metadata=_meta(config_map.metadata), data=data)


def _slice(shown: ResourceSlice) -> ResourceSlice:
    """Return the slice with only the attributes, amounts and taint effects that Weft reads."""
    devices = [
        replace(
            device,
            attributes=_read_ones(device.attributes),
            capacity=_read_ones(device.capacity),
            taints=[DeviceTaint(effect=taint.effect) for taint in device.taints or ()] or None,
        )
        for device in shown.spec.devices or ()
    ]
    spec = replace(shown.spec, devices=devices or None)
    return ResourceSlice(metadata=_meta(shown.metadata), spec=spec)


def _claim(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim with only the consumed amounts that Weft reads."""
    claim = replace(claim, metadata=replace(_meta(claim.metadata), labels=None))
    allocation = claim.status.allocation
    if allocation is None:
        return claim
    results = [
        replace(each, consumed_capacity=_read_ones(each.consumed_capacity))
        for each in allocation.devices.results or ()
    ]
    devices = replace(allocation.devices, results=tuple(results) or None)
    status = replace(claim.status, allocation=replace(allocation, devices=devices))
    return replace(claim, status=status)


def _read_ones(named: Mapping[str, V] | None) -> dict[str, V] | None:
    return {name: value for name, value in (named or {}).items() if is_read(name)} or None


def _names_broken_gpus(config_map: ConfigMap) -> bool:
    meta = config_map.metadata
    return meta.namespace == UNHEALTHY_NAMESPACE and meta.name.startswith(UNHEALTHY_PREFIX)


def _meta(meta: M) -> M:
    annotations = {
        key: text
        for key, text in (meta.annotations or {}).items()
        if key in READ_ANNOTATIONS
        or key in QUEUE_ANNOTATIONS
        or (is_systems_own(key) and key != DELIVERY)
    }
    kept_meta = replace(
        meta, generate_name="", resource_version="", annotations=annotations or None
    )
    if not isinstance(kept_meta, OwnedMeta) or not kept_meta.owner_references:
        return kept_meta
    owners = [replace(owner, uid="") for owner in kept_meta.owner_references]
    return replace(kept_meta, owner_references=owners)


def _containers(containers: Iterable[PodContainer] | None) -> list[PodContainer] | None:
    return [
        replace(each, image=hidden_image(each.image), env=_environment(each.env))
        for each in containers or ()
    ] or None


def _environment(env: Iterable[EnvVar] | None) -> list[EnvVar] | None:
    """Return the variables that can give a container GPUs, without their values, except values that
    give none; None if there are no such variables."""
    gpu_env = [variable for variable in env or () if variable.name in _GPU_ENV]
    return [
        variable if variable.value in HARMLESS_ENV else EnvVar(variable.name)
        for variable in gpu_env
    ] or None


def _persistent_volume(volume: PersistentVolume) -> PersistentVolume:
    """Return the volume with only its location and the claims that it can serve; the storage
    system's name for it is hashed."""
    spec, csi, ref = volume.spec, volume.spec.csi, volume.spec.claim_ref
    disks = {field: getattr(spec, field) for field in _OLD_DISKS}
    kept_spec: VolumeSpec = replace(
        spec,
        storage_class_name=class_name(volume),
        claim_ref=None if ref is None else ClaimRef("", "", ref.namespace, ref.name, ref.uid),
        csi=None if csi is None else CsiSource(csi.driver, hidden_disk(csi.volume_handle)),
        **{field: _hidden_names(disk) for field, disk in disks.items() if disk is not None},
    )
    return PersistentVolume(volume.metadata, kept_spec, volume.status)


def _volume_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Return the claim with only the fields that determine its volume, and its owners, whose UIDs
    are read."""
    marks = claim.metadata.annotations or {}
    meta = replace(
        _meta(claim.metadata),
        annotations={key: marks[key] for key in KEPT_OF_CLAIMS if key in marks} or None,
        owner_references=claim.metadata.owner_references,
    )
    return replace(
        claim, metadata=meta, spec=replace(claim.spec, storage_class_name=class_name(claim))
    )


def _volume(volume: Volume) -> Volume:
    """Return the volume with only its kind, claim and image, and hashes of the storage system's
    names; other details could hold credentials."""
    image = None if volume.image is None else ImageSource(hidden_image(volume.image.reference))
    there: dict[str, Any] = {
        field: _hidden_names(disk)
        for field in (*_OLD_DISKS, "iscsi", "rbd")
        if (disk := getattr(volume, field)) is not None
    }
    if volume.ephemeral is not None:
        there["ephemeral"] = {}
    return Volume(volume.name, volume.persistent_volume_claim, image=image, **there)


def _hidden_names(disk: D) -> D:
    names = (field for field in disk.__struct_fields__ if isinstance(getattr(disk, field), str))
    hidden: dict[str, Any] = {field: hidden_disk(getattr(disk, field)) for field in names}
    if isinstance(disk, MountedDisk) and disk.monitors is not None:
        hidden["monitors"] = [hidden_disk(each) for each in disk.monitors]
    return replace(disk, **hidden)


def hidden_disk(name: str) -> str:
    """Return a hash of the name that a storage system gave a volume; equal names have equal
    hashes."""
    if not name or _HIDDEN_DISK.fullmatch(name):
        return name
    return f"{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}:hashed"


def _conditions(conditions: Iterable[Any]) -> list[TimedCondition]:
    return [
        TimedCondition(type=c.type, status=c.status, last_transition_time=c.last_transition_time)
        for c in conditions
    ]


def _ends(statuses: Iterable[ContainerStatus] | None) -> list[ContainerStatus] | None:
    """Return the statuses of containers that ran out of GPU memory, with a fixed text instead of
    their messages; None if there are none."""
    ends = []
    for status in statuses or ():
        state, last = _end(status.state.terminated), _end(status.last_state.terminated)
        if state is not None or last is not None:
            ends.append(
                ContainerStatus(
                    status.name, status.restart_count, ContainerState(state), ContainerState(last)
                )
            )
    return ends or None


def _end(ended: Terminated | None) -> Terminated | None:
    if ended is None or not for_want_of_memory(ended):
        return None
    return replace(ended, reason="", message=_OUT_OF_MEMORY)

"""The form of a snapshot: one JSON object, strict, versioned. See docs/reference/openb-format.md.

Objects have Kubernetes' own field names, but only the fields that Weft reads; fields at their
defaults are left out."""

from typing import Any

import msgspec

from weft.cluster.state.groups import (
    KUBE_GROUPS,
    OLD_KUBE_GROUPS,
    PLUGIN_GROUPS,
    VOLCANO_GROUPS,
)
from weft.cluster.state.koordinator_devices import DEVICES
from weft.dialects.group_objects import KubePodGroup
from weft.dialects.koordinator import KoordinatorDevice
from weft.kube.codec import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    MetaOnly,
    Resource,
)
from weft.kube.dra import (
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    WATCHED,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from weft.kube.eviction import DISRUPTION_BUDGETS, DisruptionBudget
from weft.kube.pods import Pod
from weft.kube.structs import (
    ConfigMap,
    CsiNode,
    CsiStorageCapacity,
    KubeCsiDriver,
    KubeNode,
    KubeStorageClass,
    PersistentVolume,
    PersistentVolumeClaim,
    VolumeAttachment,
)
from weft.model.manifest import Api, ObjectMeta

API_VERSION = "weft.dev/v1"
KIND = "ClusterSnapshot"


class PriorityClass(Api, frozen=True, gc=False):
    """A scheduling.k8s.io/v1 PriorityClass."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class ClusterSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """State of a cluster at one moment. `taken_at` is RFC 3339, UTC; `weft` is the version that
    wrote it.

    `anonymous`: names are hashed. `configuration` is the part of a WeftConfiguration that affects
    decisions. `config_maps` are gpushare's ConfigMaps that list nodes' broken GPUs; `oom_history`
    is Weft's ConfigMap of workloads that ran out of GPU memory. `unread` lists kinds that could not
    be read, so their objects are missing."""

    api_version: str
    kind: str
    weft: str
    taken_at: str
    anonymous: bool
    configuration: dict[str, Any]
    nodes: tuple[KubeNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    namespaces: tuple[MetaOnly, ...] = ()
    config_maps: tuple[ConfigMap, ...] = ()
    persistent_volumes: tuple[PersistentVolume, ...] = ()
    persistent_volume_claims: tuple[PersistentVolumeClaim, ...] = ()
    csi_nodes: tuple[CsiNode, ...] = ()
    storage_classes: tuple[KubeStorageClass, ...] = ()
    csi_drivers: tuple[KubeCsiDriver, ...] = ()
    storage_capacities: tuple[CsiStorageCapacity, ...] = ()
    volume_attachments: tuple[VolumeAttachment, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    disruption_budgets: tuple[DisruptionBudget, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    devices: tuple[KoordinatorDevice, ...] = ()
    pod_groups: tuple[KubePodGroup, ...] = ()
    scheduler_plugins_pod_groups: tuple[KubePodGroup, ...] = ()
    volcano_pod_groups: tuple[KubePodGroup, ...] = ()
    oom_history: dict[str, str] = {}
    unread: tuple[str, ...] = ()


PRIORITY_CLASSES = Resource("/apis/scheduling.k8s.io/v1", "priorityclasses", PriorityClass)

KINDS: dict[str, tuple[str, Resource[Any]]] = {
    "Node": ("nodes", NODES),
    "Pod": ("pods", PODS),
    "Namespace": ("namespaces", NAMESPACES),
    "ConfigMap": ("config_maps", CONFIG_MAPS),
    "PersistentVolume": ("persistent_volumes", VOLUMES),
    "PersistentVolumeClaim": ("persistent_volume_claims", CLAIMS),
    "CSINode": ("csi_nodes", CSI_NODES),
    "StorageClass": ("storage_classes", STORAGE_CLASSES),
    "CSIDriver": ("csi_drivers", CSI_DRIVERS),
    "CSIStorageCapacity": ("storage_capacities", CSI_CAPACITIES),
    "VolumeAttachment": ("volume_attachments", VOLUME_ATTACHMENTS),
    "PriorityClass": ("priority_classes", PRIORITY_CLASSES),
    "PodDisruptionBudget": ("disruption_budgets", DISRUPTION_BUDGETS),
    "ResourceSlice": ("resource_slices", RESOURCE_SLICES),
    "DeviceClass": ("device_classes", DEVICE_CLASSES),
    "ResourceClaim": ("resource_claims", RESOURCE_CLAIMS),
    "Device": ("devices", DEVICES),
    "PodGroup.scheduling.k8s.io": ("pod_groups", KUBE_GROUPS),
    "PodGroup.scheduling.x-k8s.io": ("scheduler_plugins_pod_groups", PLUGIN_GROUPS),
    "PodGroup.scheduling.volcano.sh": ("volcano_pod_groups", VOLCANO_GROUPS),
}
"""Field of `ClusterSnapshot` and API resource, by Kubernetes kind (with its API group for kinds of
the same name)."""
OLDER: dict[str, Resource[Any]] = {"PodGroup.scheduling.k8s.io": OLD_KUBE_GROUPS}
"""Older versions of resources in `KINDS`, for API servers that lack the newer version."""

OPTIONAL: tuple[tuple[tuple[Resource[Any], ...], tuple[str, ...]], ...] = (
    (WATCHED, ("ResourceSlice", "DeviceClass", "ResourceClaim")),
    ((DEVICES,), ("Device",)),
    *(((KINDS[kind][1],), (kind,)) for kind in KINDS if kind.startswith("PodGroup.")),
)
"""Kinds that API servers may lack (those of dynamic resource allocation, Koordinator's Device, and
PodGroups), each group with the resources by which to find out."""

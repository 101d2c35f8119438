"""Frozen values that all packages use: GPUs, nodes, requests, placements, reasons.

In: what a thing *is*. Out: I/O, NumPy (except in `interference_table`), clocks, the spelling of any
one system (`dialects/`), and which pod holds which GPU (`core/ledger/`).
"""

from weft.model.errors import BadInputError, WeftError
from weft.model.gang import Gang
from weft.model.manifest import (
    ManifestContainer,
    ManifestResources,
    NodeManifest,
    ObjectMeta,
    PodManifest,
    PodSpec,
    PodStatus,
)
from weft.model.node import ClosedNode, Gpu, Node
from weft.model.placement import Placement, Share
from weft.model.reason import Code, Reason
from weft.model.request import (
    Constraints,
    ContainerRequest,
    DeviceRule,
    GpuMemoryRequest,
    GpuRequest,
    HostPort,
    PodRequest,
    Preference,
    Preferences,
    Shape,
    Taint,
    Toleration,
    parse_cpu_milli,
    parse_quantity,
)
from weft.model.selectors import (
    InterPodRules,
    PodMarks,
    PodSelector,
    PodTerm,
    Requirement,
    SpreadRule,
    Term,
    WeightedTerm,
)
from weft.model.storage import (
    Attached,
    ChosenVolume,
    FreeVolume,
    LoneDisk,
    MountedVolumes,
    NodeStorage,
    StorageCapacity,
    StorageClass,
    StorageRules,
    UnboundClaim,
)

__all__ = [
    "Attached",
    "BadInputError",
    "ChosenVolume",
    "ClosedNode",
    "Code",
    "Constraints",
    "ContainerRequest",
    "DeviceRule",
    "FreeVolume",
    "Gang",
    "Gpu",
    "GpuMemoryRequest",
    "GpuRequest",
    "HostPort",
    "InterPodRules",
    "LoneDisk",
    "ManifestContainer",
    "ManifestResources",
    "MountedVolumes",
    "Node",
    "NodeManifest",
    "NodeStorage",
    "ObjectMeta",
    "Placement",
    "PodManifest",
    "PodMarks",
    "PodRequest",
    "PodSelector",
    "PodSpec",
    "PodStatus",
    "PodTerm",
    "Preference",
    "Preferences",
    "Reason",
    "Requirement",
    "Shape",
    "Share",
    "SpreadRule",
    "StorageCapacity",
    "StorageClass",
    "StorageRules",
    "Taint",
    "Term",
    "Toleration",
    "UnboundClaim",
    "WeftError",
    "WeightedTerm",
    "parse_cpu_milli",
    "parse_quantity",
]

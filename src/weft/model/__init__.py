"""Frozen values that every wing speaks: GPUs, nodes, requests, placements, reasons.

In: what a thing *is*. Out: I/O, NumPy (but for `interference_table`), clocks, and any knowledge of
one system's spelling (that is `dialects/`) or of who holds what (that is `core/ledger/`).
"""

from weft.model.errors import BadInputError, WeftError
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
    Term,
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
    WeightedTerm,
)

__all__ = [
    "BadInputError",
    "ClosedNode",
    "Code",
    "Constraints",
    "ContainerRequest",
    "DeviceRule",
    "Gpu",
    "GpuMemoryRequest",
    "GpuRequest",
    "HostPort",
    "InterPodRules",
    "ManifestContainer",
    "ManifestResources",
    "Node",
    "NodeManifest",
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
    "Taint",
    "Term",
    "Toleration",
    "WeftError",
    "WeightedTerm",
    "parse_cpu_milli",
    "parse_quantity",
]

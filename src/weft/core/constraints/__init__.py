"""Evaluates a pod's rules about other pods (affinity, anti-affinity, topology spread), its rules
about volumes, and its preferences.

Contents: evaluating these rules from the labels, taints and images of nodes, the labels and volumes
of pods that have a node, and the free volumes. Not here: the Kubernetes API, policies, decisions.
"""

from weft.core.constraints.answer import DomainsLeft, PodAnswer, RowsLeft, refusals
from weft.core.constraints.answers import answers
from weft.core.constraints.existing_pods import ExistingPods, PodsMoved, waits_for
from weft.core.constraints.images import ImagesOnNodes
from weft.core.constraints.leaving import PodsToLeave, pods_to_leave
from weft.core.constraints.preferences import (
    PodWishes,
    PreferencePart,
    PreferredAmong,
    PreferredPlace,
)
from weft.core.constraints.volumes import ServingVolumes

__all__ = [
    "DomainsLeft",
    "ExistingPods",
    "ImagesOnNodes",
    "PodAnswer",
    "PodWishes",
    "PodsMoved",
    "PodsToLeave",
    "PreferencePart",
    "PreferredAmong",
    "PreferredPlace",
    "RowsLeft",
    "ServingVolumes",
    "answers",
    "pods_to_leave",
    "refusals",
    "waits_for",
]

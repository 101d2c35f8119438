"""Rules of a pod about the pods around it: affinity, anti-affinity, topology spread; and where it
had rather be.

In: nodes' labels, taints and images, and the labels of pods that have a node. Out: any API, any
policy, who decides.
"""

from weft.core.constraints.answers import PodAnswer, answers
from weft.core.constraints.existing_pods import ExistingPods, PodsMoved
from weft.core.constraints.images import ImagesOnNodes
from weft.core.constraints.preferences import (
    PodWishes,
    PreferencePart,
    PreferredAmong,
    PreferredPlace,
)

__all__ = [
    "ExistingPods",
    "ImagesOnNodes",
    "PodAnswer",
    "PodWishes",
    "PodsMoved",
    "PreferencePart",
    "PreferredAmong",
    "PreferredPlace",
    "answers",
]

"""Rules of a pod about the pods around it: affinity, anti-affinity, topology spread.

In: nodes' labels, and the labels of pods that have a node. Out: any API, any policy, who decides.
"""

from weft.core.constraints.answers import PodAnswer, answers
from weft.core.constraints.existing_pods import ExistingPods, PodsMoved

__all__ = ["ExistingPods", "PodAnswer", "PodsMoved", "answers"]

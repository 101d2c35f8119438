"""Kube-Knots, in the version of an ECE diploma thesis: the pod label `GPU_MEM_REQ`, in MiB.

That scheduler assumes one GPU, and uses no resource or device plugin: containers see every card.
Weft charges the label on one card and shows the containers that card alone.
"""

from weft.dialects.dialect import DialectSettings
from weft.dialects.genius import merged
from weft.dialects.nvidia import GPU
from weft.dialects.resources import PodWords, label_number, pod_wide
from weft.dialects.system import BaseDialect, build
from weft.model import GpuMemoryRequest, GpuRequest, PodRequest
from weft.model.ceilings import MOST_GPU_MIB

LABEL = "GPU_MEM_REQ"


class Kubeknots(BaseDialect):
    """Kube-Knots' dialect: a label with MiB of one GPU; a missing or unreadable label counts as 0,
    with a warning."""

    name = "kubeknots"
    title = "Kube-Knots"
    scheduler_names = ("custom-scheduler", "improved-custom-scheduler")
    asking_labels = (LABEL,)
    counted = (GPU,)
    asks_by_name = True
    pod_asks_as_one = True

    def carries(self, words: PodWords, settings: DialectSettings) -> bool:
        """Return True if the label is there, readable or not."""
        return LABEL in words.labels

    def parse(self, words: PodWords, settings: DialectSettings) -> PodRequest:
        """Return the label's MiB on one card; whole cards instead if containers also request
        `nvidia.com/gpu`."""
        labels = words.labels
        text = labels.get(LABEL)
        number = label_number(labels, LABEL, MOST_GPU_MIB, "any card")
        notes: list[str] = []
        if number is None:
            problem = "is missing" if text is None else f"{text!r} is not a whole number of MiB"
            notes.append(f"label {LABEL} {problem}: 0 MiB are charged, as in the original")
        gpu_request = GpuRequest(memory=GpuMemoryRequest("mib", number or 0))
        places = words.slots
        shared = not words.asks_for((GPU,))
        layout = pod_wide(places, [gpu_request]) if shared else merged(places, [gpu_request], notes)
        return build(words, self.name, layout, shared=shared, warnings=notes)

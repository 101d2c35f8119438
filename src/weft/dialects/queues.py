"""Reads which team's queue a pod belongs to, by each system's labels and annotations.

    label weft.dev/queue                  Weft's own
    label kueue.x-k8s.io/queue-name       Kueue's LocalQueue; kueue.x-k8s.io/local-queue-name, which
                                          Kueue writes on pods of jobs that it admits
    label volcano.sh/queue-name           Volcano's Queue; also an annotation of that name, or
                                          scheduling.volcano.sh/queue-name
    label kai.scheduler/queue             KAI's Queue
    else                                  its namespace

The first that the pod has counts. Equal names are one queue, whichever system's they are. An
annotation that is not a valid name is ignored.
"""

import re

from weft.dialects.kai import QUEUE as KAI_QUEUE
from weft.model import PodManifest
from weft.model.annotations import QUEUE

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
VOLCANO_QUEUE = "volcano.sh/queue-name"
VOLCANO_POD_QUEUE = "scheduling.volcano.sh/queue-name"

READ_LABELS = (QUEUE, KUEUE_QUEUE, KUEUE_LOCAL_QUEUE, VOLCANO_QUEUE, KAI_QUEUE)
READ_ANNOTATIONS = (VOLCANO_QUEUE, VOLCANO_POD_QUEUE)
_LABELS, _ANNOTATIONS = frozenset(READ_LABELS), frozenset(READ_ANNOTATIONS)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,251}[A-Za-z0-9])?", re.ASCII)


def named_queue(pod: PodManifest) -> str:
    """Return the queue that the pod names; "" if it names none. The check is quick, as most pods
    name none."""
    said: list[str] = []
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if labels and not _LABELS.isdisjoint(labels):
        said += [labels.get(key, "") for key in READ_LABELS]
    if annotations and not _ANNOTATIONS.isdisjoint(annotations):
        said += [annotations.get(key, "") for key in READ_ANNOTATIONS]
    return next((name for name in said if is_queue_name(name)), "")


def is_queue_name(text: str) -> bool:
    """Return True if a queue may have this name."""
    return _NAME.fullmatch(text) is not None


def queue_of(pod: PodManifest) -> str:
    """Return the queue that the pod belongs to: the one that it names, else its namespace's."""
    return named_queue(pod) or pod.metadata.namespace or "default"

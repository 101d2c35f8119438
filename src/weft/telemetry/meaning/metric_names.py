"""Names of metrics in the configuration, and the labels that say what a series is about.

Of each tuple of labels, the first label that a series has is used.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias

NODE_LABELS = ("Hostname", "hostname", "kubernetes_node", "node", "nodeName", "instance")
UUID_LABELS = ("UUID", "uuid", "gpu_uuid")
INDEX_LABELS = (
    "gpu",
    "GPU",
    "gpu_idx",
    "card",
    "cardNode",
    "id",
    "minor_number",
    "minor",
    "device",
)
# Where Prometheus keeps its own labels, `pod` is the exporter's pod and `exported_pod` the GPU's.
POD_LABELS = ("exported_pod", "pod", "pod_name")
NAMESPACE_LABELS = ("exported_namespace", "namespace", "pod_namespace")
CONTAINER_LABELS = ("exported_container", "container", "container_name")
MIG_LABELS = ("GPU_I_ID",)
MIG_UUID_LABELS = ("dra_mig_device_uuid",)


# No node has a million GPUs, and long numbers take long to read.
_INDEX = re.compile(r"[0-9]{1,6}")


class SeriesSubject(NamedTuple):
    """The subject of a series, as far as its labels say; "" and −1 if they do not."""

    node: str = ""
    uuid: str = ""
    gpu: int = -1
    namespace: str = ""
    pod: str = ""
    container: str = ""
    mig: str = ""
    mig_uuid: str = ""


def subject(labels: Mapping[str, str]) -> SeriesSubject:
    """Return the node, GPU and pod that a series' labels name."""
    index = _first(labels, INDEX_LABELS).removeprefix("nvidia")
    return SeriesSubject(
        node=without_port(_first(labels, NODE_LABELS)),
        uuid=_first(labels, UUID_LABELS),
        gpu=int(index) if _INDEX.fullmatch(index) else -1,
        namespace=_first(labels, NAMESPACE_LABELS),
        pod=_first(labels, POD_LABELS),
        container=_first(labels, CONTAINER_LABELS),
        mig=_first(labels, MIG_LABELS),
        mig_uuid=_first(labels, MIG_UUID_LABELS),
    )


def with_own(aliases: Iterable[tuple[str, str, float]]) -> dict[str, Alias]:
    """Return `ALIASES` with the configuration's additions (name, canonical metric, scale), which
    take precedence.

    `ValueError` names a metric that does not exist."""
    return ALIASES | {name: Alias(Metric(metric), scale) for name, metric, scale in aliases}


def names_of(metric: Metric, aliases: Mapping[str, Alias] = ALIASES) -> tuple[str, ...]:
    """Return every name under which `metric` may be found, the preferred one first."""
    return tuple(name for name, alias in aliases.items() if alias.metric is metric)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def without_port(node: str) -> str:
    """Return the host without a port (the label `instance` includes the exporter's port)."""
    host, colon, port = node.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else node

"""Canonical metrics: one name and one unit each, whatever exporter they come from.

`ALIASES` says what a Prometheus metric means; `metric_values.read` turns its samples into the
canonical unit. The first label found in each of the label tuples is the one that counts.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from weft.model.metric import Metric


class Alias(NamedTuple):
    """The meaning of an exporter's metric.

    A sample times `scale` is in the metric's unit. `by_process` series come one a process: those of
    one pod on one GPU are added up; all others say the same of a device each time they appear.
    `scale` 0 means percent or ratio, as the exporter's version has it: see
    `metric_values.scale_of`.
    """

    metric: Metric
    scale: float = 1.0
    by_process: bool = False


PERCENT = 0.01
EITHER = 0.0

ALIASES: dict[str, Alias] = {
    # dcgm-exporter, names of its default list and of fields to switch on
    "DCGM_FI_DEV_FB_USED": Alias(Metric.MEMORY_USED_MIB),
    "DCGM_FI_DEV_FB_FREE": Alias(Metric.MEMORY_FREE_MIB),
    "DCGM_FI_DEV_FB_RESERVED": Alias(Metric.MEMORY_RESERVED_MIB),
    "DCGM_FI_DEV_GPU_UTIL": Alias(Metric.GPU_UTIL_RATIO, PERCENT),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Alias(Metric.MEMORY_COPY_RATIO, PERCENT),
    "DCGM_FI_DEV_ENC_UTIL": Alias(Metric.ENCODER_RATIO, PERCENT),
    "DCGM_FI_DEV_DEC_UTIL": Alias(Metric.DECODER_RATIO, PERCENT),
    "DCGM_FI_DEV_POWER_USAGE": Alias(Metric.POWER_W),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Alias(Metric.POWER_LIMIT_W),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Alias(Metric.ENERGY_J, 0.001),
    "DCGM_FI_DEV_SM_CLOCK": Alias(Metric.SM_CLOCK_MHZ),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Alias(Metric.GRAPHICS_ACTIVE_RATIO),
    "DCGM_FI_PROF_SM_ACTIVE": Alias(Metric.SM_ACTIVE_RATIO),
    "DCGM_FI_PROF_SM_OCCUPANCY": Alias(Metric.SM_OCCUPANCY_RATIO),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Alias(Metric.TENSOR_ACTIVE_RATIO),
    "DCGM_FI_PROF_DRAM_ACTIVE": Alias(Metric.DRAM_ACTIVE_RATIO),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Alias(Metric.PCIE_SENT_BYTES_PER_S),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Alias(Metric.PCIE_RECEIVED_BYTES_PER_S),
    # the names that DCGM gave its fields later; GPU_UTIL_RATIO is the percentage renamed, and said
    # to be a true ratio in some versions
    "DCGM_FI_DEV_GPU_UTIL_RATIO": Alias(Metric.GPU_UTIL_RATIO, EITHER),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": Alias(Metric.POWER_W),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": Alias(Metric.GRAPHICS_ACTIVE_RATIO),
    "DCGM_FI_PROF_SM_UTIL_RATIO": Alias(Metric.SM_ACTIVE_RATIO),
    "DCGM_FI_PROF_SM_OCCUPANCY_RATIO": Alias(Metric.SM_OCCUPANCY_RATIO),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": Alias(Metric.TENSOR_ACTIVE_RATIO),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": Alias(Metric.DRAM_ACTIVE_RATIO),
    # dcgm-exporter 1.x
    "dcgm_fb_used": Alias(Metric.MEMORY_USED_MIB),
    "dcgm_fb_free": Alias(Metric.MEMORY_FREE_MIB),
    "dcgm_gpu_utilization": Alias(Metric.GPU_UTIL_RATIO, PERCENT),
    "dcgm_mem_copy_utilization": Alias(Metric.MEMORY_COPY_RATIO, PERCENT),
    "dcgm_enc_utilization": Alias(Metric.ENCODER_RATIO, PERCENT),
    "dcgm_dec_utilization": Alias(Metric.DECODER_RATIO, PERCENT),
    "dcgm_power_usage": Alias(Metric.POWER_W),
    "dcgm_total_energy_consumption": Alias(Metric.ENERGY_J, 0.001),
    "dcgm_sm_clock": Alias(Metric.SM_CLOCK_MHZ),
    # ObserverWard, which Genius reads
    "observerward_dynamic_gpu_used_global_memory_MiB": Alias(Metric.MEMORY_USED_MIB),
    "observerward_dynamic_gpu_free_global_memory_MiB": Alias(Metric.MEMORY_FREE_MIB),
    "observerward_dynamic_gpu_power_usage_W": Alias(Metric.POWER_W),
    "observerward_dynamic_gpu_encoder_utilization": Alias(Metric.ENCODER_RATIO, PERCENT),
    "observerward_dynamic_gpu_decoder_utilization": Alias(Metric.DECODER_RATIO, PERCENT),
    "observerward_dynamic_gpu_memory_utilization": Alias(Metric.MEMORY_COPY_RATIO, PERCENT),
    # Alnair's exporter: NVML's shares of SM and memory time, one series a process
    "alnair_gpu_util": Alias(Metric.GPU_UTIL_RATIO, PERCENT, by_process=True),
    "alnair_gpu_mem_util": Alias(Metric.MEMORY_COPY_RATIO, PERCENT, by_process=True),
    # what Elastic's load-aware scheduler asks for; it divides by 100
    "gpu_core_usage_avg": Alias(Metric.GPU_UTIL_RATIO, PERCENT),
    "gpu_memory_usage_avg": Alias(Metric.MEMORY_USED_RATIO, PERCENT),
}

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


# No node has a million GPUs; and no number is read that takes long to read.
_INDEX = re.compile(r"[0-9]{1,6}")


class SeriesSubject(NamedTuple):
    """The subject of a series, as far as its labels say; "" and −1 where they do not."""

    node: str = ""
    uuid: str = ""
    gpu: int = -1
    namespace: str = ""
    pod: str = ""
    container: str = ""
    mig: str = ""
    mig_uuid: str = ""


def subject(labels: Mapping[str, str]) -> SeriesSubject:
    """The node, GPU and pod that a series' labels name."""
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
    """`ALIASES` and (name, canonical metric, scale) of the configuration, which win.

    ValueError names a metric that does not exist.
    """
    return ALIASES | {name: Alias(Metric(metric), scale) for name, metric, scale in aliases}


def names_of(metric: Metric, aliases: Mapping[str, Alias] = ALIASES) -> tuple[str, ...]:
    """Every name under which `metric` may be found, in the order they are preferred."""
    return tuple(name for name, alias in aliases.items() if alias.metric is metric)


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def without_port(node: str) -> str:
    """`instance` carries the exporter's port."""
    host, colon, port = node.rpartition(":")
    return host.strip("[]") if colon and port.isdigit() else node

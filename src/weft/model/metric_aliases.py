"""The names and units under which exporters publish the canonical metrics.

The agent publishes metrics under these names and telemetry reads them, both by this one table.
"""

from typing import NamedTuple

from weft.model.metric import Metric


class Alias(NamedTuple):
    """The meaning of an exporter's metric.

    A sample times `scale` is in the metric's unit. `by_process`: the exporter has a series for each
    process, and the series of one pod on one GPU are added up; otherwise several series of one GPU
    repeat the same value. `scale` 0 means percent or ratio, as the exporter's version has it: see
    `telemetry/meaning/join.py:scale_of`.
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
    "DCGM_FI_DEV_GPU_TEMP": Alias(Metric.TEMPERATURE_C),
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
    "dcgm_gpu_temp": Alias(Metric.TEMPERATURE_C),
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

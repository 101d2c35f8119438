"""Canonical names of GPU metrics: one name and one unit each, whatever the source. Exporters' names
are in `metric_aliases.py`.
"""

import enum


class Metric(enum.StrEnum):
    """Metrics of a GPU. Ratios are from 0 to 1; a value's name ends with its unit."""

    MEMORY_USED_MIB = "memory_used_mib"
    MEMORY_FREE_MIB = "memory_free_mib"
    MEMORY_RESERVED_MIB = "memory_reserved_mib"
    MEMORY_USED_RATIO = "memory_used_ratio"
    GPU_UTIL_RATIO = "gpu_util_ratio"
    MEMORY_COPY_RATIO = "memory_copy_ratio"
    GRAPHICS_ACTIVE_RATIO = "graphics_active_ratio"
    SM_ACTIVE_RATIO = "sm_active_ratio"
    SM_OCCUPANCY_RATIO = "sm_occupancy_ratio"
    TENSOR_ACTIVE_RATIO = "tensor_active_ratio"
    DRAM_ACTIVE_RATIO = "dram_active_ratio"
    PCIE_SENT_BYTES_PER_S = "pcie_sent_bytes_per_s"
    PCIE_RECEIVED_BYTES_PER_S = "pcie_received_bytes_per_s"
    POWER_W = "power_w"
    POWER_LIMIT_W = "power_limit_w"
    ENERGY_J = "energy_j"
    ENCODER_RATIO = "encoder_ratio"
    DECODER_RATIO = "decoder_ratio"
    SM_CLOCK_MHZ = "sm_clock_mhz"
    TEMPERATURE_C = "temperature_c"

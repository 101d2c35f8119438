"""Counters of one GPU, or one MIG instance, by NVML; on Hopper and later by GPM.

GPM needs neither DCGM nor a profiler: it compares two samples. NVML's two utilisation rates exist
on every GPU, but are coarser: the GPU counts as used while any kernel runs.
"""

import math
from typing import Any

from weft.model.metric import Metric
from weft.node.devices.nvml_library import MIB, ask

# GPM's metric number, our name, the factor to our unit (from percent, or MiB per second).
GPM = (
    (1, Metric.GRAPHICS_ACTIVE_RATIO.value, 0.01),
    (2, Metric.SM_ACTIVE_RATIO.value, 0.01),
    (3, Metric.SM_OCCUPANCY_RATIO.value, 0.01),
    (5, Metric.TENSOR_ACTIVE_RATIO.value, 0.01),
    (10, Metric.DRAM_ACTIVE_RATIO.value, 0.01),
    (11, "fp64_active_ratio", 0.01),
    (12, "fp32_active_ratio", 0.01),
    (13, "fp16_active_ratio", 0.01),
    (20, Metric.PCIE_SENT_BYTES_PER_S.value, MIB),
    (21, Metric.PCIE_RECEIVED_BYTES_PER_S.value, MIB),
)


class NvmlCounters:
    """The counters of one device. For a MIG instance `handle` is its card's handle, and only GPM's
    counters are available."""

    def __init__(self, nvml: Any, handle: Any, gpu_instance: int | None = None) -> None:
        self._nvml, self._handle, self._instance = nvml, handle, gpu_instance
        self._gpm: tuple[Any, Any] | None = None
        support = ask(nvml, lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        if support is not None and getattr(support, "isSupportedDevice", support):
            first = ask(nvml, lambda: self._take(nvml.nvmlGpmSampleAlloc()))
            second = ask(nvml, nvml.nvmlGpmSampleAlloc)
            self._gpm = (first, second) if first is not None and second is not None else None

    @property
    def counted(self) -> bool:
        """True if the device has GPM's counters."""
        return self._gpm is not None

    def close(self) -> None:
        """Free the GPM samples."""
        for sample in self._gpm or ():
            ask(self._nvml, lambda sample=sample: self._nvml.nvmlGpmSampleFree(sample))  # type: ignore[misc]
        self._gpm = None

    def sample(self) -> dict[str, float]:
        """Return the load since the last call and, except for a MIG instance, present power, clocks
        and temperature."""
        counters = self._counters() if self._gpm else {}
        if self._instance is not None:
            return counters
        nvml, handle = self._nvml, self._handle
        power = ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        now = {
            Metric.POWER_W.value: None if power is None else power / 1_000,
            Metric.SM_CLOCK_MHZ.value: ask(
                nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            ),
            "memory_clock_mhz": ask(
                nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            ),
            Metric.TEMPERATURE_C.value: ask(
                nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
        }
        values = {name: float(value) for name, value in now.items() if value is not None}
        return self._utilization() | counters | values

    def meters(self) -> dict[str, float]:
        """Return a card's further values: power limit, energy, encoder and decoder; none for a MIG
        instance."""
        nvml, handle = self._nvml, self._handle
        if self._instance is not None:
            return {}
        limit = ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        energy = ask(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        encoder = ask(nvml, lambda: nvml.nvmlDeviceGetEncoderUtilization(handle))
        decoder = ask(nvml, lambda: nvml.nvmlDeviceGetDecoderUtilization(handle))
        now = {
            Metric.POWER_LIMIT_W.value: None if limit is None else limit / 1_000,
            Metric.ENERGY_J.value: None if energy is None else energy / 1_000,
            Metric.ENCODER_RATIO.value: None if encoder is None else min(encoder[0] / 100, 1.0),
            Metric.DECODER_RATIO.value: None if decoder is None else min(decoder[0] / 100, 1.0),
        }
        return {name: float(value) for name, value in now.items() if value is not None}

    def _take(self, sample: Any) -> Any:
        if self._instance is not None:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._instance, sample)
        else:
            self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample

    def _counters(self) -> dict[str, float]:
        """Return GPM's values between the stored sample and a new one, which is then stored."""
        nvml, counters = self._nvml, {}
        assert self._gpm is not None
        before, now = self._gpm
        if ask(nvml, lambda: self._take(now)) is None:
            return {}
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        query.sample1, query.sample2 = before, now
        for at, (number, _, _) in enumerate(GPM):
            query.metrics[at].metricId = number
        if ask(nvml, lambda: nvml.nvmlGpmMetricsGet(query)) is not None:
            for at, (_, name, scale) in enumerate(GPM):
                metric = query.metrics[at]
                if metric.nvmlReturn == 0 and math.isfinite(metric.value) and metric.value >= 0:
                    share = name.endswith("_ratio")  # may slightly exceed 1 by rounding
                    counters[name] = (
                        min(metric.value * scale, 1.0) if share else metric.value * scale
                    )
        self._gpm = (now, before)
        return counters

    def _utilization(self) -> dict[str, float]:
        rates = ask(self._nvml, lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        if rates is None:
            return {}
        return {
            Metric.GPU_UTIL_RATIO.value: min(rates.gpu / 100, 1.0),
            Metric.MEMORY_COPY_RATIO.value: min(rates.memory / 100, 1.0),
        }

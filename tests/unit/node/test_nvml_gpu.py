"""One GPU through NVML, as measuring reads it; NVML is a fake."""

import pytest

from fakes.nvml import FakeNvml, FakeNvmlCard
from weft.node.devices.nvml_gpu import NvmlGpu
from weft.node.devices.nvml_library import model_of
from weft.node.devices.reader import DeviceError


def one(gpm: dict[int, float] | None, *, mig: bool = False) -> FakeNvml:
    card = FakeNvmlCard()
    card.gpm, card.mig = gpm, mig
    card.processes = [(7, 3 << 10), (8, None)]
    return FakeNvml(card)


def test_gpm_counters_are_ratios_between_two_samples() -> None:
    nvml = one({1: 99.0, 2: 75.0, 5: 50.0, 10: 25.0, 11: 100.4, 20: 2.0, 3: float("nan")})
    gpu = NvmlGpu("0", nvml)
    assert (gpu.card.gpu_model, gpu.card.counters) == ("NVIDIA-H100-80GB-HBM3", "nvml-gpm")
    assert gpu.card.memory_mib == 81_559
    found = gpu.sample()
    assert found == {
        "gpu_util_ratio": 0.87,
        "memory_copy_ratio": 0.12,
        "graphics_active_ratio": pytest.approx(0.99),
        "sm_active_ratio": 0.75,
        "tensor_active_ratio": 0.5,
        "dram_active_ratio": 0.25,
        "fp64_active_ratio": 1.0,
        "pcie_sent_bytes_per_s": 2 << 20,
        "power_w": 350.0,
        "sm_clock_mhz": 1_980.0,
        "memory_clock_mhz": 2_619.0,
    }
    gpu.sample()
    assert nvml.gpm_asked == [(1, 2), (2, 1)]  # each begins where the one before ended
    gpu.close()
    assert (nvml.samples, nvml.opened) == (0, 0)


def test_without_gpm_the_two_shares_of_time_are_what_there_is() -> None:
    gpu = NvmlGpu("0", one(None))
    assert gpu.card.counters == "nvml-utilization"
    found = gpu.sample()
    assert (found["gpu_util_ratio"], found["memory_copy_ratio"]) == (0.87, 0.12)


def test_a_gpu_that_supports_gpm_but_counts_nothing_has_the_two_shares() -> None:
    """As where somebody else's profiler holds the counters."""
    gpu = NvmlGpu("0", one({}))
    assert (gpu.sample()["gpu_util_ratio"], gpu.card.counters) == (0.87, "nvml-gpm")


def test_a_gpu_in_mig_mode_is_refused() -> None:
    """Its numbers would be an instance's, and would stand for the whole GPU."""
    with pytest.raises(DeviceError, match="GPU 0: is in MIG mode"):
        NvmlGpu("0", one({2: 1.0}, mig=True))


def test_memory_is_told_by_process_where_nvml_knows_it() -> None:
    gpu = NvmlGpu("0", one(None))
    assert [gpu.process_mib(pid) for pid in (7, 8, 9)] == [3_072, None, None]
    assert gpu.memory_mib() == (1_000, 80_559)


def test_a_gpu_that_is_not_there_is_told_in_words() -> None:
    with pytest.raises(DeviceError, match="GPU 3: NVML says: Invalid Argument"):
        NvmlGpu("3", one(None))


def test_models_are_spelled_as_node_labels_spell_them() -> None:
    assert model_of("NVIDIA H100 80GB HBM3") == "NVIDIA-H100-80GB-HBM3"

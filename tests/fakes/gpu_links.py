"""Machines whose GPUs are connected in ways that are known: for tests and benchmarks."""

from collections.abc import Callable

from weft.model.gpu_links import SELF, GpuLinks, checked_links

_DGX_1 = (
    "X NV1 NV1 NV2 NV2 SYS SYS SYS",
    "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2",
    "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2",
    "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)


def dgx_1() -> GpuLinks:
    """Eight V100s in NVIDIA's hybrid cube mesh, four on each socket."""
    return _links(8, _DGX_1, 2, (0,) * 4 + (1,) * 4)


def bridged_pairs(gpus: int = 8) -> GpuLinks:
    """PCIe cards in pairs that are bridged by four NVLinks; the half of them on each socket."""

    def word(first: int, other: int) -> str:
        if first // 2 == other // 2:
            return "NV4"
        return "NODE" if (first < gpus // 2) == (other < gpus // 2) else "SYS"

    numa = tuple(int(place >= gpus // 2) for place in range(gpus))
    return _links(gpus, _rows(gpus, word), 3, numa)


def pcie_switches(gpus: int = 8, each: int = 4) -> GpuLinks:
    """No NVLink: so many cards on each PCIe switch, two switches on each socket."""

    def word(first: int, other: int) -> str:
        if first // each == other // each:
            return "PIX"
        return "NODE" if first // (2 * each) == other // (2 * each) else "SYS"

    numa = tuple(place // (2 * each) for place in range(gpus))
    return _links(gpus, _rows(gpus, word), 0, numa)


def nvswitch(gpus: int = 8, links: int = 12) -> GpuLinks:
    """Each GPU with so many links to switches that join all of them; half on each socket."""
    numa = tuple(int(place >= gpus // 2) for place in range(gpus))
    return _links(gpus, _rows(gpus, lambda one, other: f"NV{links}"), 3, numa)


def _rows(gpus: int, word: Callable[[int, int], str]) -> tuple[str, ...]:
    return tuple(
        " ".join(SELF if first == other else word(first, other) for other in range(gpus))
        for first in range(gpus)
    )


def _links(gpus: int, rows: tuple[str, ...], generation: int, numa: tuple[int, ...]) -> GpuLinks:
    return checked_links(GpuLinks(tuple(range(gpus)), rows, generation, numa), "a test's links")

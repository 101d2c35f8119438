"""Reads the connections between a machine's cards through NVML, as `nvidia-smi topo -m` shows
them."""

from collections.abc import Sequence
from typing import Any

from weft.model import BadInputError
from weft.model.gpu_links import (
    MOST_LINKED,
    SELF,
    UNKNOWN_NUMA,
    GpuLinks,
    checked_links,
    nvlink_generation,
)
from weft.node.devices.nvml_library import ask, text
from weft.node.devices.reader import GpuDevice

_PCIE = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of NVML_TOPOLOGY_*; 0 means two GPUs of one board, which share a PCIe switch."""
_MOST_NVLINKS = 18
_SWITCH = 2


def read_links(nvml: Any, cards: Sequence[tuple[GpuDevice, Any]]) -> GpuLinks | None:
    """Return the links of these cards, each with its handle; None if NVML does not report all of
    them."""
    if not 1 < len(cards) <= MOST_LINKED:
        return None
    ends = [_nvlink_ends(nvml, handle) for _, handle in cards]
    buses = [_bus(device.pci_bus_id) for device, _ in cards]
    rows = []
    for first, (_, handle) in enumerate(cards):
        words = []
        for other, (_, other_handle) in enumerate(cards):
            switched = min(ends[first].count(""), ends[other].count(""))
            nvlinks = ends[first].count(buses[other]) + switched
            words.append(SELF if first == other else _path(nvml, handle, other_handle, nvlinks))
        rows.append(" ".join(words))
    numa = tuple(
        UNKNOWN_NUMA if device.numa_node is None else device.numa_node for device, _ in cards
    )
    generation = nvlink_generation(cards[0][0].gpu.model) if any("NV" in row for row in rows) else 0
    indexes = tuple(device.gpu.index for device, _ in cards)
    try:
        return checked_links(GpuLinks(indexes, tuple(rows), generation, numa), "NVML")
    except BadInputError:  # a link that only one end reports, or an unknown path
        return None


def _nvlink_ends(nvml: Any, handle: Any) -> list[str]:
    """Return the other end of each active NVLink: a device's bus, "" for a switch."""
    ends = []
    for link in range(_MOST_NVLINKS):
        if not ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link)):  # type: ignore[misc]
            continue
        kind = ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # type: ignore[misc]
        if kind == _SWITCH:
            ends.append("")
            continue
        remote = ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))  # type: ignore[misc]
        if remote is not None:
            ends.append(_bus(text(remote.busId)))
    return ends


def _path(nvml: Any, first: Any, other: Any, nvlinks: int) -> str:
    if nvlinks:
        return f"NV{nvlinks}"
    level = ask(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, other))
    return _PCIE.get(max(level, 10), "") if level is not None else ""


def _bus(address: str) -> str:
    """Shorten the address' domain to four digits at least: NVML uses four or eight."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain.lstrip('0'):0>4}:{rest}"

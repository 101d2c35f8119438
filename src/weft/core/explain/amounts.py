"""Formats amounts for users: shares, memory, GPU counts, ages."""

from collections.abc import Iterable

from weft.model import GpuMemoryRequest, Share


def shares_in_words(shares: Iterable[Share]) -> str:
    """Format shares as `GPU 0 (50 % of cores, 4,000 MiB)`, separated by commas."""
    return ", ".join(
        f"GPU {share.gpu} ({share.milli / 10:g} % of cores, {share.memory_mib:,} MiB)"
        for share in shares
    )


def memory_in_words(memory: GpuMemoryRequest) -> str:
    """Format GPU memory in the unit in which the pod requested it; "-" for none."""
    return {
        "mib": f"{memory.value:,} MiB",
        "units": f"{memory.value} units",
        "node-units": f"{memory.value} units",
        "percent": f"{memory.value} % of a card",
        "millionths": f"{memory.value / 10_000:g} % of a card",
        "whole": "whole card",
        "none": "-",
    }[memory.kind]


def gpus_in_words(count: int) -> str:
    """Format a number of GPUs: `1 GPU`, `2 GPUs`."""
    return f"{count} GPU{'s' * (count > 1)}"


def age_in_words(seconds: float) -> str:
    """Format an age in one unit, rounded down, so that a text with it changes rarely and is not
    rewritten every second."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"

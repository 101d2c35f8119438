"""Amounts in words: shares, memory, GPUs, ages."""

from collections.abc import Iterable

from weft.model import GpuMemoryRequest, Share


def shares_in_words(shares: Iterable[Share]) -> str:
    """`GPU 0 (50 % of cores, 4,000 MiB)`, and so on."""
    return ", ".join(
        f"GPU {share.gpu} ({share.milli / 10:g} % of cores, {share.memory_mib:,} MiB)"
        for share in shares
    )


def memory_in_words(memory: GpuMemoryRequest) -> str:
    """GPU memory as it was asked for."""
    return {
        "mib": f"{memory.value:,} MiB",
        "units": f"{memory.value} units",
        "percent": f"{memory.value} % of a card",
        "whole": "whole card",
        "none": "-",
    }[memory.kind]


def gpus_in_words(count: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} GPU{'s' * (count > 1)}"


def age_in_words(seconds: float) -> str:
    """In one unit, rounded down: a reason that changes with every second is written every time."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"

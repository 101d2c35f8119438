"""Sums a row up, and writes the file."""

import os
import platform
import re
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from weft import __version__


class Sizes(msgspec.Struct, frozen=True):
    """How large everything is."""

    runs: int = 3
    nodes: int = 1_000
    pods: int = 2_000
    many_nodes: int = 5_000
    many_nodes_pods: int = 1_000
    extender_pods: int = 1_000
    burst_pods: int = 500
    scale_pods: int = 20_000
    scale_s: float = 30
    small_burst_pods: int = 40
    ruled_pods: int = 3_000
    ruled_apps: int = 30


QUICK = Sizes(
    runs=1,
    nodes=50,
    pods=100,
    many_nodes=100,
    many_nodes_pods=50,
    extender_pods=50,
    burst_pods=50,
    scale_pods=400,
    scale_s=5,
    small_burst_pods=40,
    ruled_pods=100,
    ruled_apps=5,
)


class Bar(NamedTuple):
    """One thing that must hold."""

    what: str
    value: float
    limit: float
    met: bool
    rule: str

    @classmethod
    def at_least(cls, what: str, value: float, limit: float) -> Self:
        return cls(what, round(value, 3), limit, value >= limit, ">=")

    @classmethod
    def at_most(cls, what: str, value: float, limit: float) -> Self:
        return cls(what, round(value, 3), limit, value <= limit, "<=")

    @classmethod
    def true(cls, what: str, value: bool) -> Self:
        return cls(what, float(value), 1.0, value, "is")

    def __str__(self) -> str:
        how = "met   " if self.met else "MISSED"
        return f"{how} {self.what}: {self.value} {self.rule} {self.limit}"


class Row(NamedTuple):
    """One row: its sizes, its figures, its bars."""

    sizes: dict[str, Any]
    figures: dict[str, Any]
    bars: list[Bar]

    def told(self) -> dict[str, Any]:
        """As it is written."""
        return {**self._asdict(), "bars": [bar._asdict() for bar in self.bars]}


def machine() -> dict[str, Any]:
    """The machine that this was measured on."""
    cpu = re.search(r"model name\s*: (.*)", _text("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s+(\d+)", _text("/proc/meminfo"))
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "system": platform.platform(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
    }


def versions(binaries: dict[str, str]) -> dict[str, str]:
    """Versions of everything that was measured."""
    return {"weft": __version__, "python": platform.python_version(), **binaries}


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""

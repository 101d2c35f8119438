"""How a node's GPUs are connected, in the terms of `nvidia-smi topo -m`.

NV4     4 NVLinks between the two, to each other or to switches
PIX     one PCIe switch         PXB    several PCIe switches
PHB     the CPU's PCIe          NODE   across PCIe host bridges of one NUMA node
SYS     between NUMA nodes
"""

import re
from collections.abc import Sequence

import msgspec

from weft.model.errors import BadInputError

MOST_LINKED = 16
"""Most cards of one node whose links are read: no machine has more."""
UNKNOWN_NUMA = -1

_NVLINKS = re.compile(r"NV([1-9]\d?)")
_PER_NVLINK = {1: 180, 2: 200, 3: 200, 4: 206, 5: 401}
_BY_PCIE = {"PIX": (120, 4), "PXB": (120, 3), "PHB": (100, 2), "NODE": (100, 1), "SYS": (60, 0)}
_NVLINK_RANK = 5
_RANKS = 8
SELF = "X"
_MODELS = {
    1: ("P100",),
    2: ("V100",),
    3: ("A100", "A800", "A30", "A40", "A6000", "3090"),
    4: ("H100", "H800", "H200", "H20", "GH200"),
    5: ("B100", "B200", "B300", "GB200", "GB300"),
}
GENERATIONS = tuple(_PER_NVLINK)


class GpuLinks(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The paths between a node's cards.

    `indexes` are the cards' NVML indexes; `paths` has a row for each of them, in that order: the
    types of its paths to all cards, separated by blanks, `X` to itself. `nvlink_generation` is 0 if
    there are no NVLinks. `numa` is each card's NUMA node, `UNKNOWN_NUMA` if unknown; empty: the
    same for all.
    """

    indexes: tuple[int, ...]
    paths: tuple[str, ...]
    nvlink_generation: int = 0
    numa: tuple[int, ...] = ()

    def path(self, one: int, other: int) -> str:
        """Return the type of the path between the cards at these two places in `indexes`."""
        return self.paths[one].split()[other]


def gbps_of(strength: int) -> float:
    """Return the GB/s, one way, of a path of this strength (see `path_strength`)."""
    return strength // _RANKS / 10


def nvlink_generation(model: str) -> int:
    """Return the generation of a GPU model's NVLinks; 0 if the model is not known to have
    NVLinks."""
    name = model.upper()
    return next((gen for gen, parts in _MODELS.items() if any(part in name for part in parts)), 0)


def path_strength(word: str, nvlink_generation: int) -> int:
    """Return a path's strength: a number that grows with its bandwidth, then with its nearness.

    Bandwidths are those that NCCL assumes (its `topo.h`: NVLink 18 to 40.1 GB/s a link by
    generation, PCIe 12, 10 through the CPU, 6 between sockets), for any PCIe generation.
    """
    match = _NVLINKS.fullmatch(word)
    if match is not None:
        tenths = int(match[1]) * _PER_NVLINK.get(nvlink_generation, _PER_NVLINK[3])
        return tenths * _RANKS + _NVLINK_RANK
    tenths, rank = _BY_PCIE[word]
    return tenths * _RANKS + rank


def checked_links(links: GpuLinks, where: str) -> GpuLinks:
    """Return the links with one blank between words, and without `numa` if it is the same for
    all cards; `BadInputError` at `where` if the links are impossible."""
    count = len(links.indexes)
    if not 0 < count <= MOST_LINKED or len(set(links.indexes)) < count or min(links.indexes) < 0:
        wrong = f"{count} GPUs: write 1 to {MOST_LINKED} different indexes"
        raise BadInputError(where, wrong)
    if links.nvlink_generation not in (0, *GENERATIONS):
        wrong = f"{links.nvlink_generation} is not a generation of NVLink; write 1 to 5"
        raise BadInputError(f"{where}, NVLink generation", wrong)
    if links.numa and len(links.numa) != count:
        wrong = f"{len(links.numa)} NUMA nodes for {count} GPUs; write one for each GPU, or none"
        raise BadInputError(f"{where}, NUMA", wrong)
    rows = _words(links.paths, count, where)
    numa = links.numa if any(node != links.numa[0] for node in links.numa) else ()
    paths = tuple(" ".join(row) for row in rows)
    return GpuLinks(links.indexes, paths, links.nvlink_generation, numa)


def _words(paths: Sequence[str], count: int, where: str) -> list[list[str]]:
    rows = [row.split() for row in paths]
    if len(rows) != count or any(len(row) != count for row in rows):
        raise BadInputError(where, f"write {count} rows of {count} paths, a row for each GPU")
    for row_number, row in enumerate(rows):
        for other, word in enumerate(row):
            at = f"{where}, row {row_number + 1}"
            if (word == SELF) != (row_number == other):
                raise BadInputError(at, f"{word[:20]!r}: {SELF} is the path of a GPU to itself")
            if word != SELF and word not in _BY_PCIE and not _NVLINKS.fullmatch(word):
                wrong = (
                    f"{word[:20]!r} is not a link type; write NV1 to NV99, {', '.join(_BY_PCIE)}"
                )
                raise BadInputError(at, wrong)
            if rows[other][row_number] != word:
                raise BadInputError(at, f"{word} one way, {rows[other][row_number][:20]} the other")
    return rows

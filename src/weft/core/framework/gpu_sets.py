"""Tables of how well each set of a node's GPUs is connected.

A set is a bit mask over the GPUs of its `GpuLinks`, in their order. The best ring through a set is
the one whose weakest path is strongest, as in NCCL's search. The set's *quality* is that path's
strength, then the number of the GPUs' NUMA nodes: fewer is better, as one node's CPUs can serve
them all. Everything is exact, and computed once for all nodes with equal links."""

import functools
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.model.gpu_links import GpuLinks, path_strength

Masks = npt.NDArray[np.int64]

NO_SET = -1
"""Quality of a set that does not exist."""
_NUMA_LEVELS = 32
_WANTED_LATER = (2, 4, 8)
"""Sizes of sets that later pods are expected to request."""


class RingPath(NamedTuple):
    """Path between two GPUs, given by their positions among the links, and the path's type."""

    one: int
    other: int
    word: str


class GpuSets:
    """All sets of up to 16 GPUs. Made by `gpu_sets`, and shared by nodes with equal links.

    `quality[mask]` is the set's quality (see the module's docstring), 0 for fewer than two GPUs."""

    def __init__(self, links: GpuLinks) -> None:
        self.links, self.count = links, len(links.indexes)
        self.place = {index: place for place, index in enumerate(links.indexes)}
        self._strength = _strengths(links)
        masks = np.arange(1 << self.count)
        self._size = np.bitwise_count(masks).astype(np.int64)
        self._ring = _rings(self._strength)
        self.quality: Masks = np.where(
            self._size > 1, self._ring * _NUMA_LEVELS + _NUMA_LEVELS - _numa_nodes(links), 0
        )
        self._best: dict[int, Masks] = {}
        self._of_size: dict[int, Masks] = {}
        self._later: Masks | None = None

    def best(self, size: int) -> Masks:
        """Return, for each mask, the best quality of any set of `size` within it, `NO_SET` if there
        is none."""
        known = self._best.get(size)
        if known is None:
            known = np.where(self._size == size, self.quality, NO_SET)
            for bit in range(self.count):
                pairs = known.reshape(-1, 2, 1 << bit)  # without the bit, with it
                np.maximum(pairs[:, 1], pairs[:, 0], out=pairs[:, 1])
            self._best[size] = known
        return known

    def sets(self, size: int) -> Masks:
        """Return all masks of this size, in order of their GPUs."""
        known = self._of_size.get(size)
        if known is None:
            chosen = combinations(range(self.count), size)
            masks = [sum(1 << place for place in places) for places in chosen]
            known = self._of_size[size] = np.array(masks, dtype=np.int64)
        return known

    def choose(self, candidates: Masks, free: int) -> int:
        """Return the best connected of these sets; of equal sets the one that leaves the best of
        the `free` GPUs for later pods, then the first."""
        quality = self.quality.take(candidates)
        best = candidates[quality == quality.max()]
        if len(best) > 1:
            left = self.left_for_later.take(free & ~best)
            return int(best[left.argmax()])
        return int(best[0])

    def weakest(self, mask: int) -> RingPath:
        """Return a path that limits the best ring through this set of two or more GPUs."""
        limit = self._ring[mask]
        places = [place for place in range(self.count) if mask >> place & 1]
        pairs = list(combinations(places, 2))
        strengths = [int(self._strength[pair]) for pair in pairs]
        one, other = pairs[strengths.index(int(limit))]
        return RingPath(one, other, self.links.path(one, other))

    def ring(self, mask: int) -> int:
        """Return the strength of the path that limits the set's best ring (see `path_strength`)."""
        return int(self._ring[mask])

    def word_of(self, quality: int) -> str:
        """Return the type of path that limits sets of this quality; "" for `NO_SET`."""
        at = np.argwhere(self._strength == quality // _NUMA_LEVELS)
        return self.links.path(int(at[0][0]), int(at[0][1])) if len(at) else ""

    def first_best(self, size: int, within: int) -> int:
        """Return the first of the best sets of this size within the mask `within`."""
        sets = self.sets(size)
        sets = sets[(sets & ~within) == 0]
        return int(sets[self.quality.take(sets).argmax()])

    @property
    def left_for_later(self) -> Masks:
        """Value of each set of free GPUs for later pods: the sum, over the sizes that later pods
        may request, of the size times the largest total strength of disjoint sets of that size."""
        if self._later is None:
            later = np.zeros(1 << self.count, dtype=np.int64)
            for size in _WANTED_LATER:
                if size <= self.count:
                    later += size * self._packed(size)
            self._later = later
        return self._later

    def _packed(self, size: int) -> Masks:
        """Return the largest total strength of disjoint sets of `size` within each mask."""
        if 2 * size > self.count or size > 4:  # one set fits, or two fill all GPUs
            ring = np.where(self._size == size, self._ring, 0)
            for bit in range(self.count):
                pairs = ring.reshape(-1, 2, 1 << bit)
                np.maximum(pairs[:, 1], pairs[:, 0], out=pairs[:, 1])
            return ring
        packed = np.zeros(1 << self.count, dtype=np.int64)
        for last in range(self.count):
            below = np.arange(1 << last)
            best = packed[: 1 << last].copy()  # the last card is in no set
            for places in combinations(range(last), size - 1):
                others = sum(1 << place for place in places)
                with_them = below[(below & others) == others]
                gain = self._ring[1 << last | others] + packed[with_them ^ others]
                best[with_them] = np.maximum(best[with_them], gain)
            packed[1 << last : 2 << last] = best
        return packed


@functools.lru_cache(maxsize=64)
def gpu_sets(links: GpuLinks) -> GpuSets:
    """Return the tables for these links, cached for nodes with equal links."""
    return GpuSets(links)


def _strengths(links: GpuLinks) -> Masks:
    count = len(links.indexes)
    strengths = np.zeros((count, count), dtype=np.int64)
    for gpu, row in enumerate(links.paths):
        for other, word in enumerate(row.split()):
            if gpu != other:
                strengths[gpu, other] = path_strength(word, links.nvlink_generation)
    return strengths


def _numa_nodes(links: GpuLinks) -> Masks:
    """Return the number of NUMA nodes of each set's GPUs."""
    masks = np.arange(1 << len(links.indexes))
    spanned = np.zeros(len(masks), dtype=np.int64)
    for node in set(links.numa):
        cards = sum(1 << place for place, of in enumerate(links.numa) if of == node)
        spanned += (masks & cards) != 0
    return np.minimum(spanned, _NUMA_LEVELS - 1)


def _rings(strength: Masks) -> Masks:
    """Return the strength of the weakest path of each set's best ring, [2^count]; 0 for fewer than
    two GPUs.

    By Held and Karp: `reach[mask, end]` is the strongest path through all GPUs of the mask, from
    its first to `end`, judged by its weakest link."""
    count = len(strength)
    masks = np.arange(1 << count)
    size = np.bitwise_count(masks)
    first = np.where(masks, np.bitwise_count((masks & -masks) - 1), 0).astype(np.int64)
    reach = np.zeros((1 << count, count), dtype=np.int64)
    reach[1 << np.arange(count), np.arange(count)] = np.iinfo(np.int64).max
    ring = np.zeros(1 << count, dtype=np.int64)
    for cards in range(2, count + 1):
        level = masks[size == cards]
        for end in range(count):
            here = level[(level >> end & 1 == 1) & (first[level] != end)]
            before = reach[here ^ (1 << end)]
            reach[here, end] = np.minimum(before, strength[end]).max(axis=1)
            closed = np.minimum(reach[here, end], strength[end].take(first[here]))
            ring[here] = np.maximum(ring[here], closed)
    return ring

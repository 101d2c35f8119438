"""Raters of Elastic GPU.

- elastic-binpack  makes the free amounts of the node's GPUs as unequal as possible, on few GPUs
- elastic-spread   rates everything 0, so the last GPU that fits wins"""

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import PlacementOptions, RemainingRequest
from weft.core.ledger.table import Ints
from weft.core.policies.compat import Compat, is_exact

NEVER_FREE = 1 << 40
"""More MiB or thousandths than any GPU has."""
FULL = 100_000
"""100 percent in a score with compat `sane`. Its thousandths of a percent keep placements apart
that the original scores differently."""


class ElasticBinpack(Policy):
    """Prefers the placement after which the free amounts of the node's GPUs differ most, on few
    GPUs; of equally rated placements the last wins."""

    name = "elastic-binpack"
    summary = "the place that leaves GPUs most unequally used, on the fewest GPUs"
    source = "elastic-gpu-scheduler, rater Binpack"
    compat_system = "elastic"
    ties = "last"

    def __init__(self, compat: Compat = "sane") -> None:
        self.exact = self.raw_scores = is_exact(self.name, compat)

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes for a request of whole GPUs, assuming that the node's first idle GPUs are
        taken, [n]; None for other requests."""
        need = query.need
        if query.demand.mode == "many" or need is None or not need.whole:
            return None
        fits = query.device_fits
        before = fits.cumsum() - fits
        first = query.min(before, 0)
        used = fits & (before - first.take(query.device_node) < need.count)
        memory = np.where(used, 0, query.device_memory_free)
        milli = np.where(used, 0, query.device_milli_free)
        return self._rate(
            (query.max(memory, 0), query.min(memory, 0)),
            (query.max(milli, 0), query.min(milli, 0)),
            _largest(query),
            used=1 if need.count == 1 else 0,
        )

    def score_devices(self, query: Query) -> Ints | None:
        """Score devices for one shared GPU request, by the state of the node after the placement,
        [d]; None for other requests."""
        need = query.need
        if need is None or need.whole:
            return None
        memory, milli = query.device_memory_free, query.device_milli_free
        charged = need.memory_mib.take(query.device_kind)
        card = _largest(query).take(query.device_node)
        return self._rate(
            _extremes(query, memory, memory - charged),
            _extremes(query, milli, milli - need.milli),
            card,
            used=1,
        )

    def rate_options(self, options: PlacementOptions) -> Ints:
        """Rate each way to place several GPU requests. A request for several GPUs counts as if it
        used none."""
        memory, milli = _most_and_least(options)
        card = np.maximum(options.memory_total.max(axis=1), 1)
        return self._rate(memory, milli, card, options.single.sum(axis=1))

    def bound_options(self, options: PlacementOptions, remaining: RemainingRequest) -> Ints:
        """Return an upper bound of the rating that each partial placement can reach: as if all
        remaining requests went onto its fullest GPU."""
        memory, milli = _most_and_least(options)
        card = np.maximum(options.memory_total.max(axis=1), 1)
        used = np.maximum(options.single.sum(axis=1), min(remaining.singles, 1))
        fullest = _filled(memory[1], remaining.memory_mib), _filled(milli[1], remaining.milli)
        return self._rate((memory[0], fullest[0]), (milli[0], fullest[1]), card, used)

    def _rate(
        self, memory: tuple[Ints, Ints], milli: tuple[Ints, Ints], card: Ints, used: Ints | int
    ) -> Ints:
        """Rate states of nodes by the most and the least free on one GPU (MiB, thousandths), the
        largest GPU's memory (MiB), and the number of GPUs used."""
        if self.exact:
            apart = memory[0] + milli[0] // 10 - memory[1] - milli[1] // 10
            return apart // 2 // (used + 1) * 100
        shares: Ints = (memory[0] - memory[1]) * FULL // card
        shares += (milli[0] - milli[1]) * (FULL // 1000)
        return shares // (2 * (used + 1))


def _largest(query: Query) -> Ints:
    """Return the memory of each node's largest GPU in MiB, at least 1 since a GPU may report no
    memory, [n]."""
    return np.maximum(query.max(query.device_memory_total, 1), 1)


def _extremes(query: Query, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """Return the most and the least free amount on one GPU of each device's node, if that device's
    free amount changed from `before` to `after`, [d] each."""
    node = query.device_node
    top = query.max(before, 0).take(node)
    at_top = before == top
    largest_other = query.max(np.where(at_top, -1, before), -1).take(node)
    alone = at_top & (query.count(at_top).take(node) == 1)
    most = np.maximum(np.where(alone, largest_other, top), after)
    return most, np.minimum(query.min(before, 0).take(node), after)


def _most_and_least(options: PlacementOptions) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Return the most and least free on one GPU, for memory and for cores, each [ways]."""
    is_device = options.there
    is_all = bool(is_device.all())

    def extremes(free: Ints) -> tuple[Ints, Ints]:
        if is_all:
            return free.max(axis=1), free.min(axis=1)
        most = np.where(is_device, free, -NEVER_FREE).max(axis=1)
        return most, np.where(is_device, free, NEVER_FREE).min(axis=1)

    return extremes(options.memory_free), extremes(options.milli_free)


def _filled(least: Ints, remaining: Ints | int) -> Ints:
    """Return a lower bound of the free amount on the GPU with the least, after all that remains is
    placed; not below 0 unless `least` is."""
    return np.asarray(np.minimum(least, np.maximum(least - remaining, 0)))


class ElasticSpread(Policy):
    """Rates all nodes equally, since the original's rater was never written; the last possible
    placement wins.

    Use `spread` or `nano-spread` to spread pods."""

    name = "elastic-spread"
    summary = "the last GPU that fits; all nodes tie"
    source = "elastic-gpu-scheduler, rater Spread"
    ties = "last"

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the last device that fits."""
        return len(fits) - 1

    def rate_options(self, options: PlacementOptions) -> Ints:
        """Rate all ways to place the requests equally."""
        return np.zeros(len(options.memory_free), dtype=np.int64)

    def bound_options(self, options: PlacementOptions, remaining: RemainingRequest) -> Ints:
        """Return the rating that every way to place the requests gets."""
        return self.rate_options(options)

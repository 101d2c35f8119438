"""Genius: scores GPUs by hardware (memory, SMs, codecs, bandwidth) and present use.

The data of GPU models below is from NVIDIA's data sheets, as Genius' own model map is missing."""

import functools

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.signals import Floats, SignalsView
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.core.policies import gpu_readings
from weft.core.policies.compat import Compat, is_exact
from weft.core.policies.gpu_amounts import standing
from weft.core.policies.gpu_readings import GpuReadingColumns, SnapshotCache, short_of_memory
from weft.model.model_names import normalized

STATIC = np.array([2.0, 2.0, 1.0, 1.0, 2.0]).reshape(-1, 1)
"""Weights of memory, multiprocessors, decoders, encoders, bandwidth."""
DYNAMIC = np.array([2.0, 1.0, 1.0, 1.0]).reshape(-1, 1)
"""Weights of free memory, power, encoder, decoder."""
STEPS = 18
"""Sum of the original's weights. The original's scores are integers, so scores are rounded to this
many steps here."""
UNUSED = 0.9
"""If less than this part of an idle GPU's memory is measured free, another process uses the GPU."""
EXACT = 1e-6
"""Tolerance below a step, since floating-point sums are inexact."""
TIER = 1_000_000_000
"""Larger than any GPU's free memory: separates one step of the score from the next."""


class GeniusPolicy(Policy):
    """Counts static features once and present use twice, on GPUs with enough memory measured free.

    `exact` is the original's formula, which prefers hot GPUs; where the original divides by zero,
    the term is 0. `sane` compares with the best GPU of the cluster, prefers cool GPUs, and leaves
    unknown features out; of GPUs with about the same score the fullest is filled first. Pods with a
    higher value of the label genius/priority go first."""

    name = "genius"
    summary = "large, fast cards with free memory and little to do"
    source = "Genius (Jiang), on ObserverWard's metrics"
    compat_system = "genius"
    own_priority = True
    reads = frozenset({"signals", "cluster"})
    unsafe = "only with compat exact: a pod that uses no memory yet is charged nothing"

    def __init__(self, compat: Compat = "sane") -> None:
        self.exact = is_exact(self.name, compat)
        self.unsafe = GeniusPolicy.unsafe if self.exact else ""
        self._seen = SnapshotCache(_Cards)

    def filter_devices(self, query: Query) -> Bools:
        """Mask of devices whose measured free memory, if known, is enough for the GPU request, [d].

        Without `exact`, a device also passes if the request fits beside what its pods have
        reserved, and no more memory is in use than they have reserved: a late sample still shows
        pods that have since left."""
        cards = self._seen.of(query)
        if self.exact:
            return np.asarray(~(query.take_devices(cards.free_mib) < gpu_readings.asked_mib(query)))
        return ~short_of_memory(query, cards.readings)

    def score_nodes(self, query: Query) -> Ints | None:
        """Score nodes, [n]: with `exact` by the original's score, otherwise by the mean of their
        GPUs' scores. Without `exact`, return None for pods whose GPUs are scored one by one."""
        cards = self._seen.of(query)
        if self.exact:
            scores = cards.exact_scores
            return scores if query.rows is None else scores.take(query.rows)
        if query.need is not None and not query.demand.needs[0].gpu_request.split:
            return None
        thousandths = (1000.0 * self._sane(query, cards)).astype(np.int64)
        return query.sum(thousandths) // np.maximum(query.gpus, 1)

    def score_devices(self, query: Query) -> Ints:
        """Score (static + 2·dynamic)/3 in whole numbers from 0 to `STEPS`; of equal scores the GPU
        with the least room is best, [d]. Score 0 with `exact`.

        The original chooses no GPU: processes use the first one that they see."""
        if self.exact:
            return np.zeros(len(query.device_local), dtype=np.int64)
        steps = STEPS * self._sane(query, self._seen.of(query))
        return TIER * (steps + EXACT).astype(np.int64) - standing(query)

    def _sane(self, query: Query, cards: "_Cards") -> Floats:
        """Compute (static + 2·dynamic)/3, weighted means, [d]. Free memory counts only on an unused
        GPU: more free memory than requested does not help the pod, and leaving a GPU whole helps
        the next pod."""
        measured = query.take_devices(cards.free_mib / cards.total)
        unused = (query.device_pods == 0) & ~(measured < UNUSED)
        terms = [unused.astype(np.float64)]
        terms += [1.0 - query.take_devices(column) for column in cards.use]
        rank = query.take_devices(cards.rank) + 2.0 * _mean(np.array(terms), DYNAMIC)
        return np.asarray(rank / 3.0)


class _Cards:
    """Static features and readings of all GPUs, computed once per snapshot, [D] each.

    `features` are the five static ones, `rank` their mean relative to the cluster's best GPU; `use`
    are power, encoder and decoder as shares of 1, NaN if unknown."""

    def __init__(self, view: SignalsView, table: LedgerTable) -> None:
        readings = GpuReadingColumns(view, table)
        self.table, self.readings = table, readings
        self.total, self.free_mib = readings.total, readings.free_mib
        self.power_w = readings.first("power_w.last", "power_w")[0]
        codecs = [
            readings.share(f"{unit}_ratio.last", f"{unit}_ratio") for unit in ("encoder", "decoder")
        ]
        self.use = [readings.power, *codecs]
        kinds = np.array([features(kind.model) for kind in table.kinds]).reshape(-1, 4)
        inventory = kinds.take(table.device_kind, axis=0).T
        self.features: Floats = np.concatenate([readings.total.reshape(1, -1), inventory])
        with np.errstate(invalid="ignore", divide="ignore"):
            best = np.fmax.reduce(self.features, axis=1, initial=1.0).reshape(-1, 1)
            self.rank = _mean(self.features / best, STATIC)

    @functools.cached_property
    def exact_scores(self) -> Ints:
        """Scores uint64(static + 2·dynamic) of every node, [N]; each GPU's value is divided by the
        sum over the whole cluster."""
        cards, count = self.table.devices, np.maximum(self.table.gpus, 1)
        static = np.zeros(self.table.count)
        for weight, column in zip(STATIC.ravel(), np.nan_to_num(self.features), strict=True):
            static += cards * weight * self._over_nodes(_share(column))
        power, encoder, decoder = (np.nan_to_num(c) for c in (self.power_w, *self.use[1:]))
        terms = (
            _share(np.nan_to_num(self.free_mib)),
            _share(power),
            _share(1.0 - encoder),
            _share(1.0 - decoder),
        )
        dynamic = np.zeros(self.table.count)
        for weight, term in zip(DYNAMIC.ravel(), terms, strict=True):
            dynamic += cards * weight * self._over_nodes(term) / count
        return np.clip(static + 2.0 * dynamic, 0.0, 2.0**40).astype(np.int64)

    def _over_nodes(self, column: Floats) -> Floats:
        table = self.table
        summed = np.bincount(table.device_node, weights=column, minlength=table.count)
        return np.asarray(summed, dtype=np.float64)


def _share(column: Floats) -> Floats:
    """Divide each GPU's value by the sum over all; 0 if the sum is 0."""
    whole = float(column.sum())
    return column / whole if whole > 0.0 else np.zeros_like(column)


def _mean(terms: Floats, weights: Floats) -> Floats:
    """Compute the weighted mean of the known terms of each device, [d]; 0 if none is known."""
    known = ~np.isnan(terms)
    total = (np.where(known, terms, 0.0) * weights).sum(axis=0)
    return np.asarray(total / np.maximum((known * weights).sum(axis=0), 1.0))


# --- GPU models -----------------------------------------------------------------------------------

MODELS: dict[str, tuple[int, int, int, int]] = {
    "1070 Ti": (19, 1, 2, 256),
    "2080 Ti": (68, 1, 1, 616),
    "3090": (82, 1, 1, 936),
    "4090": (128, 1, 2, 1008),
    "A2": (10, 2, 1, 200),
    "A10": (72, 2, 1, 600),
    "A16": (10, 2, 1, 200),
    "A30": (56, 4, 0, 933),
    "A40": (84, 2, 1, 696),
    "A100": (108, 5, 0, 1555),
    "A100-80": (108, 5, 0, 2039),
    "A100-SXM4-80": (108, 5, 0, 2039),
    "A100-PCIE-80": (108, 5, 0, 1935),
    "H100": (132, 7, 0, 3350),
    "H100 PCIe": (114, 7, 0, 2039),
    "H200": (132, 7, 0, 4800),
    "L4": (58, 4, 2, 300),
    "L40": (142, 3, 3, 864),
    "P4": (20, 1, 2, 192),
    "P40": (30, 1, 2, 346),
    "P100": (56, 1, 3, 732),
    "T4": (40, 2, 1, 320),
    "V100": (80, 1, 3, 900),
}
"""Multiprocessors, decoders, encoders, memory bandwidth in GB/s, by a part of the model's name."""


def features(model: str) -> Floats:
    """Return multiprocessors, decoders, encoders and bandwidth of a model, [4]; NaN if unknown.

    The longest entry whose words the name contains wins; case, blanks and dashes are ignored.
    """
    name = f" {normalized(model).lower()} "
    models = [key for key in MODELS if _has(name, normalized(key).lower())]
    if not models:
        return np.full(4, np.nan)
    return np.array(MODELS[max(models, key=len)], dtype=np.float64)


def _has(name: str, key: str) -> bool:
    """Return True if the name contains the key and no digit follows: A10 does not match A100."""
    _, separator, rest = name.partition(f" {key}")
    return bool(separator) and not rest[:1].isdigit()

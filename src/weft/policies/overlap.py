"""How long pods on a GPU would be together: loss counted as time, where pods say what they take.

Multi-stage, after ISACPP: who finishes first is dropped, the others go on without it, and so each
stage counts by its length. Times are seconds; `work` is what a pod has yet to do, alone.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weft.framework import Query
from weft.framework.interference import CardTable, Floats, InterferenceView
from weft.framework.stays import Stay, Stays
from weft.ledger.residents import Company, Resident
from weft.ledger.table import Bools, Ints
from weft.model import Shape

MOST = 4
"""Larger companies are not looked at."""


def finishes(work: Floats, slower: Floats) -> Floats:
    """When each pod ends, [d, k]; work 0 is nobody. `slower` [d, k, k]: log slowdown of k by k."""
    left, end = work.copy(), np.zeros_like(work)
    for _ in range(work.shape[1]):
        here = left > 0.0
        speed = np.exp(-(slower * here[:, None, :]).sum(axis=2))
        needs = np.where(here, left / speed, np.inf)
        stage = needs.min(axis=1, initial=np.inf)
        stage = np.where(np.isfinite(stage), stage, 0.0)[:, None]
        end += np.where(here, stage, 0.0)
        left = np.where(here & (needs > stage), left - stage * speed, 0.0)
    return end


class Overlap:
    """The query's GPUs on which everybody said how long it takes, as of `stays.now_ns`.

    `caution` counts as in `joining`: so far between the expected slowdown and its bound.
    """

    def __init__(self, query: Query, stays: Stays, view: InterferenceView, caution: float) -> None:
        self._view, self._caution = view, caution
        self._models = [model for model, _, _ in query.table.kinds]
        found = list(_known(query, stays))
        self.devices: Ints = np.array([device for device, _ in found], dtype=np.int64)
        self._kinds = query.device_kind.take(self.devices)
        self._who = np.full((len(found), MOST), view.unknown)
        self._work = np.zeros((len(found), MOST))
        for number, (_, there) in enumerate(found):
            speed = _speed(view.of(self._models[int(self._kinds[number])]), view)
            for place, stay in enumerate(there):
                self._who[number, place] = view.index_of(stay.who.application)
                self._work[number, place] = stay.left_s(stays.now_ns, speed)
        self._end = finishes(self._work, self._slowdowns(self._who))

    def pays(self, shape: Shape, waiting: int, away: float) -> Bools:
        """On which of `devices` joining costs less than to wait for a GPU of one's own.

        `away` is how many pods wait for each GPU: so much sooner they all start for each second of
        a GPU that is saved.
        """
        later, saved = self.costs(shape.application, shape.expected_s)
        return np.asarray(later < self.wait_s(waiting) + away * saved)

    def wait_s(self, waiting: int) -> float:
        """When the last of so many waiting pods has a GPU of its own, if nobody shares."""
        empty = np.sort(self._end.max(axis=1))
        rounds, last = divmod(waiting - 1, len(empty))
        return float(empty[last] + rounds * empty[-1])

    def costs(self, application: str, takes_s: float) -> tuple[Floats, Floats]:
        """If such a pod joined: how much later everybody ends than without, and how much less time
        of GPUs it takes than one after the other; seconds, for each of `devices`.
        """
        joins = np.full(len(self.devices), self._view.index_of(application))
        who, work = np.c_[self._who, joins], np.c_[self._work, np.full(len(joins), takes_s)]
        end = finishes(work, self._slowdowns(who))
        later = end.sum(axis=1) - self._end.sum(axis=1) - takes_s
        saved = self._end.max(axis=1) + takes_s - end.max(axis=1)
        return later, saved

    def _slowdowns(self, who: Ints) -> Floats:
        """Log slowdown of each by each, [d, k, k]; nobody slows itself down."""
        size = who.shape[1]
        slower = np.zeros((len(who), size, size))
        for kind in np.unique(self._kinds).tolist():
            card, rows = self._view.of(self._models[kind]), self._kinds == kind
            believed = card.mean + self._caution * (card.upper - card.mean)
            slower[rows] = believed[who[rows][:, :, None], who[rows][:, None, :]]
        slower[:, range(size), range(size)] = 0.0
        return np.minimum(slower, 50.0)  # forbidden pairs are kept apart elsewhere


def _known(query: Query, stays: Stays) -> Iterator[tuple[int, Sequence[Stay]]]:
    """Devices on which somebody is, and everybody says how long."""
    pods, rows = query.device_pods, query.device_node
    rows = rows if query.rows is None else query.rows.take(rows)
    some = np.flatnonzero((pods > 0) & (pods < MOST))
    columns = (rows.take(some), query.device_local.take(some), pods.take(some))
    for device, row, local, count in zip(some, *columns, strict=True):
        node = query.table.nodes[row]
        there = stays.on((node.name, node.gpus[local].index))
        if len(there) == count and all(stay.expected_s for stay in there):
            yield int(device), there


def _speed(card: CardTable, view: InterferenceView) -> Callable[[Resident, Company], float]:
    def speed(who: Resident, company: Company) -> float:
        others = [view.index_of(other.application) for other in company]
        return float(np.exp(-card.mean[view.index_of(who.application), others].sum()))

    return speed

"""What a policy thinks of joining each company on a GPU, worked out once for each.

A cluster has many GPUs and few companies, so a decision gathers numbers by company. Companies of
`most` pods and more are all alike to the policies here: nobody joins them.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from weft.framework import Query
from weft.framework.interference import Floats
from weft.ledger.residents import Company, Resident
from weft.ledger.table import Ints, Table

Judge = Callable[[Resident, Company, str], Sequence[float]]
"""(who asks, who is there, GPU model) → one number for each column."""

KEPT = 1024
"""Answers of so many pairs of who asks and GPU model are kept."""


def asking(query: Query) -> Resident:
    """Who asks."""
    shape = query.demand.shape
    return Resident(shape.application, shape.job_class)


class ByCompany:
    """Columns over devices, by `judge`; `crowd` are the numbers of a GPU that is too full.

    `forget` must be called when `judge` would answer differently than before.
    """

    def __init__(self, judge: Judge, crowd: Sequence[float], most: int) -> None:
        self._judge, self._crowd, self._most = judge, crowd, most
        self._table: Table | None = None
        self._epoch = -1
        self.forget()

    def forget(self) -> None:
        """Everything is to be judged anew."""
        self._small: list[Company] = []
        self._index: Ints = np.zeros(0, dtype=np.int64)
        self._known: OrderedDict[tuple[Resident, str], Floats] = OrderedDict()
        self._table = None

    def over(self, query: Query, who: Resident | None = None) -> Floats:
        """The columns for the query's devices, as `who` asks (the query's pod), [columns, d]."""
        table = query.table
        if table is not self._table or table.residents.epoch != self._epoch:
            self.forget()
            self._table, self._epoch = table, table.residents.epoch
        self._number(table.residents.members)
        who = asking(query) if who is None else who
        at = self._index.take(query.device_company)
        judged = [self._of(who, model) for model, _, _ in table.kinds]
        if len(judged) == 1:
            return np.asarray(judged[0].take(at, axis=1))
        size = judged[0].shape[1]
        every = np.concatenate(judged, axis=1)
        return np.asarray(every.take(query.device_kind * size + at, axis=1))

    def _number(self, members: Sequence[Company]) -> None:
        """Number the companies that are judged from 1; 0 is the crowd."""
        known = len(self._index)
        if known == len(members):
            return
        more = np.zeros(len(members) - known, dtype=np.int64)
        for place, company in enumerate(members[known:]):
            if len(company) < self._most:
                self._small.append(company)
                more[place] = len(self._small)
        self._index = np.concatenate([self._index, more])

    def _of(self, who: Resident, model: str) -> Floats:
        """[columns, 1 + companies judged]."""
        key = (who, model)
        known = self._known.get(key)
        if known is None:
            known = np.array(self._crowd, dtype=np.float64).reshape(-1, 1)
        else:
            self._known.move_to_end(key)
        done = known.shape[1] - 1
        if done < len(self._small) or key not in self._known:
            new = [self._judge(who, company, model) for company in self._small[done:]]
            if new:
                known = np.concatenate([known, np.array(new, dtype=np.float64).T], axis=1)
            self._known[key] = known
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known

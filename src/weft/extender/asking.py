"""The engine's pure questions for thousands of names at once, as arrays.

They answer as `weft.engine.questions` does, which the tests hold them to; there it is plainer.
"""

from itertools import compress, repeat

import numpy as np
import numpy.typing as npt

from weft.engine import Engine
from weft.engine.explain import summarise
from weft.engine.questions import Answers
from weft.framework import NEVER, Profile
from weft.ledger.table import Table
from weft.model import Code, PodRequest

Ints = npt.NDArray[np.int64]
_UNKNOWN = -1


class Lookup:
    """Names to rows. The last list (the very object) is remembered with its rows."""

    def __init__(self) -> None:
        self._names: list[str] | None = None
        self._table: Table | None = None
        self._found: Ints = np.zeros(0, dtype=np.int64)

    def rows(self, table: Table, names: list[str]) -> Ints:
        """A row for each name, -1 for one that the table does not have."""
        if names is not self._names or table is not self._table:
            found = map(table.row_of.get, names, repeat(_UNKNOWN))
            self._found = np.fromiter(found, np.int64, len(names))
            self._names, self._table = names, table
        return self._found


def which_fit(
    engine: Engine, profile: Profile, pod: PodRequest, names: list[str], lookup: Lookup
) -> Answers:
    """Which of these nodes could take the pod now, and why the others can't."""
    known = engine.assess(profile, pod)
    table = engine.ledger.table
    rows = lookup.rows(table, names)
    if table.count == 0:
        return Answers([], {}, {}, list(names))
    codes = known.codes.take(rows, mode="clip").astype(np.int64)
    codes[rows == _UNKNOWN] = _UNKNOWN
    bad = codes.nonzero()[0].tolist()
    if not bad:
        return Answers(names, {}, {}, [])
    answers = Answers(list(compress(names, (codes == 0).tolist())), {}, {}, [])
    texts = {int(one.code): str(one).partition(" × ")[2] for one in summarise(table, known).reasons}
    for place, code in zip(bad, codes.take(bad).tolist(), strict=True):
        if code == _UNKNOWN:
            answers.unknown.append(names[place])
        elif code <= Code.OUT_OF_SERVICE:
            answers.unresolvable[names[place]] = texts[code]
        else:
            answers.failed[names[place]] = texts[code]
    return answers


def scores(
    engine: Engine, profile: Profile, pod: PodRequest, names: list[str], lookup: Lookup
) -> list[int]:
    """0 to 10 for each of these nodes, whole numbers; 0 for those that don't fit."""
    known = engine.assess(profile, pod)
    table = engine.ledger.table
    found: Ints = np.zeros(len(names), dtype=np.int64)
    if table.count == 0:
        return [0] * len(names)
    rows = lookup.rows(table, names)
    raw = known.total.take(rows, mode="clip")
    fits = (rows != _UNKNOWN) & (raw != NEVER)
    if fits.any():
        found[fits] = (profile.lead.normalize(raw[fits]) + 5) // 10
    tenths: list[int] = found.tolist()
    return tenths

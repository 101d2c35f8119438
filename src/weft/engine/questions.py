"""Pure questions to the engine: what fits where, without reserving anything.

kube-scheduler may ask and then skip the rest of its cycle, or ask for one pod before it binds
another: so an answer promises nothing, and the bind decides again (`BindOn`).
"""

import msgspec
import numpy as np

from weft.engine.engine import Engine
from weft.engine.explain import summarise
from weft.framework import NEVER, Profile
from weft.model import Code, PodRequest


class Answers(msgspec.Struct, frozen=True):
    """About the nodes asked for, in their order: `fits` by name, the others' reasons.

    `unresolvable` are nodes where no other pod's end would help. `unknown` are names that the
    ledger does not have (a node that just came, or went).
    """

    fits: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]
    unknown: list[str]


def which_fit(engine: Engine, profile: Profile, pod: PodRequest, names: list[str]) -> Answers:
    """Filter: which of these nodes could take the pod now."""
    known = engine.assess(profile, pod)
    table = engine.ledger.table
    rows = [table.row_of.get(name, -1) for name in names]
    codes = [int(known.codes[row]) if row >= 0 else -1 for row in rows]
    texts = {int(r.code): _text(str(r)) for r in summarise(table, known).reasons}
    answers = Answers([], {}, {}, [])
    for name, row, code in zip(names, rows, codes, strict=True):
        if row < 0:
            answers.unknown.append(name)
        elif code == 0:
            answers.fits.append(name)
        elif code <= Code.OUT_OF_SERVICE:
            answers.unresolvable[name] = texts[code]
        else:
            answers.failed[name] = texts[code]
    return answers


def scores(engine: Engine, profile: Profile, pod: PodRequest, names: list[str]) -> dict[str, int]:
    """Prioritize: 0 to 10 for each node that fits, whole numbers; 0 for the others."""
    known = engine.assess(profile, pod)
    row_of = engine.ledger.table.row_of
    found = dict.fromkeys(names, 0)
    asked = [(name, row_of[name]) for name in names if name in row_of]
    asked = [(name, row) for name, row in asked if known.total[row] != NEVER]
    if asked:
        raw = known.total.take(np.array([row for _, row in asked], dtype=np.int64))
        tenths = (profile.lead.normalize(raw) + 5) // 10
        found.update(zip((name for name, _ in asked), tenths.tolist(), strict=True))
    return found


def fits_without(
    engine: Engine, profile: Profile, pod: PodRequest, node: str, victims: list[str]
) -> bool:
    """Preempt: whether the pod would fit on `node` if these pods (by UID) were gone."""
    ledger = engine.ledger
    row = ledger.table.row_of.get(node)
    if row is None:
        return False
    ledger.checkpoint()
    try:
        for uid in victims:
            ledger.release(uid)
        return bool(engine.assess(profile, pod).codes[row] == 0)
    finally:
        ledger.rollback()


def _text(reason: str) -> str:
    """A reason without its count: kube-scheduler counts equal texts itself."""
    return reason.partition(" × ")[2]

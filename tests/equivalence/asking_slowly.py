"""The engine's pure questions, one node at a time."""

import numpy as np

from weft.core.engine import Engine
from weft.core.engine.questions import Answers
from weft.core.engine.reasons import reasons_of
from weft.core.framework import NEVER, Profile
from weft.model import Code, PodRequest


def which_fit(engine: Engine, profile: Profile, pod: PodRequest, names: list[str]) -> Answers:
    known, table = engine.assess(profile, pod), engine.ledger.table
    answers = Answers([], {}, {}, [])
    for name in names:
        if name not in table.row_of:
            answers.unknown.append(name)
            continue
        reasons = reasons_of(table, known, np.array([table.row_of[name]]), pod.warnings)
        if not reasons:
            answers.fits.append(name)
        elif reasons[0].code <= Code.OUT_OF_SERVICE:
            answers.unresolvable[name] = reasons[0].text
        else:
            answers.failed[name] = reasons[0].text
    return answers


def scores(engine: Engine, profile: Profile, pod: PodRequest, names: list[str]) -> list[int]:
    known, table = engine.assess(profile, pod), engine.ledger.table
    asked = [name for name in dict.fromkeys(names) if name in table.row_of]
    asked = [name for name in asked if known.total[table.row_of[name]] != NEVER]
    if not asked:
        return [0] * len(names)
    raw = known.total.take([table.row_of[name] for name in asked])
    percent = dict(zip(asked, profile.lead.normalize(raw).tolist(), strict=True))
    return [int(percent[name] / 10 + 0.5) if name in percent else 0 for name in names]

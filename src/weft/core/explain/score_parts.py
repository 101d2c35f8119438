"""Explains the score of a pod's place in words, for policies that report its parts."""

from collections.abc import Callable, Mapping

import numpy as np

from weft.core.engine.engine import Engine
from weft.core.engine.reasons import best_nodes
from weft.core.engine.records import Candidate
from weft.core.explain.counterfactual import PlacementQuestion, without
from weft.core.framework import Query
from weft.core.framework.demand import Demand
from weft.core.framework.policy import ScorePart
from weft.core.framework.query import NOTHING_OBSERVED
from weft.model import Share

Facts = Mapping[str, float | int | str]


def score_in_words(
    engine: Engine, question: PlacementQuestion, node: str, shares: tuple[Share, ...]
) -> tuple[str, ...]:
    """Return one line for each significant part of the score of this place, as of now.

    The holdings of the pods in `question.gone` count as free. Empty if the place no longer
    exists."""
    table = engine.ledger.table
    row = table.row_of.get(node, -1)
    if row < 0:
        return ()
    with without(engine, question.gone):
        demand = Demand(engine.oom_history.shape_of(question.pod), table)
        observed = engine.assessor.observed if question.profile.observes else NOTHING_OBSERVED
        query = Query(table, demand, np.array([row], dtype=np.int64), observed)
        devices = [table.device_row(row, share.gpu) - table.start[row] for share in shares]
        if any(device < 0 for device in devices):
            return ()
        return tuple(
            line
            for policy in question.profile.policies
            for part in policy.score_parts(query, devices)
            if (line := _line(part, shares))
        )


def best_now(engine: Engine, question: PlacementQuestion, most: int) -> tuple[Candidate, ...]:
    """Return the best nodes for the pod as of now; the holdings of `question.gone` count as
    free."""
    with without(engine, question.gone):
        known = engine.assess(question.profile, question.pod)
        return tuple(best_nodes(engine.ledger.table, known, question.profile, most))


def _line(part: ScorePart, shares: tuple[Share, ...]) -> str:
    facts = {**part.facts, "points": part.points}
    words = _WORDS[part.name](facts, shares) if part.name in _WORDS else part.name
    return f"{part.points or 0:+.1f}: {words}" if words else ""


def _completion(facts: Facts, shares: tuple[Share, ...]) -> str:
    if not shares:
        return ""
    gpus = "GPU " + ", ".join(str(share.gpu) for share in shares)
    left, worth = int(facts["left"]), float(facts["worth"])
    if not left:
        return f"completes {gpus} exactly"
    return (
        f"leaves {left / 10:.0f} % of {gpus}, worth {worth / 10:.0f} % of a GPU to the usual pods"
    )


def _models(facts: Facts, shares: tuple[Share, ...]) -> str:
    price = float(facts["price"])
    if not price or not shares:
        return ""
    return f"its GPU model is wanted by pods that accept few others (price {price:.2f})"


def _slots(facts: Facts, shares: tuple[Share, ...]) -> str:
    before, after = int(facts["before"]), int(facts["after"])
    if after < before:
        return f"leaves {after} of {before} idle GPUs for pods with several GPUs"
    article = "an" if after in (8, 11, 18) else "a"
    return f"keeps {article} {after}-GPU slot free" if after > 1 else ""


def _beside(facts: Facts, shares: tuple[Share, ...]) -> str:
    short = [
        f"{name} for {float(facts[f'{key}_short']):.1f} of the {float(facts['left']):.1f} GPUs "
        f"left, without this pod {float(facts[f'{key}_short_before']):.1f} of "
        f"{float(facts['left_before']):.1f}"
        for name, key in (("CPU", "cpu"), ("memory", "memory"))
        if max(float(facts[f"{key}_short"]), float(facts[f"{key}_short_before"])) >= 0.05
    ]
    told = "CPU and memory are enough for the GPUs left"
    if short:
        told = (
            "eases a shortage: " * (float(facts["points"]) > 0) + "short of " + " and ".join(short)
        )
    return told + (_learnt(float(facts["turnover"])) if "turnover" in facts else "")


def _learnt(turnover: float) -> str:
    """Return in words the learnt turnover, and the value of the policy's option `setting` that
    it corresponds to."""
    setting = (
        "living"
        if turnover >= 0.5
        else "inflation"
        if not turnover
        else "between living and inflation"
    )
    return (
        f" (learnt turnover {turnover:.0%}: the part of what pods hold that others had freed "
        f"before; objective: as with setting={setting})"
    )


def _packing(facts: Facts, shares: tuple[Share, ...]) -> str:
    return f"{int(facts['free']) / 1000:.1f} GPUs are left free on the node"


def _load(facts: Facts, shares: tuple[Share, ...]) -> str:
    gpu, load = shares[int(facts["position"])].gpu, float(facts["load"])
    if load >= 0:
        return f"GPU {gpu} has a measured load of {load:.0%}"
    return f"GPU {gpu}'s load is not measured; {float(facts['unpromised']):.0%} of it is free"


def _co_residents(facts: Facts, shares: tuple[Share, ...]) -> str:
    return f"shared, this GPU is predicted to be worth {float(facts['value']):.0%} of an empty GPU"


_WORDS: Mapping[str, Callable[[Facts, tuple[Share, ...]], str]] = {
    "completion": _completion,
    "models": _models,
    "slots": _slots,
    "beside": _beside,
    "packing": _packing,
    "load": _load,
    "co-residents": _co_residents,
}

"""Faults beside deciding (prices, scores ahead, learning, explanations) cost their own result
where it breaks off: never the process, and never a pod's turn."""

import pytest

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    Tick,
)
from weft.core.framework import Policy, Profile
from weft.core.policies.auto import Auto
from weft.core.policies.least_stranding import LeastStranding
from weft.testing import node, pod

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def bound(engine: Engine, uid: str, now_ns: int, **asks: int) -> list[Command]:
    commands = engine.handle(PodAdded(pod(uid, **asks)), now_ns)
    for command in commands:
        if isinstance(command, Bind):
            engine.handle(PodBound(command.pod.uid), now_ns)
    return commands


# --- scores made ahead ---


@pytest.mark.parametrize("policy", [LeastStranding, Auto])
@pytest.mark.parametrize("change", ["joins", "leaves", "gains a GPU", "loses a GPU"])
@pytest.mark.parametrize("due", ["pods", "time"])
def test_scores_are_made_ahead_for_the_nodes_that_there_are(
    policy: type[Policy], change: str, due: str
) -> None:
    nodes = [node(f"n{i}", gpus=4, cpu_milli=64_000) for i in range(3)]
    engine = Engine([Profile("weft", [policy()])], nodes)
    bound(engine, "first", 0, memory_mib=500)
    changed = {
        "joins": NodesChanged((node("n3", gpus=4),)),
        "leaves": NodesChanged((), ("n2",)),
        "gains a GPU": NodesChanged((node("n2", gpus=5),)),
        "loses a GPU": NodesChanged((node("n2", gpus=3),)),
    }
    engine.handle(changed[change], SECOND)
    if due == "pods":
        for number in range(205):
            bound(engine, f"p{number}", 2 * SECOND, memory_mib=10)
            engine.handle(PodGone(f"p{number}"), 2 * SECOND)
    engine.handle(Tick(), HOUR)
    engine.handle(Tick(), HOUR)
    assert not engine.assessor.is_behind
    looked = engine.assessor.looked
    (bind,) = (c for c in bound(engine, "like it", HOUR, memory_mib=500) if isinstance(c, Bind))
    assert engine.assessor.looked - looked < 1_000, "it was scored ahead"
    assert bind.record.fault == ""

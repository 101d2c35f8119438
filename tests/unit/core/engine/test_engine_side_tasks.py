"""Faults beside deciding (prices, scores ahead, learning, explanations) cost their own result
where it breaks off: never the process, and never a pod's turn."""

import gc
import weakref

import pytest

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Faulted,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
    TaskFaulted,
    Tick,
    deciding,
)
from weft.core.engine.assessment import Assessor
from weft.core.engine.decision_faults import SideTasks
from weft.core.engine.oom_history import OomHistory
from weft.core.engine.peak_usage import Peaks
from weft.core.engine.pricing import PRICING, PriceLists, Turnover
from weft.core.framework import Policy, Profile
from weft.core.framework.popularity import POPULAR_PODS, weighted_input
from weft.core.ledger import Ledger
from weft.core.policies.auto import Auto
from weft.core.policies.least_stranding import LeastStranding, Popularity
from weft.testing import node, pod, shape

SECOND = 1_000_000_000
HOUR = 3600 * SECOND


def bound(
    engine: Engine, uid: str, now_ns: int, application: str = "", **asks: int
) -> list[Command]:
    commands = engine.handle(PodAdded(pod(uid, application=application, **asks)), now_ns)
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
    assert not engine.assessor.dear
    looked = engine.assessor.looked
    (bind,) = (c for c in bound(engine, "like it", HOUR, memory_mib=500) if isinstance(c, Bind))
    assert engine.assessor.looked - looked < 1_000, "it was scored ahead"
    assert bind.record.fault == ""


# --- whatever breaks off ---


def raises(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of our own")


POINTS = {
    "prices": (LeastStranding, "take_table"),
    "prices of what comes": (Popularity, "__init__"),
    "turnover": (Turnover, "settle"),
    "counting who comes": (PriceLists, "comes"),
    "counting who goes": (PriceLists, "gone"),
    "scores ahead": (Assessor, "work_ahead"),
    "what ran out of memory": (OomHistory, "learn"),
    "who goes first": (OomHistory, "goes_first"),
    "what was learnt": (OomHistory, "shape_of"),
    "peaks": (Peaks, "ran"),
    "peaks to keep": (Peaks, "news"),
    "best nodes": (deciding, "best_nodes"),
    "what it is charged": (OomHistory, "charged"),
    "expected slowdowns": (deciding, "predicted"),
    "links": (deciding, "links"),
}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("policy", [LeastStranding, Auto])
def test_whatever_breaks_off_beside_deciding_costs_nobody_a_turn(
    point: str, policy: type[Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pod gets its place, before and after; the fault is told of."""
    nodes = [node(f"n{i}", gpus=4, cpu_milli=64_000) for i in range(2)]
    engine = Engine([Profile("weft", [policy()])], nodes, keep_top=3)
    assert any(isinstance(one, Bind) for one in bound(engine, "before", 0, memory_mib=500))
    monkeypatch.setattr(*POINTS[point], raises)
    usual = weighted_input({shape(memory_mib=4_000): 3})
    told = engine.handle(PolicyInput(POPULAR_PODS, usual), SECOND)
    for number, at_ns in enumerate((SECOND, HOUR, 2 * HOUR)):
        commands = bound(engine, f"p{number}", at_ns, "bert", memory_mib=300)
        assert any(isinstance(one, Bind) and one.pod.uid == f"p{number}" for one in commands)
        told += commands
        told += engine.handle(PodGone(f"p{number}", out_of_memory=number == 1), at_ns)
        told += engine.handle(Tick(), at_ns)
        told += bound(engine, "later", at_ns, gpus=2)
        told += engine.handle(PodGone("later", completed=True), at_ns)
    assert not any(isinstance(one, Faulted) for one in told)
    assert any(isinstance(one, TaskFaulted) for one in told)


def test_the_last_prices_stay_where_new_ones_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [node(f"n{i}", gpus=4, cpu_milli=64_000) for i in range(2)]
    engine = Engine([Profile("weft", [LeastStranding()])], nodes)
    monkeypatch.setattr(Popularity, "__init__", raises)
    usual = weighted_input({shape(memory_mib=4_000): 3})
    told = engine.handle(PolicyInput(POPULAR_PODS, usual), 0)
    assert [one.task for one in told if isinstance(one, TaskFaulted)] == [PRICING]
    (bind,) = (c for c in bound(engine, "p", 1, memory_mib=500) if isinstance(c, Bind))
    assert bind.record.score, "it is scored by the prices that there are"


def test_a_ledger_whose_accounts_break_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine([Profile("weft", [LeastStranding()])], [node("n", gpus=1)])
    bound(engine, "p", 0, memory_mib=500)
    monkeypatch.setattr(Ledger, "release", raises)
    with pytest.raises(ZeroDivisionError):
        engine.handle(PodGone("p"), 1)


def test_a_task_that_broke_off_is_not_kept() -> None:
    tasks = SideTasks()
    tasks.run("dividing", lambda: 1 // 0, None)
    engine = weakref.ref(tasks)
    del tasks
    gc.collect()
    assert engine() is None

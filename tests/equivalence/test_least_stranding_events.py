"""Least stranding decides by the events alone: whatever was worked out ahead, asked or kept."""

import ast
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from long_form import few_or_many

import weft.core
from weft.core.engine import (
    Bind,
    BindOn,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodBound,
    PodFitsNowhere,
    PodGone,
    PodSeenBound,
    PolicyInput,
    Tick,
    Wake,
)
from weft.core.framework import Profile
from weft.core.framework.popularity import POPULAR_PODS, ArrivedPods
from weft.core.policies.catalog import built_in
from weft.core.policies.least_stranding import LeastStranding
from weft.core.record import (
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    read,
    replay,
)
from weft.model import Node, Placement, PodRequest, Shape
from weft.testing import node, shape

Place = tuple[str, tuple[int, ...]] | None
PODS_PER_PRICES = LeastStranding().prices_every.pods
NODES = 300
"""More than are answered one by one."""


def _nodes(mixed: bool) -> tuple[Node, ...]:
    models = [("V100", "T4"), "A10", "V100"] if mixed else ["V100", "A10", "T4"]
    return tuple(
        node(f"n{at:03}", gpus=2, model=models[at % 3], cpu_milli=16_000) for at in range(NODES)
    )


def _shapes(chance: random.Random) -> list[Shape]:
    kinds = [
        shape(milli=chance.choice((130, 250, 500, 810)), cpu_milli=chance.choice((0, 2500)))
        for _ in range(6)
    ]
    kinds += [shape(gpus=1, cpu_milli=3000), shape(gpus=2, cpu_milli=6000, models=("V100",))]
    return [*kinds, shape(cpu_milli=2000)]


def _pods(seed: int, count: int) -> Iterator[tuple[PodRequest, str]]:
    """Pods, and with each the name of one that ends before it comes, or none."""
    chance = random.Random(seed)
    kinds = _shapes(chance)
    for at in range(count):
        gone = str(chance.randrange(at)) if at and chance.random() < 0.3 else ""
        yield PodRequest(str(at), f"p{at}", chance.choice(kinds)), gone


def _place(placement: Placement) -> Place:
    return placement.node, tuple(sorted(share.gpu for share in placement.shares))


@pytest.mark.parametrize("mixed", [False, True])
def test_what_was_worked_out_ahead_or_kept_decides_as_what_is_worked_out_when_asked(
    mixed: bool,
) -> None:
    """Pods come and go over several price lists; one engine forgets all before each pod."""
    engines = [Engine([Profile("weft", [LeastStranding()])]) for _ in range(2)]
    for engine in engines:
        engine.handle(NodesChanged(_nodes(mixed)), 0)
    asked_for_ticks = 0
    for at, (pod, gone) in enumerate(_pods(7, PODS_PER_PRICES + 50)):
        engines[1].assessor.forget()
        places: list[list[Place]] = []
        for engine in engines:
            if gone:
                engine.handle(PodGone(gone), at)
            commands = engine.handle(PodAdded(pod), at)
            places.append([_place(c.placement) for c in commands if isinstance(c, Bind)])
            engine.handle(PodBound(pod.uid), at)
            while Wake(at) in commands:
                asked_for_ticks += 1
                commands = engine.handle(Tick(), at)
        assert places[0] == places[1]
    assert asked_for_ticks


def test_what_will_be_asked_is_scored_between_decisions() -> None:
    """After new prices the next decisions look at what changed, and not at all nodes."""
    engine = Engine([Profile("weft", [LeastStranding()])])
    engine.handle(NodesChanged(_nodes(False)), 0)
    looks = []
    for at, (pod, _) in enumerate(_pods(8, 2 * PODS_PER_PRICES)):
        before = engine.assessor.looked
        commands = engine.handle(PodAdded(pod), at)
        looks.append(engine.assessor.looked - before)
        engine.handle(PodBound(pod.uid), at)
        while Wake(at) in commands:
            commands = engine.handle(Tick(), at)
    later = looks[PODS_PER_PRICES:]
    assert max(later) < NODES + max(looks[PODS_PER_PRICES // 2 : PODS_PER_PRICES])


def _learning(pods: list[tuple[PodRequest, str]]) -> Iterator[tuple[Event, int]]:
    """The events of pods that come, of those that end, and of what is learnt of them."""
    arrived = ArrivedPods(half_life_ns=60)
    for at, (pod, gone) in enumerate(pods):
        if gone:
            yield PodGone(gone), at
        if arrived.is_due:
            yield PolicyInput(POPULAR_PODS, arrived.histogram(at)), at
        arrived.add(pod.shape, at)
        yield PodAdded(pod), at


def test_the_extender_decides_as_the_scheduler_while_it_learns() -> None:
    """kube-scheduler asks for scores, takes the best node, and has the pod bound there. Over
    several price lists, by number and by age; every seventh pod fits nowhere, which is told too."""
    every = few_or_many(60, PODS_PER_PRICES)
    pods = list(_pods(9, 2 * every + 30))
    profile, other = (Profile("weft", [LeastStranding(pods_per_prices=every)]) for _ in range(2))
    scheduler, extender = Engine([profile]), Engine([other])
    for engine in (scheduler, extender):
        engine.handle(NodesChanged(_nodes(False)), 0)
    placed = refused = 0
    for event, at in _learning(pods):
        now_ns = at * 4_000_000_000
        if not isinstance(event, PodAdded):
            for engine in (scheduler, extender):
                engine.handle(event, now_ns)
            continue
        pod = event.pod
        if int(pod.uid) % 7 == 3:
            pod = PodRequest(pod.uid, pod.name, shape(gpus=3))
        commands = scheduler.handle(PodAdded(pod), now_ns)
        known = extender.assess(other, pod, None)
        if not known.counts[0]:
            extender.handle(PodFitsNowhere(pod.uid), now_ns)
            scheduler.handle(PodGone(pod.uid), now_ns)
            refused += 1
            continue
        best = int(known.total.argmax())
        asked = extender.ledger.table.nodes[best].name, int(known.total[best])
        answers = extender.handle(BindOn(pod, asked[0], "weft"), now_ns)
        mine, theirs = (
            [(_place(c.placement), c.record.score) for c in each if isinstance(c, Bind)]
            for each in (commands, answers)
        )
        assert mine == theirs
        assert (mine[0][0][0], mine[0][1]) == asked
        placed += len(mine)
        for engine in (scheduler, extender):
            engine.handle(PodBound(pod.uid), now_ns)
    assert placed > every
    assert refused > every // 4


def test_what_was_learnt_replays_bit_for_bit_also_after_a_restart(tmp_path: Path) -> None:
    """Two processes, each with a file; the second finds the first one's pods bound."""
    pods = list(_pods(10, 160))
    told = list(_learning(pods))
    begun: list[tuple[Event, int]] = [(NodesChanged(_nodes(False)[:20]), 0)]
    for part in (told[:90], told[90:]):
        header = Header([ProfileUse("weft", [PolicyUse("least-stranding")])])
        engine, path = header.engine(built_in().create), tmp_path / f"{len(begun)}"
        with path.open("wb") as out:
            recorder = Recorder(engine, header, DecisionsWriter(out).write)
            for event, at in [*begun, *part]:
                for command in recorder.handle(event, at):
                    if isinstance(command, Bind):
                        recorder.handle(PodBound(command.pod.uid), at)
        held = [holding.placement for holding in engine.ledger.holdings.values()]
        begun = [begun[0], *((PodSeenBound(each), 0) for each in held)]
        result = replay(*read(path), built_in().create)
        assert result.identical
        assert result.decisions > 40


WHOLE_NUMBERS = {"node_sets.py", "victims.py"}
"""Products of whole numbers whose sums are below 2^53 are exact in any order."""


def test_decisions_use_no_matrix_product() -> None:
    """Its sums hang on how many columns and how many threads there are (BLAS)."""
    found = []
    for path in Path(weft.core.__path__[0]).rglob("*.py"):
        if path.name in WHOLE_NUMBERS:
            continue
        for part in ast.walk(ast.parse(path.read_text())):
            named = isinstance(part, ast.Attribute) and part.attr in {"dot", "matmul", "einsum"}
            if named or isinstance(part, ast.MatMult):
                found.append(f"{path.name}:{getattr(part, 'lineno', '')}")
    assert not found


def record_decisions(path: str) -> None:
    """Write what is decided of pods that come and go, while it learns, as a decisions file."""
    header = Header([ProfileUse("weft", [PolicyUse("least-stranding")])])
    engine = header.engine(built_in().create)
    with Path(path).open("wb") as out:
        recorder = Recorder(engine, header, DecisionsWriter(out).write)
        recorder.handle(NodesChanged(_nodes(True)), 0)
        for event, at in _learning(list(_pods(11, few_or_many(70, 130)))):
            recorder.handle(event, at)


def test_decisions_are_byte_for_byte_the_same_with_any_number_of_threads(tmp_path: Path) -> None:
    """Whatever NumPy and what is below it make of them."""
    written = []
    for threads in ("1", "4"):
        libraries = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
        env = os.environ | {f"{library}_NUM_THREADS": threads for library in libraries}
        env["PYTHONPATH"] = os.pathsep.join(sys.path)
        path = tmp_path / f"with{threads}.jsonl"
        code = f"import {__name__} as this; this.record_decisions({str(path)!r})"
        subprocess.run([sys.executable, "-c", code], check=True, env=env)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].count(b'"outcome":"placed"') > 50

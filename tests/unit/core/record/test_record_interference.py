"""Decisions by predicted interference say what was predicted, and replay alike whoever waits."""

import io
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Engine,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
    Tick,
)
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder
from weft.core.record.reading import read
from weft.core.record.replay import replay
from weft.model import GpuMemoryRequest, Placement, PodRequest, Shape
from weft.model.interference_table import INTERFERENCE, PredictionTier, interference, to_input
from weft.model.request import rounded_s
from weft.testing import node, pod

NAMES = ("a", "b", "c")
S = 1_000_000_000


def told(width: float = 0.1) -> object:
    rng = np.random.default_rng(2)
    mean = rng.random((1, 4, 4)) * 1.2 * width
    tier = np.full(mean.shape, PredictionTier.LEARNED, dtype=np.int8)
    return to_input(interference(1, ["T4"], NAMES, (mean, mean + width, tier)))


def drawn(
    dice: random.Random, step: int, expected_s: tuple[int, ...], slowdown_limit: tuple[int, ...]
) -> PodRequest:
    """A pod of one of the applications; with limits given, most are small and latency-critical."""
    new = pod(
        f"p{step}",
        memory_mib=4000,
        application=dice.choice(NAMES),
        job_class=dice.choice(["", "best-effort"]),
        created_ns=step * 5 * S,
    )
    if slowdown_limit and dice.random() < 0.8:
        own = (("t4", dice.choice(slowdown_limit)), ("", 100))
        small = replace(new.shape.gpu_requests[0], memory=GpuMemoryRequest("mib", 1000))
        shape = replace(
            new.shape, job_class="latency-critical", slowdown_limit=own, gpu_requests=(small,)
        )
        new = replace(new, shape=shape)
    if expected_s:
        shape = replace(new.shape, expected_s=rounded_s(dice.choice(expected_s)))
        new = replace(new, shape=shape)
    return new


def replays(written: bytes, folder: Path) -> None:
    file = folder / "decisions.jsonl"
    file.write_bytes(written)
    header, lines = read(file)
    verdict = replay(header, lines, built_in().create)
    assert verdict.identical, verdict
    assert verdict.decisions > 60


@pytest.mark.parametrize(
    ("policy", "expected_s", "slowdown_limit"),
    [
        ("interference", (), ()),
        ("interference", (60, 300, 2000), ()),
        ("coscheml", (), ()),
        ("lucid", (), ()),
        ("auto", (), ()),
        ("interference", (), (104, 108, 300)),
        ("interference", (60, 2000), (104, 108)),
        ("coscheml", (), (104, 108)),
    ],
)
def test_it_replays_and_says_what_was_predicted(
    policy: str, expected_s: tuple[int, ...], slowdown_limit: tuple[int, ...], tmp_path: Path
) -> None:
    """Latency-critical pods, some small, say their slack where `slowdown_limit` is given."""
    dice, out = random.Random(policy), io.BytesIO()
    engine = Engine([Profile("weft", [built_in().create(policy)])])
    uses = [ProfileUse("weft", [PolicyUse(policy)])]
    handle = Recorder(engine, Header(uses), DecisionsWriter(out).write).handle
    handle(NodesChanged(tuple(node(name, gpus=2, model="T4") for name in ("n0", "n1"))), 0)
    handle(PolicyInput(INTERFERENCE, told(0.04 if slowdown_limit else 0.1)), 0)
    there: list[str] = []
    shared = 0
    for step in range(120):
        now = step * 5 * S
        if there and dice.random() < 0.45:
            commands = handle(PodGone(there.pop(dice.randrange(len(there)))), now)
        else:
            commands = handle(PodAdded(drawn(dice, step, expected_s, slowdown_limit)), now)
        commands += handle(Tick(), now + 3 * S)
        for command in commands:
            if isinstance(command, Bind):
                uid, record = command.pod.uid, command.record
                place = command.placement
                row = engine.ledger.table.row_of[place.node]
                device = engine.ledger.table.device_row(row, place.shares[0].gpu)
                beside = engine.ledger.table.residents.on(device)
                handle(PodBound(uid), now + 3 * S)
                there.append(uid)
                if record.predicted:
                    shared += 1
                    assert record.predicted[0].application == place.application
                    assert {one.tier for one in record.predicted} == {"learned"}
                    assert all(1 <= one.slowdown <= one.upper for one in record.predicted)
                else:
                    assert place.application in [one.application for one in beside]
    assert shared > 5
    if slowdown_limit:
        assert b'"slowdown_limit":[["t4",108],["",100]]' in out.getvalue()
    replays(out.getvalue(), tmp_path)


@pytest.mark.parametrize("value", [Placement("a", "n"), Shape(application="x")])
def test_what_was_written_before_pods_had_slack_is_read(value: Placement | Shape) -> None:
    old = msgspec.to_builtins(value)
    del old["slowdown_limit"]
    assert msgspec.convert(old, type(value)) == value

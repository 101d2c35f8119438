"""Harvests and evictions are in the decisions file, and are decided alike in a replay."""

import io
from pathlib import Path

import numpy as np
import pytest
from chained_lines import chained

from fakes.harvesting import Harvesting
from weft.core.engine import (
    Event,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    SignalsChanged,
)
from weft.core.engine.harvest import NEED
from weft.core.explain.renderer import lines_of
from weft.core.framework import Policy
from weft.core.framework.signals import FRESH, snapshot
from weft.core.record import (
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    replay,
)
from weft.testing import node, pod


def create(name: str) -> Policy:
    assert name == "harvesting"
    return Harvesting()


def look(version: int, idle_mib: int) -> SignalsChanged:
    columns = {NEED: (np.zeros(1), np.array([FRESH], dtype=np.int8))}
    idle = {"lender": (idle_mib,)}
    return SignalsChanged(snapshot(version, 0, [("a", 0)], columns, idle_mib=idle))


def recorded(path: Path, *more: Event, evict: bool) -> None:
    header = Header([ProfileUse("weft", [PolicyUse("harvesting")])], harvest_permille=1_500)
    out = io.BytesIO()
    handle = Recorder(header.engine(create), header, DecisionsWriter(out).write).handle
    handle(NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0)
    for number, event in enumerate(
        (
            PodAdded(pod("lender", memory_mib=9_000)),
            PodBound("lender"),
            look(1, 6_000),
            PodAdded(pod("borrower", memory_mib=5_000)),
            PodBound("borrower"),
            *([look(2, 2_000)] if evict else []),
            *more,
        ),
        start=1,
    ):
        handle(event, number)
    path.write_bytes(out.getvalue())


def test_what_was_harvested_is_explained_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, evict=False)
    text = "\n".join(lines_of(explain(path, "borrower", create)))
    assert "harvested 4,000 MiB of GPU 0: of lender (idle 6,000 MiB)" in text


def test_an_eviction_is_decided_again_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, evict=True)
    header, lines = read(path)
    verdict = replay(header, lines, create)
    assert verdict.identical
    assert verdict.decisions == 3
    text = "\n".join(lines_of(explain(path, "borrower", create)))
    assert "to be evicted from a, GPU 0 (0 % of cores, 5,000 MiB); nothing is recorded yet" in text
    assert "lender grew from 3,000 to 7,000 MiB; it had borrowed 4,000 MiB" in text


def test_a_file_of_other_limits_is_not_identical(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, evict=True)
    changed = path.read_bytes().replace(b'"harvest_permille":1500', b'"harvest_permille":1000')
    path.write_bytes(chained(changed))
    assert not replay(*read(path), create).identical


@pytest.mark.parametrize(
    ("events", "then"),
    [
        ([], "nothing is recorded yet"),
        ([NotEvicted("borrower", "a budget says no")], "it was not evicted: a budget says no"),
        ([NotEvicted("another", "x")], "nothing is recorded yet"),
        ([PodGone("borrower")], "it is gone"),
        ([NotEvicted("borrower", "later"), PodGone("borrower")], "it is gone"),
    ],
)
def test_who_was_asked_to_leave_is_not_said_to_have_left(
    events: list[Event], then: str, tmp_path: Path
) -> None:
    path = tmp_path / "decisions.jsonl"
    recorded(path, *events, evict=True)
    assert "evicted" not in path.read_text()
    text = "\n".join(lines_of(explain(path, "borrower", create)))
    assert f"to be evicted from a, GPU 0 (0 % of cores, 5,000 MiB); {then}\n" in text
    assert replay(*read(path), create).identical

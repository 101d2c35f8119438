"""Evictions from GPUs given away twice are in the file, decided again alike, and explained."""

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from weft.core.engine import (
    BindingsRead,
    LeadershipBegan,
    NodesChanged,
    PodAdded,
    PodBinding,
    PodBound,
    PodGone,
    PodProgress,
    PodSeenBound,
    ProgressSeen,
    overbooking,
    slowdown_eviction,
)
from weft.core.engine.slowdown_eviction import SlowdownEviction
from weft.core.explain.renderer import lines_of
from weft.core.policies.catalog import built_in
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
from weft.testing import node, placement, pod

S = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Another leader's binding lands on a card that this one has given to `late`; it stays."""
    header = Header([ProfileUse("weft", [PolicyUse("interference")])])
    out = io.BytesIO()
    handle = Recorder(header.engine(built_in().create), header, DecisionsWriter(out).write).handle
    handle(NodesChanged((node("a", gpus=1, memory_mib=16_000),)), 0)
    handle(LeadershipBegan(), 0)
    handle(PodAdded(pod("late", memory_mib=10_000)), S)
    handle(PodBound("late"), 2 * S)
    handle(PodSeenBound(placement("slipped", "a", 0, memory_mib=10_000), 1 * S), 3 * S)
    read_afresh = (PodBinding("late", 2 * S, 1 * S, 2), PodBinding("slipped", 1 * S, 2 * S, 1))
    handle(BindingsRead("a", read_afresh), 4 * S)
    handle(PodGone("late"), 5 * S)
    third = placement("third", "a", 0, memory_mib=10_000)
    handle(PodSeenBound(third, 3 * S), 6 * S)
    long = (PodBinding("third", 3 * S, 3_600 * S, 1), PodBinding("slipped", 1 * S, 3_600 * S, 1))
    handle(BindingsRead("a", long), 7 * S)  # left where it is
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(out.getvalue())
    return path


def test_it_is_decided_again_and_explained(path: Path) -> None:
    verdict = replay(*read(path), built_in().create)
    assert (verdict.identical, verdict.decisions) == (True, 2)
    text = "\n".join(lines_of(explain(path, "late", built_in().create)))
    assert "to be evicted from a, GPU 0 (0 % of cores, 10,000 MiB); it is gone" in text
    assert (
        "  GPU 0 of node a was booked twice; with slipped, bound before, 4,000 of its "
        "16,000 MiB are missing\n"
    ) in text


def test_records_of_other_decisions_do_not_mention_it(path: Path) -> None:
    """Files in which nothing was booked twice are, byte for byte, as they were."""
    records = [
        record
        for line in path.read_bytes().splitlines()
        for record in msgspec.json.decode(line).get("records", ())
    ]
    assert [("double_booked" in record, record["uid"]) for record in records] == [
        (False, "late"),
        (True, "late"),
    ]


def the_first_bound_goes(patch: pytest.MonkeyPatch) -> None:
    rightly = overbooking.double_booked

    def backwards(ledger, name, bindings):  # type: ignore[no-untyped-def]
        turned = [msgspec.structs.replace(one, bound_ns=-one.bound_ns) for one in bindings]
        return rightly(ledger, name, turned)

    patch.setattr(overbooking, "double_booked", backwards)


def nobody_is_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overbooking, "double_booked", lambda *_: [])


def who_runs_for_long_goes_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overbooking, "RECENT_NS", 7_200 * S)


def everybody_runs_for_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overbooking, "RECENT_NS", 0)


@pytest.mark.parametrize(
    "mutant",
    [the_first_bound_goes, nobody_is_late, who_runs_for_long_goes_too, everybody_runs_for_long],
)
def test_a_mistake_in_the_rule_is_noticed(
    path: Path, mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert not replay(*read(path), built_in().create).identical


def quiet_minutes(path: Path) -> None:
    """A new leader finds two pods on a card, of which one is far too slow from the first look on;
    what it hears in its first five minutes does not count."""
    header = Header([ProfileUse("weft", [PolicyUse("interference")])])
    out = io.BytesIO()
    handle = Recorder(header.engine(built_in().create), header, DecisionsWriter(out).write).handle
    handle(NodesChanged((node("a", gpus=1, memory_mib=16_000),)), 0)
    for name, job_class in (("serve", "latency-critical"), ("train", "best-effort")):
        share = placement(name, "a", 0, memory_mib=4_000)
        handle(PodSeenBound(share, 1 * S, job_class), 0)
    handle(LeadershipBegan(), 1 * S)
    for number in range(1, 30):
        seen = (PodProgress("serve", 3.0), PodProgress("train", 1.1))
        handle(ProgressSeen(seen), 15 * number * S)
    path.write_bytes(out.getvalue())


def test_a_new_leaders_quiet_minutes_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.jsonl"
    quiet_minutes(path)
    verdict = replay(*read(path), built_in().create)
    assert (verdict.identical, verdict.decisions) == (True, 1)
    (when,) = [line.at_ns for line in read(path)[1] if line.records]
    assert when >= 1 * S + slowdown_eviction.NEW_LEADER_NS
    monkeypatch.setattr(SlowdownEviction, "begin_to_lead", lambda *_: None)
    assert not replay(*read(path), built_in().create).identical

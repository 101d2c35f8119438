"""The decisions file: written whole, read strictly, decided again, explained."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chained_lines import as_0_1, chained, write_chained
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    Engine,
    Event,
    NodesChanged,
    OomHistoryLearnt,
    PeakLearnt,
    PodAdded,
    PodBound,
    PodGone,
    PolicyInput,
)
from weft.core.engine.oom_history import OomRecord
from weft.core.framework import Plugin, Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.packing import BestFit
from weft.core.record import (
    DecisionLine,
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    explain,
    read,
    records_of,
    replay,
)
from weft.model import BadInputError, Code, PodRequest
from weft.model.reason import TEXT
from weft.testing import node, pod

CREATE = built_in().create
USES = [ProfileUse("weft", [PolicyUse("best-fit")])]


def named(uid: str, name: str, namespace: str = "default", **asks: int) -> PodRequest:
    return msgspec.structs.replace(pod(uid, **asks), name=name, namespace=namespace)


EVENTS: list[tuple[Event, int]] = [
    (NodesChanged((node("a", gpus=1), node("b", gpus=2))), 0),
    (PodAdded(named("u1", "web", gpus=2)), 1),
    (PodBound("u1"), 2),
    (PodAdded(named("u2", "job", memory_mib=10_000)), 3),
    (PodBound("u2"), 4),
    (PodAdded(named("u3", "job", memory_mib=9000)), 5),
    (PodAdded(named("u4", "job", "other", memory_mib=100)), 6),
    (PodGone("u2"), 20 * 10**9),
]


def write(path: Path, events: list[tuple[Event, int]] = EVENTS) -> Path:
    header = Header(USES, seed=3, keep_top=2)
    with path.open("wb") as out:
        writer = DecisionsWriter(out)
        recorder = Recorder(header.engine(CREATE), header, writer.write)
        for event, now in events:
            recorder.handle(event, now)
        writer.close()
    return path


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write(tmp_path / "decisions.jsonl")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """All but the end record."""
    return [json.loads(line) for line in path.read_text().splitlines()[:-1]]


def rewrite(path: Path, number: int, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    """Change line `number` (from 1) of a decisions file."""
    lines = lines_of(path)
    change(lines[number - 1])
    write_chained(path, lines)


def refusal(path: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        list(read(path)[1])
    return str(caught.value)


# --- writing and reading ----------


def test_a_recorder_answers_as_the_engine_does_and_writes_every_event() -> None:
    header = Header(USES)
    out = io.BytesIO()
    recorder = Recorder(header.engine(CREATE), header, DecisionsWriter(out).write)
    plain = Engine([Profile("weft", [BestFit()])])
    answers = [recorder.handle(event, now) for event, now in EVENTS]
    assert answers == [plain.handle(event, now) for event, now in EVENTS]
    first, *lines = out.getvalue().splitlines()
    assert msgspec.json.decode(first, type=Header) == header
    decoded = [msgspec.json.decode(line, type=DecisionLine) for line in lines]
    assert [(line.event, line.at_ns) for line in decoded] == EVENTS
    assert [line.records for line in decoded] == [records_of(answer) for answer in answers]


def test_reading_gives_back_what_was_written(recorded: Path) -> None:
    header, lines = read(recorded)
    assert (header.seed, header.keep_top, header.schema) == (3, 2, "weft.dev/decisions/v3")
    found = list(lines)
    assert [(line.event, line.at_ns) for line in found] == EVENTS
    assert [len(line.records) for line in found] == [0, 1, 0, 1, 0, 1, 1, 1]


def test_a_header_describes_its_engine_whole() -> None:
    uses = [
        ProfileUse("one", [PolicyUse("best-fit", 2), PolicyUse("spread", 3)]),
        ProfileUse("two", [PolicyUse("elastic-binpack", options={"compat": "exact"})]),
    ]
    text = msgspec.json.encode(Header(uses, seed=5, keep_top=1))
    engine = msgspec.json.decode(text, type=Header).engine(CREATE)
    assert (engine.seed, engine.keep_top) == (5, 1)
    assert list(engine.profiles) == ["one", "two"]
    plugins = engine.profiles["one"].plugins
    assert [(p.policy.name, p.weight) for p in plugins] == [("best-fit", 2), ("spread", 3)]
    assert isinstance(plugins[0], Plugin)


def test_no_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"{tmp_path}/none: No such file or directory"
    assert refusal(tmp_path).startswith(f"{tmp_path}: Is a directory")


@pytest.mark.parametrize(
    "text", ["", "\n", "{", "[]", "42", "name,cpu\n", '{"schema": 3}', "\0\0", "{}"]
)
def test_a_file_that_is_no_decisions_file_is_refused_at_line_1(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert refusal(path).startswith(f"{path}, line 1")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path, recorded: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b'{"schema": "\xff\xfe"}\n')
    assert refusal(path).startswith(f"{path}, line 1")
    events = recorded.read_bytes().splitlines(keepends=True)[:-1]
    bad = b'{"at_ns":1,"event":{"type":"\xff"}}\n'
    recorded.write_bytes(chained(b"".join(events) + bad))
    assert refusal(recorded).startswith(f"{recorded}, line 10: broken line")


def test_another_schema_is_refused_with_a_way_out(recorded: Path) -> None:
    def newer(header: dict[str, object]) -> None:
        header |= {"schema": "weft.dev/decisions/v9", "weft": "9.1", "profiles": {"new": "form"}}

    rewrite(recorded, 1, newer)
    assert refusal(recorded) == (
        f"{recorded}, line 1, field schema: 'weft.dev/decisions/v9'; this Weft reads "
        "weft.dev/decisions/v3. Use the Weft 9.1 that wrote it"
    )


@pytest.mark.parametrize(
    "profiles",
    [
        [],
        [{"name": "weft", "policies": []}],
        [{"name": "weft", "policies": [{"name": "best-fit", "weight": -1}]}],
        {"weft": []},
    ],
)
def test_a_header_without_a_usable_profile_is_refused(recorded: Path, profiles: object) -> None:
    rewrite(recorded, 1, lambda header: header.update(profiles=profiles))
    assert refusal(recorded).startswith(f"{recorded}, line 1: not a decisions header")


def test_a_broken_line_is_named_after_the_good_ones(recorded: Path) -> None:
    text = recorded.read_text().splitlines(keepends=True)
    broken = "".join([*text[:4], text[4][:30] + "\n", *text[5:]])
    recorded.write_bytes(chained(broken.encode()))
    lines = read(recorded)[1]
    assert [next(lines).at_ns for _ in range(3)] == [0, 1, 2]
    with pytest.raises(BadInputError) as caught:
        next(lines)
    assert str(caught.value).startswith(f"{recorded}, line 5: broken line: ")


@pytest.mark.parametrize(
    "event",
    [{"type": "Unknown"}, {}, {"type": "PodBound"}, {"type": "PodBound", "uid": 7}, None],
)
def test_an_event_that_is_none_is_refused(recorded: Path, event: object) -> None:
    rewrite(recorded, 3, lambda line: line.update(event=event))
    assert refusal(recorded).startswith(f"{recorded}, line 3: broken line")


def test_a_policy_that_is_not_installed_is_named(recorded: Path) -> None:
    rewrite(recorded, 1, lambda header: header["profiles"][0]["policies"][0].update(name="gone"))
    header, lines = read(recorded)
    with pytest.raises(BadInputError, match="policy: 'gone' is unknown"):
        replay(header, lines, CREATE)


def test_a_file_of_weft_0_1_is_read_under_todays_names(recorded: Path) -> None:
    """And replayed. Labels that are called like a former field stay as they are."""
    labelled = NodesChanged((replace(node("n9"), labels={"claim": "1", "lessons": "2"}),))
    learnt = OomHistoryLearnt(
        {"d.Job.a": OomRecord(2, 900)}, (PeakLearnt("d", "Job.a", "k", 7, 1),)
    )
    lines = [json.loads(line) for line in recorded.read_bytes().splitlines()]
    lines[-1:-1] = [
        {"at_ns": 9_000, "event": json.loads(msgspec.json.encode(event))}
        for event in (labelled, learnt)
    ]
    write_chained(recorded, lines)
    today = [(line.event, line.records) for line in read(recorded)[1]]
    assert [event for event, _ in today[-2:]] == [labelled, learnt]
    write_chained(recorded, as_0_1(lines))
    assert b'"LessonsTold"' in recorded.read_bytes()
    assert b'"claim": 0' in recorded.read_bytes()
    assert [(line.event, line.records) for line in read(recorded)[1]] == today


# --- deciding again ----------


def verdict_of(path: Path):  # type: ignore[no-untyped-def]
    return replay(*read(path), CREATE)


def test_an_untouched_file_is_decided_alike(recorded: Path) -> None:
    verdict = verdict_of(recorded)
    assert verdict.identical
    assert (verdict.events, verdict.decisions) == (8, 5)


def first_record(line: dict) -> dict:  # type: ignore[type-arg]
    return line["records"][0]


@pytest.mark.parametrize(
    ("number", "change", "at", "fields"),
    [
        (3, lambda line: first_record(line).update(node="a"), 1, ("node",)),
        (5, lambda line: first_record(line).update(score=1, attempt=9), 2, ("attempt", "score")),
        (7, lambda line: line.update(records=[]), 3, ("missing",)),
        (
            2,
            lambda line: line.update(
                records=[
                    {
                        "seq": 1,
                        "at_ns": 1,
                        "uid": "x",
                        "namespace": "d",
                        "name": "x",
                        "profile": "weft",
                        "attempt": 1,
                        "version": 1,
                        "outcome": "placed",
                    }
                ]
            ),
            1,
            ("missing",),
        ),
        (
            5,
            lambda line: line["event"]["pod"]["shape"]["claims"][0]["memory"].update(value=1),
            2,
            ("shares",),
        ),
        (5, lambda line: line.update(at_ns=4), 2, ("at_ns",)),
        (9, lambda line: line["event"].update(uid="u4"), 5, ("missing",)),
    ],
)
def test_the_first_difference_is_named_with_its_fields(
    recorded: Path,
    number: int,
    change: Callable[[dict[str, object]], None],
    at: int,
    fields: tuple[str, ...],
) -> None:
    rewrite(recorded, number, change)
    verdict = verdict_of(recorded)
    assert not verdict.identical
    assert verdict.difference_at == at
    assert set(fields) <= set(verdict.fields)
    if "missing" not in fields:
        assert verdict.was != verdict.now
    else:
        assert None in (verdict.was, verdict.now)


def test_a_change_in_nodes_is_noticed_in_what_follows(recorded: Path) -> None:
    rewrite(recorded, 2, lambda line: line["event"]["nodes"][1].update(cpu_milli=1))
    assert verdict_of(recorded).fields == ("score", "top")


def test_an_input_that_the_policy_cannot_read_is_an_error_with_a_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    header = Header([ProfileUse("weft", [PolicyUse("fgd")])])
    bad = DecisionLine(5, PolicyInput("fgd", [["no shape", 1]]))
    with path.open("wb") as out:
        writer = DecisionsWriter(out)
        writer.write(header)
        writer.write(bad)
    with pytest.raises(BadInputError, match="event 1, PolicyInput for fgd: "):
        verdict_of(path)


def test_an_event_that_is_no_more_is_an_error_with_a_place(tmp_path: Path) -> None:
    """No host ever sent a `Permit`; a file that somebody made with one says where it stands."""
    path = tmp_path / "file"
    header = msgspec.to_builtins(Header([ProfileUse("weft", [PolicyUse("fgd")])]))
    write_chained(path, [header, {"at_ns": 5, "event": {"type": "Permit", "uid": "x"}}])
    with pytest.raises(BadInputError, match=r"line 2: .*'Permit'"):
        verdict_of(path)


# --- explaining one pod ----------


def test_a_pod_is_found_by_name_by_namespace_and_name_and_by_uid(recorded: Path) -> None:
    assert explain(recorded, "web", CREATE).recorded.record.uid == "u1"
    assert explain(recorded, "default/web", CREATE).recorded.record.uid == "u1"
    assert explain(recorded, "u1", CREATE).recorded.record.uid == "u1"
    assert explain(recorded, "other/job", CREATE).recorded.record.uid == "u4"
    assert explain(recorded, "other/job", CREATE).recorded.other_uids == ()


def test_of_several_of_one_name_the_last_decided_is_told_and_the_others_named(
    recorded: Path,
) -> None:
    found = explain(recorded, "job", CREATE)
    assert (found.recorded.record.uid, found.recorded.pod.uid) == ("u3", "u3")
    assert sorted(found.recorded.other_uids) == ["u2", "u4"]
    assert explain(recorded, "default/job", CREATE).recorded.other_uids == ("u2",)


def test_a_placed_pod_is_told_in_the_state_it_met(recorded: Path) -> None:
    found = explain(recorded, "u1", CREATE)
    assert found.recorded.record.outcome == "placed"
    assert found.changes == ()
    assert (
        str(found.summary) == f"1/2 GPU nodes: 1 × {TEXT[Code.TOO_FEW_GPUS]} (most 1 GPUs, asked 2)"
    )
    assert [top.node for top in found.recorded.record.top] == ["b"]


def test_a_refused_pod_is_told_with_what_would_help(tmp_path: Path) -> None:
    path = write(tmp_path / "file", EVENTS[:-2])
    found = explain(path, "u3", CREATE)
    assert found.recorded.record.outcome == "unschedulable"
    assert [reason.nodes for reason in found.summary.reasons] == [2]
    assert [change.axis for change in found.changes] == ["memory", "free"]
    assert found.changes[0].shape is not None


def test_later_events_do_not_blur_the_explanation(recorded: Path, tmp_path: Path) -> None:
    """u3 first fitted nowhere and is placed after u2 went: the last decision is the one told."""
    assert explain(recorded, "u3", CREATE).recorded.record.outcome == "placed"
    assert explain(recorded, "u3", CREATE).recorded.record.attempt == 2
    early = write(tmp_path / "early", EVENTS[:6])
    late = write(tmp_path / "late", EVENTS[:7])
    assert explain(early, "u3", CREATE) == explain(late, "u3", CREATE)


def test_an_unknown_name_says_which_names_there_are(recorded: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        explain(recorded, "nobody", CREATE)
    assert str(caught.value) == (
        f"{recorded}: pod nobody is not in this file; "
        "its pods are default/job, default/web, other/job, …"
    )
    with pytest.raises(BadInputError, match="pod wbe is not in this file; did you mean 'web'"):
        explain(recorded, "wbe", CREATE)


def test_a_pod_never_decided_is_said_to_be_that(tmp_path: Path) -> None:
    path = tmp_path / "file"
    line = DecisionLine(1, PodAdded(pod("p", gpus=1)))
    with path.open("wb") as out:
        writer = DecisionsWriter(out)
        writer.write(Header(USES))
        writer.write(line)
    with pytest.raises(BadInputError, match="pod p was added, but has no decision"):
        explain(path, "p", CREATE)
    with pytest.raises(BadInputError, match="pod q is not in this file"):
        explain(write(tmp_path / "empty", []), "q", CREATE)


def test_policies_before_filtering_are_asked_in_an_explanation_too(tmp_path: Path) -> None:
    header = Header([ProfileUse("weft", [PolicyUse("exclusive")])])
    path = tmp_path / "file"
    with path.open("wb") as out:
        recorder = Recorder(header.engine(CREATE), header, DecisionsWriter(out).write)
        for event, now in EVENTS[:5]:
            recorder.handle(event, now)
        recorder.handle(PodAdded(pod("late", memory_mib=5)), 9)
    found = explain(path, "late", CREATE)
    assert str(found.summary).endswith(f"2 × {TEXT[Code.NOT_IDLE]} (most 0 idle GPUs, asked 1)")


def test_records_of_takes_decisions_and_nothing_else() -> None:
    engine = Engine([Profile("weft", [BestFit()])], [node("a", gpus=1)])
    commands = engine.handle(PodAdded(pod("p", gpus=1)), 0)
    assert isinstance(commands[0], Bind)
    assert records_of(commands) == [commands[0].record]
    assert records_of([]) == []


@pytest.mark.parametrize("reasons", [27, 28, 30, 31, 34, 35, 41])
def test_a_file_of_before_a_reason_was_added_is_decided_alike(tmp_path: Path, reasons: int) -> None:
    """The file counts fewer reasons, and its nodes and pods say nothing of isolation."""
    path = write(tmp_path / "d.jsonl")
    lines = lines_of(path)
    for line in lines[1:]:
        for record in line.get("records", ()):
            if reasons < 30:
                assert record["counts"].pop(Code.LINKS_UNKNOWN) == 0
            if reasons < 31:
                assert record["counts"].pop(Code.NOT_DELIVERING) == 0
            if reasons < 28:
                assert record["counts"].pop(Code.NO_ISOLATION) == 0
            if reasons < 35:
                assert record["counts"].pop(Code.DECLARED_FEATURES) == 0
            del record["counts"][reasons:]
        if reasons < 28:
            for one in line["event"].get("nodes", ()):
                del one["isolation"], one["fail_closed"]
            if "pod" in line["event"]:
                del line["event"]["pod"]["shape"]["isolation"]
    write_chained(path, lines)
    assert any(any(record.counts[Code.CPU :]) for line in read(path)[1] for record in line.records)
    verdict = replay(*read(path), CREATE)
    assert verdict.identical
    assert verdict.decisions >= 4

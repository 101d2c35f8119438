"""Out-of-memory ends are in the decisions file: what they taught is decided alike in a replay."""

import io
from pathlib import Path

from chained_lines import chained

from weft.core.engine import (
    NodesChanged,
    OomHistoryLearnt,
    OomRecord,
    OutOfMemory,
    PodAdded,
    PodBound,
)
from weft.core.explain.renderer import lines_of
from weft.core.policies.packing import BestFit
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
from weft.model import PodRequest
from weft.testing import node, placement, shape


def create(name: str) -> BestFit:
    assert name == "best-fit"
    return BestFit()


def pod(name: str, workload: str) -> PodRequest:
    return PodRequest(name, name, shape(memory_mib=2_000), workload=workload)


def recorded(path: Path) -> Path:
    header = Header([ProfileUse("weft", [PolicyUse("best-fit")])])
    out = io.BytesIO()
    handle = Recorder(header.engine(create), header, DecisionsWriter(out).write).handle
    held = placement("one", "a", 0, memory_mib=2_000)
    for number, event in enumerate(
        (
            NodesChanged((node("a", gpus=3, memory_mib=10_000),)),
            PodAdded(pod("one", "d/Job/a")),
            PodBound("one"),
            OutOfMemory(held, "d/Job/a", "one/0", 3_000),
            OomHistoryLearnt({"d/Job/b": OomRecord(2, 1_000, ("x", "y"))}),
            PodAdded(pod("more", "d/Job/a")),
            PodAdded(pod("alone", "d/Job/b")),
        )
    ):
        handle(event, number)
    path.write_bytes(out.getvalue())
    return path


def test_what_was_learnt_is_decided_again(tmp_path: Path) -> None:
    path = recorded(tmp_path / "decisions.jsonl")
    verdict = replay(*read(path), create)
    assert (verdict.identical, verdict.decisions) == (True, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(chained(b"".join(line for line in lines if b'"OutOfMemory"' not in line)))
    assert not replay(*read(path), create).identical


def test_the_file_says_who_was_charged_by_a_lesson(tmp_path: Path) -> None:
    path = recorded(tmp_path / "decisions.jsonl")
    assert "charged 3,750 MiB of a GPU or more" in "\n".join(
        lines_of(explain(path, "more", create))
    )
    assert "charged GPUs of its own" in "\n".join(lines_of(explain(path, "alone", create)))
    assert "charged" not in "\n".join(lines_of(explain(path, "one", create)))

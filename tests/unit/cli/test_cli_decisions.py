"""`weft replay` and `weft explain pod` on a file that `weft simulate` wrote."""

import json
from pathlib import Path

import pytest
from chained_lines import as_0_1, write_chained
from commands import Weft


@pytest.fixture
def decisions(weft: Weft) -> Path:
    path = weft.folder / "decisions.jsonl"
    said = weft.simulate("--policy", "fgd", "--demand", 3.0, "--decisions", path)
    assert said.code == 0
    return path


def records(path: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [record for line in lines for record in line.get("records", [])]


def tamper(path: Path) -> int:
    """Another node in the fifth decision; its line number."""
    lines = path.read_text().splitlines()
    seen = 0
    for number, text in enumerate(lines):
        line = json.loads(text)
        for record in line.get("records", []):
            seen += 1
            if seen == 5:
                record["node"] = "elsewhere"
                lines[number] = json.dumps(line)
                write_chained(path, list(map(json.loads, lines)))
                return number + 1
    raise AssertionError("fewer than five decisions")


def test_an_untouched_file_replays_with_0(weft: Weft, decisions: Path) -> None:
    said = weft("replay", decisions)
    count = len(records(decisions))
    assert said.code == 0
    assert said.out.startswith(f"100 % identical: {count} decisions in ")
    verdict = json.loads(weft("replay", decisions, "--output", "json").out)
    assert verdict["decisions"] == count
    assert verdict["difference_at"] is None


def test_timed_runs_replay_too(weft: Weft) -> None:
    path = weft.folder / "timed.jsonl"
    assert weft.simulate("--policy", "random", "--timed", "--decisions", path).code == 0
    assert weft("replay", path).code == 0


def test_a_tampered_file_replays_with_1_and_the_first_difference(
    weft: Weft, decisions: Path
) -> None:
    tamper(decisions)
    said = weft("replay", decisions)
    assert said.code == 1
    head, header, row = said.out.splitlines()
    assert head.startswith("decision 5 differs, of pod default/p")
    assert header.split() == ["field", "recorded", "replayed"]
    assert row.split()[:2] == ["node", "elsewhere"]
    found = weft("replay", decisions, "--output", "json")
    assert found.code == 1
    verdict = json.loads(found.out)
    assert (verdict["difference_at"], verdict["fields"]) == (5, ["node"])
    assert verdict["was"]["node"] == "elsewhere"


def test_files_that_are_none_end_with_one_line_and_1(weft: Weft, decisions: Path) -> None:
    for command in (("replay",), ("explain", "pod", "p1", "--decisions")):
        said = weft(*command, weft.folder / "none")
        assert (said.code, said.out) == (1, "")
        assert said.err == f"weft: error: {weft.folder}/none: No such file or directory\n"
        said = weft(*command, weft.nodes)
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert said.err.startswith(f"weft: error: {weft.nodes}, line 1: not a decisions header")
    lines = decisions.read_text().splitlines(keepends=True)
    decisions.write_text("".join(lines[:3]) + "{broken\n")
    assert weft("replay", decisions).err.startswith(
        f"weft: error: {decisions}, line 4: was changed"
    )


def test_a_file_whose_end_is_lost_is_replayed_as_far_as_it_is_whole_and_ends_with_3(
    weft: Weft, decisions: Path
) -> None:
    whole = decisions.read_bytes()
    lines = whole.splitlines(keepends=True)
    for text, where in (
        (b"".join(lines[:-1]), f"it ends with line {len(lines) - 1}, without an end record"),
        (whole[:-9], f"line {len(lines)} is cut off, without an end record"),
    ):
        decisions.write_bytes(text)
        said = weft("replay", decisions)
        assert said.code == 3
        assert said.out.startswith("identical up to where the file is cut off: ")
        assert said.err.startswith(f"weft: warning: {decisions}: {where}: the process that wrote")
        found = json.loads(weft("replay", decisions, "--output", "json").out)
        assert (found["difference_at"], found["file"]["state"]) == (None, "incomplete")


def test_a_file_of_weft_0_1_is_replayed(weft: Weft, decisions: Path) -> None:
    lines = [json.loads(line) for line in decisions.read_bytes().splitlines()]
    write_chained(decisions, as_0_1(lines))
    said = weft("replay", decisions)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("100 % identical")


def test_why_a_pod_is_where_it_is(weft: Weft, decisions: Path) -> None:
    placed = next(one for one in records(decisions) if one["outcome"] == "placed")
    said = weft("explain", "pod", placed["uid"], "--decisions", decisions)
    assert said.code == 0
    head, where, *rest = said.out.splitlines()
    assert head == (
        f"default/{placed['name']} (UID {placed['uid']}), profile weft, attempt 1, "
        f"decision {placed['seq']}"
    )
    assert where.startswith(f"  placed on {placed['node']}, GPU 0 (")
    assert rest[0].startswith(f"  chosen {placed['node']}: score {placed['score']}, fgd ")
    assert rest[-1].startswith("  4/4 GPU nodes fit")


def test_why_a_pod_is_nowhere_and_what_would_help(weft: Weft, decisions: Path) -> None:
    refused = next(one for one in records(decisions) if one["outcome"] == "unschedulable")
    said = weft("explain", "pod", refused["uid"], "--decisions", decisions)
    assert said.code == 0
    assert "  fits nowhere\n  0/4 GPU nodes: 4 × " in said.out
    assert "  it would fit, if you\n    - " in said.out
    found = json.loads(
        weft("explain", "pod", refused["uid"], "--decisions", decisions, "--output", "json").out
    )
    parts = ["summary", "changes", "other_uids", "metrics", "score_parts", "then"]
    assert list(found) == ["pod", "record", *parts]
    assert found["record"] == refused
    assert found["summary"]["fits"] == 0
    assert found["changes"]


def test_a_name_shared_by_several_pods_is_mentioned(weft: Weft, decisions: Path) -> None:
    """Rows are drawn again beyond the list's end: pods of one name, with UIDs of their own."""
    names = [str(one["name"]) for one in records(decisions)]
    twice = next(name for name in names if names.count(name) > 1)
    others = names.count(twice) - 1
    for name in (twice, f"default/{twice}"):
        said = weft("explain", "pod", name, "--decisions", decisions)
        assert f"  {others} more pods have this name; ask by UID: " in said.out
    last = [one for one in records(decisions) if one["name"] == twice][-1]
    assert f"(UID {last['uid']})" in said.out


def test_an_unknown_pod_is_an_error_that_helps(weft: Weft, decisions: Path) -> None:
    said = weft("explain", "pod", "nobody", "--decisions", decisions)
    assert (said.code, said.out) == (1, "")
    assert "pod nobody is not in this file; its pods are default/p" in said.err


def test_nothing_helps_a_pod_without_a_cluster_for_it(weft: Weft) -> None:
    weft.nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,100000,100000,1,T4\n")
    weft.pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nhopeless,200000,200000,1,1000\n"
    )
    path = weft.folder / "d"
    assert weft.simulate("--policy", "spread", "--demand", 1, "--decisions", path).code == 0
    said = weft("explain", "pod", "hopeless", "--decisions", path)
    assert said.out.endswith(
        "  no single change of the pod, and no one pod's end, would make it fit\n"
    )


def test_a_pod_without_a_gpu_has_a_node_and_no_gpus(weft: Weft) -> None:
    weft.pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\ncpu,1000,10,0,0\ngpu,1000,10,1,1000\n"
        "gpu2,1000,10,1,1000\n"
    )
    path = weft.folder / "d"
    assert weft.simulate("--policy", "first-fit", "--demand", 0.3, "--decisions", path).code == 0
    (line,) = [
        line
        for line in weft("explain", "pod", "cpu", "--decisions", path).out.splitlines()
        if "placed on" in line
    ]
    assert line.split(" on ")[1] in {"n0", "n1", "n2", "n3"}


@pytest.mark.parametrize("path", ["missing/file", "."])
def test_a_decisions_file_that_cannot_be_written_is_one_line(weft: Weft, path: str) -> None:
    error = weft.error("--policy", "spread", "--decisions", weft.folder / path)
    assert "cannot be written: " in error
    assert sorted(found.name for found in weft.folder.iterdir()) == ["nodes.csv", "pods.csv"]


def test_explain_needs_a_command_and_a_file_or_a_cluster(weft: Weft) -> None:
    assert "pod" in weft("explain", "--help").out
    missing = weft.folder / "kubeconfig"
    said = weft("explain", "pod", "p1", "--kubeconfig", missing)
    assert said.code == 1
    assert said.err.startswith(f"weft: error: kubeconfig: no such file: {missing};")

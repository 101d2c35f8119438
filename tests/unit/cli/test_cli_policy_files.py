"""`--policy ./file.py:Class`: from a file, on record with its hash, and again at a replay."""

import hashlib
import json
import pickle
from pathlib import Path

import pytest
from commands import Weft, policy_file

from weft.cli.policies import registry


@pytest.fixture
def mine(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(weft.folder)
    path = weft.folder / "mine.py"
    path.write_text(policy_file("query.node_kind"))
    return path


def places(weft: Weft, *policy: object) -> list[str]:
    path = weft.folder / "places.jsonl"
    assert weft.simulate("--policy", *policy, "--decisions", path).code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [record["node"] for line in lines for record in line.get("records", [])]


def test_the_class_of_a_file_decides(weft: Weft, mine: Path) -> None:
    said = weft.simulate(
        *("--policy", "./mine.py:Mine", "--policy", "mine.py", "--seeds", 1, "--output", "json")
    )
    assert (said.code, said.err) == (0, "")
    runs = json.loads(said.out)["runs"]
    assert [run["policy"] for run in runs] == ["./mine.py:Mine", "mine.py"]
    before = places(weft, "./mine.py:Mine")
    mine.write_text(policy_file("-query.node_kind"))
    assert places(weft, "./mine.py:Mine") != before


def test_several_processes_load_it_too(weft: Weft, mine: Path) -> None:
    said = weft.simulate("--policy", "./mine.py", "--seeds", 2, "--jobs", 2, "--output", "csv")
    assert said.code == 0
    assert len(said.out.splitlines()) == 3


def test_a_process_that_starts_anew_loads_the_file_by_itself(mine: Path) -> None:
    policies = registry()
    assert policies.from_spec("./mine.py:Mine").name == "mine"
    sent = pickle.loads(pickle.dumps(policies.from_spec))
    assert sent("./mine.py:Mine").name == "mine"
    assert sent("fgd").name == "fgd"


def test_options_stand_behind_another_colon(weft: Weft, mine: Path) -> None:
    assert weft.simulate("--policy", "./mine.py:Mine:bias=3").code == 0
    assert weft.simulate("--policy", "./mine.py:bias=3").code == 0
    error = weft.error("--policy", "./mine.py:Mine:bais=3")
    assert (
        error == "policy mine: option 'bais' is unknown; did you mean 'bias'? Its options are bias"
    )


def test_the_header_has_the_file_s_hash_and_records_its_name(weft: Weft, mine: Path) -> None:
    path = weft.folder / "decisions.jsonl"
    assert weft.simulate("--policy", "./mine.py:Mine:bias=2", "--decisions", path).code == 0
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    (use,) = header["profiles"][0]["policies"]
    assert use["name"] == "mine"
    assert use["options"] == {"bias": 2}
    sha256 = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert use["origin"] == {"file": "mine.py:Mine", "sha256": sha256}
    records = [record for line in lines for record in line.get("records", [])]
    assert set(records[0]["top"][0]["scores"]) == {"mine"}


def test_one_of_weft_s_own_has_no_origin(weft: Weft) -> None:
    path = weft.folder / "decisions.jsonl"
    assert weft.simulate("--policy", "fgd", "--decisions", path).code == 0
    header = json.loads(path.read_text().splitlines()[0])
    assert header["profiles"][0]["policies"] == [{"name": "fgd", "weight": 1, "options": {}}]


def test_replay_and_explain_load_it_again(weft: Weft, mine: Path) -> None:
    path = weft.folder / "decisions.jsonl"
    assert weft.simulate("--policy", "./mine.py", "--decisions", path).code == 0
    said = weft("replay", path, "--policy", "./mine.py")
    assert (said.code, said.err) == (0, "")
    asked = ("explain", "pod", "0", "--decisions", path)
    assert weft(*asked, "--policy", mine).code == 0
    assert weft("explain", "pod", "0", "--policy", mine).err == (
        "weft: error: --policy: requires --decisions; a live scheduler has its own policies\n"
    )


def test_a_record_runs_no_file_that_nobody_named(weft: Weft, mine: Path) -> None:
    path, ran = weft.folder / "decisions.jsonl", weft.folder / "ran"
    assert weft.simulate("--policy", "./mine.py", "--decisions", path).code == 0
    mine.write_text(policy_file("query.idle", body=f"open({str(ran)!r}, 'w')"))
    for words in (("replay", path), ("explain", "pod", "0", "--decisions", path)):
        said = weft(*words)
        assert (said.code, said.out) == (1, "")
        problem = "policy mine is from a file; specify it: --policy mine.py:Mine"
        assert said.err == f"weft: error: {path}: {problem}\n"
    assert not ran.exists()
    said = weft("replay", path, "--policy", "fgd")
    assert "--policy fgd: is not a file; write FILE.py:Class" in said.err


def test_a_changed_file_is_told_and_its_differences_shown(weft: Weft, mine: Path) -> None:
    path = weft.folder / "decisions.jsonl"
    assert weft.simulate("--policy", "./mine.py", "--decisions", path).code == 0
    mine.write_text(policy_file("-query.node_kind"))
    said = weft("replay", path, "--policy", "mine.py")
    assert said.code == 1
    assert "note: policy mine differs from the one that decided: mine.py:Mine (sha256 " in said.err
    head, header, *rows = said.out.splitlines()
    assert head.startswith("decision ")
    assert " differs, of pod default/p" in head
    assert header.split() == ["field", "recorded", "replayed"]
    assert {row.split()[0] for row in rows} >= {"node", "score", "candidate"}
    assert "Record(" not in said.out
    told = json.loads(weft("replay", path, "--policy", "mine.py", "-o", "json").out)
    assert {each["field"] for each in told["differences"]} >= {"node", "score"}
    assert all(each["was"] != each["now"] for each in told["differences"])
    assert (told["was"]["node"], told["now"]["node"]) == next(
        (each["was"], each["now"]) for each in told["differences"] if each["field"] == "node"
    )


@pytest.mark.parametrize(
    ("spec", "body", "says"),
    [
        ("./none.py:Mine", "", "policy none.py:Mine: no such file or directory"),
        ("./mien.py:Mine", "", "no such file or directory; did you mean 'mine.py'?"),
        (
            "./mine.py:Mien",
            "",
            "policy mine.py:Mien: there is no class 'Mien'; did you mean 'Mine'?",
        ),
        ("./mine.py:Xyz", "", "there is no class 'Xyz'; it has Mine"),
        (
            "./mine.py:Other",
            "class Other: pass",
            "Other is not a policy; derive a class from weft.",
        ),
        ("./mine.py:Mine.x", "", "there is no class 'Mine.x'; did you mean 'Mine'?"),
        ("./mine.py", "import nowhere", "policy mine.py, line 14: ModuleNotFoundError: No module"),
        ("./mine.py", "1 / 0", "policy mine.py, line 14: ZeroDivisionError: division by zero"),
        ("./mine.py", "def f(:", "policy mine.py, line 14: SyntaxError: "),
        ("./mine.py", "raise SystemExit(3)", "policy mine.py, line 14: SystemExit: 3"),
        (
            "./mine.py",
            "class Second(Mine):\n    name = 'second'",
            "has 2 policies; write one of mine.py:Mine, mine.py:Second",
        ),
        ("./nodes.csv:Mine", "", "policy nodes.csv, line 1: NameError: name 'sn' is not defined"),
        (".", "", "'.' is unknown; write one of "),
        ("./", "", "policy .: is a directory"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(
    weft: Weft, mine: Path, spec: str, body: str, says: str
) -> None:
    mine.write_text(policy_file("query.idle", body=body))
    assert says in weft.error("--policy", spec)


def test_a_name_that_weft_has_is_refused(weft: Weft, mine: Path) -> None:
    mine.write_text(policy_file("query.idle", name="fgd"))
    assert weft.error("--policy", "./mine.py") == (
        "policy fgd: the name is taken by weft.core.policies.fgd.Fgd; set another `name`"
    )
    mine.write_text(policy_file("query.idle", name=""))
    assert "it has no name; set the class attribute `name`" in weft.error("--policy", "./mine.py")


def test_experiments_take_files_too(weft: Weft, mine: Path) -> None:
    spec = mine.parent / "experiment.yaml"
    spec.write_text(
        "{apiVersion: weft.dev/v1, kind: Experiment, name: mine, "
        "workload: {kind: overprovisioned}, "
        "schedulers: [./mien.py], seeds: {count: 1}}"
    )
    said = weft("experiment", "check", spec)
    assert said.code == 1
    assert "did you mean 'mine.py'?" in said.err

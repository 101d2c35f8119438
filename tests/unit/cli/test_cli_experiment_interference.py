"""`weft experiment interference`: what it prints, equal bytes, and errors of one line."""

import csv
import io
import json
from pathlib import Path

import pytest
from commands import Said, Weft

from weft.cli.experiment_interference import CSV_COLUMNS

KINDS = ("a", "b", "c", "d")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """b and d get on with everybody, a and c not."""
    cost = {"a": 1.9, "b": 1.1, "c": 1.6, "d": 1.05}
    told = {one: {other: cost[one] * cost[other] ** 0.5 for other in KINDS} for one in KINDS}
    told["a"]["c"] = told["c"]["a"] = -1
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(told))
    return path


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    lines = ["source,gpu,job_a,job_b,iso_a_steps_per_s,iso_b_steps_per_s,norm_a,norm_b,feasible"]
    lines += [
        f"mine,t4,{one},{other},1,2,0.7,0.{5 + at},1"
        for at, one in enumerate(KINDS)
        for other in KINDS[at:]
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def study(weft: Weft, path: Path, *arguments: object) -> Said:
    small = ("--gpus", 2, "--pods", 12, "--seeds", 2, "--load", 1.2, "--jobs", 1, "--told", "ridge")
    return weft("experiment", "interference", path, *small, *arguments)


def test_json_compares_ours_with_every_policy_and_is_the_same_again(weft: Weft, table) -> None:
    first = study(weft, table, "--output", "json")
    assert (first.code, first.err) == (0, "")
    assert study(weft, table, "--output", "json").out == first.out
    found = json.loads(first.out)
    assert found["ours"] == "interference"
    names = ["interference", "binpack", "gandiva", "coscheml", "oracle"]
    assert [level["policy"] for level in found["levels"]] == names
    means = [level["jct_mean_s"] for level in found["levels"]]
    percent = found["levels"][1]["jct_mean"]["difference"]["percent"]
    assert percent == pytest.approx(100 * (means[0] / means[1] - 1), abs=0.02)


def test_csv_and_a_table_of_measured_pairs(weft: Weft, measured) -> None:
    options = ("--source", "mine", "--gpu", "t4", "--policy", "binpack", "--load", 0.5)
    said = study(weft, measured, *options, "--output", "csv")
    lines = list(csv.reader(io.StringIO(said.out)))
    assert lines[0] == list(CSV_COLUMNS)
    assert [line[:2] for line in lines[1:]] == [
        ["1.2", "interference"],
        ["1.2", "binpack"],
        ["0.5", "interference"],
        ["0.5", "binpack"],
    ]


def test_the_table_for_people(weft: Weft, table) -> None:
    said = study(weft, table, "--policy", "coscheml")
    assert "mean of interference" in said.out
    assert "coscheml" in said.out


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("--policy", "nothing"), "nothing"),
        (("--ours", "oracle"), "oracle"),
        (("--load", "0"), "--load"),
        (("--load", "nan"), "--load"),
        (("--told", "all"), "--told"),
    ],
)
def test_mistakes_are_told_in_one_line(weft: Weft, table, arguments, where) -> None:
    said = study(weft, table, *arguments)
    assert said.code == 1
    assert said.out == ""
    assert where in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs.json", "no"),
        ("pairs.json", '{"a": {"b": 1}}'),
        ("pairs.json", '{"a": {"a": "x"}}'),
        ("pairs.json", "{}"),
        ("pairs.csv", "source,gpu\nmine,v100\n"),
        ("pairs.csv", ""),
        (
            "pairs.csv",
            "source,gpu,job_a,job_b,iso_a_steps_per_s,iso_b_steps_per_s,norm_a,norm_b,"
            "feasible\noracle_throughputs,v100,a,a,1,1,x,1,1\n",
        ),
    ],
)
def test_what_is_no_table(weft: Weft, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    said = study(weft, path)
    assert said.code == 1
    assert name in said.err
    assert said.err.count("\n") == 1
    assert study(weft, tmp_path / "nowhere.csv").code == 1

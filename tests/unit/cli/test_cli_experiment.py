"""`weft experiment overprovision`: what it prints, equal bytes, and errors of one line."""

import csv
import io
import json

import pytest
from commands import Said, Weft

from weft.cli.experiment_tables import CSV_COLUMNS


def study(weft: Weft, *arguments: object) -> Said:
    """One level and two seeds, in one process."""
    small = ("--percent", 50, "--seeds", 2, "--jobs", 1)
    return weft("experiment", "overprovision", *small, *arguments)


def test_json_has_levels_and_runs_and_is_the_same_again(weft: Weft) -> None:
    first = study(weft, "--policy", "exclusive", "--output", "json")
    assert (first.code, first.err) == (0, "")
    assert study(weft, "--policy", "exclusive", "--output", "json").out == first.out
    found = json.loads(first.out)
    names = ["gpushare", "exclusive", "best-residency"]
    assert [level["policy"] for level in found["levels"]] == names
    assert [run["run"]["seed"] for run in found["runs"]] == [0, 1] * 3
    assert found["levels"][1]["jct_p99_change"]["percent"] > 100


def test_csv_has_a_line_a_run(weft: Weft) -> None:
    said = study(weft, "--policy", "binpack", "--first-seed", 3, "--output", "csv")
    lines = list(csv.reader(io.StringIO(said.out)))
    assert lines[0] == ["percent", "policy", *CSV_COLUMNS]
    assert [line[:3] for line in lines[1:3]] == [["50", "gpushare", "3"], ["50", "gpushare", "4"]]
    assert len(lines) == 1 + 3 * 2


def test_the_table_names_the_baseline(weft: Weft) -> None:
    said = study(weft, "--policy", "gpushare", "--baseline", "exclusive")
    assert "p99 against exclusive" in said.out
    assert said.out.count("best-residency") == 1


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("--policy", "nothing"), "nothing"),
        (("--policy", "gpushare", "--baseline", "nothing"), "nothing"),
        (("--policy", "gpushare", "--mix", "soup"), "--mix"),
        (("--policy", "gpushare", "--harvest-limit", "inf"), "--harvest-limit"),
        (("--policy", "gpushare", "--delay-s", "inf"), "--delay-s"),
        (("--policy", "gpushare", "--spoof", "temperature=zero"), "--spoof temperature=zero"),
        (("--policy", "gpushare", "--spoof", "memory_used_mib=7"), "--spoof memory_used_mib=7"),
    ],
)
def test_bad_input_is_one_line(weft: Weft, arguments: tuple[str, ...], where: str) -> None:
    said = study(weft, *arguments)
    assert said.code == 1
    assert said.err.count("\n") == 1
    assert where in said.err

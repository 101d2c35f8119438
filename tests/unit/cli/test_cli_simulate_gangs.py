"""Gangs in `weft simulate`: shown where pods have gangs, and nowhere else."""

import csv
import io
import json
from pathlib import Path

import pytest
from commands import Weft

from weft.cli.tables import GANG_CSV_COLUMNS, TIMED_CSV_COLUMNS
from weft.lab.experiment.spec.measures import BY_NAME

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn,64000,65536,2,V100M16\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
PODS = f"{HEADER},gang\na,1,1,1,1000,0,50,0,\nb,1,1,1,1000,10,20,10,g\nc,1,1,1,1000,20,30,20,g\n"


@pytest.fixture
def trace(tmp_path: Path) -> list[object]:
    """One card of two is held until 50; a gang of two comes by 20, and waits 30 seconds."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    files = ("--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv")
    return [*files, "--policy", "least-stranding", "--no-timing"]


def test_table_csv_and_json_have_the_gangs(weft: Weft, trace: list[object]) -> None:
    table = weft("simulate", *trace, "--timed").out
    assert "gang wait s, mean  wasted GPU s  preempted GPU s" in table
    row = next(csv.DictReader(io.StringIO(weft("simulate", *trace, "--timed", "-o", "csv").out)))
    assert (row["gangs"], row["gang_wait_mean_s"], row["wasted_gpu_s"]) == ("1", "30.0", "0.0")
    results = json.loads(weft("simulate", *trace, "--timed", "-o", "json").out)
    assert results["runs"][0]["gangs"]["wait_mean_s"] == 30.0
    assert results["summary"][0]["timed"]["gang_wait_mean_s"] == 30.0
    assert set(GANG_CSV_COLUMNS) - {"gangs"} <= BY_NAME.keys(), "named as in experiments"


def test_without_times_a_gang_is_placed_one_by_one_and_that_is_said(
    weft: Weft, trace: list[object]
) -> None:
    said = weft("simulate", *trace, "--seeds", 1)
    assert said.code == 0
    results = json.loads(weft("simulate", *trace, "--seeds", 1, "-o", "json").out)
    assert any("placed one by one" in note for note in results["notes"])
    assert results["runs"][0]["gpu_allocated_percent"] > 0


def test_a_trace_without_gangs_says_no_word_of_them(
    weft: Weft, trace: list[object], tmp_path: Path
) -> None:
    rows = [line.rpartition(",")[0] for line in PODS.splitlines()]
    (tmp_path / "pods.csv").write_text("\n".join(rows) + "\n")
    for form in ("table", "csv", "json"):
        said = weft("simulate", *trace, "--timed", "-o", form)
        assert "gang" not in said.out
        assert "preempted" not in said.out
    header = weft("simulate", *trace, "--timed", "-o", "csv").out.splitlines()[0].split(",")
    assert header[3 : 3 + len(TIMED_CSV_COLUMNS)] == list(TIMED_CSV_COLUMNS)


def test_a_report_has_the_gangs(weft: Weft, trace: list[object], tmp_path: Path) -> None:
    said = weft("simulate", *trace, "--timed", "--report", tmp_path / "report")
    assert said.code == 0
    assert "Mean wait of gangs, s" in (tmp_path / "report" / "report.html").read_text()

"""`weft experiment init`, `check`, `run` and `report`, as a user would call them."""

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from commands import Weft, kubeconfig

from weft.lab.experiment.spec.experiment import decode_spec
from weft.lab.experiment.spec.templates import TEMPLATES


@pytest.fixture
def small(weft: Weft, tmp_path: Path) -> Path:
    """The output of `init`, made small."""
    text = weft("experiment", "init").out
    text = text.replace("[0, 50, 100, 150, 200, 250]", "[0]").replace("count: 20", "count: 1")
    file = tmp_path / "small.yaml"
    file.write_text(text.replace("[gpushare, exclusive, auto]", "[gpushare, exclusive]"))
    return file


def test_a_new_user_prints_checks_runs_and_compares(
    weft: Weft, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "runs"
    said = weft("experiment", "check", small, "--out", out, "--try-s", 0)
    assert said.out.splitlines() == [
        "overprovisioned: 2 cells (1 × percent, 1 × faults, 2 × scheduler, 1 × seed)",
        f"in {out}: 0 have run, 2 to run",
    ]
    assert weft("experiment", "run", small, "--out", out, "--jobs", 1).out.startswith("2 cells run")
    said = weft("experiment", "report", out)
    assert all(len(line) <= 80 for line in said.out.splitlines())
    assert "exclusive" in said.out
    assert "Fewer than 5 seeds: no intervals" in said.out
    assert "The simulation assumes: slowdowns by number of jobs on a GPU, as measured" in said.out
    page = tmp_path / "page"
    found = json.loads(weft("experiment", "report", out, "-o", "json", "--page", page).out)
    html = (page / "report.html").read_text("utf-8")
    assert "Does lending idle GPU memory shorten jobs" in html
    assert f"{found['summary'][0]['mean']:,.6g}" in html
    assert {"jct_p99_s.svg", "power_w-0.svg"} <= {one.name for one in page.iterdir()}
    assert (found["cells"], found["missing"]) == (2, [])
    rows = list(csv.DictReader(io.StringIO(weft("experiment", "report", out, "-o", "csv").out)))
    assert {row["scheduler"] for row in rows} == {"gpushare", "exclusive"}
    assert {row["ci95"] for row in rows} == {""}


@pytest.mark.parametrize("workload", sorted(TEMPLATES))
def test_what_init_prints_is_an_experiment(
    weft: Weft, tmp_path: Path, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its data is absent the exit code is 3, and the file and field are named."""
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "absent"))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    file = tmp_path / "elsewhere" / "experiment.yaml"
    file.parent.mkdir()
    file.write_text(weft("experiment", "init", "--workload", workload).out)
    said = weft("experiment", "check", file, "--try-s", 0)
    assert said.out.startswith(f"{workload}: ")
    absent = not workload.startswith(("overprovisioned", "kube-knots-", "cluster-jobs"))
    assert said.code == (3 if absent else 0)
    assert ("does not exist; cells" in said.err) == absent


@pytest.mark.parametrize("value", [None, ""])
def test_an_unset_variable_is_said_to_be_unset(
    weft: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("WEFT_DATA", value or "")
    if value is None:
        monkeypatch.delenv("WEFT_DATA")
    file = tmp_path / "experiment.yaml"
    file.write_text(weft("experiment", "init", "--workload", "pairs").out)
    said = weft("experiment", "check", file)
    assert (said.code, said.err) == (
        3,
        f"weft: warning: {file}: workload.table: the environment variable WEFT_DATA is not set; "
        "set it to the folder that has gavel/pairs.csv, as in `export WEFT_DATA=$HOME/data`; "
        "cells that are to run are skipped\n",
    )


@pytest.mark.parametrize("workload", sorted(TEMPLATES))
def test_what_init_prints_names_every_field_of_the_workload(workload: str) -> None:
    text = TEMPLATES[workload]
    form = decode_spec(text.encode(), workload).workload
    names = [field.encode_name for field in msgspec.structs.fields(form)]
    assert [name for name in names if not re.search(rf"\b{name}:\s", text)] == []


def test_a_report_names_the_cells_that_are_missing(weft: Weft, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    weft("experiment", "run", small, "--out", out, "--jobs", 1)
    next(out.rglob("result.json")).unlink()
    said = weft("experiment", "report", out)
    assert said.code == 3
    assert "1 of 2 cells are missing: percent=0/faults=sound/" in said.err


def test_stored_cells_are_the_same_bytes_however_they_were_run(
    weft: Weft, small: Path, tmp_path: Path
) -> None:
    """By one process, and by two of which one cell was lost on the way; a report reads these."""

    def stored(name: str) -> dict[str, bytes]:
        out = tmp_path / name
        files = (one for one in out.rglob("*") if one.is_file() and one.name != "manifest.json")
        return {str(one.relative_to(out)): one.read_bytes() for one in files}

    weft("experiment", "run", small, "--out", tmp_path / "one", "--jobs", 1)
    weft("experiment", "run", small, "--out", tmp_path / "two", "--jobs", 2)
    next((tmp_path / "two").rglob("result.json")).unlink()
    weft("experiment", "run", small, "--out", tmp_path / "two", "--jobs", 2)
    assert sum(name.endswith("result.json") for name in stored("one")) == 2
    assert stored("one") == stored("two")
    csv_text = [weft("experiment", "report", tmp_path / n, "-o", "csv").out for n in ("one", "two")]
    assert csv_text[0] == csv_text[1]


def test_init_writes_what_its_options_say(weft: Weft, tmp_path: Path) -> None:
    given = (
        "--name",
        "mine",
        "--scheduler",
        "fgd",
        "--scheduler",
        "interference:overlap=false",
        "--seeds",
        3,
    )
    file = tmp_path / "experiment.yaml"
    file.write_text(weft("experiment", "init", "--workload", "kube-knots-dl", *given).out)
    said = weft("experiment", "check", file, "--try-s", 0)
    assert said.out.startswith("mine: 6 cells (1 × faults, 2 × scheduler, 3 × seed)")
    assert "baseline: fgd" in file.read_text()


def test_init_asks_at_a_terminal_for_what_is_not_given(tmp_path: Path) -> None:
    """Answers and questions go over the terminal, the experiment to stdout."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weft.cli.main", "experiment", "init", "--seeds", "4"]
    streams = {"stdin": theirs, "stderr": theirs, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams) as process:  # type: ignore[call-overload]
        os.close(theirs)
        os.write(ours, b"kube-knots-cluster\nmine\nspread, res-ag\n")
        text = process.stdout.read().decode()
        asked = os.read(ours, 4096).decode()
    os.close(ours)
    assert process.returncode == 0
    assert "Workload" in asked
    assert "Seeds" not in asked  # given
    assert "kind: kube-knots-cluster" in text
    assert [line for line in text.splitlines() if line[:1] in "nsb"] == [
        "name: mine",
        "schedulers: [spread, res-ag]",
        "baseline: spread",
        "seeds: {first: 0, count: 4}",
    ]


def test_data_that_is_absent_is_said_in_the_report_until_it_is_there(
    weft: Weft, tmp_path: Path
) -> None:
    file, out = tmp_path / "experiment.yaml", tmp_path / "runs"
    file.write_text(
        "{apiVersion: weft.dev/v1, kind: Experiment, name: mine, workload: "
        "{kind: job-list, jobsFile: jobs.csv, gpus: 1}, schedulers: [gpushare], seeds: {count: 1}}"
    )
    said = weft("experiment", "run", file, "--out", out)
    told = f"workload.jobsFile: {tmp_path / 'jobs.csv'} does not exist"
    assert said.code == 3
    assert f"{told}; cells that are to run are skipped" in said.err
    said = weft("experiment", "report", out, "--page", tmp_path / "page", "-o", "json")
    assert said.code == 3
    assert json.loads(said.out)["notes"] == [f"All 1 cells are skipped: {told}."]
    assert told in (tmp_path / "page" / "report.html").read_text("utf-8")
    (tmp_path / "jobs.csv").write_text("name,ask_mib,memory_mib,seconds\none,900,800,30\n")
    assert weft("experiment", "run", file, "--out", out).out.startswith("1 cells run")
    said = weft("experiment", "report", out, "-o", "json")
    assert (said.code, json.loads(said.out)["notes"]) == (0, [])
    (tmp_path / "jobs.csv").unlink()
    assert weft("experiment", "run", file, "--out", out).code == 3
    said = weft("experiment", "report", out, "-o", "json")
    assert (said.code, json.loads(said.out)["notes"]) == (0, [])


def test_one_measure_has_one_name_and_is_drawn_once(weft: Weft, tmp_path: Path) -> None:
    """An experiment on a trace of one's own says and draws what `weft simulate` does; what is held
    is what was asked for, so that it is not drawn again. Paths begin at the file's folder."""
    file, out, page = tmp_path / "experiment.yaml", tmp_path / "runs", tmp_path / "page"
    text = weft("experiment", "init", "--workload", "openb").out.replace("count: 20", "count: 2")
    file.write_text(text.replace("[fgd, best-fit, least-stranding]", "[fgd, best-fit]"))
    assert weft("experiment", "run", file, "--out", out, "--jobs", 1).code == 0
    said = weft("experiment", "report", out, "--page", page, "-o", "json")
    found = json.loads(said.out)
    assert found["same_as"] == {"gpu_held_percent": "gpu_allocated_percent"}
    assert {row["difference"]["unit"] for row in found["summary"] if row["difference"]} >= {
        "points"
    }
    assert not list(page.glob("gpu_*_percent.svg")), "the figures by demand have them"
    html = (page / "report.html").read_text()
    assert "The same as GPUs allocated at the end, in every run." in html
    drawn = tmp_path / "drawn"
    policies = ("--policy", "fgd", "--policy", "best-fit", "--seeds", 2, "--first-seed", 0)
    simulated = weft("simulate", *weft.trace, *policies, "--report", drawn, "-o", "json")
    (fgd, _) = json.loads(simulated.out)["summary"]
    means = {(row["scheduler"], row["measure"]): row["mean"] for row in found["summary"]}
    assert means["fgd", "gpu_allocated_percent"] == pytest.approx(fgd["gpu_allocated_percent"])
    for figure in ("allocation.svg", "fragmentation.svg"):
        assert (page / figure).read_text() == (drawn / figure).read_text()
    for title in ("GPUs allocated at the end", "GPUs in fragments at the end", "Failed pods"):
        assert title in html
        assert title in (drawn / "report.html").read_text()


FORMER = {
    b"gpu_asked_at_100_percent": b"gpu_allocated_at_100_percent",
    b"gpu_asked_percent": b"gpu_allocated_percent",
    b"gpu_allocation_percent": b"gpu_held_percent",
    b"mean_asked_percent": b"mean_allocated_percent",
    b"mean_allocation_percent": b"mean_held_percent",
    b"asked_percent": b"allocated_percent",
}


@pytest.mark.parametrize("mode", ["inflation", "timed"])
def test_runs_of_an_older_version_are_reported_alike(weft: Weft, tmp_path: Path, mode: str) -> None:
    """0.1.0 called what placed pods request asked, and what they hold allocation."""
    file, out = tmp_path / "experiment.yaml", tmp_path / "runs"
    text = weft("experiment", "init", "--workload", "openb").out.replace("count: 20", "count: 2")
    text = text.replace("[fgd, best-fit, least-stranding]", "[fgd, best-fit]")
    text = text.replace("mode: inflation", f"mode: {mode}")
    text = text.replace("demands: [130.0]", "demands: [130.0]" if mode == "inflation" else "")
    file.write_text(text.replace("measures: []", "measures: [gpu_asked_percent, gpu_held_percent]"))
    assert weft("experiment", "run", file, "--out", out, "--jobs", 1).code == 0
    page = tmp_path / "page"
    asked = ("experiment", "report", out, "--page", page, "-o", "json")
    present, drawn = weft(*asked).out, (page / "report.html").read_text()
    assert '"gpu_allocated_percent"' in present
    changed = 0
    for path in [*out.rglob("result.json"), out / "experiment.json"]:
        written = path.read_bytes()
        former = written
        for old, new in FORMER.items():
            former = former.replace(b'"' + new + b'"', b'"' + old + b'"')
        path.write_bytes(former)
        changed += written != former
    assert changed == 5
    assert weft(*asked).out == present
    assert (page / "report.html").read_text() == drawn
    assert weft("experiment", "run", file, "--out", out, "--jobs", 1).code == 0, "goes on with it"


def test_a_run_that_this_version_cannot_read_is_named_with_the_way_out(
    weft: Weft, tmp_path: Path
) -> None:
    file, out = tmp_path / "experiment.yaml", tmp_path / "runs"
    text = weft("experiment", "init", "--workload", "openb").out.replace("count: 20", "count: 1")
    file.write_text(text.replace("[fgd, best-fit, least-stranding]", "[fgd]"))
    assert weft("experiment", "run", file, "--out", out, "--jobs", 1).code == 0
    (path,) = out.rglob("result.json")
    path.write_bytes(path.read_bytes().replace(b'"gpu_held_percent"', b'"gpu_of_other_days"'))
    said = weft("experiment", "report", out)
    assert said.code == 1
    assert str(path.parent) in said.err
    assert "by another version; remove the folder, run the experiment again" in said.err

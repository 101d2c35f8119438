"""Ctrl-C and SIGTERM while cells run on several processes: soon over, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Weft
from long_form import few_or_many

SOON_S = 60.0
"""Cells of `endless` never end; a second suffices, but not on a machine that is busy."""


@pytest.fixture
def told(tmp_path: Path) -> Iterator[int]:
    """A pipe that says which process decides endlessly."""
    os.mkfifo(tmp_path / "told")
    reader = os.open(tmp_path / "told", os.O_RDWR)
    yield reader
    os.close(reader)


@pytest.fixture
def endless(tmp_path: Path, told: int) -> str:
    """A policy whose first decision goes on for ever, once it has said so."""
    file = tmp_path / "endless.py"
    file.write_text(f"""
import os
from weft.core.framework import Policy

class Endless(Policy):
    name = "endless"
    summary = "never decides"

    def score_nodes(self, query):
        with open({str(tmp_path / "told")!r}, "w") as pipe:
            pipe.write(f"{{os.getpid()}}\\n")
        while True:
            pass
""")
    return f"{file}:Endless"


def began(told: int, processes: int) -> list[int]:
    """The processes that decide, once that many do."""
    heard = b""
    while heard.count(b"\n") < processes:
        heard += os.read(told, 100)
    return [int(line) for line in heard.split()]


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def ended(words: list[str], told: int, processes: int, number: int, *, whole_group: bool) -> str:
    """The last words on stderr of a `weft` that got the signal while that many cells ran."""
    weft = subprocess.Popen(
        [sys.executable, "-m", "weft.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        workers = began(told, processes)
        sent_s = time.monotonic()
        (os.killpg if whole_group else os.kill)(weft.pid, number)
        out, said = weft.communicate(timeout=60)
        assert time.monotonic() - sent_s < SOON_S
        assert (weft.returncode, out) == (130, ""), said
        assert all(map(is_gone, workers))
        return said
    finally:
        if weft.poll() is None:
            os.killpg(weft.pid, signal.SIGKILL)
            weft.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, *few_or_many([], [signal.SIGINT])])
def test_a_simulation_ends_at_once(weft: Weft, endless: str, told: int, number: int) -> None:
    words = ["simulate", *weft.trace, "--policy", endless, "--seeds", "4", "--jobs", "2"]
    assert ended(words, told, 2, number, whole_group=False) == "weft: interrupted\n"


def test_an_experiment_keeps_the_cells_that_are_done(
    weft: Weft, endless: str, told: int, tmp_path: Path
) -> None:
    """A terminal's Ctrl-C goes to the workers too, which say nothing of it."""
    text = weft("experiment", "init", "--workload", "openb").out.replace("count: 20", "count: 2")
    file = tmp_path / "experiment.yaml"
    file.write_text(text.replace("[fgd, best-fit, least-stranding]", f"[fgd, '{endless}']"))
    out = tmp_path / "runs"
    words = ["experiment", "run", str(file), "--out", str(out), "--jobs", "2"]
    said = ended(words, told, 2, signal.SIGINT, whole_group=True)
    assert said == (
        f"weft: 2 of 4 cells are in {out}; the same command continues with the remaining cells\n"
        "weft: interrupted\n"
    )
    # A worker may have begun its next cell before what it says of the last one is read: times may
    # be missing, cells are not.
    assert json.loads((out / "manifest.json").read_text())["cells"].keys() <= {
        cell.relative_to(out / "cells").as_posix() for cell in (out / "cells").glob("*/*/*")
    }
    assert not (out / ".parts").exists()
    checked = weft("experiment", "check", file, "--out", out, "--try-s", 0)
    assert f"in {out}: 2 have run, 2 to run" in checked.out


def test_a_killed_worker_is_one_line(weft: Weft, endless: str, told: int) -> None:
    """As where the kernel ends one for want of memory."""
    words = ["simulate", *weft.trace, "--policy", endless, "--seeds", "4", "--jobs", "2"]
    run = subprocess.Popen(
        [sys.executable, "-m", "weft.cli.main", *words], stderr=subprocess.PIPE, text=True
    )
    os.kill(began(told, 2)[0], signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, said) == (
        1,
        "weft: error: --jobs: a process that ran a cell was killed, perhaps because memory ran "
        "out; use fewer\n",
    )

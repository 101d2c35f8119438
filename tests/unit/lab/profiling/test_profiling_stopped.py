"""Measuring that is stopped from outside: nobody is left behind, and what was measured is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from long_form import few_or_many
from measuring_world import alive, played

from weft.lab.profiling.runlog import read

PATIENCE_S = 60.0


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.02)


STOPS = [signal.SIGKILL, signal.SIGINT, signal.SIGTERM]


def measure(folder: Path, program: Path, tmp_path: Path) -> "subprocess.Popen[bytes]":
    """The command, started, with far more runs than it will get to do."""
    workloads = ["--workload", "softmax", "--workload", "copies"]
    short = ["--window-s", "0.2", "--warm-s", "0.05", "--runs", "1000"]
    where = ["--device", "cpu", "--python", str(program)]
    command = [sys.executable, "-m", "weft.cli.main", "profile", "measure", str(folder)]
    command += [*where, *workloads, *short]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # who is killed cannot tidy up
    # Where the tests run in the background, SIGINT is ignored, and so it would be by a child.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    finally:
        signal.signal(signal.SIGINT, ours)


@pytest.mark.parametrize("how", STOPS[: few_or_many(1, 3)])
def test_nobody_is_left_behind_and_nothing_measured_is_lost(
    tmp_path: Path, how: signal.Signals
) -> None:
    program, pids, folder = played(tmp_path), tmp_path / "pids", tmp_path / "out"
    process = measure(folder, program, tmp_path)
    try:
        log = folder / "runs.jsonl"
        until(lambda: log.exists() and len(read(log).runs) >= 3)
        process.send_signal(how)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) >= 2
    until(lambda: not any(alive(pid) for pid in started))
    runs = read(log).runs
    assert len(runs) >= 3
    assert [run.failure for run in runs if run.failure] == []
    assert all(900 < rate < 1_100 for run in runs for rate in run.rates)
    if how is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        return
    assert process.returncode == 130
    found = json.loads((folder / "dataset.json").read_text())
    assert {one["application"] for one in found["solo"]} <= {"copies", "softmax"}
    assert found["solo"] != []

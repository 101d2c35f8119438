"""Workloads that answer queries, and the line by which the published statistics read them."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.lab.workloads.queries import PERCENTILES, last_line


@given(st.lists(st.floats(0.0001, 100), min_size=2, max_size=300))
def test_the_lines_percentiles_are_numpys(latencies_s: list[float]) -> None:
    line = last_line(latencies_s, sum(latencies_s))
    tiles = line.partition("tiles=")[2].split(",")
    read = [tuple(map(float, tile.split(":"))) for tile in tiles]
    expected = np.percentile(latencies_s, PERCENTILES)
    assert [at for at, _ in read] == list(PERCENTILES)
    assert [value for _, value in read] == pytest.approx(expected, abs=0.00006)
    assert f"queries={len(latencies_s)}, " in line


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.lab.workloads", "answer", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_cpu_answers_without_pytorch_and_the_published_statistics_read_its_last_line() -> None:
    """Ferikoglou et al.'s statistics split at commas and take what follows the colon."""
    ended = run("perceptron-infer", "--queries", "50", "--tiny")
    assert ended.returncode == 0, ended.stderr
    parts = ended.stdout.splitlines()[-1].split(",")
    p90, p99 = (parts[field].split(":") for field in (6, 8))
    assert (p90[0], p99[0]) == ("90.0", "99.0")
    assert 0 <= float(p90[1]) <= float(p99[1])
    assert parts[3] == " queries=50"


def test_one_query_has_no_percentiles() -> None:
    ended = run("perceptron-infer", "--queries", "1")
    assert ended.returncode == 2
    assert "'1' is not a number of queries; write 2 or more" in ended.stderr


def test_what_fails_says_so_and_writes_no_line() -> None:
    """A Job's pod restarts on a code that is not 0."""
    ended = run("resnet-infer-1", "--queries", "2", "--device", "nowhere", "--tiny")
    assert ended.returncode == 4
    assert ended.stdout == ""
    assert ended.stderr.startswith("resnet-infer-1: ")

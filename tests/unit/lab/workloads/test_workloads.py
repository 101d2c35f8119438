"""The workloads: what is declared, what the loop says, and, where PyTorch is at hand, each one."""

import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.lab.profiling.machine import path_of_workloads
from weft.lab.workloads.catalog import BY_NAME, MEMORY_MIB, WORKLOADS, Workload
from weft.lab.workloads.running import RunOrders

Run = Callable[..., tuple[int, list[dict[str, Any]]]]
SOURCES = sorted(Path(importlib.util.find_spec("weft.lab.workloads").origin).parent.glob("*.py"))  # type: ignore[union-attr,arg-type]


def test_twenty_workloads_of_every_character() -> None:
    assert len(WORKLOADS) >= 20
    assert len(BY_NAME) == len(WORKLOADS)
    assert {one.kind for one in WORKLOADS} == {"training", "inference", "kernels"}
    assert {one.bound_by for one in WORKLOADS} == {
        "compute",
        "memory",
        "launches",
        "input",
        "transfers",
    }
    assert all(one.memory in MEMORY_MIB for one in WORKLOADS)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
def test_what_is_declared_is_there(workload: Workload) -> None:
    """Without PyTorch the function can only be looked up in the source."""
    module, _, function = workload.build.partition(":")
    source = next(path for path in SOURCES if path.stem == module)
    assert f"\ndef {function}(place: DevicePlace, sizes: Sizes) -> Step:" in source.read_text()
    assert {*workload.sizes, "batch"} == {*workload.tiny}


def test_what_lists_the_workloads_needs_no_pytorch() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['torch'] = None; "
            "import runpy; sys.argv = ['w', 'list']; runpy.run_module('weft.lab.workloads')",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (
        "softmax"
        in subprocess.run(
            [sys.executable, "-m", "weft.lab.workloads", "list"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    )
    assert told.returncode == 0, told.stderr


def test_orders_are_words_a_line_and_the_end_is_one() -> None:
    reading, writing = os.pipe()
    orders = RunOrders(reading)
    assert orders.waiting() is False
    os.write(writing, b"go\npau")
    assert orders.wait() == "go"
    assert orders.waiting() is False
    os.write(writing, b"se\n")
    assert orders.waiting() is True
    assert orders.wait() == "pause"
    os.close(writing)
    assert orders.wait() == "end"
    os.close(reading)


def test_without_orders_it_goes_once() -> None:
    orders = RunOrders()
    assert [orders.wait(), orders.waiting(), orders.wait()] == ["go", False, "end"]


# --- with PyTorch --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_python() -> str:
    """A Python with PyTorch: WEFT_TORCH_PYTHON, or this one; else these tests are left out."""
    named = os.environ.get("WEFT_TORCH_PYTHON", "")
    if named:
        return named
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    sys.stderr.write("SKIPPED no PyTorch: set WEFT_TORCH_PYTHON to a Python that has it\n")
    pytest.skip("no PyTorch: set WEFT_TORCH_PYTHON to a Python that has it")


@pytest.fixture
def run(torch_python: str, tmp_path: Path) -> Run:
    def go(name: str, *more: str) -> tuple[int, list[dict[str, object]]]:
        path = os.pathsep.join(
            [path_of_workloads(tmp_path), os.environ.get("PYTHONPATH", "")]
        ).rstrip(os.pathsep)
        ended = subprocess.run(
            [torch_python, "-m", "weft.lab.workloads", "run", name, *more],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        return ended.returncode, [json.loads(line) for line in io.StringIO(ended.stdout)]

    return go


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.name)
def test_each_workload_runs_and_says_how_far_it_is(run: Run, workload: Workload) -> None:
    code, told = run(
        workload.name, "--device", "cpu", "--tiny", "--seconds", "0.1", "--warm-seconds", "0.05"
    )
    assert code == 0, told
    assert [one["event"] for one in told if one["event"] != "progress"] == [
        "loaded",
        "steady",
        "paused",
        "ended",
    ]
    progress = [one for one in told if one["event"] == "progress"]
    counts = [one["iterations"] for one in progress]
    assert counts == sorted(set(counts))
    assert counts[0] > 0
    times = [one["at_s"] for one in told]
    assert times == sorted(times)
    assert times[-1] - next(one["at_s"] for one in told if one["event"] == "steady") >= 0.1


def test_no_gpu_is_a_failure_that_is_said(run: Run) -> None:
    code, told = run("softmax", "--device", "cuda:97")
    assert code == 4
    assert told[-1]["event"] == "failed"


def test_measuring_real_workloads_gives_rates_alone_and_together(
    torch_python: str, tmp_path: Path
) -> None:
    """All of it is real but the GPU: on a CPU of two cores two of them leave each other alone."""
    command = [
        sys.executable,
        "-m",
        "weft.cli.main",
        "profile",
        "measure",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--tiny",
        "--python",
        torch_python,
        "--workload",
        "softmax",
        "--workload",
        "lstm-train",
        "--runs",
        "1",
        "--window-s",
        "0.3",
        "--warm-s",
        "0.1",
        "--output",
        "json",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(ended.stdout)
    assert [one["application"] for one in found["solo"]] == ["lstm-train", "softmax"]
    assert all(one["rate_per_s"] > 0 for one in found["solo"])
    assert len(found["corun"]) == 4
    assert all(0.05 < one["speed"] < 5 for one in found["corun"])
    assert found["about"]["torch"]

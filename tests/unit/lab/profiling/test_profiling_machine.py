"""Processes, MPS and NVML, each with a fake in place of what needs a GPU; the fakes say so."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.mps import fake_mps_control
from fakes.nvml import FakeNvml, FakeNvmlCard
from weft.lab.profiling.gpu_bench import BenchError, ResidentReport
from weft.lab.profiling.machine import Machine, MachineOptions, WorkloadProcess
from weft.lab.workloads.catalog import BY_NAME

PATIENCE_S = 60.0

FAKE_WORKLOAD = """
import json, sys, time
def say(event, **more):
    print(json.dumps({"event": event, "at_s": time.monotonic(), **more}), flush=True)
mood = sys.argv[1]
if mood == "silent": time.sleep(600)
if mood == "crashes": sys.exit("a library is missing")
if mood == "full":
    say("failed", reason="out-of-memory", text="CUDA out of memory"); sys.exit(3)
say("loaded", torch="fake")
for line in sys.stdin:
    if line == "go\\n":
        say("steady", iterations=0); say("progress", iterations=7); print("not JSON", flush=True)
    else: say("paused", iterations=7, peak_mib=42)
if mood == "stubborn": time.sleep(600)
"""


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# --- processes -----------------------------------------------------------------------------------


@pytest.fixture
def start() -> Iterator[Callable[[str], WorkloadProcess]]:
    started: list[WorkloadProcess] = []

    def begin(mood: str) -> WorkloadProcess:
        started.append(WorkloadProcess([sys.executable, "-c", FAKE_WORKLOAD, mood], {}))
        return started[-1]

    yield begin
    for process in started:
        if not gone(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def wait_for(process: WorkloadProcess, state: str) -> ResidentReport:
    until(lambda: process.report().state == state)
    return process.report()


def test_a_process_goes_pauses_and_ends_when_told(start: Any) -> None:
    process = start("good")
    assert wait_for(process, "paused").versions == "fake"
    for _ in range(2):
        process.go()
        until(lambda: len(process.report().stamps) == 2)
        assert [stamp.iterations for stamp in process.report().stamps] == [0, 7]
        process.pause()
        assert wait_for(process, "paused").peak_mib == 42
    process.end()
    assert gone(process.pid)


@pytest.mark.parametrize(
    ("mood", "reason", "text"),
    [
        ("crashes", "exit code 1", "a library is missing"),
        ("full", "out-of-memory", "CUDA out of memory"),
    ],
)
def test_what_a_process_dies_of_is_told(start: Any, mood: str, reason: str, text: str) -> None:
    process = start(mood)
    said = wait_for(process, "failed")
    assert (said.reason, said.text) == (reason, text)
    process.go()  # nobody is there; the state stays
    assert process.report().state == "failed"
    process.end()


def test_a_process_that_is_killed_says_by_which_signal(start: Any) -> None:
    process = start("good")
    wait_for(process, "paused")
    os.kill(process.pid, signal.SIGKILL)
    assert wait_for(process, "failed").reason == "signal 9"
    process.end()


def test_one_that_does_not_want_to_end_is_ended(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.lab.profiling.machine.END_S", 0.2)
    for mood in ("stubborn", "silent"):
        process = start(mood)
        process.end()
        assert gone(process.pid)


# --- a machine with a GPU: NVML and MPS are fakes ------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake nvidia-cuda-mps-control on the PATH; the file where it says who it is."""
    (tmp_path / "bin").mkdir()
    program = fake_mps_control(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def one(gpm: dict[int, float] | None, *, mode: int = 0) -> FakeNvml:
    card = FakeNvmlCard()
    card.gpm, card.mode = gpm, mode
    card.processes = [(7, 3 << 10), (8, None)]
    return FakeNvml(card)


def test_a_gpu_for_one_process_is_not_sliced(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.node.devices.nvml_library.library", lambda: one({2: 50.0}, mode=3))
    with Machine(MachineOptions(gpu="0")) as machine:
        with (
            pytest.raises(BenchError, match="takes one process at a time"),
            machine.isolated("time-slicing"),
        ):
            pass
        with machine.isolated("mps"):
            assert daemon.exists()


def test_who_else_is_on_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.node.devices.nvml_library.library", lambda: one({2: 50.0}))
    with Machine(MachineOptions(gpu="0")) as machine:
        assert machine.card.others == 2
    with Machine(MachineOptions(device="cpu")) as machine:
        assert machine.card.others == 0


def test_nowhere_to_put_files_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with pytest.raises(BenchError, match=r"No usable temporary directory found.*TMPDIR"):
        Machine(MachineOptions(device="cpu"))


def test_a_cpu_is_a_bench_without_mps() -> None:
    with Machine(MachineOptions(device="cpu", python="no-such-python")) as machine:
        assert machine.card.gpu_model == "CPU"
        with pytest.raises(BenchError, match="MPS needs a GPU"), machine.isolated("mps"):
            pass
        with machine.isolated("time-slicing"), pytest.raises(BenchError, match="does not start"):
            machine.start(BY_NAME["softmax"])


def test_on_a_gpu_processes_see_that_gpu_and_the_daemon_that_is_meant(
    daemon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML, the MPS daemon and the workload are fakes; the environment between them is real."""
    nvml = one({2: 50.0})
    monkeypatch.setattr("weft.node.devices.nvml_library.library", lambda: nvml)
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $*" >"$FAKE_SEEN.env"\n'
        'ours="${PYTHONPATH%%:*}/weft/lab/workloads"\n'
        'ls "$CUDA_MPS_PIPE_DIRECTORY" "$ours/catalog.py" >>"$FAKE_SEEN.env"\n'
        'echo \'{"event":"loaded"}\'; cat >/dev/null\n'
    )
    program.chmod(0o755)
    seen = Path(f"{daemon}.env")
    with Machine(MachineOptions(gpu="0", python=str(program), warm_s=0.5)) as machine:
        assert (machine.card.uuid, machine.free_mib()) == ("GPU-1", 80_559)
        assert machine.sample()["sm_active_ratio"] == 0.5
        for isolation, control in (("time-slicing", False), ("mps", True)):
            with machine.isolated(isolation):
                process = machine.start(BY_NAME["softmax"])
                until(lambda process=process: process.report().state == "paused")  # type: ignore[misc]
                first, *more = seen.read_text().splitlines()
                assert first.startswith("GPU-1 /")
                assert first.endswith(
                    "-m weft.lab.workloads run softmax --device cuda --warm-seconds 0.5 "
                    "--seconds 600 --orders"
                )
                assert ("control" in more) is control
                assert any(line.endswith("weft/lab/workloads/catalog.py") for line in more)
                assert machine.held_mib(process) == 0
                process.end()
        assert gone(int(daemon.read_text().split()[0]))
    assert nvml.opened == 0

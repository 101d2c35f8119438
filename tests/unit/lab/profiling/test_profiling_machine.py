"""Processes, MPS and NVML, each with a fake in place of what needs a GPU; the fakes say so."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft.lab.profiling.gpu_bench import BenchError, ResidentReport
from weft.lab.profiling.machine import Machine, MachineOptions
from weft.lab.profiling.mps import LOGS, PIPES, mps, no_mps
from weft.lab.profiling.nvml import NvmlGpu, model_of
from weft.lab.profiling.processes import WorkloadProcess
from weft.lab.workloads.catalog import BY_NAME

PATIENCE_S = 20.0

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

FAKE_DAEMON = """#!/bin/sh
# A fake of nvidia-cuda-mps-control: a daemon that only knows whether it was told to quit.
at="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = "-f" ]; then
  [ -n "$FAKE_REFUSES" ] && echo "no such device" >"$CUDA_MPS_LOG_DIRECTORY/c.log" && exit 1
  echo "$$ $CUDA_VISIBLE_DEVICES" >"$FAKE_SEEN"
  while [ -n "$FAKE_GATE" ] && [ ! -e "$FAKE_GATE" ]; do sleep 0.05; done
  touch "$at/control"
  while [ -e "$at/control" ]; do sleep 0.05; done
  exit 0
fi
read -r order
[ -e "$at/control" ] || { echo "$order" >>"$FAKE_SEEN.refused"; exit 1; }
case "$order" in quit*) rm "$at/control" ;; esac
"""


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


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
    monkeypatch.setattr("weft.lab.profiling.processes.END_S", 0.2)
    for mood in ("stubborn", "silent"):
        process = start(mood)
        process.end()
        assert gone(process.pid)


# --- MPS -----------------------------------------------------------------------------------------


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake nvidia-cuda-mps-control on the PATH; the file where it says who it is."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(FAKE_DAEMON)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen"))
    return tmp_path / "seen"


def test_mps_runs_for_one_gpu_in_folders_of_its_own_and_is_gone_afterwards(daemon: Path) -> None:
    with mps("GPU-1") as env:
        pid, gpu = daemon.read_text().split()
        assert gpu == "GPU-1"
        assert all(Path(env[name]).is_dir() for name in (PIPES, LOGS))
        assert not gone(int(pid))
    assert gone(int(pid))
    assert not Path(env[PIPES]).exists()


def test_mps_is_gone_after_an_error_too(daemon: Path) -> None:
    with pytest.raises(RuntimeError, match="in between"), mps("0"):
        raise RuntimeError("in between")
    assert gone(int(daemon.read_text().split()[0]))


@pytest.mark.parametrize("starting", [False, True], ids=["it serves", "it starts"])
def test_mps_ends_when_whoever_started_it_is_killed(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, starting: bool
) -> None:
    story = (
        "import time\nfrom weft.lab.profiling.mps import mps\n"
        "with mps('0'):\n    print(flush=True)\n    time.sleep(600)\n"
    )
    gate, refused = daemon.with_name("gate"), Path(f"{daemon}.refused")
    monkeypatch.setenv("FAKE_GATE", str(gate) if starting else "")
    with subprocess.Popen([sys.executable, "-c", story], stdout=subprocess.PIPE) as process:
        if not starting:
            assert process.stdout is not None
            process.stdout.readline()
        until(lambda: daemon.exists() and daemon.read_text().endswith("\n"))
        pid = int(daemon.read_text().split()[0])
        process.kill()
    if starting:
        until(lambda: refused.exists() and "quit" in refused.read_text())
        gate.touch()
    until(lambda: gone(pid))


def test_mps_that_does_not_start_says_why(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with pytest.raises(BenchError, match="ended with 1: no such device"), mps("0"):
        pass


def test_no_mps_control_is_said_in_words() -> None:
    with pytest.raises(BenchError, match="no nvidia-not-here"), mps("0", "nvidia-not-here"):
        pass


def test_without_mps_no_daemon_of_anybody_is_found() -> None:
    with no_mps() as env:
        assert list(Path(env[PIPES]).iterdir()) == []


# --- NVML ----------------------------------------------------------------------------------------


class FakeNvmlError(Exception):
    """The fake's NVMLError."""


class FakeNvml:
    """Plays pynvml for one GPU: GPM values by number, or no GPM; it says what was freed."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, gpm: dict[int, float] | None, *, mode: int = 0, mig: int = 0) -> None:
        self.gpm, self.samples, self.closed = gpm, 0, False
        self.mode, self.mig = mode, mig
        self.asked: list[tuple[int, int]] = []

    def nvmlDeviceGetComputeMode(self, handle: str) -> int:
        return self.mode

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [self.mig, self.mig]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index != 0:
            raise FakeNvmlError("Invalid Argument")
        return "card"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=81_559 << 20, used=1_000 << 20, free=80_559 << 20)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        if self.gpm is None:
            raise FakeNvmlError("Not Supported")
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.samples += 1
        return SimpleNamespace(number=self.samples)

    def nvmlGpmSampleGet(self, handle: str, sample: Any) -> Any:
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.samples -= 1

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(32)])

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        assert self.gpm is not None
        self.asked.append((asked.sample1.number, asked.sample2.number))
        for told in asked.metrics[: asked.numMetrics]:
            told.nvmlReturn = 0 if told.metricId in self.gpm else 3
            told.value = self.gpm.get(told.metricId, 0.0)
        return asked

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=87, memory=12)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 350_000

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return {1: 1_980, 2: 2_619}[clock]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        raise FakeNvmlError("Not Supported")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [
            SimpleNamespace(pid=7, usedGpuMemory=3 << 30),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]

    def nvmlShutdown(self) -> None:
        self.closed = True


def test_gpm_counters_are_ratios_between_two_samples() -> None:
    nvml = FakeNvml({1: 99.0, 2: 75.0, 5: 50.0, 10: 25.0, 11: 100.4, 20: 2.0, 3: float("nan")})
    gpu = NvmlGpu("0", nvml)
    assert (gpu.card.gpu_model, gpu.card.counters) == ("NVIDIA-H100-80GB-HBM3", "nvml-gpm")
    assert gpu.card.memory_mib == 81_559
    found = gpu.sample()
    assert found == {
        "gpu_util_ratio": 0.87,
        "memory_copy_ratio": 0.12,
        "graphics_active_ratio": pytest.approx(0.99),
        "sm_active_ratio": 0.75,
        "tensor_active_ratio": 0.5,
        "dram_active_ratio": 0.25,
        "fp64_active_ratio": 1.0,
        "pcie_sent_bytes_per_s": 2 << 20,
        "power_w": 350.0,
        "sm_clock_mhz": 1_980.0,
        "memory_clock_mhz": 2_619.0,
    }
    gpu.sample()
    assert nvml.asked == [(1, 2), (2, 1)]  # each begins where the one before ended
    gpu.close()
    assert (nvml.samples, nvml.closed) == (0, True)


def test_without_gpm_the_two_shares_of_time_are_what_there_is() -> None:
    gpu = NvmlGpu("0", FakeNvml(None))
    assert gpu.card.counters == "nvml-utilization"
    found = gpu.sample()
    assert (found["gpu_util_ratio"], found["memory_copy_ratio"]) == (0.87, 0.12)


def test_a_gpu_that_supports_gpm_but_counts_nothing_has_the_two_shares() -> None:
    """As where somebody else's profiler holds the counters."""
    gpu = NvmlGpu("0", FakeNvml({}))
    assert (gpu.sample()["gpu_util_ratio"], gpu.card.counters) == (0.87, "nvml-gpm")


def test_a_gpu_in_mig_mode_is_refused() -> None:
    """Its numbers would be an instance's, and would stand for the whole GPU."""
    with pytest.raises(BenchError, match="GPU 0: is in MIG mode"):
        NvmlGpu("0", FakeNvml({2: 1.0}, mig=1))


def test_a_gpu_for_one_process_is_not_sliced(daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.lab.profiling.nvml.library", lambda: FakeNvml({2: 50.0}, mode=3))
    with Machine(MachineOptions(gpu="0")) as machine:
        with (
            pytest.raises(BenchError, match="takes one process at a time"),
            machine.isolated("time-slicing"),
        ):
            pass
        with machine.isolated("mps"):
            assert daemon.exists()


def test_who_else_is_on_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.lab.profiling.nvml.library", lambda: FakeNvml({2: 50.0}))
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


def test_memory_is_told_by_process_where_nvml_knows_it() -> None:
    gpu = NvmlGpu("0", FakeNvml(None))
    assert [gpu.process_mib(pid) for pid in (7, 8, 9)] == [3_072, None, None]
    assert gpu.memory_mib() == (1_000, 80_559)


def test_a_gpu_that_is_not_there_is_told_in_words() -> None:
    with pytest.raises(BenchError, match="GPU 3: NVML says: Invalid Argument"):
        NvmlGpu("3", FakeNvml(None))


def test_models_are_spelled_as_node_labels_spell_them() -> None:
    assert model_of("NVIDIA H100 80GB HBM3") == "NVIDIA-H100-80GB-HBM3"


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
    nvml = FakeNvml({2: 50.0})
    monkeypatch.setattr("weft.lab.profiling.nvml.library", lambda: nvml)
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
    assert nvml.closed

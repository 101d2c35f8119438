"""`make gpu-check` up to the GPU: what is missing is said, times are kept, results summed up."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from long_form import few_or_many
from measuring_world import alive, played

from fakes.bench import FakeBench, FakeWorkload
from weft.lab.profiling.campaign import CampaignSettings
from weft.lab.profiling.runlog import read
from weft.lab.profiling.session import MeasuringPlan, compile_folder, run, workloads_named

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "gpu_check.py"


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    return module


def nvidia_smi(folder: Path, patch: pytest.MonkeyPatch, script: str) -> None:
    """A fake nvidia-smi, first on the PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n# A fake of nvidia-smi.\n{script}\n")
    program.chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_without_a_gpu_it_says_so_in_one_line(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check.main([]) == check.NO_GPU
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("gpu-check: no GPU found: there is no nvidia-smi")


def test_a_driver_that_fails_is_no_gpu(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'no driver could be reached'; exit 9")
    assert check.main([]) == check.NO_GPU
    assert "nvidia-smi -L ended with 9: no driver could be reached" in capsys.readouterr().err


def test_a_gpu_but_no_pytorch_that_sees_it_is_told(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'GPU 0: FakeWorkload (UUID: GPU-1)'")
    monkeypatch.setenv("GPU_PYTHON", "/bin/false")
    assert check.main([]) == check.FAILED
    err = capsys.readouterr().err
    assert "gpu-check: GPU 0: FakeWorkload" in err
    assert "GPU_PYTHON=/bin/false: has no PyTorch that runs on the GPU" in err


def test_measuring_runs_in_a_python_that_has_numpy(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "ROOT", tmp_path)  # a clone without .venv
    soon = time.monotonic() + 60
    assert check.weft_python(sys.executable, soon) == sys.executable
    bare = str(played(tmp_path))
    assert check.weft_python(bare, soon) == sys.executable
    monkeypatch.setattr(check, "_pythons", lambda: iter([bare]))
    with pytest.raises(check.StepError, match="no time is left to install numpy"):
        check.weft_python(bare, soon)


def test_too_little_time_installs_and_measures_nothing(check: ModuleType, tmp_path: Path) -> None:
    soon = time.monotonic() + 60
    with pytest.raises(check.StepError, match="no time is left to install torch"):
        check._install(["torch"], soon)
    with pytest.raises(check.StepError, match="too few to measure"):
        check.measure(check.Plan(sys.executable, sys.executable, tmp_path, soon), [])
    assert list(tmp_path.iterdir()) == []


def test_what_takes_too_long_is_ended_with_all_it_started(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "PATIENCE_S", 0.5)
    began = time.monotonic()
    code, told = check.ended(["sh", "-c", "sleep 600 & echo $!; wait"], 0.5)
    assert (code, told) == (124, "not over in 0 s")
    assert time.monotonic() - began < 20
    assert check.ended(["no-such-program"], 1)[0] == 127
    assert check.ended([sys.executable, "-c", "print('hi')"], 20) == (0, "hi\n")


def test_a_pytorch_that_has_no_code_for_this_gpu_is_told(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = played(tmp_path, "CUDA error: no kernel image is available for execution")
    monkeypatch.setenv("GPU_PYTHON", str(program))
    with pytest.raises(check.StepError, match="has no PyTorch that runs on the GPU"):
        check.torch_python(time.monotonic() + 100)
    assert "CUDA error: no kernel image is available" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("driver", "wanted"),
    [("echo 580.65.06", "torch"), ("echo 550.54.15", "torch<2.10"), ("exit 1", "torch")],
)
def test_an_old_driver_gets_a_pytorch_that_it_runs(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, wanted: str
) -> None:
    nvidia_smi(tmp_path, monkeypatch, driver)
    assert check.torch_wanted() == wanted


@pytest.mark.parametrize(
    ("visible", "gpu"), [("", "0"), ("3,1", "3"), ("GPU-abc", "GPU-abc"), ("-1", "0")]
)
def test_the_gpu_is_the_first_that_cuda_would_use(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, visible: str, gpu: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert check.gpu() == gpu


@pytest.mark.parametrize("time_s", ["ten minutes", "nan", "-5"])
def test_a_time_that_is_none_is_told(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    time_s: str,
) -> None:
    monkeypatch.setenv("GPU_CHECK_S", time_s)
    assert check.main([]) == check.FAILED
    assert f"GPU_CHECK_S={time_s}: is no number" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM][: few_or_many(1, 2)])
def test_who_is_interrupted_leaves_nobody_behind_and_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: signal.Signals
) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'GPU 0: FakeWorkload (UUID: GPU-1)'")
    out, pids = tmp_path / "out", tmp_path / "pids"
    env = {**os.environ, "GPU_PYTHON": str(played(tmp_path)), "OUT": str(out)}
    words = ["--device", "cpu", "--window-s", "0.2", "--warm-s", "0.05", "--runs", "1000"]
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored by a child
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *words],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    signal.signal(signal.SIGINT, ours)
    try:
        until = time.monotonic() + 60
        log = out / "runs.jsonl"
        while not (log.exists() and len(read(log).runs) >= 3):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(how)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "time-slicing: " in told
    assert (out / "summary.txt").read_text() == told
    assert not any(alive(int(pid)) for pid in pids.read_text().split())


def test_all_the_way_with_a_python_that_has_no_pytorch(
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The command, its options and its time are right; what cannot be run is told, not hidden."""
    monkeypatch.setattr(check, "WORKLOADS", ("softmax", "lstm-train"))
    plan = check.Plan(sys.executable, "/bin/false", tmp_path / "out", time.monotonic() + 200)
    assert check.measure(plan, ["--device", "cpu"]) == check.FAILED
    assert "/bin/false: exit code 1; mend its PyTorch" in "".join(capfd.readouterr())
    with pytest.raises(check.StepError, match="no dataset came out"):
        check.summarise(tmp_path / "out")


def test_the_summary_says_what_came_out(check: ModuleType, tmp_path: Path) -> None:
    workloads = workloads_named(["softmax", "lstm-train", "copies"])
    world = {
        "softmax": FakeWorkload(compute=0.9),
        "lstm-train": FakeWorkload(compute=0.6),
        "copies": FakeWorkload(fails="run"),
    }
    settings = CampaignSettings(runs=1, window_s=1.0, warm_s=1.0)
    wishes = MeasuringPlan(tmp_path, workloads, ["time-slicing", "mps"], settings)
    run(FakeBench(world), wishes, lambda line: None)
    compile_folder(tmp_path)
    text = check.summarise(tmp_path)
    assert "gpuModel: Fake-GPU" in text
    assert "features: dram_active_ratio, power_w, sm_active_ratio" in text
    assert "mps: 2 alone, 4 beside another; speed 0.5" in text
    assert "infeasible: copies (mps): copies: signal 11" in text
    assert "fake: these numbers come from a fake GPU" in text
    assert "the agent's checks: not run" in text
    checked = {"check": "MPS memory", "result": "FAILED", "text": "below: held, above: held"}
    (tmp_path / "node.json").write_text(json.dumps([checked]))
    assert "MPS memory: FAILED: below: held, above: held\n" in check.summarise(tmp_path)


def test_no_dataset_is_told(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check.StepError, match="no dataset came out"):
        check.summarise(tmp_path)

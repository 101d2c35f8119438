"""`make gpu-check` up to the GPU: what is missing is said, times are kept, results summed up."""

import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from weft.cli.profile_measure import compile_folder, named, run
from weft.profiling.campaign import Settings
from weft.testing.bench import FakeBench, Played

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_check.py"


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
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check.main([]) == check.NO_GPU
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("gpu-check: no GPU found: there is no nvidia-smi")


def test_a_driver_that_fails_is_no_gpu(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    nvidia_smi(tmp_path, monkeypatch, "echo 'no driver could be reached'; exit 9")
    assert check.main([]) == check.NO_GPU
    assert "nvidia-smi -L ended with 9: no driver could be reached" in capsys.readouterr().err


def test_a_gpu_but_no_pytorch_that_sees_it_is_told(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    nvidia_smi(tmp_path, monkeypatch, "echo 'GPU 0: Played (UUID: GPU-1)'")
    monkeypatch.setattr(check, "NEEDED", ("json",))
    monkeypatch.setenv("GPU_PYTHON", "/bin/false")
    assert check.main([]) == check.FAILED
    err = capsys.readouterr().err
    assert "gpu-check: GPU 0: Played" in err
    assert "GPU_PYTHON=/bin/false: its PyTorch sees no GPU" in err


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


def test_all_the_way_with_a_python_that_has_no_pytorch(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command, its options and its time are right; what cannot be run is told, not hidden."""
    monkeypatch.setattr(check, "WORKLOADS", ("softmax", "lstm-train"))
    plan = check.Plan(sys.executable, "/bin/false", tmp_path / "out", time.monotonic() + 200)
    assert check.measure(plan, ["--device", "cpu", "--isolation", "time-slicing"]) == 0
    with pytest.raises(check.StepError, match="nothing was measured") as told:
        check.summarise(tmp_path / "out")
    assert "infeasible: lstm-train (time-slicing): lstm-train: exit code 1" in str(told.value)


def test_the_summary_says_what_came_out(check: ModuleType, tmp_path: Path) -> None:
    workloads = named(["softmax", "lstm-train", "copies"])
    world = {"softmax": Played(compute=0.9), "lstm-train": Played(compute=0.6),
             "copies": Played(fails="run")}  # fmt: skip
    settings = Settings(runs=1, window_s=1.0, warm_s=1.0)
    run(FakeBench(world), workloads, ["time-slicing", "mps"], settings, tmp_path, {})
    compile_folder(tmp_path)
    text = check.summarise(tmp_path)
    assert "gpuModel: Fake-GPU" in text
    assert "features: dram_active_ratio, power_w, sm_active_ratio" in text
    assert "mps: 2 alone, 4 beside another; speed 0.5" in text
    assert "infeasible: copies (mps): copies: signal 11" in text
    assert "fake: a fake card played these numbers" in text


def test_no_dataset_is_told(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check.StepError, match="no dataset came out"):
        check.summarise(tmp_path)

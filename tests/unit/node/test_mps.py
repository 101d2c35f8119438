"""MPS of our own, with a fake daemon: it is gone when we are, however that came."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.mps import fake_mps_control
from weft.node.devices.mps import LOGS, PIPES, mps, no_mps
from weft.node.devices.reader import DeviceError

PATIENCE_S = 60.0


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


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake nvidia-cuda-mps-control on the PATH; the file where it says who it is."""
    (tmp_path / "bin").mkdir()
    program = fake_mps_control(tmp_path / "bin")
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
        "import time\nfrom weft.node.devices.mps import mps\n"
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
    with pytest.raises(DeviceError, match="ended with 1: no such device"), mps("0"):
        pass


def test_no_mps_control_is_said_in_words() -> None:
    with pytest.raises(DeviceError, match="no nvidia-not-here"), mps("0", "nvidia-not-here"):
        pass


def test_without_mps_no_daemon_of_anybody_is_found() -> None:
    with no_mps() as env:
        assert list(Path(env[PIPES]).iterdir()) == []

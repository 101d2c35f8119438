"""The node's MPS daemon (a fake program): one for all GPUs, kept running, outliving the agent."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fakes.mps import fake_mps_control
from weft.node.agent.mps_daemon import OWN_SHM, MpsDaemon, MpsOptions, options_here


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path / "seen"


@pytest.fixture
async def make(tmp_path: Path, seen: Path) -> AsyncIterator[Callable[[], MpsDaemon]]:
    program = str(fake_mps_control(tmp_path))
    made: list[MpsDaemon] = []

    def daemon() -> MpsDaemon:
        options = MpsOptions(tmp_path / "mps", program, own_shm=False)
        made.append(MpsDaemon(options, check_s=0.01))
        return made[-1]

    yield daemon
    for one in made:
        await one.stop()
        with suppress(OSError, ValueError):
            os.kill(pid_in(seen), signal.SIGKILL)


def pid_in(seen: Path) -> int:
    return int(seen.read_text().split()[0])


async def run_until(daemon: MpsDaemon, wanted: Callable[[], bool]) -> None:
    """Run the part until that is so, then cancel it."""
    task = asyncio.create_task(daemon.run())
    async with asyncio.timeout(60):
        while not wanted():
            await asyncio.sleep(0.005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_it_outlives_the_agent_and_the_next_one_takes_it_over(
    make: Callable[[], MpsDaemon], seen: Path
) -> None:
    first = make()
    await run_until(first, lambda: first.ready)
    pid = pid_in(seen)
    os.kill(pid, 0)
    assert os.getsid(pid) != os.getsid(0)
    second = make()
    await run_until(second, lambda: second.ready)
    assert (second.starts, pid_in(seen)) == (0, pid)
    assert second.client_env() == {"CUDA_MPS_PIPE_DIRECTORY": str(second.pipe)}


async def test_one_that_died_is_started_again_in_the_same_folder(
    make: Callable[[], MpsDaemon], seen: Path
) -> None:
    daemon = make()
    await run_until(daemon, lambda: daemon.ready)
    first, folder = pid_in(seen), daemon.pipe.stat().st_ino
    os.kill(first, signal.SIGKILL)
    again = make()  # an agent that finds what is left of it
    await run_until(again, lambda: again.ready and again.starts == 1)
    assert pid_in(seen) != first
    assert daemon.pipe.stat().st_ino == folder  # containers have mounted it


async def test_one_that_runs_and_does_not_answer_is_left_alone(
    make: Callable[[], MpsDaemon], seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make()
    await run_until(daemon, lambda: daemon.ready)
    monkeypatch.setattr("weft.node.agent.mps_daemon.answers", lambda *_: False)
    other = make()
    await other.check()
    assert (other.ready, other.starts) == (False, 0)
    assert other.problem.endswith("runs and does not answer")
    os.kill(pid_in(seen), 0)


async def test_it_ends_when_weft_is_uninstalled(make: Callable[[], MpsDaemon], seen: Path) -> None:
    daemon = make()
    changes: list[bool] = []
    daemon.listeners.append(lambda: changes.append(daemon.ready))
    await run_until(daemon, lambda: daemon.ready)
    await daemon.stop()
    assert not daemon.ready
    assert changes == [True]  # that it may be offered is told at once
    assert not (daemon.pipe / "control").exists()


async def test_why_it_does_not_start_is_told(
    make: Callable[[], MpsDaemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_REFUSES", "1")
    daemon = make()
    await daemon.check()
    assert daemon.problem.endswith("ended: no such device")
    absent = MpsDaemon(MpsOptions(tmp_path / "x", "nvidia-not-here"))
    await absent.check()
    assert not absent.available
    assert absent.problem == ("there is no nvidia-not-here: install the driver's compute utilities")


@pytest.mark.parametrize(
    ("old", "multi_user", "started"),
    [("", True, ["-f -M"]), ("1", True, ["-f -M", "-f"]), ("", False, ["-f"])],
)
async def test_programs_of_all_users_share_one_server_where_the_driver_can(
    make: Callable[[], MpsDaemon],
    seen: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    multi_user: bool,
    started: list[str],
) -> None:
    """A driver that does not know the option serves one user at a time."""
    monkeypatch.setenv("FAKE_OLD", old)
    daemon = make()
    daemon.options = msgspec.structs.replace(daemon.options, multi_user=multi_user)
    await daemon.check()
    assert (daemon.ready, daemon.starts) == (True, len(started))
    assert seen.with_name("seen.options").read_text().splitlines() == started


@pytest.mark.parametrize("version", [1, 2])
async def test_it_goes_into_a_cgroup_of_its_own(
    tmp_path: Path, seen: Path, make: Callable[[], MpsDaemon], version: int
) -> None:
    """Ending the agent's cgroup would end it, and every program that uses it."""
    cgroups = tmp_path / "cgroup"
    trees = [cgroups] if version == 2 else [cgroups / "cpu", cgroups / "memory"]
    for tree in trees:
        tree.mkdir(parents=True)
        (tree / "cgroup.procs").touch()
    if version == 2:
        (cgroups / "cgroup.controllers").touch()
        (cgroups / "kubepods").mkdir()
        (cgroups / "kubepods" / "cgroup.procs").touch()
    daemon = make()
    program = daemon.options.program
    daemon.options = MpsOptions(tmp_path / "mps", program, own_shm=False, cgroups=str(cgroups))
    await daemon.check()
    for tree in trees:
        assert int((tree / "weft-mps" / "cgroup.procs").read_text()) == pid_in(seen)
    assert not (cgroups / "kubepods" / "weft-mps").exists()


def test_an_agent_in_a_container_runs_the_hosts_program(tmp_path: Path) -> None:
    for process, namespace in (("1", "mnt:[1]"), ("self", "mnt:[2]")):
        (tmp_path / process / "ns").mkdir(parents=True)
        (tmp_path / process / "ns" / "mnt").symlink_to(namespace)
    assert options_here(tmp_path).run_by[:3] == ("nsenter", "--target", "1")
    (tmp_path / "self/ns/mnt").unlink()
    (tmp_path / "self/ns/mnt").symlink_to("mnt:[1]")
    assert options_here(tmp_path).run_by == ()
    assert options_here(tmp_path / "absent").run_by == ()


def may_mount() -> bool:
    """Tells whether this machine lets us have mounts of our own: root with the right to mount."""
    try:
        code = subprocess.run([*OWN_SHM, "mount", "--bind", "/tmp", "/tmp"], check=False).returncode
    except OSError:
        return False
    return code == 0


@pytest.mark.skipif(not may_mount(), reason="nothing can be mounted here")
async def test_its_shared_memory_is_the_folder_that_containers_mount(
    make: Callable[[], MpsDaemon], tmp_path: Path
) -> None:
    """The program's /dev/shm, and nobody else's."""
    mine = tmp_path / "nvidia-cuda-mps-control"
    mine.write_text(
        mine.read_text().replace('touch "$at', 'touch /dev/shm/weft-test\n  touch "$at')
    )
    daemon = make()
    daemon.options = MpsOptions(tmp_path / "mps", str(mine))
    await daemon.check()
    assert daemon.ready
    assert (daemon.shm / "weft-test").exists()
    assert not Path("/dev/shm/weft-test").exists()
    assert daemon.shm.stat().st_mode & 0o7777 == 0o1777

"""The drop-in that has containerd wait: where it goes, whom it leaves alone, when it is taken back.

containerd is played by a process that listens and ends when told so; who runs it, by a task.
"""

import asyncio
import logging
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from weft.model.runtimes import CONTAINERD_LINES
from weft.node.agent.fail_closed import ClosedTrial, FailClosed
from weft.node.containerd.configuring import ConfiguringOptions, ContainerdConfiguring
from weft.node.containerd.daemon import daemon_at
from weft.node.containerd.drop_in import NAME, RuntimeConfigError, drop_in_of
from weft.node.containerd.putting_back import RuntimeHere

LONG_S = 60
RUNTIME = "containerd v2.2.9"
OPEN = ClosedTrial("open", "the runtime created a container whose required plugin was away")
CLOSED = ClosedTrial("closed", "the runtime refused")
PLAYED = """\
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1] + ".new")
listener.listen()
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


def configured(folder: Path, text: str = "") -> Path:
    """containerd's configuration, which imports a folder that does not exist yet."""
    config = folder / "config.toml"
    config.write_text(text or 'version = 3\nimports = ["conf.d/*.toml"]\n')
    return config


# --- the drop-in ---


def test_it_goes_into_the_folder_that_the_configuration_imports(tmp_path: Path) -> None:
    others = f'imports = ["{tmp_path}/own.toml", "{tmp_path}/conf.d/*.toml"]'
    drop_in = drop_in_of(configured(tmp_path, f"version = 2\n{others}\n"))
    assert drop_in.path == tmp_path / "conf.d" / NAME
    assert drop_in.text == f"version = 2\n{CONTAINERD_LINES}"
    assert not drop_in.written()
    drop_in.write()
    drop_in.write()
    assert drop_in.written()
    assert drop_in.path.read_text().endswith(drop_in.text)
    assert [file.name for file in drop_in.path.parent.iterdir()] == [NAME]
    assert drop_in.remove()
    assert not drop_in.remove()
    assert [file.name for file in tmp_path.iterdir()] == ["config.toml"]


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    drop_in = drop_in_of(configured(tmp_path))
    drop_in.write()
    drop_in.remove()
    assert list((tmp_path / "conf.d").iterdir()) == []


NRI_OFF = '[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n'


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "there is no {}/config.toml: write it with `containerd config default`"),
        ({"config.toml": "version = "}, "config.toml can't be parsed (Invalid value"),
        ({"config.toml": "a = '\udcff'"}, "config.toml can't be parsed ('utf-8'"),
        ({"config.toml": "version = 3\n"}, "imports no folder of drop-ins: add imports = ["),
        ({"config.toml": "version = 3\nimports = ['own.toml']\n"}, "imports no folder"),
        ({"config.toml": "version = 3\nimports = 'conf.d/*.toml'\n"}, "imports is not a list"),
        ({"config.toml": "imports = ['conf.d/*.toml']\n"}, "is of version 1: `containerd config"),
        ({"conf.d/zz.toml": NRI_OFF}, "conf.d/zz.toml is read last and disables NRI"),
        ({"conf.d/a.toml": "x ="}, "conf.d/a.toml can't be parsed"),
        ({"conf.d/a.toml": "disabled_plugins = ['nri']"}, "a.toml: disabled_plugins names NRI"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_configuration_that_takes_none_is_left_alone(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    if files and "config.toml" not in files:
        configured(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, errors="surrogateescape")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeConfigError) as refused:
        drop_in_of(tmp_path / "config.toml")
    assert words.format(tmp_path) in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_read_before_ours_may_have_nri_off(tmp_path: Path) -> None:
    config = configured(tmp_path, f'version = 3\nimports = ["conf.d/*.toml"]\n{NRI_OFF}')
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "98.toml").write_text(NRI_OFF)
    assert drop_in_of(config).path.name == NAME


@pytest.mark.parametrize("edit", ["# by hand\n{}", "{}\n[debug]\nlevel = 'debug'\n", "", "a = 1\n"])
def test_a_file_that_somebody_edited_is_neither_changed_nor_removed(
    tmp_path: Path, edit: str
) -> None:
    drop_in = drop_in_of(configured(tmp_path))
    drop_in.write()
    drop_in.path.write_text(edit.format(drop_in.path.read_text()))
    before = drop_in.path.read_bytes()
    for change in (drop_in.write, drop_in.remove):
        with pytest.raises(RuntimeConfigError, match="was edited since the agent wrote it"):
            change()
    assert drop_in.path.read_bytes() == before


def test_where_nothing_can_be_written_nothing_is_left(tmp_path: Path) -> None:
    """No folder may be made below a file; root could write below any other."""
    (tmp_path / "etc").write_text("")
    drop_in = drop_in_of(configured(tmp_path))
    drop_in = msgspec.structs.replace(drop_in, path=tmp_path / "etc" / "conf.d" / NAME)
    with pytest.raises(RuntimeConfigError, match=r"can't be (read|written): Not a directory"):
        drop_in.write()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "etc"]


# --- the agent's part ---


class PlayedPlugin:
    """The facts that the runtime told of itself, and hears."""

    def __init__(self, runtime: str) -> None:
        self.runtime, self.validates = runtime, True
        self.registered = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []


class PlayedNode:
    """containerd with who runs it. `helps`: it waits where the drop-in is there. `starts`: how
    often it is started at all."""

    def __init__(self, folder: Path, runtime: str = RUNTIME) -> None:
        self.config, self.socket = configured(folder), folder / "containerd.sock"
        self.drop_in = folder / "conf.d" / NAME
        self.helps, self.starts = True, math.inf
        self.starts_with_drop_in = True
        self.begun = 0
        self.plugin = PlayedPlugin(runtime)
        self.closed = FailClosed(self.plugin, self._try)
        self.state = folder / "run" / "note.json"
        self._waits = False

    def options(self, **more: float) -> ConfiguringOptions:
        return ConfiguringOptions(self.socket, self.state, **{"come_back_s": LONG_S, **more})

    async def run(self) -> None:
        """As systemd does it, with Restart=always."""
        started = 0
        while started < self.starts and (self.starts_with_drop_in or not self.drop_in.exists()):
            started += 1
            script = self.config.with_name("played.py")
            script.write_text(PLAYED)
            command = ["containerd", str(script), str(self.socket), f"--config={self.config}"]
            process = await asyncio.create_subprocess_exec(
                *command, executable=getattr(sys, "_base_executable", sys.executable)
            )
            try:
                while not self._serves(process.pid):
                    await asyncio.sleep(0.005)
                self.begun += 1
                self._waits = self.helps and self.drop_in.exists()
                self.plugin.registered.set()
                for listen in self.plugin.listeners:
                    listen()
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            while not self.starts_with_drop_in and self.drop_in.exists():
                await asyncio.sleep(0.005)

    def _serves(self, pid: int) -> bool:
        try:
            return daemon_at(self.socket).pid == pid
        except RuntimeConfigError:
            return False

    async def _try(self) -> ClosedTrial:
        return CLOSED if self._waits else OPEN


@asynccontextmanager
async def running(node: PlayedNode, **more: float) -> AsyncIterator[ContainerdConfiguring]:
    node.plugin = PlayedPlugin(node.plugin.runtime)
    node.closed = FailClosed(node.plugin, node._try)
    part = ContainerdConfiguring(node.plugin, node.closed, node.options(**more))
    tasks = [asyncio.create_task(each) for each in (node.run(), node.closed.run(), part.run())]
    try:
        async with asyncio.timeout(LONG_S):
            yield part
        assert not any(task.done() and task.exception() for task in tasks[1:])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


async def test_containerd_that_does_not_wait_is_restarted_once_with_the_drop_in(
    tmp_path: Path,
) -> None:
    node = PlayedNode(tmp_path)
    async with running(node) as part:
        await until(lambda: part.drop_in)
        assert part.drop_in == node.drop_in
        assert (node.closed.holds, part.problem, node.begun) == (True, "", 2)
        assert not node.state.exists()
    async with running(node) as part:  # the next agent
        await until(lambda: part.drop_in)
        assert (part.restarts, node.begun) == (0, 3)
    node.begun = 0
    running_again = asyncio.create_task(node.run())
    await asyncio.wait_for(until(lambda: node.begun == 1), LONG_S)
    assert await RuntimeHere(node.socket).put_back("n", str(node.drop_in)) == ""
    await asyncio.wait_for(until(lambda: node.begun == 2), LONG_S)
    assert not node.drop_in.parent.exists()
    said = await RuntimeHere(node.socket).put_back("n", str(node.drop_in))
    assert said.endswith("run weft agent --cleanup on the node")
    running_again.cancel()
    await asyncio.gather(running_again, return_exceptions=True)


async def test_what_does_not_help_is_taken_back_and_not_tried_again(tmp_path: Path) -> None:
    node = PlayedNode(tmp_path)
    node.helps = False
    async with running(node) as part:
        await until(lambda: part.problem)
        assert "was removed again: with it the runtime created a container" in part.problem
        assert (part.drop_in, node.begun, node.drop_in.exists()) == (None, 3, False)
    async with running(node) as part:  # the next agent
        await until(lambda: part.problem)
        assert "was removed again" in part.problem
        assert part.restarts == 0
    node.helps = True
    node.config.write_text(node.config.read_text() + "# mended\n")
    async with running(node) as part:
        await until(lambda: part.drop_in)


async def test_a_containerd_that_does_not_start_with_it_starts_without(tmp_path: Path) -> None:
    node = PlayedNode(tmp_path)
    node.starts_with_drop_in = False
    async with running(node, come_back_s=1) as part:
        await until(lambda: part.problem)
        assert "was removed again: containerd was not back 1 s after" in part.problem
        assert not node.drop_in.exists()
        await until(lambda: node.begun == 2)


async def test_a_containerd_that_nobody_starts_again_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = PlayedNode(tmp_path)
    node.starts = 1
    async with running(node, come_back_s=0.5) as part:
        await until(lambda: part.problem)
        assert "did not come back without it either: start it (systemctl start" in part.problem
        assert not node.drop_in.exists()
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(told) == 1


async def test_an_agent_that_died_on_its_way_is_followed_by_one_that_goes_on(
    tmp_path: Path,
) -> None:
    """containerd is there; then it is not, which the drop-in may be the reason of."""
    node = PlayedNode(tmp_path)
    drop_in = drop_in_of(node.config)
    drop_in.write()
    node.state.parent.mkdir()
    node.state.write_text(f'{{"pending": "{drop_in.path}"}}')
    async with running(node) as part:
        await until(lambda: part.drop_in)
    drop_in.write()
    node.state.write_text(f'{{"pending": "{drop_in.path}"}}')
    node.starts = 0
    again = ContainerdConfiguring(
        PlayedPlugin(RUNTIME), FailClosed(node.plugin, node._try), node.options(come_back_s=0.1)
    )
    task = asyncio.create_task(again.run())
    await asyncio.wait_for(until(lambda: again.problem), LONG_S)
    assert not node.drop_in.exists()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("cri-o 1.34.0", "is not configured by the agent: write into /etc/crio/crio.conf.d/60"),
        ("containerd v2.1.4", "containerd v2.1.4 cannot: from containerd 2.2 on"),
    ],
)
async def test_other_runtimes_are_told_their_lines(
    tmp_path: Path, runtime: str, words: str
) -> None:
    node = PlayedNode(tmp_path, runtime)
    async with running(node) as part:
        await until(lambda: part.problem)
        assert words in part.problem
        assert (node.begun, node.drop_in.parent.exists()) == (1, False)


def test_what_serves_the_socket_is_found_by_the_kernel(tmp_path: Path) -> None:
    with pytest.raises(RuntimeConfigError, match="nothing answers at"):
        daemon_at(tmp_path / "none.sock")
    socket = tmp_path / "s.sock"
    process = subprocess.Popen([sys.executable, "-c", PLAYED, str(socket)])
    try:
        while not socket.exists():
            assert process.poll() is None
            os.sched_yield()
        with pytest.raises(RuntimeConfigError, match="not by containerd"):
            daemon_at(socket)
    finally:
        process.kill()
        process.wait()

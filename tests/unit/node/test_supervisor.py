"""The supervisor's process, when its agent is killed, ends, or is told to end."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import yaml
from agent_world import NODE, NodeWorld, node_world

from fakes.nri_runtime import NotCreatedError, StartedContainer
from weft.cli.agent import SUPERVISED, agent
from weft.node.supervisor.delivery_lock import DeliveryLock
from weft.node.supervisor.fork_server import ForkServer, Running, spawn
from weft.node.supervisor.supervisor import Supervisor, SupervisorOptions

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
LONG_S = 60
MOST_CPU_OF_IMPORTS = 0.5
"""CPU time of a start from a fork, of that of the server, which has imported all: a twentieth
measured. An agent that imports by itself takes as long as the server."""
WEFT = (sys.executable, "-m", "weft.cli.main")


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def starting(command: list[str]) -> Callable[[], Awaitable[Running]]:
    return lambda: spawn(command)


async def seen(file: Path, lines: int) -> list[str]:
    """The file's lines, once there are so many."""
    while not file.exists() or len(file.read_text().splitlines()) < lines:
        await asyncio.sleep(0.01)
    return file.read_text().splitlines()


async def test_who_is_killed_is_started_again_and_who_ends_by_itself_is_not(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = f"echo x >>{starts}; [ $(wc -l <{starts}) -gt 3 ] && exit 7; kill -9 $$"
    supervisor = Supervisor(starting(shell(script)), SupervisorOptions(first_delay_s=0.01))
    assert await asyncio.wait_for(supervisor.run(asyncio.Event()), LONG_S) == 7
    assert supervisor.starts == len(await seen(starts, 4)) == 4


async def test_the_second_start_is_at_once_and_later_ones_wait_longer() -> None:
    supervisor = Supervisor(starting(["agent"]))
    delays = [supervisor._delay_s(soon) for soon in (0, 1, 2, 3, 4, 50)]
    assert delays == [0, 0, 0.25, 0.5, 1, 5]


async def test_told_to_stop_it_waits_for_its_agent(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = (
        f"trap 'echo bye >>{said}; exit 3' TERM; echo up >>{said}; while :; do sleep 0.01; done"
    )
    stop = asyncio.Event()
    running = asyncio.create_task(Supervisor(starting(shell(script))).run(stop))
    await asyncio.wait_for(seen(said, 1), LONG_S)
    stop.set()
    assert await asyncio.wait_for(running, LONG_S) == 3
    assert said.read_text().splitlines() == ["up", "bye"]


async def test_told_to_stop_while_it_waits_to_start_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop = asyncio.Event()
    options = SupervisorOptions(first_delay_s=1000, most_delay_s=1000)
    supervisor = Supervisor(starting(shell("kill -9 $$")), options)
    running = asyncio.create_task(supervisor.run(stop))
    while "started again in 1000.00 s" not in caplog.text:
        await asyncio.sleep(0.01)
    stop.set()
    assert await asyncio.wait_for(running, LONG_S) == 128 + signal.SIGKILL


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    server = ForkServer([str(tmp_path / "missing")], {})
    with pytest.raises(FileNotFoundError):
        await Supervisor(server.start).run(asyncio.Event())


def test_the_lock_is_its_holders_until_all_of_them_have_ended(tmp_path: Path) -> None:
    ours, other = DeliveryLock.at(tmp_path / "lock"), DeliveryLock.at(tmp_path / "lock")
    agent = subprocess.Popen(["sleep", "1000"], pass_fds=(ours.fd,))
    try:
        assert ours.take()
        assert DeliveryLock(ours.fd).take()  # the agent's own word for it
        assert not other.take()
        os.close(ours.fd)
        assert not other.take()  # its agent lives on
    finally:
        agent.kill()
        agent.wait()
    assert other.take()


def test_it_imports_nothing_that_is_the_agents() -> None:
    code = "import sys, weft.node.supervisor.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert not tops & {"aiohttp", "grpc", "numpy", "prometheus_client", "typer", "uvloop", "yaml"}
    assert "weft.node.agent" not in done.stdout


# --- the command ---


def test_the_agents_of_an_upgrade_share_their_lock_on_the_host() -> None:
    """The new pod starts first; the lock's folder is the node's, and writable."""
    objects = yaml.safe_load_all((DEPLOY / "agent.yaml").read_text())
    (daemon,) = (each for each in objects if each["kind"] == "DaemonSet")
    strategy = daemon["spec"]["updateStrategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
    spec = daemon["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert SUPERVISED in container["command"]
    lock = inspect.signature(agent).parameters["lock"].default
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == str(lock.parent))
    (volume,) = (v for v in spec["volumes"] if v["name"] == mount["name"])
    assert volume["hostPath"]["path"] == str(lock.parent)
    assert not mount.get("readOnly")
    assert "hostPort" not in str(container["ports"])
    assert not spec.get("hostNetwork")  # two of them could not have one port


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return int((children.read_text().split() or ["0"])[0])


def cpu_s(pid: int) -> float:
    """The processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ended(pid: int) -> None:
    """Return once this process is gone, or a zombie."""
    while (stat := Path(f"/proc/{pid}/stat")).exists() and ") Z " not in stat.read_text():
        await asyncio.sleep(0.01)


class SupervisedAgent:
    """`weft agent --supervised` on a node of the tests."""

    def __init__(self, world: NodeWorld, process: asyncio.subprocess.Process) -> None:
        self.world, self.process = world, process

    def server(self) -> int:
        """The id of the process that is forked; 0 while there is none."""
        return child_of(self.process.pid)

    def agent(self) -> int:
        """The agent's process id; 0 while there is none."""
        server = self.server()
        return child_of(server) if server else 0


@asynccontextmanager
async def supervised(folder: Path) -> AsyncIterator[SupervisedAgent]:
    async with node_world(folder) as world:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            f"clusters: [{{name: c, cluster: {{server: '{world.api.url}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, namespace: weft-system}}]\n"
            "current-context: c\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(*WEFT, "agent", "--supervised", "--lock", folder / "run" / "agent.lock"),
            *("--node-name", NODE, "--devices", world.file, "--listen", "127.0.0.1:0"),
            *("--nri-socket", world.runtime.socket, "--cri-socket", folder / "cri.sock"),
            *("--cdi-folder", folder / "cdi", "--kubeconfig", kubeconfig),
            *("--pod-resources", folder / "none"),
        )
        try:
            yield SupervisedAgent(world, process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def started(world: NodeWorld, name: str) -> StartedContainer:
    """A bound pod's container; asked for again where this agent has not heard of the pod yet."""
    while True:
        with suppress(NotCreatedError):
            return await world.create(world.bound(name))


async def test_no_container_starts_without_its_share_while_the_agent_starts_again(
    tmp_path: Path,
) -> None:
    """The server is stopped meanwhile: otherwise the next agent would be there too soon."""
    async with asyncio.timeout(2 * LONG_S), supervised(tmp_path) as own:
        runtime = own.world.runtime
        await runtime.has_plugins("weft", "weft-guard")
        assert (await started(own.world, "p")).env["SHARE_MIB"] == "1000"
        first, server = own.agent(), own.server()
        os.kill(server, signal.SIGSTOP)
        os.kill(first, signal.SIGKILL)
        await runtime.has_plugins("weft-guard")
        with pytest.raises(NotCreatedError, match="the agent on this node is not running"):
            await own.world.create(own.world.bound("q"))
        assert (await own.world.create(own.world.sandbox("none"), "none")).env == {}
        os.kill(server, signal.SIGCONT)
        await runtime.has_plugins("weft", "weft-guard")
        assert own.agent() not in (0, first)
        assert cpu_s(own.agent()) < MOST_CPU_OF_IMPORTS * cpu_s(server)
        assert (await started(own.world, "q")).env["SHARE_MIB"] == "1000"
        own.process.terminate()
        assert await own.process.wait() == 0
        await runtime.has_plugins()


async def test_an_agent_whose_server_is_killed_ends_before_the_next_one_starts(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(2 * LONG_S), supervised(tmp_path) as own:
        runtime = own.world.runtime
        await runtime.has_plugins("weft", "weft-guard")
        agent_, server = own.agent(), own.server()
        os.kill(server, signal.SIGKILL)
        await ended(agent_)
        while own.agent() in (0, agent_):
            await asyncio.sleep(0.01)
        await runtime.has_plugins("weft", "weft-guard")
        assert own.server() != server
        assert (await started(own.world, "p")).env["SHARE_MIB"] == "1000"
        agent_, server = own.agent(), own.server()
        own.process.kill()
        await asyncio.gather(ended(server), ended(agent_))
        await runtime.has_plugins()


FORKED = """\
import os, sys, threading, weft.cli.main, weft.cli.agent
from pathlib import Path
from weft.node.supervisor.fork_server import begin_when_told
import weft.host.agent
begin_when_told(os.environ, weft.cli.agent.AT_THE_START)
Path(sys.argv[1]).write_text(f"{threading.active_count()} {len(os.listdir('/proc/self/task'))}")
"""


async def test_what_is_forked_has_one_thread(tmp_path: Path) -> None:
    """Others would not be there in the fork, and what they lock would stay locked."""
    said = tmp_path / "threads"
    server = ForkServer([sys.executable, "-c", FORKED, str(said)], {})
    assert await Supervisor(server.start).run(asyncio.Event()) == 0
    await server.close()
    assert said.read_text() == "1 1"


async def test_a_server_that_ends_before_it_forks_is_the_agents_end() -> None:
    server = ForkServer(shell("exit 4"), {})
    assert await Supervisor(server.start).run(asyncio.Event()) == 4


def test_a_lock_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lock = tmp_path / "file" / "lock"
    command = [sys.executable, "-m", "weft.node.supervisor", "--lock", str(lock), "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{lock}: can't be locked: " in done.stderr

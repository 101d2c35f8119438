"""One MPS daemon for all of the node's GPUs, so that containers with several GPUs work.

<folder>/pipe   its sockets; mounted into containers that use it
<folder>/shm    /dev/shm of the daemon and these containers only
<folder>/log    its log files

Ending the daemon ends its servers, and with them every program that uses them. So the daemon does
not belong to the agent's process: it runs in a session and cgroup of its own, survives an upgrade
of the agent, and the next agent finds it by its sockets. `stop` ends it when Weft is uninstalled. A
daemon that died is restarted in the same folder; a daemon that runs but does not answer is left
alone, as its programs may still work.
"""

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from weft.node.devices.mps import LOGS, MULTI_USER, PIPES, PROGRAM, answers

log = logging.getLogger("weft.agent")

CHECK_S = 5.0
START_S = 20.0
MOST_WAIT_S = 60.0
PID_FILE = "nvidia-cuda-mps-control.pid"

OWN_SHM = ("unshare", "--mount", "--propagation", "private", "--")
"""Command prefix with which the daemon's start script gets mounts that no other process sees."""
_LAUNCH = '"$@" </dev/null >/dev/null 2>&1 & echo $!'
_START = """
put() { mkdir -p "$1/weft-mps" && echo "$$" >"$1/weft-mps/cgroup.procs"; }
if [ -e "$4/cgroup.controllers" ]; then put "$4"
elif [ "$4" ]; then for at in "$4"/*/; do [ -e "$at/cgroup.procs" ] && put "${at%/}"; done
fi 2>/dev/null
[ -z "$3" ] || mount --bind "$2" /dev/shm || exit 1
exec "$1" -f $5
"""
"""Shell script that starts the daemon: $1 is the program, $2 the folder mounted as /dev/shm if $3
is set, $4 the cgroup file systems (v2: one tree; v1: one for each controller, of which some may
refuse), $5 one more option."""
_CGROUPS = "/sys/fs/cgroup"
_ON_THE_HOST = ("nsenter", "--target", "1", "--mount", "--cgroup", "--")


class MpsOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `folder`: the same path on the host and for the agent, since it is mounted into containers; in
    /run, where shared memory is allowed. `program`: the driver's control program, of the driver's
    version. `run_by`: a command prefix, such as `nsenter …` for an agent in a container, as the
    driver's program is on the host. `own_shm`: whether the daemon gets its own /dev/shm; required
    if containers use it, and needs the right to mount. `cgroups`: where cgroupfs is, as the daemon
    sees it; the daemon moves itself to `weft-mps` there, so that it does not end with the agent's
    cgroup. "" leaves it where it is. `multi_user`: whether programs of all users share one server.
    Without it a server takes programs of one user id only, and another user's programs hang until
    the server has ended; but containers run as many users.
    """

    folder: Path = Path("/run/weft/mps")
    program: str = PROGRAM
    run_by: tuple[str, ...] = ()
    own_shm: bool = True
    cgroups: str = ""
    multi_user: bool = True


def options_here(proc: Path = Path("/proc"), *, multi_user: bool = True) -> MpsOptions:
    """Choose the options for this machine: the host's program if the agent is in a container that
    sees the host's processes and has no such program; always a separate cgroup."""
    try:
        contained = (proc / "1/ns/mnt").readlink() != (proc / "self/ns/mnt").readlink()
    except OSError:  # not visible: not root, or a container without the host's processes
        contained = False
    run_by = _ON_THE_HOST if contained and shutil.which(PROGRAM) is None else ()
    return MpsOptions(run_by=run_by, cgroups=_CGROUPS, multi_user=multi_user)


class MpsDaemon:
    """Keeps the MPS daemon running. Run `run()` as a task.

    `ready` is True while the daemon answers; `problem` says why it does not; `starts` counts its
    starts. `listeners` are called when `ready` changes.
    """

    def __init__(self, options: MpsOptions, check_s: float = CHECK_S) -> None:
        self.options = options
        self.ready, self.problem, self.starts = False, "it was not started yet", 0
        self.listeners: list[Callable[[], None]] = []
        self.pipe, self.shm = options.folder / "pipe", options.folder / "shm"
        self._logs, self._check_s = options.folder / "log", check_s

    @property
    def available(self) -> bool:
        """True if the program exists; assumed to be True if `run_by` starts it elsewhere."""
        return bool(self.options.run_by) or shutil.which(self.options.program) is not None

    async def run(self) -> None:
        """Start the daemon whenever none answers, until cancelled; then leave it running."""
        wait_s = self._check_s
        while True:
            try:
                await self.check()
            except (OSError, subprocess.SubprocessError) as error:
                self._tell(f"MPS cannot be started: {error}")
            wait_s = self._check_s if self.ready else min(2 * wait_s, MOST_WAIT_S)
            await asyncio.sleep(wait_s)

    async def check(self) -> None:
        """Check that the daemon answers; start one if none runs."""
        if await self._answers():
            self._tell("")
        elif self._runs():
            self._tell(f"{self.options.program} runs and does not answer")
        elif not self.available:
            self._tell(
                f"there is no {self.options.program}: install the driver's compute utilities"
            )
        else:
            await self._start()

    async def stop(self) -> None:
        """End the daemon, and thereby every program that uses it."""
        await asyncio.to_thread(answers, self._control(), self._env(), b"quit -t 5\n")
        self.ready, self.problem = False, "it was stopped"

    def client_env(self) -> dict[str, str]:
        """Return the environment of a container that uses the daemon."""
        return {PIPES: str(self.pipe)}

    async def _answers(self) -> bool:
        return self.pipe.is_dir() and await asyncio.to_thread(answers, self._control(), self._env())

    def _control(self) -> Sequence[str]:
        return (*self.options.run_by, self.options.program)

    def _runs(self) -> bool:
        """Return True if the process named in the PID file is a daemon that runs."""
        with suppress(OSError, ValueError):
            number = int((self.pipe / PID_FILE).read_text())
            # Another process may have the number by now.
            return PROGRAM in Path(f"/proc/{number}/cmdline").read_text()
        return False

    async def _start(self) -> None:
        for folder in (self.pipe, self.shm, self._logs):
            folder.mkdir(parents=True, exist_ok=True)
        self.shm.chmod(0o1777)  # as /dev/shm
        for stale in self.pipe.iterdir():  # of a dead daemon; containers mount the folder
            stale.unlink(missing_ok=True)
        self.ready, self.problem = False, "it is being started"
        multi_user = self.options.multi_user
        problem, ended = await self._begin(MULTI_USER if multi_user else "")
        if ended and multi_user:  # an old driver does not know the option
            problem, _ = await self._begin("")
            if not problem:
                log.warning("MPS serves one user at a time: this driver cannot serve several")
        self._tell(problem)

    async def _begin(self, users: str) -> tuple[str, bool]:
        """Start the daemon once and wait until it answers.

        Return why it does not ("" if it does), and whether it has ended.
        """
        self.starts += 1
        pid = await asyncio.to_thread(self._launch, users)
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while not await self._answers() and Path(f"/proc/{pid}").exists():
                    await asyncio.sleep(0.05)
        if await self._answers():
            return "", False
        if Path(f"/proc/{pid}").exists():
            return f"{self.options.program} does not answer", False
        return f"{self.options.program} ended: {self._last_words()}", True

    def _launch(self, users: str) -> int:
        """Start the daemon detached from this process; return its process id."""
        launched = subprocess.run(
            ["sh", "-c", _LAUNCH, "weft-mps", *self._command(users)],
            env=self._env(),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        return int(launched.stdout)

    def _command(self, users: str) -> Sequence[str]:
        options = self.options
        own = OWN_SHM if options.own_shm else ()
        script = ("sh", "-c", _START, "weft-mps", options.program, str(self.shm))
        arguments = ("own" if options.own_shm else "", options.cgroups, users)
        return (*options.run_by, *own, *script, *arguments)

    def _env(self) -> dict[str, str]:
        # Containers number their GPUs by bus; the daemon must use the same order.
        order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return {**os.environ, **order, PIPES: str(self.pipe), LOGS: str(self._logs)}

    def _last_words(self) -> str:
        logs = sorted(self._logs.glob("*.log"))
        text = "".join(file.read_text(errors="replace") for file in logs).strip()
        return text[-300:] or "its log is empty"

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.log(logging.WARNING if problem else logging.INFO, problem or "MPS answers")
        was_ready, self.ready, self.problem = self.ready, not problem, problem
        for listener in self.listeners if was_ready != self.ready else ():
            listener()

"""NVIDIA's Multi-Process Service for one GPU, started and stopped here, with folders of its own.

The control daemon runs under a small watcher that holds a pipe from this process: when the pipe is
closed, or this process ends for any reason, the watcher asks the daemon to quit. Processes that
remain are killed as a group. A daemon in other folders is neither used nor stopped.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.node.devices.reader import DeviceError

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
MULTI_USER = "-M"
"""The daemon's option for one server, run as root, that takes programs of all users."""
START_S, QUIT_S, ASK_S = 20.0, 20.0, 10.0

_WATCHER = """
( "$1" -f $3 </dev/null; echo "$?" >"$2/ended" ) &
cat >/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  [ "$told" ] || { echo "quit -t 5" | timeout 10 "$1" && told=1; }
  [ -e "$2/ended" ] && rm -rf "$2" && exit
  sleep 0.5
done
rm -rf "$2"
kill -KILL 0
"""
"""Shell script of the watcher: $1 is the program, $2 a folder that receives the daemon's exit code,
$3 one more option. A daemon that is still starting accepts no command yet, so the command is
repeated until it is accepted."""


@contextmanager
def no_mps() -> Iterator[dict[str, str]]:
    """Provide an environment in which CUDA finds no MPS daemon, even if one runs."""
    with tempfile.TemporaryDirectory(prefix="weft-no-mps-") as folder:
        yield {PIPES: folder}


@contextmanager
def mps(gpu: str, program: str = PROGRAM, *, multi_user: bool = False) -> Iterator[dict[str, str]]:
    """Provide the environment of processes that share GPU `gpu` (UUID or index) through our own
    daemon; processes of all users at once if `multi_user`.

    `DeviceError` if the program is missing, or the daemon does not start.
    """
    path = shutil.which(program)
    if path is None:
        raise DeviceError(f"no {program} here: MPS cannot be measured; leave it out of --isolation")
    with tempfile.TemporaryDirectory(prefix="weft-mps-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pipe").mkdir()
        (folder / "log").mkdir()
        environment = {PIPES: str(folder / "pipe"), LOGS: str(folder / "log")}
        env = {**os.environ, **environment, "CUDA_VISIBLE_DEVICES": gpu}
        watcher = subprocess.Popen(
            ["sh", "-c", _WATCHER, "weft-mps", path, name, MULTI_USER if multi_user else ""],
            env=env,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_started(path, env, folder)
            yield environment
        finally:
            _stop(watcher)


def _wait_started(program: str, env: Mapping[str, str], folder: Path) -> None:
    """Wait until the daemon answers; `DeviceError` if it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while not answers([program], env):
        ended = folder / "ended"
        if ended.exists() or time.monotonic() > deadline:
            how = f"ended with {ended.read_text().strip()}" if ended.exists() else "does not answer"
            logs = sorted((folder / "log").glob("*.log"))
            text = "".join(log.read_text(errors="replace") for log in logs).strip()
            raise DeviceError(f"{program} {how}: {text[-500:] or 'its log is empty'}")
        time.sleep(0.1)


def answers(
    command: Sequence[str], env: Mapping[str, str], order: bytes = b"get_server_list\n"
) -> bool:
    """Return True if the daemon accepts `order`, a line for its control program; `command` runs
    that program."""
    try:
        completed = subprocess.run(
            command,
            env=env,
            input=order,
            timeout=ASK_S,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (subprocess.TimeoutExpired, OSError):
        return False
    return completed.returncode == 0


def _stop(watcher: "subprocess.Popen[bytes]") -> None:
    """Close the watcher's pipe, wait for its end, then kill all remaining processes."""
    assert watcher.stdin is not None
    watcher.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        watcher.wait(QUIT_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(watcher.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        watcher.wait(QUIT_S)

"""The containerd that serves a socket: its process and its configuration file.

A restart begins with SIGTERM, as systemd sends it, so containers keep running. containerd's service
manager starts it again: containerd's own systemd unit has `Restart=always`.
"""

import asyncio
import signal
import socket
import struct
from pathlib import Path

from weft.node.containerd.drop_in import RuntimeConfigError
from weft.node.supervisor.process_end import process_end

NAME = "containerd"
DEFAULT_CONFIG = Path("/etc/containerd/config.toml")
END_S = 30.0
_CREDENTIALS = struct.Struct("3i")


class Daemon:
    """A containerd: its process id and its configuration file."""

    def __init__(self, pid: int, config: Path) -> None:
        self.pid, self.config = pid, config

    async def end(self, within_s: float = END_S) -> None:
        """Send SIGTERM and wait for the process to end; `RuntimeConfigError` if it does not."""
        try:
            with process_end(self.pid) as (fd, ended):
                signal.pidfd_send_signal(fd, signal.SIGTERM)
                async with asyncio.timeout(within_s):
                    await ended.wait()
        except ProcessLookupError:
            pass
        except PermissionError as error:
            text = f"no permission to send SIGTERM to containerd ({error.strerror})"
            raise RuntimeConfigError(f"{text}: AppArmor or SELinux confines the agent") from None
        except TimeoutError:
            text = f"containerd (process {self.pid}) has not ended {within_s:.0f} s after SIGTERM"
            raise RuntimeConfigError(text) from None


def daemon_at(at: Path, proc: Path = Path("/proc")) -> Daemon:
    """Find the containerd behind this socket; `RuntimeConfigError` if it cannot be seen."""
    pid = _server_of(at)
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError as error:
        text = f"the process behind {at} can't be seen ({error.strerror}): hostPID is needed"
        raise RuntimeConfigError(text) from None
    if Path(words[0]).name != NAME:
        raise RuntimeConfigError(f"{at} is served by {words[0] or 'no process'}, not by containerd")
    config = _option(words)
    if not config.is_absolute():
        raise RuntimeConfigError(
            f"containerd's --config {config} is a relative path; write an absolute one"
        )
    return Daemon(pid, config)


def _server_of(at: Path) -> int:
    """Return the id of the process that listens at a socket; 0 if that process is in a PID
    namespace not visible from here."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(at))
            told = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError as error:
        raise RuntimeConfigError(f"nothing answers at {at}: {error.strerror or error}") from None
    return int(_CREDENTIALS.unpack(told)[0])


def _option(words: list[str]) -> Path:
    """Return the configuration file named in containerd's command line, or the default."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name in ("--config", "-config", "-c", "--c"):
            return Path(value if equals else following)
    return DEFAULT_CONFIG

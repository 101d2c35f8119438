"""The right to deliver on a node: of two agents there, one holds it, and the other is on standby.

It is a file lock, held by a supervisor and its agent together (one open file), and is free as soon
as both have ended, for any reason.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import MutableMapping
from pathlib import Path

import msgspec

from weft.model import BadInputError

log = logging.getLogger("weft.agent")

_LOOK_S = 0.02


class DeliveryLock:
    """The lock for delivering on a node; not held at first. `fd` is the open file, which an agent
    may inherit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.held = False

    @classmethod
    def at(cls, file: Path) -> "DeliveryLock":
        """Open the lock on this file, creating the file if needed."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return cls(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise BadInputError(str(file), f"can't be locked: {error.strerror}") from error

    def take(self) -> bool:
        """Try to take the lock; return True if this process holds it now."""
        if not self.held:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True
            except BlockingIOError:
                return False
        return True

    async def taken(self) -> None:
        """Wait until this process holds the lock."""
        if not self.take():
            log.info("standing by: another agent delivers on this node")
        while not self.take():
            await asyncio.sleep(_LOOK_S)


# --- values from a supervisor to its agent --------------------------------------------------------
# Passes values from a supervisor to its agent through the environment.
#
# WEFT_MARK     the secret that the agent writes on each container that it has answered for
# WEFT_LOCK_FD  the open file of the `DeliveryLock`


_MARK, _LOCK_FD = "WEFT_MARK", "WEFT_LOCK_FD"


class HandedOver(msgspec.Struct, frozen=True):
    """Values from the supervisor: its `lock`, and the `mark` that the agent writes on each
    container that it has answered for, so that the supervisor's guard lets the container start."""

    mark: str
    lock: DeliveryLock

    def environment(self) -> dict[str, str]:
        """Return the environment variables that carry the values."""
        return {_MARK: self.mark, _LOCK_FD: str(self.lock.fd)}


def handed_over(environment: MutableMapping[str, str]) -> HandedOver | None:
    """Return the supervisor's values from this process' environment; None without a supervisor.

    The variables are removed, so that processes started by the agent do not inherit them.
    """
    mark, fd = environment.pop(_MARK, ""), environment.pop(_LOCK_FD, "")
    if not mark or not fd:
        return None
    os.set_inheritable(int(fd), False)
    return HandedOver(mark, DeliveryLock(int(fd)))

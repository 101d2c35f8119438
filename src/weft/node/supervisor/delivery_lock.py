"""The right to deliver on a node: of two agents there, one has it, and the other stands by.

A lock of the kernel's on a file, held by a supervisor and its agent together (one open file). It is
free as soon as both have ended, however they did.
"""

import asyncio
import fcntl
import logging
import os
from pathlib import Path

from weft.model import BadInputError

log = logging.getLogger("weft.agent")

_LOOK_S = 0.02


class DeliveryLock:
    """Not held at first. `fd` is the open file, which an agent may inherit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.held = False

    @classmethod
    def at(cls, file: Path) -> "DeliveryLock":
        """The lock on this file, which is made where there is none."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return cls(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise BadInputError(str(file), f"can't be locked: {error.strerror}") from error

    def take(self) -> bool:
        """Take it, if nobody else holds it; whether it is held now."""
        if not self.held:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.held = True
            except BlockingIOError:
                return False
        return True

    async def taken(self) -> None:
        """Return once it is held."""
        if not self.take():
            log.info("stands by: another agent delivers on this node until it has ended")
        while not self.take():
            await asyncio.sleep(_LOOK_S)

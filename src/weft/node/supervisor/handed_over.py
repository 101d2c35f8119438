"""Passes values from a supervisor to its agent through the environment.

WEFT_MARK     the mark of containers about which the agent was asked
WEFT_LOCK_FD  the open file of the `DeliveryLock`
"""

import os
from collections.abc import MutableMapping

import msgspec

from weft.node.supervisor.delivery_lock import DeliveryLock

_MARK, _LOCK_FD = "WEFT_MARK", "WEFT_LOCK_FD"


class HandedOver(msgspec.Struct, frozen=True):
    """Values from the supervisor: the `mark` on containers about which it asked the agent, and its
    `lock`."""

    mark: str
    lock: DeliveryLock

    def environment(self) -> dict[str, str]:
        """Return the environment variables that carry the values."""
        return {_MARK: self.mark, _LOCK_FD: str(self.lock.fd)}


def handed_over(environment: MutableMapping[str, str]) -> HandedOver | None:
    """Return what this process was handed; None if it has no supervisor.

    The variables are removed, so that processes started by the agent do not inherit them.
    """
    mark, fd = environment.pop(_MARK, ""), environment.pop(_LOCK_FD, "")
    if not mark or not fd:
        return None
    os.set_inheritable(int(fd), False)
    return HandedOver(mark, DeliveryLock(int(fd)))

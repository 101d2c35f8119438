"""Leadership: this process decides and binds, or another one does.

A process begins as a follower. Without a lease it leads as soon as it has read everything; with one
when it has the lease and has read everything once more. Leadership does not come back.
"""

import asyncio
from typing import Protocol

NOBODY = "no Weft process leads yet; ask again in some seconds"


class LeaseHolder(Protocol):
    """Waits for the lease, or has it (`weft.kube.lease.Elector`)."""

    @property
    def other(self) -> str:
        """Another process that has it, as far as is known; "" if nobody is known to."""
        ...

    def may_bind(self, seconds: float) -> bool:
        """True if a write that takes up to `seconds` ends before the lease does."""
        ...


class Leadership:
    """Knows if this process leads (`here`). Without a `lease` nobody else does."""

    def __init__(self, lease: LeaseHolder | None, *, here: bool = False) -> None:
        self._lease = lease
        self.here = False
        self._begun = asyncio.Event()
        if here:
            self.begin()

    @property
    def elsewhere(self) -> str:
        """Another process that leads, as far as is known; "" if nobody is known to."""
        return self._lease.other if self._lease is not None else ""

    @property
    def lacking(self) -> str:
        """Reason why the cluster has no leader; "" if this process leads or follows one."""
        return "" if self.here or self.elsewhere else NOBODY

    def begin(self) -> None:
        """Begin to lead."""
        self.here = True
        self._begun.set()

    def end(self) -> None:
        """Stop leading."""
        self.here = False
        self._begun.clear()

    async def why_not(self, within_s: float) -> str:
        """Reason why it binds nothing; "" if it leads. Where nobody leads, it may be this process
        in a moment: so long that is waited for."""
        if self.lacking:
            try:
                async with asyncio.timeout(within_s):
                    await self._begun.wait()
            except TimeoutError:
                pass
        if self.here:
            return ""
        other = self.elsewhere
        return f"another Weft process is the leader: {other}; ask there" if other else NOBODY

"""Whether this process decides and binds, or who else does; and what is said of that.

A process begins as a follower. Without a lease it leads as soon as it has read everything; with one
when it has the lease and has read everything once more. Leadership does not come back.
"""

import asyncio
from collections.abc import Callable

NOBODY = "no Weft process leads yet; ask again in some seconds"


class Leadership:
    """`elsewhere` names another process that leads, as far as is known; "" where nobody is known
    to. Who waits for the lease says it."""

    def __init__(self, *, here: bool = False) -> None:
        self.elsewhere: Callable[[], str] = lambda: ""
        self._here = asyncio.Event()
        if here:
            self.begin()

    @property
    def here(self) -> bool:
        """Whether this process leads."""
        return self._here.is_set()

    @property
    def lacking(self) -> str:
        """What keeps the cluster without a leader; "" where this process leads or follows one."""
        return "" if self.here or self.elsewhere() else NOBODY

    def begin(self) -> None:
        """This process leads from now on."""
        self._here.set()

    def end(self) -> None:
        """This process leads no more."""
        self._here.clear()

    async def why_not(self, within_s: float) -> str:
        """Why this process binds nothing; "" where it leads. Where nobody leads, it may be this
        process in a moment: so long that is waited for."""
        if self.lacking:
            try:
                async with asyncio.timeout(within_s):
                    await self._here.wait()
            except TimeoutError:
                pass
        if self.here:
            return ""
        other = self.elsewhere()
        return f"another Weft process is the leader: {other}; ask there" if other else NOBODY

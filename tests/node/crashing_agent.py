"""`weft agent` that sends itself a signal at a named point, the so-many-th time it comes there.

Nothing else of it is changed. `python crashing_agent.py POINT TIMES SIGKILL agent …`
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from weft.cli.main import main
from weft.node.agent.container_grant import Granter
from weft.node.agent.delivery import Delivery
from weft.node.cri.trial import NAME
from weft.node.nri.connection import RuntimeConnection
from weft.node.nri.plugin import NriPlugin

Method = Callable[..., Any]
# Each point: the method's class and name, and whether the end is after its work.
POINTS: dict[str, tuple[type, str, bool]] = {
    "connecting": (NriPlugin, "_connect", False),
    "registered": (NriPlugin, "_configure", False),
    "synchronizing": (Delivery, "synchronize", False),
    "synchronized": (Delivery, "synchronize", True),
    "asked": (Delivery, "create_container", False),
    "granted": (Granter, "grant", True),
    "decided": (Delivery, "create_container", True),
    "answered": (RuntimeConnection, "_serve", True),
    "validating": (Delivery, "validate", False),
    "validated": (Delivery, "validate", True),
}


def _ending(method: Method, after: bool, times: int, number: int) -> Method:
    """The method as it is, but for the signal before or after that time."""
    left = times

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    async def waited_for(answer: Awaitable[Any]) -> Any:
        found = await answer
        count()
        return found

    def instead(*arguments: Any, **more: Any) -> Any:
        if any(getattr(argument, "name", "") == NAME for argument in arguments):
            return method(*arguments, **more)  # the agent's own trial of the runtime
        if not after:
            count()
        answer = method(*arguments, **more)
        if after and hasattr(answer, "__await__"):
            return waited_for(answer)
        if after:
            count()
        return answer

    return instead


if __name__ == "__main__":
    point, times, sent = sys.argv[1:4]
    owner, name, after = POINTS[point]
    number = signal.Signals[sent]
    setattr(owner, name, _ending(getattr(owner, name), after, int(times), number))
    del sys.argv[1:4]
    main()

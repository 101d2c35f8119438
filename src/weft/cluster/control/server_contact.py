"""Measures how long the API server has been silent, for pages that show what watches reported.

A watch may be silent for a minute although all is well, and a network that drops packets does not
end it. So a small request is sent every few seconds.
"""

import contextlib
from typing import NamedTuple

from weft.cluster.control.interface import ClusterView
from weft.kube.codec import NODES, PODS
from weft.kube.errors import LostError, NotSentError

ANSWER_S = 5.0
_SHOWN = (NODES.name, PODS.name)


class Silence(NamedTuple):
    """How many seconds ago the API server was last heard, and the reason why it is not heard
    now."""

    for_s: float
    why: str


class ServerContact:
    """Requests the API server's version periodically, besides the watches of `live`."""

    def __init__(self, live: ClusterView, every_s: float = 5.0) -> None:
        self._live, self._heard_s = live, live.client.clock.monotonic()
        self._why, self._every_s = "", every_s

    async def run(self) -> None:
        """Request the API server's version again and again until cancelled, and note when it
        answered."""
        client = self._live.client
        while True:
            with contextlib.suppress(LostError, NotSentError):
                await client.send("GET", "/version", timeout_s=ANSWER_S)
            self._why = client.unanswered
            if not self._why:
                self._heard_s = client.clock.monotonic()
            await client.clock.sleep(self._every_s)

    def silence(self) -> Silence | None:
        """Return how long the API server has been silent; None if it answers."""
        now_s = self._live.client.clock.monotonic()
        watches = [feed.watch for feed in self._live.feeds if feed.resource.name in _SHOWN]
        broken = [watch for watch in watches if watch.last_error]
        if broken:
            first = min(broken, key=lambda watch: watch.last_contact)
            return Silence(now_s - first.last_contact, first.last_error)
        if not self._why:
            return None
        heard_s = max(self._heard_s, *(watch.last_contact for watch in watches))
        return Silence(now_s - heard_s, self._why)

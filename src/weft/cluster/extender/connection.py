"""A connection that is not trusted to say anything in time, and the server's limits."""

from typing import Any

import msgspec
from aiohttp import web

from weft.cluster.extender.metrics import ExtenderMetrics
from weft.cluster.extender.protocol import ErrorAnswer, encode
from weft.cluster.http.connection import UNREADABLE, ConnectionLimits, LimitedConnection

MIB = 2**20


class ServerOptions(msgspec.Struct, frozen=True):
    """Settings of the server, with reasons.

    `most_body_bytes`: of one request; 5,000 names are 0.1 MB, full nodes some kB each.
    `most_buffered_bytes`: of all requests being read and answers being sent; more requests are
    asked to come again (503).
    `read_timeout_s`: for a whole request to come, and for its answer to be taken; kube-scheduler
    itself gives up after its httpTimeout.
    `idle_timeout_s`: longer than the 90 s after which Go's client gives up an idle connection, so
    that it is never we who close one that a request is just being sent on.
    `bind_timeout_s`: how long an answer waits for a binding's outcome; the binding itself goes on.
    `most_connections`: kube-scheduler opens one per bind in flight.
    `drain_s`: how long answers may take once the process was asked to end.
    `linger_s`: how long who was turned away may go on sending before the connection is closed; one
    that is closed at once loses the answer.
    """

    most_body_bytes: int = 32 * MIB
    most_buffered_bytes: int = 128 * MIB
    read_timeout_s: float = 10
    idle_timeout_s: float = 120
    bind_timeout_s: float = 30
    most_connections: int = 1024
    drain_s: float = 5
    linger_s: float = 2


class ExtenderConnection(LimitedConnection):
    """Counted when it is turned away, and heard to the end when its last answer is given."""

    def __init__(
        self,
        options: ServerOptions,
        metrics: ExtenderMetrics,
        opened: set[LimitedConnection],
        manager: web.Server,
        **how: Any,
    ) -> None:
        limits = ConnectionLimits(options.read_timeout_s, options.most_connections)
        super().__init__(limits, opened, manager, **how)
        self._metrics = metrics
        self._leaving = False

    def turned_away(self, why: str) -> None:
        """Counted."""
        self._metrics.turned_away(why)

    def answering(self, now: bool) -> None:
        """Once it is leaving, no further request is waited for."""
        super().answering(now or self._leaving)

    def unreadable(self) -> web.Response:
        """As every error of the extender, JSON."""
        return web.Response(body=encode(ErrorAnswer(UNREADABLE)), content_type="application/json")

    def leaving(self) -> None:
        """The last answer is given. What still comes is thrown away, for `linger_s` at most."""
        self._leaving = True

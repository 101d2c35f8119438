"""Serves the pages of a scheduler process: health, metrics, and explanations of pods; all
read-only.

    /readyz                      the cluster has been read, and there is a leader
    /explain/pods/NAMESPACE/NAME why the pod is on its node, or pending; for permitted users

With `?verbose` further checks are shown, such as an API server that does not answer.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec
from aiohttp import web
from prometheus_client.registry import Collector

from weft.cluster.control.interface import ClusterView
from weft.cluster.http.access import AccessRule
from weft.cluster.http.server import HttpAnswer, ProblemBody
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.permission import Permission
from weft.host.pages import TEXT, HealthCheck, Pages, PagesOptions
from weft.model import BadInputError

log = logging.getLogger("weft.scheduler")

_NOT_READY = "this Weft is still reading the cluster; ask again in some seconds"


class StatusPages(Pages):
    """The pages of one scheduler; a `Part` of its process.

    `explainer` explains pods. Clients that `door` does not admit need the right to see
    explanations.
    """

    other_paths = ("/explain/pods/NAMESPACE/NAME",)

    def __init__(
        self,
        live: ClusterView,
        explainer: Explainer,
        collectors: Sequence[Collector],
        *,
        address: str = "0.0.0.0",
        port: int = 10_259,
        options: PagesOptions | None = None,
        door: AccessRule | None = None,
    ) -> None:
        options = options or PagesOptions()
        super().__init__(collectors, address=address, port=port, options=options, log=log)
        self._live, self._explainer = live, explainer
        self._permission = Permission(live.client, door or AccessRule())
        self._explaining_one = asyncio.Lock()
        self._explaining = 0

    async def start(self) -> str:
        """Open the port and return it as text; `BadInputError` if that fails."""
        await self.listen()
        return f"health, metrics and explain on {self.address}:{self.port}"

    def unlistenable(self, error: OSError) -> BadInputError:
        """Return an error that names the wrong setting."""
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            what = f"is not an address of this machine ({error}); write one, or 0.0.0.0 for all"
            return BadInputError(f"http.address {self.address}", what)
        way_out = "set http.port in the configuration to a free one, or 0 for any"
        return BadInputError(f"http.port {self.port}", f"can't be listened on ({error}); {way_out}")

    def problem(self, status: int, text: str) -> HttpAnswer:
        """Return an error answer as JSON."""
        return HttpAnswer(status, msgspec.json.encode(ProblemBody(text)))

    def unreadable(self, status: int, text: str) -> HttpAnswer:
        """Return the answer to bytes that are not HTTP, as text."""
        return HttpAnswer(status, text.encode(), TEXT)

    def collecting(self, collector: Collector) -> AbstractContextManager[None]:
        """Contain a collector's error, so that only its own metrics are missing."""
        return self._live.faults.beside(f"metrics by {type(collector).__name__}")

    def liveness(self) -> list[HealthCheck]:
        """Return checks whose problems a restart would not fix, shown with `?verbose`."""
        return [HealthCheck("ready", "" if self._live.ready else _NOT_READY), *self.informative()]

    def readiness(self) -> list[HealthCheck]:
        """Return checks that everything has been read, and that there is a leader."""
        feeds = ((feed.resource.name, feed.synced.is_set()) for feed in self._live.feeds)
        checks = [
            HealthCheck(f"read-{name}", "" if done else "not read yet") for name, done in feeds
        ]
        checks.append(HealthCheck("ready", "" if self._live.ready else _NOT_READY))
        checks.append(HealthCheck("api-server", self._live.client.unanswered))
        if self._live.ready:  # a repeated list does not make the process unready
            checks = [HealthCheck(check.part) for check in checks]
            checks.append(HealthCheck("leader", self._live.leadership.lacking))
        return checks

    def informative(self) -> list[HealthCheck]:
        """Return the list-watches, with their last errors."""
        return [
            HealthCheck(f"watch-{feed.resource.name}", feed.watch.last_error)
            for feed in self._live.feeds
        ]

    async def other_page(self, request: web.BaseRequest) -> HttpAnswer | None:
        """Answer explanations of pods."""
        match request.path.split("/"):
            case ["", "explain", "pods", namespace, name] if namespace and name:
                return await self._explain(request, namespace, name)
        return None

    async def _explain(self, request: web.BaseRequest, namespace: str, name: str) -> HttpAnswer:
        if not self._live.ready:
            return self.problem(503, _NOT_READY)
        refusal = await self._permission.refusal(request, f"/explain/pods/{namespace}/{name}")
        if refusal is not None:
            return self.problem(*refusal)
        if self._explaining >= self.options.most_explaining:
            return self.problem(503, "too many ask for explanations at once; ask again")
        self._explaining += 1
        try:
            async with self._explaining_one:
                explanation = await self._explainer.explain(namespace, name)
        finally:
            self._explaining -= 1
        if explanation is None:
            return self.problem(404, f"there is no pod {namespace}/{name}")
        return HttpAnswer(200, msgspec.json.encode(explanation))

"""The agent's health and metrics pages; it is ready once every part reports no problem."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from aiohttp import web
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from weft.cluster.http.server import HttpAnswer
from weft.host.pages import TEXT, CollectedFamilies, HealthCheck, Pages, PagesOptions

log = logging.getLogger("weft.agent")

PORT = 9400
"""dcgm-exporter's port, so that existing scrape configurations find the agent."""
_OPTIONS = PagesOptions(most_connections=64, close_s=1)


class AgentPages(Pages):
    """Serves the agent's pages while `run` runs. `checks` maps parts of the agent to functions that
    return what is wrong ("" for nothing); `listening` is set once the port is known."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        checks: Mapping[str, Callable[[], str]],
        *,
        address: str = "0.0.0.0",
        port: int = PORT,
    ) -> None:
        super().__init__(collectors, address=address, port=port, options=_OPTIONS, log=log)
        self.listening = asyncio.Event()
        self._checks = dict(checks)

    async def run(self) -> None:
        """Serve until cancelled; `BadInputError` if the port cannot be opened."""
        await self.listen()
        log.info("health and metrics on %s:%d", self.address, self.port)
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.close()

    def page(self) -> bytes:
        """Return the text of /metrics."""
        families = [family for each in self.collectors for family in each.collect()]
        return generate_latest(CollectedFamilies(families))

    def readiness(self) -> list[HealthCheck]:
        """Return each part's own report."""
        return [HealthCheck(part, check()) for part, check in self._checks.items()]

    async def _alive(self, request: web.BaseRequest) -> HttpAnswer:
        return HttpAnswer(200, b"ok", TEXT)

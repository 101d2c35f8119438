"""Parts of the scheduler and shadow processes, each of which starts and stops one task of the
cluster."""

import gc
import logging
from collections.abc import Sequence

from weft.cluster import rights
from weft.cluster.config.form import Configuration
from weft.cluster.control.interface import LiveCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.extender.routes import Route
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.cluster.extender.setup import ListenerOptions, listen
from weft.cluster.telemetry.prediction_reload import PredictionReloader
from weft.host.plan import SchedulerPlan
from weft.host.shell import Background
from weft.kube.access import ResourceRight
from weft.kube.client import ApiClient
from weft.kube.preflight import check_alone, check_server, wait_for_server

log = logging.getLogger("weft.scheduler")

GRANTED_BY = "apply the ClusterRole and the Role of deploy/scheduler.yaml"


def rights_of(config: Configuration) -> tuple[ResourceRight, ...]:
    """Return the rights that a scheduler needs."""
    lease = config.lease
    led = rights.of_lease(lease.namespace, lease.name) if lease.enabled else ()
    return (*rights.SCHEDULER, *led)


class Preflight:
    """Waits until the API server answers, and then checks its version and Weft's permissions."""

    def __init__(self, plan: SchedulerPlan, client: ApiClient) -> None:
        self._plan, self._client = plan, client

    async def start(self) -> str:
        """Wait and check; `BadInputError` if the server is too old, rights are missing, or another
        scheduler takes pods of one of Weft's schedulerNames."""
        config, client = self._plan.config, self._client
        await wait_for_server(client, log)
        await check_server(client, "weft scheduler", rights_of(config), GRANTED_BY)
        await check_alone(client, self._plan.names, config.lease.name)
        return f"reading {client.endpoint.url}"

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class ExtenderPart:
    """Serves kube-scheduler's extender."""

    def __init__(self, live: LiveCluster, routes: Sequence[Route], wish: ListenerOptions) -> None:
        self.server, self._wish = ExtenderServer(Extender(live), routes, door=wish.door), wish

    async def start(self) -> str:
        """Open the extender's ports and return them as text."""
        return "extender on " + ", ".join(map(str, await listen(self.server, self._wish)))

    async def close(self) -> None:
        """Answer the requests received, then close."""
        await self.server.close()


class SettledMemory:
    """Excludes Python objects that exist at the start from garbage collection, which then takes
    less time."""

    async def start(self) -> str:
        """Collect once, then freeze all remaining objects."""
        gc.collect()
        gc.freeze()
        return "garbage collection skips objects read so far"

    async def close(self) -> None:
        """Do nothing: the process ends."""


class PredictionsPart(Background):
    """Gives policies the predicted interference, and updates it when the files change."""

    def __init__(self, reloader: PredictionReloader) -> None:
        super().__init__("", reloader.run)
        self._reloader = reloader

    async def start(self) -> str:
        """Publish the predictions now, and reread the files periodically if configured."""
        self._reloader.publish()
        if self._reloader.every_s:
            await super().start()
        return str(self._reloader.loaded)


class TypicalPodsPart(Background):
    """Keeps the statistics of typical pods, which policies read, up to date."""

    def __init__(self, typical: TypicalInput) -> None:
        self._input = typical
        super().__init__("counting typical pods", self._input.run)

    async def start(self) -> str:
        """Count typical pods now, and then periodically."""
        await self._input.learn()
        return await super().start()

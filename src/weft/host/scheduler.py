"""The scheduler's process, including the extender: one cluster, one ledger, and its parts.

plan ──▶ client, lease ──▶ cluster ──▶ SchedulerProcess(early: pages, preflight, recording;
                                                        then the parts in `served`)
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET
from prometheus_client.registry import Collector

from weft.cluster.config.form import Configuration, TelemetrySettings
from weft.cluster.control.event_reporter import EventReporter, EventReporterOptions
from weft.cluster.control.interface import ClusterView
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.extender.setup import listening_of
from weft.cluster.http.access import AccessRule
from weft.cluster.http.server import HttpAnswer, ProblemBody
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.cluster.scheduler.ledger_gauges import StrandedGauges
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.cluster.scheduler.permission import Permission
from weft.cluster.telemetry.metric_sources import SourceContext, aliases_of, options_of, source_of
from weft.cluster.telemetry.prediction_reload import PredictionReloader, ReloadMetrics
from weft.cluster.telemetry.slowdown_observer import (
    SlowdownMetrics,
    SlowdownObserver,
    SlowdownObserverOptions,
)
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.cluster.telemetry.telemetry_loop import (
    TelemetryLoop,
    TelemetryMetrics,
    addresses_of,
    devices_of,
)
from weft.core.framework import Profile
from weft.core.framework.registry import Registry
from weft.core.record import Header, ProfileUse
from weft.host.cluster_parts import (
    ExtenderPart,
    PredictionsPart,
    Preflight,
    SettledMemory,
    TypicalPodsPart,
)
from weft.host.decisions_recorder import Recording
from weft.host.pages import TEXT, HealthCheck, Pages, PagesOptions
from weft.host.plan import Hosting, SchedulerPlan, cluster_of, elector_of, own_config_map, plan_of
from weft.host.scheduler_process import SchedulerProcess
from weft.host.shell import Background, Part, stop_signal
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.lease import Elector
from weft.model import BadInputError
from weft.model.interference_table import InterferenceTable
from weft.model.queue_rules import NO_QUEUES
from weft.telemetry.sources.source import MetricSource

# --- pages ----------------------------------------------------------------------------------------
# Serves the pages of a scheduler process: health, metrics, and explanations of pods; all
# read-only.
#
#     /readyz                      the cluster has been read, and there is a leader
#     /explain/pods/NAMESPACE/NAME why the pod is on its node, or pending; for permitted users
#
# With `?verbose` further checks are shown, such as an API server that does not answer.


log = logging.getLogger("weft.scheduler")

_NOT_READY = "this process is still reading the cluster; ask again in some seconds"


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
        """Return a check for each list-watch, with its last error."""
        return [
            HealthCheck(f"watch-{feed.resource.name}", feed.watch.last_error)
            for feed in self._live.feeds
        ]

    async def other_page(self, request: web.BaseRequest) -> HttpAnswer | None:
        """Answer a request for the explanation of a pod; None for any other page."""
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
            return self.problem(503, "too many explanations are requested now; try again")
        self._explaining += 1
        try:
            async with self._explaining_one:
                explanation = await self._explainer.explain(namespace, name)
        finally:
            self._explaining -= 1
        if explanation is None:
            return self.problem(404, f"there is no pod {namespace}/{name}")
        return HttpAnswer(200, msgspec.json.encode(explanation))


class ServedPart(NamedTuple):
    """A part, and the collectors of its metrics."""

    part: Part
    collectors: tuple[Collector, ...] = ()


async def host(config: Configuration, registry: Registry, hosting: Hosting) -> None:
    """Run until SIGTERM or SIGINT; see `SchedulerProcess.run`."""
    _warn_of_open_doors(config)
    plan = plan_of(config, registry, hosting)
    options = ClientOptions(config.client.qps, config.client.burst, user_agent="weft-scheduler")
    async with ApiClient(load(hosting.context, paths=hosting.kubeconfigs), options) as client:
        elector = elector_of(client, config.lease) if config.lease.enabled else None
        parts = cluster_of(plan, client, elector)
        await process_of(plan, parts, elector).run(stop_signal().wait())


def process_of(
    plan: SchedulerPlan, leader: LeaderParts, elector: Elector | None
) -> SchedulerProcess:
    """Build the process, with its parts in the order of their start."""
    live, config, name = leader.live, plan.config, socket.gethostname()
    client = live.client
    events = EventReporterOptions(config.events.interval_seconds, config.events.scheduled)
    reporter = EventReporter(live, client, name, events)
    role = LeaderLabel(client, os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", ""))
    metrics = SchedulerMetrics(leader, lease=config.lease.name, usage=config.usage)
    source = _source(plan, live)
    solos = SoloProfiles(plan.predictions.solos)
    observer = _observer(plan, live, source, solos)
    typical = TypicalInput(live, config.popularity)
    stranded = StrandedGauges(live, typical)
    served = [
        *_predictions(plan, live, observer, solos),
        ServedPart(TypicalPodsPart(typical)),
        ServedPart(Background("counting stranded GPUs", stranded.run), (stranded,)),
        ServedPart(SettledMemory()),
        *_gpu_watch(plan, live, source, observer),
        *_extender(plan, live),
    ]
    pages = StatusPages(
        live,
        Explainer(live, leader.guard, observer.about if observer is not None else None),
        [metrics, *(each for one in served for each in one.collectors)],
        address=config.http.address,
        port=config.http.port,
        door=AccessRule(anyone=config.http.anyone_may_explain),
    )
    early: list[Part] = [pages, Preflight(plan, client), *_recordings(plan, live)]
    parts = [one.part for one in served]
    return SchedulerProcess(live, reporter, role, elector, early=early, parts=parts)


def _source(plan: SchedulerPlan, live: EngineCluster) -> MetricSource | None:
    around = SourceContext(lambda: addresses_of(live), lambda: devices_of(live), live.client)
    return source_of(plan.config.telemetry, around)


def _observer(
    plan: SchedulerPlan, live: EngineCluster, source: MetricSource | None, solos: SoloProfiles
) -> SlowdownObserver | None:
    """Build the observer of slowdowns; None if no metrics source can report pods' progress."""
    options = _observer_options(plan.config)
    if source is None or not options.metrics:
        return None
    settings, predictions = plan.config.interference, plan.predictions
    config_map = own_config_map(live.client, plan.config, settings.observed)
    base = predictions.interference or InterferenceTable(0)
    return SlowdownObserver(live, source, config_map, base, solos, options)


def _predictions(
    plan: SchedulerPlan,
    live: EngineCluster,
    observer: SlowdownObserver | None,
    solos: SoloProfiles,
) -> list[ServedPart]:
    """Build the part that gives policies the predictions in files; none without files."""
    if not plan.files.named:
        return []
    store = observer.slowdown_store if observer is not None else None
    again_s = plan.config.interference.reload_seconds
    reloader = PredictionReloader(live, plan.files, plan.predictions, again_s, solos, store)
    return [ServedPart(PredictionsPart(reloader), (ReloadMetrics(reloader),))]


def _gpu_watch(
    plan: SchedulerPlan,
    live: EngineCluster,
    source: MetricSource | None,
    observer: SlowdownObserver | None,
) -> list[ServedPart]:
    """Build the part that keeps policies' view of GPU telemetry up to date; none without a
    source."""
    if source is None:
        return []
    config = plan.config
    options, aliases = options_of(config.telemetry, config.limits), aliases_of(config.telemetry)
    loop = TelemetryLoop(live, source, observer, options, aliases)
    collectors: list[Collector] = [TelemetryMetrics(loop)]
    if observer is not None:
        collectors.append(SlowdownMetrics(observer))
    part = Background("reading GPU telemetry", loop.run, source.close)
    return [ServedPart(part, tuple(collectors))]


def _extender(plan: SchedulerPlan, live: EngineCluster) -> list[ServedPart]:
    if not plan.config.extender.enabled:
        return []
    part = ExtenderPart(live, plan.routes, listening_of(plan.config.extender))
    return [ServedPart(part, (part.server.metrics,))]


def _recordings(plan: SchedulerPlan, live: EngineCluster) -> list[Recording]:
    """Build the recorder of the decisions file, if one is configured."""
    path, limits, kept = plan.hosting.decisions, plan.limits, live.engine.kept_places
    if path is None:
        return []
    header = Header(
        _uses(plan.profiles),
        plan.config.seed,
        overcommit_permille=limits.overcommit_permille,
        harvest_permille=limits.harvest_permille,
        known_only=limits.known_only,
        turn_looks=live.engine.turn_looks,
        queues=UNSET if (rules := live.engine.teams.rules) == NO_QUEUES else rules,
        head_of_line=kept.rules if kept.on or live.engine.forecasts.on else UNSET,
        moves=moves.rules if (moves := live.engine.preemption.moves).on else UNSET,
    )
    return [Recording(live, header, path, plan.hosting.decisions_mib)]


def _observer_options(config: Configuration) -> SlowdownObserverOptions:
    settings, times = config.interference, config.telemetry
    return SlowdownObserverOptions(
        settings.progress_metric,
        settings.latency_metric,
        times.interval_seconds,
        times.scrape_seconds,
        trusts_progress(times),
    )


def trusts_progress(settings: TelemetrySettings) -> bool:
    """Return True if the source of pods' progress is configured, or discovered only in configured
    namespaces: otherwise any user who may create a Service could decide who is evicted."""
    return not settings.discover or bool(settings.namespaces)


def _uses(profiles: Sequence[Profile]) -> list[ProfileUse]:
    """Describe the profiles for a decisions file's header."""
    return [ProfileUse.of(profile) for profile in profiles]


def _warn_of_open_doors(config: Configuration) -> None:
    if config.extender.enabled and config.extender.anyone_may_bind:
        warning = (
            "extender.anyoneMayBind: anyone who can connect to %s:%d may bind pods of all "
            "namespaces"
        )
        log.warning(warning, config.extender.address, config.extender.port)
    if config.http.anyone_may_explain:
        warning = (
            "http.anyoneMayExplain: anyone who can connect to %s:%d may read explanations for "
            "pods of all namespaces"
        )
        log.warning(warning, config.http.address, config.http.port)

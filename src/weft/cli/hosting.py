"""Composes a live process: one cluster, one ledger, and what is served beside it.

configuration ──▶ client, lease ──▶ Cluster ──▶ Process(recording, pages, typical, extender)
"""

import gc
import logging
import os
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from prometheus_client.registry import Collector

from weft.cli.interference_files import files_of
from weft.cluster.config.form import Configuration, LeaseSettings, TelemetrySettings
from weft.cluster.config.gpu_links import links_rules
from weft.cluster.config.made_profiles import maker
from weft.cluster.config.made_profiles import profiles as made_of
from weft.cluster.control.event_reporter import EventReporter, EventReporterOptions
from weft.cluster.control.live_cluster import EngineCluster, EngineClusterOptions
from weft.cluster.control.typical_pods import TypicalInput
from weft.cluster.extender.listeners import ListenerOptions, listen
from weft.cluster.extender.routes import Route, route_profiles
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.cluster.extender.setup import listening_of, routes_of
from weft.cluster.http.access import AccessRule
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.scheduler.decisions_recorder import Recording
from weft.cluster.scheduler.explain_service import Explainer
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.cluster.scheduler.pages import StatusPages
from weft.cluster.scheduler.process import SchedulerProcess, stop_signal
from weft.cluster.scheduler.process_part import BackgroundPart, ProcessPart
from weft.cluster.scheduler.stranded_gauges import StrandedGauges
from weft.cluster.telemetry.metric_sources import (
    SourceContext,
    aliases_of,
    options_of,
    source_of,
)
from weft.cluster.telemetry.prediction_reload import (
    LoadedPredictions,
    PredictionFiles,
    PredictionReloader,
    ReloadMetrics,
)
from weft.cluster.telemetry.slowdown_metrics import SlowdownMetrics
from weft.cluster.telemetry.slowdown_observer import SlowdownObserver, SlowdownObserverOptions
from weft.cluster.telemetry.solo_rates import SoloProfiles
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, addresses_of, devices_of
from weft.cluster.telemetry.telemetry_metrics import TelemetryMetrics
from weft.core.explain.explanation import ObservedProgress
from weft.core.framework import Profile
from weft.core.framework.registry import Registry
from weft.core.ledger import RequestLimits
from weft.core.record import Header, PolicyUse, ProfileUse
from weft.dialects.inventory import InventoryFallback
from weft.kube.access import ResourceRight
from weft.kube.bind import BindOptions
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.configmap import OwnConfigMap
from weft.kube.lease import Elector, LeaseOptions
from weft.kube.preflight import check_alone, check_server, wait_for_server
from weft.model import BadInputError
from weft.model.interference_table import InterferenceTable
from weft.telemetry.sources.source import MetricSource

log = logging.getLogger("weft.scheduler")


class Hosting(msgspec.Struct, frozen=True):
    """Options of the command line beside the configuration.

    `schedules` is False for a process that only answers kube-scheduler. `decisions` is the file
    that everything goes on record in, up to `decisions_mib` (0: however much). `where` names the
    configuration file in errors.
    """

    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    where: str = ""
    decisions: Path | None = None
    decisions_mib: int = 0
    schedules: bool = True


class _Plan(msgspec.Struct, frozen=True):
    """The configuration and its files, read before anything is connected.

    `profiles` are those of the configuration and the extender's routes; `names` the schedulerNames
    whose pods are scheduled here.
    """

    config: Configuration
    hosting: Hosting
    files: PredictionFiles
    predictions: LoadedPredictions
    profiles: tuple[Profile, ...]
    names: tuple[str, ...]
    routes: tuple[Route, ...]
    limits: RequestLimits


GRANTED_BY = "apply the ClusterRole and the Role of deploy/scheduler.yaml"


def rights_of(config: Configuration) -> list[ResourceRight]:
    """The rights that a scheduler cannot do without."""
    lists = ("pods", "nodes", "persistentvolumes", "persistentvolumeclaims")
    rights = [ResourceRight(verb, name) for name in lists for verb in ("list", "watch")]
    rights += [ResourceRight(verb, "csinodes", "storage.k8s.io") for verb in ("list", "watch")]
    rights += [ResourceRight("get", "pods"), ResourceRight("patch", "pods/status")]
    rights += [ResourceRight("create", "pods/binding")]
    system, lease = "kube-system", config.lease
    rights += [ResourceRight(v, "configmaps", namespace=system) for v in ("list", "watch")]
    if lease.enabled:
        own = ResourceRight("get", "leases", "coordination.k8s.io", lease.namespace, lease.name)
        rights += [own, own._replace(verb="patch")]
    return rights


async def host(config: Configuration, registry: Registry, hosting: Hosting) -> None:
    """Run until told to stop; see `SchedulerProcess.run`."""
    _warn_of_open_doors(config)
    plan = _plan(config, registry, hosting)
    options = ClientOptions(config.client.qps, config.client.burst, user_agent="weft-scheduler")
    async with ApiClient(load(hosting.context, paths=hosting.kubeconfigs), options) as client:
        elector = _elector(client, config.lease) if config.lease.enabled else None
        parts = _cluster(plan, client, elector)
        await _process(plan, parts, elector).run(stop_signal())


def reading_cluster(
    config: Configuration, registry: Registry, client: ApiClient, where: str = ""
) -> LeaderParts:
    """The cluster that `host` would make, to be read: nobody leads, and nothing is kept.

    `where` names the configuration file in errors.
    """
    plan = _plan(config, registry, Hosting(where=where))
    return _cluster(plan, client, None)


def watching_parts(
    config: Configuration, registry: Registry, live: EngineCluster, where: str = ""
) -> list[ProcessPart]:
    """The parts that `host` would serve beside, that make such a cluster see more and write
    nothing: predictions, typical pods, what the GPUs do."""
    plan = _plan(config, registry, Hosting(where=where))
    solos = SoloProfiles(plan.predictions.solos)
    again_s = config.interference.reload_seconds
    reloader = PredictionReloader(live, plan.files, plan.predictions, again_s, solos, None)
    parts: list[ProcessPart] = [_Predicted(reloader)] if plan.files.named else []
    parts.append(_Typical(TypicalInput(live, config.popularity)))
    around = SourceContext(lambda: addresses_of(live), lambda: devices_of(live), live.client)
    source = source_of(config.telemetry, around)
    if source is not None:
        options, aliases = options_of(config.telemetry, config.limits), aliases_of(config.telemetry)
        loop = TelemetryLoop(live, source, None, options, aliases)
        parts.append(BackgroundPart("GPUs are looked at", loop.run, source.close))
    return parts


def _plan(config: Configuration, registry: Registry, hosting: Hosting) -> _Plan:
    """Read what the configuration names; `BadInputError` where something is wrong with it."""
    files = files_of(config, hosting.where)
    predictions = files.read()
    predicted, routes = config.interference.predicted, []
    if config.extender.enabled:
        routes = routes_of(config.extender, registry.names(), predicted=predicted)
    profiles = made_of(config, registry, hosting.where)
    names = tuple(profile.name for profile in profiles)
    return _Plan(
        config,
        hosting,
        files,
        predictions,
        (*profiles, *route_profiles(routes, maker(config, registry), names)),
        taken_here(config, hosting),
        tuple(routes),
        RequestLimits.declared(
            round(1000 * config.limits.overcommit), round(1000 * config.limits.harvest)
        ),
    )


def taken_here(config: Configuration, hosting: Hosting) -> tuple[str, ...]:
    """The schedulerNames whose pods this process schedules; the others are kube-scheduler's."""
    asked = [p.scheduler_name for p in config.profiles if p.via == "extender"]
    if asked and not config.extender.enabled:
        what = f"{asked[0]} is via extender, which is off; write extender.enabled: true"
        raise BadInputError(f"{hosting.where}: profiles" if hosting.where else "profiles", what)
    ours = tuple(p.scheduler_name for p in config.profiles if p.via == "scheduler")
    return ours if hosting.schedules else ()


def _cluster(plan: _Plan, client: ApiClient, elector: Elector | None) -> LeaderParts:
    config = plan.config
    options = EngineClusterOptions(
        names=plan.names,
        seed=config.seed,
        rules=[
            InventoryFallback(r.count, r.memory_mib, r.model, r.nodes, r.labels)
            for r in config.inventory
        ],
        links=links_rules(config.gpu_links),
        gpushare_unit=config.gpushare_unit,
        binding=BindOptions(
            in_flight=config.client.binds_in_flight,
            request_timeout_s=config.client.request_timeout_seconds,
        ),
        limits=plan.limits,
        interference=plan.predictions.interference is not None,
    )
    return LeaderParts(
        EngineCluster(client, plan.profiles, lease=elector, options=options),
        config_map=_own_config_map(client, config, config.oom_history.name),
        past_scheduler=config.past_scheduler,
    )


def _process(plan: _Plan, leader: LeaderParts, elector: Elector | None) -> SchedulerProcess:
    """The process with all that is served beside the deciding."""
    live, config, name = leader.live, plan.config, socket.gethostname()
    client = live.client
    events = EventReporterOptions(config.events.interval_seconds, config.events.scheduled)
    reporter = EventReporter(live, client, name, events)
    role = LeaderLabel(client, os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", ""))
    beside = _Beside(plan, leader)
    pages = StatusPages(
        live,
        Explainer(live, leader.guard, beside.progress_of),
        beside.collectors,
        address=config.http.address,
        port=config.http.port,
        door=AccessRule(anyone=config.http.anyone_may_explain),
    )
    early: list[ProcessPart] = [pages, _Preflight(plan, client), *_recordings(plan, live)]
    return SchedulerProcess(live, reporter, role, elector, early=early, parts=beside.parts)


class _Beside:
    """The parts served beside the scheduler, in the order of their start, and their metrics."""

    def __init__(self, plan: _Plan, leader: LeaderParts) -> None:
        live, config = leader.live, plan.config
        self.collectors: list[Collector] = [SchedulerMetrics(leader, lease=config.lease.name)]
        self.parts: list[ProcessPart] = []
        self.progress_of: Callable[[str], ObservedProgress | None] | None = None
        around = SourceContext(lambda: addresses_of(live), lambda: devices_of(live), live.client)
        source = source_of(config.telemetry, around)
        self._predict(plan, live, source)
        typical = TypicalInput(live, config.popularity)
        stranded = StrandedGauges(live, typical)
        self.collectors.append(stranded)
        counted = BackgroundPart("stranded GPUs are counted", stranded.run)
        self.parts += [_Typical(typical), counted, _Memory()]
        if source is not None:
            self._watch_gpus(plan, live, source)
        if config.extender.enabled:
            extender = _Extender(live, plan.routes, listening_of(config.extender))
            self.collectors.append(extender.server.metrics)
            self.parts.append(extender)

    def _predict(self, plan: _Plan, live: EngineCluster, source: MetricSource | None) -> None:
        """Tell policies what the files predict, and observe it where a source can say."""
        settings, predictions = plan.config.interference, plan.predictions
        options = _observer_options(plan.config)
        solos, store = SoloProfiles(predictions.solos), None
        self._observer = None
        if source is not None and options.metrics:
            config_map = _own_config_map(live.client, plan.config, settings.observed)
            base = predictions.interference or InterferenceTable(0)
            self._observer = SlowdownObserver(live, source, config_map, base, solos, options)
            self.progress_of, store = self._observer.about, self._observer.slowdown_store
        reloader = PredictionReloader(
            live, plan.files, predictions, settings.reload_seconds, solos, store
        )
        if plan.files.named:
            self.parts.append(_Predicted(reloader))
            self.collectors.append(ReloadMetrics(reloader))

    def _watch_gpus(self, plan: _Plan, live: EngineCluster, source: MetricSource) -> None:
        """Keep what policies see of the GPUs up to date."""
        config = plan.config
        options, aliases = options_of(config.telemetry, config.limits), aliases_of(config.telemetry)
        loop = TelemetryLoop(live, source, self._observer, options, aliases)
        self.collectors.append(TelemetryMetrics(loop))
        if self._observer is not None:
            self.collectors.append(SlowdownMetrics(self._observer))
        self.parts.append(BackgroundPart("GPUs are looked at", loop.run, source.close))


def _recordings(plan: _Plan, live: EngineCluster) -> list[Recording]:
    """The decisions file, where one is wanted."""
    path, limits = plan.hosting.decisions, plan.limits
    if path is None:
        return []
    header = Header(
        _uses(plan.profiles),
        plan.config.seed,
        overcommit_permille=limits.overcommit_permille,
        harvest_permille=limits.harvest_permille,
        known_only=limits.known_only,
        turn_looks=live.engine.turn_looks,
    )
    return [Recording(live, header, path, plan.hosting.decisions_mib)]


def _warn_of_open_doors(config: Configuration) -> None:
    if config.extender.enabled and config.extender.anyone_may_bind:
        warning = "extender.anyoneMayBind: whoever reaches %s:%d may bind pods of all namespaces"
        log.warning(warning, config.extender.address, config.extender.port)
    if config.http.anyone_may_explain:
        warning = (
            "http.anyoneMayExplain: whoever reaches %s:%d may read why pods of all namespaces are "
            "where they are"
        )
        log.warning(warning, config.http.address, config.http.port)


def _elector(client: ApiClient, lease: LeaseSettings) -> Elector:
    """A candidate with a name of its own: the host's, and chance, for every process is new."""
    options = LeaseOptions(lease.namespace, lease.name, lease.duration_seconds, lease.renew_seconds)
    return Elector(client, f"{socket.gethostname()}_{uuid.uuid4()}", options)


def _own_config_map(client: ApiClient, config: Configuration, name: str) -> OwnConfigMap | None:
    """The ConfigMap of this name beside the Lease; none where it has none."""
    return OwnConfigMap(client, config.lease.namespace, name) if name else None


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
    """True if the source of pods' speeds was named, and not just found somewhere: who may make a
    Service must not decide who is evicted."""
    return not settings.discover or bool(settings.namespaces)


def _uses(profiles: Sequence[Profile]) -> list[ProfileUse]:
    """The profiles as a decisions file's header says them."""
    return [
        ProfileUse(
            profile.name,
            [PolicyUse.of(p.policy, p.weight) for p in profile.plugins],
        )
        for profile in profiles
    ]


class _Preflight(ProcessPart):
    """Waits for the API server, whose absence is no reason to end, and asks it what must be so."""

    def __init__(self, plan: _Plan, client: ApiClient) -> None:
        self._plan, self._client = plan, client

    async def start(self) -> str:
        """`BadInputError` where the server is too old, rights lack, or another leads too."""
        config, client = self._plan.config, self._client
        await wait_for_server(client, log)
        await check_server(client, "weft scheduler", rights_of(config), GRANTED_BY)
        await check_alone(client, self._plan.names, config.lease.name)
        return f"reading {client.endpoint.url}"

    async def close(self) -> None:
        """Nothing is kept."""


class _Extender(ProcessPart):
    """kube-scheduler's extender."""

    def __init__(self, live: EngineCluster, routes: Sequence[Route], wish: ListenerOptions) -> None:
        self.server, self._wish = ExtenderServer(Extender(live), routes, door=wish.door), wish

    async def start(self) -> str:
        """Open its ports."""
        return "extender on " + ", ".join(map(str, await listen(self.server, self._wish)))

    async def close(self) -> None:
        """Answer what was asked, then close."""
        await self.server.close()


class _Memory(ProcessPart):
    """Freezes what was read at the start: garbage collection need not look through it each time."""

    async def start(self) -> str:
        """Set it aside."""
        gc.collect()
        gc.freeze()
        return "memory is settled"

    async def close(self) -> None:
        """Nothing: the process ends."""


class _Predicted(BackgroundPart):
    """Tells policies how much applications slow each other down, and again where that changed."""

    def __init__(self, reloader: PredictionReloader) -> None:
        super().__init__("", reloader.run)
        self._reloader = reloader

    async def start(self) -> str:
        """Tell it now, and read the files now and then."""
        self._reloader.publish()
        if self._reloader.every_s:
            await super().start()
        return str(self._reloader.loaded)


class _Typical(BackgroundPart):
    """Keeps up to date what usually comes."""

    def __init__(self, typical: TypicalInput) -> None:
        self._input = typical
        super().__init__("typical pods are counted", self._input.run)

    async def start(self) -> str:
        """Count now, and then now and again."""
        await self._input.learn()
        return await super().start()

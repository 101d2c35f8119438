"""Where a live process is composed: one cluster, one ledger, and what is served beside it.

configuration ──▶ client, lease ──▶ Cluster ──▶ Process(recording, pages, typical, extender)
"""

import asyncio
import gc
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weft.cli.interference_files import files_of
from weft.cli.telemetry import SourceContext, aliases_of, options_of, source_of
from weft.cluster.config.form import Configuration, LeaseSettings, TelemetrySettings
from weft.cluster.config.read import maker
from weft.cluster.config.read import profiles as made_of
from weft.cluster.control.event_reporter import EventReporter, EventReporterOptions
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.extender.listeners import ListenerOptions, listen
from weft.cluster.extender.routes import Route, route_profiles
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.cluster.extender.setup import listening_of, routes_of
from weft.cluster.http.access import AccessRule
from weft.cluster.scheduler.decisions_recorder import Recording
from weft.cluster.scheduler.leader_label import LeaderLabel
from weft.cluster.scheduler.metrics import SchedulerMetrics
from weft.cluster.scheduler.pages import StatusPages
from weft.cluster.scheduler.process import ProcessPart, SchedulerProcess, told_to_stop
from weft.cluster.state.typical_pods import TypicalInput
from weft.cluster.stores.slowdown_store import SlowdownStore
from weft.cluster.telemetry.prediction_reload import PredictionReloader, ReloadMetrics
from weft.cluster.telemetry.slowdown_metrics import SlowdownMetrics
from weft.cluster.telemetry.slowdown_observer import SlowdownObserver, SlowdownObserverOptions
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, addresses_of, devices_of
from weft.cluster.telemetry.telemetry_metrics import TelemetryMetrics
from weft.core.framework import Profile
from weft.core.framework.interference import InterferenceTable
from weft.core.framework.registry import Registry
from weft.core.ledger import RequestLimits
from weft.core.record import Header, PolicyUse, ProfileUse
from weft.kube.bind import BindOptions
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.configmap import OwnConfigMap
from weft.kube.lease import Elector, LeaseOptions
from weft.kube.sources import InventoryFallback
from weft.telemetry.sources.source import MetricSource

log = logging.getLogger("weft.scheduler")


class Hosting(msgspec.Struct, frozen=True):
    """What the command line says beside the configuration.

    `schedules` is False for a process that only answers kube-scheduler. `decisions` is the file
    that everything goes on record in, up to `decisions_mib` (0: however much). `where` names the
    configuration file in errors.
    """

    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    schedules: bool = True
    decisions: Path | None = None
    decisions_mib: int = 0
    where: str = ""


async def host(config: Configuration, registry: Registry, hosting: Hosting) -> None:
    """Run until told to stop; see `SchedulerProcess.run`."""
    _tell_open_doors(config)
    files = files_of(config, hosting.where)
    told = files.read()
    elsewhere = config.interference.predicted
    routes = (
        routes_of(config.extender, registry.names(), predicted=elsewhere)
        if config.extender.enabled
        else []
    )
    profiles = made_of(config, registry, hosting.where)
    names = [profile.name for profile in profiles]
    everything = [*profiles, *route_profiles(routes, maker(config, registry), names)]
    limits = RequestLimits(
        round(1000 * config.limits.overcommit), round(1000 * config.limits.harvest)
    )
    options = ClientOptions(qps=config.client.qps, burst=config.client.burst)
    async with ApiClient(load(hosting.context, paths=hosting.kubeconfigs), options) as client:
        elector = _elector(client, config.lease) if config.lease.enabled else None
        live = EngineCluster(
            client,
            everything,
            names=names if hosting.schedules else [],
            seed=config.seed,
            rules=[
                InventoryFallback(r.count, r.memory_mib, r.model, r.nodes, r.labels)
                for r in config.inventory
            ],
            gpushare_unit=config.gpushare_unit,
            binding=BindOptions(
                in_flight=config.client.binds_in_flight,
                request_timeout_s=config.client.request_timeout_seconds,
            ),
            may_bind=elector.may_bind if elector else None,
            limits=limits,
            kept=_kept(client, config, config.oom_history.name),
        )
        telling = EventReporterOptions(config.events.interval_seconds, config.events.scheduled)
        teller = EventReporter(live, client, socket.gethostname(), telling)
        role = LeaderLabel(
            client, os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", "")
        )
        process = SchedulerProcess(live, teller, role, elector)
        pages = StatusPages(
            live,
            [SchedulerMetrics(live, lease=config.lease.name)],
            address=config.http.address,
            port=config.http.port,
            door=AccessRule(anyone=config.http.anyone_may_explain),
        )
        process.early.append(pages)
        if hosting.decisions is not None:
            header = Header(
                _uses(everything),
                config.seed,
                overcommit_permille=limits.overcommit_permille,
                harvest_permille=limits.harvest_permille,
                turn_looks=live.engine.turn_looks,
            )
            process.early.append(Recording(live, header, hosting.decisions, hosting.decisions_mib))
        reloading = PredictionReloader(live, files, told, config.interference.reload_seconds)
        if told.interference is not None:
            live.pods.settings = msgspec.structs.replace(live.settings, interference_table=True)
        if files.named:
            process.parts.append(_Predicted(reloading))
            pages.collectors.append(ReloadMetrics(reloading))
        process.parts += [_Typical(live), _Memory()]
        around = SourceContext(lambda: addresses_of(live), lambda: devices_of(live), client)
        source = source_of(config.telemetry, around)
        if source is not None:
            how = options_of(config.telemetry, config.limits)
            looking = TelemetryLoop(live, source, how, aliases_of(config.telemetry))
            live.ends.peak_mib = looking.measuring.peak_mib
            pages.collectors.append(TelemetryMetrics(looking))
            looking.observing = _observing(live, source, config, reloading)
            if looking.observing is not None:
                pages.explainer.progress_of = looking.observing.about
                pages.collectors.append(SlowdownMetrics(looking.observing))
            process.parts.append(_Looking(looking, source))
        if config.extender.enabled:
            extender = _Extender(live, routes, listening_of(config.extender))
            pages.collectors.append(extender.server.metrics)
            process.parts.append(extender)
        await process.run(told_to_stop())


def _tell_open_doors(config: Configuration) -> None:
    if config.extender.enabled and config.extender.anyone_may_bind:
        log.warning(
            "extender.anyoneMayBind: whoever reaches %s:%d may bind pods of all namespaces",
            config.extender.address,
            config.extender.port,
        )
    if config.http.anyone_may_explain:
        log.warning(
            "http.anyoneMayExplain: whoever reaches %s:%d may read why pods of all namespaces are "
            "where they are",
            config.http.address,
            config.http.port,
        )


def _elector(client: ApiClient, lease: LeaseSettings) -> Elector:
    """A candidate with a name of its own: the host's, and chance, for every process is new."""
    options = LeaseOptions(lease.namespace, lease.name, lease.duration_seconds, lease.renew_seconds)
    return Elector(client, f"{socket.gethostname()}_{uuid.uuid4()}", options)


def _kept(client: ApiClient, config: Configuration, name: str) -> OwnConfigMap | None:
    """The ConfigMap of this name beside the Lease; none where it has none."""
    return OwnConfigMap(client, config.lease.namespace, name) if name else None


def _observing(
    live: EngineCluster, source: MetricSource, config: Configuration, reloading: PredictionReloader
) -> SlowdownObserver | None:
    """Who looks how fast pods go; nobody where no metric is named."""
    settings, times = config.interference, config.telemetry
    options = SlowdownObserverOptions(
        settings.progress_metric,
        settings.latency_metric,
        times.interval_seconds,
        times.scrape_seconds,
        trusts_progress(times),
    )
    if not options.metrics:
        return None
    store = _kept(live.client, config, settings.observed)
    base = reloading.told.interference or InterferenceTable(0)
    remembering = SlowdownStore(live.client, store, base, live.evictor.may_write)
    observing = SlowdownObserver(live, source, remembering, reloading.solos, options)
    reloading.remembering = remembering
    live.keepers.append(remembering)
    live.evictor.asked = observing.goes
    return observing


def trusts_progress(found: TelemetrySettings) -> bool:
    """Whether who tells how fast pods go was named, and not just found somewhere: who may make a
    Service must not decide who is evicted."""
    return not found.discover or bool(found.namespaces)


def _uses(profiles: Sequence[Profile]) -> list[ProfileUse]:
    """The profiles as a decisions file's header says them."""
    return [
        ProfileUse(
            profile.name,
            [PolicyUse(p.policy.name, p.weight, p.policy.made_with) for p in profile.plugins],
        )
        for profile in profiles
    ]


class _Extender(ProcessPart):
    """kube-scheduler's extender."""

    def __init__(self, live: EngineCluster, routes: list[Route], wish: ListenerOptions) -> None:
        self.server, self._wish = ExtenderServer(Extender(live), routes, door=wish.door), wish

    async def start(self) -> str:
        """Open its ports."""
        return "extender on " + ", ".join(map(str, await listen(self.server, self._wish)))

    async def close(self) -> None:
        """Answer what was asked, then close."""
        await self.server.close()


class _Memory(ProcessPart):
    """What was read at the start stays: collecting garbage need not look through it each time."""

    async def start(self) -> str:
        """Set it aside."""
        gc.collect()
        gc.freeze()
        return "memory is settled"

    async def close(self) -> None:
        """Nothing: the process ends."""


class _Looking(ProcessPart):
    """Keeps what policies see of the GPUs up to date."""

    def __init__(self, looking: TelemetryLoop, source: MetricSource) -> None:
        self._looking, self._source = looking, source
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Look, and again and again; nobody waits for the first answer."""
        self._task = asyncio.create_task(self._looking.run())
        return "GPUs are looked at"

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._source.close()


class _Predicted(ProcessPart):
    """Tells policies how much applications slow each other down, and again where that changed."""

    def __init__(self, reloading: PredictionReloader) -> None:
        self._reloading = reloading
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Tell it now, and look at the files now and then."""
        self._reloading.tell()
        if self._reloading.every_s:
            self._task = asyncio.create_task(self._reloading.run())
        return str(self._reloading.told)

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _Typical(ProcessPart):
    """Keeps FGD's idea of what usually comes up to date."""

    def __init__(self, live: EngineCluster) -> None:
        self._input = TypicalInput(live)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Count now, and then now and again."""
        await self._input.count()
        self._task = asyncio.create_task(self._input.run())
        return "typical pods are counted"

    async def close(self) -> None:
        """Count no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

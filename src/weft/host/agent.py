"""Composes the agent of a node: its parts, and what each receives.

GPUs, API server ──▶ pods, grants, events ──▶ delivery ──▶ NriPlugin ──▶ NodeAgent(parts)
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.registry import Collector

import weft
from weft.cluster import rights
from weft.cluster.config.agent import AgentSettings
from weft.cluster.config.form import Configuration
from weft.cluster.state.pod_reader import workload_of
from weft.dialects.dialect import UnitSettings
from weft.dialects.inventory import InventoryFallback
from weft.host.agent_process import AgentHosting, NodeAgent
from weft.host.shell import Runnable, stop_signal
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.preflight import check_server
from weft.model import BadInputError
from weft.model.agent_offer import DEVICE_PLUGIN, AgentOffer
from weft.model.log_fields import about
from weft.model.runtimes import puts_cdi_last, takes_cdi
from weft.node.agent.accounting import Accounting, AccountingSettings
from weft.node.agent.agent_metrics import (
    DeliveryMetrics,
    DeviceMetrics,
    KubeletMetrics,
    PartMetrics,
)
from weft.node.agent.container_grant import ContainerGrant, Granter
from weft.node.agent.delivery import Delivery, DeliveryOptions
from weft.node.agent.device_nodes import CDI_DIRS, CdiSpecs
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.discovery import Discovery
from weft.node.agent.evictions import Evictions
from weft.node.agent.fail_closed import ClosedTrial, FailClosed
from weft.node.agent.heartbeat import Heartbeat
from weft.node.agent.isolation import HookCleaner, IsolationOptions, NodeIsolation
from weft.node.agent.mps_daemon import MpsDaemon, options_here
from weft.node.agent.node_pods import NodePods, PodRules, is_static, rules_of
from weft.node.agent.offering import Offering, RuntimeAbsence, offer_of
from weft.node.agent.over_share import OverShareGuard, OverShareOptions
from weft.node.agent.plugin_gpus import PluginGpusWatch
from weft.node.agent.pod_events import REFUSED, STRANGER, PodEvents, PodName
from weft.node.agent.process_owner import pods_with_processes
from weft.node.agent.reconciler import Reconciler
from weft.node.agent.usage import UsageWatch, WatchedPod
from weft.node.agent.usage_metrics import UsageMetrics
from weft.node.containerd.configuring import ConfiguringOptions, ContainerdConfiguring
from weft.node.device_plugin.cdi_files import FILE_PREFIX, CdiFiles
from weft.node.devices.fake import FakeReader
from weft.node.devices.nvml import NvmlReader
from weft.node.devices.reader import DeviceError, DeviceReader, NoDriverError
from weft.node.nri.plugin import NriPlugin, PluginOptions

if TYPE_CHECKING:
    from weft.node.device_plugin.plugin_part import DevicePluginPart
from collections.abc import Mapping, Sequence

from aiohttp import web
from prometheus_client.exposition import generate_latest

from weft.cluster.http.server import HttpAnswer
from weft.host.pages import TEXT, CollectedFamilies, HealthCheck, Pages, PagesOptions
from weft.model.delivery import DeliveryRecord
from weft.node.agent.container_grant import why_refused
from weft.node.agent.node_pods import NodePod
from weft.node.device_plugin.attribution import AttributionWorld
from weft.node.device_plugin.kubelet_api import PodResourcesClient
from weft.node.device_plugin.kubelet_record import KubeletRecord
from weft.node.device_plugin.plugin_part import DevicePluginPart, KubeletOptions

# --- pages ----------------------------------------------------------------------------------------
# The agent's health and metrics pages; it is ready once every part reports no problem.


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
        """Return a check for each part, with the problem that the part reports."""
        return [HealthCheck(part, check()) for part, check in self._checks.items()]

    async def _alive(self, request: web.BaseRequest) -> HttpAnswer:
        return HttpAnswer(200, b"ok", TEXT)


__all__ = ["AgentHosting", "Composition", "host"]

_CHECKS_S = 3.0
NVML = "nvml"
"""Value of --devices for the driver's GPUs; any other value is a file that simulates GPUs."""


# --- device plugins -------------------------------------------------------------------------------
# Composes the device plugins of nodes without NRI. Imported only on such nodes, because gRPC is
# large.


def reconciler(
    pods: NodePods,
    devices: DeviceWatch,
    accounting: Accounting,
    evictions: Evictions,
    events: PodEvents,
    hosting: AgentHosting,
) -> Reconciler:
    """Build the part that compares the kubelet's pod resources with the delivery records."""
    return Reconciler(
        pods,
        PodResourcesClient(hosting.pod_resources),
        lambda: accounting.served_by_plugins(accounting.amounts().capacity),
        lambda: [device.gpu.uuid for device in devices.devices],
        events.warn,
        evictions.evict,
    )


def plugin_gpus(
    client: ApiClient,
    pods: NodePods,
    devices: DeviceWatch,
    accounting: Accounting,
    hosting: AgentHosting,
) -> PluginGpusWatch:
    """Build the part that asks the kubelet which GPUs NVIDIA's device plugin gave to pods."""
    return PluginGpusWatch(
        client,
        pods,
        PodResourcesClient(hosting.pod_resources),
        lambda: accounting.served_by_plugins(accounting.amounts().capacity),
        lambda: [device.gpu.uuid for device in devices.devices],
    )


def device_plugins(
    client: ApiClient,
    pods: NodePods,
    devices: DeviceWatch,
    accounting: Accounting,
    isolation: NodeIsolation,
    evictions: Evictions,
    refused: Callable[[PodName, str], None],
    hosting: AgentHosting,
) -> DevicePluginPart:
    """Build the part that serves device plugins to the kubelet."""

    def objection(pod: NodePod, others: Sequence[DeliveryRecord]) -> str:
        if pod.record is None:
            return pod.problem
        node, most = pods.node_name, pods.most_permille
        return why_refused(pod.record, pod.uid, node, devices.devices, others, most)

    options = KubeletOptions(cdi=hosting.cdi, cdi_folder=hosting.cdi_folder)
    # A CDI specification cannot refer to devices of another one: GPUs are passed as device nodes.
    granter = Granter(devices, isolation, CdiSpecs((), heeded=False))
    world = AttributionWorld(
        pods,
        KubeletRecord(options.folder),
        PodResourcesClient(hosting.pod_resources),
        granter.grant,
        objection,
        on_refused=refused,
        on_wrong=evictions.evict,
    )
    return DevicePluginPart(client, pods.node_name, devices, accounting, world, options)


async def host(config: Configuration, hosting: AgentHosting) -> None:
    """Run until SIGTERM or SIGINT; `BadInputError` for wrong options or configuration."""
    stop = stop_signal()
    loop = asyncio.get_running_loop()

    def on_late_driver() -> None:
        loop.call_soon_threadsafe(_end_for_driver, stop)

    reader = reader_of(hosting, on_late_driver)
    async with _client(hosting) as client:
        composition = Composition(config, hosting, reader, client)
        await _check(client, composition.accounting.check if config.agent.own else None)
        await composition.agent.run(stop)


async def _check(client: ApiClient, owned: Callable[[], Awaitable[None]] | None) -> None:
    """Check the API server's version, the agent's rights and, with `owned`, that no other plugin
    serves a resource that the agent is to own.

    If the API server does not answer soon, the agent starts without these checks, as it can deliver
    recorded shares without the server.
    """
    try:
        async with asyncio.timeout(_CHECKS_S):
            remedy = "apply deploy/agent.yaml's ClusterRole"
            await check_server(client, "weft agent", rights.AGENT, remedy)
            if owned is not None:
                await owned()
    except (ApiError, LostError, NotSentError, TimeoutError) as error:
        text = "starting without having checked version and rights at the API server %s: %s"
        log.warning(text, client.endpoint.url, str(error) or "it does not answer")


def _client(hosting: AgentHosting) -> ApiClient:
    # Some hundred pods of a node may be evicted, with an event each, at once; the API server's own
    # priority and fairness limits the agent.
    options = ClientOptions(qps=200, burst=1_000, user_agent="weft-agent")
    return ApiClient(load(hosting.context, paths=hosting.kubeconfigs), options)


def _end_for_driver(stop: asyncio.Event) -> None:
    if not stop.is_set():
        log.warning(
            "a driver was installed, but this process cannot see its library: exiting, "
            "to be restarted"
        )
        stop.set()


def reader_of(hosting: AgentHosting, on_late_driver: Callable[[], None]) -> DeviceReader:
    """Return a reader of the machine's GPUs, or of those that a file simulates.

    If the driver is missing, every reading fails until a driver is installed.
    """
    if hosting.devices != NVML:
        return FakeReader(Path(hosting.devices), hosting.node_name)
    try:
        return NvmlReader()
    except NoDriverError as error:
        log.error("%s: continuing without GPUs, and trying again every second", error)
        return NvmlReader(on_late_driver=on_late_driver)
    except DeviceError as error:
        raise BadInputError(
            "--devices nvml", f"{error}; or name a file that simulates GPUs"
        ) from error


class Composition:
    """The agent and its parts, built and connected to each other."""

    def __init__(
        self,
        config: Configuration,
        hosting: AgentHosting,
        reader: DeviceReader,
        client: ApiClient,
    ) -> None:
        self._client, self._node, self._settings = client, hosting.node_name, config.agent
        self.devices = DeviceWatch(reader)
        self.pods = NodePods(client, self._node, _pod_rules(config), workload_of)
        self.events = PodEvents(client, self._node, lambda: self.evictions.busy)
        self._isolate()
        self._deliver(hosting)
        settings = _accounting_of(config, hosting)
        self.accounting = Accounting(
            client,
            self._node,
            self.devices,
            settings,
            delivers=lambda: hosting.device_plugins or not self.absence.gone,
        )
        self.absence.listeners.append(self.accounting.nudge)
        self.device_plugins = self._serve_plugins(hosting) if hosting.device_plugins else None
        self.reconciler: Reconciler | None = None
        self.plugin_gpus: PluginGpusWatch | None = None
        if hosting.pod_resources.exists():
            self._ask_kubelet(hosting)
        self._watch_use(hosting.proc)
        broken: Counter[str] = Counter()
        collectors: list[Collector] = [
            DeliveryMetrics(self.delivery, self.evictions, self.plugin, self.closed),
            DeviceMetrics(self.devices),
            UsageMetrics(self._node, self.usage, self.guard, config.usage.labels),
            KubeletMetrics(self.accounting, self.device_plugins, self.reconciler, self.plugin_gpus),
            PartMetrics(broken),
        ]
        pages = AgentPages(collectors, self._checks(), address=hosting.address, port=hosting.port)
        early: dict[str, Runnable] = {"pages": pages, "events": self.events}
        turn = hosting.handed.lock.taken if hosting.handed is not None else None
        self.agent = NodeAgent(
            self.devices, self.pods, early, self._parts(), broken=broken, turn=turn
        )

    def _isolate(self) -> None:
        settings = self._settings
        mps = options_here(multi_user=settings.mps_multi_user)
        self.mps = MpsDaemon(mps) if settings.mps else None
        options = IsolationOptions(settings.isolation, settings.hook_library)
        self.isolation = NodeIsolation(options, self.devices, self.mps)

    def _deliver(self, hosting: AgentHosting) -> None:
        self.evictions = Evictions(self._client, self.pods, self.events)
        folders = CDI_DIRS[0], hosting.cdi_folder
        self._cdi_specs = CdiSpecs(folders, ignored=FILE_PREFIX, heeded=False)
        self.delivery = Delivery(
            self.pods,
            self.devices,
            Granter(self.devices, self.isolation, self._cdi_specs),
            DeliveryOptions(exempt=self._exempt()),
            with_processes=lambda uids: pods_with_processes(hosting.proc, uids),
            on_refused=self._refused,
            on_without=self._without,
            on_stranger=self._stranger,
            cdi_device=self._cdi_device,
        )
        self._cdi_files = CdiFiles(hosting.cdi_folder)
        mark = hosting.handed.mark if hosting.handed is not None else ""
        self.plugin = NriPlugin(hosting.nri_socket, self.delivery, PluginOptions(mark=mark))
        self.plugin.listeners.append(self._heed_runtime)
        self.closed = FailClosed(self.plugin, lambda: _try_closed(hosting.cri_socket))
        self.configuring = self._configure(hosting)
        self.absence = RuntimeAbsence(self.plugin)
        self.discovery = Discovery(
            self._client,
            self._node,
            self.devices,
            self._offer,
            given=lambda: self.plugin_gpus.given if self.plugin_gpus is not None else None,
        )
        self.heartbeat = Heartbeat(
            self._client, self._node, self._client.endpoint.namespace, self._delivers
        )
        if self.mps is not None:
            self.mps.listeners.append(self.discovery.nudge)
        if self.configuring is not None:
            self.configuring.listeners.append(self.discovery.nudge)

    def _configure(self, hosting: AgentHosting) -> ContainerdConfiguring | None:
        if hosting.configuring is None or hosting.device_plugins:
            return None
        options = ConfiguringOptions(hosting.cri_socket, hosting.configuring, proc=hosting.proc)
        return ContainerdConfiguring(self.plugin, self.closed, options)

    def _heed_runtime(self) -> None:
        """Note that a container runtime has registered: its version decides whether CDI names are
        used."""
        self._cdi_specs.heeded = takes_cdi(self.plugin.runtime)

    def _cdi_device(self, grant: ContainerGrant) -> str:
        """Write a CDI device for this grant, to be used once by a container being created; OSError
        if that fails.

        Returns its name, "" if the runtime is not known to apply CDI devices last.
        """
        if not puts_cdi_last(self.plugin.runtime):
            return ""
        name = self._cdi_files.new_name()
        self._cdi_files.write(name, grant)
        self._cdi_files.forget_all_but((name,))
        return name

    def _serve_plugins(self, hosting: AgentHosting) -> "DevicePluginPart":
        from weft.host.agent import device_plugins  # gRPC is large

        return device_plugins(
            self._client,
            self.pods,
            self.devices,
            self.accounting,
            self.isolation,
            self.evictions,
            self._refused,
            hosting,
        )

    def _ask_kubelet(self, hosting: AgentHosting) -> None:
        from weft.host.agent import plugin_gpus, reconciler

        self.reconciler = reconciler(
            self.pods, self.devices, self.accounting, self.evictions, self.events, hosting
        )
        self.plugin_gpus = plugin_gpus(
            self._client, self.pods, self.devices, self.accounting, hosting
        )
        self.plugin_gpus.listeners.append(self.discovery.nudge)

    def _delivers(self) -> bool:
        """Return True while shares reach containers."""
        if self.device_plugins is not None:
            return bool(self.device_plugins.registrations)
        return self.plugin.connected

    def _offer(self) -> AgentOffer | None:
        if self.device_plugins is None:
            if self.absence.gone:
                return None
            return offer_of(self.plugin, self.isolation, self.closed, self.configuring)
        if not self.device_plugins.registrations:
            return None
        modes = self.isolation.offered()
        return AgentOffer(weft.__version__, DEVICE_PLUGIN, modes, compares_records=True)

    def _watch_use(self, proc: Path) -> None:
        self.usage = UsageWatch(self.devices, self.pods, proc=proc)
        options = _over_share(self._settings)
        self.guard = OverShareGuard(self.events.writer.emit, _evict_by(self._client), options)
        self.usage.observers.append(self.guard.observe)

    def _parts(self) -> dict[str, Runnable]:
        parts: dict[str, Runnable] = {
            "evictions": self.evictions,
            "accounting": self.accounting,
            "heartbeat": self.heartbeat,
            "usage": self.usage,
            "over-share": self.guard,
        }
        if self.reconciler is not None:
            parts["reconciler"] = self.reconciler
        if self.plugin_gpus is not None:
            parts["plugin-gpus"] = self.plugin_gpus
        if self.device_plugins is None:
            parts |= {
                "cdi-files": self._cdi_files,
                "runtime": self.plugin,
                "delivery": self.delivery,
                "fail-closed": self.closed,
                "runtime-absence": self.absence,
                "discovery": Offering(self.closed, self.discovery, self.absence),
            }
        else:
            parts |= {
                "device-plugins": self.device_plugins,
                "discovery": Offering(self.device_plugins, self.discovery),
            }
        if self.configuring is not None:
            parts["runtime-configuration"] = self.configuring
        if self._settings.hook_library:
            pods = self.pods
            known = lambda: pods.pods.keys() if pods.synced.is_set() else None  # noqa: E731
            parts["hook-files"] = HookCleaner(self.isolation, known)
        return parts if self.mps is None else {**parts, "mps": self.mps}

    def _checks(self) -> dict[str, Callable[[], str]]:
        checks = {"devices": lambda: "" if self.devices.version else "not read yet"}
        part = "runtime" if self.device_plugins is None else "kubelet"
        return checks | {part: self._unheard}

    def _unheard(self) -> str:
        """Return why neither runtime nor kubelet asks for shares; "" while one of them does.

        A standby agent counts as ready: the agent that it is to replace ends only once it is ready.
        """
        if self.agent.stands_by or self._delivers():
            return ""
        problem = self.plugin.problem if self.device_plugins is None else ""
        return problem or "not registered yet"

    def _exempt(self) -> tuple[str, ...]:
        """Return the namespaces whose containers may see the GPUs that their images name, including
        the agent's."""
        endpoint, configured = self._client.endpoint, self._settings.exempt_namespaces
        return (*configured, endpoint.namespace) if endpoint.inside else configured

    def _without(self, pod: PodName, why: str) -> None:
        self.evictions.evict(pod, why, bare_too=self._settings.evict_bare_pods)

    def _stranger(self, pod: PodName, why: str) -> None:
        log.warning("pod %s: %s", pod, why, extra=about(pod))
        self.events.warn(pod, STRANGER, why)
        if self._settings.strangers == "evict" and not is_static(pod.uid):
            self.evictions.evict(pod, why, bare_too=self._settings.evict_bare_pods)

    def _refused(self, pod: PodName, why: str) -> None:
        log.warning("pod %s: %s", pod, why, extra=about(pod))
        self.events.warn(pod, REFUSED, why)


async def _try_closed(socket: Path) -> ClosedTrial:
    from weft.node.cri.trial import try_closed  # gRPC is large

    return await try_closed(socket)


def _pod_rules(config: Configuration) -> PodRules:
    rules = [
        InventoryFallback(r.count, r.memory_mib, r.model, r.nodes, r.labels)
        for r in config.inventory
    ]
    factor = config.volcano_memory_factor
    return rules_of(config.gpushare_unit, rules, _promised_permille(config), factor)


def _accounting_of(config: Configuration, hosting: AgentHosting) -> AccountingSettings:
    settings, unit = config.agent, config.gpushare_unit
    units = UnitSettings(
        promised_permille=_promised_permille(config),
        gpushare_unit="GiB" if unit == "auto" else unit,
        all_spellings=settings.older_spellings,
        volcano_memory_factor=config.volcano_memory_factor,
    )
    return AccountingSettings(
        dialects=settings.dialects or None,
        own=settings.own,
        units=units,
        device_plugins=hosting.device_plugins,
        by_name=not hosting.device_plugins,
    )


def _promised_permille(config: Configuration) -> int:
    """Return how much of a card's memory may be promised to pods, in thousandths."""
    return round(1000 * max(config.limits.overcommit, config.limits.harvest))


def _over_share(settings: AgentSettings) -> OverShareOptions:
    return OverShareOptions(
        settings.over_share_mib,
        after_s=settings.over_share_seconds,
        evict=settings.evict_over_share,
    )


def _evict_by(client: ApiClient) -> Callable[[WatchedPod], Awaitable[None]]:
    async def evict(pod: WatchedPod) -> None:
        await client.evict(pod.namespace, pod.name, pod.uid)

    return evict

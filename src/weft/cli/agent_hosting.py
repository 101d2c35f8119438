"""Composes the agent of a node: which parts there are, and what each is handed.

GPUs, API server ──▶ pods, grants, events ──▶ delivery ──▶ NriPlugin ──▶ NodeAgent(parts)
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from prometheus_client.registry import Collector

from weft.cli.agent import NVML
from weft.cluster.config.form import Configuration
from weft.dialects.dialect import UnitSettings
from weft.dialects.inventory import InventoryFallback
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.config import load
from weft.model import BadInputError
from weft.node.agent.accounting import AccountingSettings
from weft.node.agent.agent import AgentPart, NodeAgent, stop_signal
from weft.node.agent.agent_metrics import DeliveryMetrics, PartMetrics
from weft.node.agent.container_grant import Granter
from weft.node.agent.delivery import Delivery, DeliveryOptions
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.discovery import Discovery
from weft.node.agent.evictions import Evictions
from weft.node.agent.node_pods import NodePods, rules_of
from weft.node.agent.offering import Offering, offer_of
from weft.node.agent.pages import AgentPages
from weft.node.agent.pod_events import REFUSED, PodEvents, PodName
from weft.node.devices.fake import FakeReader
from weft.node.devices.reader import DeviceReader
from weft.node.nri.plugin import NriPlugin

log = logging.getLogger("weft.agent")


class AgentHosting(msgspec.Struct, frozen=True):
    """Options of the command line beside the configuration."""

    node_name: str
    devices: str
    nri_socket: Path
    address: str
    port: int
    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    device_plugins: bool = False
    own: tuple[str, ...] = ()
    cleanup: bool = False
    cdi: bool | None = None
    cdi_folder: Path = Path("/var/run/cdi")
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


async def host(config: Configuration, hosting: AgentHosting) -> None:
    """Run until told to stop; `BadInputError` where something is wrong with what was given."""
    stop = stop_signal()
    reader = reader_of(hosting)
    endpoint = load(hosting.context, paths=hosting.kubeconfigs)
    options = ClientOptions(qps=50, burst=200, user_agent="weft-agent")
    async with ApiClient(endpoint, options) as client:
        await composed(config, hosting, reader, client).run(stop)


def reader_of(hosting: AgentHosting) -> DeviceReader:
    """The machine's GPUs, or those that a file plays."""
    if hosting.devices == NVML:
        raise BadInputError("--devices nvml", "is not there yet; name a file that plays GPUs")
    return FakeReader(Path(hosting.devices), hosting.node_name)


def composed(
    config: Configuration, hosting: AgentHosting, reader: DeviceReader, client: ApiClient
) -> NodeAgent:
    """The agent with its parts."""
    devices = DeviceWatch(reader)
    rules = [
        InventoryFallback(r.count, r.memory_mib, r.model, r.nodes, r.labels)
        for r in config.inventory
    ]
    most_permille = round(1000 * max(config.limits.overcommit, config.limits.harvest))
    pods = NodePods(client, hosting.node_name, rules_of(config.gpushare_unit, rules, most_permille))
    events = PodEvents(client, hosting.node_name)
    evictions = Evictions(client, pods, events)
    delivery = Delivery(
        pods,
        devices,
        Granter(devices),
        DeliveryOptions(exempt=config.agent.exempt_namespaces),
        on_refused=_refused(events),
        on_without=evictions.evict,
    )
    plugin = NriPlugin(hosting.nri_socket, delivery)
    discovery = Discovery(client, hosting.node_name, devices, lambda: offer_of(plugin))
    broken: Counter[str] = Counter()
    collectors: list[Collector] = [
        DeliveryMetrics(delivery, evictions, plugin),
        PartMetrics(broken),
    ]
    checks = {
        "devices": lambda: "" if devices.version else "not read yet",
        "runtime": lambda: "" if plugin.connected else plugin.problem or "not registered yet",
    }
    pages = AgentPages(collectors, checks, address=hosting.address, port=hosting.port)
    parts: dict[str, AgentPart] = {
        "runtime": plugin,
        "evictions": evictions,
        "discovery": Offering(plugin, discovery),
    }
    return NodeAgent(devices, pods, {"pages": pages, "events": events}, parts, broken=broken)


def _refused(events: PodEvents) -> Callable[[PodName, str], None]:
    def tell(pod: PodName, why: str) -> None:
        log.warning("pod %s: %s", pod, why)
        events.warn(pod, REFUSED, why)

    return tell


def accounting_settings(
    config: Configuration, own: Sequence[str], device_plugins: bool
) -> AccountingSettings:
    """What is advertised, as the configuration says."""
    units = UnitSettings(
        promised_permille=round(1000 * max(config.limits.overcommit, config.limits.harvest)),
        gpushare_unit="MiB" if config.gpushare_unit == "MiB" else "GiB",
        all_spellings=config.agent.older_spellings,
    )
    return AccountingSettings(
        dialects=config.agent.dialects,
        own=tuple(own),
        units=units,
        device_plugins=device_plugins,
        by_name=not device_plugins,
    )

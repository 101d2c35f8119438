"""The agent's own metrics: containers, evictions, and the connection to the runtime."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.cluster.http.metric_families import counter, gauge
from weft.node.agent.accounting import Accounting
from weft.node.agent.delivery import Delivery
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.evictions import Evictions
from weft.node.agent.fail_closed import FailClosed
from weft.node.agent.plugin_gpus import PluginGpusWatch
from weft.node.agent.reconciler import Reconciler
from weft.node.nri.plugin import NriPlugin


class DeliveryMetrics(Collector):
    """Metrics of containers by outcome, of evictions, and of the connection to the runtime."""

    def __init__(
        self, delivery: Delivery, evictions: Evictions, plugin: NriPlugin, closed: FailClosed
    ) -> None:
        self._delivery, self._evictions = delivery, evictions
        self._plugin, self._closed = plugin, closed

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        text = "Containers that the container runtime asked about, by outcome."
        yield counter("weft_agent_containers", text, self._delivery.counts, "outcome")
        text = "Pods that hold a share of a GPU of this node."
        yield gauge("weft_agent_pods_with_share", text, len(self._delivery.held))
        text = (
            "Containers that saw GPUs not assigned to them, because they started without an agent."
        )
        yield counter("weft_agent_strangers", text, self._delivery.strangers)
        text = "Evictions of pods that ran without their share, by outcome."
        yield counter("weft_agent_evictions", text, self._evictions.counts, "outcome")
        text = (
            "Whether, as tested, no container that requires the agent can start while the agent is "
            "away."
        )
        yield gauge("weft_agent_fail_closed", text, self._closed.holds)
        yield from _of_runtime(self._plugin)


class PartMetrics(Collector):
    """Counts the failures and restarts of each part of the agent."""

    def __init__(self, broken: Mapping[str, int]) -> None:
        self._broken = broken

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        text = "Restarts of parts of the agent that had failed, by part."
        yield counter("weft_agent_part_restarts", text, self._broken, "part")


class DeviceMetrics(Collector):
    """Shows whether the machine's GPUs can be read, which needs a driver."""

    def __init__(self, watch: DeviceWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        watch = self._watch
        text = "Whether the machine's GPUs could be read at the last attempt."
        yield gauge("weft_agent_gpus_readable", text, bool(watch.version) and not watch.problem)
        text = "Readings of the machine's GPUs that failed, for example without NVIDIA's driver."
        yield counter("weft_agent_gpu_reading_failures", text, watch.failures)


def _of_runtime(plugin: NriPlugin) -> Iterator[Metric]:
    text = "Whether the container runtime asks the agent about its containers."
    yield gauge("weft_agent_runtime_connected", text, plugin.connected)
    text = "Registrations of the agent with the container runtime."
    yield counter("weft_agent_runtime_registrations", text, plugin.registrations)
    text = "Times that the connection to the container runtime was lost."
    yield counter("weft_agent_runtime_losses", text, plugin.losses)
    text = "Seconds to answer the container runtime about one container."
    family = HistogramMetricFamily("weft_agent_create_container_seconds", text)
    family.add_metric((), plugin.times.buckets(), plugin.times.sum_s)
    yield family


# --- metrics of the kubelet -----------------------------------------------------------------------
# Metrics of what the agent reports to the kubelet, and of its answers to the kubelet.


class PluginCounts(Protocol):
    """Counts of the device plugins' work; `DevicePluginPart` implements it."""

    @property
    def registrations(self) -> int:
        """Registrations that the kubelet accepted."""
        ...

    @property
    def allocations(self) -> Mapping[str, int]:
        """Numbers of answers to Allocate, by kind (named, guessed, open)."""
        ...

    @property
    def starts(self) -> Mapping[str, int]:
        """Numbers of answers to PreStartContainer, by outcome (started, refused, wrong)."""
        ...


class KubeletMetrics(Collector):
    """Counts writes of the node's resources, and answers of device plugins if they are served."""

    def __init__(
        self,
        accounting: Accounting,
        plugins: PluginCounts | None = None,
        reconciler: Reconciler | None = None,
        plugin_gpus: PluginGpusWatch | None = None,
    ) -> None:
        self._accounting, self._plugins = accounting, plugins
        self._reconciler, self._plugin_gpus = reconciler, plugin_gpus

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics."""
        text = "Writes of the node's GPU resources, by reason."
        yield counter("weft_agent_resource_writes", text, self._accounting.counts, "why")
        if self._reconciler is not None:
            text = (
                "Differences between the devices that the kubelet counts and pods' shares, by kind."
            )
            yield counter("weft_agent_differences", text, self._reconciler.counts, "kind")
        if self._plugin_gpus is not None:
            text = "Pods whose devices from NVIDIA's plugin are not reported, by reason."
            counts = self._plugin_gpus.counts
            yield counter("weft_agent_plugin_gpus_untold", text, counts, "why")
        if self._plugins is None:
            return
        text = "Registrations of device plugins that the kubelet accepted."
        yield counter("weft_agent_plugin_registrations", text, self._plugins.registrations)
        text = "Answers to Allocate, by how certainly the devices' pod was known."
        yield counter("weft_agent_allocations", text, self._plugins.allocations, "answer")
        text = "Answers to PreStartContainer."
        yield counter("weft_agent_container_starts", text, self._plugins.starts, "outcome")

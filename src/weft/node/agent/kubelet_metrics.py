"""Metrics of what the agent reports to the kubelet, and of its answers to the kubelet."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from weft.cluster.http.metric_families import counter
from weft.node.agent.accounting import Accounting
from weft.node.agent.plugin_gpus import PluginGpusWatch
from weft.node.agent.reconciler import Reconciler


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
        text = "Device plugins registered with the kubelet."
        yield counter("weft_agent_plugin_registrations", text, self._plugins.registrations)
        text = "Answers to Allocate, by how certain the pod of the devices was."
        yield counter("weft_agent_allocations", text, self._plugins.allocations, "answer")
        text = "Answers to PreStartContainer."
        yield counter("weft_agent_container_starts", text, self._plugins.starts, "outcome")

"""Exports the use of GPUs, by container, to Prometheus with the names and labels of dcgm-exporter.

So dashboards for that exporter work with the agent. A GPU's own values have no pod labels; a
container's use is a separate series with namespace, pod and container. That is more precise than
dcgm-exporter, which repeats a GPU's value for each pod on it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from weft.cluster.http.metric_families import counter, gauge
from weft.model.metric import Metric as GpuMetric
from weft.model.metric_aliases import ALIASES, Alias
from weft.model.usage_groups import label_group, workload_group
from weft.node.agent.over_share import OverShareGuard
from weft.node.agent.usage import ContainerUse, NodeUse, UsageWatch
from weft.node.devices.reader import GpuDevice

_NAMES: dict[str, tuple[str, Alias]] = {}
for _name, _alias in ALIASES.items():
    if _name.startswith("DCGM_FI_") and _alias.metric.value not in _NAMES:
        _NAMES[_alias.metric.value] = _name, _alias
_USED, _UTIL = (_NAMES[m.value] for m in (GpuMetric.MEMORY_USED_MIB, GpuMetric.GPU_UTIL_RATIO))
_LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "namespace",
    "pod",
    "container",
)
_TEXT = "{} of a GPU; in a series with pod labels, of that container's use of the GPU."


class UsageMetrics:
    """A prometheus-client collector for one node's GPUs. It also reports each pod's values of the
    pod labels named in `labels`, so that use can be summed up by them."""

    def __init__(
        self,
        node: str,
        watch: UsageWatch,
        guard: OverShareGuard,
        labels: Sequence[str] = (),
    ) -> None:
        self._node, self._watch, self._guard = node, watch, guard
        self._by = tuple(labels)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the last reading; without those of GPUs if it is too old."""
        node_use = self._watch.latest
        if node_use is not None:
            yield from self._gpus(node_use)
            yield from self._users(node_use)
            yield from self._groups(node_use)
        watch, guard = self._watch, self._guard
        readings = {"read": watch.readings, "failed": watch.failures}
        text = "Readings of the GPUs' counters and processes."
        yield counter("weft_agent_usage_readings", text, readings, "result")
        text = "Seconds that the last reading of the GPUs took."
        yield gauge("weft_agent_usage_reading_seconds", text, watch.took_s)
        over = {
            (str(o.gpu), o.pod.namespace, o.pod.name): float(o.used_mib - o.share_mib)
            for o in guard.over
        }
        text = "MiB of a GPU's memory that a pod holds beyond its share."
        yield gauge("weft_agent_over_share_mib", text, over, "gpu", "namespace", "pod")
        text = "Times that a pod began to hold more of a GPU than its share."
        yield counter("weft_agent_over_share_reports", text, guard.reports)
        text = "Attempts to evict pods that exceed their share, by outcome."
        yield counter("weft_agent_over_share_evictions", text, dict(guard.evictions), "outcome")

    def _gpus(self, node_use: NodeUse) -> Iterator[Metric]:
        """Yield one metric family for each DCGM field that some GPU has."""
        labels = {device.gpu.index: self._labels(device, node_use) for device in node_use.devices}
        families: dict[str, GaugeMetricFamily] = {}

        def add(name: str, cells: tuple[str, ...], value: float) -> None:
            if name not in families:
                families[name] = GaugeMetricFamily(name, _TEXT.format(name), labels=_LABELS)
            families[name].add_metric(cells, value)

        for index, values in node_use.use.items():
            for metric, value in values.items():
                if index in labels and metric in _NAMES:
                    name, alias = _NAMES[metric]
                    add(name, (*labels[index], "", "", ""), value / (alias.scale or 1.0))
        for use in _by_name(node_use.containers):
            if use.gpu in labels:
                assert use.pod is not None
                cells = (*labels[use.gpu], use.pod.namespace, use.pod.name, use.container)
                add(_USED[0], cells, use.memory_mib)
                if use.sm_ratio is not None:
                    add(_UTIL[0], cells, use.sm_ratio / _UTIL[1].scale)
        yield from families.values()

    def _users(self, node_use: NodeUse) -> Iterator[Metric]:
        """Yield processes by kind of owner, and the memory held by processes outside pods."""
        of: Counter[tuple[str, str]] = Counter()
        for use in node_use.containers:
            of[str(use.gpu), _kind(use)] += use.processes
        for stray in node_use.strays:
            of[str(stray.gpu), "no pod"] += stray.processes
        text = "Processes on a GPU, by owner: a pod with a share, without, unknown, or no pod."
        yield gauge("weft_agent_gpu_processes", text, of, "gpu", "of")
        strays = {(str(s.gpu), s.command): float(s.memory_mib) for s in node_use.strays}
        text = "MiB of a GPU's memory that processes outside pods hold, by command."
        yield gauge("weft_agent_stray_memory_mib", text, strays, "gpu", "command")

    def _groups(self, node_use: NodeUse) -> Iterator[Metric]:
        """Yield the workload, the team's queue and the labels of the pods that use GPUs, to be
        joined with their use."""
        workloads: dict[tuple[str, str, str], float] = {}
        queues: dict[tuple[str, str, str], float] = {}
        labels: dict[tuple[str, str, str, str], float] = {}
        for pod in (use.pod for use in node_use.containers):
            if pod is None:
                continue
            name = pod.namespace, pod.name
            workloads[*name, workload_group(pod.namespace, pod.workload)] = 1.0
            queues[*name, pod.queue or pod.namespace] = 1.0
            for label in self._by:
                labels[*name, label, label_group(pod.labels, label)] = 1.0
        text = "The workload of a pod that uses a GPU; the value is always 1."
        yield gauge("weft_agent_pod_workload", text, workloads, "namespace", "pod", "workload")
        text = "The team's queue of a pod that uses a GPU; the value is always 1."
        yield gauge("weft_agent_pod_queue", text, queues, "namespace", "pod", "queue")
        text = "A label in usage.labels and its value, for a pod that uses a GPU; always 1."
        names = ("namespace", "pod", "label", "value")
        yield gauge("weft_agent_pod_label", text, labels, *names)

    def _labels(self, device: GpuDevice, node_use: NodeUse) -> tuple[str, ...]:
        """Return the values of the first eight of `_LABELS`; a MIG instance has its card's number,
        and its own UUID."""
        gpu, mig = device.gpu, device.mig
        number = gpu.index if gpu.parent is None else gpu.parent
        return (
            str(number),
            gpu.uuid,
            device.pci_bus_id,
            f"nvidia{device.minor}",
            _model_of(device, {each.gpu.index: each for each in node_use.devices}),
            self._node,
            mig.profile if mig else "",
            str(mig.gpu_instance) if mig else "",
        )


def _model_of(device: GpuDevice, by_index: Mapping[int, GpuDevice]) -> str:
    parent = by_index.get(device.gpu.parent) if device.gpu.parent is not None else None
    return (parent or device).gpu.model


def _by_name(containers: tuple[ContainerUse, ...]) -> Iterator[ContainerUse]:
    """Sum the uses with equal GPU, pod and container name: during a restart two containers briefly
    share a name. Unknown pods are left out: only their processes are counted (`_users`)."""
    groups: dict[tuple[int, str, str], ContainerUse] = {}
    for use in containers:
        if use.pod is None:
            continue
        key = (use.gpu, use.pod.uid, use.container)
        first = groups.get(key)
        groups[key] = use if first is None else _together(first, use)
    yield from groups.values()


def _together(one: ContainerUse, other: ContainerUse) -> ContainerUse:
    ratios = [use.sm_ratio for use in (one, other) if use.sm_ratio is not None]
    return one._replace(
        memory_mib=one.memory_mib + other.memory_mib,
        sm_ratio=min(1.0, sum(ratios)) if ratios else None,
        processes=one.processes + other.processes,
    )


def _kind(use: ContainerUse) -> str:
    if use.pod is None:
        return "an unknown pod"
    return "a share" if use.pod.record is not None else "no share"

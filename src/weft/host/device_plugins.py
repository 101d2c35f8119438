"""Composes the device plugins of nodes without NRI. Imported only on such nodes, because gRPC is
large."""

from collections.abc import Callable, Sequence

from weft.host.agent_process import AgentHosting
from weft.kube.client import ApiClient
from weft.model.delivery import DeliveryRecord
from weft.node.agent.accounting import Accounting
from weft.node.agent.container_grant import Granter, why_refused
from weft.node.agent.device_nodes import CdiSpecs
from weft.node.agent.device_watch import DeviceWatch
from weft.node.agent.evictions import Evictions
from weft.node.agent.isolation import NodeIsolation
from weft.node.agent.node_pods import NodePod, NodePods
from weft.node.agent.plugin_gpus import PluginGpusWatch
from weft.node.agent.pod_events import PodEvents, PodName
from weft.node.agent.reconciler import Reconciler
from weft.node.device_plugin.attribution import AttributionWorld
from weft.node.device_plugin.kubelet_api import PodResourcesClient
from weft.node.device_plugin.kubelet_record import KubeletRecord
from weft.node.device_plugin.plugin_part import DevicePluginPart, KubeletOptions


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

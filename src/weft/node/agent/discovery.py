"""Writes to the Node object which GPUs there are and what the agent offers.

annotations   weft.dev/inventory      every GPU and instance, in service or not
              weft.dev/agent          version, delivery, isolation modes
              weft.dev/gpu-links      how the GPUs are connected, if that can be read
              weft.dev/plugin-gpus    which GPUs NVIDIA's device plugin gave to which pods
              ai.centaurus.io/…       Alnair's: count, UUIDs, units in both spellings
labels        weft.dev/gpu-model.…    the number of GPUs of each model: for node selectors, and to
                                      see which names `genius/gpu-model` accepts

The Node object is compared periodically, and corrected if it differs, so that changes by other
clients do not last. All this stays when the agent stops, as it usually returns; `cleanup` removes
it.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from weft.dialects import alnair
from weft.dialects.node_links import links_text
from weft.dialects.weft import inventory_text, reported_gpus
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu
from weft.model.agent_offer import AgentOffer, encode_offer
from weft.model.annotations import AGENT, GPU_LINKS, INVENTORY, NODE_MODELS, PLUGIN_GPUS
from weft.model.gpu_links import GpuLinks
from weft.model.log_fields import about
from weft.model.plugin_gpus import NONE_GIVEN, PluginGpus, encode_plugin_gpus
from weft.node.agent.device_watch import DeviceWatch

log = logging.getLogger("weft.agent")

LOOK_AGAIN_S = 60.0
RETRY_S = 1.0
MOST_RETRY_S = 60.0
ANNOTATIONS = (
    INVENTORY,
    AGENT,
    GPU_LINKS,
    PLUGIN_GPUS,
    alnair.NODE_COUNT,
    alnair.NODE_UUIDS,
    *alnair.NODE_UNITS,
)

_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 63
_FAILED = (ApiError, LostError, NotSentError, msgspec.DecodeError)


class NodeMarks(msgspec.Struct, frozen=True):
    """The annotations and labels that the agent writes on its node."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]


def marks_of(
    gpus: Sequence[Gpu],
    offer: AgentOffer | None,
    links: GpuLinks | None = None,
    given: PluginGpus | None = None,
) -> NodeMarks:
    """Return the node's annotations and labels for these GPUs. `given`: the GPUs that NVIDIA's
    device plugin gave to pods."""
    annotations = {INVENTORY: inventory_text(gpus), **alnair.node_annotations(gpus)}
    if offer is not None:
        annotations[AGENT] = encode_offer(offer)
    if links is not None:
        annotations[GPU_LINKS] = links_text(links)
    if given is not None and given != NONE_GIVEN:
        annotations[PLUGIN_GPUS] = encode_plugin_gpus(given)
    parents = {gpu.parent for gpu in gpus}
    models = Counter(gpu.model for gpu in gpus if gpu.model and gpu.index not in parents)
    labels = {_label(model): str(count) for model, count in models.items()}
    return NodeMarks(annotations, {name: count for name, count in labels.items() if name})


def _label(model: str) -> str:
    """Return the label of this model; "" if no character of its name is allowed in a label."""
    room = _LONGEST - len(NODE_MODELS.partition("/")[2])
    name = _NOT_IN_LABELS.sub("-", model)[:room].strip("-._")
    return f"{NODE_MODELS}{name}" if name else ""


class Discovery:
    """Keeps the node's annotations and labels up to date. Run `run()` as a task.

    `offer` returns what the agent offers now (None: nothing), `given` which GPUs NVIDIA's plugin
    gave to pods (None: not known, so that annotation stays as it is); call `nudge` when either
    changes. `writes` and `failures` count writes and failed attempts.
    """

    def __init__(
        self,
        client: ApiClient,
        node: str,
        watch: DeviceWatch,
        offer: Callable[[], AgentOffer | None],
        *,
        given: Callable[[], PluginGpus | None] = lambda: None,
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        self.writes = self.failures = 0
        self._client, self._node, self._watch, self._offer = client, node, watch, offer
        self._given, self._look_again_s = given, look_again_s
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """Make `run` compare with the Node object soon."""
        self._nudged.set()

    async def run(self) -> None:
        """Write whenever something changed, until cancelled."""
        await self._watch.changed(0)
        retry_s = RETRY_S
        while True:
            version = self._watch.version
            self._nudged.clear()
            try:
                await self.write()
                wait_s, retry_s = self._look_again_s, RETRY_S
            except _FAILED as error:
                self.failures += 1
                text = "node %s: writing its GPUs failed: %s"
                log.warning(text, self._node, error, extra=about(node=self._node))
                wait_s, retry_s = retry_s, min(2 * retry_s, MOST_RETRY_S)
            await self._something(version, wait_s)

    async def write(self) -> bool:
        """Write the differences; return True if there were any."""
        node = await self._client.get(NODES, "", self._node)
        given = self._given()
        wanted = marks_of(self._gpus(node), self._offer(), self._watch.links, given)
        # Links that could not be read here may have been written by an administrator.
        keep = (GPU_LINKS, PLUGIN_GPUS) if given is None else (GPU_LINKS,)
        return await self._put(node, wanted, keep)

    def _gpus(self, node: KubeNode) -> list[Gpu]:
        """Return the GPUs as read; if none was ever read, those on the Node object, as out of
        service."""
        if self._watch.devices or not self._watch.problem:
            return [device.gpu for device in self._watch.devices]
        try:
            source = reported_gpus(node)
        except BadInputError:
            source = None
        return [replace(gpu, in_service=False) for gpu in source.exact] if source else []

    async def _put(self, node: KubeNode, wanted: NodeMarks, keep: Sequence[str] = ()) -> bool:
        annotations = _changes(
            node.metadata.annotations or {},
            wanted.annotations,
            lambda name: name in ANNOTATIONS and name not in keep,
        )
        labels = _changes(node.metadata.labels or {}, wanted.labels, is_model)
        changes = {"annotations": annotations, "labels": labels}
        metadata = {field: change for field, change in changes.items() if change}
        if not metadata:
            return False
        body = msgspec.json.encode({"metadata": metadata})
        path = NODES.of("", self._node, "status")  # the status subresource cannot cordon or taint
        await self._client.call("PATCH", path, body, content_type=MERGE_PATCH)
        self.writes += 1
        return True

    async def _something(self, version: int, most_s: float) -> None:
        """Wait for a change of the devices, a nudge, or at most `most_s` seconds."""
        waits = [
            asyncio.ensure_future(self._watch.changed(version)),
            asyncio.ensure_future(self._nudged.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _changes(
    there: Mapping[str, str], wanted: Mapping[str, str], ours: Callable[[str], bool]
) -> dict[str, str | None]:
    """Return the changes that turn `there` into `wanted`; None removes a key, which must be one of
    `ours`."""
    changes: dict[str, str | None] = {
        name: value for name, value in wanted.items() if there.get(name) != value
    }
    return changes | dict.fromkeys(name for name in there if ours(name) and name not in wanted)


def is_model(label: str) -> bool:
    """Return True for a label with the number of GPUs of a model."""
    return label.startswith(NODE_MODELS)

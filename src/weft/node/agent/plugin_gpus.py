"""Asks the kubelet which GPUs NVIDIA's device plugin gave to pods, to report them on the Node
object.

The kubelet lists pods by name, without UIDs. So a pod is reported only if its status showed that it
was admitted before the kubelet was asked, and the answer has only one pod of its name: so devices
of an earlier pod with that name are never reported for it. A report stays true while the pod
exists, so an earlier agent's report stays until the kubelet has answered.

The number of devices for each card is counted from all that the plugin offers. While the plugin
offers no device of a card (it restarts, or the card is unhealthy), the last known number is used.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from weft.dialects.dialect import DialectSettings
from weft.dialects.nvidia_plugin import asks_plugin, card_of, is_device, read_plugin_gpus
from weft.kube.client import ApiClient
from weft.kube.codec import NODES
from weft.kube.errors import ApiError, LostError, NotSentError
from weft.model import BadInputError, WeftError
from weft.model.log_fields import about
from weft.model.plugin_gpus import MOST_PODS, NONE_GIVEN, GivenGpu, PluginGpus
from weft.node.agent.node_pods import NodePod
from weft.node.agent.pod_events import PodName
from weft.node.agent.reconciler import ListedContainer

log = logging.getLogger("weft.agent")

UNKNOWN_GPU, SAME_NAME, NO_NUMBER = "unknown-gpu", "same-name", "no-number"
KINDS = (UNKNOWN_GPU, SAME_NAME, NO_NUMBER)
PERIOD_S = 30.0
_PAUSE_S = 1.0
_FAILED = (ApiError, LostError, NotSentError, msgspec.DecodeError)
_SETTINGS = DialectSettings(gpushare_unit="node")
Name = tuple[str, str]


class OfferedDevices(Protocol):
    """Source of the kubelet's pod resources; `PodResourcesClient` implements it."""

    async def containers(self) -> Sequence[ListedContainer]:
        """Return all containers that the kubelet manages, without init containers that end."""
        ...

    async def offered(self) -> Mapping[str, Sequence[str]]:
        """Return the IDs of all healthy devices by resource, allocated or not."""
        ...


class PodsOfNode(Protocol):
    """Source of the node's pods; `NodePods` implements it."""

    node_name: str
    synced: asyncio.Event
    listeners: list[Callable[[str], None]]

    @property
    def pods(self) -> Mapping[str, NodePod]:
        """The pods by UID."""
        ...


class UntoldPod(NamedTuple):
    """A pod whose devices are not reported, and why."""

    kind: str
    uid: str
    text: str


class PluginAnswer(NamedTuple):
    """The kubelet's answer about the pods that have devices of NVIDIA's plugin."""

    given: PluginGpus
    untold: tuple[UntoldPod, ...] = ()


def admitted(pods: Iterable[NodePod]) -> dict[str, Name]:
    """Return namespace and name, by UID, of the pods that have devices of NVIDIA's plugin."""
    return {
        pod.uid: (pod.manifest.metadata.namespace, pod.manifest.metadata.name)
        for pod in pods
        if pod.asks == "foreign"
        and not pod.ended
        and pod.record is None
        and pod.manifest.status.start_time
        and asks_plugin(pod.manifest, _SETTINGS)
    }


def replicas_of(offered: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many devices the plugin offers of each card, by UUID."""
    ids = {each for name, each in _devices(offered)}
    return dict(Counter(map(card_of, ids)))


def read_answer(
    listed: Iterable[ListedContainer],
    names: Mapping[str, Name],
    replicas: Mapping[str, int],
    uuids: Iterable[str],
) -> PluginAnswer:
    """Return the GPUs of these pods (`names` by UID) from the devices of the listed containers.
    `replicas`: devices of each card; `uuids`: the node's GPUs."""
    held: dict[Name, list[set[str]]] = {}
    seen: set[tuple[Name, str]] = set()
    twice: set[Name] = set()
    for container in listed:
        name = container.namespace, container.pod
        if (name, container.container) in seen:
            twice.add(name)  # an earlier pod of that name still exists
        seen.add((name, container.container))
        held.setdefault(name, []).append({each for _, each in _devices(container.devices)})
    cards = sorted({uuid for uuid in uuids if uuid})
    places = {uuid: place for place, uuid in enumerate(cards)}
    pods: dict[str, tuple[GivenGpu, ...]] = {}
    untold: list[UntoldPod] = []
    for uid, name in sorted(names.items()):
        if name in twice:
            text = f"the kubelet lists two pods named {'/'.join(name)}"
            untold.append(UntoldPod(SAME_NAME, uid, text))
            continue
        counts = Counter(map(card_of, set[str]().union(*held.get(name, ()))))
        problem = _problem(uid, counts, places, replicas)
        if problem is not None:
            untold.append(problem)
        elif counts:
            given = (GivenGpu(places[c], counts[c], replicas[c]) for c in sorted(counts))
            pods[uid] = tuple(given)
    few = dict(sorted(pods.items())[:MOST_PODS])
    return PluginAnswer(PluginGpus(tuple(cards), few) if few else NONE_GIVEN, tuple(untold))


def _problem(
    uid: str, counts: Mapping[str, int], places: Mapping[str, int], replicas: Mapping[str, int]
) -> UntoldPod | None:
    for card, devices in sorted(counts.items()):
        if card not in places:
            return UntoldPod(UNKNOWN_GPU, uid, f"has {card[:80]}, which is not a GPU of this node")
        if devices > replicas.get(card, 0):
            text = f"has {devices} devices of {card}, but only {replicas.get(card, 0)} are offered"
            return UntoldPod(NO_NUMBER, uid, text)
    return None


def _devices(ids: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, each) for name, several in ids.items() if is_device(name) for each in several]


class PluginGpusWatch:
    """Watches which GPUs NVIDIA's device plugin gave to pods: `given`, None until the kubelet has
    answered. `listeners` are called when `given` changes. `counts` are pods whose GPUs could not be
    found out, by reason; `failures` are failed attempts to ask."""

    def __init__(
        self,
        client: ApiClient,
        pods: PodsOfNode,
        kubelet: OfferedDevices,
        own: Callable[[], frozenset[str]],
        uuids: Callable[[], Sequence[str]],
        period_s: float = PERIOD_S,
    ) -> None:
        self.given: PluginGpus | None = None
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.failures = 0
        self.listeners: list[Callable[[], None]] = []
        self._client, self._pods, self._kubelet = client, pods, kubelet
        self._own, self._uuids, self._period_s = own, uuids, period_s
        self._replicas: dict[str, int] = {}
        self._untold: frozenset[UntoldPod] = frozenset()
        self._failing = ""
        self._wake = asyncio.Event()
        pods.listeners.append(lambda _: self._wake.set())

    async def run(self) -> None:
        """Ask the kubelet after each change of the node's pods, and periodically, until
        cancelled."""
        await self._pods.synced.wait()
        remembered = False
        while True:
            self._wake.clear()
            try:
                if not remembered:
                    await self._remember()
                    remembered = True
                await self.look()
                self._failing = ""
            except (*_FAILED, WeftError) as error:
                self.failures += 1
                if not self._failing:
                    log.warning("asking what NVIDIA's device plugin gave to pods failed: %s", error)
                self._failing = str(error)
            await asyncio.sleep(_PAUSE_S)
            try:
                async with asyncio.timeout(self._period_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Ask the kubelet once, if any pod has devices of NVIDIA's plugin."""
        names, own = admitted(self._pods.pods.values()), self._own()
        answer = PluginAnswer(NONE_GIVEN)
        if names:
            listed = await self._kubelet.containers()
            theirs = [each._replace(devices=_without(each.devices, own)) for each in listed]
            self._replicas |= replicas_of(_without(await self._kubelet.offered(), own))
            answer = read_answer(theirs, names, self._replicas, self._uuids())
        self._report(frozenset(answer.untold), names)
        if answer.given != self.given:
            self.given = answer.given
            for listen in self.listeners:
                listen()

    async def _remember(self) -> None:
        """Read the number of devices of each card that an earlier agent wrote on the Node
        object."""
        node = await self._client.get(NODES, "", self._pods.node_name)
        try:
            before = read_plugin_gpus(node)
        except BadInputError:
            return
        for gpu in (gpu for gpus in before.pods.values() for gpu in gpus):
            self._replicas[before.cards[gpu.card]] = gpu.replicas

    def _report(self, untold: frozenset[UntoldPod], names: Mapping[str, Name]) -> None:
        for each in sorted(untold - self._untold):
            self.counts[each.kind] += 1
            text = "pod %s: %s: its GPUs from NVIDIA's device plugin are unknown"
            pod = PodName(*names[each.uid], each.uid)
            log.warning(text, pod, each.text, extra=about(pod))
        self._untold = untold


def _without(ids: Mapping[str, Sequence[str]], own: frozenset[str]) -> dict[str, Sequence[str]]:
    return {name: several for name, several in ids.items() if name not in own}

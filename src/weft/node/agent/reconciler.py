"""Compares the devices that the kubelet reports for containers with their pods' delivery records.

no record         a container holds devices of Weft's, but no record assigns a share
other amount      a container holds more or fewer devices of Weft's than it requests
uncounted         a container has a share but holds no devices: the kubelet counts too little
another's GPU     another plugin gave a container a GPU that is not in its share

Each difference causes an event, a log line and a count. Only a pod with another's GPU is evicted,
because it runs on a GPU that may be assigned to other pods.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from weft.dialects.resources import amount, slots
from weft.model import BadInputError, WeftError
from weft.model.log_fields import about
from weft.node.agent.node_pods import NodePod
from weft.node.agent.pod_events import PodName

log = logging.getLogger("weft.agent")

NO_RECORD, OTHER_AMOUNT = "no-record", "other-amount"
UNCOUNTED, ANOTHERS_GPU = "uncounted", "anothers-gpu"
KINDS = (NO_RECORD, OTHER_AMOUNT, UNCOUNTED, ANOTHERS_GPU)
DIFFERS = "GPUShareDiffers"

HeldIds = Mapping[str, Sequence[str]]
"""Device IDs by resource."""


class ListedContainer(NamedTuple):
    """A container of a pod and its devices, from the kubelet's pod resources."""

    namespace: str
    pod: str
    container: str
    devices: HeldIds


class HeldDifference(NamedTuple):
    """One difference between the devices that a container holds and its pod's delivery record."""

    kind: str
    pod: PodName
    container: str
    text: str


class ListedDevices(Protocol):
    """Source of the containers and devices that the kubelet lists."""

    async def containers(self) -> Sequence[ListedContainer]:
        """Return all containers that the kubelet manages, without init containers that end."""
        ...


class KnownNodePods(Protocol):
    """Source of the node's pods; `NodePods` implements it."""

    @property
    def pods(self) -> Mapping[str, NodePod]:
        """The pods by UID."""
        ...


def differences(
    listed: Iterable[ListedContainer],
    pods: Iterable[NodePod],
    own: frozenset[str],
    uuids: Sequence[str],
) -> list[HeldDifference]:
    """List the differences. `own` are the resources that Weft's device plugins serve, `uuids` the
    node's GPUs.

    Unknown pods are skipped: the API server has not reported them yet.
    """
    known = {
        (pod.manifest.metadata.namespace, pod.manifest.metadata.name): pod
        for pod in pods
        if not pod.ended
    }
    differing: list[HeldDifference] = []
    for held in listed:
        pod = known.get((held.namespace, held.pod))
        if pod is not None:
            differing += _of_container(held, pod, own, uuids)
    return differing


def _of_container(
    held: ListedContainer, pod: NodePod, own: frozenset[str], uuids: Sequence[str]
) -> list[HeldDifference]:
    meta = pod.manifest.metadata
    name = PodName(meta.namespace, meta.name, meta.uid)
    part = pod.record.containers.get(held.container) if pod.record is not None else None
    differing: list[HeldDifference] = []

    def differs(kind: str, text: str) -> None:
        differing.append(
            HeldDifference(kind, name, held.container, f"container {held.container} {text}")
        )

    for resource in sorted(own):
        asked, count = _asked(pod, held.container, resource), len(held.devices.get(resource, ()))
        if count and part is None:
            differs(NO_RECORD, f"holds {count} {resource}, but no record assigns a share")
        elif count and count != asked:
            differs(OTHER_AMOUNT, f"holds {count} {resource} and asks for {asked}")
        elif asked and not count and part is not None and pod.manifest.status.phase == "Running":
            differs(UNCOUNTED, f"runs with a share, but the kubelet counts none of its {resource}")
    if part is not None and part.shares:
        promised = {share.uuid for share in part.shares}
        for resource in sorted(held.devices.keys() - own):
            others = sorted(_gpus_in(held.devices[resource], uuids) - promised)
            if others and all(promised):
                differs(
                    ANOTHERS_GPU,
                    f"was given {', '.join(others)} by {resource}'s device plugin; its share is on "
                    f"{', '.join(sorted(promised))}",
                )
    return differing


def _gpus_in(ids: Sequence[str], uuids: Sequence[str]) -> set[str]:
    """Return the node's GPUs that these IDs name: plugins use the UUID, followed by a number."""
    return {uuid for uuid in uuids if uuid and any(each.startswith(uuid) for each in ids)}


def _asked(pod: NodePod, container: str, resource: str) -> int:
    try:
        return sum(
            amount(slot, resource)
            for slot in slots(pod.manifest)
            if slot.container.name == container
        )
    except BadInputError:
        return 0


class Reconciler:
    """A part of the agent. `counts` are differences by kind, each counted once; `failures` counts
    polls that the kubelet did not answer."""

    def __init__(
        self,
        pods: KnownNodePods,
        listed: ListedDevices,
        own: Callable[[], frozenset[str]],
        uuids: Callable[[], Sequence[str]],
        tell: Callable[[PodName, str, str], None],
        evict: Callable[[PodName, str], None],
        period_s: float = 30.0,
    ) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.failures = 0
        self._pods, self._listed, self._own, self._uuids = pods, listed, own, uuids
        self._tell, self._evict, self._period_s = tell, evict, period_s
        self._told: set[HeldDifference] = set()
        self._seen: set[HeldDifference] = set()
        self._failing = ""

    async def run(self) -> None:
        """Compare periodically until cancelled."""
        while True:
            try:
                await self.look()
                self._failing = ""
            except WeftError as error:
                self.failures += 1
                if not self._failing:
                    log.warning("comparing the kubelet's devices with records failed: %s", error)
                self._failing = str(error)
            await asyncio.sleep(self._period_s)

    async def look(self) -> list[HeldDifference]:
        """Compare once; report and return the differences seen twice in a row, as kubelet and API
        server are not read at the same moment."""
        listed = await self._listed.containers()
        differing = differences(listed, self._pods.pods.values(), self._own(), self._uuids())
        lasting = [each for each in differing if each in self._seen]
        self._seen = set(differing)
        self._told &= self._seen
        for each in lasting:
            if each not in self._told:
                self._told.add(each)
                self._report(each)
        return lasting

    def _report(self, difference: HeldDifference) -> None:
        self.counts[difference.kind] += 1
        log.warning("pod %s: %s", difference.pod, difference.text, extra=about(difference.pod))
        self._tell(difference.pod, DIFFERS, difference.text)
        if difference.kind == ANOTHERS_GPU:
            self._evict(difference.pod, difference.text)

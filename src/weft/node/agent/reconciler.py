"""Holds what the kubelet says of its containers' devices against what their pods were promised.

    no record         a container holds devices of ours, and nothing says which share they stand for
    other amount      it holds more or fewer of them than it asks
    uncounted         it has a share, and holds no devices for it: the kubelet counts too little
    another's GPU     another plugin gave it a GPU that is not among its share's

All is told: an event, a line in the log, a count. Only who has another's GPU is evicted, for it
runs where others were promised to be alone.
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
    """A container of a pod and its devices, as the kubelet's pod resources tell."""

    namespace: str
    pod: str
    container: str
    devices: HeldIds


class HeldDifference(NamedTuple):
    """One thing that is not as it was promised."""

    kind: str
    pod: PodName
    container: str
    text: str


class ListedDevices(Protocol):
    """Where the kubelet's word comes from."""

    async def containers(self) -> Sequence[ListedContainer]:
        """All containers that it has in hand, init containers that end left out."""
        ...


class KnownNodePods(Protocol):
    """The node's pods; `NodePods` is one."""

    @property
    def pods(self) -> Mapping[str, NodePod]:
        """By UID."""
        ...


def differences(
    listed: Iterable[ListedContainer],
    pods: Iterable[NodePod],
    own: frozenset[str],
    uuids: Sequence[str],
) -> list[HeldDifference]:
    """Lists the differences. `own` are the resources that our device plugins serve, `uuids` the
    node's GPUs.

    Pods that are not known are passed over: the API server has not told of them yet.
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
            differs(NO_RECORD, f"holds {count} {resource}, and no record says for which share")
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
                    f"was given {', '.join(others)} by {resource}'s device plugin; its share is of "
                    f"{', '.join(sorted(promised))}",
                )
    return differing


def _gpus_in(ids: Sequence[str], uuids: Sequence[str]) -> set[str]:
    """The node's GPUs that these IDs name: plugins put the UUID first, and a number behind it."""
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
    """A part of the agent. `counts` are differences by kind, each counted once; `failures` looks
    that the kubelet did not answer."""

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
        """Look every so often, until cancelled."""
        while True:
            try:
                await self.look()
                self._failing = ""
            except WeftError as error:
                self.failures += 1
                if not self._failing:
                    log.warning("what the kubelet counts is not compared: %s", error)
                self._failing = str(error)
            await asyncio.sleep(self._period_s)

    async def look(self) -> list[HeldDifference]:
        """Compare once. What is seen twice in a row is told: kubelet and API server need not be
        heard at the same moment."""
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

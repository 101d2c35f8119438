"""Counts the GPU pods that the API shows: what fgd and least-stranding take for typical.

Pods without a GPU are left out: they have no fragments to care about, and come in too many sizes.

Like all of Weft's state it is read from API objects alone, so that a new leader expects what the
old one did. Until there are enough pods to tell anything, the policy's own cold start stays.
"""

import asyncio
import heapq
import logging
from collections import Counter
from collections.abc import Iterable

from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.state.pod_reader import read_bound
from weft.core.engine import PolicyInput
from weft.core.framework.fragments import POPULAR, TYPICAL_PODS, typical_input
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import BadInputError, Shape

log = logging.getLogger("weft.cluster")

LEAST_PODS = 20
MOST_PODS = 2_000  # the newest say what comes; reading 20,000 would hold a start up for seconds
_TURN = 200  # pods read before others have their turn


class TypicalInput:
    """Tells the engine at most every `every_s`, and only where something changed.

    Counting anew makes the policy score every node anew: often enough to follow the day, seldom
    enough to cost nothing.
    """

    def __init__(self, live: EngineCluster, every_s: float = 600) -> None:
        self._live, self._every_s = live, every_s
        self._sent: object = None
        self.usual: tuple[Shape, ...] = ()
        """The commonest shapes that make up most pods of the last count; none before."""

    async def run(self) -> None:
        """Count for ever, after `every_s` for the first time."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.count()

    async def count(self) -> None:
        """Count once, and tell the engine what is new."""
        shapes: list[Shape] = []
        pods = [pod for pod in self._live.pods.pods.values() if not pod.ended]
        for number, pod in enumerate(heapq.nlargest(MOST_PODS, pods, key=_newest), 1):
            if (shape := typical_shape(pod, self._live.settings)) is not None:
                shapes.append(shape)
            if number % _TURN == 0:
                await asyncio.sleep(0)
        if len(shapes) < LEAST_PODS:
            return
        self.usual = usual_shapes(shapes)
        typical = sorted(typical_input(shapes), key=repr)
        if typical != self._sent:
            self._sent = typical
            self._live.handle(PolicyInput(TYPICAL_PODS, typical))


def usual_shapes(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """The commonest shapes, as many as make up `POPULAR` of these."""
    counts = Counter(shapes)
    usual, covered = [], 0
    for shape, count in counts.most_common():
        if covered >= POPULAR * counts.total():
            break
        usual.append(shape)
        covered += count
    return tuple(usual)


def typical_shape(pod: Pod, settings: DialectSettings) -> Shape | None:
    """The pod's shape, as far as what is typical looks at it; None if it asks for no GPU."""
    try:
        shape = read_bound(pod, settings).shape
    except BadInputError:
        return None
    if not shape.gpu_requests:
        return None
    return Shape(
        shape.gpu_requests, shape.cpu_milli, memory_mib=shape.memory_mib, devices=shape.devices
    )


def _newest(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid

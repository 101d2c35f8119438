"""Counts the pods that the API shows: what least-stranding, auto and fgd take for typical.

Like all of Weft's state it is read from API objects alone, so that a new leader expects what the
old one did. Until there are enough pods to tell anything, the policy's own cold start stays.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping

from weft.cluster.config.popularity import PopularitySettings
from weft.cluster.control.interface import ClusterView
from weft.cluster.state.pod_reader import read_bound
from weft.core.engine import PolicyInput
from weft.core.engine.decision_faults import in_words
from weft.core.framework.fragments import POPULAR, TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS, bare, weight_of, weighted_input
from weft.dialects.dialect import DialectSettings
from weft.dialects.system import timestamp_ns
from weft.kube.pods import Pod
from weft.model import BadInputError, Shape

LEARNT = PopularitySettings()
LEAST_PODS = 20
MOST_PODS = 2_000  # the newest say what comes; reading 20,000 would hold a start up for seconds
_TURN = 200  # pods read before others have their turn


class TypicalInput:
    """Tells the engine at most every `every_s`, and only where something changed; nothing of fewer
    than `least_pods`.

    Counting again makes the policy score every node again: often enough to follow the day, seldom
    enough to cost nothing. fgd is told of the GPU pods that there are: those without a GPU have no
    fragments to care about, and come in too many sizes. Who asks for `POPULAR_PODS` is told of all
    that came, ended ones and those without a GPU on GPU nodes too, older ones counting less.
    """

    def __init__(
        self,
        live: ClusterView,
        settings: PopularitySettings = LEARNT,
        every_s: float = 600,
        least_pods: int = LEAST_PODS,
    ) -> None:
        self._live, self._settings, self._every_s = live, settings, every_s
        self._least_pods = least_pods
        self._sent: dict[str, object] = {}
        self.usual: tuple[Shape, ...] = ()
        """The commonest shapes that make up most pods of the last count; none before."""

    async def run(self) -> None:
        """Count for ever, after `every_s` for the first time."""
        while True:
            await self._live.client.clock.sleep(self._every_s)
            await self.learn()

    async def learn(self) -> None:
        """Count once; what breaks off costs this count, and is reported."""
        try:
            await self.count()
        except Exception as error:
            why = in_words(error, "counting typical pods")
            self._live.faults.report(None, why, error)

    async def count(self) -> None:
        """Count once, and tell the engine what is new."""
        if self._settings.usual_pods:
            declared = {usual.shape(): usual.weight for usual in self._settings.usual_pods}
            self.usual = tuple(shape for shape in declared if shape.gpu_requests)
            await self._tell(POPULAR_PODS, declared)
            await self._tell(TYPICAL_PODS, {s: n for s, n in declared.items() if s.gpu_requests})
            return
        now: Counter[Shape] = Counter()
        came: Counter[Shape] = Counter()
        pods = heapq.nlargest(MOST_PODS, self._live.pods.pods.values(), key=_newest)
        newest_s = _created_s(pods[0]) if pods else 0.0
        counted = 0
        for number, pod in enumerate(pods, 1):
            if number % _TURN == 0:
                await asyncio.sleep(0)
            shape = _shape(pod, self._live.settings)
            if shape is None or not (shape.gpu_requests or self._is_beside_gpus(pod)):
                continue
            counted += bool(shape.gpu_requests)
            # Ages are counted from the newest pod: without a new one, nothing changes.
            came[shape] += weight_of(newest_s - _created_s(pod), self._settings.half_life_seconds)
            if shape.gpu_requests and not pod.ended:
                now[shape] += 1
        if counted >= self._least_pods:
            await self._tell(POPULAR_PODS, came)
        if now.total() >= self._least_pods:
            self.usual = usual_shapes(now.elements())
            await self._tell(TYPICAL_PODS, now)

    def _is_beside_gpus(self, pod: Pod) -> bool:
        """Return True if the pod has a node with GPUs, where its CPU is missing to them."""
        table = self._live.engine.ledger.table
        row = table.row_of.get(pod.spec.node_name or "", -1)
        return row >= 0 and bool(table.gpus[row])

    async def _tell(self, name: str, weights: Mapping[Shape, int]) -> None:
        """Hand it to the policies that ask for it, where it is not what they were told last.

        What is slow to work out of it is, in a thread and before: decisions go on meanwhile.
        """
        takers = [policy for policy in self._live.engine.policies if name in policy.inputs]
        weights = {shape: weight for shape, weight in weights.items() if weight}
        weighted = sorted(weighted_input(weights), key=repr)
        if not takers or weighted == self._sent.get(name):
            return
        table = self._live.engine.ledger.table
        for policy in takers:
            await asyncio.to_thread(policy.prepare_input, name, list(weights.items()), table)
        self._sent[name] = weighted
        self._live.handle(PolicyInput(name, weighted))


def usual_shapes(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Return the commonest shapes, as many as make up `POPULAR` of these."""
    counts = Counter(shapes)
    usual, covered = [], 0
    for shape, count in counts.most_common():
        if covered >= POPULAR * counts.total():
            break
        usual.append(shape)
        covered += count
    return tuple(usual)


def typical_shape(pod: Pod, settings: DialectSettings) -> Shape | None:
    """Return the pod's shape, as far as what is typical looks at it; None if it asks for no GPU."""
    shape = _shape(pod, settings)
    return shape if shape is not None and shape.gpu_requests else None


def _shape(pod: Pod, settings: DialectSettings) -> Shape | None:
    try:
        return bare(read_bound(pod, settings).shape)
    except BadInputError:
        return None


def _newest(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def _created_s(pod: Pod) -> float:
    """When the pod was created, seconds; 0 if the API does not say."""
    return timestamp_ns(pod.metadata.creation_timestamp) / 1e9

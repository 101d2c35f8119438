"""Counts the pods that the API shows, as typical pods for the policies least-stranding, auto and
fgd.

The counts follow from API objects alone, so that a new leader has the same counts as the old one.
Until there are enough pods, each policy makes assumptions of its own.
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
MOST_PODS = 2_000  # the newest are representative; reading 20,000 would delay a start by seconds
_TURN = 200  # pods read before other tasks run


class TypicalInput:
    """Sends the counts of typical pods to the engine at most every `every_s`, if they changed, and
    if there are at least `least_pods` pods.

    As new counts make a policy score every node again, they are sent only often enough to follow
    changes over a day. Policies with the input `TYPICAL_PODS` (fgd) get the present GPU pods: pods
    without a GPU cause no fragments, and have too many sizes. Policies with the input
    `POPULAR_PODS` get all pods that came, also ended ones and pods without a GPU on GPU nodes;
    older pods count less.
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
        """The most common shapes, which make up most pods of the last count; () before the first
        count."""

    async def run(self) -> None:
        """Count periodically until cancelled, first after `every_s`."""
        while True:
            await self._live.client.clock.sleep(self._every_s)
            await self.learn()

    async def learn(self) -> None:
        """Count the typical pods once; a failure is only reported."""
        try:
            await self.count()
        except Exception as error:
            why = in_words(error, "counting typical pods")
            self._live.faults.report(None, why, error)

    async def count(self) -> None:
        """Count the typical pods once, and send changed counts to the engine."""
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
            # Ages are relative to the newest pod: without a new pod, nothing changes.
            came[shape] += weight_of(newest_s - _created_s(pod), self._settings.half_life_seconds)
            if shape.gpu_requests and not pod.ended:
                now[shape] += 1
        if counted >= self._least_pods:
            await self._tell(POPULAR_PODS, came)
        if now.total() >= self._least_pods:
            self.usual = usual_shapes(now.elements())
            await self._tell(TYPICAL_PODS, now)

    def _is_beside_gpus(self, pod: Pod) -> bool:
        """Return True if the pod runs on a node with GPUs, where it uses CPU that GPU pods need."""
        table = self._live.engine.ledger.table
        row = table.row_of.get(pod.spec.node_name or "", -1)
        return row >= 0 and bool(table.gpus[row])

    async def _tell(self, name: str, weights: Mapping[Shape, int]) -> None:
        """Send the weights to the policies that take this input, unless they equal those sent last.

        Slow preparations of a policy run in a thread first, while decisions go on.
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
    """Return the most common of these shapes: the fewest that make up the fraction `POPULAR` of
    all."""
    counts = Counter(shapes)
    usual, covered = [], 0
    for shape, count in counts.most_common():
        if covered >= POPULAR * counts.total():
            break
        usual.append(shape)
        covered += count
    return tuple(usual)


def typical_shape(pod: Pod, settings: DialectSettings) -> Shape | None:
    """Return the pod's shape, reduced to what counts for typical pods; None if it requests no
    GPU."""
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
    """Return the pod's creation time, seconds since 1970; 0 if unknown."""
    return timestamp_ns(pod.metadata.creation_timestamp) / 1e9

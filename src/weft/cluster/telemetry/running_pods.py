"""Pods that run and hold GPUs: their co-residents, their speed alone, and an estimate of their
present speed if they report no progress."""

import asyncio
import datetime
import math
from collections.abc import Mapping
from typing import NamedTuple

from weft.cluster.control.interface import ClusterView
from weft.cluster.telemetry.solo_rates import SoloProfiles, SoloRate
from weft.core.framework.signals import FRESH, SignalsSnapshot, SignalsView
from weft.core.ledger import Holding
from weft.kube.pods import Pod
from weft.model import BadInputError, PodRequest
from weft.model.annotations import SOLO_RATE
from weft.model.metric import Metric
from weft.telemetry.meaning.progress_counters import PodName

_SM = f"{Metric.SM_ACTIVE_RATIO}.last"
TURN = 50
"""Number of nodes that are processed before other tasks get their turn."""
LEAVING_S = 300.0
"""Seconds after its deletion time at which a terminating pod is no longer waited for."""
Gpu = tuple[str, int]


class RunningPod(NamedTuple):
    """A pod that holds GPUs: the UIDs of its co-residents, the GPU model, and when it was bound
    (seconds since 1970; NaN if unknown).

    `parting`: a co-resident is terminating."""

    pod: Pod
    held: Holding
    beside: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    gpu_model: str
    bound_s: float
    parting: bool = False

    @property
    def uid(self) -> str:
        """UID of the pod."""
        return self.pod.metadata.uid


async def running_pods(live: ClusterView) -> dict[PodName, RunningPod]:
    """Return the bound pods that certainly hold their GPUs and are not terminating, by namespace
    and name; other tasks run in between."""
    held_by: dict[str, list[Holding]] = {}
    on: dict[Gpu, list[str]] = {}
    for holding in live.engine.ledger.holdings.values():
        node = holding.placement.node
        if holding.placement.shares:
            held_by.setdefault(node, []).append(holding)
        for share in holding.placement.shares:
            on.setdefault((node, share.gpu), []).append(holding.placement.uid)
    running: dict[PodName, RunningPod] = {}
    now_s = live.client.clock.wall().timestamp()
    for number, (node, on_node) in enumerate(held_by.items(), 1):
        known = live.nodes.nodes.get(node)
        for holding in on_node:
            pod = live.pod_by_uid(holding.placement.uid)
            if pod is None or holding.state != "committed":
                continue
            if pod.metadata.deletion_timestamp or pod.ended:
                continue
            if live.pods.unsure(pod.metadata.uid):
                continue  # no pod is evicted for it: it may be on another GPU
            gpus = tuple(dict.fromkeys((node, share.gpu) for share in holding.placement.shares))
            beside = {uid for gpu in gpus for uid in on[gpu]} - {holding.placement.uid}
            cards = known.gpus if known is not None else ()
            model = next((gpu.model for gpu in cards if gpu.index == gpus[0][1]), "")
            name = pod.metadata.namespace, pod.metadata.name
            parting = any(_leaves(live.pod_by_uid(uid), now_s) for uid in beside)
            since_s, others = time_s(pod.bound_at), tuple(sorted(beside))
            running[name] = RunningPod(pod, holding, others, gpus, model, since_s, parting)
        if number % TURN == 0:
            await asyncio.sleep(0)
    return running


def _leaves(pod: Pod | None, now_s: float) -> bool:
    """Return True if the pod is terminating, and not stuck."""
    text = (pod.metadata.deletion_timestamp or "") if pod is not None else ""
    return bool(text) and not time_s(text) < now_s - LEAVING_S


class SoloRateCache:
    """Caches the rate of each pod when alone on its GPU (units of work per second), which is read
    again if the pod or its profile changed."""

    def __init__(self, live: ClusterView, solos: SoloProfiles) -> None:
        self._live, self._solos = live, solos
        self._known: dict[str, tuple[tuple[str, str, int], SoloRate]] = {}

    def keep(self, pods: Mapping[PodName, RunningPod]) -> None:
        """Drop all pods except these from the cache."""
        uids = {running.uid for running in pods.values()}
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}

    def of(self, pod: Pod, gpu_model: str) -> SoloRate:
        """Return the pod's rate when it is alone on a GPU of this model."""
        uid, text = pod.metadata.uid, (pod.metadata.annotations or {}).get(SOLO_RATE, "")
        known, key = self._known.get(uid), (text, gpu_model, self._solos.version)
        if known is None or known[0] != key:
            try:
                request: PodRequest | None = self._live.parse(pod)
            except BadInputError:
                request = None  # bound by another scheduler; its own log line says what is wrong
            known = self._known[uid] = key, self._solos.of(pod, request, gpu_model)
        return known[1]

    def sm_active(self, made: SignalsSnapshot) -> dict[Gpu, float]:
        """Return the present SM_ACTIVE of GPUs with a fresh value; empty if there are no
        profiles."""
        if not self._solos:
            return {}
        table = self._live.engine.ledger.table
        values, ages = SignalsView(made).over(table, _SM)
        gpus = ((node.name, gpu.index) for node in table.nodes for gpu in node.gpus)
        readings = zip(gpus, values.tolist(), ages.tolist(), strict=True)
        return {gpu: value for gpu, value, age in readings if age == FRESH and value > 0.0}

    def guess(self, running: RunningPod, sm_active: Mapping[Gpu, float]) -> float:
        """Return the common slowdown of all pods on the pod's GPU: the sum of the SM_ACTIVE that
        each has alone, divided by the GPU's present SM_ACTIVE; at least 1. 0 if unknown."""
        if len(running.gpus) != 1 or running.gpus[0] not in sm_active:
            return 0.0
        wanted = self.of(running.pod, running.gpu_model).sm_active
        for uid in running.beside:
            other = self._live.pod_by_uid(uid)
            wanted += self.of(other, running.gpu_model).sm_active if other else math.nan
        slowdown = wanted / sm_active[running.gpus[0]]
        return max(slowdown, 1.0) if 0.0 < slowdown < math.inf else 0.0


def time_s(text: str) -> float:
    """Parse a time to seconds since 1970; NaN if unknown."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return math.nan

"""Packing by trial, as in Gandiva: share a GPU, measure, and separate pairs that run badly
together.

A pair whose speeds sum to less than 1 is separated after its trial, and never tried again. The
later job returns to the queue with its work kept, as if suspended."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from weft.core.engine import Bind, PodAdded, PodGone, PolicyInput
from weft.core.framework import Policy, Query
from weft.core.framework.policy import draw
from weft.core.ledger.table import Bools, CoResidents, Ints, Resident
from weft.core.policies.co_residents import CoResidentCache, one_by_one
from weft.lab.simulate.event_loop import TRIALS
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.lab.simulate.sharing.run import SharingRun, request_of

TRIAL_NS = 60 * SECOND_NS
"""Duration of a trial: Gandiva's quantum."""
LEAST_TOGETHER = 1.0


class PackByTrial(Policy):
    """Chooses an empty GPU, else any GPU with one pod, unless the pair of pods has failed its
    trial."""

    name = "gandiva"
    summary = "an empty GPU, else a random partner; bad pairs are separated and not retried"
    source = "Gandiva (OSDI'18), its packing"
    reads = frozenset({"occupants", "co_residents"})
    inputs: Mapping[str, Any] = {name: list[str]}

    def __init__(self) -> None:
        self._bad: set[frozenset[str]] = set()
        self._judged = CoResidentCache(one_by_one(self._judge), (0.0,), 2)

    def take_input(self, name: str, value: Any) -> None:
        """Store a pair of programs that failed its trial."""
        self._bad.add(frozenset(value))
        self._judged.forget()

    def filter_devices(self, query: Query) -> Bools:
        """Accept empty GPUs, and GPUs with one pod unless the pair has failed its trial, [d]."""
        return np.asarray(self._judged.over(query)[0] > 0)

    def score_devices(self, query: Query) -> Ints:
        """Score empty GPUs 1, and all other GPUs 0, [d]."""
        return np.asarray(query.device_pods == 0).astype(np.int64)

    def choose_node(self, rows: Ints, key: str) -> int:
        """Choose one of the best nodes at random."""
        return draw(key, len(rows))

    def _judge(self, incoming: Resident, residents: CoResidents, model: str) -> tuple[float]:
        together = frozenset(each.application for each in (incoming, *residents))
        return (float(together not in self._bad or not residents),)


class TrialRun(SharingRun):
    """A run in which each new pair of pods on a GPU is tried, and separated if the trial fails."""

    def _bind(self, command: Bind) -> None:
        super()._bind(command)
        self.schedule(self.now + TRIAL_NS, TRIALS, command.pod.uid)

    def _comes(self, kind: int, uid: str) -> None:
        if kind == TRIALS:
            self._look(uid)
        else:
            super()._comes(kind, uid)

    def _look(self, uid: str) -> None:
        """End the pod's trial: separate it from its neighbour if both together run badly."""
        key = self.cards.where.get(uid)
        if key is None:
            return
        containers = self.cards.containers_on(key)
        if len(containers) != 2 or containers[-1].job.uid != uid:
            return  # only the trial of the later pod counts
        kinds = [container.job.kind for container in containers]
        speeds = [
            1000 / self.scenario.slowdown.permille(kind, kinds[:at] + kinds[at + 1 :])
            for at, kind in enumerate(kinds)
        ]
        if sum(speeds) >= LEAST_TOGETHER:
            return
        self.tell(PolicyInput(self.name, kinds))
        self._suspend(uid)

    def _suspend(self, uid: str) -> None:
        pod = self.pods[uid.partition("/")[0]]
        rest = self.cards.suspend(uid, self.now)
        pod.job = msgspec.structs.replace(pod.job, phases=rest)
        pod.evictions += 1
        pod.number += 1
        pod.uid = f"{pod.job.uid}/{pod.number}"
        self.tell(PodGone(uid))
        self.tell(PodAdded(request_of(pod, pod.job.arrives_ns)))

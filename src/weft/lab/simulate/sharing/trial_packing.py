"""Packing by trial, as Gandiva does it: share a GPU, look how it goes, and part what goes badly.

A pair whose speeds together are below 1 is dissolved after its trial and never tried again. The
later job goes back to the queue; what it has done is kept, as by suspending it.
"""

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
"""Gandiva's quantum."""
LEAST_TOGETHER = 1.0


class PackByTrial(Policy):
    """An empty GPU, else any with one pod, but never beside what it went badly with before."""

    name = "gandiva"
    summary = "an empty GPU, else a random partner; bad pairs are parted and remembered"
    source = "Gandiva (OSDI'18), its packing"
    reads = frozenset({"occupants", "co_residents"})
    inputs: Mapping[str, Any] = {name: list[str]}

    def __init__(self) -> None:
        self._bad: set[frozenset[str]] = set()
        self._judged = CoResidentCache(one_by_one(self._judge), (0.0,), 2)

    def take_input(self, name: str, value: Any) -> None:
        """A pair of programs that went badly."""
        self._bad.add(frozenset(value))
        self._judged.forget()

    def filter_devices(self, query: Query) -> Bools:
        """Nobody, or one pod that it may be beside, [d]."""
        return np.asarray(self._judged.over(query)[0] > 0)

    def score_devices(self, query: Query) -> Ints:
        """Empty ones first, [d]."""
        return np.asarray(query.device_pods == 0).astype(np.int64)

    def choose_node(self, rows: Ints, key: str) -> int:
        """Any."""
        return draw(key, len(rows))

    def _judge(self, incoming: Resident, residents: CoResidents, model: str) -> tuple[float]:
        together = frozenset(each.application for each in (incoming, *residents))
        return (float(together not in self._bad or not residents),)


class TrialRun(SharingRun):
    """A run in which pairs are tried."""

    def _bind(self, command: Bind) -> None:
        super()._bind(command)
        self.schedule(self.now + TRIAL_NS, TRIALS, command.pod.uid)

    def _comes(self, kind: int, uid: str) -> None:
        if kind == TRIALS:
            self._look(uid)
        else:
            super()._comes(kind, uid)

    def _look(self, uid: str) -> None:
        """The trial of this pod is over."""
        key = self.cards.where.get(uid)
        if key is None:
            return
        containers = self.cards.containers_on(key)
        if len(containers) != 2 or containers[-1].job.uid != uid:
            return  # the trial of the later one counts
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

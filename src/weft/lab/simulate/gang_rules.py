"""Rules by which other schedulers treat gangs, to compare with Weft's in simulations.

per-pod        as kube-scheduler without gangs: each pod is placed by itself and holds its
               place. If a gang does not start within ten minutes, all its pods are deleted
               and created again, as torchrun ends a job whose workers do not meet (its
               rendezvous waits 600 s by default) and its controller restarts it. At most
               MOST_RESTARTS times, since a gang that never fits would restart for ever.
               Pods are placed by Weft's policy, so that results differ only by gangs.
kai-like       KAI (NVIDIA/KAI-Scheduler, docs/operator/scheduler-config-customization.md and
               pkg/scheduler/actions/allocate): sessions, jobs of a queue by priority, then
               age; a job's pods are placed in one statement; default placement is binpack,
               of nodes (plugin nodeplacement) and of shared GPUs (gpupack).
volcano-like   Volcano (volcano-sh/volcano, volcano-scheduler.conf of its chart: enqueue,
               allocate; priority, gang, overcommit, drf, nodeorder, binpack): sessions, jobs
               by priority, then age (a pending job has no dominant share yet); a statement is
               discarded while the gang plugin's minAvailable is not met; jobs are queued up
               to 1.2 times the idle capacity. Placement is by CPU and memory, since GPUs have
               no weight in that file."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from weft.core.engine import Bind, PodGone
from weft.core.framework import Policy, Query
from weft.core.ledger.table import Ints
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import Binpack
from weft.lab.simulate.event_loop import GIVES_UP
from weft.lab.simulate.sessions import Sessions
from weft.lab.simulate.timed import SECOND_NS, TimedRun
from weft.model import PodRequest

JOIN_NS = 600 * SECOND_NS
"""Nanoseconds that pods of a gang wait for each other before the job restarts: the default
join_timeout of PyTorch's elastic rendezvous (torch/distributed/elastic/rendezvous)."""
MOST_RESTARTS = 2_000
"""Restarts after which a job is given up and counts as never run: two weeks or more of holding
places in vain. (A Job's default, backoffLimit, is 6 failed pods: few gangs would ever run.)"""
OVERCOMMIT = 1.2
"""The default overcommit factor of Volcano's plugin of that name."""


class PerPodRun(TimedRun):
    """A run in which the scheduler sees no gangs: each pod holds its place until all pods of its
    gang have places."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._members: dict[str, list[int]] = {}
        self._restarts: dict[str, int] = {}
        for number, gang in self.gang_of.items():
            self._members.setdefault(gang.key, []).append(number)

    def _request(self, number: int) -> PodRequest:
        return msgspec.structs.replace(super()._request(number), gang=UNSET)

    def _bind(self, command: Bind) -> None:
        super()._bind(command)
        number = int(command.pod.uid)
        if self.gangs.is_held(number) and len(self.gangs.waiting_with(number)) == 1:
            self.schedule(self.now + JOIN_NS, GIVES_UP, number)

    def _happens(self, kind: int, key: int) -> None:
        if kind != GIVES_UP:
            super()._happens(kind, key)
        elif self.gangs.is_held(key) and self.started[key] == self.now - JOIN_NS:
            self._start_again(key)

    def _start_again(self, number: int) -> None:
        """Delete all pods of the gang, the pending ones first, and create them again."""
        gang = self.gang_of[number].key
        members = [each for each in self._members[gang] if each in self.created]
        for each in members:
            if each not in self.started:
                self.tell(PodGone(str(each)))
        for each in members:
            if each in self.places:
                self.loses_place(each)
        self._restarts[gang] = self._restarts.get(gang, 0) + 1
        if self._restarts[gang] > MOST_RESTARTS:
            return
        for each in members:
            if each not in self.ended:
                self.comes_anew(each)


class SessionsRun(TimedRun):
    """A run in which jobs are scheduled in sessions, as by KAI."""

    overcommit = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._handle = Sessions(self.engine, self._handle, self.overcommit).handle


class VolcanoRun(SessionsRun):
    """A run in which jobs are scheduled in sessions, and only once they are queued, as by
    Volcano."""

    overcommit = OVERCOMMIT


class VolcanoPlacement(Policy):
    """Chooses the node with the best sum of Volcano's default scores by CPU and memory, and its
    first GPU that fits."""

    name = "volcano-placement"
    summary = "least requested + balanced + binpack, by CPU and memory"
    source = "Volcano's plugins nodeorder and binpack, weights of its default configuration"

    def score_nodes(self, query: Query) -> Ints:
        """Score nodes by the sum of Volcano's three scores once the pod is placed, [n]: higher
        the more equally CPU and memory are used, as the other two scores add up to a constant."""
        cpu_total, memory_total = query.cpu_total, query.memory_total
        cpu = 1 - (query.cpu_free - query.demand.cpu_milli) / np.maximum(cpu_total, 1)
        memory = 1 - (query.memory_free - query.demand.memory_mib) / np.maximum(memory_total, 1)
        least_requested = 1 - (cpu + memory) / 2
        balanced = 1 - np.abs(cpu - memory) / 2  # the deviation of two values
        binpack = (cpu + memory) / 2
        return np.asarray(100_000 * (least_requested + balanced + binpack), dtype=np.int64)

    def choose_device(self, query: Query, fits: Ints, key: str) -> int:
        """Choose the first device that fits."""
        return 0


class GangRule(msgspec.Struct, frozen=True):
    """A gang rule: the policy that places pods, and the kind of run that schedules gangs."""

    make_policy: Callable[[], Policy]
    make_run: type[TimedRun]


GANG_RULES = {
    "per-pod": GangRule(LeastStranding, PerPodRun),
    "kai-like": GangRule(Binpack, SessionsRun),
    "volcano-like": GangRule(VolcanoPlacement, VolcanoRun),
}
"""Gang rules by their names in experiments."""

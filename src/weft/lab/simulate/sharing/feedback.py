"""Observes slowdowns from jobs' progress, as in a cluster.

At each poll, the work that every container did since the last poll is compared with the work that
it would have done alone. The engine gets the result as `ProgressSeen`, pairs that shared a GPU
throughout update the observed slowdowns, and policies get the updated table and bans. The true
slowdowns are only used to count readings of latency-critical jobs beyond their limit."""

import math
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec

from weft.core.engine import Evict, PodProgress, PolicyInput, ProgressSeen
from weft.core.engine.slowdown_eviction import SLOWEST
from weft.interference.observed_slowdown import ObservedSlowdowns
from weft.lab.simulate.sharing.gpus import GpuKey, SimulatedContainer, SimulatedGpus
from weft.lab.simulate.sharing.job import SECOND_NS
from weft.model import Node
from weft.model.interference_table import INTERFERENCE, InterferenceTable, to_input
from weft.model.request import LATENCY_CRITICAL
from weft.model.slowdown_limit import bound_on


class Feedback(msgspec.Struct, frozen=True):
    """Settings of polling progress: every `period_ns`, with lognormal `noise` (sigma of the log).

    A share `missing` of readings is lost. With `teach`, observations update the policies' table;
    with `evict`, the engine may evict because of them. Without both, readings are only used to
    count latency-critical jobs slower than their own limit, or than `bound`. An evicted job loses
    its work, unless it `keeps_work` (saves it continuously)."""

    period_ns: int = 15 * SECOND_NS
    noise: float = 0.0
    missing: float = 0.0
    teach: bool = True
    evict: bool = True
    keeps_work: bool = False
    bound: float = 1.10


class _Mark(NamedTuple):
    """A container's work at a poll, and the pods on its GPU then."""

    started_ns: int
    worked_ns: int
    co_residents: tuple[str, ...]


class _Seen(NamedTuple):
    """A container that ran throughout the time between two polls; `steady` if its neighbours did
    too."""

    container: SimulatedContainer
    gpu: GpuKey
    others: tuple[str, ...]
    slowdown: float
    steady: bool


class SimulatedProgress:
    """Polls the progress of the jobs of a run."""

    def __init__(
        self,
        feedback: Feedback,
        cards: SimulatedGpus,
        nodes: tuple[Node, ...],
        inputs: dict[str, Any],
        seed: int,
    ) -> None:
        table = inputs.get(INTERFERENCE, InterferenceTable(0))
        self.experience = ObservedSlowdowns(msgspec.convert(table, InterferenceTable))
        self.looks = self.slow_looks = 0
        """`looks` counts readings of latency-critical jobs, `slow_looks` those slower than the
        job's bound."""
        self._feedback, self._cards = feedback, cards
        self._model = {(node.name, gpu.index): gpu.model for node in nodes for gpu in node.gpus}
        self._marks: dict[str, _Mark] = {}
        self._at_ns = 0
        self._random = Random(f"weft-feedback-{seed}")

    def look(self, now_ns: int) -> ProgressSeen | None:
        """Poll progress; return the event with the slowdowns since the last poll, None without
        `evict`.

        The updated table of slowdowns comes from `due`."""
        progress = []
        for window in self._windows(now_ns):
            job = window.container.job
            if job.job_class == LATENCY_CRITICAL:
                self.looks += 1
                bound = bound_on(job.slowdown_limit, self._model[window.gpu], self._feedback.bound)
                self.slow_looks += window.slowdown > bound
            slowdown = self._measured(window.slowdown)
            if slowdown is None:
                continue
            progress.append(PodProgress(job.uid, slowdown))
            if window.steady and self._feedback.teach:
                self.experience.saw(self._model[window.gpu], job.kind, window.others, slowdown)
        return ProgressSeen(tuple(progress)) if self._feedback.evict else None

    def due(self, now_ns: int) -> PolicyInput | None:
        """Return the policies' updated table of slowdowns; None if no update is due."""
        table = self.experience.due(now_ns)
        return PolicyInput(INTERFERENCE, to_input(table)) if table is not None else None

    def separate(self, command: Evict, now_ns: int) -> PolicyInput | None:
        """Ban the two applications of an eviction for slowness from sharing a GPU.

        Return the policies' updated table, None if no update is due."""
        slowed = command.record.slowed
        if slowed is None:
            return None
        self.experience.ban(slowed.gpu_model, *slowed.applications, now_ns)
        return self.due(now_ns)

    def _windows(self, now_ns: int) -> Iterator[_Seen]:
        """Yield the containers that have run without a restart since the last poll, with their
        slowdowns."""
        before, passed = self._marks, now_ns - self._at_ns
        self._marks, self._at_ns = {}, now_ns
        for gpu in self._model:
            at_work = self._cards.at_work(gpu, now_ns)
            uids = tuple(sorted(container.job.uid for container in at_work))
            kinds = [container.job.kind for container in at_work]
            for at, container in enumerate(at_work):
                mark = _Mark(container.started_ns, container.worked_ns, uids)
                self._marks[container.job.uid] = mark
                last = before.get(container.job.uid)
                if last is None or last.started_ns != mark.started_ns or not passed:
                    continue
                slowdown = min(passed / max(mark.worked_ns - last.worked_ns, 1), SLOWEST)
                steady = last.co_residents == uids and all(
                    uid in before and before[uid].started_ns == other.started_ns
                    for uid, other in ((each.job.uid, each) for each in at_work)
                )
                others = tuple(kinds[:at] + kinds[at + 1 :])
                yield _Seen(container, gpu, others, slowdown, steady)

    def _measured(self, slowdown: float) -> float | None:
        """Return the slowdown with noise, or None if the reading is lost.

        Two random numbers are drawn per window in any case, so that all runs of a seed draw the
        same."""
        missing, factor = self._random.random(), self._random.gauss(0.0, 1.0)
        if missing < self._feedback.missing:
            return None
        return min(slowdown * math.exp(self._feedback.noise * factor), SLOWEST)

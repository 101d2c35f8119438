"""Simulates GPUs with containers: how fast each runs, how much memory it holds, and when it dies.

The state is containers and their progress. Ledger, requests and policies are unknown here, as they
do not affect a GPU.

Invariants
  1. Containers never hold more memory than their GPU has. If a container would need more, it takes
     less, if its program can, or dies (CUDA out of memory): its work is lost, and it is restarted,
     immediately after its first death, later after a back-off.
  2. Work is counted in integers: equal inputs give equal times on every machine.

States of a container

    put ──start_ns──▶ RUNNING ──last phase ends──▶ done
                       │   ▲
        out of memory  ▼   │ 0 s, 10 s, 20 s, 40 s … 300 s (the kubelet's back-off)
                      RESTING ──after RESTARTS_MOST──▶ failed"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase

# --- Power of a GPU by its activity, and a GPU's use and energy summed over a run -----------------


class PowerModel(msgspec.Struct, frozen=True):
    """The power of a GPU in watts: `idle_w` + `context_w` · [memory in use] + `busy_w` · a **
    `gamma`.

    a is the GPU's activity, 0 to 1. Kube-Knots assumes power linear in it (gamma 1)."""

    idle_w: float
    context_w: float
    busy_w: float
    gamma: float = 1.0

    def watts(self, used: bool, activity: float) -> float:
        """Return the power in watts at this activity; `used` is True if memory is in use."""
        return (
            self.idle_w
            + (self.context_w if used else 0.0)
            + self.busy_w * math.pow(activity, self.gamma)
        )


V100_INFERENCE = PowerModel(27.1, 9.8, 17.2)
"""Power of a V100 with the published MLPerf inference jobs (Ferikoglou et al., 54,396 s of
logs), whose activity is GPU_UTIL. These jobs draw at most about 60 W of the GPU's 250 to 300, so
the model fits no other jobs."""


_MODELS = {
    "T4": PowerModel(10.0, 5.0, 55.0),
    "P100": PowerModel(26.0, 10.0, 214.0),
    "V100": PowerModel(27.1, 9.8, 263.1),
    "A100": PowerModel(55.0, 15.0, 330.0),
    "H100": PowerModel(70.0, 20.0, 610.0),
}
"""Power by GPU model, linear in activity: its idle and maximal watts are as vendors and users
report them."""


def power_of(model: str) -> PowerModel:
    """Return the power model for a GPU model by its prefix; a V100's for unknown models."""
    powers = [power for name, power in _MODELS.items() if model.upper().startswith(name)]
    return powers[0] if powers else _MODELS["V100"]


class CardUse(msgspec.Struct):
    """A GPU's use, integrated over time: `util_s` in GPU_UTIL · s, `energy_j` in joules.

    `util` and `watts` apply from one call of `until` to the next."""

    now_ns: int
    util: float = 0.0
    watts: float = 0.0
    util_s: float = 0.0
    energy_j: float = 0.0

    def until(self, now_ns: int, util: float, watts: float) -> None:
        """Add use and energy up to `now_ns` at the old `util` and `watts`; then set new values."""
        passed_s = (now_ns - self.now_ns) / SECOND_NS
        self.util_s += self.util * passed_s
        self.energy_j += self.watts * passed_s
        self.now_ns, self.util, self.watts = now_ns, util, watts


# Slowdowns of containers that share a GPU: the true values, which policies have to estimate

Permille = int
"""Thousandths of the time that work takes alone on a GPU: at 1210 it takes 21 % longer."""


class SlowdownModel(Protocol):
    """A model of interference between containers on a GPU."""

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the time of work of `kind` next to `others`, in permille of its time alone."""
        ...


class ByResidents:
    """Slowdown by the number of containers on the GPU, whatever they run.

    `permille[k - 1]` is for k containers. For more containers than it has entries, it grows by the
    difference of the last two, as nothing was measured, and never decreases."""

    def __init__(self, permille: Sequence[Permille]) -> None:
        if not permille or min(permille) <= 0:
            raise ValueError("a slowdown table needs at least one entry above 0")
        self._table = tuple(permille)

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the time of work next to `others`, in permille of its time alone."""
        beyond = len(others) + 1 - len(self._table)
        if beyond <= 0:
            return self._table[len(others)]
        step = self._table[-1] - self._table[-2] if len(self._table) > 1 else 0
        return self._table[-1] + beyond * max(0, step)


class ByPairs:
    """Slowdown by a table of measured pairs; with several neighbours the slowdowns multiply.

    `pairs[kind, other]` is the slowdown of `kind` by `other`; missing pairs get `unknown`."""

    def __init__(self, pairs: Mapping[tuple[str, str], Permille], unknown: Permille = 1000) -> None:
        self._pairs, self._unknown = dict(pairs), unknown

    def permille(self, kind: str, others: Sequence[str]) -> Permille:
        """Return the product of the slowdowns of `kind` by each of `others`."""
        product = 1000
        for other in others:
            product = product * self._pairs.get((kind, other), self._unknown) // 1000
        return product


class ComputeSharing(msgspec.Struct, frozen=True):
    """Slowdown of containers that together need more compute than the GPU has.

    With `proportional`, time grows with the sum of their needs of SMs or of memory bandwidth,
    whichever is larger, but at least by the measured slowdowns; otherwise only the measured ones
    count. `each`, if given, replaces every container's need of SMs."""

    proportional: bool = False
    each: float | None = None

    def least_permille(self, phases: Sequence[JobPhase]) -> Permille:
        """Return the least run time of work while `phases` run together, in permille of its time
        alone; 0 unless `proportional`."""
        if not self.proportional:
            return 0
        sms = [phase.sm_active_ratio if self.each is None else self.each for phase in phases]
        return round(1000 * max(sum(sms), sum(phase.dram_active_ratio for phase in phases)))


AS_MEASURED = ComputeSharing()

GpuKey = tuple[str, int]
"""(node, GPU index)."""

REST_FIRST_NS = 10 * SECOND_NS
REST_MOST_NS = 300 * SECOND_NS
"""The kubelet's CrashLoopBackOff: the first restart is immediate, the second after 10 s, then
doubling."""
HEALTHY_NS = 600 * SECOND_NS
"""A container that ran for this long before it died is restarted without a back-off."""
RESTARTS_MOST = 20
"""Restarts after which a container fails for good, as a Job with backoffLimit 20 does."""

_SPEED = 10**18
"""Progress per nanosecond, times the slowdown in permille (1000: full speed); large enough that
rounding never loses a nanosecond of work in a year."""
_PER_WORK_NS = _SPEED // 1000


class ContainerEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a container: `done`, `failed` for good, or `oom` (it will be restarted)."""

    uid: str
    how: Literal["done", "failed", "oom"]


class SimulatedContainer:
    """A job's container on a GPU: its phase, progress, speed, memory and restarts."""

    __slots__ = (
        "deaths_in_row",
        "done",
        "job",
        "lost_ns",
        "memory_mib",
        "permille",
        "phase",
        "restarts",
        "resumes_ns",
        "speed",
        "started_ns",
    )

    def __init__(self, job: Job, starts_ns: int) -> None:
        self.job = job
        self.phase = -1
        self.done = 0
        self.speed = self.permille = 0
        self.memory_mib = 0
        """GPU memory that the container holds."""
        self.restarts = self.deaths_in_row = 0
        self.resumes_ns = starts_ns
        self.started_ns = starts_ns
        self.lost_ns = 0

    @property
    def running(self) -> bool:
        """True if the container has started and is not waiting for a restart."""
        return self.phase >= 0

    @property
    def current_phase(self) -> JobPhase | None:
        """The container's phase; None while it is not running."""
        return self.job.phases[self.phase] if self.running else None

    @property
    def worked_ns(self) -> int:
        """The time in ns that the container's completed work takes alone on a GPU."""
        before = sum(phase.work_ns for phase in self.job.phases[: max(self.phase, 0)])
        return before + self.done // _PER_WORK_NS

    def ends_ns(self, now_ns: int) -> int:
        """Return the time of the container's next change of phase or restart, if nothing else
        changes."""
        if not self.running:
            return self.resumes_ns
        left = self.job.phases[self.phase].work_ns * _PER_WORK_NS - self.done
        return now_ns + left // self.speed  # less than a nanosecond of work counts as done


class _Card:
    __slots__ = ("containers", "memory_mib", "now_ns", "use", "version")

    def __init__(self, memory_mib: int, use: CardUse) -> None:
        self.memory_mib = memory_mib
        self.containers: dict[str, SimulatedContainer] = {}
        self.now_ns = 0
        self.use = use
        self.version = 0


class SimulatedGpus:
    """All GPUs of a cluster. Calls must be in order of time, and none may skip `next_ns`.

    Use and energy are summed from `began_ns` on, with the `power` model. `sharing` is the slowdown
    of containers that together need more compute than the GPU has."""

    def __init__(
        self,
        memory_mib: dict[GpuKey, int],
        slowdown: SlowdownModel,
        began_ns: int = 0,
        power: PowerModel = V100_INFERENCE,
        sharing: ComputeSharing = AS_MEASURED,
    ) -> None:
        idle_w = power.watts(used=False, activity=0.0)
        self._cards = {
            key: _Card(mib, CardUse(began_ns, watts=idle_w)) for key, mib in memory_mib.items()
        }
        self._slowdown, self._power, self._sharing = slowdown, power, sharing
        self._heap: list[tuple[int, GpuKey, int]] = []
        self.where: dict[str, GpuKey] = {}
        self.ooms = 0
        self.lost_ns = 0
        self.lost_of: dict[str, int] = {}
        """The part of `lost_ns` of each job, by its UID."""
        self.all_used_mib = 0
        """Memory in use on all GPUs together."""
        self.served: dict[str, dict[int, int]] = {}
        """ns of work that jobs with queries did, by UID and by slowdown in permille."""
        self.all_util, self.all_watts = 0.0, idle_w * len(memory_mib)
        """Sums over all GPUs: of GPU_UTIL (0 to 1 per GPU), and of power in watts."""

    def put(self, job: Job, key: GpuKey, now_ns: int) -> None:
        """Place the job's pod on the GPU `key`; its container starts `job.start_ns` later."""
        self.where[job.uid] = key
        card = self._cards[key]
        self._advance(card, now_ns)
        card.containers[job.uid] = SimulatedContainer(job, now_ns + job.start_ns)
        if job.queries.alone_ns:
            self.served.setdefault(job.uid, {})
        self._renew(key, now_ns)

    def take(self, uid: str, now_ns: int) -> None:
        """Delete the pod with this UID: its container and the container's work are lost."""
        key = self.where.pop(uid)
        card = self._cards[key]
        self._advance(card, now_ns)
        container = card.containers.pop(uid)
        self.all_used_mib -= container.memory_mib
        if container.running:
            self._lose(container, now_ns)
        self._renew(key, now_ns)

    def suspend(self, uid: str, now_ns: int) -> tuple[JobPhase, ...]:
        """Remove the pod's container from its GPU, and return the phases that are left to run."""
        card = self._cards[self.where[uid]]
        self._advance(card, now_ns)
        container = card.containers[uid]
        phases = container.job.phases
        lost_ns, lost_of = self.lost_ns, dict(self.lost_of)
        self.take(uid, now_ns)
        self.lost_ns, self.lost_of = lost_ns, lost_of  # its work is kept
        if not container.running:
            return phases
        now = phases[container.phase]
        left = now.work_ns - container.done // _PER_WORK_NS
        rest = msgspec.structs.replace(now, work_ns=max(1, left))
        return (rest, *phases[container.phase + 1 :])

    def next_ns(self) -> int | None:
        """Return the time of the next change on any GPU; None if there is none."""
        while self._heap and self._heap[0][2] != self._cards[self._heap[0][1]].version:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ns: int) -> list[ContainerEnd]:
        """Process all changes up to `now_ns`; return the containers that ended, in order."""
        ended: list[ContainerEnd] = []
        while (due := self.next_ns()) is not None and due <= now_ns:
            at, key, _ = heapq.heappop(self._heap)
            ended += self._turn(key, at)
        return ended

    def at_work(self, key: GpuKey, now_ns: int) -> Sequence[SimulatedContainer]:
        """Return the GPU's running containers by arrival, with their work up to `now_ns`."""
        self._advance(self._cards[key], now_ns)
        return [each for each in self._cards[key].containers.values() if each.running]

    def containers_on(self, key: GpuKey) -> Sequence[SimulatedContainer]:
        """Return the GPU's containers by arrival."""
        return list(self._cards[key].containers.values())

    def used_mib(self, key: GpuKey) -> int:
        """Return the GPU's memory in use, in MiB."""
        return sum(each.memory_mib for each in self._cards[key].containers.values())

    def memory_mib(self, key: GpuKey) -> int:
        """Return the GPU's total memory in MiB."""
        return self._cards[key].memory_mib

    def draw(self, key: GpuKey) -> tuple[float, float]:
        """Return (GPU_UTIL from 0 to 1, power in watts) of the GPU now."""
        use = self._cards[key].use
        return use.util, use.watts

    def used_until(self, now_ns: int) -> tuple[float, float]:
        """Return (GPU_UTIL · s, energy in joules) of all GPUs together up to `now_ns`."""
        for card in self._cards.values():
            card.use.until(now_ns, card.use.util, card.use.watts)
        uses = [card.use for card in self._cards.values()]
        return sum(use.util_s for use in uses), sum(use.energy_j for use in uses)

    # --- one GPU ---------------------------------------------------------------------------

    def _turn(self, key: GpuKey, now_ns: int) -> list[ContainerEnd]:
        """Process all changes due on the GPU at `now_ns`, containers by arrival."""
        card = self._cards[key]
        self._advance(card, now_ns)
        ended = []
        for uid, container in list(card.containers.items()):
            if container.ends_ns(now_ns) > now_ns:
                continue
            how = self._step(card, container, now_ns)
            if how is None:
                continue
            ended.append(ContainerEnd(uid, how))
            self.all_used_mib -= container.memory_mib if how == "done" else 0
            if how != "oom":
                del card.containers[uid]
                del self.where[uid]
        self._renew(key, now_ns)
        return ended

    def _step(
        self, card: _Card, container: SimulatedContainer, now_ns: int
    ) -> Literal["done", "failed", "oom"] | None:
        """Start the container's next phase, or end it; return how it ended, None if it goes on."""
        if container.phase + 1 == len(container.job.phases):
            return "done"
        if not container.running:
            container.started_ns = now_ns
        takes_mib = self._takes_mib(card, container)
        if takes_mib is None:
            self.ooms += 1
            return self._die(container, now_ns)
        self.all_used_mib += takes_mib - container.memory_mib
        container.memory_mib = takes_mib
        container.phase += 1
        container.done = 0
        return None

    def _takes_mib(self, card: _Card, container: SimulatedContainer) -> int | None:
        """Return the MiB that the container takes for its next phase; None if the GPU has too
        little left."""
        phase = container.job.phases[container.phase + 1]
        room_mib = card.memory_mib - self._used(card) + container.memory_mib
        amounts = (phase.memory_mib, *phase.fallback_mib)
        return next((mib for mib in amounts if mib <= room_mib), None)

    def _die(self, container: SimulatedContainer, now_ns: int) -> Literal["failed", "oom"]:
        self._lose(container, now_ns)
        self.all_used_mib -= container.memory_mib
        container.phase, container.done, container.speed, container.memory_mib = -1, 0, 0, 0
        if now_ns - container.started_ns >= HEALTHY_NS:
            container.deaths_in_row = 0
        before = container.deaths_in_row
        rest = min(REST_MOST_NS, REST_FIRST_NS << (before - 1)) if before else 0
        container.deaths_in_row += 1
        container.restarts += 1
        if container.restarts > RESTARTS_MOST:
            return "failed"
        container.resumes_ns = now_ns + rest
        return "oom"

    def _lose(self, container: SimulatedContainer, now_ns: int) -> None:
        lost_ns = now_ns - container.started_ns
        container.lost_ns += lost_ns
        self.lost_ns += lost_ns
        owner = container.job.uid.partition("/")[0]
        self.lost_of[owner] = self.lost_of.get(owner, 0) + lost_ns

    def _advance(self, card: _Card, now_ns: int) -> None:
        """Add the containers' work up to `now_ns` at their present speeds."""
        passed = now_ns - card.now_ns
        if passed < 0:
            raise ValueError(f"time went back: {card.now_ns} to {now_ns}")
        for container in card.containers.values():
            if container.running:
                container.done += passed * container.speed
                if passed and container.job.queries.alone_ns:
                    served, at = self.served[container.job.uid], container.permille
                    served[at] = served.get(at, 0) + passed * container.speed // _PER_WORK_NS
        card.now_ns = now_ns

    def _renew(self, key: GpuKey, now_ns: int) -> None:
        """Recompute the containers' speeds and the GPU's next change, after containers changed."""
        card = self._cards[key]
        card.version += 1
        at_work = [each for each in card.containers.values() if each.running]
        phases = [each.job.phases[each.phase] for each in at_work]
        least = self._sharing.least_permille(phases)
        for container in at_work:
            others = [each.job.kind for each in at_work if each is not container]
            container.permille = max(least, self._slowdown.permille(container.job.kind, others))
            container.speed = _SPEED // container.permille
        util = min(1.0, sum(phase.gpu_util_ratio for phase in phases))
        used = any(each.memory_mib for each in at_work)
        watts = self._power.watts(used, util)
        self.all_util += util - card.use.util
        self.all_watts += watts - card.use.watts
        card.use.until(now_ns, util, watts)
        if card.containers:
            due = min(each.ends_ns(now_ns) for each in card.containers.values())
            heapq.heappush(self._heap, (max(now_ns, due), key, card.version))

    @staticmethod
    def _used(card: _Card) -> int:
        return sum(each.memory_mib for each in card.containers.values())

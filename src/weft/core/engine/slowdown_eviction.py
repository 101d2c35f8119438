"""Evicts a co-resident of a pod that is slower than its slowdown limit.

State: the last samples of each pod, and GPUs from which a pod was just evicted. A pure function of
the events. Counting and predicting progress happen elsewhere: the pods' policies say how much one
pod slows another.

    a poll ──▶ each pod's last three windows ─┬─ a latency-critical pod is too slow in two of them
                                              ├─ or late in two of them
                                              └─ pods of a GPU, none of them latency-critical, get
                                                 less done together than one alone, for 5 minutes
           ──▶ one co-resident is evicted, unless withheld (`core/engine/eviction_limits.py`)
           ──▶ no other pod of the GPU is evicted for 5 minutes

A latency-critical pod is never evicted. Only windows with exactly the present co-residents count:
the first window after a change covers both sets of pods, and is left out. Estimates (`proxy`), and
pods without samples, cause no eviction. A pod whose eviction was refused (`NotEvicted`) is chosen
last from then on, and tried at most every 5 minutes; this delays no other eviction.

An example, which a test plays: the pod lc, latency-critical, may get 1.10 times slower. The pods
batch and free share its GPU, and are expected to cause it a log slowdown of 0.1 and of 0.3.

    poll   slowdown of lc   the last three windows
    1      1.00             none: free has just come, so this window covers both sets of pods
    2      1.20             1.20               one is too slow: no eviction
    3      1.05             1.20 1.05          the newest is within the bound: no eviction
    4      1.30             1.20 1.05 1.30     two are too slow: free is evicted, which should make
                                               lc exp(0.3) times faster; then none for 5 minutes
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from weft.core.engine.eviction_limits import (
    BROKEN,
    EvictionLimits,
    SlowdownSample,
    Why,
    bad_windows,
)
from weft.core.engine.harvest import HarvestRules
from weft.core.framework import Policy
from weft.core.framework.policy import SlowdownTolerance
from weft.core.ledger import Holding, Ledger
from weft.model import Placement
from weft.model.request import BEST_EFFORT, LATENCY_CRITICAL
from weft.model.slowdown_limit import bound_on

WINDOWS = 3
"""The number of last windows that are considered."""
QUIET_NS = 300 * 1_000_000_000
"""The least time between two evictions from a GPU, and the time for which pods must be slow
together before one of them is evicted."""
NEW_LEADER_NS = 300 * 1_000_000_000
"""For this long a new leader evicts no pod for slowness: the previous leader may have requested an
eviction just before it stopped, which leaves no trace."""
GAP_NS = 60 * 1_000_000_000
"""If polls are further apart than this, earlier samples no longer count."""
LEAST_TOGETHER = 1.0
SLOWEST = 100.0
"""The slowdown reported for a pod that makes no progress."""

_Gpu = tuple[str, int]
_CoResidents = tuple[tuple[_Gpu, ...], tuple[str, ...]]
"""A pod's GPUs, and the UIDs of all pods on these."""


class PodProgress(msgspec.Struct, frozen=True, gc=False):
    """The progress of one running pod since the last poll.

    `slowdown` is its rate alone ÷ its present rate, 1.0 for none, at most `SLOWEST`. `proxy`: its
    progress was not counted, and the slowdown is estimated from its GPU's load; it is shown, but
    causes no eviction. `late`: the 99th percentile of its response times is above its SLO; this is
    measured, whatever `slowdown` is.
    """

    uid: str
    slowdown: float
    proxy: bool = False
    late: bool = False


class SlowdownReason(msgspec.Struct, frozen=True, gc=False):
    """The reason to evict a pod for slowness: for which pod, and by which rule.

    `rule` is `bound` (the latency-critical `slow_pod` was `slowdown` times slower than alone, more
    than the allowed `bound`), `late` (its response times were above its SLO), both in `windows` of
    the last three windows, or `together` (since `since_ns` the GPU's pods together made only as
    much progress as `together` pods alone on a GPU; `slow_pod` is the slowest of those that stay).
    `speedup` is how many times faster the slow pod is expected to run without the evicted one.
    `applications` are the slow pod's and the evicted pod's: on GPUs of `gpu_model` the two are kept
    apart for a while.
    """

    gpu: int
    slow_pod: str
    rule: Literal["bound", "late", "together"]
    slowdown: float
    bound: float = 0.0
    windows: int = 0
    together: float = 0.0
    since_ns: int = 0
    speedup: float = msgspec.field(default=1.0, name="relief")
    applications: tuple[str, str] = ("", "")
    gpu_model: str = ""


class _Account:
    """A pod's windows with the same co-residents; `too_slow` is None unless the pod is
    latency-critical and has a bound."""

    __slots__ = ("at_ns", "co_residents", "too_slow", "windows")

    def __init__(self, co_residents: _CoResidents, at_ns: int) -> None:
        self.co_residents, self.at_ns = co_residents, at_ns
        self.windows: deque[SlowdownSample] = deque(maxlen=WINDOWS)
        self.too_slow: bool | None = None


class _Slow(NamedTuple):
    """The time since which these pods have made less progress together than one pod alone, and the
    time when this was last seen."""

    co_residents: tuple[str, ...]
    since_ns: int
    at_ns: int


class SlowdownEviction:
    """Chooses the pods to evict because others are too slow, among one ledger's pods."""

    def __init__(self, ledger: Ledger, harvest: HarvestRules) -> None:
        self._ledger, self._harvest, self._eviction_limits = ledger, harvest, EvictionLimits(ledger)
        self._seen: dict[str, _Account] = {}
        self._slow: dict[_Gpu, _Slow] = {}
        self._sent: dict[str, tuple[int, frozenset[_Gpu]]] = {}
        self._leaving: set[str] = set()
        self._refused_ns: dict[str, int] = {}
        self._there: dict[str, dict[_Gpu, tuple[str, ...]]] = {}
        self._quiet: set[_Gpu] = set()
        self._leads_ns: int | None = None
        self._inherited = False

    @property
    def withheld_evictions(self) -> Mapping[str, Why]:
        """Pods (by UID) for which no other pod was evicted at their last poll although they were
        too slow, and why."""
        return self._eviction_limits.withheld_evictions

    # --- a new leader ---

    def begin_to_lead(self, now_ns: int) -> None:
        """Note that this process leads from now on."""
        self._leads_ns = now_ns

    def note_inherited(self, placed: Container[str], now_ns: int) -> None:
        """Record whether this process took over pods from another process: bound pods that are not
        among those that this process `placed`."""
        if not self._inherited and self._leads_newly(now_ns):
            self._inherited = any(
                holding.state == "committed" and holding.placement.shares and uid not in placed
                for uid, holding in self._ledger.holdings.items()
            )

    def is_quiet_after_takeover(self, now_ns: int) -> bool:
        """Return True while an eviction by the previous leader may still be under way."""
        return self._inherited and self._leads_newly(now_ns)

    def _leads_newly(self, now_ns: int) -> bool:
        return self._leads_ns is not None and now_ns - self._leads_ns < NEW_LEADER_NS

    # --- events about pods ---

    def mark_leaving(self, holding: Holding, now_ns: int, slow_pod: Iterable[_Gpu] = ()) -> None:
        """Note that the pod is being evicted: its GPUs, and those of `slow_pod`, lose no other pod
        until the effect can be seen."""
        if holding.placement.uid not in self._leaving:
            self._leaving.add(holding.placement.uid)
            gpus = frozenset((*_gpus(holding), *slow_pod))
            self._sent[holding.placement.uid] = (now_ns, gpus)
            self._quiet |= gpus
            self._forget_sent(now_ns)

    def not_evicted(self, uid: str, now_ns: int, *, refused: bool) -> None:
        """Note that the pod's eviction failed: another pod of the GPU may be evicted instead. If
        `refused`, this pod is chosen last from now on."""
        self._eviction_limits.not_evicted(uid)
        if uid in self._leaving:
            self._leaving.discard(uid)
            self._sent.pop(uid, None)
            if refused:
                self._refused_ns[uid] = now_ns

    def gone(self, uid: str) -> None:
        """Forget a pod that holds nothing any more."""
        self._eviction_limits.gone(uid)
        self._seen.pop(uid, None)
        self._leaving.discard(uid)
        self._refused_ns.pop(uid, None)

    # --- a new poll ---

    def observe(
        self,
        observed: Sequence[PodProgress],
        tolerance_of: Callable[[str], SlowdownTolerance | None],
        now_ns: int,
    ) -> Iterator[tuple[Holding, SlowdownReason]]:
        """Take new samples, and yield the pods to evict, one after another. `tolerance_of` returns
        how slow a pod (UID) may get; None means that no pod is evicted for it."""
        self._forget(now_ns)
        by_uid = {progress.uid: progress for progress in observed}
        # Only pods that are alone: measurements of others may still show a pod that is gone.
        if self.is_quiet_after_takeover(now_ns):
            by_uid = {uid: progress for uid, progress in by_uid.items() if self._alone(uid)}
        self._eviction_limits.forget(by_uid)
        counted = [
            holding
            for holding in map(self._ledger.holdings.get, by_uid)
            if holding is not None and self._count(holding, by_uid[holding.placement.uid], now_ns)
        ]
        critical = self._critical(counted, tolerance_of)
        too_slow = [a.too_slow for a in self._seen.values() if a.too_slow is not None]
        self._eviction_limits.observe(too_slow, now_ns)
        for holding, tolerance in critical:
            leaves = self._for_critical(holding, tolerance, now_ns)
            if leaves is not None and self._allowed(*leaves, (), now_ns):
                self.mark_leaving(leaves[0], now_ns, _gpus(holding))
                yield leaves
        for gpu in dict.fromkeys(gpu for holding in counted for gpu in _gpus(holding)):
            leaves = self._of_slow(gpu, tolerance_of, now_ns)
            if leaves is not None and self._allowed(*leaves, self._certain(gpu), now_ns):
                self.mark_leaving(leaves[0], now_ns)
                yield leaves

    def _critical(
        self, counted: Iterable[Holding], tolerance_of: Callable[[str], SlowdownTolerance | None]
    ) -> list[tuple[Holding, SlowdownTolerance]]:
        """Return the latency-critical pods that have a slowdown tolerance, after recording in
        their accounts whether they are too slow. For other pods, record whether they are slow
        alone."""
        critical = []
        for holding in counted:
            uid = holding.placement.uid
            account, tolerance = self._seen[uid], tolerance_of(uid)
            account.too_slow = None
            alone = account.co_residents[1] == (uid,)
            if self._harvest.class_of(holding) != LATENCY_CRITICAL:
                self._eviction_limits.record_other(uid, account.windows, alone=alone)
            elif tolerance is not None:
                account.too_slow = self._eviction_limits.record(
                    uid, account.windows, tolerance.critical, alone=alone
                )
                critical.append((holding, tolerance))
        return critical

    def _allowed(
        self, holding: Holding, slowed: SlowdownReason, co_residents: Sequence[str], now_ns: int
    ) -> bool:
        return self._eviction_limits.allows(
            holding.placement.uid, slowed.slow_pod, co_residents, now_ns
        )

    def _forget(self, now_ns: int) -> None:
        """Drop samples that are too old, and everything collected for the last poll."""
        old = [uid for uid, account in self._seen.items() if now_ns - account.at_ns > GAP_NS]
        self._eviction_limits.forget(old)
        for uid in old:
            del self._seen[uid]
        self._slow = {g: slow for g, slow in self._slow.items() if now_ns - slow.at_ns <= GAP_NS}
        self._forget_sent(now_ns)
        self._there = {}
        self._quiet = {gpu for _, gpus in self._sent.values() for gpu in gpus}

    def _forget_sent(self, now_ns: int) -> None:
        """Drop evictions requested too long ago; the oldest are first."""
        while self._sent:
            uid, (at_ns, _) = next(iter(self._sent.items()))
            if now_ns - at_ns < QUIET_NS:
                break
            del self._sent[uid]

    def _count(self, holding: Holding, progress: PodProgress, now_ns: int) -> bool:
        """Add a sample to the pod's account; return False if the pod's co-residents are not those
        of the account, so that the sample does not count."""
        if holding.state != "committed" or not holding.placement.shares:
            return False
        co_residents = self._co_residents(holding)
        account = self._seen.get(progress.uid)
        if account is None or account.co_residents != co_residents:
            self._seen[progress.uid] = _Account(co_residents, now_ns)
            return False
        known = not progress.proxy and math.isfinite(progress.slowdown) and progress.slowdown > 0.0
        account.windows.append(SlowdownSample(progress.slowdown if known else None, progress.late))
        account.at_ns = now_ns
        return True

    def _co_residents(self, holding: Holding) -> _CoResidents:
        gpus = _gpus(holding)
        if len(gpus) == 1:
            return gpus, self._certain(gpus[0])
        return gpus, tuple(sorted({uid for gpu in gpus for uid in self._certain(gpu)}))

    def _alone(self, uid: str) -> bool:
        holding = self._ledger.holdings.get(uid)
        return holding is not None and self._co_residents(holding)[1] == (uid,)

    def _certain(self, gpu: _Gpu) -> tuple[str, ...]:
        """Return the UIDs of the pods bound to a GPU, sorted; collected once per node and poll."""
        if gpu[0] not in self._there:
            uids_on: dict[_Gpu, list[str]] = {}
            for holding in self._ledger.pods_on(gpu[0]):
                for other_gpu in _gpus(holding) if holding.state == "committed" else ():
                    uids_on.setdefault(other_gpu, []).append(holding.placement.uid)
            self._there[gpu[0]] = {at: tuple(sorted(uids)) for at, uids in uids_on.items()}
        return self._there[gpu[0]].get(gpu, ())

    # --- latency-critical pods ---

    def _for_critical(
        self, holding: Holding, tolerance: SlowdownTolerance, now_ns: int
    ) -> tuple[Holding, SlowdownReason] | None:
        windows = self._seen[holding.placement.uid].windows
        slow, late = bad_windows(windows, tolerance.critical)
        if max(slow, late) < BROKEN or not any(bad_windows([windows[-1]], tolerance.critical)):
            return None
        counted = [sample.slowdown for sample in windows if sample.slowdown is not None]
        slowdown = counted[-1] if counted else 1.0
        ranked = []
        for gpu in self._open(_gpus(holding)):
            for number, other in enumerate(self._harvest.in_order(*gpu)):
                if other is holding or not self._may_go(other, now_ns):
                    continue
                costs = self._costs(tolerance, holding, other, gpu)
                most = max(slowdown / tolerance.critical, tolerance.critical)
                if len(_gpus(other)) > 1 and not costs > math.log(most):
                    continue  # no clear gain here, and the pod's other GPUs would lose it
                best_effort = self._harvest.class_of(other) == BEST_EFFORT
                rank = (other.placement.uid in self._refused_ns, -costs, not best_effort, -number)
                ranked.append((rank, gpu, other, costs))
        if not ranked:
            return None
        _, gpu, other, costs = min(ranked, key=lambda candidate: candidate[0])
        return other, SlowdownReason(
            gpu[1],
            holding.placement.uid,
            "bound" if slow >= BROKEN else "late",
            round(slowdown, 3),
            tolerance.critical,
            slow if slow >= BROKEN else late,
            speedup=round(math.exp(costs), 3),
            applications=(holding.placement.application, other.placement.application),
            gpu_model=self._model(gpu),
        )

    def _open(self, gpus: Sequence[_Gpu]) -> list[_Gpu]:
        """Return the GPUs from which a pod may be evicted now; none if an eviction from one of them
        is under way."""
        if any(uid in self._leaving for gpu in gpus for uid in self._ledger.occupants(*gpu)):
            return []
        return [gpu for gpu in gpus if gpu not in self._quiet]

    def _may_go(self, holding: Holding, now_ns: int) -> bool:
        """Return True if the pod may be evicted: it is bound, not latency-critical, its eviction
        was not refused lately, and none of its GPUs is closed to evictions."""
        refused = self._refused_ns.get(holding.placement.uid)
        return (
            holding.state == "committed"
            and self._harvest.class_of(holding) != LATENCY_CRITICAL
            and (refused is None or now_ns - refused >= QUIET_NS)
            and len(self._open(_gpus(holding))) == len(_gpus(holding))
        )

    def _costs(
        self, tolerance: SlowdownTolerance, holding: Holding, other: Holding, gpu: _Gpu
    ) -> float:
        """Return the log slowdown that `other` is expected to cause the pod."""
        slowed, slowing = holding.placement.application, other.placement.application
        return tolerance.costs(self._model(gpu), slowed, slowing)

    def _model(self, gpu: _Gpu) -> str:
        table = self._ledger.table
        row = table.row_of.get(gpu[0], -1)
        gpus = table.nodes[row].gpus if row >= 0 else ()
        return next((device.model for device in gpus if device.index == gpu[1]), "")

    # --- pods that make less progress together than one alone ---

    def _of_slow(
        self, gpu: _Gpu, tolerance_of: Callable[[str], SlowdownTolerance | None], now_ns: int
    ) -> tuple[Holding, SlowdownReason] | None:
        """Return the pod to evict from this GPU if its pods were too slow together for long enough:
        the last that came, of those that have no other GPU. None otherwise."""
        speeds = self._speeds(self._certain(gpu), now_ns)
        if speeds is None or sum(speeds.values()) >= LEAST_TOGETHER:
            self._slow.pop(gpu, None)
            return None
        residents = [
            holding for holding in self._harvest.in_order(*gpu) if holding.placement.uid in speeds
        ]
        co_residents, before = tuple(sorted(speeds)), self._slow.get(gpu)
        same = before is not None and before.co_residents == co_residents
        since_ns = before.since_ns if before is not None and same else now_ns
        self._slow[gpu] = _Slow(co_residents, since_ns, now_ns)
        if now_ns - since_ns < QUIET_NS or not self._open([gpu]):
            return None
        able = [
            holding
            for holding in reversed(residents)
            if len(_gpus(holding)) == 1
            and self._may_go(holding, now_ns)
            and tolerance_of(holding.placement.uid) is not None
        ]
        able.sort(key=lambda holding: holding.placement.uid in self._refused_ns)
        if not able:
            return None
        leaves = able[0]
        residency = [holding for holding in residents if holding is not leaves]
        slow_pod = min(residency, key=lambda holding: speeds[holding.placement.uid])
        tolerance = tolerance_of(leaves.placement.uid)
        costs = self._costs(tolerance, slow_pod, leaves, gpu) if tolerance is not None else 0.0
        return leaves, SlowdownReason(
            gpu[1],
            slow_pod.placement.uid,
            "together",
            round(1.0 / speeds[slow_pod.placement.uid], 3),
            together=round(sum(speeds.values()), 3),
            since_ns=since_ns,
            speedup=round(math.exp(costs), 3),
            applications=(slow_pod.placement.application, leaves.placement.application),
            gpu_model=self._model(gpu),
        )

    def _speeds(self, uids: Sequence[str], now_ns: int) -> dict[str, float] | None:
        """Return each pod's speed (1: as alone) at its last sample; None if the speed of a pod is
        unknown, a pod is latency-critical, or there is only one pod. Not every pod has a sample at
        each poll, as slow counters take longer."""
        speeds = {}
        for uid in uids if len(uids) > 1 else ():
            holding, account = self._ledger.holdings[uid], self._seen.get(uid)
            if account is None or not account.windows or now_ns - account.at_ns > GAP_NS:
                return None
            slowdown = account.windows[-1].slowdown
            if slowdown is None or account.co_residents != self._co_residents(holding):
                return None
            if self._harvest.class_of(holding) == LATENCY_CRITICAL:
                return None
            speeds[uid] = 1.0 / slowdown
        return speeds or None


def _gpus(holding: Holding) -> tuple[_Gpu, ...]:
    """Return the GPUs of which the pod has shares, each once."""
    node, shares = holding.placement.node, holding.placement.shares
    if len(shares) == 1:
        return ((node, shares[0].gpu),)
    return tuple(dict.fromkeys((node, share.gpu) for share in shares))


# --- how slow a pod may get -----------------------------------------------------------------------

LEAST_SEEN = 1.05
"""No pod is evicted for a smaller slowdown than this, even if a tight SLO sets a lower limit: a
poll counts about twenty units of progress, so one unit is a twentieth. (Admission of new pods uses
the exact limit.)"""


def tolerance_of(
    policies: Iterable[Policy], placement: Placement | None, ledger: Ledger
) -> SlowdownTolerance | None:
    """Return the pod's slowdown limits at this place: the policies', or the pod's own from its SLO
    if that is lower; None if no pod is evicted for it."""
    common = next((p.tolerance for p in policies if p.tolerance is not None), None)
    if common is None or placement is None or not placement.slowdown_limit:
        return common
    critical = common.critical
    for model in _models(placement, ledger):
        own = max(LEAST_SEEN, bound_on(placement.slowdown_limit, model, common.critical))
        critical = min(critical, own)
    return common._replace(critical=critical)


def _models(placement: Placement, ledger: Ledger) -> list[str]:
    """Return the models of the GPUs that the pod holds."""
    row = ledger.table.row_of.get(placement.node, -1)
    gpus = {gpu.index: gpu.model for gpu in ledger.table.nodes[row].gpus} if row >= 0 else {}
    return [gpus.get(share.gpu, "") for share in placement.shares]

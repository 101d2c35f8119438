"""Predicts a pod's peak GPU memory from earlier pods like it. Pods are alike if they are of one
namespace, request the same of one GPU, and run the same application or, if that is unknown, belong
to the same workload. A run counts if it completed and its memory was watched without a gap
(`telemetry/feed/memory_needs.py`). The largest peak is expected of the next pod, plus a margin that
shrinks with the number of runs. A pod that ran out of memory raises the expected peak to its charge
(`core/engine/oom_history.py`), and a running pod, if watched without a gap, to what it has used so
far. This is used for lending only: requests are still charged in full, against the declared limit.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weft.model import GpuRequest, PodRequest, Shape

MARGIN, FIRST_MARGIN, FEW = 102, 110, 3
"""The expected peak, in % of the largest observed peak, as no two runs are the same: 102, or 110
with fewer than three runs."""
MOST = 10_000
"""The most kinds of pods that are remembered; the one updated least recently is forgotten."""

Kind = tuple[str, str, str]


class PeakLearnt(msgspec.Struct, frozen=True, gc=False):
    """A kind of pods and its peak, in the form stored for the next process. The kind is
    `namespace`, `owner` and `asks`; other fields as in `PeakUsage`."""

    namespace: str
    owner: str
    asks: str
    most_mib: int
    runs: int


class PeakUsage(msgspec.Struct, frozen=True, gc=False):
    """The largest peak of a kind of pods, MiB, and how many runs were observed from start to
    end."""

    most_mib: int = 0
    runs: int = 0


class HasPod(Protocol):
    """A placed pod, with its request."""

    pod: PodRequest


class Peaks:
    """The peaks of each kind of pods; `fresh` are those that `news` has not returned yet."""

    def __init__(self) -> None:
        self.known: OrderedDict[Kind, PeakUsage] = OrderedDict()
        self._needs: dict[str, tuple[PodRequest, int]] = {}
        self.fresh: dict[Kind, PeakUsage] = {}
        self._running: Mapping[str, int] = {}

    def ran(self, pod: PodRequest, most_mib: int) -> bool:
        """Record a run's peak, MiB (0: not watched throughout); return True if this changes the
        expected peak."""
        return most_mib > 0 and self._learn(pod, most_mib, 1)

    def running(self, placed: Mapping[str, HasPod], peaks_mib: Mapping[str, int]) -> None:
        """Learn from what running pods (by UID) have used so far, if it is more than the known peak
        of their kind."""
        before, self._running = self._running, peaks_mib
        for uid, most_mib in peaks_mib.items():
            holder = placed.get(uid)
            if holder is None or before.get(uid) == most_mib:
                continue
            kind = kind_of(holder.pod)
            known = self.known.get(kind) if kind is not None else None
            if known is not None and known.runs and most_mib > known.most_mib:
                self._learn(holder.pod, most_mib, 0)

    def merge(self, peaks: Sequence[PeakLearnt]) -> bool:
        """Merge in other processes' peaks, the oldest first; return True if expected peaks
        change."""
        changes = False
        for peak in reversed(peaks):  # other processes' peaks count as older than this one's
            kind = peak.namespace, peak.owner, peak.asks
            before = self.known.get(kind)
            known = before or PeakUsage()
            joined = PeakUsage(max(known.most_mib, peak.most_mib), max(known.runs, peak.runs))
            changes |= _expected(joined) != _expected(known)
            self.known[kind] = joined
            if before is None:
                self.known.move_to_end(kind, last=False)
        while len(self.known) > MOST:
            self.known.popitem(last=False)
        self._needs = {}
        return changes

    def news(self) -> list[PeakLearnt]:
        """Return the peaks learnt since the last call, to be stored."""
        learnt, self.fresh = self.fresh, {}
        return [PeakLearnt(*kind, peak.most_mib, peak.runs) for kind, peak in learnt.items()]

    def ran_out(self, pod: PodRequest, least_mib: int) -> None:
        """Record that the pod ran out of memory, and that pods like it need this much."""
        self._learn(pod, least_mib, 0)

    def expected_mib(self, pod: PodRequest) -> int:
        """Return the memory that the pod will need of its GPU, MiB; 0 if unknown."""
        kind = kind_of(pod) if self.known else None
        peak = self.known.get(kind) if kind is not None else None
        return _expected(peak) if peak is not None else 0

    def needs(self, placed: Mapping[str, HasPod]) -> Callable[[str], int] | None:
        """Return a function from UID to `expected_mib` for these placed pods; None if no peaks are
        known. Values that the previous such function computed are reused."""
        before, now = self._needs, dict[str, tuple[PodRequest, int]]()
        self._needs = now
        if not self.known:
            return None

        def need_mib(uid: str) -> int:
            holder, known_need = placed.get(uid), before.get(uid)
            if holder is None:
                return 0
            if known_need is None or known_need[0] is not holder.pod:
                known_need = holder.pod, self.expected_mib(holder.pod)
            now[uid] = known_need
            return known_need[1]

        return need_mib

    def shape_of(self, pod: PodRequest, shape: Shape) -> Shape:
        """Return the shape with the expected peak in its GPU request, if the pod requests more than
        that."""
        expected_mib = self.expected_mib(pod)
        if not expected_mib or len(shape.gpu_requests) != 1 or shape.gpu_requests[0].least_mib:
            return shape
        gpu_request = shape.gpu_requests[0]
        if gpu_request.memory.kind == "mib" and gpu_request.memory.value <= expected_mib:
            return shape
        return replace(shape, gpu_requests=(replace(gpu_request, expected_mib=expected_mib),))

    def _learn(self, pod: PodRequest, most_mib: int, runs: int) -> bool:
        kind = kind_of(pod)
        if kind is None:
            return False
        before = self.known.get(kind, PeakUsage())
        now = PeakUsage(max(before.most_mib, most_mib), before.runs + runs)
        self.known[kind] = now
        self.known.move_to_end(kind)
        if now.most_mib > before.most_mib or before.runs < now.runs <= FEW:
            self.fresh[kind] = now
        changes = _expected(now) != _expected(before)
        if len(self.known) > MOST:
            self.known.popitem(last=False)
            self._needs = {}
        elif changes:
            self._needs = {}
        return changes


def kind_of(pod: PodRequest) -> Kind | None:
    """Return the kind of this pod; None if its peak is not learnt."""
    owner = pod.shape.application or pod.workload
    if (
        not owner
        or len(pod.shape.gpu_requests) != 1
        or not _is_one_share(pod.shape.gpu_requests[0])
    ):
        return None
    memory = pod.shape.gpu_requests[0].memory
    return pod.namespace, owner, f"{memory.value} {memory.kind} {memory.unit_mib}"


def peak_owner(pod: PodRequest) -> str:
    """Name the application or workload whose peak is expected of the pod."""
    application = pod.shape.application
    return f"application {application}" if application else f"workload {pod.workload}"


def _is_one_share(gpu_request: GpuRequest) -> bool:
    return (
        gpu_request.count == 1
        and not gpu_request.whole
        and not gpu_request.split
        and gpu_request.memory.value > 0
    )


def _expected(peak: PeakUsage) -> int:
    if not peak.runs:
        return 0
    margin = MARGIN if peak.runs >= FEW else FIRST_MARGIN
    return -(-peak.most_mib * margin // 100)

"""Predicts a pod's peak GPU memory from earlier pods like it. Pods are alike if they are of one
namespace, request the same of one GPU, and run the same application or, if that is unknown, belong
to the same workload. A run counts if it completed and its memory was watched without a gap
(`telemetry/feed/memory_needs.py`). The largest peak is expected of the next pod, plus a margin that
shrinks with the number of runs. A pod that ran out of memory raises it to its lesson, and a running
pod, watched so, to what it has used so far. This is used for lending only: requests are still
charged in full, against the declared limit.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weft.model import GpuRequest, PodRequest, Shape

MARGIN, FIRST_MARGIN, FEW = 102, 110, 3
"""Expected is 1.02 times the most that was seen, as no two runs are quite the same; 1.10 times of
fewer runs than three."""
MOST = 10_000
"""Kinds of pods that are known at most; the one heard of least recently is forgotten."""

Kind = tuple[str, str, str]


class PeakLearnt(msgspec.Struct, frozen=True, gc=False):
    """The present knowledge of a kind of pods, to be stored for the next process, and read back
    from there. The kind is `namespace`, `owner` and `asks`; the rest as in `PeakUsage`.
    """

    namespace: str
    owner: str
    asks: str
    most_mib: int
    runs: int


class PeakUsage(msgspec.Struct, frozen=True, gc=False):
    """The largest peak of a kind of pods, MiB, and how many runs were seen from start to end."""

    most_mib: int = 0
    runs: int = 0


class HasPod(Protocol):
    """The pod as it was placed."""

    pod: PodRequest


class Peaks:
    """The peaks of each kind of pods; `fresh` are those for `news` to take out."""

    def __init__(self) -> None:
        self.known: OrderedDict[Kind, PeakUsage] = OrderedDict()
        self._needs: dict[str, tuple[PodRequest, int]] = {}
        self.fresh: dict[Kind, PeakUsage] = {}
        self._running: Mapping[str, int] = {}

    def ran(self, pod: PodRequest, most_mib: int) -> bool:
        """Note a run's peak (0: not watched throughout); return True if this changes what is
        expected."""
        return most_mib > 0 and self._learn(pod, most_mib, 1)

    def running(self, placed: Mapping[str, HasPod], peaks_mib: Mapping[str, int]) -> None:
        """Learn what pods (UID) used so far, where that is more than of pods like them is known."""
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
        """Take over other processes' peaks, the oldest first; True if expectations change."""
        changes = False
        for peak in reversed(peaks):  # all of it before what was learnt here
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
        """Note that the pod ran out of memory, and that pods like it need this much."""
        self._learn(pod, least_mib, 0)

    def expected_mib(self, pod: PodRequest) -> int:
        """Memory that the pod will need of its GPU, MiB; 0 if that is unknown."""
        kind = kind_of(pod) if self.known else None
        peak = self.known.get(kind) if kind is not None else None
        return _expected(peak) if peak is not None else 0

    def needs(self, placed: Mapping[str, HasPod]) -> Callable[[str], int] | None:
        """Return a function from UID to `expected_mib` for these placed pods; None if nothing is
        known of any pod. Needs that the last such function returned are reused.
        """
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
        """Return the shape with the expected peak in its GPU request, if the pod requests more."""
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
    """Return the kind of this pod; None if nothing can be learnt from it."""
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
    """Name the kind whose peak is expected of the pod."""
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

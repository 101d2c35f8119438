"""Learns from pods that ran out of GPU memory how much pods like them need. A pod's request cannot
be changed in Kubernetes, so the lesson applies to its *workload* (the controller creates the next
pod): what Weft charges for its pods from then on.

    first time    1.25 × the larger of what it asked and what it was seen to use, at most the card;
                  and never again on borrowed memory
    second time   a GPU of its own

Lessons only grow, and are plain values that a host stores for the next process. Each OOM end has a
name, so that it counts once however often it is reported. Beyond `MOST` workloads the one that
failed least recently is forgotten.
"""

from collections import Counter

import msgspec
from msgspec.structs import replace

from weft.core.ledger import FAR, Ledger
from weft.model import GpuRequest, Placement, PodRequest, Shape

_MORE, _OF = 5, 4  # 1.25 times
ALONE_AFTER = 2
MOST = 1_000


class OutOfMemory(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A pod of this workload, placed so, ran out of GPU memory; it may go on, and run out again.
    `end` names this occurrence. `peak_mib` is the most it was seen to use of a GPU (0: unseen).
    `over`: the pod ends by it, so that another takes its place.
    """

    placement: Placement
    workload: str
    end: str
    peak_mib: int = 0
    over: bool = False


class OomRecord(msgspec.Struct, frozen=True, gc=False):
    """A workload's OOM ends, and the least that a GPU must give it, MiB.

    Beyond `ALONE_AFTER` `times` are not counted: nothing depends on more. `ends` are those counted,
    as far as their names are known.
    """

    times: int
    least_mib: int
    ends: tuple[str, ...] = ()

    def joined(self, other: "OomRecord") -> "OomRecord":
        """Return both records merged."""
        ends = tuple(dict.fromkeys(self.ends + other.ends))
        times = min(max(self.times, other.times, len(ends)), ALONE_AFTER)
        return OomRecord(times, max(self.least_mib, other.least_mib), ends[:ALONE_AFTER])


class OomCharge(msgspec.Struct, frozen=True, gc=False):
    """A pod is charged by its workload's lesson rather than by its own request."""

    workload: str
    times: int
    least_mib: int


class OomHistory:
    """Every lesson learnt, by workload, the latest last. `owed` are pods still to come in the place
    of those that ran out of memory."""

    def __init__(self) -> None:
        self.known: dict[str, OomRecord] = {}
        self.owed: Counter[str] = Counter()

    def learn(self, out_of_memory: OutOfMemory, ledger: Ledger) -> OomRecord | None:
        """Return the workload's new record; None if nothing changed."""
        before = self.known.get(out_of_memory.workload, _NOTHING)
        if out_of_memory.end in before.ends or not out_of_memory.placement.shares:
            return None
        share = max(out_of_memory.placement.shares, key=lambda gpu_share: gpu_share.memory_mib)
        row = ledger.table.row_of.get(out_of_memory.placement.node, -1)
        device = ledger.table.device_row(row, share.gpu) if row >= 0 else -1
        card_mib = int(ledger.table.device_memory_total[device]) if device >= 0 else FAR
        least = min(card_mib, -(-max(share.memory_mib, out_of_memory.peak_mib) * _MORE // _OF))
        times = min(before.times + 1, ALONE_AFTER)
        oom_record = before.joined(OomRecord(times, least, (out_of_memory.end,)))
        self._keep(out_of_memory.workload, oom_record)
        if out_of_memory.over:
            self.owed[out_of_memory.workload] += 1
        return oom_record if oom_record != before else None

    def merge(self, oom_history: dict[str, OomRecord]) -> bool:
        """Take over what other processes learnt; True if any of it is new."""
        new = False
        for workload, oom_record in oom_history.items():
            known = self.known.get(workload, _NOTHING)
            joined = known.joined(oom_record)
            new |= joined != known
            self._keep(workload, joined)
        return new

    def _keep(self, workload: str, oom_record: OomRecord) -> None:
        self.known.pop(workload, None)
        self.known[workload] = oom_record
        if len(self.known) > MOST:
            oldest = next(iter(self.known))
            del self.known[oldest], self.owed[oldest]

    def goes_first(self, pod: PodRequest) -> bool:
        """True, once for each, if the pod takes the place of one that ran out of memory."""
        workload = workload_of(pod)
        if workload not in self.owed:
            return False
        self.owed[workload] -= 1
        if not self.owed[workload]:
            del self.owed[workload]
        return True

    def shape_of(self, pod: PodRequest) -> Shape:
        """Return the charge that the workload's past demands of the pod."""
        oom_record = self.known.get(workload_of(pod)) if self.known else None
        if oom_record is None:
            return pod.shape
        gpu_requests = tuple(
            _raised(gpu_request, oom_record) for gpu_request in pod.shape.gpu_requests
        )
        return replace(pod.shape, gpu_requests=gpu_requests)

    def charged(self, pod: PodRequest) -> OomCharge | None:
        """For the record: whether a lesson, and not its request alone, says what it is charged."""
        workload = workload_of(pod)
        oom_record = self.known.get(workload) if self.known else None
        if oom_record is None or not any(
            _matters(gpu_request, oom_record) for gpu_request in pod.shape.gpu_requests
        ):
            return None
        return OomCharge(workload, oom_record.times, oom_record.least_mib)


def workload_of(pod: PodRequest) -> str:
    """Return the workload whose next pod is like this one; a pod that nobody recreates is its
    own."""
    return pod.workload or pod.uid


def _raised(gpu_request: GpuRequest, oom_record: OomRecord) -> GpuRequest:
    if gpu_request.whole or gpu_request.split:
        return gpu_request
    if oom_record.times >= ALONE_AFTER:
        return replace(gpu_request, milli=1000, whole=True, least_mib=oom_record.least_mib)
    return replace(gpu_request, least_mib=oom_record.least_mib)


def _matters(gpu_request: GpuRequest, oom_record: OomRecord) -> bool:
    if gpu_request.whole or gpu_request.split:
        return False
    asks_less = gpu_request.memory.kind != "mib" or gpu_request.memory.value < oom_record.least_mib
    return asks_less or oom_record.times >= ALONE_AFTER


_NOTHING = OomRecord(0, 0)

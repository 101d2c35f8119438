"""Learns from pods that ran out of GPU memory how much pods like them need. A pod's request cannot
be changed in Kubernetes, so what is learnt applies to the next pods of its *workload*, which its
controller creates: Weft charges them more than they request.

    first time    1.25 × the larger of its request and its observed peak, at most the card; and its
                  pods no longer borrow memory
    second time   a GPU of its own

Charges only grow, and are plain values that a host stores for the next process. Each out-of-memory
end has a name, so that it counts once even if it is reported several times. Beyond `MOST`
workloads, the one that failed least recently is forgotten.
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
    """A pod of this workload, at this placement, ran out of GPU memory; it may continue, and run
    out again. `end` names this occurrence. `peak_mib` is the most memory of a GPU that it was seen
    to use (0: unknown). `over`: the pod ended, so that its controller creates another.
    """

    placement: Placement
    workload: str
    end: str
    peak_mib: int = 0
    over: bool = False


class OomRecord(msgspec.Struct, frozen=True, gc=False):
    """A workload's out-of-memory ends, and the least memory of a GPU that its pods are charged,
    MiB.

    `times` is not counted beyond `ALONE_AFTER`, as nothing depends on more. `ends` are the names of
    the counted ends, where known.
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
    """The reason why a pod is charged more than it requests: its workload ran out of memory."""

    workload: str
    times: int
    least_mib: int


class OomHistory:
    """The record of each workload, the latest last. `owed` counts, by workload, the pods still to
    come that replace pods that ran out of memory."""

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
        """Merge in what other processes learnt; return True if any of it is new."""
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
        """Return True if the pod replaces one that ran out of memory; each such end counts for one
        pod only."""
        workload = workload_of(pod)
        if workload not in self.owed:
            return False
        self.owed[workload] -= 1
        if not self.owed[workload]:
            del self.owed[workload]
        return True

    def shape_of(self, pod: PodRequest) -> Shape:
        """Return the shape with which the pod is charged, given its workload's record."""
        oom_record = self.known.get(workload_of(pod)) if self.known else None
        if oom_record is None:
            return pod.shape
        gpu_requests = tuple(
            _raised(gpu_request, oom_record) for gpu_request in pod.shape.gpu_requests
        )
        return replace(pod.shape, gpu_requests=gpu_requests)

    def charged(self, pod: PodRequest) -> OomCharge | None:
        """Return the workload's record if it changes what the pod is charged, else None; for the
        decision record."""
        workload = workload_of(pod)
        oom_record = self.known.get(workload) if self.known else None
        if oom_record is None or not any(
            _matters(gpu_request, oom_record) for gpu_request in pod.shape.gpu_requests
        ):
            return None
        return OomCharge(workload, oom_record.times, oom_record.least_mib)


def workload_of(pod: PodRequest) -> str:
    """Return the name of the pod's workload; for a pod that no controller recreates, its UID."""
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

"""A pod between its decision and its end: what unwinding it needs."""

from typing import NamedTuple

from weft.core.engine.records import Record
from weft.core.engine.waiting_pods import WaitingPod
from weft.core.framework.signals import Bytes, Floats, SignalsView


class MeasuredAtPlacement(NamedTuple):
    """The measurements of the GPUs that a pod got, when it got them: all `columns` of each GPU by
    its index, values and ages. `looked_ns` is when they were looked at."""

    looked_ns: int
    columns: tuple[str, ...]
    gpus: dict[int, tuple[Floats, Bytes]]


class PlacedPod:
    """A pod with a place that is not certain yet, or is."""

    __slots__ = ("own", "pod", "profile", "queued", "record", "saw", "tries")

    def __init__(self, waiting: WaitingPod, record: Record, signals: SignalsView) -> None:
        self.pod, self.profile, self.tries = waiting.pod, waiting.profile, waiting.tries
        self.record = record
        self.saw = _saw(record, signals) if "signals" in self.profile.reads else None
        self.queued = waiting.state != "asked"
        self.own: WaitingPod | None = None  # what it was in our queue when kube-scheduler bound it


def _saw(record: Record, view: SignalsView) -> MeasuredAtPlacement | None:
    """None where nobody measures anything."""
    if not view.version:
        return None
    by_gpu = {}
    for share in record.shares:
        known = view.of_gpu(record.node, share.gpu)
        if known is not None:
            by_gpu[share.gpu] = known
    return MeasuredAtPlacement(view.at_ns, view.source.columns, by_gpu)

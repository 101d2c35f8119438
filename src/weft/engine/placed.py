"""A pod between its decision and its end: what unwinding it needs."""

from weft.engine.queue import Waiting
from weft.engine.records import Record


class Placed:
    """A pod with a place that is not certain yet, or is."""

    __slots__ = ("own", "pod", "profile", "queued", "record", "tries", "waits")

    def __init__(self, waiting: Waiting, record: Record) -> None:
        self.pod, self.profile, self.tries = waiting.pod, waiting.profile, waiting.tries
        self.record = record
        self.waits = False
        self.queued = waiting.state != "asked"
        self.own: Waiting | None = None  # what it was in our queue when kube-scheduler bound it

    def tell_lost(self) -> None:
        """Tell the policies that the place is lost before the pod was bound."""
        for policy in self.profile.policies:
            policy.unreserved(self.pod, self.record.node)

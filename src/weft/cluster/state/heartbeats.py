"""Tracks heartbeats of nodes' agents: which are late or withdrawn, and since when.

A Lease's age counts from when it was last seen to change, by the local clock, as nodes' clocks may
be wrong. For a Lease that is seen for the first time, its own time counts, so that a scheduler that
just started places no pods where an agent has died. If that was only a wrong clock, the next
renewal corrects it within ten seconds. A node whose agent writes no Lease (an older version) is
never late.
"""

import datetime
from typing import NamedTuple

from weft.kube.structs import Lease
from weft.kube.watch import Change, Deleted
from weft.model.heartbeat import HEARTBEAT_LATE_S, HEARTBEAT_PREFIX


class _Beat(NamedTuple):
    """The last state of a Lease: its own renewal time, and the local time at which that was seen
    (None: withdrawn)."""

    renewed: str
    seen_s: float | None


class Heartbeats:
    """The agents' Leases, by node. Times are seconds of the local monotonic clock."""

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._silent: dict[str, str] = {}

    def take(self, change: Change[Lease], now_s: float, wall: datetime.datetime) -> None:
        """Take in an added, changed or deleted Lease; Leases of other components are ignored."""
        lease = change.object  # type: ignore[union-attr]
        name = lease.metadata.name
        if not name.startswith(HEARTBEAT_PREFIX):
            return
        node = name.removeprefix(HEARTBEAT_PREFIX)
        if isinstance(change, Deleted):
            self._beats.pop(node, None)
            return
        renewed, before = lease.spec.renew_time or "", self._beats.get(node)
        if not lease.spec.holder_identity:
            self._beats[node] = _Beat(renewed, None)
        elif before is None:
            self._beats[node] = _Beat(renewed, now_s - _age_s(renewed, wall))
        elif before.renewed != renewed or before.seen_s is None:
            self._beats[node] = _Beat(renewed, now_s)

    def judge(self, now_s: float) -> set[str]:
        """Update which agents are late; return the nodes for which this changed."""
        silent = {
            node: beat.renewed
            for node, beat in self._beats.items()
            if beat.seen_s is None or now_s - beat.seen_s > HEARTBEAT_LATE_S
        }
        before, self._silent = self._silent, silent
        return {node for node, _ in before.items() ^ silent.items()}

    def late_at_s(self) -> float | None:
        """Return the time at which the next heartbeat is late; None if none can be."""
        times = (b.seen_s for n, b in self._beats.items() if n not in self._silent)
        seen = [seen_s for seen_s in times if seen_s is not None]
        return min(seen) + HEARTBEAT_LATE_S if seen else None

    def silent_since(self, node: str) -> str:
        """Return the time since when the node's agent is silent, as text; "" if it is not."""
        return self._silent.get(node, "")


def _age_s(renewed: str, wall: datetime.datetime) -> float:
    try:
        age_s = (wall - datetime.datetime.fromisoformat(renewed)).total_seconds()
        return max(age_s, 0.0)
    except (ValueError, TypeError):
        return 0.0

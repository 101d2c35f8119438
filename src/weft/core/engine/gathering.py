"""Lets the pods of a gang wait for each other, and one of them, the head, for places for all.

added ──▶ GATHERING ──as many as it needs──▶ its head waits in the queue for all
              ▲                                  └─ enough have places: each on its own
              └── too few of them have places by now
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.engine.gangs import GangMembers, Gangs
from weft.model import Gang

if TYPE_CHECKING:
    from weft.core.engine.queue import WaitingPod


class GatheringPods:
    """The part of the queue that gathers the pods of `gangs`; `Queue` decides where single pods
    wait."""

    gangs: Gangs[WaitingPod]

    def _withdraw(self, waiting: WaitingPod, state: str, now_ns: int) -> None:
        """Remove the pod from wherever it waits for a try of its own."""
        raise NotImplementedError

    def _hold(self, waiting: WaitingPod, now_ns: int) -> None:
        """Let the pod wait for the end of its back-off, and then for its turn."""
        raise NotImplementedError

    def has_place(self, uid: str, gang: Gang, now_ns: int) -> None:
        """Record that a pod of the gang has a place. If the gang needs no more, its other waiting
        pods are placed one by one."""
        before = self.gangs.of(gang)
        had_quorum = before is not None and before.has_quorum
        members = self.gangs.placed(uid, gang)
        if had_quorum or not members.has_quorum:
            resized = members.head is not None and not members.is_complete
            # The head itself may have been bound by another scheduler.
            headless = members.head is None and members.is_complete and not had_quorum
            if resized or headless:
                self._gather(members, now_ns)
            return
        head, members.head = members.head, None
        if head is not None and head.state != "trying":
            self._withdraw(head, "gathering", now_ns)
        for waiting in list(members.waiting.values()):
            if waiting.state == "gathering":
                self.go_alone(waiting, now_ns)

    def go_alone(self, waiting: WaitingPod, now_ns: int) -> None:
        """Let a pod whose gang has enough places wait as any other pod does."""
        waiting.group = waiting.own_group()
        self._hold(waiting, now_ns)

    def _leave_gang(self, waiting: WaitingPod, now_ns: int) -> None:
        gang = waiting.pod.gang
        members = self.gangs.of(gang) if gang else None
        if members is None or not gang:
            return
        self.gangs.waits_no_more(waiting, gang)
        if members.head is waiting:
            members.head = None
        if not members.has_quorum:
            self._gather(members, now_ns)

    def _gather(self, members: GangMembers[WaitingPod], now_ns: int) -> None:
        """If as many pods exist as the gang needs, let one of them wait for places for all."""
        head = members.head
        if not members.is_complete or not members.waiting:
            if head is not None:
                members.head = None
                self._withdraw(head, "gathering", now_ns)
            return
        if head is None:
            head = members.head = min(members.waiting.values(), key=lambda waiting: waiting.key)
            head.tries = max(head.tries, members.tries)
            head.ready_ns = max(head.ready_ns, members.ready_ns)
            head.group = head.gang_group(members.gang.key)
            self._hold(head, now_ns)
        elif head.state in {"parked", "faulty"}:
            self._withdraw(head, "gathering", now_ns)
            self._hold(head, now_ns)

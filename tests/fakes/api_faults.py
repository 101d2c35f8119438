"""Faults of a fake API server: what goes wrong between a client and the truth.

A fault waits for requests that match it, happens `times` times, and counts its hits. Where in a
request's life it strikes:

    request ── lose-request ── delay ── status ── [commit] ── lose-answer / status-after ── answer
"""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal[
    "lose-request", "delay", "status", "lose-answer", "status-after", "delay-answer"
]

# The write happened, whatever the client learns of it.
AFTER: tuple[FaultKind, ...] = ("lose-answer", "status-after", "delay-answer")


@dataclass(eq=False)
class Fault:
    """One planned fault for requests of `method` ("" for any) whose path contains `path`.

    `lose-request` and `lose-answer` reset the connection before and after the write. `status` and
    `status-after` answer `code`. `delay` and `delay-answer` hold the request or the answer until
    `gate` is set. `struck` is set at the first hit.
    """

    kind: FaultKind
    path: str = ""
    method: str = ""
    times: int = 1
    code: int = 500
    retry_after_s: int | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    hits: int = 0

    def matches(self, method: str, path: str) -> bool:
        """True if this fault is still due, for such a request."""
        return self.hits < self.times and self.method in ("", method) and self.path in path


class ApiFaults:
    """The faults that are planned; `counts` says how often each kind has struck."""

    def __init__(self) -> None:
        self._planned: list[Fault] = []
        self.counts: dict[FaultKind, int] = {}

    def plan(self, fault: Fault) -> Fault:
        """Add a fault; faults strike in the order they were planned."""
        self._planned.append(fault)
        return fault

    def due(self, method: str, path: str, after: bool) -> Fault | None:
        """The fault that strikes this request before (or after) its write; it is used up once."""
        for fault in self._planned:
            if (fault.kind in AFTER) is after and fault.matches(method, path):
                fault.hits += 1
                fault.struck.set()
                self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
                if fault.hits >= fault.times:
                    self._planned.remove(fault)
                return fault
        return None

    def forget(self) -> None:
        """Plan nothing any more."""
        self._planned.clear()

    @property
    def any(self) -> bool:
        """True if anything is planned."""
        return bool(self._planned)

"""The decisions file, JSON Lines.

Line 1 is the header: schema, Weft's version, seed, and the profiles with their policies, options
and weights. Every other line is one event as the engine got it, its time, and the records of the
decisions it led to. Large snapshots of signals are in a folder beside it (`side.py`). That is all a
replay needs. Lines are chained by hashes (`chain.py`), and the last one says that it is the last.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

import weft
from weft.core.engine import (
    Bind,
    Command,
    Engine,
    Event,
    Evict,
    Faulted,
    PolicyInput,
    Record,
    SignalsChanged,
    Unschedulable,
)
from weft.core.framework import Plugin, Policy, Profile
from weft.core.framework.policy import PolicyOrigin
from weft.core.ledger import RequestLimits
from weft.core.record.chain import Chain, sealed_size
from weft.core.record.side import SignalsKept, SnapshotPacker, keep
from weft.model import BadInputError

INLINE_BYTES = 4096
"""Snapshots up to this size stand in the file itself: a few GPUs' need no files of their own."""

SCHEMA = "weft.dev/decisions/v3"
FORMER = "weft.dev/decisions/v2"
"""As Weft 0.1.0 wrote it: the same under `FORMER_NAMES`."""

FORMER_NAMES = {
    "claim": "gpu_request",
    "slack": "slowdown_limit",
    "lessons": "oom_history",
    "lesson": "oom_record",
    "who": "owner",
    "victim": "slow_pod",
}


class PolicyUse(msgspec.Struct, frozen=True):
    """A policy in a profile: how it was made, and its weight."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1
    options: dict[str, Any] = {}
    origin: PolicyOrigin | UnsetType = UNSET  # of Weft's own policies it is not in the file at all

    @classmethod
    def of(cls, policy: Policy, weight: int = 1) -> Self:
        """As this policy was made."""
        return cls(policy.name, weight, policy.made_with, policy.origin or UNSET)


class ProfileUse(msgspec.Struct, frozen=True):
    """A profile as configured."""

    name: str
    policies: Annotated[list[PolicyUse], msgspec.Meta(min_length=1)]


class Header(msgspec.Struct, frozen=True):
    """Line 1."""

    profiles: Annotated[list[ProfileUse], msgspec.Meta(min_length=1)]
    seed: int = 0
    keep_top: int = 0
    overcommit_permille: int = 1000
    harvest_permille: int = 1000
    known_only: bool = False
    turn_looks: int = 0
    schema: str = SCHEMA
    weft: str = weft.__version__

    def engine(self, create: Callable[..., Any]) -> Engine:
        """The engine this header describes; `create(name, **options)` makes policies."""
        profiles = [
            Profile(use.name, [Plugin(create(p.name, **p.options), p.weight) for p in use.policies])
            for use in self.profiles
        ]
        limits = RequestLimits(self.overcommit_permille, self.harvest_permille, self.known_only)
        return Engine(
            profiles,
            seed=self.seed,
            keep_top=self.keep_top,
            limits=limits,
            turn_looks=self.turn_looks,
        )


class DecisionLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event and the records of the decisions it led to."""

    at_ns: int
    event: Event
    records: list[Record] = []


class FileLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line as it stands in the file: of a large snapshot only its hash."""

    at_ns: int
    event: Event | SignalsKept
    records: list[Record] = []


class EndRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line: why the record ends. `full`: at its bound; `failed`: see `why`."""

    end: Literal["closed", "full", "failed"]
    why: str = ""


_END_BYTES = 512
"""Kept free for the end record."""


ChainMark = tuple[bytes, int]
"""Where a file's chain was: its last hash, and the lines so far."""


class FullError(OSError):
    """The record is as large as it may be."""


class DecisionLines:
    """Header and lines as they stand in the file; with a `side` folder large snapshots go there.

    `size` is what both take, bytes; at most `most_bytes` (0: however many).
    """

    def __init__(self, side: Path | None = None, most_bytes: int = 0) -> None:
        self._side, self._most = side, most_bytes
        self.size = 0
        self._packer, self._encoder = SnapshotPacker(), msgspec.json.Encoder()
        self._chain = Chain()

    def encoded(self, line: Header | DecisionLine) -> bytes:
        """The line. What it names is in the folder when this returns; OSError where that fails."""
        if self._side is not None and isinstance(line, DecisionLine) and is_large(line):
            assert isinstance(line.event, SignalsChanged)
            stored, packed = self._packer.pack(line.event.signals)
            text = self._encoder.encode(FileLine(line.at_ns, stored, line.records))
            self.take(len(packed) + sealed_size(text))
            keep(self._side, stored.blob, packed)
            return self._chain.sealed(text)
        return self.sealed(self._encoder.encode(line))

    def sealed(self, text: bytes) -> bytes:
        """A line that is encoded already, with its hash."""
        self.take(sealed_size(text))
        return self._chain.sealed(text)

    def ended(self, end: EndRecord) -> bytes:
        """The last line."""
        return self._chain.sealed(self._encoder.encode(end))

    def take(self, size: int) -> None:
        """So many bytes more are about to be written; `FullError` where there is no room."""
        if self._most and self.size + size + _END_BYTES > self._most:
            raise FullError(0, f"it and its signals would be more than {self._most >> 20:,} MiB")
        self.size += size

    def mark(self) -> ChainMark:
        """Where the chain is."""
        return self._chain.last, self._chain.lines

    def back_to(self, mark: ChainMark) -> None:
        """Drops from the file what was sealed since."""
        self._chain.last, self._chain.lines = mark


class DecisionsWriter:
    """Writes header and lines to `out`, snapshots and all."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._lines = out, DecisionLines()

    def write(self, line: Header | DecisionLine) -> None:
        """One line more."""
        self._out.write(self._lines.encoded(line))

    def close(self) -> None:
        """The record is complete. `out` is its owner's to close."""
        self._out.write(self._lines.ended(EndRecord("closed")))


def is_large(line: DecisionLine) -> bool:
    """True if the line holds a snapshot too large for the file itself."""
    return isinstance(line.event, SignalsChanged) and len(line.event.signals.values) > INLINE_BYTES


class Recorder:
    """Wraps an engine's `handle`, and has what went in and what came out written by `write`."""

    def __init__(
        self, engine: Engine, header: Header, write: Callable[[Header | DecisionLine], None]
    ) -> None:
        self._engine, self._write = engine, write
        self._write(replace(header, schema=SCHEMA))

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """As `Engine.handle`, and on the record."""
        commands = self._engine.handle(event, now_ns)
        self._write(DecisionLine(now_ns, event, records_of(commands)))
        return commands


def hand_over(engine: Engine, line: DecisionLine, number: int) -> list[Command]:
    """Hand the `number`-th event to the engine; `BadInputError` if a policy cannot read it."""
    commands = engine.handle(line.event, line.at_ns)
    if isinstance(line.event, PolicyInput) and not line.records:
        for command in commands:
            if isinstance(command, Faulted) and isinstance(command.error, msgspec.ValidationError):
                location = f"event {number}, PolicyInput for {line.event.policy}"
                raise BadInputError(location, str(command.error)) from None
    return commands


def records_of(commands: list[Command]) -> list[Record]:
    """The decision records among commands."""
    return [c.record for c in commands if isinstance(c, Bind | Unschedulable | Evict | Faulted)]

"""The decisions file, JSON Lines.

Line 1 is the header: schema, Weft's version, seed, and the profiles with their policies, options
and weights. Every other line is one event as the engine received it, its time, and the records of
the decisions that followed. Large snapshots of signals are in a folder next to the file
(`core/record/side.py`). A replay needs nothing else. Lines are chained by hashes
(`core/record/chain.py`), and the last one is an end record.
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
from weft.model.queue_rules import (
    NO_MOVES,
    NO_QUEUES,
    NOTHING_KEPT,
    HeadOfLine,
    MoveRules,
    QueueRules,
)
from weft.model.request import PREFERENCES_PERCENT

INLINE_BYTES = 4096
"""Size in bytes up to which a snapshot is written into the file itself, so that a cluster of a few
GPUs needs no folder."""

SCHEMA = "weft.dev/decisions/v3"
FORMER = "weft.dev/decisions/v2"
"""The schema of Weft 0.1.0: the same fields, some under the names in `FORMER_NAMES`."""

FORMER_NAMES = {
    "claim": "gpu_request",
    "slack": "slowdown_limit",
    "lessons": "oom_history",
    "lesson": "oom_record",
    "who": "owner",
    "victim": "slow_pod",
}


class PolicyUse(msgspec.Struct, frozen=True):
    """A policy in a profile: its name, weight and options."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=0)] = 1
    options: dict[str, Any] = {}
    origin: PolicyOrigin | UnsetType = UNSET  # left out of the file for Weft's own policies

    @classmethod
    def of(cls, policy: Policy, weight: int = 1) -> Self:
        """Return the name, weight, options and origin of this policy."""
        return cls(policy.name, weight, policy.made_with, policy.origin or UNSET)


class ProfileUse(msgspec.Struct, frozen=True):
    """A profile as recorded in the header, with its policies and settings."""

    name: str
    policies: Annotated[list[PolicyUse], msgspec.Meta(min_length=1)]
    preferences: Annotated[int, msgspec.Meta(ge=0, le=100)] | UnsetType = UNSET
    preempts: bool | UnsetType = UNSET
    budgets_are_law: bool | UnsetType = UNSET

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """Return the settings of this profile and its policies; settings at their default are left
        out."""
        percent = profile.preferences
        return cls(
            profile.name,
            [PolicyUse.of(plugin.policy, plugin.weight) for plugin in profile.plugins],
            UNSET if percent == PREFERENCES_PERCENT else percent,
            profile.preempts or UNSET,
            profile.budgets_are_law or UNSET,
        )


class Header(msgspec.Struct, frozen=True):
    """Line 1 of a decisions file: everything needed to create the engine whose events follow."""

    profiles: Annotated[list[ProfileUse], msgspec.Meta(min_length=1)]
    seed: int = 0
    keep_top: int = 0
    overcommit_permille: int = 1000
    harvest_permille: int = 1000
    known_only: bool = False
    turn_looks: int = 0
    queues: QueueRules | UnsetType = UNSET  # left out of the file unless configured
    head_of_line: HeadOfLine | UnsetType = UNSET  # left out unless configured
    moves: MoveRules | UnsetType = UNSET
    schema: str = SCHEMA
    weft: str = weft.__version__

    def engine(self, create: Callable[..., Any]) -> Engine:
        """Create the engine this header describes; `create(name, **options)` makes policies."""
        profiles = [
            Profile(
                use.name,
                [Plugin(create(p.name, **p.options), p.weight) for p in use.policies],
                preferences=PREFERENCES_PERCENT if use.preferences is UNSET else use.preferences,
                preempts=bool(use.preempts),
                budgets_are_law=bool(use.budgets_are_law),
            )
            for use in self.profiles
        ]
        limits = RequestLimits(self.overcommit_permille, self.harvest_permille, self.known_only)
        return Engine(
            profiles,
            seed=self.seed,
            keep_top=self.keep_top,
            limits=limits,
            turn_looks=self.turn_looks,
            queues=self.teams,
            head_of_line=self.keeping,
            moves=self.moving,
        )

    @property
    def teams(self) -> QueueRules:
        """Rules of the queues; `NO_QUEUES` if the header has none."""
        return NO_QUEUES if self.queues is UNSET else self.queues

    @property
    def keeping(self) -> HeadOfLine:
        """Rules by which places are kept free for waiting pods; `NOTHING_KEPT` if the header has
        none."""
        return NOTHING_KEPT if self.head_of_line is UNSET else self.head_of_line

    @property
    def moving(self) -> MoveRules:
        """Rules by which running pods are moved to make room for waiting pods; `NO_MOVES` if the
        header has none."""
        return NO_MOVES if self.moves is UNSET else self.moves


class DecisionLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event and the records of the decisions it led to."""

    at_ns: int
    event: Event
    records: list[Record] = []


class FileLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line as it is written in the file: a large snapshot is replaced by its hash."""

    at_ns: int
    event: Event | SignalsKept
    records: list[Record] = []


class EndRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Last line of a decisions file, with the reason why recording ended: `closed`, `full` (the
    file reached its size limit) or `failed` (`why` gives the error)."""

    end: Literal["closed", "full", "failed"]
    why: str = ""


_END_BYTES = 512
"""Space reserved for the end record, in bytes."""


ChainMark = tuple[bytes, int]
"""A position in a file's chain: the last hash, and the number of lines."""


class FullError(OSError):
    """The decisions file has reached its size limit."""


class DecisionLines:
    """Encodes the lines of a decisions file; writes large snapshots to the folder `side` if there
    is one.

    `size` counts the bytes of file and folder, limited to `most_bytes` (0: no limit)."""

    def __init__(self, side: Path | None = None, most_bytes: int = 0) -> None:
        self._side, self._most = side, most_bytes
        self.size = 0
        self._packer, self._encoder = SnapshotPacker(), msgspec.json.Encoder()
        self._chain = Chain()

    def encoded(self, line: Header | DecisionLine) -> bytes:
        """Encode a line, after writing its large snapshot to the folder. Raises `OSError` if the
        write fails and `FullError` at the size limit."""
        if self._side is not None and isinstance(line, DecisionLine) and is_large(line):
            assert isinstance(line.event, SignalsChanged)
            stored, packed = self._packer.pack(line.event.signals)
            text = self._encoder.encode(FileLine(line.at_ns, stored, line.records))
            self.take(len(packed) + sealed_size(text))
            keep(self._side, stored.blob, packed)
            return self._chain.sealed(text)
        return self.sealed(self._encoder.encode(line))

    def sealed(self, text: bytes) -> bytes:
        """Add the chain field to an encoded line; raises `FullError` at the size limit."""
        self.take(sealed_size(text))
        return self._chain.sealed(text)

    def ended(self, end: EndRecord) -> bytes:
        """Encode the end record; space for it is always reserved."""
        return self._chain.sealed(self._encoder.encode(end))

    def take(self, size: int) -> None:
        """Count bytes that are about to be written; raises `FullError` if they exceed the limit."""
        if self._most and self.size + size + _END_BYTES > self._most:
            raise FullError(0, f"the file and its signals would exceed {self._most >> 20:,} MiB")
        self.size += size

    def mark(self) -> ChainMark:
        """Return the current position in the chain."""
        return self._chain.last, self._chain.lines

    def back_to(self, mark: ChainMark) -> None:
        """Return the chain to position `mark`; the caller removes the later lines from the file."""
        self._chain.last, self._chain.lines = mark


class DecisionsWriter:
    """Writes the lines of a decisions file to `out`, with snapshots of any size inline."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._lines = out, DecisionLines()

    def write(self, line: Header | DecisionLine) -> None:
        """Write one line."""
        self._out.write(self._lines.encoded(line))

    def close(self) -> None:
        """Write the end record. Closing `out` is left to its owner."""
        self._out.write(self._lines.ended(EndRecord("closed")))


def is_large(line: DecisionLine) -> bool:
    """Return True if the line holds a snapshot larger than `INLINE_BYTES`."""
    return isinstance(line.event, SignalsChanged) and len(line.event.signals.values) > INLINE_BYTES


class Recorder:
    """Wraps an engine's `handle`: passes each event and its decisions to `write`."""

    def __init__(
        self, engine: Engine, header: Header, write: Callable[[Header | DecisionLine], None]
    ) -> None:
        self._engine, self._write = engine, write
        self._write(replace(header, schema=SCHEMA))

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Pass the event to the engine, record it with its decisions, and return the engine's
        commands."""
        commands = self._engine.handle(event, now_ns)
        self._write(DecisionLine(now_ns, event, records_of(commands)))
        return commands


def hand_over(engine: Engine, line: DecisionLine, number: int) -> list[Command]:
    """Pass the event of line `number` to the engine and return the commands. Raises `BadInputError`
    if a policy cannot read its input."""
    commands = engine.handle(line.event, line.at_ns)
    if isinstance(line.event, PolicyInput) and not line.records:
        for command in commands:
            if isinstance(command, Faulted) and isinstance(command.error, msgspec.ValidationError):
                location = f"event {number}, PolicyInput for {line.event.policy}"
                raise BadInputError(location, str(command.error)) from None
    return commands


def records_of(commands: list[Command]) -> list[Record]:
    """Return the decision records among the commands."""
    return [c.record for c in commands if isinstance(c, Bind | Unschedulable | Evict | Faulted)]

"""Writes, reads and replays decisions files: the events that an engine received, in order, and its
decisions.

The package also explains a recorded decision and sums up usage. Deciding is `core/engine/`'s,
printing `cli/`'s."""

from weft.core.record.file import (
    DecisionLine,
    DecisionLines,
    DecisionsWriter,
    Header,
    PolicyUse,
    ProfileUse,
    Recorder,
    records_of,
)
from weft.core.record.moment import explain
from weft.core.record.reading import FileCheck, read
from weft.core.record.replay import ReplayResult, replay

__all__ = [
    "DecisionLine",
    "DecisionLines",
    "DecisionsWriter",
    "FileCheck",
    "Header",
    "PolicyUse",
    "ProfileUse",
    "Recorder",
    "ReplayResult",
    "explain",
    "read",
    "records_of",
    "replay",
]

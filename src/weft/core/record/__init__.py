"""Decisions files: the events that an engine received, in order, and the decisions that followed.

Contents: writing, reading and replaying such files, explaining one pod from a file, summing up
usage. Not here: deciding (`core/engine/`), printing (`cli/`)."""

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
from weft.core.record.reading import FileCheck, read
from weft.core.record.replay import ReplayResult, explain, replay

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

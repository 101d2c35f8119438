"""The decisions file: the ordered event log with the decisions made, and its replay.

In: writing and reading the file and its folder of signals, replaying it, explaining one pod from
it. Out: deciding (`core/engine/`), printing (`cli/`).
"""

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

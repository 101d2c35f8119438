"""The decisions file: the ordered event log with what was decided, and running it again.

In: writing and reading the file and the folder of signals beside it, replaying it, explaining one
pod out of it. Out: deciding
(`engine/`), printing (`cli/`).
"""

from weft.record.file import (
    Header,
    Line,
    Lines,
    PolicyUse,
    ProfileUse,
    Recorder,
    Writer,
    read,
    records_of,
)
from weft.record.replay import Verdict, replay
from weft.record.why import Explanation, explain

__all__ = [
    "Explanation",
    "Header",
    "Line",
    "Lines",
    "PolicyUse",
    "ProfileUse",
    "Recorder",
    "Verdict",
    "Writer",
    "explain",
    "read",
    "records_of",
    "replay",
]

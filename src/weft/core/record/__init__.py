"""The decisions file: the ordered event log with what was decided, and running it again.

In: writing and reading the file and the folder of signals beside it, replaying it, explaining one
pod out of it. Out: deciding
(`core/engine/`), printing (`cli/`).
"""

from weft.core.record.file import (
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
from weft.core.record.moment import Explanation, explain
from weft.core.record.replay import Verdict, replay

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

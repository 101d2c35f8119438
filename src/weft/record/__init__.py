"""The decisions file: the ordered event log with what was decided, and running it again.

In: writing and reading the file, replaying it, explaining one pod out of it. Out: deciding
(`engine/`), printing (`cli/`).
"""

from weft.record.file import Header, Line, PolicyUse, ProfileUse, Recorder, read, records_of
from weft.record.replay import Verdict, replay
from weft.record.why import Explanation, explain

__all__ = [
    "Explanation",
    "Header",
    "Line",
    "PolicyUse",
    "ProfileUse",
    "Recorder",
    "Verdict",
    "explain",
    "read",
    "records_of",
    "replay",
]

"""A pure state machine: `handle(event, now) -> commands`. No clock, no I/O, no randomness.

In: the queue and its back-off, the scheduling cycle, decision records, explanations.
Out: the world (hosts drive the engine and carry out its commands), and any strategy.
"""

from weft.engine.engine import Engine
from weft.engine.events import (
    Bind,
    BindFailed,
    BindOn,
    Command,
    Event,
    Evict,
    Learnt,
    LessonsTold,
    NodesChanged,
    NodesClosed,
    NotEvicted,
    Permit,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    PolicyInput,
    ProgressSeen,
    Refused,
    SignalsChanged,
    Tick,
    Unschedulable,
    Wake,
)
from weft.engine.faults import Faulted
from weft.engine.lending import Eviction, Harvest
from weft.engine.lessons import Lesson, OutOfMemory
from weft.engine.peaks import PeakLearnt
from weft.engine.records import Candidate, Record
from weft.engine.relief import Observed, Slowed

__all__ = [
    "Bind",
    "BindFailed",
    "BindOn",
    "Candidate",
    "Command",
    "Engine",
    "Event",
    "Evict",
    "Eviction",
    "Faulted",
    "Harvest",
    "Learnt",
    "Lesson",
    "LessonsTold",
    "NodesChanged",
    "NodesClosed",
    "NotEvicted",
    "Observed",
    "OutOfMemory",
    "PeakLearnt",
    "Permit",
    "PodAdded",
    "PodBound",
    "PodGone",
    "PodSeenBound",
    "PolicyInput",
    "ProgressSeen",
    "Record",
    "Refused",
    "SignalsChanged",
    "Slowed",
    "Tick",
    "Unschedulable",
    "Wake",
]

"""A pure state machine: `handle(event, now) -> commands`. No clock, no I/O, no randomness.

Contents: the queue and its back-off, the scheduling cycle, decision records and explanations. Not
here: policies (`core/policies/`), and any access to the cluster: hosts pass events in, and carry
out the commands."""

from weft.core.engine.decision_faults import Faulted, TaskFaulted
from weft.core.engine.engine import Engine
from weft.core.engine.events import (
    Bind,
    BindFailed,
    BindingsRead,
    BindOn,
    BindOnRefused,
    BudgetsChanged,
    Command,
    Event,
    Evict,
    EvictionWaived,
    ImagesSeen,
    LeadershipBegan,
    Learnt,
    NodesChanged,
    NodesClosed,
    Nominate,
    NotEvicted,
    OomHistoryLearnt,
    PodAdded,
    PodBound,
    PodFitsNowhere,
    PodGone,
    PodNominated,
    PodSeenBound,
    PolicyInput,
    ProgressSeen,
    SignalsChanged,
    Tick,
    Unschedulable,
    VolumesChanged,
    Wake,
)
from weft.core.engine.harvest import Eviction, Harvest
from weft.core.engine.oom_history import OomRecord, OutOfMemory
from weft.core.engine.overbooking import DoubleBooking, PodBinding
from weft.core.engine.peak_usage import PeakLearnt
from weft.core.engine.records import Candidate, PreemptedFor, PreemptionPlan, Record
from weft.core.engine.slowdown_eviction import PodProgress, SlowdownReason
from weft.core.engine.team_queues import TeamQueues

__all__ = [
    "Bind",
    "BindFailed",
    "BindOn",
    "BindOnRefused",
    "BindingsRead",
    "BudgetsChanged",
    "Candidate",
    "Command",
    "DoubleBooking",
    "Engine",
    "Event",
    "Evict",
    "Eviction",
    "EvictionWaived",
    "Faulted",
    "Harvest",
    "ImagesSeen",
    "LeadershipBegan",
    "Learnt",
    "NodesChanged",
    "NodesClosed",
    "Nominate",
    "NotEvicted",
    "OomHistoryLearnt",
    "OomRecord",
    "OutOfMemory",
    "PeakLearnt",
    "PodAdded",
    "PodBinding",
    "PodBound",
    "PodFitsNowhere",
    "PodGone",
    "PodNominated",
    "PodProgress",
    "PodSeenBound",
    "PolicyInput",
    "PreemptedFor",
    "PreemptionPlan",
    "ProgressSeen",
    "Record",
    "SignalsChanged",
    "SlowdownReason",
    "TaskFaulted",
    "TeamQueues",
    "Tick",
    "Unschedulable",
    "VolumesChanged",
    "Wake",
]

"""What is said of one pod: the form of the answer to `weft explain pod`."""

from typing import Literal

import msgspec

from weft.cluster.state.terminating import StuckPod
from weft.cluster.telemetry.slowdown_observer import ObservedProgress
from weft.core.engine.records import Candidate
from weft.core.explain.counterfactual import MetricsRead
from weft.core.explain.reasons import FeasibilitySummary
from weft.model import Share

State = Literal[
    "bound",
    "binding",
    "pending",
    "gated",
    "bad",
    "deleted",
    "ended",
    "not ours",
    "unsupported",
    "faulted",
]


class SuggestedChange(msgspec.Struct, frozen=True):
    """One change that would make the pod fit, and the UIDs of pods that would have to end."""

    axis: str
    text: str
    free: tuple[str, ...] = ()


class PodExplanation(msgspec.Struct, frozen=True):
    """One pod, now.

    `text` says it in a sentence, `notes` what else matters. `node` and `shares` are of a pod with a
    place, `score` and `attempt` of the decision where this process made it. `summary` and `reason`
    (the same in words) are about all nodes, for a pod that waits; `candidates` are the best that
    fit. `changes` would make it fit, each tried out; `searched` is False where there was no time
    to look at all. `stuck` pods hold GPUs and cannot end by themselves. `metrics` are those behind
    it: of the GPUs of a pod with a place as they were at its decision (none where nobody measured
    anything then), all else as of now, with that pod out of the way. `progress` is how fast it
    goes, where somebody looks, and whom it is kept apart from.
    """

    namespace: str
    name: str
    uid: str
    state: State
    text: str
    scheduler_name: str
    leader: bool
    profile: str = ""
    node: str = ""
    shares: tuple[Share, ...] = ()
    score: int = 0
    attempt: int = 0
    reason: str = ""
    summary: FeasibilitySummary | None = None
    candidates: tuple[Candidate, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    searched: bool = True
    notes: tuple[str, ...] = ()
    stuck: tuple[StuckPod, ...] = ()
    metrics: MetricsRead | None = None
    progress: ObservedProgress | None = None

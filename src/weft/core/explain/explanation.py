"""One pod's explanation: the same value of a live cluster and of a decisions file."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.engine.reasons import FeasibilitySummary
from weft.core.engine.records import Candidate, Record
from weft.core.explain.counterfactual import MetricsRead
from weft.core.explain.smallest_change import SuggestedChange
from weft.model import PodRequest, Share

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
    # Of a decisions file:
    "placed",
    "leaving",
]


class StuckPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds `gpus` GPUs of `node` and cannot end by itself.

    `age_s` is for how long, None where nobody wrote down when it began. `dead_node` is False for a
    pod on a live node that is long past its deletion.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpus: int
    why: str
    age_s: float | None
    dead_node: bool


class SeparatedPair(msgspec.Struct, frozen=True):
    """An application that is not placed beside the pod's on a GPU model for `left_s` yet."""

    application: str
    gpu_model: str
    left_s: float


class ObservedProgress(msgspec.Struct, frozen=True):
    """One pod's progress, for people.

    `source`: its counters, its GPU's SM_ACTIVE (a guess on which nobody acts), or neither.
    `slowdown` and rates are 0 where nobody knows; they are of `age_s` ago. `bound` is how slow it
    may be (0: it has no bound), `broken` in how many of its last `windows` it was slower or late.
    `withheld` says why nobody is evicted for it nevertheless. `apart` are the bans on its
    application. `problem` says what is wrong with what it says itself.
    """

    source: Literal["progress", "sm-active", ""] = ""
    slowdown: float = 0.0
    rate_per_s: float = 0.0
    alone_per_s: float = 0.0
    age_s: float = 0.0
    bound: float = 0.0
    broken: int = 0
    windows: int = 0
    p99_ms: float = 0.0
    slo_ms: float = 0.0
    withheld: str = ""
    apart: tuple[SeparatedPair, ...] = ()
    problem: str = ""


class RecordedDecision(msgspec.Struct, frozen=True):
    """A decision out of a file. `other_uids` are of pods with the same name; `then` is what the
    file says became of a pod that was asked to leave."""

    pod: PodRequest
    record: Record
    other_uids: tuple[str, ...] = ()
    then: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """One pod, now or when it was decided.

    `text` says it in a sentence, `notes` what else matters. `node` and `shares` are of a pod with a
    place, `score` and `attempt` of the decision where this process made it, `score_parts` what the
    score is made of where the policy tells (in points of it): out of a file as it was then, else as
    it would be now. `summary` and `reason`
    (the same in words) are about all nodes; `candidates` are the best that fit. `changes` would
    make it fit, each tried out; `searched` is False where there was no time to look at all. `stuck`
    pods hold GPUs and cannot end by themselves. `metrics` are those behind it: of the GPUs of a pod
    with a place as they were at its decision (none where nobody measured anything then), all else
    as of now, with that pod out of the way. `progress` is how fast it goes, where somebody looks,
    and whom it is kept apart from. `decision` is there where it is out of a decisions file.
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
    score_parts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stuck: tuple[StuckPod, ...] = ()
    metrics: MetricsRead | None = None
    progress: ObservedProgress | None = None
    decision: RecordedDecision | UnsetType = UNSET

    @property
    def recorded(self) -> RecordedDecision:
        """The decision out of a file; there is one where the explanation is of a file."""
        assert self.decision is not UNSET
        return self.decision

    def json_value(self) -> Any:
        """The form of `--output json`: of a file it is the record with what explains it."""
        if self.decision is UNSET:
            return self
        return {
            "pod": self.decision.pod,
            "record": self.decision.record,
            "summary": self.summary,
            "changes": self.changes,
            "other_uids": self.decision.other_uids,
            "metrics": self.metrics,
            "score_parts": self.score_parts,
            "then": self.decision.then,
        }

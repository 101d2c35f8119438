"""One pod's explanation, in the same form for live clusters and decisions files."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.engine.reasons import FeasibilitySummary
from weft.core.engine.records import Candidate, Record
from weft.core.explain.counterfactual import MetricsRead
from weft.core.explain.smallest_change import SuggestedChange
from weft.core.framework.policy import ExpectedSlowdown
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

    `age_s` is how long it has been stuck, None if unknown. `dead_node` is False for a pod on a live
    node that is long past its deletion.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpus: int
    why: str
    age_s: float | None
    dead_node: bool


class OthersShare(msgspec.Struct, frozen=True, gc=False):
    """A share of a GPU of a pod or ResourceClaim that Weft did not place: held, or maybe held.

    `milli` are thousandths of its cores, `percent` is the part of its memory. `system` is the
    dialect of who placed a pod, else its schedulerName; of a claim the driver. `evidence` is what
    names the GPU, or says why nobody knows it (`is_sure` False). `text` says all but the GPU.
    """

    node: str
    gpu: int
    memory_mib: int
    milli: int
    percent: float
    system: str
    kind: Literal["pod", "claim"]
    namespace: str
    name: str
    evidence: str
    is_sure: bool
    text: str


class SeparatedPair(msgspec.Struct, frozen=True):
    """An application that may not be co-located with the pod's on a GPU model for another
    `left_s`."""

    application: str
    gpu_model: str
    left_s: float


class ObservedProgress(msgspec.Struct, frozen=True):
    """One pod's progress, for people.

    `source` is where the slowdown comes from: the pod's own counters, its GPU's SM_ACTIVE (an
    estimate that never causes evictions), or "" for neither. `slowdown` and the rates were measured
    `age_s` ago and are 0 if unknown. `bound` is the slowdown that is allowed (0: any). In `broken`
    of its last `windows` measuring windows the pod was slower than that, or late for its SLO.
    `withheld` says why no pod is evicted for it nevertheless. `apart` lists the applications that
    it is kept apart from. `problem` says what is wrong with the progress that the pod reports.
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


class ResidentSlowdown(msgspec.Struct, frozen=True):
    """Slowdown observed of a pod on the same GPU; `source` as in `ObservedProgress`."""

    namespace: str
    name: str
    slowdown: float
    source: str


class RecordedDecision(msgspec.Struct, frozen=True):
    """A decision read from a file. `other_uids` are UIDs of other pods with the same name; `then`
    says what happened, according to the file, to a pod that was evicted."""

    pod: PodRequest
    record: Record
    other_uids: tuple[str, ...] = ()
    then: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """One pod, now or when it was decided.

    `text` is the main sentence, `notes` further facts. `node` and `shares` are set for a pod that
    has a place; `score` and `attempt` where this process made the decision. `score_parts` says what
    the score consists of, where the policy can tell: as it was then for a decision from a file, as
    it would be now on a live cluster. `summary`, and `reason` as text, count all nodes;
    `candidates` are the best that fit; of a pod with a place, as they were then, or `rescored`: as
    they would be now, with its own shares counted as free. Each of `changes` was tried and would
    make the pod fit; `searched` is False if there was no time to try all. `stuck` pods hold GPUs
    and cannot end by themselves. `metrics` are the signals behind the decision: as they were then
    for the GPUs of a placed pod (none if nothing was measured then), otherwise as of now, with that
    pod's shares counted as free. `progress` is set where the pod's speed is watched. `decision` is
    set for an explanation from a decisions file. `predicted` is the slowdown that was expected of
    the pod, and of those it joined, where this process decided; `residents` what was observed of
    the pods on its GPUs. `others` are shares that Weft did not place, the pod's own too: of a bound
    pod's GPUs, or of nodes too full for a pending one. `others_left_out` is True if there may be
    more on other nodes.
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
    others: tuple[OthersShare, ...] = ()
    others_left_out: bool = False
    metrics: MetricsRead | None = None
    progress: ObservedProgress | None = None
    decision: RecordedDecision | UnsetType = UNSET
    predicted: tuple[ExpectedSlowdown, ...] = ()
    rescored: bool = False
    residents: tuple[ResidentSlowdown, ...] = ()

    @property
    def recorded(self) -> RecordedDecision:
        """The decision from a decisions file; only explanations of such files may be asked for
        it."""
        assert self.decision is not UNSET
        return self.decision

    def json_value(self) -> Any:
        """Return what `--output json` prints: for a decisions file, its record and what explains
        it."""
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

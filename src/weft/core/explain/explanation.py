"""Explanation of one pod, in one form for live clusters and decisions files."""

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
    # States only in decisions files:
    "placed",
    "leaving",
]


class StuckPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds `gpus` GPUs of `node` and cannot end by itself.

    `why` says why the pod cannot end; `age_s` is how long it has been stuck, None if unknown.
    `dead_node` is False for a pod on a live node that is long past its deletion.
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
    """A share of a GPU that Weft did not place: a pod or ResourceClaim holds it, or may hold it.

    `milli` are thousandths of the GPU's cores, `percent` is the part of its memory. `system` is the
    dialect of a pod's scheduler, or its schedulerName; for a claim the driver. `evidence` is the
    source that names the GPU or, if `is_sure` is False, why the GPU is unknown. `text` is the
    sentence shown about the share, without the GPU's index."""

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
    """Application that may not share a GPU of this model with the explained pod for another
    `left_s` seconds."""

    application: str
    gpu_model: str
    left_s: float


class ObservedProgress(msgspec.Struct, frozen=True):
    """Progress of one pod, as shown to users.

    `source` is the source of the slowdown: the pod's own counters, its GPU's SM_ACTIVE (an estimate
    that never causes evictions), or "" for none. `slowdown` and the rates were measured `age_s` ago
    and are 0 if unknown. `bound` is the allowed slowdown (0: any). In `broken` of its last
    `windows` measuring windows the pod exceeded the bound or missed its SLO. `withheld` says why no
    pod is evicted for it nevertheless. `apart` lists applications kept off its GPU. `problem` says
    what is wrong with the progress that the pod reports."""

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
    """Observed slowdown of a pod on a GPU of the explained pod; `source` as in
    `ObservedProgress`."""

    namespace: str
    name: str
    slowdown: float
    source: str


class RecordedDecision(msgspec.Struct, frozen=True):
    """Decision read from a file. `other_uids` are UIDs of other pods with the same name; `then`
    says what happened to an evicted pod according to the file."""

    pod: PodRequest
    record: Record
    other_uids: tuple[str, ...] = ()
    then: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """Explanation of one pod, as of now or as of its recorded decision.

    `text` is the main sentence, `notes` are further facts. `node` and `shares` are set for a placed
    pod, `score` and `attempt` if this process decided. `score_parts` are the parts of the score, if
    the policy reports them: as of the decision for a decisions file, as of now for a live cluster.
    `reason` is the text of `summary`, which counts all nodes.

    `candidates` are the best nodes that fit. For a placed pod they are as of the decision, or with
    `rescored` as of now, with the pod's own shares counted as free. Each of `changes` was tried and
    would make the pod fit; `searched` is False if there was no time to try all. `stuck` pods hold
    GPUs and cannot end by themselves.

    `metrics` are the signals that the decision used: for a placed pod from a file as of the
    decision (None if nothing was measured then), otherwise as of now, with the pod's shares counted
    as free. `progress` is set if the pod's speed is watched, `decision` for a decisions file.
    `predicted` are the slowdowns expected of the pod and of the other pods on its GPUs, if this
    process decided; `residents` are the slowdowns observed of the other pods. `others` are shares
    that Weft did not place, on a bound pod's GPUs or on nodes too full for a pending pod;
    `others_left_out` is True if other nodes may have more."""

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
        """Decision from the decisions file. Fails if the explanation is of a live cluster."""
        assert self.decision is not UNSET
        return self.decision

    def json_value(self) -> Any:
        """Return the value that `--output json` prints."""
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

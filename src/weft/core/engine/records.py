"""Defines decision records: a decision, its inputs, and its reasons, as numbers only. Sentences are
made when a record is read (`explain`) or written to a file."""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from weft.core.constraints import PreferredPlace
from weft.core.engine.harvest import Eviction, Harvest
from weft.core.engine.oom_history import OomCharge
from weft.core.engine.overbooking import DoubleBooking
from weft.core.engine.slowdown_eviction import SlowdownReason
from weft.core.framework.connection import ChosenLinks
from weft.core.framework.policy import ExpectedSlowdown
from weft.model import Code, Share
from weft.model.reason import TEXT

LEAVES: Final = "asked-to-leave"
"""The outcome of a request to evict a pod. The eviction itself may still be refused, by a
disruption budget or the API server (`NotEvicted`)."""


FAULTED: Final = "faulted"
"""The outcome of a decision that failed by an error: see `core/engine/decision_faults.py`."""

Outcome = Literal["placed", "unschedulable", "asked-to-leave", "faulted"]


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One of the best nodes, with each scoring policy's raw score for it."""

    node: str
    score: int
    scores: dict[str, int] = {}


class GangDecision(msgspec.Struct, frozen=True, gc=False):
    """A decision about a gang: the group's `name` (with its namespace), how many pods it needs
    (`least`), how many exist (`there`), how many have or would have places (`found`). `most` is the
    most that an empty cluster has room for, set only if that is fewer than the gang needs. `kept`
    are the nodes on which a place is kept for it."""

    name: str
    least: int
    there: int
    found: int
    most: int | UnsetType = UNSET
    kept: tuple[str, ...] | UnsetType = UNSET


class MoveCost(msgspec.Struct, frozen=True, gc=False):
    """The work that moved pods have to run again, and the time that the pod for which they are
    moved has waited, both in GPU seconds. The lost work is never larger than the wait."""

    lost_gpu_s: float
    waited_gpu_s: float


class PreemptionPlan(msgspec.Struct, frozen=True, gc=False):
    """The node that is kept for a pod that fits nowhere (for a gang, the first of its nodes), and
    the pods, by UID, that are evicted for it now (`victims`) or already leave (`leaving`).
    `violations` is by how many evictions disruption budgets are exceeded. `moves` is set if the
    victims are moved because the pod waited: what the moves cost."""

    node: str
    victims: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    violations: int = 0
    moves: MoveCost | UnsetType = UNSET


class ExpectedRun(msgspec.Struct, frozen=True, gc=False):
    """The expected running time of a placed pod: the median `half_s` and the 90 % quantile
    `most_s`; unset if unknown. `by` is the source, as in `TimeLeft`."""

    by: str
    half_s: float | UnsetType = UNSET
    most_s: float | UnsetType = UNSET


class PreemptedFor(msgspec.Struct, frozen=True, gc=False):
    """The pod (by UID, and as NAMESPACE/NAME) for which a pod of lower `priority` was evicted.

    `law`: the eviction happens only if disruption budgets allow it; `gang`: the group that ends as
    a whole. `queue`: the other pod's team's queue, if it reclaims what this pod's queue borrowed,
    regardless of priority; "" otherwise. `moves_to`: the node that has room for the pod when its
    controller creates it again; "" if there is none.
    """

    uid: str
    pod: str
    pod_priority: int
    priority: int
    law: bool = False
    gang: str = ""
    queue: str = ""
    moves_to: str = ""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One decision.

    `version` is the ledger's version at the decision, `attempt` counts the pod's tries from 1.
    `counts[c]` is the number of nodes with reason code c (0: fits). `score` is the chosen node's.
    `top` lists the best nodes, if the engine is to keep them. `harvested` is the memory that the
    pod got beyond strictly free memory. Of an eviction, `eviction` is the reason to evict a
    borrower, `slowed` the slow pod for which the pod is evicted, `double_booked` the pods beside
    which it does not fit, and `preempted` the pod that preempts it. `charged` is set if OOM history
    changes what the pod is charged. `predicted` are the expected slowdowns of the pod and its
    co-residents, if the policy predicts them. `bounded`: the search for its GPU requests ended at
    its bound, so another place on the node may be better. `links` is how several GPUs are
    connected, if known. `preferred` is the reason if the pod's preferences chose the node. `gang`
    is set if the decision was about the whole gang: the pod was placed with it, or was the one that
    found no place. `preempts` are the victims to evict so that the pod fits. `expected_run` is the
    expected running time, if the queue uses it. `fault` says why the decision failed (without a
    pod: why an event was skipped).
    """

    seq: int
    at_ns: int
    uid: str
    namespace: str
    name: str
    profile: str
    attempt: int
    version: int
    outcome: Outcome
    node: str = ""
    shares: tuple[Share, ...] = ()
    score: int = 0
    counts: tuple[int, ...] = ()
    top: tuple[Candidate, ...] = ()
    harvested: tuple[Harvest, ...] = ()
    eviction: Eviction | None = None
    charged: OomCharge | None = None
    predicted: tuple[ExpectedSlowdown, ...] = ()
    slowed: SlowdownReason | None = None
    bounded: bool = False
    fault: str = ""
    double_booked: DoubleBooking | UnsetType = UNSET  # unset, it is not in the file at all
    links: ChosenLinks | UnsetType = UNSET
    preferred: PreferredPlace | UnsetType = UNSET
    gang: GangDecision | UnsetType = UNSET
    preempts: PreemptionPlan | UnsetType = UNSET
    preempted: PreemptedFor | UnsetType = UNSET
    expected_run: ExpectedRun | UnsetType = UNSET

    def reasons(self) -> dict[str, int]:
        """Return the number of nodes that did not fit, by reason text."""
        return {TEXT[Code(code)]: count for code, count in enumerate(self.counts) if code and count}

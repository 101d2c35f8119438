"""Decision records: the decision, its inputs, and its reasons. Kept cheap: numbers only. Sentences
are made when a record is read (`explain`) or written to a file.
"""

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
"""The eviction itself is others' affair: a disruption budget's, or the API server's
(`NotEvicted`)."""


FAULTED: Final = "faulted"
"""Deciding broke off: see `decision_faults.py`."""

Outcome = Literal["placed", "unschedulable", "asked-to-leave", "faulted"]


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One of the best nodes and each scoring policy's raw score for it."""

    node: str
    score: int
    scores: dict[str, int] = {}


class GangDecision(msgspec.Struct, frozen=True, gc=False):
    """A decision about a gang: the group's `name` (with its namespace), how many pods it needs
    (`least`), how many exist (`there`), how many have or would have places (`found`). `most` is how
    many an empty cluster would have room for, at most, where that is not enough. `kept` are the
    nodes on which a place is kept for it."""

    name: str
    least: int
    there: int
    found: int
    most: int | UnsetType = UNSET
    kept: tuple[str, ...] | UnsetType = UNSET


class MoveCost(msgspec.Struct, frozen=True, gc=False):
    """The work that moved pods have to run again, and the time for which the other pod waited, both
    in GPUs x seconds. The first is never larger."""

    lost_gpu_s: float
    waited_gpu_s: float


class PreemptionPlan(msgspec.Struct, frozen=True, gc=False):
    """The node that is kept for a pod that fits nowhere, and the pods, by UID, that were evicted
    there for it now (`victims`) or before, and are still there (`leaving`). `violations` is how
    many more that is than disruption budgets allow. `moves`: the victims are moved because the pod
    waited, and what that costs."""

    node: str
    victims: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    violations: int = 0
    moves: MoveCost | UnsetType = UNSET


class ExpectedRun(msgspec.Struct, frozen=True, gc=False):
    """The expected running time of a placed pod: the median `half_s` and the 90 % quantile
    `most_s`; unset if unknown. `by`: "said", "learnt" or "bound"."""

    by: str
    half_s: float | UnsetType = UNSET
    most_s: float | UnsetType = UNSET


class PreemptedFor(msgspec.Struct, frozen=True, gc=False):
    """The pod (by UID, and as NAMESPACE/NAME) that a pod of lower `priority` was ended for.

    `law`: only as its disruption budgets allow; `gang`: the group with which it ends as one.
    `queue`: the other pod's team's queue, which takes back what this one borrowed, whatever its
    priority; "" if it is ended for its priority. `moves_to`: the node that has room for it when its
    controller makes it again; "" if it is ended, or there is none."""

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

    `version` is the ledger's when it was made, `attempt` counts the pod's tries from 1.
    `counts[c]` is the number of nodes with reason code c (0: fits). `score` is the chosen node's.
    `top` lists the best nodes, where the engine was asked to keep them. `harvested` is what the pod
    got beyond strictly free memory; `eviction` says why one is asked to leave, `slowed` for whom,
    `double_booked` beside whom it does not fit.
    `charged` is there where OOM history, and not the request alone, said what the pod takes.
    `predicted` is what was expected of the pod, and of those it joined, where the policy predicts
    it. `bounded`: the search for its GPU requests ended at its bound, another place on that node
    may be better. `links` is how several GPUs are connected, where somebody tells. `preferred` is
    why the pod's preferences chose the node, where they decided. `gang` is there where the decision
    was about its whole gang: placed as one of it, or refused as the one that found no place.
    `preempts` says who is to go so that the pod fits, `preempted` for whom one is asked to leave.
    `expected_run` is how long it is expected to run, where the queue asks for that.
    `fault` says why the decision broke off (without a pod: an event was left out).
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
        """Nodes that did not fit, by reason text."""
        return {TEXT[Code(code)]: count for code, count in enumerate(self.counts) if code and count}

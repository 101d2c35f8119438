"""Settings of the queue: when a place is kept free for a waiting pod or gang, and how much teams'
queues may hold."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weft.files.form import Section
from weft.model import BadInputError
from weft.model.annotations import GPU_CORES, MOVABLE, QUEUE
from weft.model.ceilings import MOST_GANG_PODS, MOST_GPU_MIB
from weft.model.queue_rules import (
    Discipline,
    HeadOfLine,
    MoveRules,
    QueueAmounts,
    QueueRules,
    QueueTerms,
)

_MOST_GPUS = 1_000_000
_MOST_SECONDS = 86_400
MOST_QUEUES = 10_000
Gpus = Annotated[float, Meta(ge=0, le=_MOST_GPUS)]


class QueueingSettings(Section, frozen=True):
    """Settings that decide which pending pod goes next. Small pods take each GPU as it becomes
    free, so a gang that needs many GPUs at once would never start. Therefore, after a while, the
    GPUs of one place are kept free for that gang."""

    discipline: Annotated[
        Discipline,
        "which pending pod is scheduled next. reserve: a place is reserved for a pod or group that "
        "has long been first of its priority, by the settings below; lend: like reserve, but in "
        "the first half of the time for which a place is reserved for a single pod, pods that fit "
        "nowhere else may run there; easy: like reserve, and pods that are expected to end before "
        "the reservation starts may run there (EASY backfill); conservative: like easy, with a "
        "reservation for each pod or group that has waited long; shortest: like reserve, and of "
        "equal priority the pods that are expected to run shortest go first; first-fit: no "
        "reservations. The default is reserve, because most others depend on expected durations",
    ] = "reserve"
    confidence: Annotated[
        int,
        Meta(ge=50, le=99),
        "with easy and conservative: the probability in percent with which a pod must end in time "
        "to run in a reserved place; predicted start times hold with the same probability. The "
        "default is 80: a higher value needs more earlier runs, and lets fewer pods backfill",
    ] = 80
    head_of_line_seconds: Annotated[
        float,
        Meta(ge=0, le=_MOST_SECONDS),
        "how long a group of pods must have been the first in the queue of its priority before a "
        "place is reserved for it; 0: no reservations. The default is five minutes, because a "
        "reserved place is idle until the group starts",
    ] = 300.0
    keep_for_seconds: Annotated[
        float,
        Meta(ge=1, le=_MOST_SECONDS),
        "how long a group's reservation lasts at most; after that the group gets no other "
        "reservation for the same time. With easy and conservative the time counts from the "
        "expected start. The default is half an hour, because a reserved place is idle until the "
        "group starts",
    ] = 1_800.0
    gang_reservations: Annotated[
        int,
        Meta(ge=1, le=100),
        "maximum number of reservations for groups at once, for each profile and priority. The "
        "default is 1, because each reservation leaves GPUs idle",
    ] = 1
    reserve_after_seconds: Annotated[
        float,
        Meta(ge=0, le=_MOST_SECONDS),
        "like headOfLineSeconds, for pods with several GPUs that are in no group; other pods get "
        "reservations after five times as long, one pod at a time. 0: no reservations for pods "
        "in no group. The default is 0, because if many such pods wait, reservations for some "
        "of them keep the others waiting",
    ] = 0.0
    reserve_for_seconds: Annotated[
        float,
        Meta(ge=1, le=_MOST_SECONDS),
        "like keepForSeconds, for pods in no group. With discipline lend, other pods may run in "
        "the reserved place in the first half of this time, so that even a day costs them little. "
        "The default is half an hour, because with discipline reserve the place is idle",
    ] = 1_800.0
    reservations: Annotated[
        int,
        Meta(ge=1, le=100),
        "like gangReservations, for pods with several GPUs that are in no group",
    ] = 1
    gang_pods: Annotated[
        int,
        Meta(ge=1, le=2 * MOST_GANG_PODS),
        "maximum number of pods that a group may need to start together; pods of a larger group "
        "stay pending, with a message that says so. The default is 2048: one decision for as many "
        "pods takes a second or two on 10,000 nodes, and meanwhile Weft decides no other pod and "
        "answers no request",
    ] = MOST_GANG_PODS
    pod_group_status: Annotated[
        bool,
        "write the phase and the counts of pods into the status of scheduler-plugins' PodGroups, "
        "except PodGroups whose status another client has written. The default is true, because "
        "without scheduler-plugins' controller nobody else writes it",
    ] = True
    move: Annotated[
        bool,
        f"to make room for a pod that fits nowhere, pods with {MOVABLE} that have room elsewhere "
        "may be moved, once the pod has waited for as much GPU time as the moved pods would lose. "
        "The default is false, because moving restarts pods",
    ] = False
    move_after_seconds: Annotated[
        float,
        Meta(gt=0, le=_MOST_SECONDS),
        "with move: how long a pod waits before other pods are moved for it",
    ] = 60.0
    moves_an_hour: Annotated[
        int,
        Meta(ge=1, le=100_000),
        "with move: maximum number of pods moved in an hour",
    ] = 60

    def moves(self) -> MoveRules:
        """Return the rules by which pods are moved to make room for others, with times in ns."""
        after_ns = _ns(self.move_after_seconds) if self.move else 0
        return MoveRules(after_ns, self.moves_an_hour)

    def rules(self) -> HeadOfLine:
        """Return the rules by which places are kept free, with times in ns."""
        return HeadOfLine(
            _ns(self.head_of_line_seconds),
            _ns(self.keep_for_seconds),
            _ns(self.reserve_after_seconds),
            self.gang_reservations,
            self.discipline,
            self.confidence,
            _ns(self.reserve_for_seconds),
            self.reservations,
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1_000_000_000)


class QueueAmountSettings(Section, frozen=True):
    """Amounts of GPUs for one queue. A pod counts as the ledger charges it."""

    gpus: Annotated[
        Annotated[float, Meta(ge=0, le=_MOST_GPUS)] | None,
        "GPUs; a share counts as the larger part of the card's memory and cores that it takes, a "
        "MIG instance as its part of the card's memory",
    ] = None
    gpu_memory_mib: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_GPU_MIB * _MOST_GPUS)] | None,
        "GPU memory in MiB; a whole card counts with all of its memory",
    ] = msgspec.field(default=None, name="gpuMemoryMiB")
    gpu_cores: Annotated[
        Annotated[float, Meta(ge=0, le=100 * _MOST_GPUS)] | None,
        f"percent of a GPU's cores, 100 for each GPU, as {GPU_CORES}",
    ] = None
    models: Annotated[
        dict[str, Gpus],
        "GPUs by model: a part of the model's name, as A100, and how many",
    ] = msgspec.field(default_factory=dict)

    def amounts(self) -> QueueAmounts:
        """Return the amounts in the engine's units: thousandths of a GPU and of its cores, and
        MiB."""
        return QueueAmounts(
            None if self.gpus is None else round(1000 * self.gpus),
            self.gpu_memory_mib,
            None if self.gpu_cores is None else round(10 * self.gpu_cores),
            tuple((name, round(1000 * gpus)) for name, gpus in sorted(self.models.items())),
        )


class QueueSettings(Section, frozen=True):
    """One team's queue. With order fair its pods go first while the queue holds less than all of
    its `guarantee`. Beyond its guarantee it may hold what other queues leave idle. Its pods never
    hold more than its `limits` at once, in either order."""

    name: Annotated[
        str, f"value of the label {QUEUE} of its pods, or the namespace of pods without that label"
    ]
    weight: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        "with order fair: queues share the GPUs beyond all guarantees in proportion to their "
        "weights",
    ] = 1
    guarantee: QueueAmountSettings = QueueAmountSettings()
    limits: QueueAmountSettings = QueueAmountSettings()


class QueuesSettings(Section, frozen=True):
    """Teams' queues. A pod belongs to the queue that its label names, else to its namespace's."""

    order: Annotated[
        Literal["priority", "fair"],
        "priority: the highest priority first, then the oldest, whichever queue they are in, like "
        "kube-scheduler; fair: the queue that holds least for its weight first, and priority "
        "within a queue. The default is priority, because with fair even a pod of the highest "
        "priority waits behind pods of queues that hold less",
    ] = "priority"
    reclaim: Annotated[
        bool,
        "with order fair: pods by which a queue exceeds its guarantee may be ended for a pod of a "
        "queue that holds less than its guarantee; if false, pods are ended only for pods of their "
        "own queue. Needs profiles that preempt. The default is false, because this ends pods",
    ] = False
    teams: Annotated[
        tuple[QueueSettings, ...],
        "queues with a weight, a guarantee or limits; any other queue has weight 1, no guarantee "
        "and no limits. The default is no queues",
    ] = ()

    def rules(self) -> QueueRules:
        """Return the queues' rules in the engine's units."""
        teams = (
            QueueTerms(each.name, each.weight, each.guarantee.amounts(), each.limits.amounts())
            for each in self.teams
        )
        return QueueRules(self.order, tuple(teams), self.reclaim)


def check_queues(queues: QueuesSettings) -> None:
    """Check queues against each other; `BadInputError` names the field."""
    if queues.reclaim and queues.order != "fair":
        what = "needs queues.order: fair; with another order no queue can reclaim"
        raise BadInputError("queues.reclaim", what)
    names = [team.name for team in queues.teams]
    if len(names) > MOST_QUEUES:
        what = f"names {len(names):,} queues; {MOST_QUEUES:,} are the most"
        raise BadInputError("queues.teams", what)
    seen: set[str] = set()
    for at, team in enumerate(queues.teams):
        field = f"queues.teams[{at}]"
        if not team.name or team.name in seen:
            what = f"{team.name!r} is taken by an earlier queue" if team.name else "is empty"
            raise BadInputError(f"{field}.name", what)
        seen.add(team.name)
        for part, amounts in (("guarantee", team.guarantee), ("limits", team.limits)):
            if "" in amounts.models:
                raise BadInputError(
                    f"{field}.{part}.models", "names a model ''; write a part of its name"
                )
        beyond = _beyond(team.guarantee.amounts(), team.limits.amounts())
        if beyond:
            raise BadInputError(
                f"{field}.guarantee.{beyond}",
                f"is more than limits.{beyond}: queue {team.name} could never hold it; raise the "
                "limit or lower the guarantee",
            )


def _beyond(guarantee: QueueAmounts, limits: QueueAmounts) -> str:
    """Return the first amount of which more is guaranteed than may be held; "" for none."""
    pairs = [
        ("gpus", guarantee.gpu_milli, limits.gpu_milli),
        ("gpuMemoryMiB", guarantee.memory_mib, limits.memory_mib),
        ("gpuCores", guarantee.core_milli, limits.core_milli),
    ]
    most = dict(limits.models)
    pairs += [(f"models[{name}]", milli, most.get(name)) for name, milli in guarantee.models]
    for name, promised, limit in pairs:
        if promised is not None and limit is not None and promised > limit:
            return name
    return ""

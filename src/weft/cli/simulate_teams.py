"""Options of `weft simulate` on queues: teams' queues, preemption, moves, and the queue
discipline."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from typer import Option

from weft.model.errors import BadInputError
from weft.model.queue_rules import Discipline

if TYPE_CHECKING:
    from weft.lab.experiment.run.trace_runs import RunGrid
    from weft.lab.simulate.scenario import Scenario

QueuesFile = Annotated[
    Path | None,
    Option(
        show_default=False,
        help="With --timed or --decisions-from: teams' queues of this scheduler configuration "
        "(its section queues); the pod list's column queue names each pod's queue.  [default: for "
        "a recorded day: as recorded, else none]",
    ),
]
Preempt = Annotated[
    bool | None,
    Option(
        "--preempt/--no-preempt",
        show_default=False,
        help="With --timed or --decisions-from: pods of higher priority preempt others, as in the "
        "scheduler.  [default: --preempt; for a recorded day: as recorded]",
    ),
]
GraceS = Annotated[
    float | None,
    Option(
        "--grace-s",
        min=0,
        max=1e9,
        show_default=False,
        help="With --timed or --decisions-from: how long a preempted pod runs on, seconds.  "
        "[default: 30]",
    ),
]
Move = Annotated[
    bool,
    Option(
        "--move",
        help="With --timed or --decisions-from: move movable pods (column restart_s) for pending "
        "pods of several GPUs, as queue.move does.",
    ),
]
DisciplineName = Annotated[
    Discipline | None,
    Option(
        "--discipline",
        show_default=False,
        help="With --timed or --decisions-from: the order of pending pods, as queue.discipline.  "
        "[default: first-fit; for a recorded day: as recorded]",
    ),
]
ReserveAfterS = Annotated[
    float | None,
    Option(
        "--reserve-after-s",
        min=0,
        max=86_400,
        show_default=False,
        help="With --discipline: seconds after which a place is reserved for a pending group or "
        "pod of several GPUs; 0: never.  [default: 300]",
    ),
]
Durations = Annotated[
    Literal["said", "learnt"],
    Option(
        help="With --discipline: where durations come from: pods declare them (roughly, from the "
        "trace), or they are learnt from earlier pods."
    ),
]


class TeamOptions(NamedTuple):
    """The options of `weft simulate` on queues, as given."""

    queues: Path | None
    preempt: bool | None
    grace_s: float | None
    move: bool = False
    discipline: Discipline | None = None
    reserve_after_s: float | None = None
    durations: Literal["said", "learnt"] = "learnt"

    def completed(self, grid: "RunGrid") -> "RunGrid":
        """Return the grid with these options; `BadInputError` for options without effect, or an
        invalid file."""
        import msgspec

        for option in self._given() if grid.mode != "timed" else ():
            raise BadInputError(option, "requires a run with times; add --timed")
        if self.discipline is None and self.reserve_after_s is not None:
            raise BadInputError("--reserve-after-s", "requires --discipline")
        if self.discipline is None and self.durations == "said":
            raise BadInputError("--durations", "requires --discipline")
        scenario = grid.scenario
        if self.queues is not None:
            from weft.cluster.config.read import read

            rules = read(self.queues).queues.rules()
            if rules.reclaim and self.preempt is False:
                what = f"has no effect on queues.reclaim in {self.queues}; remove one of the two"
                raise BadInputError("--no-preempt", what)
            scenario = msgspec.structs.replace(scenario, queues=rules)
        if self.preempt is not None:
            scenario = msgspec.structs.replace(scenario, preempt=self.preempt)
        if self.move:
            from weft.files.queue_settings import QueueingSettings

            moves = QueueingSettings(move=True).moves()
            scenario = msgspec.structs.replace(scenario, moves=moves)
        if self.grace_s is not None:
            scenario = msgspec.structs.replace(scenario, grace_ns=round(self.grace_s * 1e9))
        return msgspec.structs.replace(grid, scenario=self._with_discipline(scenario))

    def _given(self) -> list[str]:
        given = {
            "--queues": self.queues is not None,
            "--preempt": self.preempt is not None,
            "--grace-s": self.grace_s is not None,
            "--move": self.move,
            "--discipline": self.discipline is not None,
        }
        return [option for option, is_given in given.items() if is_given]

    def _with_discipline(self, scenario: "Scenario") -> "Scenario":
        if self.discipline is None:
            return scenario
        import msgspec

        from weft.files.queue_settings import QueueingSettings

        after_s = 300.0 if self.reserve_after_s is None else self.reserve_after_s
        rules = QueueingSettings(
            discipline=self.discipline,
            head_of_line_seconds=after_s,
            reserve_after_seconds=after_s,
        ).rules()
        scenario = msgspec.structs.replace(scenario, head_of_line=rules)
        return scenario.with_said_durations() if self.durations == "said" else scenario

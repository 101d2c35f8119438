"""Options of `weft simulate` on teams' queues, preemption and moves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Option

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.lab.experiment.run.trace_runs import RunGrid

QueuesFile = Annotated[
    Path | None,
    Option(
        show_default=False,
        help="With times: teams' queues of this configuration of the scheduler (its section "
        "queues); the pod list's column queue names each pod's.  [default: of a recorded day those "
        "that it had, else none]",
    ),
]
Preempt = Annotated[
    bool | None,
    Option(
        "--preempt/--no-preempt",
        show_default=False,
        help="With times: pods of higher priority end others, as the scheduler does.  [default: "
        "--preempt; of a recorded day as it was]",
    ),
]
GraceS = Annotated[
    float | None,
    Option(
        "--grace-s",
        min=0,
        max=1e9,
        show_default=False,
        help="With times: how long a preempted pod runs on, seconds.  [default: 30]",
    ),
]
Move = Annotated[
    bool,
    Option(
        "--move",
        help="With times: pods that may be moved (column restart_s) are, for pods of several GPUs "
        "that fit nowhere, as with queue.move.",
    ),
]


class TeamOptions(NamedTuple):
    """The options, as given."""

    queues: Path | None
    preempt: bool | None
    grace_s: float | None
    move: bool = False

    def completed(self, grid: "RunGrid") -> "RunGrid":
        """Return the grid with these; `BadInputError` for what has no effect, or a wrong file."""
        import msgspec

        given = {"--queues": self.queues, "--preempt": self.preempt, "--grace-s": self.grace_s}
        given["--move"] = self.move or None
        for option, value in given.items():
            if value is not None and grid.mode != "timed":
                raise BadInputError(option, "is for runs with times; add --timed")
        scenario = grid.scenario
        if self.queues is not None:
            from weft.cluster.config.read import read

            rules = read(self.queues).queues.rules()
            if rules.reclaim and self.preempt is False:
                what = f"leaves nothing of queues.reclaim in {self.queues}; leave one of them out"
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
        return msgspec.structs.replace(grid, scenario=scenario)

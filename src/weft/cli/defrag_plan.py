"""Plans of `weft defrag`: made of a cluster's state, and shown."""

from typing import TYPE_CHECKING, NamedTuple

from typer import echo

from weft.cli.output import json_text, print_note, print_table, table_with
from weft.cli.progress import status_line
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.snapshot.movable_pods import MovablePods
    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.engine.making_room import MovePlan
    from weft.core.engine.move_trials import PodMove
    from weft.core.engine.stranding_moves import StrandingPlan
    from weft.model import PodRequest

MOST_MOVES_FOR_ROOM = 8
"""Sets of more pods are too many to try."""


class DefragWish(NamedTuple):
    """The room that is wanted: for a waiting `pod` (NAMESPACE/NAME), for a pod still to come, or,
    with `stranded`, wherever GPUs are stranded."""

    pod: str
    gpus: int
    gpu_milli: int
    cpu_milli: int
    stranded: bool
    most_moves: int
    most_trials: int

    def check(self) -> None:
        """Raise `BadInputError` unless it is one of the three."""
        if bool(self.pod) + bool(self.gpus) + self.stranded != 1:
            problem = "name a waiting pod, or give --gpus, or --stranded, one of them"
            raise BadInputError("--pod", problem)
        if not self.stranded and self.most_moves > MOST_MOVES_FOR_ROOM:
            problem = f"{self.most_moves} is too many for one pod; at most {MOST_MOVES_FOR_ROOM}"
            raise BadInputError("--most-moves", problem)


class DefragPlan(NamedTuple):
    """A plan, of the kind that was wished for, on the state that it was made of."""

    state: "SnapshotState"
    movable: "MovablePods"
    wanted: "PodRequest | None"
    room: "MovePlan | None"
    less_stranded: "StrandingPlan | None"
    cut_off: bool

    @property
    def moves(self) -> "tuple[PodMove, ...]":
        """The moves, in order."""
        result = self.room or self.less_stranded
        return result.moves if result is not None else ()

    def name_of(self, uid: str) -> str:
        """NAMESPACE/NAME of a pod."""
        pod = self.state.live.pods.by_uid(uid)
        return f"{pod.metadata.namespace}/{pod.metadata.name}" if pod else uid

    def as_json(self) -> dict[str, object]:
        """The plan, and which pods may not be moved."""
        result = self.less_stranded or self.room
        return {"plan": result, "searched_all": not self.cut_off, "stay": self.movable.stay}


def planned(state: "SnapshotState", wish: DefragWish) -> DefragPlan:
    """The plan that the wish asks for. Disruption budgets that may not be read are an error."""
    from weft.cluster.snapshot.movable_pods import movable_pods
    from weft.cluster.state.typical_pods import usual_shapes
    from weft.core.engine.making_room import RoomSearch
    from weft.core.engine.stranding_moves import StrandingSearch

    if "PodDisruptionBudget" in state.snapshot.unread:
        raise BadInputError("disruption budgets", "could not be read; allow it, and ask again")
    wanted = _wanted(state, wish)
    movable, tell = movable_pods(state), status_line()
    pods, budgets = movable.pods, movable.budgets
    if wanted is None:
        usual = usual_shapes(state.usual())
        say = lambda moves: tell(f"{moves:,} moves found")  # noqa: E731
        greedy = StrandingSearch(state.engine, pods, usual, budgets, progress=say)
        less = greedy.plan(wish.most_moves)
        tell("")
        return DefragPlan(state, movable, None, None, less, cut_off=False)
    search = RoomSearch(
        state.engine,
        pods,
        budgets,
        most_trials=wish.most_trials,
        waits=bool(wish.pod),
        progress=lambda trials: tell(f"{trials:,} moves tried"),
    )
    room = search.plan(wanted, wish.most_moves)
    tell("")
    return DefragPlan(state, movable, wanted, room, None, search.cut_off)


def _wanted(state: "SnapshotState", wish: DefragWish) -> "PodRequest | None":
    if wish.stranded:
        return None
    return _waiting(state, wish.pod) if wish.pod else _made_up(wish)


def _waiting(state: "SnapshotState", name: str) -> "PodRequest":
    from weft.model.nearest import nearest

    pending, _ = state.pending()
    known = {f"{pod.namespace}/{pod.name}": pod for pod in pending}
    if name in known:
        return known[name]
    near = nearest(name, list(known))
    hint = f"; did you mean {near!r}?" if near else ""
    raise BadInputError("--pod", f"no pod {name!r} waits for a place{hint}")


def _made_up(wish: DefragWish) -> "PodRequest":
    from weft.model import GpuRequest, PodRequest, Shape

    whole = wish.gpu_milli == 1000
    request = GpuRequest(wish.gpus, milli=0 if whole else wish.gpu_milli, whole=whole)
    return PodRequest("weft-defrag", "wanted", Shape((request,), wish.cpu_milli))


# --- shown ---


def show(plan: DefragPlan) -> None:
    """The moves, and what they cost and bring."""
    if plan.moves:
        table = table_with("move|from|to")
        for move in plan.moves:
            table.add_row(plan.name_of(move.uid), move.from_node, move.to_node)
        print_table(table)
    if plan.less_stranded is not None:
        print_note(_brings(plan.less_stranded))
    else:
        print_note(_makes_room(plan))
    if plan.movable.stay:
        stay = ", ".join(f"{count} {why}" for why, count in sorted(plan.movable.stay.items()))
        echo(f"weft: pods that stay where they are: {stay}", err=True)


def print_json(plan: DefragPlan, **more: object) -> None:
    """The same for programs."""
    print(json_text(plan.as_json() | more))


def _brings(plan: "StrandingPlan") -> str:
    before, after = plan.stranded_milli[0] / 1000, plan.stranded_milli[-1] / 1000
    if not plan.moves:
        return f"{before:,.2f} GPUs are stranded, and no move of one pod lowers that."
    return (
        f"Stranded GPUs fall from {before:,.2f} to {after:,.2f}. "
        f"Cost: {_cost(len(plan.moves), plan.lost_gpu_s)}."
    )


def _makes_room(plan: DefragPlan) -> str:
    room = plan.room
    if room is None:
        more = (
            "more trials (--most-trials) or moves may find one" if plan.cut_off else "there is none"
        )
        return f"No plan of so few moves was found: {more}."
    if not room.moves:
        return f"It fits on {room.node} as it is: nothing need be moved."
    least = "" if room.smallest else "; not all sets were tried, so fewer may do"
    return f"Then it fits on {room.node}. Cost: {_cost(len(room.moves), room.lost_gpu_s)}{least}."


def _cost(moves: int, lost_gpu_s: float) -> str:
    pods = "1 pod" if moves == 1 else f"{moves} pods"
    return f"{pods}, {lost_gpu_s / 3600:,.2f} GPU hours of work"

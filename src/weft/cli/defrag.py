"""`weft defrag`: which pods to move to make room for another, or to reduce stranded GPU."""

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Exit, Option, Typer, echo

from weft.cli import completion
from weft.cli.cluster import state_of
from weft.cli.cluster_question import answer
from weft.cli.options import Context, Kubeconfig, MissingOptionError, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.cli.progress import status_line
from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.eviction.moving import MovingTurn
    from weft.cluster.snapshot.movable_pods import MovablePods
    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.engine.making_room import MovePlan
    from weft.core.engine.move_trials import PodMove
    from weft.core.engine.stranding_moves import StrandingPlan
    from weft.model import PodRequest

defrag_app = Typer(help="Move pods to make room for a pending pod.", no_args_is_help=True)

_Pod = Annotated[
    str,
    Option(
        help="NAMESPACE/NAME of a pending pod to make room for.", autocompletion=completion.pods
    ),
]
_Gpus = Annotated[
    int, Option(min=0, max=64, help="Instead of --pod: a new pod with this many GPUs.")
]
_GpuMilli = Annotated[int, Option(min=1, max=1000, help="With --gpus: thousandths of each GPU.")]
_CpuMilli = Annotated[int, Option(min=0, max=10**9, help="With --gpus: milli-CPU.")]
_Stranded = Annotated[bool, Option("--stranded", help="Instead of --pod: reduce stranded GPU.")]
_MostMoves = Annotated[int, Option(min=1, max=1000, help="The most pods to move.")]
_MostTrials = Annotated[
    int, Option(min=1, max=1_000_000, help="The most moves to try, to make room.")
]


@defrag_app.callback()
def _about() -> None:
    """Move pods to make room for a pending pod."""


@defrag_app.command("plan")
def plan(
    pod: _Pod = "",
    gpus: _Gpus = 0,
    gpu_milli: _GpuMilli = 1000,
    cpu_milli: _CpuMilli = 0,
    stranded: _Stranded = False,
    most_moves: _MostMoves = 3,
    most_trials: _MostTrials = 3_000,
    snapshot: SnapshotFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Find the fewest pods to move to make room for a pod, or to reduce stranded GPU the most.

    Moves nothing. Plans never include latency-critical pods, pods that no controller recreates, or
    pods that Weft did not place; disruption budgets are respected. Each plan was tried in the
    engine.
    """
    wish = DefragWish(pod, gpus, gpu_milli, cpu_milli, stranded, most_moves, most_trials)
    wish.check()
    result = planned(state_of(snapshot, kubeconfig, context), wish)
    if output is ListOutput.json:
        print_json(result)
    else:
        show(result)


@defrag_app.command("apply")
def apply(
    pod: _Pod = "",
    gpus: _Gpus = 0,
    gpu_milli: _GpuMilli = 1000,
    cpu_milli: _CpuMilli = 0,
    stranded: _Stranded = False,
    most_moves: _MostMoves = 3,
    most_trials: _MostTrials = 3_000,
    yes: Annotated[
        bool, Option("--yes", help="Evict the pods; without it nothing is moved.")
    ] = False,
    wait_s: Annotated[
        float, Option(min=1, help="Seconds to wait for a pod to end, and to be placed again.")
    ] = 300.0,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Move the pods of a plan, one at a time; without --yes only show the plan.

    The next pod is evicted only after the previous pod was placed where the plan says. The command
    stops if it was placed elsewhere, the cluster changed, or a disruption budget refuses, and says
    after how many moves.
    """
    wish = DefragWish(pod, gpus, gpu_milli, cpu_milli, stranded, most_moves, most_trials)
    wish.check()
    result = planned(state_of(None, kubeconfig, context), wish)
    if not carry_out(result, kubeconfig, context, wait_s, yes=yes, output=output):
        raise Exit(1)


MOST_MOVES_FOR_ROOM = 8
"""Largest number of moves to make room for one pod: more pods give too many sets to try."""


class DefragWish(NamedTuple):
    """Options of `weft defrag`: the pod to make room for, and limits on the search.

    Either a pending `pod` (NAMESPACE/NAME), a new pod with `gpus`, or, with `stranded`, usual pods
    wherever GPU is stranded."""

    pod: str
    gpus: int
    gpu_milli: int
    cpu_milli: int
    stranded: bool
    most_moves: int
    most_trials: int

    def check(self) -> None:
        """Raise `BadInputError` unless exactly one of `pod`, `gpus` and `stranded` is given, or if
        `most_moves` is too large to make room for one pod."""
        given = bool(self.pod) + bool(self.gpus) + self.stranded
        if given != 1:
            error = BadInputError if given else MissingOptionError
            raise error("--pod", "specify exactly one of a pending pod, --gpus and --stranded")
        if not self.stranded and self.most_moves > MOST_MOVES_FOR_ROOM:
            problem = f"{self.most_moves} is too many for one pod; at most {MOST_MOVES_FOR_ROOM}"
            raise BadInputError("--most-moves", problem)


class DefragPlan(NamedTuple):
    """A plan of moves, and the cluster's state for which it was made.

    `room` is the plan for the `wanted` pod, `less_stranded` one that reduces stranded GPU.
    `cut_off`: the search ended at its limit of trials."""

    state: "SnapshotState"
    movable: "MovablePods"
    wanted: "PodRequest | None"
    room: "MovePlan | None"
    less_stranded: "StrandingPlan | None"
    cut_off: bool

    @property
    def moves(self) -> "tuple[PodMove, ...]":
        """The moves of pods, in order."""
        result = self.room or self.less_stranded
        return result.moves if result is not None else ()

    def name_of(self, uid: str) -> str:
        """Return NAMESPACE/NAME of the pod with this UID; the UID if the pod is unknown."""
        pod = self.state.live.pods.by_uid(uid)
        return f"{pod.metadata.namespace}/{pod.metadata.name}" if pod else uid

    def as_json(self) -> dict[str, object]:
        """Return the plan for JSON, and how many pods may not be moved, by reason."""
        result = self.less_stranded or self.room
        return {"plan": result, "searched_all": not self.cut_off, "stay": self.movable.stay}


def planned(state: "SnapshotState", wish: DefragWish) -> DefragPlan:
    """Make a plan for `wish`; `BadInputError` if disruption budgets could not be read."""
    from weft.cluster.control.typical_pods import usual_shapes
    from weft.cluster.snapshot.movable_pods import movable_pods
    from weft.core.engine.making_room import RoomSearch
    from weft.core.engine.stranding_moves import StrandingSearch

    if "PodDisruptionBudget" in state.snapshot.unread:
        raise BadInputError(
            "PodDisruptionBudgets", "could not be read; get the right to list them, and try again"
        )
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
    raise BadInputError("--pod", f"no pod {name!r} is pending{hint}")


def _made_up(wish: DefragWish) -> "PodRequest":
    from weft.model import GpuRequest, PodRequest, Shape

    whole = wish.gpu_milli == 1000
    request = GpuRequest(wish.gpus, milli=0 if whole else wish.gpu_milli, whole=whole)
    return PodRequest("weft-defrag", "wanted", Shape((request,), wish.cpu_milli))


# --- shown ---


def show(plan: DefragPlan) -> None:
    """Print the moves, their cost and their effect."""
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
        stay = ", ".join(f"{count} ({why})" for why, count in sorted(plan.movable.stay.items()))
        echo(f"weft: pods that cannot be moved: {stay}", err=True)


def print_json(plan: DefragPlan, **more: object) -> None:
    """Print the plan as JSON."""
    print(json_text(plan.as_json() | more))


def _brings(plan: "StrandingPlan") -> str:
    before, after = plan.stranded_milli[0] / 1000, plan.stranded_milli[-1] / 1000
    if not plan.moves:
        return f"{before:,.2f} GPUs are stranded, and moving any single pod would not reduce this."
    return (
        f"Stranded GPUs fall from {before:,.2f} to {after:,.2f}. "
        f"Cost: {_cost(len(plan.moves), plan.lost_gpu_s)}."
    )


def _makes_room(plan: DefragPlan) -> str:
    room = plan.room
    if room is None:
        if plan.cut_off:
            return "No plan found yet: raise --most-trials or --most-moves."
        return "More moves than --most-moves are needed: raise it."
    if not room.moves:
        return f"The pod fits on {room.node} already: no pod has to be moved."
    least = (
        "" if room.smallest else "; not all sets of pods were tried, so fewer moves may be enough"
    )
    return (
        f"Then the pod fits on {room.node}. Cost: {_cost(len(room.moves), room.lost_gpu_s)}{least}."
    )


def _cost(moves: int, lost_gpu_s: float) -> str:
    pods = "1 pod" if moves == 1 else f"{moves} pods"
    return f"{pods}, {lost_gpu_s / 3600:,.2f} GPU hours of work"


class Moved(NamedTuple):
    """A pod that was moved, and the pod that replaced it."""

    pod: str
    successor: str
    from_node: str
    to_node: str


class _Cluster(NamedTuple):
    """The cluster on which to move pods, and the time limit of each step."""

    kubeconfig: Path | None
    context: str
    wait_s: float


def carry_out(
    plan: DefragPlan,
    kubeconfig: Path | None,
    context: str,
    wait_s: float,
    *,
    yes: bool,
    output: ListOutput,
) -> bool:
    """Show the plan and, with `yes`, carry it out; return False if it stopped early."""
    if output is not ListOutput.json:
        show(plan)
    moved: list[Moved] = []
    why = ""
    if yes and plan.moves:
        cluster = _Cluster(kubeconfig, context, wait_s)
        with moving_turn(kubeconfig, context) as turn:
            why = _moved_all(plan, cluster, turn, moved, output)
    done = yes and not why
    if output is ListOutput.json:
        rows = [outcome._asdict() for outcome in moved]
        print_json(plan, done=done, moved=rows, stopped=why)
    elif plan.moves and not yes:
        print_note("Nothing was moved. With --yes these pods are evicted, one at a time.")
    elif why:
        echo(f"weft: stopped after {len(moved)} of {len(plan.moves)} moves: {why}", err=True)
    return not why


def _moved_all(
    plan: DefragPlan,
    cluster: _Cluster,
    turn: "MovingTurn",
    moved: list[Moved],
    output: ListOutput,
) -> str:
    """Move the pods, and append each to `moved`; return why it stopped early, "" if all went as
    planned."""
    from weft.cluster.eviction.moving import move

    for number, step in enumerate(plan.moves):
        name = plan.name_of(step.uid)
        pod = plan.state.live.pods.by_uid(step.uid)
        assert pod is not None
        if why := turn.why_not or _changed(plan, number, cluster) or turn.why_not:
            return why
        move_one = partial(move, pod=pod, wait_s=cluster.wait_s)
        went = answer(cluster.kubeconfig, cluster.context, move_one)
        if went.why_not:
            return f"{name}: {went.why_not}"
        moved.append(Moved(name, went.successor, step.from_node, went.node))
        if output is not ListOutput.json:
            echo(f"moved {name} from {step.from_node} to {went.node}, now {went.successor}")
        if went.node != step.to_node:
            return f"{went.successor} went to {went.node}, and not to {step.to_node} as planned"
    return _has_its_place(plan, cluster)


def _changed(plan: DefragPlan, done: int, cluster: _Cluster) -> str:
    """Return why the remaining moves do not fit the present cluster; "" if they do."""
    from weft.cluster.snapshot.movable_pods import movable_pods
    from weft.core.engine.move_trials import MoveTrials

    state, rest = state_of(None, cluster.kubeconfig, cluster.context), plan.moves[done:]
    movable = movable_pods(state)
    trials = MoveTrials(state.engine, movable.pods, movable.budgets)
    for step in rest:
        if step.uid not in trials.movable:
            return f"the cluster changed: {plan.name_of(step.uid)} can no longer be moved"
    if not trials.allowed([rest[0].uid]):
        return f"a PodDisruptionBudget blocks the eviction of {plan.name_of(rest[0].uid)} now"
    wanted, waits = plan.wanted, _waits(plan, state)
    if plan.room is not None and wanted is not None and not waits and _is_real(plan):
        wanted = None  # the pod was placed already
    played = trials.play(wanted, [step.uid for step in rest], waits=waits)
    if played is None:
        return "the cluster changed: the remaining pods to move would fit nowhere"
    for step, now in zip(rest, played.moves, strict=True):
        if (step.from_node, step.to_node) != (now.from_node, now.to_node):
            name = plan.name_of(step.uid)
            return (
                f"the cluster changed: {name} would go to {now.to_node}, and not to {step.to_node}"
            )
    if wanted is not None and plan.room is not None and played.node != plan.room.node:
        return (
            f"the cluster changed: there would now be room on {played.node}, not {plan.room.node}"
        )
    return ""


def _is_real(plan: DefragPlan) -> bool:
    """Return True if room is made for an existing pod of the cluster."""
    return plan.wanted is not None and plan.state.live.pods.by_uid(plan.wanted.uid) is not None


def _waits(plan: DefragPlan, state: "SnapshotState") -> bool:
    """Return True if the pod to make room for is pending in this state."""
    if plan.wanted is None:
        return False
    pod = state.live.pods.by_uid(plan.wanted.uid)
    return pod is not None and not pod.spec.node_name


def _has_its_place(plan: DefragPlan, cluster: _Cluster) -> str:
    """Return why the pending pod did not get its planned place; "" if it did, or the plan has no
    such pod."""
    from weft.cluster.eviction.moving import placed_on

    wanted, room = plan.wanted, plan.room
    if wanted is None or room is None or not _is_real(plan):
        return ""
    wait = partial(placed_on, namespace=wanted.namespace, uid=wanted.uid, wait_s=cluster.wait_s)
    node = answer(cluster.kubeconfig, cluster.context, wait)
    name = f"{wanted.namespace}/{wanted.name}"
    if not node:
        return f"{name} was not placed within {cluster.wait_s:g} s"
    return "" if node == room.node else f"{name} went to {node}, and not to {room.node} as planned"


_ENDS_WITHIN_S = 10.0


@contextmanager
def moving_turn(kubeconfig: Path | None, context: str) -> "Iterator[MovingTurn]":
    """Hold, on another thread, the Lease that lets one command at a time move pods, while this
    thread moves them.

    `BadInputError` if the cluster does not answer, or this user may not write leases."""
    from weft.cluster.eviction.moving import MovingTurn

    turn = MovingTurn(f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}")
    failed: list[Exception] = []

    def hold() -> None:
        try:
            answer(kubeconfig, context, turn.hold)
        except Exception as error:  # raised on the other thread
            failed.append(error)
        finally:
            turn.settled.set()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    turn.settled.wait()
    try:
        if failed:
            raise failed[0]
        yield turn
    finally:
        turn.end()
        thread.join(_ENDS_WITHIN_S)

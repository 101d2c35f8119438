"""`weft defrag apply`: carries a plan out, one eviction at a time, for as long as it holds."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from typer import echo

from weft.cli.cluster import state_of
from weft.cli.cluster_question import answer
from weft.cli.defrag_plan import DefragPlan, print_json, show
from weft.cli.defrag_turn import moving_turn
from weft.cli.output import ListOutput, print_note

if TYPE_CHECKING:
    from weft.cluster.eviction.moving_turn import MovingTurn
    from weft.cluster.snapshot.state import SnapshotState


class Moved(NamedTuple):
    """A pod that was moved, and the one in its place."""

    pod: str
    successor: str
    from_node: str
    to_node: str


class _Cluster(NamedTuple):
    """Where it is done, and how long each step may take."""

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
    """Show the plan and, with `yes`, do it; whether all that was to be done is done."""
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
    """Why it stopped, "" if all went as planned. What was moved is added to `moved`."""
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
    """Why the rest of the plan does not hold on the cluster as it is now; "" if it does."""
    from weft.cluster.snapshot.movable_pods import movable_pods
    from weft.core.engine.move_trials import MoveTrials

    state, rest = state_of(None, cluster.kubeconfig, cluster.context), plan.moves[done:]
    movable = movable_pods(state)
    trials = MoveTrials(state.engine, movable.pods, movable.budgets)
    for step in rest:
        if step.uid not in trials.movable:
            return f"the cluster changed: {plan.name_of(step.uid)} may not be moved any more"
    if not trials.allowed([rest[0].uid]):
        return f"a disruption budget does not let {plan.name_of(rest[0].uid)} go now"
    wanted, waits = plan.wanted, _waits(plan, state)
    if plan.room is not None and wanted is not None and not waits and _is_real(plan):
        wanted = None  # it has its place already
    played = trials.play(wanted, [step.uid for step in rest], waits=waits)
    if played is None:
        return "the cluster changed: the pods that are left to move would find no place"
    for step, now in zip(rest, played.moves, strict=True):
        if (step.from_node, step.to_node) != (now.from_node, now.to_node):
            name = plan.name_of(step.uid)
            return (
                f"the cluster changed: {name} would go to {now.to_node}, and not to {step.to_node}"
            )
    if wanted is not None and plan.room is not None and played.node != plan.room.node:
        return f"the cluster changed: there would be room on {played.node}, not {plan.room.node}"
    return ""


def _is_real(plan: DefragPlan) -> bool:
    """Tells whether the pod that room is made for is one of the cluster's."""
    return plan.wanted is not None and plan.state.live.pods.by_uid(plan.wanted.uid) is not None


def _waits(plan: DefragPlan, state: "SnapshotState") -> bool:
    """Tells whether that pod waits for a place now."""
    if plan.wanted is None:
        return False
    pod = state.live.pods.by_uid(plan.wanted.uid)
    return pod is not None and not pod.spec.node_name


def _has_its_place(plan: DefragPlan, cluster: _Cluster) -> str:
    """Why the waiting pod did not get the place that was made; "" if it did, or there is none."""
    from weft.cluster.eviction.moving import placed_on

    wanted, room = plan.wanted, plan.room
    if wanted is None or room is None or not _is_real(plan):
        return ""
    wait = partial(placed_on, namespace=wanted.namespace, uid=wanted.uid, wait_s=cluster.wait_s)
    node = answer(cluster.kubeconfig, cluster.context, wait)
    name = f"{wanted.namespace}/{wanted.name}"
    if not node:
        return f"{name} found no place within {cluster.wait_s:g} s"
    return "" if node == room.node else f"{name} went to {node}, and not to {room.node} as planned"

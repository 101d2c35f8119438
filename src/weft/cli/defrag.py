"""`weft defrag`: which pods to move so that another finds a place."""

from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer, echo

from weft.cli.cluster import state_of
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.cli.progress import status_line
from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.snapshot.movable_pods import MovablePods
    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.engine.making_room import MovePlan
    from weft.model import PodRequest

defrag_app = Typer(help="Room won back by moving pods.", no_args_is_help=True)


@defrag_app.callback()
def _about() -> None:
    """Room won back by moving pods."""


@defrag_app.command("plan")
def plan(
    pod: Annotated[str, Option(help="NAMESPACE/NAME of a waiting pod.")] = "",
    gpus: Annotated[int, Option(min=0, max=64, help="Instead: a pod of so many GPUs.")] = 0,
    gpu_milli: Annotated[int, Option(min=1, max=1000, help="Thousandths of each GPU.")] = 1000,
    cpu_milli: Annotated[int, Option(min=0, help="With --gpus: CPU, thousandths.")] = 0,
    most_moves: Annotated[int, Option(min=1, max=8, help="Pods to move at most.")] = 3,
    most_trials: Annotated[int, Option(min=1, help="Sets of pods to try at most.")] = 50_000,
    snapshot: SnapshotFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Find the fewest pods to move so that a pod fits; nothing is moved.

    Never latency-critical pods, nor those that no controller makes anew or that Weft did not place;
    disruption budgets are kept. Each plan was played on the state: all find a place.
    """
    from weft.core.engine.making_room import RoomSearch

    if bool(pod) == bool(gpus):
        raise BadInputError("--pod", "name a waiting pod, or give --gpus, one of them")
    state = state_of(snapshot, kubeconfig, context)
    if "PodDisruptionBudget" in state.snapshot.unread:
        raise BadInputError("disruption budgets", "could not be read; allow it, and ask again")
    wanted = _waiting(state, pod) if pod else _made_up(gpus, gpu_milli, cpu_milli)
    movable = _movable(state)
    tell = status_line()
    search = RoomSearch(
        state.engine,
        movable.pods,
        movable.budgets,
        most_trials=most_trials,
        told=lambda trials: tell(f"{trials:,} sets of pods tried"),
    )
    found = search.plan(wanted, most_moves)
    tell("")
    _print(state, found, search.cut_off, movable, output)


def _movable(state: "SnapshotState") -> "MovablePods":
    from weft.cluster.snapshot.movable_pods import movable_pods

    return movable_pods(state)


def _waiting(state: "SnapshotState", name: str) -> "PodRequest":
    from weft.model.nearest import nearest

    pending, _ = state.pending()
    known = {f"{one.namespace}/{one.name}": one for one in pending}
    if name in known:
        return known[name]
    near = nearest(name, list(known))
    hint = f"; did you mean {near!r}?" if near else ""
    raise BadInputError("--pod", f"no pod {name!r} waits for a place{hint}")


def _made_up(gpus: int, gpu_milli: int, cpu_milli: int) -> "PodRequest":
    from weft.model import GpuRequest, PodRequest, Shape

    whole = gpu_milli == 1000
    request = GpuRequest(gpus, milli=0 if whole else gpu_milli, whole=whole)
    return PodRequest("weft-defrag", "wanted", Shape((request,), cpu_milli))


def _print(
    state: "SnapshotState",
    found: "MovePlan | None",
    cut_off: bool,
    movable: "MovablePods",
    output: ListOutput,
) -> None:
    if output is ListOutput.json:
        print(json_text({"plan": found, "searched_all": not cut_off, "stay": movable.stay}))
        return
    if found is None:
        more = "more trials (--most-trials) or moves may find one" if cut_off else "there is none"
        print_note(f"No plan of so few moves was found: {more}.")
    elif not found.moves:
        print_note(f"It fits on {found.node} as it is: nothing need be moved.")
    else:
        _show(state, found)
    if movable.stay:
        stay = ", ".join(f"{count} {why}" for why, count in sorted(movable.stay.items()))
        echo(f"weft: pods that stay where they are: {stay}", err=True)


def _show(state: "SnapshotState", found: "MovePlan") -> None:
    table = table_with("move|from|to")
    for move in found.moves:
        pod = state.live.pods.by_uid(move.uid)
        name = f"{pod.metadata.namespace}/{pod.metadata.name}" if pod else move.uid
        table.add_row(name, move.from_node, move.to_node)
    print_table(table)
    pods = "1 pod" if len(found.moves) == 1 else f"{len(found.moves)} pods"
    least = "" if found.smallest else "; not all sets were tried, so fewer may do"
    print_note(
        f"Then it fits on {found.node}. Cost: {pods}, {found.lost_gpu_s / 3600:,.2f} GPU hours of "
        f"work{least}."
    )

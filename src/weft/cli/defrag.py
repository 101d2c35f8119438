"""`weft defrag`: which pods to move so that another finds a place, or less GPU is stranded."""

from typing import Annotated

from typer import Exit, Option, Typer

from weft.cli.cluster import state_of
from weft.cli.defrag_plan import DefragWish, planned, print_json, show
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput
from weft.cli.snapshot_files import SnapshotFile

defrag_app = Typer(help="Room won back by moving pods.", no_args_is_help=True)

_Pod = Annotated[str, Option(help="NAMESPACE/NAME of a waiting pod.")]
_Gpus = Annotated[int, Option(min=0, max=64, help="Instead: a pod of so many GPUs.")]
_GpuMilli = Annotated[int, Option(min=1, max=1000, help="Thousandths of each GPU.")]
_CpuMilli = Annotated[int, Option(min=0, max=10**9, help="With --gpus: CPU, thousandths.")]
_Stranded = Annotated[bool, Option("--stranded", help="Instead: less GPU stranded.")]
_MostMoves = Annotated[int, Option(min=1, max=1000, help="Pods to move at most.")]
_MostTrials = Annotated[
    int, Option(min=1, max=1_000_000, help="Moves of pods to try at most, for room.")
]


@defrag_app.callback()
def _about() -> None:
    """Room won back by moving pods."""


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
    """Find the fewest pods to move so that a pod fits, or so that stranded GPUs fall by most.

    Nothing is moved. Never latency-critical pods, nor those that no controller makes anew or that
    Weft did not place; disruption budgets are kept. Each plan was played on the state.
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
        bool, Option("--yes", help="Evict the pods; without it nothing is done.")
    ] = False,
    wait_s: Annotated[
        float, Option(min=1, help="Seconds that a pod may take to go, and to be placed anew.")
    ] = 300.0,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Move the pods of such a plan, one at a time; without --yes, say what would be moved.

    A pod is evicted, and the next one only when it was placed anew where the plan said. It stops
    where it was not, the cluster changed, or a disruption budget refuses: what is left is said.
    """
    from weft.cli.defrag_apply import carry_out

    wish = DefragWish(pod, gpus, gpu_milli, cpu_milli, stranded, most_moves, most_trials)
    wish.check()
    result = planned(state_of(None, kubeconfig, context), wish)
    if not carry_out(result, kubeconfig, context, wait_s, yes=yes, output=output):
        raise Exit(1)

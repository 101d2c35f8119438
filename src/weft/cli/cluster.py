"""`weft cluster`: which uses the cluster's idle GPUs still have."""

import datetime
from typing import TYPE_CHECKING

from typer import Typer

from weft.cli.cluster_question import answer
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.cli.snapshot_files import SnapshotFile
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from pathlib import Path

    from weft.cluster.snapshot.state import SnapshotState
    from weft.core.framework.stranded import StrandedModel

cluster_app = Typer(
    help="Show what a cluster's idle GPUs can still be used for, and what strands them.",
    no_args_is_help=True,
)


@cluster_app.callback()
def _about() -> None: ...


@cluster_app.command("stranded")
def stranded(
    snapshot: SnapshotFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show how much of the idle GPUs could be used by usual pods, and what strands the rest.

    Usual pods have the requests of 95 % of the present GPU pods. Idle GPU is stranded by free
    shares that usual shares do not fill, nodes with fewer idle GPUs than their pods request, nodes
    that accept no usual pod, GPU models and sizes that none can use, and missing CPU or memory.
    """
    from weft.cluster.control.typical_pods import usual_shapes
    from weft.core.framework.stranded import stranded_by_model

    state = state_of(snapshot, kubeconfig, context)
    rows = stranded_by_model(state.engine.ledger.table, usual_shapes(state.usual()))
    if output is ListOutput.json:
        print(json_text({"models": [row._asdict() for row in rows]}))
        return
    _show(rows)


def state_of(snapshot: "Path | None", kubeconfig: "Path | None", context: str) -> "SnapshotState":
    """Return the cluster's state, from the file `snapshot`, or read from the cluster if None."""
    from weft.cli.absent_files import without_absent
    from weft.cli.policies import registry
    from weft.cli.snapshot import asked
    from weft.cli.snapshot_files import open_snapshot
    from weft.cluster.snapshot.capture import snapshot_of
    from weft.cluster.snapshot.state import snapshot_state
    from weft.host.plan import reading_cluster

    if snapshot is not None:
        if kubeconfig or context:
            raise BadInputError(
                str(snapshot), "is the state of a cluster; remove --kubeconfig, --context"
            )
        return open_snapshot(snapshot)
    objects, config = answer(kubeconfig, context, lambda client: asked(client, None))
    taken = snapshot_of(objects, config, datetime.datetime.now(datetime.UTC))
    known, here = registry(), without_absent(config)
    return snapshot_state(taken, lambda client: reading_cluster(here, known, client))


def _show(rows: "list[StrandedModel]") -> None:
    from weft.core.framework.stranded import LIMITS

    table = table_with("model|>GPUs|>idle|>usable|" + "|".join(f">{by}" for by in LIMITS))
    for row in rows:
        stranded_by = [f"{row.by[by]:,.2f}" for by in LIMITS]
        table.add_row(
            row.model, str(row.gpus), f"{row.idle:,.2f}", f"{row.usable:,.2f}", *stranded_by
        )
    print_table(table)
    idle, usable = sum(row.idle for row in rows), sum(row.usable for row in rows)
    if not idle:
        print_note("No GPU is idle.")
        return
    print_note(
        f"{idle:,.2f} GPUs are idle; pods like those in the cluster can use at most {usable:,.2f} "
        f"of them; {idle - usable:,.2f} are stranded."
    )

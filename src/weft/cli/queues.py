"""`weft queues`: the guarantee of each team's queue, and the GPUs that it holds and waits for."""

from typing import TYPE_CHECKING

from weft.cli.cluster import state_of
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.cli.snapshot_files import SnapshotFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.cluster.snapshot.state import QueueReport
    from weft.core.explain.queue_rows import QueueAmount, QueueRow

_ORDERS = {
    "fair": "Order fair: the queue that holds the least relative to its weight is next.",
    "priority": "Order priority: the pod with the highest priority is next, whatever its queue.",
}


def queues(
    snapshot: SnapshotFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show what each team's queue holds of the cluster, waits for, borrows, and may hold.

    A pod belongs to the queue that its label weft.dev/queue (or Kueue's, Volcano's or KAI's) names,
    else to its namespace's. Reads nodes, pods and the configuration from the API server, and counts
    as the scheduler does.
    """
    from weft.cluster.snapshot.state import queue_report

    report = queue_report(state_of(snapshot, kubeconfig, context))
    if output is ListOutput.json:
        print(json_text(report, indent=2))
        return
    _show(report)


def _show(report: "QueueReport") -> None:
    shown = [row for row in report.queues if row.gpus or row.waiting or row.configured]
    if shown:
        table = table_with(
            "queue|>weight|>share|>GPUs|>MiB|>borrowed|>waiting|guarantee|limits (held/most)"
        )
        for row in shown:
            table.add_row(*_cells(row))
        print_table(table)
    print_note(_ORDERS[report.order])
    if left := len(report.queues) - len(shown):
        print_note(f"{left} more queues hold no GPU and wait for none: -o json shows all.")
    if report.unreadable:
        print_note(f"{report.unreadable} waiting pods cannot be read: weft status says why.")


def _cells(row: "QueueRow") -> "Sequence[str]":
    waiting = f"{row.waiting} ({row.waiting_gpus} GPUs)" if row.waiting else "0"
    return (
        row.queue,
        str(row.weight),
        f"{row.share_percent:g} %",
        f"{row.gpus:,.10g}",
        f"{row.gpu_memory_mib:,}",
        f"{row.borrowed_gpus:,.10g}",
        waiting,
        ", ".join(f"{each.setting} {each.configured:,.10g}" for each in row.guarantee) or "–",
        ", ".join(map(_limit, row.limits)) or "–",
    )


def _limit(amount: "QueueAmount") -> str:
    return f"{amount.setting} {amount.held:,.10g}/{amount.configured:,.10g}"

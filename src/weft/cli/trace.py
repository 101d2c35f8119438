"""`weft trace from-cluster` and `from-prometheus`: record a cluster's nodes and pods for
simulations."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option, Typer

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import ConfigFile, Context, Kubeconfig, MissingOptionError, Output
from weft.cli.output import ListOutput, json_text, print_table, print_warning, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.state.observed import ObservedCluster, ObservedPod
    from weft.dialects.dialect import DialectSettings
    from weft.dialects.inventory import InventoryFallback
    from weft.kube.pods import Pod
    from weft.kube.structs import KubeNode
    from weft.lab.simulate.openb import TracePod

trace_app = Typer(help="Make a trace of a live cluster.", no_args_is_help=True)

_NodesFile = Annotated[Path, Option("--nodes", help="The node list to write.")]
_PodsFile = Annotated[Path, Option("--pods", help="The pod list to write.")]
_MOST_WARNINGS = 10


class TraceFiles(NamedTuple):
    """Paths of the node list and the pod list to write."""

    nodes: Path
    pods: Path


@trace_app.command("from-cluster")
def from_cluster(
    objects: Annotated[
        str,
        Argument(
            help="What `kubectl get nodes,pods -A -o json` wrote; - reads standard input.  "
            "[default: ask the cluster]",
            show_default=False,
        ),
    ] = "",
    nodes: _NodesFile = Path("nodes.csv"),
    pods: _PodsFile = Path("pods.csv"),
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Write the present nodes and pods of a cluster, as `weft simulate` reads them.

    Pods that ended and were deleted are missing: for the arrivals and durations of a day use a
    metrics server, `weft trace from-prometheus`.
    """
    from weft.cli.scheduler import configuration
    from weft.cluster.state.observed import observe

    if objects and (kubeconfig or context):
        raise BadInputError(objects, "is the state of the cluster; remove --kubeconfig, --context")
    settings, rules = _reading(configuration(config))
    if objects:
        from weft.kube.listed_objects import read_objects

        listed = read_objects(objects)
    else:
        listed = asyncio.run(_ask(kubeconfig, context))
    seen = observe(*listed, settings, rules)
    origin_s = min((pod.times.created_s for pod in seen.pods), default=0.0)
    write_trace(seen, origin_s, TraceFiles(nodes, pods), output)


@trace_app.command("from-prometheus")
def from_prometheus(
    config: ConfigFile = None,
    url: Annotated[str, Option(help="A metrics server.  [default: as configured]")] = "",
    hours: Annotated[float, Option(min=0.01, max=8_760, help="Hours to cover.")] = 24.0,
    end: Annotated[
        str,
        Option(
            help="The end of these hours, such as 2026-03-01T18:00:00Z.  [default: now]",
            show_default=False,
        ),
    ] = "",
    step_s: Annotated[
        float,
        Option("--step-s", min=1.0, max=3_600, help="Precision of a deleted pod's end, seconds."),
    ] = 30.0,
    nodes: _NodesFile = Path("nodes.csv"),
    pods: _PodsFile = Path("pods.csv"),
    output: Output = ListOutput.table,
) -> None:
    """Write a day of a cluster, with arrivals and durations, from a metrics server's history.

    The server must have scraped kube-state-metrics; GPU memory comes from DCGM or GPU feature
    discovery.
    """
    from weft.cli.scheduler import configuration
    from weft.cluster.state.observed import observe
    from weft.cluster.telemetry.cluster_history import TraceSpan, end_of, history

    settings = configuration(config)
    reading, rules = _reading(settings)
    if not (url or settings.telemetry.url):
        raise MissingOptionError("--url", "is missing: name a metrics server, or one in --config")
    end_s = end_of(end)
    span = TraceSpan(end_s - 3_600 * hours, end_s, step_s)
    past = asyncio.run(history(settings.telemetry, url, span))
    seen = observe(past.nodes, past.pods, reading, rules, past.times_of)
    seen.warnings.extend(past.notes)
    write_trace(seen, span.start_s, TraceFiles(nodes, pods), output)


def _reading(config: "Configuration") -> "tuple[DialectSettings, list[InventoryFallback]]":
    """Return the settings for reading pods, and the rules for nodes without an inventory."""
    from weft.dialects.dialect import DialectSettings
    from weft.dialects.inventory import InventoryFallback

    unit = config.gpushare_unit
    rules = [
        InventoryFallback(rule.count, rule.memory_mib, rule.model, rule.nodes, rule.labels)
        for rule in config.inventory
    ]
    settings = DialectSettings(
        gpushare_unit="node" if unit == "auto" else unit,
        volcano_memory_factor=config.volcano_memory_factor,
    )
    return settings, rules


async def _ask(kubeconfig: Path | None, context: str) -> "tuple[list[KubeNode], list[Pod]]":
    import msgspec

    from weft.kube.client import ApiClient
    from weft.kube.codec import NODES, PODS
    from weft.kube.errors import ApiError, LostError, NotSentError
    from weft.kube.services import everything

    try:
        async with ApiClient(endpoint_of(kubeconfig, context)) as client:
            return await everything(client, NODES), await everything(client, PODS)
    except (ApiError, LostError, NotSentError) as error:
        raise BadInputError("the cluster", str(error)) from error
    except msgspec.DecodeError as error:
        raise BadInputError("the cluster", f"is not an API server's answer: {error}") from error


def write_trace(
    seen: "ObservedCluster", origin_s: float, files: TraceFiles, output: ListOutput
) -> None:
    """Write both files, and print a summary of their contents."""
    from weft.lab.simulate.openb import nodes_csv, pods_csv, usual_card_mib

    if not seen.nodes:
        raise BadInputError("the nodes", "there are none: name a file or server that has some")
    card_mib = usual_card_mib(seen.nodes)
    by_queue = any(pod.names_queue for pod in seen.pods)
    rows = [_row(pod, origin_s, card_mib, by_queue=by_queue) for pod in seen.pods]
    rows.sort(key=lambda row: (row.created_s or 0, row.name))
    _write(files.nodes, "--nodes", nodes_csv(seen.nodes))
    _write(files.pods, "--pods", pods_csv(rows))
    for warning in seen.warnings[:_MOST_WARNINGS]:
        print_warning(warning)
    if len(seen.warnings) > _MOST_WARNINGS:
        print_warning(f"and {len(seen.warnings) - _MOST_WARNINGS} more warnings")
    for why, count in sorted(seen.left_out.items()):
        print_warning(f"{count:,} {why}")
    _say(seen, rows, files, output)


def _row(pod: "ObservedPod", origin_s: float, card_mib: int, *, by_queue: bool) -> "TracePod":
    """Return a pod as a row of the list; with `by_queue`, its team's queue is named."""
    from weft.lab.simulate.openb import TracePod, asked

    def since(at: float | None) -> int | None:
        return None if at is None else max(0, round(at - origin_s))

    gpus, milli = asked(pod.shape, card_mib)
    created, scheduled, ended = map(since, pod.times)
    times = created, ended, scheduled
    return TracePod(
        pod.name,
        pod.shape,
        gpus,
        milli,
        *times,
        pod.priority,
        listed_gang=pod.gang,
        listed_queue=pod.queue if by_queue else "",
    )


def _write(path: Path, option: str, text: str) -> None:
    from weft.files.writing import unwritten, write_whole

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise unwritten(f"{option} {path}", error) from None


def _say(
    seen: "ObservedCluster", rows: "list[TracePod]", files: TraceFiles, output: ListOutput
) -> None:
    gpus = [gpu for node in seen.nodes for gpu in node.gpus]
    of_dialect = Counter(pod.dialect for pod in seen.pods)
    asked: Counter[str] = Counter()
    for pod in seen.pods:
        asked[pod.dialect] += pod.shape.gpus
    if output is ListOutput.json:
        said: dict[str, Any] = {
            "nodes": len(seen.nodes),
            "gpus": len(gpus),
            "gpu_memory_mib": sum(gpu.memory_mib for gpu in gpus),
            "pods": len(rows),
            "ended": sum(row.deleted_s is not None for row in rows),
            "by_dialect": dict(sorted(of_dialect.items())),
            "left_out": dict(sorted(seen.left_out.items())),
            "files": [str(files.nodes), str(files.pods)],
        }
        print(json_text(said))
        return
    memory = sum(gpu.memory_mib for gpu in gpus)
    print(f"{files.nodes}: {len(seen.nodes):,} nodes, {len(gpus):,} GPUs, {memory:,} MiB in all")
    ended = sum(row.deleted_s is not None for row in rows)
    print(f"{files.pods}: {len(rows):,} pods, {ended:,} of them ended")
    table = table_with("dialect|>pods|>GPUs asked")
    for dialect, count in sorted(of_dialect.items()):
        table.add_row(dialect, f"{count:,}", f"{asked[dialect]:,}")
    print_table(table)

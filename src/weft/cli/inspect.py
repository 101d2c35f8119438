"""`weft inspect`: the memory promised to pods (reserved) on each GPU, and its real use."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from weft.cli.cluster_question import answer
from weft.cli.options import ConfigFile, Context, Kubeconfig, Output
from weft.cli.output import ListOutput, json_text, print_note, print_table, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cli.text_table import TextTable
    from weft.cluster.reading.promises import ClusterReport, InspectWish, PodOnGpu
    from weft.telemetry.meaning.join import Devices
    from weft.telemetry.sources.source import MetricSource

_Nodes = Annotated[list[str] | None, Argument(metavar="[NODE]...", help="Show only these nodes.")]
_Details = Annotated[bool, Option("-d", "--details", help="Print a line for each pod.")]
_Namespace = Annotated[
    str, Option("-n", "--namespace", help="Only pods of this namespace, with --details.")
]
_From = Annotated[
    str,
    Option(
        "--metrics-from",
        metavar="URL",
        help="A metrics server, or exporters' pages with {address} or {node}, instead of agents.",
    ),
]
_Watch = Annotated[bool, Option("-w", "--watch", help="Repeat until interrupted.")]
_Interval = Annotated[
    float, Option(min=0.1, max=3600, help="With --watch: seconds between two readings.")
]

_CLEAR = "\x1b[H\x1b[2J"


def inspect(
    nodes: _Nodes = None,
    details: _Details = False,
    namespace: _Namespace = "",
    metrics_from: _From = "",
    watch: _Watch = False,
    interval: _Interval = 2.0,
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show how much of each GPU is promised to pods (reserved), and its real use.

    Real use is read from the agents on the nodes, through the API server's proxy. Without agents
    and without --metrics-from, only promised amounts are shown.
    """
    from weft.cluster.reading.promises import inspect_cluster

    wish = _wish(nodes or (), config, metrics_from)
    looked = False
    while True:
        try:
            inspected = answer(kubeconfig, context, lambda client: inspect_cluster(client, wish))
        except BadInputError as error:
            if not looked:
                raise
            sys.stderr.write(f"weft: {error}; trying again\n")
        else:
            looked = True
            if watch and output is ListOutput.table and sys.stdout.isatty():
                print(_CLEAR, end="")
            _show(inspected, details, namespace, output)
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(interval)


def _wish(nodes: Sequence[str], config: Path | None, metrics_from: str) -> "InspectWish":
    from msgspec.structs import replace

    from weft.cli.scheduler import configuration
    from weft.cluster.config.addresses import check_url
    from weft.cluster.reading.promises import InspectWish
    from weft.cluster.reading.reading import how_to_read
    from weft.cluster.telemetry.metric_sources import SourceContext, source_of

    loaded = configuration(config)
    wish = InspectWish(nodes, how_to_read(loaded))
    if not metrics_from:
        return wish
    pages = "{address}" in metrics_from or "{node}" in metrics_from
    page = metrics_from.replace("{address}", "a").replace("{node}", "n")
    check_url(page.partition("?")[0] if pages else page, "--metrics-from")
    named = {"exporters" if pages else "url": metrics_from}
    cleared = replace(loaded.telemetry, url="", exporters="", discover="")
    settings = replace(cleared, **named)

    def source(devices: "Devices", addresses: Mapping[str, str]) -> "MetricSource":
        needed = "{address}" in metrics_from
        known = {name: address for name, address in addresses.items() if address or not needed}
        asked = source_of(settings, SourceContext(lambda: known, lambda: devices, None))
        assert asked is not None
        return asked

    return wish._replace(source=source)


def _show(inspected: "ClusterReport", details: bool, namespace: str, output: ListOutput) -> None:
    if output is ListOutput.json:
        print(json_text(inspected, indent=2))
        return
    if not inspected.nodes:
        print("No node of this cluster has GPUs known to Weft.")
        return
    used = bool(inspected.source)
    table = _pods(inspected, namespace, used) if details else _gpus(inspected, used)
    print_table(table)
    for note in _notes(inspected):
        print_note(note)


def _gpus(inspected: "ClusterReport", used: bool) -> "TextTable":
    """Build a table with one line per GPU."""
    of_use = "|>used MiB|>util %|>SM %" if used else ""
    table = table_with(f"node|>GPU|model|>MiB|>promised MiB{of_use}|>cores %|>pods")
    for node in inspected.nodes:
        for gpu in node.gpus:
            use = [_number(gpu.used_mib), _percent(gpu.util_ratio), _percent(gpu.sm_active_ratio)]
            table.add_row(
                node.name,
                str(gpu.index),
                gpu.model or "?",
                _number(gpu.memory_mib),
                _number(gpu.promised_mib),
                *(use if used else ()),
                _percent(gpu.promised_milli / 1000),
                str(len(gpu.pods)),
            )
    return table


def _pods(inspected: "ClusterReport", namespace: str, used: bool) -> "TextTable":
    """Build a table with one line per pod and GPU, and one per GPU for processes outside these
    pods."""
    of_use = "|>used MiB|>util %" if used else ""
    chosen = [p for n in inspected.nodes for g in n.gpus for p in g.pods if _is_of(namespace, p)]
    others = any(pod.placed_by_others for pod in chosen)
    of_others = "|placed by others" if others else ""
    table = table_with(f"node|>GPU|namespace|pod|>promised MiB{of_use}|>cores %|state{of_others}")
    for node in inspected.nodes:
        for gpu in node.gpus:
            for pod in gpu.pods:
                if _is_of(namespace, pod):
                    over = pod.used_mib is not None and 0 < pod.memory_mib < pod.used_mib
                    table.add_row(
                        node.name,
                        str(gpu.index),
                        pod.namespace,
                        pod.name,
                        _number(pod.memory_mib),
                        *((_number(pod.used_mib), _percent(pod.util_ratio)) if used else ()),
                        _percent(pod.milli / 1000),
                        "over its share" if over else pod.phase.lower() or pod.by,
                        *([_by_others(pod)] if others else ()),
                    )
            if gpu.others_mib and not namespace:
                use = (_number(gpu.others_mib), "–") if used else ()
                rest = ("", "") if others else ("",)
                table.add_row(node.name, str(gpu.index), "", "(others)", "–", *use, "–", *rest)
    return table


def _is_of(namespace: str, pod: "PodOnGpu") -> bool:
    return namespace in ("", pod.namespace)


def _by_others(pod: "PodOnGpu") -> str:
    """Return who placed the pod and how its GPU is known, such as `kai, by its reservation pod`.

    For a ResourceClaim it names the driver; "" for a pod that Weft placed."""
    by = pod.placed_by_others
    if by is None:
        return ""
    return f"driver {by.system}" if by.kind == "claim" else f"{by.system}, by {by.evidence}"


def _notes(inspected: "ClusterReport") -> list[str]:
    from weft.cluster.reading.promises import troubles_of

    notes = []
    problems: dict[str, list[str]] = {}
    for node in inspected.nodes:
        if node.problem:
            problems.setdefault(node.problem, []).append(node.name)
    if not inspected.source:
        notes.append(
            "Requested amounts only, since no source reports actual use. Install Weft's agent "
            "(deploy/agent.yaml), or name a metrics server with --metrics-from."
        )
    else:
        notes += [f"Real use unknown on {', '.join(of)}: {text}." for text, of in problems.items()]
    notes += [f"Incomplete: {text}" for text in inspected.problems]
    notes += [text for node in inspected.nodes for text in troubles_of(node)]
    unplaced = [pod for node in inspected.nodes for pod in node.unplaced]
    if unplaced:
        notes.append(f"No record says which GPU these pods have: {', '.join(unplaced)}.")
    return notes


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.0f}"

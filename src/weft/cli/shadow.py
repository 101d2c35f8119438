"""`weft shadow`: compares a configuration's choices, read-only, with the running scheduler's."""

import asyncio
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, echo

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import Context, Kubeconfig, Output
from weft.cli.output import ListOutput, print_note, print_table, table_with
from weft.model.errors import BadInputError, WeftError

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.cluster.shadow.comparison import BindingComparison, ComparedPlace
    from weft.cluster.shadow.summary import ShadowSummary
    from weft.cluster.state.nodes import NodeView
    from weft.kube.client import Endpoint

_FOR = re.compile(r"(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,7})s)?", re.ASCII)
_RIGHTS = "bind yourself to the ClusterRole of deploy/reader.yaml"
_WIDTHS = (8, 28, 11, 20, 20)


def shadow(
    config: Annotated[Path, Option(help="The configuration to try, your own or an imported one.")],
    duration: Annotated[
        str,
        Option("--for", help="How long, such as 10m or 1h30m.  [default: until Ctrl-C]"),
    ] = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Watch how pods are bound now, and print what a configuration would choose instead.

    For each pod that requests GPUs or names one of the profiles: both placements, with the GPUs
    allocated, fragmentation and expected slowdown. It writes nothing and takes no lease. Prints a
    summary at the end, or at Ctrl-C.
    """
    from msgspec.structs import replace

    from weft.cli.snapshot_files import SYSTEM_NAMESPACE
    from weft.cluster.config.read import read

    seconds = _seconds(duration)
    settings = read(config)
    endpoint = endpoint_of(kubeconfig, context)
    if not endpoint.inside:  # the heartbeats are in the agents' namespace
        endpoint = replace(endpoint, namespace=SYSTEM_NAMESPACE)
    run = ShadowRun(config, output)
    try:
        summary = asyncio.run(run.run(settings, endpoint, seconds))
    except BadInputError:
        raise
    except WeftError as error:
        raise BadInputError(endpoint.url, f"{error}; run weft doctor") from error
    sum_up(summary, output)


def _seconds(text: str) -> float | None:
    match = _FOR.fullmatch(text)
    if match is None or (text and not any(match.groups())):
        raise BadInputError(
            "--for", f"{text!r} is not a duration; write one such as 90s, 10m or 1h30m"
        )
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if text and not total:
        raise BadInputError("--for", "is zero; write at least 1s")
    return float(total) if text else None


class ShadowRun:
    """A run of `weft shadow`, which prints each binding when it is seen."""

    def __init__(self, where: Path, output: ListOutput) -> None:
        self._where, self._output = where, output

    async def run(
        self, settings: "Configuration", endpoint: "Endpoint", seconds: float | None
    ) -> "ShadowSummary":
        """Run for `seconds`, or until SIGTERM or SIGINT; `WeftError` if the cluster cannot be
        watched."""
        from weft.cli.policies import registry
        from weft.cluster.shadow.watch import unreadable_lists
        from weft.host.shadow import ShadowListeners, watch
        from weft.kube.client import ClientOptions
        from weft.kube.read_only import ReadOnlyClient

        options = ClientOptions(qps=settings.client.qps, burst=settings.client.burst)
        async with ReadOnlyClient(endpoint, options) as client:

            async def rights() -> None:
                if refused := await unreadable_lists(client):
                    wrong = f"no permission to list {', '.join(refused)}; {_RIGHTS}"
                    raise BadInputError("your rights", wrong)

            return await watch(
                settings,
                registry(),
                client,
                ShadowListeners(self._ready, self.show),
                where=str(self._where),
                seconds=seconds,
                first=rights,
            )

    def _ready(self, nodes: "NodeView") -> None:
        gpus = sum(len(node.gpus) for node in nodes.nodes.values())
        echo(
            f"weft: watching {len(nodes.nodes):,} nodes with {gpus:,} GPUs; reading only", err=True
        )
        if self._output is ListOutput.table:
            print(
                _row("time", "pod", "choice", "bound to", "would choose", "fragments, slowdown"),
                flush=True,
            )

    def show(self, comparison: "BindingComparison") -> None:
        """Print one comparison as a line."""
        import msgspec

        now = datetime.datetime.now(datetime.UTC)
        if self._output is ListOutput.json:
            fields = {"at": now.strftime("%Y-%m-%dT%H:%M:%SZ"), **msgspec.to_builtins(comparison)}
            print(msgspec.json.encode(fields).decode(), flush=True)
            return
        own = "nowhere" if comparison.own is None else _place(comparison.own)
        seen = _place(comparison.seen) + " ?" * comparison.assumed
        name = f"{comparison.namespace}/{comparison.name}"
        print(
            _row(f"{now:%H:%M:%S}", name, comparison.agrees, seen, own, _differs(comparison)),
            flush=True,
        )


def _row(*cells: str) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    return "  ".join([*padded, *cells[len(_WIDTHS) :]]).rstrip()


def _place(place: "ComparedPlace") -> str:
    gpus = ",".join(map(str, place.gpus))
    return f"{place.node} GPU {gpus}" if gpus else place.node


def _differs(comparison: "BindingComparison") -> str:
    """Describe how the configuration's own choice differs from the running scheduler's; "" if it
    does not."""
    seen, own = comparison.seen, comparison.own
    if own is None:
        return comparison.why
    words = []
    if own.fragmentation_percent != seen.fragmentation_percent:
        words.append(f"{seen.fragmentation_percent:.2f} → {own.fragmentation_percent:.2f} %")
    if own.allocation_milli != seen.allocation_milli:
        before, after = seen.allocation_milli / 1000, own.allocation_milli / 1000
        words.append(f"allocates {before:,.2f} → {after:,.2f} GPUs")
    if own.slowdown != seen.slowdown:
        words.append(f"{seen.slowdown or 1.0:.2f} → {own.slowdown or 1.0:.2f} ×")
    return ", ".join(words)


def sum_up(summary: "ShadowSummary", output: ListOutput) -> None:
    """Print the summary."""
    import msgspec

    if output is ListOutput.json:
        fields = {"summary": msgspec.to_builtins(summary)}
        print(msgspec.json.encode(fields).decode())
        return
    print()
    table = table_with("choice|>bindings")
    for kind, count in summary.bindings.items():
        table.add_row(kind, f"{count:,}")
    print_table(table)
    fragments, slowdown = summary.fragmentation_percent, summary.slowdown
    lines = [
        f"{sum(summary.bindings.values()):,} bindings in {summary.seconds:,.0f} s.",
        f"The configuration's own choices allocate {summary.allocation_milli / 1000:+.2f} GPUs.",
    ]
    if fragments is not None:
        lines.append(
            f"Fragmentation after a binding changes by {fragments:+.3f} percentage points, mean."
        )
    if slowdown is not None:
        lines.append(f"The expected slowdown changes by {slowdown:+.3f}, mean (1: full speed).")
    lines.append(
        f"{summary.waiting:,} pods wait; the configuration would place {summary.would_place:,} now."
    )
    if summary.unread:
        lines.append(f"{summary.unread:,} bindings could not be compared.")
    for line in lines:
        print_note(line)

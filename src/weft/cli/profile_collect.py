"""`weft profile collect`: profiles from a metrics server's history."""

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import ConfigFile, Context, Kubeconfig, MissingOptionError, Output
from weft.cli.output import ListOutput
from weft.cli.profile_tables import print_dataset
from weft.cli.progress import on_terminal
from weft.model.annotations import APPLICATION
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import TelemetrySettings
    from weft.lab.profiling.history import ClusterRecord, CollectedProfiles, HistorySpan

_ConfigMap = Annotated[str, Option(help="Add them to this ConfigMap.", metavar="NAMESPACE/NAME")]
_Step = Annotated[
    float,
    Option(
        "--step-s", min=1.0, max=86_400, help="Seconds between two samples; the scrape interval."
    ),
]
_Settle = Annotated[
    float,
    Option(
        "--settle-s", min=0.0, max=86_400, help="Seconds alone on the GPU before samples count."
    ),
]
_Least = Annotated[
    float, Option("--least-s", min=0.0, help="Seconds alone on the GPU that a profile needs.")
]
_Progress = Annotated[
    str, Option(help="The counter of iterations that applications export.", metavar="METRIC")
]
_Cluster = Annotated[
    bool, Option("--cluster", help="Ask the cluster which pod holds which GPU now.")
]


def collect(
    config: ConfigFile = None,
    url: Annotated[str, Option(help="A metrics server.  [default: as configured]")] = "",
    hours: Annotated[float, Option(min=0.01, max=87_600, help="How far back to read.")] = 24.0,
    step_s: _Step = 15.0,
    settle_s: _Settle = 60.0,
    least_s: _Least = 300.0,
    progress: _Progress = "",
    cluster: _Cluster = False,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    file: Annotated[Path | None, Option("--file", help="Add them to this file.")] = None,
    config_map: _ConfigMap = "",
    output: Output = ListOutput.table,
) -> None:
    """Find how applications behave in the periods when they had a GPU to themselves.

    Prints the profiles; stores them too if --file or --config-map is given.
    """
    from weft.cli.profile import StoreLocation, print_stored, update_store
    from weft.lab.profiling.history import HistorySpan

    place = StoreLocation(file, config_map, kubeconfig, context)
    keeps = file is not None or bool(config_map)
    if keeps:
        place.check()
    settings = _telemetry(config, url)
    end_s = time.time()
    if progress and not re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", progress):
        raise BadInputError("--progress", f"{progress!r} is not a metric name")
    span = HistorySpan(end_s - 3_600 * hours, end_s, step_s, settle_s, least_s, progress)
    asks = cluster or ((kubeconfig is not None or bool(context)) and not config_map)
    collected = asyncio.run(_collect(settings, span, (kubeconfig, context) if asks else None))
    print_dataset(collected.dataset, output)
    _say_left_out(collected, span)
    if (
        keeps and collected.dataset.solo
    ):  # last, so that the result has been printed even if it cannot be stored
        print_stored(
            *asyncio.run(update_store(place, lambda stored: stored.merged(collected.dataset)))
        )


def _telemetry(config: Path | None, url: str) -> "TelemetrySettings":
    from msgspec.structs import replace

    from weft.cli.scheduler import configuration

    settings = configuration(config).telemetry
    settings = replace(settings, url=url) if url else settings
    if not settings.url:
        raise MissingOptionError("--url", "is missing: name a metrics server, or one in --config")
    return settings


async def _collect(
    settings: "TelemetrySettings", span: "HistorySpan", where: tuple[Path | None, str] | None
) -> "CollectedProfiles":
    from weft.cluster.telemetry.metric_sources import aliases_of, prometheus_options
    from weft.lab.profiling.history import ClusterRecord, collect
    from weft.telemetry.meaning.answers import TelemetryError
    from weft.telemetry.sources.prometheus import Prometheus

    cluster = await _known(*where) if where else ClusterRecord()
    try:
        async with Prometheus(prometheus_options(settings), aliases_of(settings)) as source:
            return await collect(source, span, cluster, _say_done)
    except TelemetryError as error:
        raise BadInputError("profile collect", str(error)) from error


async def _known(kubeconfig: Path | None, context: str) -> "ClusterRecord":
    import msgspec

    from weft.kube.client import ApiClient
    from weft.kube.errors import ApiError, LostError, NotSentError
    from weft.lab.profiling.bindings import bindings

    try:
        async with ApiClient(endpoint_of(kubeconfig, context)) as client:
            return await bindings(client)
    except (ApiError, LostError, NotSentError) as error:
        raise BadInputError("the cluster", str(error)) from error
    except msgspec.DecodeError as error:
        raise BadInputError("the cluster", f"is not an API server's answer: {error}") from error


def _say_done(share: float) -> None:
    if on_terminal():
        end = "\n" if share >= 1 else ""
        print(f"\rweft: {share:.0%} of the history", end=end, file=sys.stderr, flush=True)


def _say_left_out(collected: "CollectedProfiles", span: "HistorySpan") -> None:
    """Print on stderr which applications and pods ran alone but gave no profile, and why."""
    for name, seconds in sorted(collected.short.items()):
        needed = f"a profile needs {span.least_s:.0f}"
        print(f"weft: {name}: alone for {seconds:.0f} s; {needed}", file=sys.stderr)
    if collected.nameless:
        (namespace, pod), *_ = sorted(collected.nameless)
        print(
            f"weft: {len(collected.nameless)} pods belong to no known application, such as "
            f"{namespace}/{pod}: annotate them with {APPLICATION}",
            file=sys.stderr,
        )
    if not (collected.dataset.solo or collected.short or collected.nameless):
        advice = "do exporters label series with pods?"
        print(f"weft: no pod was seen alone on a GPU: {advice}", file=sys.stderr)

"""`weft metrics`: the metrics that Weft reads of each GPU now, and how to fix missing ones."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Exit, Option

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import ConfigFile, Context, Kubeconfig, MissingOptionError, Output
from weft.cli.output import ListOutput, json_text, print_table, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import TelemetrySettings
    from weft.cluster.telemetry.metric_sources import SourceContext
    from weft.kube.client import ApiClient
    from weft.model import Node
    from weft.telemetry.feed.completeness import CompletenessFinding, ScrapeReport
    from weft.telemetry.meaning.join import Devices


_Url = Annotated[str, Option(help="A metrics server.  [default: as configured]")]
_Cluster = Annotated[
    bool, Option("--cluster", help="Compare with the GPUs of the cluster's nodes.")
]
_Check = Annotated[
    bool,
    Option("--check", help="Instead report what is missing, late or contradictory, with remedies."),
]


def metrics(
    check: _Check = False,
    config: ConfigFile = None,
    url: _Url = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    cluster: _Cluster = False,
    output: Output = ListOutput.table,
) -> None:
    """List what Weft sees of each GPU now; with --check report what is missing.

    Without --cluster, --kubeconfig or --context, the GPUs are those named in the labels of a
    metrics server; where exporters are read, they are those of the cluster's nodes.
    """
    looked = _looked(config, url, kubeconfig, context, cluster)
    if check:
        _tell(looked, output)
    else:
        _show(looked, output)


def _looked(
    config: Path | None, url: str, kubeconfig: Path | None, context: str, cluster: bool
) -> "ScrapeReport":
    """Read the metrics once from the named source; `BadInputError` if none is named."""
    import asyncio

    from msgspec.structs import replace

    from weft.cli.scheduler import configuration
    from weft.cluster.config.addresses import check_url

    settings = configuration(config).telemetry
    if url:
        check_url(url, "--url")
        settings = replace(settings, url=url, exporters="", discover="")
    asks = cluster or kubeconfig is not None or bool(context)
    if not (settings.url or settings.exporters or settings.discover):
        ways = (
            "name a metrics server, or one in --config; one inside a cluster is at "
            "http://localhost:9090 after kubectl port-forward -n NAMESPACE service/NAME 9090; "
            "with telemetry.discover: exporters in --config, no server is needed"
        )
        raise MissingOptionError("--url", f"is missing: {ways}")
    needs = asks or not settings.url
    return asyncio.run(_look(settings, (kubeconfig, context) if needs else None))


async def _look(
    settings: "TelemetrySettings", where: tuple[Path | None, str] | None
) -> "ScrapeReport":
    """Read the metrics once, over the whole window of the configuration.

    `where` is (kubeconfig, context) if the source needs the cluster, else None."""
    from weft.cluster.telemetry.metric_sources import NO_CLUSTER, SourceContext
    from weft.kube.client import ApiClient
    from weft.telemetry.meaning.join import Devices

    if where is None:
        return await _read(settings, NO_CLUSTER, None)
    kubeconfig, context = where
    endpoint = endpoint_of(kubeconfig, context)
    async with ApiClient(endpoint) as client:
        cluster = await _cluster(client)
        devices = Devices(cluster.nodes, cluster.names)
        around = SourceContext(lambda: cluster.addresses, lambda: devices, client)
        return await _read(settings, around, devices)


async def _read(
    settings: "TelemetrySettings", around: "SourceContext", devices: "Devices | None"
) -> "ScrapeReport":
    """Read the metrics from their source; without `devices`, the GPUs are those in the series."""
    from weft.cluster.telemetry.metric_sources import aliases_of, source_of
    from weft.telemetry.feed.completeness import ScrapeReport, discover
    from weft.telemetry.feed.window import MetricWindow
    from weft.telemetry.meaning.join import Devices, SeriesJoiner
    from weft.telemetry.sources.source import DEFAULT_METRICS

    source, aliases = source_of(settings, around), aliases_of(settings)
    assert source is not None
    try:
        reading = await source.read(DEFAULT_METRICS, settings.window_seconds)
        now_s = time.time()
    finally:
        await source.close()
    errors = [str(request.error) for request in reading.asked if request.error is not None]
    if errors and not reading.answers:
        raise BadInputError("metrics", errors[0])
    asked_s = now_s - max((request.took_s for request in reading.asked), default=0.0)
    joiner = SeriesJoiner(devices or Devices(discover(reading.answers, aliases)), aliases)
    samples = max(2, round(settings.window_seconds / settings.interval_seconds))
    gpus = len(joiner.devices)
    window = MetricWindow(DEFAULT_METRICS, gpus, samples, settings.interval_seconds, now_s)
    for answer in reading.answers:
        for joined in joiner.join(answer):
            window.put(joined.metric, joined.rows, joined.times, joined.values, now_s)
    notes, scrape_s = _notes(reading.where, errors), settings.scrape_seconds
    return ScrapeReport(reading.answers, joiner, window, asked_s, now_s, scrape_s, notes)


def _notes(where: str, errors: list[str]) -> "list[CompletenessFinding]":
    """Return findings on the queried sources, and on those that did not answer."""
    from weft.telemetry.feed.completeness import CompletenessFinding

    silent = [f"no answer: {error}" for error in dict.fromkeys(errors)]
    return [
        *(CompletenessFinding("wrong", text) for text in silent),
        CompletenessFinding("good", f"asked: {where}"),
    ]


class NodeAddresses(NamedTuple):
    """The cluster's nodes; the InternalIP of nodes with GPUs, by name; and node names by
    address."""

    nodes: "list[Node]"
    addresses: dict[str, str]
    names: dict[str, str]


async def _cluster(client: "ApiClient") -> NodeAddresses:
    """Read the nodes from the API server."""
    from weft.dialects.inventory import inventory
    from weft.kube.codec import NODES
    from weft.kube.services import everything

    cluster = NodeAddresses([], {}, {})
    for node in await everything(client, NODES):
        name = node.metadata.name
        cluster.nodes.append(inventory(node)[0])
        for address in node.status.addresses or ():
            cluster.names[address.address] = name
            if address.type == "InternalIP" and cluster.nodes[-1].gpus:
                cluster.addresses.setdefault(name, address.address)
    return cluster


def _rows(looked: "ScrapeReport") -> list[dict[str, Any]]:
    """Return one entry per GPU: each metric's newest value, its age and its state."""
    from weft.core.framework.signals import FRESH, STALE
    from weft.telemetry.feed.doubts import freshness_of

    words = {FRESH: "fresh", STALE: "stale"}
    rows: list[dict[str, Any]] = [
        {"node": node, "gpu": gpu, "metrics": {}} for node, gpu in looked.joiner.devices.gpus
    ]
    for metric in looked.window.metrics:
        values, ages = looked.window.newest(metric)[0], looked.ages_s(metric)
        fresh = freshness_of(ages, looked.scrape_s)
        for row, value, age, state in zip(rows, values, ages, fresh, strict=True):
            if not math.isnan(value):
                row["metrics"][metric.value] = {
                    "value": round(float(value), 6),
                    "age_s": round(float(age), 1),
                    "state": words.get(int(state), "missing"),
                }
    return rows


_COLUMNS = {
    "used MiB": ("memory_used_mib", 0),
    "free MiB": ("memory_free_mib", 0),
    "GPU util": ("gpu_util_ratio", 2),
    "SM active": ("sm_active_ratio", 2),
    "SM occup.": ("sm_occupancy_ratio", 2),
    "DRAM": ("dram_active_ratio", 2),
    "power W": ("power_w", 0),
}


def _show(looked: "ScrapeReport", output: ListOutput) -> None:
    rows = _rows(looked)
    if output is ListOutput.json:
        print(json_text(rows, indent=2))
        return
    table = table_with("|>".join(("node", "gpu", *_COLUMNS, "oldest s")) + "|state")
    for row in rows:
        metrics = row["metrics"]
        cells = [
            f"{metrics[name]['value']:,.{digits}f}" if name in metrics else "–"
            for name, digits in _COLUMNS.values()
        ]
        ages = [newest["age_s"] for newest in metrics.values()]
        states = {newest["state"] for newest in metrics.values()} or {"missing"}
        worst = next(word for word in ("missing", "stale", "fresh") if word in states)
        oldest = f"{max(ages):.0f}" if ages else "–"
        table.add_row(row["node"], str(row["gpu"]), *cells, oldest, worst)
    print_table(table)


def _tell(looked: "ScrapeReport", output: ListOutput) -> None:
    from weft.telemetry.feed.completeness import check

    findings: list[CompletenessFinding] = check(looked)
    if output is ListOutput.json:
        print(json_text([finding._asdict() for finding in findings], indent=2))
    else:
        table = table_with("|")
        for finding in findings:
            table.add_row(f"{finding.level:<6}", finding.text)
            if finding.mend:
                table.add_row("", f"→ {finding.mend}")
        print_table(table)
    if any(finding.level == "wrong" for finding in findings):
        raise Exit(1)

"""`weft profile`: lists, stores, imports and exports profiles of applications."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option, Typer

from weft.cli.options import Context, Kubeconfig, MissingOptionError, Output
from weft.cli.output import ListOutput
from weft.cli.profile_tables import print_application, print_dataset
from weft.model.errors import BadInputError
from weft.model.nearest import nearest

if TYPE_CHECKING:
    from weft.interference.dataset import Dataset
    from weft.lab.profiling.stores import Change, ProfileStore
import time
from typing import TYPE_CHECKING

from weft.cli.cluster_question import endpoint_of
from weft.cli.options import ConfigFile
from weft.cli.progress import on_terminal
from weft.model.annotations import APPLICATION

if TYPE_CHECKING:
    from weft.cluster.config.form import TelemetrySettings
    from weft.lab.profiling.history import ClusterRecord, CollectedProfiles, HistorySpan
from enum import StrEnum

profile_app = Typer(
    help="Profiles of applications: measured, or from metrics history.", no_args_is_help=True
)

_File = Annotated[Path | None, Option("--file", help="The file in which profiles are stored.")]
_ConfigMap = Annotated[
    str, Option(help="The ConfigMap in which profiles are stored.", metavar="NAMESPACE/NAME")
]

_NAME = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
"""Pattern of a Kubernetes name."""


class StoreLocation(NamedTuple):
    """The store of profiles named on the command line: a file or a ConfigMap."""

    file: Path | None
    config_map: str
    kubeconfig: Path | None
    context: str

    def check(self) -> None:
        """Raise `BadInputError` unless exactly one store is named."""
        if (self.file is None) == (not self.config_map):
            advice = "specify one of the two, to say where profiles are stored"
            error = MissingOptionError if self.file is None else BadInputError
            raise error("--file, --config-map", advice)
        if self.config_map and not re.fullmatch(f"{_NAME}/{_NAME}", self.config_map):
            raise BadInputError("--config-map", f"{self.config_map!r} is not NAMESPACE/NAME")


def list_(
    file: _File = None,
    config_map: _ConfigMap = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """List the known applications, one line for each GPU model and isolation."""
    dataset = asyncio.run(_load(StoreLocation(file, config_map, kubeconfig, context)))
    print_dataset(dataset, output)


def show(
    application: Annotated[str, Argument(help="An application, as `weft profile list` shows it.")],
    file: _File = None,
    config_map: _ConfigMap = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    output: Output = ListOutput.table,
) -> None:
    """Show everything known of one application: features, and runs next to others."""
    from weft.interference.dataset import about_application

    everything = asyncio.run(_load(StoreLocation(file, config_map, kubeconfig, context)))
    dataset = about_application(everything, application)
    if not (dataset.solo or dataset.corun or dataset.infeasible):
        known = {name for run in everything.corun for name in (run.target, *run.aggressors)}
        near = nearest(application, known | {solo.application for solo in everything.solo})
        hint = f"did you mean {near!r}? " if near else ""
        problem = f"is not known here; {hint}`weft profile list` shows known applications"
        raise BadInputError(application, problem)
    print_application(dataset, application, output)


def import_(
    datasets: Annotated[list[Path], Argument(help="Datasets written by measure or export.")],
    file: _File = None,
    config_map: _ConfigMap = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Add datasets to the stored profiles; entries for the same application and GPU are
    replaced."""
    from weft.lab.profiling import files

    datasets_read = [files.read(path) for path in datasets]

    def change(stored: "Dataset") -> "Dataset":
        for dataset in datasets_read:
            stored = stored.merged(dataset)
        return stored

    place = StoreLocation(file, config_map, kubeconfig, context)
    print_stored(*asyncio.run(update_store(place, change)))


def export(
    to: Annotated[Path, Argument(help="The file to write; - is stdout.")] = Path("-"),
    file: _File = None,
    config_map: _ConfigMap = "",
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Write all stored profiles as one dataset."""
    from weft.interference.dataset import encode
    from weft.lab.profiling import files

    dataset = asyncio.run(_load(StoreLocation(file, config_map, kubeconfig, context)))
    if str(to) == "-":
        sys.stdout.write(encode(dataset).decode())
    else:
        files.write(to, dataset)


@asynccontextmanager
async def store_of(place: StoreLocation) -> "AsyncIterator[ProfileStore]":
    """Open the store; errors of the API server are raised as `BadInputError`."""
    import msgspec

    from weft.kube.client import ApiClient
    from weft.kube.config import load
    from weft.kube.errors import ApiError, LostError, NotSentError
    from weft.lab.profiling.stores import ConfigMapStore, FileStore

    place.check()
    if place.file is not None:
        yield FileStore(place.file)
        return
    namespace, _, name = place.config_map.partition("/")
    endpoint = load(place.context, paths=(place.kubeconfig,) if place.kubeconfig else ())
    try:
        async with ApiClient(endpoint) as client:
            yield ConfigMapStore(client, namespace, name)
    except (ApiError, LostError, NotSentError) as error:
        raise BadInputError(f"ConfigMap {place.config_map}", str(error)) from error
    except msgspec.DecodeError as error:
        problem = f"{endpoint.url}: is not an API server's answer: {error}"
        raise BadInputError(f"ConfigMap {place.config_map}", problem) from error


async def update_store(place: StoreLocation, change: "Change") -> "tuple[Dataset, str]":
    """Apply `change` to the stored profiles; return the new dataset, and a description of the
    store."""
    async with store_of(place) as store:
        return await store.change(change), store.where


def print_stored(dataset: "Dataset", where: str) -> None:
    """Print on stderr how many profiles are stored now."""
    print(
        f"weft: {where}: {len(dataset.solo)} profiles, {len(dataset.corun)} co-runs, "
        f"{len(dataset.infeasible)} infeasible",
        file=sys.stderr,
    )


async def _load(place: StoreLocation) -> "Dataset":
    async with store_of(place) as store:
        return await store.load()


# --- collect --------------------------------------------------------------------------------------
# `weft profile collect`: profiles from a metrics server's history.


_Into = Annotated[str, Option(help="Add the profiles to this ConfigMap.", metavar="NAMESPACE/NAME")]
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
    file: Annotated[Path | None, Option("--file", help="Add the profiles to this file.")] = None,
    config_map: _Into = "",
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
        needed = f"a profile needs {span.least_s:.0f} s"
        print(f"weft: {name}: alone on a GPU for {seconds:.0f} s; {needed}", file=sys.stderr)
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


# --- measure --------------------------------------------------------------------------------------
# `weft profile measure`: measures workloads alone and in pairs, on a GPU used exclusively.


class Isolation(StrEnum):
    """The isolation of workloads that share the GPU."""

    time_slicing = "time-slicing"
    mps = "mps"


class Device(StrEnum):
    """The device on which the workloads run."""

    cuda = "cuda"
    cpu = "cpu"


_Folder = Annotated[
    Path,
    Argument(help="The folder for runs.jsonl and dataset.json; a second run continues there."),
]
_Workloads = Annotated[list[str], Option(help="A workload; repeat for several.  [default: all]")]
_Isolations = Annotated[list[Isolation], Option(help="The isolation; repeat for both.")]
_Budget = Annotated[
    float, Option("--budget-s", min=0.0, help="Seconds for the whole measurement; 0: no limit.")
]
_Window = Annotated[
    float, Option("--window-s", min=0.1, max=600, help="Seconds of each measuring window.")
]
_Warm = Annotated[
    float, Option("--warm-s", min=0.0, max=600, help="Seconds of warm-up before each window.")
]
_Python = Annotated[
    str, Option(help="A Python that has PyTorch.  [default: the one that runs Weft]")
]
_Device = Annotated[Device, Option(help="cpu is for a trial; it measures no GPU.")]


def measure(
    folder: _Folder,
    workload: _Workloads = [],  # noqa: B006 - typer's way of a list default
    isolation: _Isolations = [Isolation.time_slicing],  # noqa: B006
    runs: Annotated[
        int,
        Option(
            min=1,
            max=1_000,
            help="Runs of each workload alone and of each pair; the median counts.",
        ),
    ] = 3,
    budget_s: _Budget = 0.0,
    window_s: _Window = 3.0,
    warm_s: _Warm = 1.5,
    gpu: Annotated[str, Option(help="Which GPU, by index or UUID.")] = "0",
    python: _Python = "",
    device: _Device = Device.cuda,
    tiny: Annotated[bool, Option("--tiny", help="Tiny sizes, for trying out.")] = False,
    output: Output = ListOutput.table,
) -> None:
    """Measure workloads alone and in pairs on a GPU: rates, features, and pairs that do not fit.

    Nothing else may run on the GPU meanwhile. Each measurement is stored at once.
    """
    from weft.lab.profiling.campaign import CampaignSettings
    from weft.lab.profiling.machine import MachineOptions
    from weft.lab.profiling.session import MeasuringPlan, workloads_named
    from weft.lab.profiling.session import measure as measured

    workloads = workloads_named(workload)
    settings = CampaignSettings(runs=runs, window_s=window_s, warm_s=warm_s, budget_s=budget_s)
    how = MachineOptions(device.value, gpu, python or sys.executable, warm_s, tiny)
    isolations = list(dict.fromkeys(way.value for way in isolation))
    wishes = MeasuringPlan(folder, workloads, isolations, settings, how)
    print_dataset(measured(wishes, _say), output)


def _say(line: str) -> None:
    print(f"weft: {line}", file=sys.stderr, flush=True)


for _command in (measure, collect, list_, show, import_, export):
    profile_app.command(_command.__name__.rstrip("_"))(_command)

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
from weft.cli.profile_collect import collect
from weft.cli.profile_measure import measure
from weft.cli.profile_tables import print_application, print_dataset
from weft.model.errors import BadInputError
from weft.model.nearest import nearest

if TYPE_CHECKING:
    from weft.interference.dataset import Dataset
    from weft.lab.profiling.stores import Change, ProfileStore

profile_app = Typer(
    help="Profiles of applications: measured, or from metrics history.", no_args_is_help=True
)

_File = Annotated[Path | None, Option("--file", help="Keep profiles in this file.")]
_ConfigMap = Annotated[
    str, Option(help="Keep profiles in this ConfigMap.", metavar="NAMESPACE/NAME")
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
            advice = "specify one of the two: where profiles are stored"
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
    application: Annotated[str, Argument(help="An application, as `weft profile list` has it.")],
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


for _command in (measure, collect, list_, show, import_, export):
    profile_app.command(_command.__name__.rstrip("_"))(_command)

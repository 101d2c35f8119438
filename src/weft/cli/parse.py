"""`weft parse FILE…`: how Weft reads each pod in a manifest, and what it would write for it.

Good documents are printed on stdout, bad ones named on stderr one line each; any bad one makes
the exit code 1.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Exit, Option

from weft.cli.output import json_text, table_with
from weft.dialects.dialect import DialectSettings, PodAnnotations
from weft.model import BadInputError, ContainerRequest
from weft.model.request import GpuMemoryRequest

if TYPE_CHECKING:
    from weft.cli.manifests import ManifestPod


class ParseOutput(StrEnum):
    """The form of the results."""

    TABLE = "table"
    JSON = "json"


class Unit(StrEnum):
    """The size of one aliyun.com/gpu-mem."""

    AUTO = "auto"
    GIB = "GiB"
    MIB = "MiB"


class CompatMode(StrEnum):
    """Choice of keeping the originals' quirks."""

    SANE = "sane"
    EXACT = "exact"


class Row(msgspec.Struct, frozen=True):
    """One pod in the output."""

    file: str
    kind: str
    name: str
    dialect: str | None
    containers: list[dict[str, Any]]
    shared_by_containers: bool
    warnings: list[str]
    writes: PodAnnotations


def parse(
    files: Annotated[list[str], Argument(help="YAML files; - reads standard input.")],
    output: Annotated[ParseOutput, Option(help="A table for people, or JSON.")] = ParseOutput.TABLE,
    gpushare_unit: Annotated[
        Unit, Option(help="What one aliyun.com/gpu-mem is; auto goes by the number.")
    ] = Unit.AUTO,
    compat: Annotated[
        CompatMode, Option(help="exact keeps the original systems' quirks.")
    ] = CompatMode.SANE,
    interference_table: Annotated[
        bool, Option(help="Read gpushare pods as where an interference table is configured.")
    ] = False,
) -> None:
    """Show how Weft reads each pod: dialect, request per container, warnings, what it writes."""
    settings = DialectSettings(
        gpushare_unit=gpushare_unit.value,
        interference_table=interference_table,
        compat=compat.value,
    )
    rows: list[Row] = []
    errors: list[BadInputError] = []
    for file in files:
        read_file(file, settings, rows, errors)
    for error in errors:
        print(f"weft: error: {error}", file=sys.stderr)
    if output is ParseOutput.JSON:
        print(json_text(rows, indent=2))
    elif rows:  # a header over nothing would look like an answer
        _print_table(rows)
    if errors:
        raise Exit(1)


def read_file(
    file: str, settings: DialectSettings, rows: list[Row], errors: list[BadInputError]
) -> None:
    """Add a row for every pod in `file`, and an error for every document that has none to give."""
    from weft.cli.manifests import load, pods_in, split

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as broken:
        problem = broken.strerror if isinstance(broken, OSError) else "not UTF-8 text"
        errors.append(BadInputError(file, f"can't be read: {problem}"))
        return
    for document in split(text):
        where = document.place
        try:
            pods = list(pods_in(load(document)))
        except BadInputError as error:
            errors.append(_at(f"{file}: {where}", error))
            continue
        for pod in pods:
            try:
                rows.append(read_pod(file, pod, settings))
            except BadInputError as error:
                pod_name = f"{pod.kind} {pod.name}".rstrip()
                errors.append(_at(f"{file}: {where}: {pod_name}", error))


def _at(place: str, error: BadInputError) -> BadInputError:
    """The same error with its document named, on one line."""
    where = f"{place}: {error.where}" if error.where else place
    return BadInputError(where, " ".join(error.problem.split()))


def read_pod(file: str, pod: "ManifestPod", settings: DialectSettings) -> Row:
    """The row of one pod, or `BadInputError` naming the field, its value and the way out."""
    from weft.cli.manifests import manifest_of
    from weft.cluster.state import pod_reader
    from weft.cluster.state.pod_constraints import UnknownVolumes
    from weft.dialects.preview import preview

    request = pod_reader.read(manifest_of(pod), settings, UnknownVolumes())
    return Row(
        file=file,
        kind=pod.kind,
        name=pod.name,
        dialect=None if request.dialect == "none" else request.dialect,
        containers=[_container(container) for container in request.containers],
        shared_by_containers=request.shared_by_containers,
        warnings=list(request.warnings),
        writes=preview(request),
    )


def _container(container: ContainerRequest) -> dict[str, Any]:
    asked = container.asked
    memory = asked.memory if asked else GpuMemoryRequest()
    return {
        "name": container.name,
        "gpus": asked.count if asked else 0,
        "memory_mib": memory.value if memory.kind in ("mib", "none") else None,
        "memory": {"kind": memory.kind, "value": memory.value},
        "gpu_milli": asked.milli if asked else 0,
    }


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console

    table = table_with("POD|DIALECT|CONTAINER|>GPUS|MEMORY|>CORES")
    for row in rows:
        for i, container in enumerate(row.containers):
            head = ("", "") if i else (f"{row.kind}/{row.name}", row.dialect or "none")
            table.add_row(*head, *_cells(container))
    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(table)
    for row in rows:
        name = f"{row.kind}/{row.name}"
        for warning in row.warnings:
            console.print(f"{name}: warning: {warning}")
        for kind, values in (("annotation", row.writes.annotations), ("label", row.writes.labels)):
            for key, value in values.items():
                console.print(f"{name}: writes {kind} {key}={value}")
        for container_name, env in row.writes.env.items():
            for key, value in env.items():
                console.print(f"{name}: sets {key}={value} in {container_name}")


def _cells(container: dict[str, Any]) -> tuple[str, ...]:
    from weft.core.explain.amounts import memory_in_words

    memory, gpus = GpuMemoryRequest(**container["memory"]), container["gpus"]
    if not gpus:
        return container["name"], "0", "-", "-"
    milli = container["gpu_milli"]
    cores = f"{milli / 10:g} %" if milli else "-"
    return container["name"], str(gpus), memory_in_words(memory), cores

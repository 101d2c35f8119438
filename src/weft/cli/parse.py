"""`weft parse FILE…`: shows how Weft reads each pod in a manifest, and which annotations it would
write.

Pods are printed on stdout. Invalid documents, and requests that Weft does not place, are printed on
stderr, one line each; each of these, or a run without any pod, makes the exit code 1."""

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET
from msgspec.structs import replace
from typer import Argument, Exit, Option

from weft.cli.output import json_text, print_remark, print_table, print_warning
from weft.cli.parse_rows import (
    NEEDS_NOTE,
    Group,
    PodReading,
    reading_of,
    table_of,
    total_line,
    volumes_in_words,
    written_lines,
)
from weft.dialects.dialect import DialectSettings
from weft.model import BadInputError

if TYPE_CHECKING:
    from weft.cluster.state.groups import Groups, ObjectKey
    from weft.cluster.state.manifests import ManifestPod
    from weft.dialects.group_objects import GroupPolicy
    from weft.kube.pods import Pod


NO_PODS = "has no pods; provide a Pod, a workload with a pod template, or a list of them"


class ParseOutput(StrEnum):
    """Output formats of the results."""

    TABLE = "table"
    JSON = "json"


class Unit(StrEnum):
    """The size of one aliyun.com/gpu-mem."""

    AUTO = "auto"
    GIB = "GiB"
    MIB = "MiB"


class CompatMode(StrEnum):
    """How to treat the original systems' quirks: correct them (`sane`) or keep them (`exact`)."""

    SANE = "sane"
    EXACT = "exact"


def parse(
    files: Annotated[list[str], Argument(help="YAML files; - reads standard input.")],
    output: Annotated[
        ParseOutput, Option("--output", "-o", help="A table for people, or JSON.")
    ] = ParseOutput.TABLE,
    gpushare_unit: Annotated[
        Unit, Option(help="The size of one aliyun.com/gpu-mem; auto decides by the number.")
    ] = Unit.AUTO,
    volcano_memory_factor: Annotated[
        int, Option(min=1, max=1_048_576, help="MiB of one volcano.sh/vgpu-memory.")
    ] = 1,
    compat: Annotated[
        CompatMode, Option(help="exact keeps the original systems' quirks.")
    ] = CompatMode.SANE,
    interference_table: Annotated[
        bool,
        Option(
            help="Read gpushare pods as Co-scheML's, as if an interference table were configured."
        ),
    ] = False,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print neither warnings nor what would be written.")
    ] = False,
) -> None:
    """Show how Weft reads each pod: dialect, request per container, warnings, what it writes. Exit
    code 1: something could not be read, requests GPUs in a way that Weft does not place, or no file
    has a pod."""
    settings = DialectSettings(
        gpushare_unit=gpushare_unit.value,
        interference_table=interference_table,
        compat=compat.value,
        volcano_memory_factor=volcano_memory_factor,
    )
    readings: list[PodReading] = []
    errors: list[BadInputError] = []
    without: list[str] = []
    for file in files:
        before = len(readings) + len(errors)
        read_file(file, settings, readings, errors)
        without += [file] * (len(readings) + len(errors) == before)
    if not (readings or errors):
        errors = [BadInputError(file, NO_PODS) for file in without]
    elif not quiet:
        for file in without:
            print_remark(f"{file}: has no pods")
    for error in errors:
        print(f"weft: error: {error}", file=sys.stderr)
    if output is ParseOutput.JSON:
        print(json_text([reading.row for reading in readings], indent=2))
    elif readings:  # a header without rows would look like a result
        _print_table(readings, quiet=quiet)
    if errors:
        raise Exit(1)


def read_file(
    file: str, settings: DialectSettings, readings: list[PodReading], errors: list[BadInputError]
) -> None:
    """Append a reading to `readings` for every pod in `file`, and errors to `errors`.

    There is an error for each invalid document, for each request that Weft does not place, and for
    each field that it does not honour."""
    from weft.cluster.state.groups import WrittenGroups
    from weft.cluster.state.manifests import load, pod_groups_in, pods_in, split
    from weft.files.reading import read_text

    try:
        text = read_text(Path(file))
    except BadInputError as error:
        errors.append(error)
        return
    found: list[tuple[str, ManifestPod]] = []
    policies: dict[ObjectKey, GroupPolicy] = {}
    for document in split(text):
        where = document.place
        try:
            value = load(document)
            found += [(where, pod) for pod in pods_in(value)]
        except BadInputError as error:
            errors.append(_at(f"{file}: {where}", error))
            continue
        policies |= dict(pod_groups_in(value))
    groups = WrittenGroups(policies)
    for _, pod in found:
        with contextlib.suppress(BadInputError):  # reported below
            groups.use(_on_cluster(pod))
    for where, pod in found:
        at = f"{file}: {where}: {pod.kind} {pod.name}".rstrip()
        try:
            reading = read_pod(file, pod, settings, groups)
        except BadInputError as error:
            errors.append(_at(at, error))
            continue
        readings.append(reading)
        errors += [_at(at, BadInputError("", text)) for text in reading.row.not_honoured]
        for asked in reading.row.not_placed:
            containers = f"container {', '.join(asked.containers)}" * bool(asked.containers)
            errors.append(_at(at, BadInputError(containers, asked.text)))


def _at(place: str, error: BadInputError) -> BadInputError:
    """Return the error on one line, with the place of its document in front."""
    where = f"{place}: {error.where}" if error.where else place
    return BadInputError(where, " ".join(error.problem.split()))


def read_pod(
    file: str, pod: "ManifestPod", settings: DialectSettings, groups: "Groups | None" = None
) -> PodReading:
    """Read one pod; `BadInputError` names the field, its value and the remedy.

    `groups` are the PodGroups in the same file."""
    from weft.cluster.state import pod_reader
    from weft.cluster.state.groups import WrittenGroups, words_of
    from weft.cluster.state.manifests import replicas_of
    from weft.cluster.state.pod_reader import UnknownVolumes, read
    from weft.dialects.preview import preview

    manifest = _on_cluster(pod)
    groups = groups or WrittenGroups()
    request = read(manifest, settings, UnknownVolumes(), groups=groups)
    row_of = {
        "file": file,
        "kind": pod.kind,
        "namespace": pod.namespace or None,
        "name": pod.name,
        "replicas": replicas_of(pod),
    }
    foreign = pod_reader.not_placed(manifest, request)
    not_honoured = [f"{text}: {pod_reader.WAY_OUT}" for text in pod_reader.not_honoured(manifest)]
    words, unhonoured = words_of(manifest, written=True), groups.read(manifest).unhonoured
    not_honoured += [unhonoured] if unhonoured else []
    if request.gang is not UNSET and not (request.gang.least or words.object_of):
        not_honoured.append(f"group {request.gang} has no size that can be read: the pod waits")
    group = Group.of(request.gang, words)
    volumes = volumes_in_words(manifest, pod.claim_templates)
    row = {**row_of, "group": group}
    return reading_of(row, request, foreign, preview(request), not_honoured, volumes)


def _on_cluster(pod: "ManifestPod") -> "Pod":
    """Return the pod as its controller creates it, with namespace and owner."""
    from weft.cluster.state.manifests import manifest_of
    from weft.kube.pods import OwnerReference

    manifest = manifest_of(pod)
    if pod.namespace and not manifest.metadata.namespace:  # as the workload's pods
        manifest = replace(manifest, metadata=replace(manifest.metadata, namespace=pod.namespace))
    if pod.kind != "Pod" and manifest.metadata.owner_references is None:
        owner = OwnerReference(pod.kind, pod.name.partition("/")[0], controller=True)
        metadata = replace(manifest.metadata, owner_references=[owner])
        manifest = replace(manifest, metadata=metadata)
    return manifest


def _print_table(readings: list[PodReading], *, quiet: bool) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False, highlight=False)
    print_table(table_of([reading.row for reading in readings]))
    console.print(total_line(readings))
    if quiet:
        return
    for reading in readings:
        for line in written_lines(reading.row):
            console.print(line)
    for reading in readings:
        for warning in reading.row.warnings:
            print_warning(f"{reading.row.full_name}: {warning}")
    if any(reading.row.needs_env for reading in readings):
        print_remark(NEEDS_NOTE)

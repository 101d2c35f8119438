"""`weft parse FILE…`: how Weft reads each pod in a manifest, and what it would write for it.

Good documents are printed on stdout, bad ones named on stderr one line each; any bad one makes
the exit code 1.
"""

import itertools
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from weft.dialects.dialect import Marks, Settings
from weft.model import BadInputError, ContainerRequest, PodManifest
from weft.model.request import Memory


class Output(StrEnum):
    """How results are shown."""

    TABLE = "table"
    JSON = "json"


class Unit(StrEnum):
    """What one aliyun.com/gpu-mem is."""

    AUTO = "auto"
    GIB = "GiB"
    MIB = "MiB"


class CompatMode(StrEnum):
    """Whether the originals' quirks are kept."""

    SANE = "sane"
    EXACT = "exact"


class Document(NamedTuple):
    """One YAML document: `where` names it in errors."""

    file: str
    where: str
    value: Any


class Pod(NamedTuple):
    """A pod, or a workload's pod template, with the kind and name of the object it is in."""

    kind: str
    name: str
    value: dict[str, Any]


class Row(msgspec.Struct, frozen=True):
    """One pod in the output."""

    file: str
    kind: str
    name: str
    dialect: str | None
    containers: list[dict[str, Any]]
    shared_by_containers: bool
    warnings: list[str]
    writes: Marks


def parse(
    files: Annotated[list[str], typer.Argument(help="YAML files; - reads standard input.")],
    output: Annotated[Output, typer.Option(help="A table for people, or JSON.")] = Output.TABLE,
    gpushare_unit: Annotated[
        Unit, typer.Option(help="What one aliyun.com/gpu-mem is; auto goes by the number.")
    ] = Unit.AUTO,
    compat: Annotated[
        CompatMode, typer.Option(help="exact keeps the original systems' quirks.")
    ] = CompatMode.SANE,
    interference_table: Annotated[
        bool,
        typer.Option(help="Read gpushare pods as where an interference table is configured."),
    ] = False,
) -> None:
    """Show how Weft reads each pod: dialect, request per container, warnings, what it writes."""
    settings = Settings(
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
    if output is Output.JSON:
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    else:
        _print_table(rows)
    if errors:
        raise typer.Exit(1)


def read_file(file: str, settings: Settings, rows: list[Row], errors: list[BadInputError]) -> None:
    """Add a row for every pod in `file`, and an error for every document that has none to give."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as broken:
        what = broken.strerror if isinstance(broken, OSError) else "not UTF-8 text"
        errors.append(BadInputError(file, f"can't be read: {what}"))
        return
    for where, part in split(text):
        try:
            document = Document(file, where, load(part))
            pods = list(pods_in(document.value))
        except BadInputError as error:
            errors.append(_at(f"{file}: {where}", error))
            continue
        for pod in pods:
            try:
                rows.append(read_pod(file, pod, settings))
            except BadInputError as error:
                errors.append(_at(f"{file}: {where}: {pod.kind} {pod.name}", error))


def _at(place: str, error: BadInputError) -> BadInputError:
    """The same error with its document named, on one line."""
    where = f"{place}: {error.where}" if error.where else place
    return BadInputError(where, " ".join(error.what.split()))


def split(text: str) -> Iterator[tuple[str, str]]:
    """The documents of a file with their places, each to be read whatever the others hold.

    Lines are kept where they are, by empty ones before them, so that errors name the right line.
    """
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"---(\s|$)", line)]
    number = 0
    for start, end in itertools.pairwise([0, *starts, len(lines)]):
        part = lines[start:end]
        if any(map(_says_something, part)):
            number += 1
            yield f"document {number}", "\n" * start + "\n".join(part)


def _says_something(line: str) -> bool:
    """Whether a line is more than a document's beginning or end, a directive or a comment."""
    rest = re.sub(r"^(---(?=\s|$)|\.\.\.$|%.*)", "", line).strip()
    return bool(rest) and not rest.startswith("#")


def load(text: str) -> Any:
    """One YAML document as plain values; times stay text, as the Kubernetes API has them."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Without YAML 1.1's dates, and refusing a key written twice."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    problem = f"{key.value} is written twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(str(key.value))
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        raise _bad_yaml(text, mark.line if mark else 0, broken.problem or "invalid YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as broken:
        raise BadInputError("", f"is not YAML: {broken or 'nested too deeply'}") from None


def _bad_yaml(text: str, line: int, problem: str) -> BadInputError:
    """Names the line, and what to do about the mistakes that old READMEs teach."""
    lines = text.splitlines()
    # A broken line is often reported at the next one.
    near = [n for n in (line, line - 1) if 0 <= n < len(lines)]
    for n in near:
        field, _, value = lines[n].partition(":")
        if "//" in value and value.partition("//")[0].strip():
            good = value.partition("//")[0].strip()
            return BadInputError(
                f"line {n + 1}, {field.strip(' -')}",
                f"{value.strip()!r} is not YAML: // starts no comment; write {good} "
                "(a comment starts with #)",
            )
    shown = lines[line].strip() if line < len(lines) else "the end"
    field = shown.partition(":")[0].strip(" -") if ":" in shown else ""
    fix = "check quotes and indentation here"
    if "written twice" in problem:
        fix = "keep one of the two"
    elif "\\t" in problem:
        fix = "indent with spaces"
    place = f"line {line + 1}, {field}" if field else f"line {line + 1}"
    return BadInputError(place, f"{shown!r} is not YAML ({problem}); {fix}")


def pods_in(value: Any, above: str = "") -> Iterator[Pod]:
    """Every pod and pod template in a document, workloads of any kind included."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadInputError("", f"is a {type(value).__name__}, not a Kubernetes object")
    kind = str(value.get("kind", above))
    meta = value.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = str(meta.get("name") or meta.get("generateName") or "")
    if isinstance(value.get("items"), list) and (kind.endswith("List") or not kind):
        for item in value["items"]:
            yield from pods_in(item, kind.removesuffix("List"))
    elif kind == "Pod":
        yield Pod(kind, name, value)
    else:
        templates = list(_templates(value, ()))
        for path, template in templates:
            part = "/".join(path)
            yield Pod(kind, f"{name}/{part}" if len(templates) > 1 and part else name, template)


def _templates(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Pod templates below `value`; `path` is the names on the way that tell them apart."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            name = item.get("name") if isinstance(item, dict) else None
            yield from _templates(item, (*path, str(name or i)))
        return
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        if key == "template" and isinstance(below, dict) and _has_containers(below):
            yield path, below
        elif key == "templates" and isinstance(below, list):
            yield from _argo(below, path)
        elif isinstance(below, dict | list) and key not in ("metadata", "status"):
            plain = key in ("spec", "template", "jobTemplate")
            yield from _templates(below, path if plain else (*path, str(key)))


def _has_containers(template: dict[str, Any]) -> bool:
    spec = template.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def _argo(templates: list[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Argo workflow steps: one container each, beside init containers and sidecars."""
    for i, step in enumerate(templates):
        if not isinstance(step, dict):
            continue
        inside = (*path, str(step.get("name") or i))
        main = step.get("container") or step.get("script")
        if isinstance(main, dict):
            named = {**main, "name": main.get("name", "main")}
            spec = {
                "containers": [named, *(step.get("sidecars") or ())],
                "initContainers": step.get("initContainers"),
            }
            yield inside, {"metadata": step.get("metadata") or {}, "spec": spec}
        else:
            yield from _templates(step, inside)


def read_pod(file: str, pod: Pod, settings: Settings) -> Row:
    """The row of one pod, or `BadInputError` naming the field, its value and the way out."""
    from weft.dialects.preview import preview
    from weft.dialects.registry import parse_pod

    try:
        manifest = msgspec.convert(_without_nulls(pod.value), PodManifest)
    except msgspec.ValidationError as broken:
        raise _bad_field(pod.value, str(broken)) from None
    request = parse_pod(manifest, settings)
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


def _without_nulls(value: Any) -> Any:
    """Without empty fields (`labels:`), which Kubernetes reads as absent."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _bad_field(pod: dict[str, Any], problem: str) -> BadInputError:
    """The field's path and value out of the decoder's message, where they can be found."""
    what, _, path = problem.partition(" - at `")
    value: Any = pod
    field = ""
    for step in re.findall(r"[^.\[\]`$]+|\[\d+\]|\[\.\.\.\]", path):
        if step == "[...]":  # some key of a mapping of texts: the first that holds something else
            key = next((k for k, v in value.items() if not isinstance(v, str)), "...")
            value, field = value.get(key), f"{field}[{key}]"
        elif step.startswith("["):
            value, field = value[int(step[1:-1])], field + step
        else:
            value, field = value.get(step), f"{field}.{step}" if field else step
    shown = f"{value!r}: " if isinstance(value, str | int | float) else ""
    fix = "put it in quotes" if "Expected `str`" in what else "correct its type"
    return BadInputError(field or "manifest", f"{shown}{what[:1].lower()}{what[1:]}; {fix}")


def _container(container: ContainerRequest) -> dict[str, Any]:
    asked = container.asked
    memory = asked.memory if asked else Memory()
    return {
        "name": container.name,
        "gpus": asked.count if asked else 0,
        "memory_mib": memory.value if memory.kind in ("mib", "none") else None,
        "memory": {"kind": memory.kind, "value": memory.value},
        "gpu_milli": asked.milli if asked else 0,
    }


def _print_table(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("POD", "DIALECT", "CONTAINER", "GPUS", "MEMORY", "CORES"):
        table.add_column(column, justify="right" if column in ("GPUS", "CORES") else "left")
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
    memory, gpus = container["memory"], container["gpus"]
    if not gpus:
        return container["name"], "0", "-", "-"
    text = {
        "mib": f"{memory['value']:,} MiB",
        "units": f"{memory['value']} units",
        "percent": f"{memory['value']} % of a card",
        "whole": "whole card",
        "none": "-",
    }[memory["kind"]]
    milli = container["gpu_milli"]
    return container["name"], str(gpus), text, f"{milli / 10:g} %" if milli else "-"

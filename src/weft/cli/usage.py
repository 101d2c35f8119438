"""`weft usage`: GPU-hours of each namespace, queue, workload or label, and their price."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from weft.cli.options import PolicyFiles
from weft.cli.output import json_text, print_csv, print_note, print_table, print_warning, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.core.record.usage import GroupOf, Usage, UsageRow

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
LABEL = "label:"


class UsageOutput(StrEnum):
    """Forms in which the account is printed."""

    table = "table"
    csv = "csv"
    json = "json"


def usage(
    decisions: Annotated[Path, Argument(help="A decisions file, of a scheduler or a simulation.")],
    by: Annotated[
        str, Option(help="namespace, queue, workload, or label:KEY (of the pods).")
    ] = "namespace",
    begin: Annotated[
        str,
        Option("--from", help="Begin so long after the file's first event: 90s, 30m, 2h, 1d."),
    ] = "",
    end: Annotated[str, Option("--to", help="End so long after it; its last event if unset.")] = "",
    prices: Annotated[
        Path | None,
        Option(help="YAML: a price for a GPU-hour by a part of the model's name, or default."),
    ] = None,
    policy: PolicyFiles = [],  # noqa: B006
    output: Annotated[UsageOutput, Option("--output", "-o", help="Form.")] = UsageOutput.table,
) -> None:
    """Show the GPU-hours and GiB-hours that pods held, by namespace, queue, workload or label.

    Replays a decisions file and counts every booking of the ledger: of each card the larger of the
    pod's parts of memory and cores, for as long as it was held. Times are the file's own.
    """
    from weft.cli.policies import registry
    from weft.core.record import read
    from weft.core.record.usage import usage_of

    from_s = seconds("--from", begin) if begin else 0.0
    to_s = seconds("--to", end) if end else None
    if to_s is not None and to_s <= from_s:
        raise BadInputError("--to", f"{end!r} is not after --from; choose a later time")
    group_of = _grouping(by)
    by_model = None if prices is None else read_prices(prices)
    header, lines = read(decisions)
    policies = registry()
    for warning in policies.restore(header, decisions, policy):
        print_warning(warning)
    found = usage_of(
        header, lines, policies.create, group_of, from_s=from_s, to_s=to_s, prices=by_model
    )
    if output is UsageOutput.json:
        print(json_text(found, indent=2))
    elif output is UsageOutput.csv:
        _print_csv(found, by)
    else:
        _show(found, by)
    if lines.check.why:
        print_warning(f"{decisions}: {lines.check.why}")


def _grouping(by: str) -> "GroupOf":
    from weft.core.record.usage import GROUPINGS, by_label

    if by.startswith(LABEL) and len(by) > len(LABEL):
        return by_label(by.removeprefix(LABEL))
    if by not in GROUPINGS:
        raise BadInputError("--by", f"{by!r}; choose {', '.join(GROUPINGS)} or label:KEY")
    return GROUPINGS[by]


def seconds(option: str, text: str) -> float:
    """A time as people write it, `90s`, `30m`, `1.5h`, `2d` or a number of seconds."""
    number, per = (text[:-1], SECONDS[text[-1]]) if text[-1] in SECONDS else (text, 1)
    try:
        value = float(number) * per
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise BadInputError(option, f"{text!r} is no time; write 90s, 30m, 2h or 1d")
    return value


def read_prices(path: Path) -> dict[str, float]:
    """Prices for a GPU-hour by model; `BadInputError` names what is none."""
    from weft.files.reading import read_bytes
    from weft.files.yaml_text import BrokenYamlError, load

    try:
        said = load(read_bytes(path))
    except BrokenYamlError as error:
        raise BadInputError(str(path), f"cannot be read: {error}") from None
    if not isinstance(said, dict) or not said:
        raise BadInputError(str(path), "has no prices; write lines like `A100: 2.5`")
    for model, price in said.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 <= price < 1e9:
            raise BadInputError(f"{path}, {model}", f"{price!r} is no price; write a number")
    return {str(model): float(price) for model, price in said.items()}


def _show(found: "Usage", by: str) -> None:
    columns = f"{by}|>pods|>GPU-hours|>%|>GiB-hours|>idle GiB-hours|>borrowed GiB-hours"
    priced = any(row.cost for row in found.rows)
    table = table_with(columns + ("|>cost" if priced else ""))
    for row in found.rows:
        table.add_row(*_cells(row, found, priced=priced))
    print_table(table)
    print_note(
        f"{found.hours:,.2f} hours; GPU-hours of all cards {found.capacity_gpu_hours:,.1f}, "
        f"held by nobody {found.idle_gpu_hours:,.1f}."
    )


def _cells(row: "UsageRow", found: "Usage", *, priced: bool) -> list[str]:
    percent = 100 * row.gpu_hours / found.capacity_gpu_hours if found.capacity_gpu_hours else 0.0
    cells = [
        row.group,
        f"{row.pods:,}",
        f"{row.gpu_hours:,.2f}",
        f"{percent:.1f}",
        f"{row.gib_hours:,.1f}",
        f"{row.idle_gib_hours:,.1f}",
        f"{row.borrowed_gib_hours:,.1f}",
    ]
    return [*cells, f"{row.cost or 0.0:,.2f}"] if priced else cells


def _print_csv(found: "Usage", by: str) -> None:
    sums = ("gpu_hours", "gib_hours", "core_hours", "idle_gib_hours", "borrowed_gib_hours")
    rows = (
        (row.group, row.pods, *(round(getattr(row, name), 6) for name in sums), row.cost or None)
        for row in found.rows
    )
    print_csv((by, "pods", *sums, "cost"), rows)

"""`weft usage`: GPU-hours of each namespace, queue, workload or label, and their price."""

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from weft.cli.options import ConfigFile, MissingOptionError, PolicyFiles
from weft.cli.output import json_text, print_csv, print_note, print_table, print_warning, table_with
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.telemetry.usage_history import MeteredRow, MeteredUsage
    from weft.core.record.usage import GroupOf, Usage, UsageRow

SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
LABEL = "label:"


class UsageOutput(StrEnum):
    """Output formats of the usage report."""

    table = "table"
    csv = "csv"
    json = "json"
    html = "html"


def usage(
    decisions: Annotated[
        Path | None, Argument(help="A decisions file, of a scheduler or a simulation.")
    ] = None,
    prometheus: Annotated[
        str,
        Option(help="Instead of a file: URL of a metrics server with Weft's recording rules."),
    ] = "",
    by: Annotated[
        str, Option(help="namespace, queue, workload, or label:KEY (of the pods).")
    ] = "namespace",
    begin: Annotated[
        str,
        Option("--from", help="Begin this long after the file's first event: 90s, 30m, 2h, 1d."),
    ] = "",
    end: Annotated[
        str,
        Option("--to", help="End this long after the first event.  [default: at the last event]"),
    ] = "",
    hours: Annotated[
        float, Option(min=0.01, max=87_600, help="With --prometheus: hours to cover.")
    ] = 24.0,
    until: Annotated[
        str,
        Option(
            "--end",
            help="With --prometheus: the end of these hours, such as 2026-03-01T18:00:00Z.  "
            "[default: now]",
            show_default=False,
        ),
    ] = "",
    prices: Annotated[
        Path | None,
        Option(
            help="YAML: a GPU-hour's price by part of the GPU model's name; default: all others."
        ),
    ] = None,
    policy: PolicyFiles = [],  # noqa: B006
    config: ConfigFile = None,
    output: Annotated[
        UsageOutput, Option("--output", "-o", help="What to print.")
    ] = UsageOutput.table,
) -> None:
    """Show the GPU-hours and GiB-hours that pods held, by namespace, queue, workload or label.

    Replays a decisions file and counts every booking of the ledger: of each card the larger of the
    pod's parts of memory and cores, for as long as it was held. Times are the file's own. With
    --prometheus it sums up a metrics server's series instead; --by label:KEY then needs a KEY in
    usage.labels.
    """
    if prometheus:
        if decisions is not None or begin or end or policy:
            what = "is read instead of a file; remove the file, --from, --to and --policy"
            raise BadInputError("--prometheus", what)
        _from_metrics(prometheus, by, hours, until, prices, config, output)
        return
    if decisions is None:
        raise MissingOptionError("DECISIONS", "is missing: name a decisions file, or --prometheus")
    if until or config is not None:
        raise BadInputError("--end" if until else "--config", "requires --prometheus; remove it")
    from_s = seconds("--from", begin) if begin else 0.0
    to_s = seconds("--to", end) if end else None
    if to_s is not None and to_s <= from_s:
        raise BadInputError("--to", f"{end!r} is not after --from; choose a later time")
    _of_file(decisions, by, (from_s, to_s), prices, policy, output)


def _of_file(
    decisions: Path,
    by: str,
    time: tuple[float, float | None],
    prices: Path | None,
    policy: list[str],
    output: UsageOutput,
) -> None:
    from weft.cli.policies import registry
    from weft.core.record import read
    from weft.core.record.lent_and_stranded import usual_shapes
    from weft.core.record.usage import usage_of

    group_of = _grouping(by)
    by_model = None if prices is None else read_prices(prices)
    header, lines = read(decisions)
    policies = registry()
    for warning in policies.restore(header, decisions, policy):
        print_warning(warning)
    # Which shapes are usual is known only at the file's end, and what is stranded depends on them:
    # it is read once more for that, in 2 % of the time and without keeping it in memory.
    found = usage_of(
        header,
        lines,
        policies.create,
        group_of,
        from_s=time[0],
        to_s=time[1],
        prices=by_model,
        usual=usual_shapes(read(decisions)[1]),
    )
    _warn_unpriced(prices, by_model, found.rows)
    if output is UsageOutput.json:
        print(json_text(found, indent=2))
    elif output is UsageOutput.csv:
        _print_csv(found, by)
    elif output is UsageOutput.html:
        print(_page(found, by, decisions.name), end="")
    else:
        _show(found, by)
    if lines.check.why:
        print_warning(f"{decisions}: {lines.check.why}")


def _grouping(by: str) -> "GroupOf":
    from weft.core.record.usage import GROUPINGS, by_label

    key = by.removeprefix(LABEL)
    if by.startswith(LABEL) and key and not {*key} & {*'"\\\n'}:
        return by_label(key)
    if by not in GROUPINGS:
        raise BadInputError("--by", f"{by!r}; choose {', '.join(GROUPINGS)} or label:KEY")
    return GROUPINGS[by]


def seconds(option: str, text: str) -> float:
    """Convert a duration (`90s`, `30m`, `1.5h`, `2d` or a number of seconds) to seconds."""
    number, per = (text[:-1], SECONDS[text[-1]]) if text[-1] in SECONDS else (text, 1)
    try:
        value = float(number) * per
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise BadInputError(option, f"{text!r} is not a time; write 90s, 30m, 2h or 1d")
    return value


def read_prices(path: Path) -> dict[str, float]:
    """Read prices of a GPU-hour by GPU model; `BadInputError` names an entry without a price."""
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
            wrong = f"{price!r} is not a price; write a number from 0 to below 1,000,000,000"
            raise BadInputError(f"{path}, {model}", wrong)
    return {str(model): float(price) for model, price in said.items()}


def _warn_unpriced(
    path: Path | None,
    prices: Mapping[str, float] | None,
    rows: "Sequence[UsageRow] | Sequence[MeteredRow]",
) -> None:
    """Name the models whose hours the file of prices has no price for."""
    from msgspec import UNSET

    from weft.core.record.usage import price_of

    missing: dict[str, float] = {}
    for row in rows if prices is not None else ():
        models = {} if row.gpu_hours_by_model is UNSET else row.gpu_hours_by_model
        for model, hours in models.items():
            if price_of(model, prices or {}) is None:
                missing[model] = missing.get(model, 0.0) + hours
    if missing:
        which = ", ".join(f"{model} ({missing[model]:,.2f} GPU-hours)" for model in sorted(missing))
        fix = "add a line for each, or `default: PRICE`"
        print_warning(f"{path}: no price for {which}, which count as 0; {fix}")


_COLUMNS = (
    "pods",
    "GPU-hours",
    "%",
    "GiB-hours",
    "idle GiB-hours",
    "lent GiB-hours",
    "borrowed GiB-hours",
)
_BY_QUEUE = "borrowed GPU-hours"


def _show(found: "Usage", by: str) -> None:
    columns, rows = _table(found, by)
    table = table_with("|>".join(columns))
    for row in rows:
        table.add_row(*row)
    print_table(table)
    print_note(_sums(found))


def _page(found: "Usage", by: str, name: str) -> str:
    from weft.cli.usage_page import usage_page

    columns, rows = _table(found, by)
    whole = found.capacity_gpu_hours or 1.0
    parts = [row.gpu_hours / whole for row in found.rows]
    return usage_page(f"GPU-hours by {by}: {name}", columns, rows, parts, _sums(found))


def _table(found: "Usage", by: str) -> tuple[list[str], list[list[str]]]:
    priced = any(row.cost for row in found.rows)
    rows = [_cells(row, found, priced=priced) for row in found.rows]
    columns = [by, *_COLUMNS, *([_BY_QUEUE] if by == "queue" else [])]
    return [*columns, *(["cost"] if priced else [])], rows


def _sums(found: "Usage") -> str:
    return (
        f"{found.hours:,.2f} hours; GPU-hours of all cards {found.capacity_gpu_hours:,.1f}, "
        f"used {_known(found.used_gpu_hours)}, idle {found.idle_gpu_hours:,.1f}, stranded "
        f"{found.stranded_gpu_hours:,.1f}; GiB-hours lent {found.lent_gib_hours:,.1f}."
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
        f"{row.lent_gib_hours:,.1f}",
        f"{row.borrowed_gib_hours:,.1f}",
        *([f"{row.borrowed_gpu_hours:,.2f}"] if isinstance(row.borrowed_gpu_hours, float) else []),
    ]
    return [*cells, f"{row.cost or 0.0:,.2f}"] if priced else cells


_SUMS = (
    "gpu_hours",
    "gib_hours",
    "core_hours",
    "idle_gib_hours",
    "lent_gib_hours",
    "borrowed_gib_hours",
)


def _print_csv(found: "Usage", by: str) -> None:
    sums = (*_SUMS, *(["borrowed_gpu_hours"] if by == "queue" else []))
    rows = (
        (row.group, row.pods, *(round(getattr(row, name), 6) for name in sums), row.cost or None)
        for row in found.rows
    )
    print_csv((by, "pods", *sums, "cost"), rows)


# --- from a metrics server ------------------------------------------------------------------------


def _from_metrics(
    url: str,
    by: str,
    hours: float,
    until: str,
    prices: Path | None,
    config: Path | None,
    output: UsageOutput,
) -> None:
    from weft.cli.scheduler import configuration
    from weft.cluster.telemetry.cluster_history import TraceSpan, end_of
    from weft.cluster.telemetry.usage_history import usage_history

    _grouping(by)
    by_model = None if prices is None else read_prices(prices)
    end_s = end_of(until)
    span = TraceSpan(end_s - 3_600 * hours, end_s, 30.0)
    found = asyncio.run(usage_history(configuration(config).telemetry, url, by, span, by_model))
    _warn_unpriced(prices, by_model, found.rows)
    _warn_scaled(url, found)
    if output is UsageOutput.json:
        print(json_text(found, indent=2))
        return
    columns, rows = _metered_table(found, by)
    note = _metered_sums(found)
    if output is UsageOutput.csv:
        _print_metered_csv(found, by)
    elif output is UsageOutput.html:
        from weft.cli.usage_page import usage_page

        whole = found.capacity_gpu_hours or sum(row.gpu_hours for row in found.rows) or 1.0
        parts = [row.gpu_hours / whole for row in found.rows]
        print(usage_page(f"GPU-hours by {by}", columns, rows, parts, note), end="")
    else:
        table = table_with("|>".join(columns))
        for row in rows:
            table.add_row(*row)
        print_table(table)
        print_note(note)


def _warn_scaled(url: str, found: "MeteredUsage") -> None:
    """Name the groups of which the server has more GPU-hours by model than in all."""
    from msgspec import UNSET

    if found.scaled_gpu_hours is UNSET:
        return
    held = {row.group: row.gpu_hours for row in found.rows}
    which = ", ".join(
        f"{group} ({hours:,.2f} instead of {held[group]:,.2f} GPU-hours)"
        for group, hours in sorted(found.scaled_gpu_hours.items())
    )
    print_warning(
        f"{url} has more GPU-hours by model than in all for {which}; they are scaled down, and "
        "the cost is that of the hours shown"
    )


_METERED = {
    "gpu_hours": "GPU-hours",
    "used_gpu_hours": "used GPU-hours",
    "gib_hours": "GiB-hours",
    "idle_gib_hours": "idle GiB-hours",
    "lent_gib_hours": "lent GiB-hours",
    "borrowed_gib_hours": "borrowed GiB-hours",
    "borrowed_gpu_hours": "borrowed GPU-hours",
}


def _print_metered_csv(found: "MeteredUsage", by: str) -> None:
    """Print the report as CSV, numbers to six decimals; unknown values are empty cells."""
    from msgspec import UNSET

    fields = (*_METERED, "cost")
    names = [name for name in fields if getattr(found.rows[0], name) is not UNSET]
    cells = [[getattr(row, name) for name in names] for row in found.rows]
    rows = [
        (row.group, *(None if value is None else round(value, 6) for value in values))
        for row, values in zip(found.rows, cells, strict=True)
    ]
    print_csv((by, *names), rows)


def _metered_table(found: "MeteredUsage", by: str) -> tuple[list[str], Sequence[list[str]]]:
    from msgspec import UNSET

    first = found.rows[0]
    names = [name for name in _METERED if getattr(first, name) is not UNSET]
    priced = first.cost is not UNSET
    rows = [
        [row.group, *(_known(getattr(row, name), 2) for name in names)]
        + ([f"{row.cost or 0.0:,.2f}"] if priced else [])
        for row in found.rows
    ]
    return [by, *(_METERED[name] for name in names), *(["cost"] if priced else [])], rows


def _metered_sums(found: "MeteredUsage") -> str:
    return (
        f"{found.hours:,.2f} hours; GPU-hours of all cards {_known(found.capacity_gpu_hours)}, "
        f"idle {_known(found.idle_gpu_hours)}, stranded {_known(found.stranded_gpu_hours)}; "
        f"GiB-hours lent {_known(found.lent_gib_hours)}."
    )


def _known(hours: float | None, digits: int = 1) -> str:
    """Format hours; None is shown as unknown, as a series without samples is not 0."""
    return "unknown" if hours is None else f"{hours:,.{digits}f}"

"""Reads public measurements: Gavel's table of co-located jobs, and tables of slowdowns in
Co-scheML's form.

Nothing here opens a file: callers pass the text and its name for errors."""

import codecs
import csv
import io
import math
from collections.abc import Iterator, Mapping

import msgspec

from weft.interference.records import FASTEST, CoLocatedRun, Measurements, SoloRun, solo
from weft.model.errors import BadInputError
from weft.model.number_text import decimal_number

FORBIDDEN = -1.0
"""Co-scheML's value for two applications that must not share a GPU."""
MOST_SLOWDOWN = 1e6
"""A pair with a larger slowdown makes no progress; the table should forbid the pair instead."""

_GAVEL = (
    "source",
    "gpu",
    "job_a",
    "job_b",
    "iso_a_steps_per_s",
    "iso_b_steps_per_s",
    "colo_a_steps_per_s",
    "colo_b_steps_per_s",
    "feasible",
)


def gavel(text: str, where: str) -> dict[str, Measurements]:
    """Read Gavel's CSV into one `Measurements` per campaign (column `source`).

    Speeds of different campaigns differ by up to 0.2, so campaigns must not be mixed. A speed is
    the co-located rate divided by the solo rate; infeasible pairs have none. A job paired with
    itself gives one sample."""
    runs: dict[str, list[CoLocatedRun]] = {}
    solos: dict[str, dict[tuple[str, str], SoloRun]] = {}
    bad: dict[str, list[tuple[tuple[str, ...], str, str]]] = {}
    for line, row in _rows(text, where):
        source, gpu, a, b = row["source"], row["gpu"], row["job_a"], row["job_b"]
        for name in _GAVEL[:4]:
            if not row[name]:
                raise BadInputError(f"{where}, line {line}, field {name}", "is empty; fill it in")
        alone = [_number(row, name, where, line) for name in _GAVEL[4:6]]
        for job, rate in zip((a, b), alone, strict=True):
            solos.setdefault(source, {}).setdefault((job, gpu), solo(job, gpu, "", rate))
        if row["feasible"] not in {"0", "1"}:
            field = f"{where}, line {line}, field feasible"
            raise BadInputError(field, f"{row['feasible']!r} is unknown; write 1 or 0")
        if row["feasible"] == "0":  # its rates are meaningless
            bad.setdefault(source, []).append(((a, b), gpu, ""))
            continue
        beside = [_number(row, name, where, line) for name in _GAVEL[6:8]]
        if not min(*alone, *beside) > 0:
            raise BadInputError(
                f"{where}, line {line}",
                "a feasible pair with a rate of 0; write feasible 0, or the measured rates",
            )
        for name, together, own in zip(_GAVEL[6:8], beside, alone, strict=True):
            if together > FASTEST * own:
                raise BadInputError(
                    f"{where}, line {line}, field {name}",
                    f"{together:g} is {together / own:g} times the rate alone; write both rates "
                    "in steps per second",
                )
        if a == b:
            speed = sum(beside) / sum(alone)
            runs.setdefault(source, []).append(CoLocatedRun(a, (b,), gpu, "", speed))
            continue
        for target, other, rate, own in ((a, b, beside[0], alone[0]), (b, a, beside[1], alone[1])):
            runs.setdefault(source, []).append(CoLocatedRun(target, (other,), gpu, "", rate / own))
    return {
        name: Measurements(name, (*solos[name].values(),), (*measured,), (*bad.get(name, ()),))
        for name, measured in sorted(runs.items())
    }


def _rows(text: str, where: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    if not text.strip():
        raise BadInputError(where, "is empty")
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    reader = csv.DictReader(lines, skipinitialspace=True)
    try:
        head = [name.strip() for name in reader.fieldnames or ()]
    except csv.Error as error:
        raise BadInputError(f"{where}, line 1", f"is not CSV: {error}") from None
    reader.fieldnames = head
    missing = [name for name in _GAVEL if name not in head]
    for sign, called in ((";", "';'"), ("\t", "a tab")):
        if missing and set(_GAVEL) <= set(sign.join(head).split(sign)):
            raise BadInputError(
                f"{where}, line 1",
                f"has {called} between columns; write commas there, and decimal points in numbers",
            )
    if missing:
        raise BadInputError(f"{where}, line 1", f"lacks the columns {', '.join(missing)}")
    try:
        for row in reader:
            line = reader.line_num
            if None in row or None in row.values():
                at = f"{where}, line {line}"
                raise BadInputError(at, "has a different number of fields than line 1")
            yield line, {name: value.strip() for name, value in row.items()}
    except csv.Error as error:
        raise BadInputError(f"{where}, line {reader.line_num}", f"is not CSV: {error}") from None


def _number(row: Mapping[str, str], name: str, where: str, line: int) -> float:
    try:
        value = decimal_number(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise BadInputError(
            f"{where}, line {line}, field {name}",
            f"{row[name]!r} is not a rate; write a number, 0 or more, in digits 0 to 9",
        )
    return value


class StaticTable(msgspec.Struct, frozen=True):
    """Slowdown of `applications[i]` next to `applications[j]`; inf: forbidden, NaN: not in the
    table."""

    source: str
    applications: tuple[str, ...]
    slowdown: tuple[tuple[float, ...], ...]


def static_table(text: str | bytes, where: str) -> StaticTable:
    """Read slowdowns from JSON of the form {target: {other: slowdown}}; −1 forbids the two to share
    a GPU."""
    body = text.encode() if isinstance(text, str) else text
    try:
        body = body.removeprefix(codecs.BOM_UTF8)
        rows = msgspec.json.decode(body, type=dict[str, dict[str, float]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(where, f"is not a table of slowdowns: {error}") from None
    return slowdowns(rows, where)


def slowdowns(rows: Mapping[str, Mapping[str, float]], where: str) -> StaticTable:
    """Check a decoded table of the form {target: {other: slowdown}}; `where` names it in errors."""
    names = tuple(dict.fromkeys([*rows, *(other for row in rows.values() for other in row)]))
    if not names:
        raise BadInputError(where, "names no application")
    table = []
    for target in names:
        row = rows.get(target, {})
        table.append(tuple(_slowdown(row.get(other), where, target, other) for other in names))
    return StaticTable(where, names, tuple(table))


def _slowdown(value: float | None, where: str, target: str, other: str) -> float:
    if value is None:
        return math.nan
    if value == FORBIDDEN:
        return math.inf
    if not 1 / MOST_SLOWDOWN <= value <= MOST_SLOWDOWN:
        raise BadInputError(
            f"{where}, {target} beside {other}",
            f"{value!r} is not a slowdown; write how many times longer the first takes, or -1 to "
            "forbid the pair",
        )
    return value

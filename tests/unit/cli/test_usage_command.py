"""`weft usage` on a file that `weft simulate --timed` wrote."""

import csv
import io
import json
from pathlib import Path

import pytest
from commands import Weft

from weft.cli.usage_page import usage_page

MARKUP = "<img src=x onerror=alert(1)>"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,256000,2,A100\nn2,64000,256000,1,T4\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec"
HEADER += ",creation_time,deletion_time,scheduled_time"
PODS = f"{HEADER}\na,1000,1000,1,1000,A100,0,7200,0\nb,1000,1000,1,500,T4,3600,10800,3600\n"


@pytest.fixture
def decisions(weft: Weft) -> Path:
    weft.nodes.write_text(NODES)
    weft.pods.write_text(PODS)
    path = weft.folder / "decisions.jsonl"
    said = weft.simulate("--policy", "best-fit", "--timed", "--decisions", path)
    assert said.code == 0, said
    return path


def test_the_table_has_sums_and_what_nobody_held(weft: Weft, decisions: Path) -> None:
    said = weft("usage", decisions)
    assert said.code == 0
    row = said.out.splitlines()[1].split()
    assert row == ["default", "2", "3.00", "33.3", "32.0", "0.0", "0.0", "0.0"]
    told = " ".join((said.out + said.err).split())
    assert "3.00 hours; GPU-hours of all cards 9.0, used unknown, idle 6.0, stranded" in told
    assert "stranded 0.0; GiB-hours lent 0.0." in told


def test_json_and_csv_say_the_same(weft: Weft, decisions: Path) -> None:
    prices = weft.folder / "prices.yaml"
    prices.write_text("A100: 2.5\nT4: 0.5\n")
    ask = ("usage", decisions, "--prices", prices, "--by", "queue", "-o")
    (row,) = json.loads(weft(*ask, "json").out)["rows"]
    (line,) = csv.DictReader(io.StringIO(weft(*ask, "csv").out))
    assert row["gpu_hours_by_model"] == {"A100": 2.0, "T4": 1.0}
    assert row["cost"] == 2 * 2.5 + 1 * 0.5
    assert line["queue"] == row["group"] == "default"
    assert [float(line[name]) for name in ("gpu_hours", "gib_hours", "cost")] == [
        row[name] for name in ("gpu_hours", "gib_hours", "cost")
    ]


def test_a_model_without_a_price_is_named(weft: Weft, decisions: Path) -> None:
    prices = weft.folder / "prices.yaml"
    prices.write_text("A100: 2.5\n")
    said = weft("usage", decisions, "--prices", prices, "-o", "json")
    assert json.loads(said.out)["rows"][0]["cost"] == 5
    told = " ".join(said.err.split())
    assert f"{prices}: no price for T4 (1.00 GPU-hours), which count as 0" in told
    prices.write_text("A100: 2.5\ndefault: 1\n")
    assert not weft("usage", decisions, "--prices", prices, "-o", "json").err


def test_a_part_of_the_time(weft: Weft, decisions: Path) -> None:
    said = weft("usage", decisions, "--from", "90m", "--to", "2h", "-o", "json")
    found = json.loads(said.out)
    assert (found["hours"], found["rows"][0]["gpu_hours"]) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--by", "owner"), "--by: 'owner'; choose namespace, queue, workload or label:KEY"),
        (("--from", "soon"), "--from: 'soon' is not a time; write 90s, 30m, 2h or 1d"),
        (("--from", "2h", "--to", "1h"), "--to: '1h' is not after --from; choose a later time"),
        (("--prices", "none.yaml"), "none.yaml: cannot be read"),
    ],
)
def test_bad_input_is_one_line(
    weft: Weft, decisions: Path, options: tuple[str, ...], says: str
) -> None:
    said = weft("usage", decisions, *options)
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert says in said.err


@pytest.mark.parametrize(
    "text", ["", "[1]", "A100: dear", "A100: -1", "A100: yes", "a: [", "A: .nan"]
)
def test_prices_that_are_none(weft: Weft, decisions: Path, text: str) -> None:
    prices = weft.folder / "prices.yaml"
    prices.write_text(text)
    said = weft("usage", decisions, "--prices", prices)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"weft: error: {prices}")


def test_a_file_without_its_end_is_counted_as_far_as_it_is_whole(
    weft: Weft, decisions: Path
) -> None:
    lines = decisions.read_text().splitlines(keepends=True)
    decisions.write_text("".join(lines[:-1]))
    said = weft("usage", decisions, "-o", "json")
    assert said.code == 0
    assert json.loads(said.out)["rows"][0]["gpu_hours"] == 3
    assert "end" in said.err


def test_a_page_has_the_rows_and_no_markup_of_others(weft: Weft, decisions: Path) -> None:
    said = weft("usage", decisions, "-o", "html")
    assert said.code == 0
    assert said.out.startswith("<!doctype html>")
    for text in ("GPU-hours by namespace", "<td>default</td>", "3.00", '<meter min="0" max="1"'):
        assert text in said.out
    page = usage_page(MARKUP, [MARKUP], [[MARKUP]], [0.5], MARKUP)
    assert "<img" not in page
    assert page.count("&lt;img") == 5


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "name a decisions file, or --prometheus"),
        (("x.jsonl", "--prometheus", "http://p"), 1, "instead of a file"),
        (("--prometheus", "http://p", "--from", "1h"), 1, "instead of a file"),
        (("--prometheus", "http://p", "--by", "owner"), 1, "choose namespace, queue, workload"),
        (("--prometheus", "http://p", "--by", 'label:a"} or x{b="'), 1, "or label:KEY"),
        (("--prometheus", "no url"), 1, "is not an http:// or https:// URL"),
        (("x.jsonl", "--end", "2026-03-01T18:00:00Z"), 1, "requires --prometheus"),
    ],
)
def test_what_does_not_go_together_is_refused(
    weft: Weft, words: tuple[str, ...], code: int, text: str
) -> None:
    said = weft("usage", *words)
    assert said.code == code
    assert text in said.err

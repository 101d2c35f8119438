import builtins
import hashlib
import html.parser
import os
import re
import shutil
from base64 import b64encode
from pathlib import Path

import msgspec
import pytest
from markupsafe import Markup
from report_samples import CEILINGS, results, run, timed, timed_run

from weft.lab.experiment.pages import simulation_report
from weft.lab.experiment.pages.document import Table
from weft.lab.experiment.pages.simulation_report import (
    HowMade,
    ReportTexts,
    maps,
    policy_table,
    reason_table,
    run_table,
    write_report,
)
from weft.lab.experiment.statistics.ranking import headline, summarise
from weft.lab.simulate.holdings import ClusterHoldings, GpuHoldings, Holder, NodeHoldings
from weft.lab.simulate.results import SimulationResults
from weft.model import BadInputError

MADE = HowMade("weft simulate --report 'a folder'", "Weft 1", "a-host: Linux", "2026-11-22")
TEXTS = ReportTexts("Title", "pods.csv: 8 pods", MADE)
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and collects tables as lists of rows of cell texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self._table: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in found.items()]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._table = self.tables[found["aria-label"]] = []
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
        if tag == "p" and "class" in found:
            self.texts[found["class"]] = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th", "span") and self._table:
            self._table[-1][-1] += data
        if self.open and self.open[-1] == "p" and self.texts:
            self.texts[list(self.texts)[-1]].append(data)

    def text(self, kind: str) -> str:
        return "".join(self.texts[kind]).replace("\xa0", " ")


def write(directory: Path, what: SimulationResults | None = None, **options: object) -> Page:
    path = write_report(what or results(), directory, TEXTS, **options)
    assert path == directory / "report.html"
    page = Page(path.read_text("utf-8"))
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report, written once."""
    folder = tmp_path_factory.mktemp("written") / "new" / "report"
    write(folder)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report without host and date, with PNG copies, written once."""
    folder = tmp_path_factory.mktemp("bare")
    what = results({"fgd": (95.0, 95.4), "$x_1$": (90.0, 91.0)})
    write_report(what, folder, TEXTS._replace(made=HowMade("weft simulate", "Weft 1")), png=True)
    return folder


def cells(table: Table) -> list[list[str]]:
    """The titles, and each row's texts."""
    rows = [
        [row.name, *(str(Markup(cell).striptags()) for cell in row.cells)] for row in table.rows
    ]
    return [list(table.titles), *rows]


def policies(what: SimulationResults) -> list[list[str]]:
    return cells(policy_table(what))


FIGURES = ("allocation", "fragmentation", "by-model", "unscheduled")


def test_the_folder_holds_the_page_and_its_figures_and_nothing_else(written):
    names = sorted(file.name for file in written.iterdir())
    assert names == sorted(["report.html", *(f"{name}.svg" for name in FIGURES)])


def test_the_page_says_who_won_by_how_much_and_how_sure(written):
    page = Page((written / "report.html").read_text("utf-8"))
    said = headline(results(), 1000)
    assert page.text("lead") == said.lead
    assert said.lead == "fgd allocates 95.20 % of the GPUs when demand equals capacity."
    # Differences are 2.0, 2.2, 2.1, 2.05 and 2.15: mean 2.1, half-width 2.776 × 0.079 / √5.
    assert "2.10 points more than best-fit (95 % interval 2.00 to 2.20, 5 paired" in said.rest
    assert "On 1,000 GPUs that is 21.0 more GPUs at work." in said.rest


def test_a_lead_that_may_be_chance_is_not_called_one():
    what = results({"a": (90.0, 91.0, 92.0, 91.0, 90.0), "b": (91.0, 90.0, 91.8, 90.8, 90.2)})
    assert headline(what).lead == "No difference shown between a and b."
    assert "interval −" in headline(what).rest


def test_equal_policies_are_said_to_be():
    what = results({"a": (90.0, 91.0), "b": (90.0, 91.0)})
    assert headline(what).lead == "a and b are equal in all seeds."
    assert headline(what).rest.startswith("Both allocate 90.50 % of the GPUs ")


def test_one_seed_claims_no_interval():
    what = results({"a": (90.0,), "b": (89.0,)})
    assert "in one seed: it may be chance; an interval needs 5 seeds" in headline(what).rest
    assert policies(what)[1][1:3] == ["1°", "90.00"]
    assert any("° fewer than 5 seeds" in note for note in what.notes)


def test_few_seeds_claim_no_interval():
    what = results({"a": (90.0, 90.1, 90.2, 90.3), "b": (80.0, 80.2, 80.1, 80.2)})
    assert "in 4 seeds: it may be chance; an interval needs 5 seeds" in headline(what).rest
    assert "±" not in str(policies(what))


def test_one_policy_is_reported_without_a_rival():
    what = results({"fgd": (95.0, 95.4)})
    assert headline(what).lead.startswith("fgd allocates 95.20 %")


def test_without_full_demand_the_end_decides():
    what = results(curve={"0": 1.0, "50": 50.0})
    assert headline(what).lead.endswith("of the GPUs at the end.")
    assert policies(what)[1][2] == "–"


def test_the_numbers_in_the_table_are_the_results():
    what = results()
    head, *rows = policies(what)
    assert head[1:4] == [
        "Seeds",
        "GPUs allocated at 100 % demand, %",
        "GPUs allocated at the end, %",
    ]
    assert [row[0] for row in rows] == ["fgd", "best-fit", "random"]
    for row, summary in zip(rows, what.summary, strict=True):
        assert row[1] == "5"
        for cell, name in ((row[2], "gpu_allocated_at_100"), (row[3], "gpu_allocated")):
            mean, half = getattr(summary, f"{name}_percent"), getattr(summary, f"{name}_ci95")
            assert cell == f"{mean:.2f} ± {half:.2f}"
        assert row[4] == (
            f"{summary.gpu_fragmentation_percent:.2f} ± {summary.gpu_fragmentation_ci95:.2f}"
        )
        assert row[5].startswith(f"{summary.failed_pods:.1f} ± ")
        assert row[6] == "0.50, equal in all seeds"


def test_what_pods_hold_has_a_column_only_where_it_is_not_what_is_allocated():
    column = "GPUs held at the end, %"
    assert column not in policies(results())[0]
    more = run("a", 1, 90.0)
    more = msgspec.structs.replace(more, gpu_held_percent=95.0)
    assert column in policies(SimulationResults([more], summarise([more])))[0]


def test_every_run_is_listed():
    what = results()
    _, *rows = cells(run_table(what))
    shown = [(row[0], int(row[1]), float(row[7])) for row in rows]
    assert shown == [(r.policy, r.seed, r.gpu_held_percent) for r in what.runs]


def test_reasons_are_means_over_all_seeds():
    runs = [run("a", 1, 90.0, unscheduled={"x": 3}), run("a", 2, 90.0, unscheduled={})]
    table = cells(reason_table(SimulationResults(runs, summarise(runs)), ["x"]))
    assert table == [["Policy", "x", "all"], ["a", "1.5", "1.5"]]


def test_timed_runs_are_ranked_by_their_waits():
    what = timed()
    assert headline(what).lead == "quick starts pods after a mean wait of 12.0 s."
    assert headline(what).rest.startswith("10.0 s less than slow")
    head, first, _ = policies(what)
    cells = dict(zip(head, first, strict=True))
    assert cells["Mean wait, s"].startswith("12.0 ± ")
    assert cells["p99 wait, s"].startswith("200.0")
    assert cells["p95 wait, s"].startswith("150.0")
    assert cells["Mean completion time, s"].startswith("42.0 ± ")
    assert cells["GPUs held over time, %"].startswith("61.50")
    assert cells["GPUs allocated over time, %"].startswith("51.50")
    assert "GPUs held at the end, %" not in cells


def test_pods_that_never_start_rank_before_waits():
    """`hasty` makes nobody wait long, as it never starts who would."""
    runs = [
        timed_run(policy, seed, wait_s, never_started=left)
        for policy, wait_s, left in (("hasty", 1.0, 3), ("patient", 50.0, 0))
        for seed in (1, 2)
    ]
    what = SimulationResults(runs, summarise(runs))
    assert headline(what).lead == "patient leaves 0.0 pods without a place, hasty 3.0."
    assert policies(what)[1][0] == "patient"


def test_without_timing_no_cpu_seconds_are_shown():
    what = results(cpu_s=None, wall_s=None)
    assert "CPU, s" not in policies(what)[0]
    assert "CPU, s" not in cells(run_table(what))[0]


def test_nothing_is_loaded_from_anywhere(written):
    text = (written / "report.html").read_text("utf-8")
    page = Page(text)
    assert {value for _, name, value in page.attributes if "://" in value} == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not {name for _, name, _ in page.attributes} & {"src", "href", "srcset", "onload"}
    assert not re.search(r"url\((?!#)|@import|<link|<img|fetch\(|XMLHttpRequest|WebSocket", text)
    assert "default-src 'none'" in text


def test_only_the_pages_own_script_may_run(written):
    text = (written / "report.html").read_text("utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert f"script-src 'sha256-{digest}';" in policy


def test_names_and_reasons_are_escaped(tmp_path):
    evil = '<script>alert("1")</script>&'
    what = results({evil: (90.0, 91.0), "b": (80.0, 81.0)}, unscheduled={"<b>full</b> & more": 2})
    write_report(what, tmp_path, ReportTexts(evil, evil, HowMade(evil, evil, evil, evil)))
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.count("<script") == 1
    assert "<b>full" not in text
    page = Page(text)
    assert page.tables["Policies compared"][1][0] == evil


def test_every_figure_is_named_and_inlined(written):
    text = (written / "report.html").read_text("utf-8")
    page = Page(text)
    ids = {value for _, name, value in page.attributes if name == "id"}
    for name in FIGURES:
        svg = (written / f"{name}.svg").read_text("utf-8")
        assert svg in text
        assert {name, f"{name}-title", f"{name}-description"} <= ids
        assert {f"{name}-narrow-title"} <= ids


def test_no_two_marks_of_a_page_share_an_id(written):
    ids = [
        value
        for _, name, value in Page((written / "report.html").read_text("utf-8")).attributes
        if name == "id"
    ]
    assert len(ids) == len(set(ids))


def test_the_page_says_how_it_was_made(written):
    text = (written / "report.html").read_text("utf-8")
    command = "<dt>Command</dt><dd><code>weft simulate --report &#39;a folder&#39;</code></dd>"
    assert command in text
    for title, said in (("Versions", "Weft 1"), ("Host", "a-host: Linux"), ("Date", "2026-11-22")):
        assert f"<dt>{title}</dt><dd>{said}</dd>" in text


def test_without_host_and_date_the_page_has_none(bare):
    text = (bare / "report.html").read_text("utf-8")
    assert "<dt>Versions</dt>" in text
    assert "<dt>Host</dt>" not in text
    assert "<dt>Date</dt>" not in text


def bold(what: SimulationResults) -> dict[str, list[str]]:
    """Bold cells of the table of policies, by column."""
    found: dict[str, list[str]] = {}
    titles, *rows = policies(what)
    for texts, row in zip(rows, policy_table(what).rows, strict=True):
        for title, text, is_bold in zip(titles[1:], texts[1:], row.bold, strict=True):
            if is_bold:
                found.setdefault(title, []).append(text.split(" ")[0])
    return found


def test_only_columns_with_a_better_end_have_a_bold_value_and_say_so():
    said = {title: words for title, words in policy_table(results()).heads if words}
    assert said == {
        "GPUs allocated at 100 % demand, %": "higher is better",
        "GPUs allocated at the end, %": "higher is better",
    }
    assert set(bold(results())) == set(said)


def test_values_that_look_the_same_are_bold_together():
    what = results({"a": (90.001,), "b": (90.004,), "c": (80.0,)})
    assert bold(what)["GPUs allocated at the end, %"] == ["90.00", "90.00"]


def test_where_all_are_alike_none_is_bold():
    assert bold(results({"a": (90.0,), "b": (90.0,)})) == {}


@pytest.mark.parametrize(("ceilings", "rows"), [(CEILINGS, 1), ({"a": (90.0,), "b": (80.0,)}, 0)])
def test_a_row_stands_out_only_where_seeds_settle_who_leads(ceilings, rows):
    assert sum(row.first for row in policy_table(results(ceilings)).rows) == rows


def test_the_page_marks_what_the_tables_mark(written):
    text = (written / "report.html").read_text("utf-8")
    assert text.count("<tr class=best>") == 1
    assert "at 100 % demand, %" in re.findall(
        r'<td data-title="GPUs allocated (.*?)" class=best>', text
    )
    said = dict(re.findall(r'<th scope="col">([^<]+)<small>(\w+) is better</small>', text))
    assert "Failed pods" not in said


def test_every_cell_names_its_column_for_narrow_screens(written):
    page = Page((written / "report.html").read_text("utf-8"))
    titles = [value for tag, name, value in page.attributes if (tag, name) == ("td", "data-title")]
    expected = [title for head, *rows in page.tables.values() for _ in rows for title in head[1:]]
    assert titles == expected


HELD = ClusterHoldings(
    "fgd",
    42,
    "at the end",
    (
        NodeHoldings(
            "n-1",
            (
                GpuHoldings("T4", 1000, 16_000, (Holder("p-1", 600, 0), Holder("p-2", 400, 0))),
                GpuHoldings("T4", 1000, 16_000, ()),
                GpuHoldings("T4", 1000, 16_000, ()),
            ),
            500.0,
        ),
        NodeHoldings("n-2", (GpuHoldings("A10", 1000, 20_000, (Holder("<p>", 0, 5000),)),), 0.0),
    ),
)


def test_the_map_says_who_holds_what():
    text = "".join(maps([HELD], ["fgd"]))
    assert "Nodes and GPUs at the end, seed 42" in text
    assert "fgd: 4 GPUs, 2 idle, 0.5 in fragments" in text
    assert "1 node, 3 GPUs: 33.3 % held, 16.7 % in fragments" in text
    said = "n-1: 1.00 of 3 GPUs held, 0.50 in fragments\nGPU 0: p-1 60 %, p-2 40 %\nGPUs 1–2: idle"
    assert f'title="{said}"' in text
    assert "GPU 0: &lt;p&gt; 5,000 MiB" in text


def test_maps_stop_where_the_page_would_get_slow(monkeypatch):
    monkeypatch.setattr(simulation_report, "MOST_NODES", 3)
    both = [HELD, msgspec.structs.replace(HELD, policy="random")]
    text = "".join(maps(both, ["fgd", "random"]))
    assert text.count('<details class="map"') == 1
    assert "run these policies alone: random" in text


def test_the_same_results_give_the_same_bytes(written, tmp_path):
    write(tmp_path)
    for file in written.iterdir():
        assert file.read_bytes() == (tmp_path / file.name).read_bytes()


def test_page_has_a_dark_and_a_printed_form(written):
    text = (written / "report.html").read_text("utf-8")
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text


def test_a_new_report_replaces_the_old_and_leaves_other_files_alone(tmp_path):
    """The old one had a figure of its own: pods waited."""
    for name in ("report.html", "allocation.svg", "queue.svg", "fragmentation.svg"):
        (tmp_path / name).write_text("old")
    for name in ("allocation.png", "photo.png", "notes.txt"):
        (tmp_path / name).write_text("mine")
    write(tmp_path, results({"new": (50.0,)}))
    assert "new" in Page((tmp_path / "report.html").read_text()).text("lead")
    there = {file.name for file in tmp_path.iterdir()}
    assert there == {"report.html", "photo.png", "notes.txt", *(f"{name}.svg" for name in FIGURES)}
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_when_drawing_fails_the_old_report_stays_whole(written, tmp_path, monkeypatch):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def fail(*_: object) -> str:
        raise RuntimeError("no page today")

    monkeypatch.setattr(simulation_report, "run_table", fail)
    with pytest.raises(RuntimeError):
        write(tmp_path, results({"new": (60.0,)}))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_when_the_disk_fails_the_old_report_stays_whole(written, tmp_path, monkeypatch):
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    calls = []

    def full(handle: int, mode: str) -> object:
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return builtins.open(handle, mode)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(BadInputError, match="No space left on device"):
        write(tmp_path, results({"new": (60.0,)}))
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "report").write_text("")
    with pytest.raises(BadInputError, match=r"report: is a file; name a folder"):
        write(tmp_path / "report", results({"a": (50.0,)}))


def test_no_runs_are_an_error(tmp_path):
    with pytest.raises(BadInputError, match="no run"):
        write_report(SimulationResults([], []), tmp_path, TEXTS)


def test_png_copies_are_written_on_request(bare):
    for name in FIGURES:
        start = (bare / f"{name}.png").read_bytes()[:24]
        assert start[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(start[16:20], "big") == 1720


def test_the_report_reads_what_the_simulator_prints():
    printed = msgspec.json.encode(results())
    again = msgspec.json.decode(printed, type=SimulationResults)
    assert policies(again) == policies(results())

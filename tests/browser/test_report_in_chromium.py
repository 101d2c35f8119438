"""The report in a real Chromium: nothing is cut off, on a telephone or a large screen."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from chromium import Window

from weft.core.policies.catalog import built_in
from weft.lab.experiment.pages.experiment_report import (
    page_figure,
    write_experiment_report,
    write_index,
)
from weft.lab.experiment.pages.looks import looks
from weft.lab.experiment.pages.simulation_report import HowMade, ReportTexts, write_report
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.store import RunStore, stored_experiment
from weft.lab.experiment.run.trace_runs import RunGrid
from weft.lab.experiment.spec.experiment import PlannedCell, decode_spec, plan
from weft.lab.experiment.statistics.comparison import compare
from weft.lab.experiment.statistics.ranking import run_grid_with_holdings
from weft.lab.experiment.statistics.reproduction import (
    ExpectedResults,
    ReproducedExperiment,
    Reproduction,
    results_of_checks,
)
from weft.lab.simulate.arrivals import draw, replayed
from weft.lab.simulate.generate import generate_nodes, generate_pods
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.lab.simulate.sharing.outcome import JobOutcome, UsagePoint

WIDTHS = (390, 768, 1600)
CUT_OFF = Path(__file__).with_name("cut_off.js").read_text("utf-8")
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
LONG = "a-policy-of-a-third-party-with-a-name-that-is-long:option=value,other=0.123456"
ASSUMED = (
    "assumptions: [{name: a, earlierRuns: false}, "
    "{name: b, compute: proportional, computeRatio: 0.95, computeShown: true}]"
)
KINDS = ("plain", "many", "timed", "experiment", "index")


@pytest.fixture(scope="session")
def reports(command: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "nodes.csv").write_text(generate_nodes(gpus=24))
    (folder / "pods.csv").write_text(generate_pods(gpus=24))
    world = Scenario(read_nodes(folder / "nodes.csv"), read_pods(folder / "pods.csv"))
    few = ("fgd", "best-fit", "random", "exclusive")
    many = (*few, "binpack", "spread", "first-fit", "gpu-packing", "dot-product", "nano-spread")
    orders = [draw(world.pods, len(world.nodes), world.capacity_milli, s, 1.3) for s in range(5)]
    own = [replayed(len(world.pods), len(world.nodes), 42)]
    return {
        "plain": report(folder / "plain", RunGrid(world, few, tuple(orders), make)),
        "many": report(folder / "many", RunGrid(world, many, tuple(orders[:1]), make)),
        "timed": report(
            folder / "timed", RunGrid(world, few, tuple(own), make, "timed", compress=50)
        ),
        "experiment": experiment(folder / "experiment"),
        "index": index(folder / "index"),
    }


make = built_in().from_spec


def report(folder: Path, grid: RunGrid) -> Path:
    """Runs the grid and writes its report, one policy under a long name."""
    grid = msgspec.structs.replace(grid, keeps_holdings=True)
    results, holdings = run_grid_with_holdings(grid, 1)

    def renamed(values: Sequence[msgspec.Struct]) -> list[msgspec.Struct]:
        named = [getattr(value, "policy", "") == "random" for value in values]
        return [
            msgspec.structs.replace(value, policy=LONG) if long else value
            for value, long in zip(values, named, strict=True)
        ]

    results = msgspec.structs.replace(
        results, runs=renamed(results.runs), summary=renamed(results.summary)
    )
    long_command = f"weft simulate --nodes /a/{'long/' * 30}nodes.csv --policy '{LONG}'"
    made = HowMade(
        long_command, "Weft 1, Python 3", f"{'host' * 20}: Linux", "2026-11-22 12:00 UTC"
    )
    texts = ReportTexts("Weft: policies compared", f"{'pods-' * 20}.csv: 9 pods", made)
    models = dict(Counter(gpu.model for node in grid.scenario.nodes for gpu in node.gpus))
    return write_report(results, folder, texts, models_gpus=models, holdings=renamed(holdings))


def experiment(folder: Path) -> Path:
    """The page of an experiment with made-up results: large, missing, and beyond chance."""
    text = f"""
apiVersion: weft.dev/v1
kind: Experiment
name: made-up
question: {"Which of these is the best? " * 9}
workload: {{kind: overprovisioned, percents: [0, 50, 100], faults: [{{name: a}}], {ASSUMED}}}
schedulers: [gpushare, exclusive, "{LONG}"]
seeds: {{count: 6}}
"""
    spec = decode_spec(text.encode(), "made-up.yaml")
    measures: dict[PlannedCell, dict[str, float | None]] = {
        cell: {
            "jct_mean_s": 123_456.7 + 1000 * cell.seed + 90_000 * len(cell.scheduler) % 17,
            "energy_kj": 0.001 * (cell.seed + len(cell.scheduler)),
            "ooms": None if cell.seed else 3,
        }
        for cell in plan(spec)[:-1]
    }
    store = RunStore(folder / "runs", stored_experiment(spec, {}))
    store.begin()
    for cell, measured in measures.items():
        jobs = [JobOutcome(f"job-{n}", "ssd", n, n + 40.0, n * 900.0 + 50) for n in range(20)]
        usage = [
            UsagePoint(at * 900.0, at * 5, 999_999 * (at % 2), 3_000.0, at, 20 - at)
            for at in range(20 - len(cell.scheduler) % 7)
        ]
        store.write(cell, CellResult(measured, {}, jobs, usage))
    store.close()
    results = compare(spec, {cell.folder: measured for cell, measured in measures.items()})
    return write_experiment_report(folder, spec, results, "Weft 1, Python 3", store)


def index(folder: Path) -> Path:
    """The page of reproductions: one check met, one missed for a long reason, one not run."""
    spec = decode_spec(
        b"{apiVersion: weft.dev/v1, kind: Experiment, name: made-up, question: Which is the best?, "
        b"workload: {kind: overprovisioned, %s}, schedulers: [gpushare, exclusive]}"
        % ASSUMED.encode(),
        "made-up.yaml",
    )
    measures = {cell.folder: {"makespan_s": 123_456.7 + cell.seed} for cell in plan(spec)}
    results = compare(spec, measures)
    check = {"name": "A check " * 12, "measure": "makespan_s", "criterion": [0, 1e6]}
    missed = {"expected": [0, 1e6], "criterion": [0, 1], "why": "It is slow. " * 20}
    checks = [
        {**check, "scheduler": "gpushare", "published": -0.5},
        {**check, "scheduler": "exclusive", **missed},
        {**check, "scheduler": "unmeasured", "published": "about a third"},
    ]
    document = {"apiVersion": "weft.dev/v1", "kind": "ExpectedResults", "title": "Made up " * 9}
    headline = {"name": "A headline " * 9, "experiment": "a.yaml", "measure": "makespan_s"}
    document |= {"restsOn": "Jobs. " * 40, "headlines": [{**headline, "scheduler": "exclusive"}]}
    expected = msgspec.convert({**document, "checks": checks}, ExpectedResults)
    there = ReproducedExperiment("a.yaml", spec, folder / "made-up", results)
    absent = f"workload.table: /{'long/' * 30}pairs.csv does not exist; all 9 cells are skipped"
    missing = ReproducedExperiment("b.yaml", spec, folder / "other", None, absent=absent)
    found = tuple(results_of_checks(expected, {"experiment.yaml": results}))
    done = Reproduction("made-up", expected, (there, missing), found)
    shown = page_figure(spec, results, "makespan_s")
    return write_index(folder, [done], {"made-up": shown}, short=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_cut_off_or_loaded(
    window: Window, reports: dict[str, Path], kind: str, dark: bool
) -> None:
    for width in WIDTHS:
        window.open(reports[kind], width, dark=dark)
        window.run(OPEN_ALL)
        assert window.run(CUT_OFF) == [], width
        assert window.browser.complaints == []
        assert window.browser.requests == [reports[kind].as_uri()]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("document.querySelector('figure svg.wide').style.minWidth = '1500px'", "page: "),
        (
            "document.querySelectorAll('td')[1].style.cssText = 'display:block;width:9px'",
            "out of its box",
        ),
        ("document.querySelector('h2').style.cssText = 'overflow:hidden;width:9px'", "clipped"),
        ("document.querySelector('.wide .label text').setAttribute('dy', '16')", "text on text"),
        ("document.querySelector('.wide text').setAttribute('x', '-9')", "out of its figure"),
    ],
)
def test_what_is_cut_off_is_noticed(
    window: Window, reports: dict[str, Path], spoil: str, problem: str
) -> None:
    window.open(reports["plain"], 1440)
    window.run(spoil)
    assert any(problem in said for said in window.run(CUT_OFF))


def test_tables_sort_by_every_column_both_ways(window: Window, reports: dict[str, Path]) -> None:
    window.open(reports["plain"], 1440)
    failed = 6
    rows = "[...document.querySelector('tbody').rows]"
    click = "document.querySelector('table').querySelectorAll('thead button')[{}].click()"

    def values() -> list[float]:
        shown = window.run(f"{rows}.map(row => row.cells[{failed}].innerText)")
        return [float(cell.split()[0].replace(",", "")) for cell in shown]

    before = values()
    window.run(click.format(failed))
    assert values() == sorted(before)
    window.run(click.format(failed))
    assert values() == sorted(before, reverse=True)
    window.run(click.format(0))
    names = window.run(f"{rows}.map(row => row.cells[0].innerText)")
    assert names == sorted(names)
    assert window.run("document.querySelectorAll('[aria-sort]').length") == 1


DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
TIP = "document.querySelector('#tip.on')?.textContent"


def test_nodes_say_who_holds_their_gpus_to_the_keyboard(
    window: Window, reports: dict[str, Path]
) -> None:
    window.open(reports["plain"], 1440)
    sizes = "[...document.querySelectorAll('.mapkey b, .map[open] b')].map(gpu => gpu.offsetWidth)"
    assert min(window.run(sizes)) >= 7
    window.run("document.querySelector('.map[open] .n').focus()")
    said = [window.run(TIP)]
    for key in ("ArrowRight", "ArrowDown"):
        window.press(key)
        window.run(DRAWN)
        said.append(window.run(TIP))
    assert all("GPU" in words for words in said)
    assert len(set(said)) == 3


def test_the_marks_of_the_maps_key_stand_at_their_words(
    window: Window, reports: dict[str, Path]
) -> None:
    window.open(reports["plain"], 1280)
    boxes = "[...document.querySelectorAll('.mapkey .n')].map(mark => mark.offsetWidth)"
    ramp, lost = window.run(boxes)
    assert lost <= 24 < ramp, "no hole between a mark and what it means"


def test_nodes_say_who_holds_their_gpus_to_the_mouse_within_the_window(
    window: Window, reports: dict[str, Path]
) -> None:
    window.open(reports["timed"], 390, dark=True)
    window.run("document.querySelector('.map[open] .n').scrollIntoView()")
    window.run(DRAWN)
    box = "document.querySelector('.map[open] .n').getBoundingClientRect()"
    x, y = window.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box})")
    window.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert "GPU" in window.run(TIP)
    sides = "(r => [r.left, r.right])(document.querySelector('#tip').getBoundingClientRect())"
    left, right = window.run(sides)
    assert 0 <= left < right <= 390


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lines_have_the_colour_of_the_readers_screen(
    window: Window, reports: dict[str, Path], dark: bool
) -> None:
    window.open(reports["plain"], 1440, dark=dark)
    line = "document.querySelector('#allocation .wide .series[data-name^=\"fgd:\"] path')"
    shown = window.run(f"getComputedStyle({line}).stroke")
    paint = looks(["fgd"])["fgd"].paint
    wanted = (int((paint.dark if dark else paint.light)[at : at + 2], 16) for at in (1, 3, 5))
    assert shown == f"rgb({', '.join(map(str, wanted))})"


def test_without_scripts_the_page_is_whole(window: Window, reports: dict[str, Path]) -> None:
    window.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for width in WIDTHS:
            window.open(reports["plain"], width)
            assert window.run("document.querySelectorAll('thead button').length") == 0
            assert window.run(CUT_OFF) == []
            title = window.run("document.querySelector('#allocation .series title').textContent")
            assert re.fullmatch(r".+: \d+\.\d\d", title)
    finally:
        window.ask("Emulation.setScriptExecutionDisabled", value=False)

"""The report in a real Chromium: nothing is cut off, on a telephone or a large screen."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from chromium import MISSING, Browser, program

from weft.core.policies.catalog import built_in
from weft.lab.experiment.grid import RunGrid, run_grid_with_holdings
from weft.lab.experiment.how_made import HowMade
from weft.lab.experiment.page import ReportTexts
from weft.lab.experiment.report import write_report
from weft.lab.simulate.arrivals import draw, replayed
from weft.lab.simulate.generate import generate_nodes, generate_pods
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario

WIDTHS = (390, 768, 1440)
CUT_OFF = Path(__file__).with_name("cut_off.js").read_text("utf-8")
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"
LONG = "a-policy-of-a-third-party-with-a-name-that-is-long:option=value,other=0.123456"
KINDS = ("plain", "many", "timed")


@pytest.fixture(scope="session")
def command(pytestconfig: pytest.Config) -> str:
    """Chromium's command; without it the tests are left out, visibly, but not in CI."""
    if found := program():
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the tests in Chromium: {MISSING}", pytrace=False)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write(f"SKIPPED {MISSING}\n")
    pytest.skip(MISSING)


@pytest.fixture(scope="session")
def reports(command: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "nodes.csv").write_text(generate_nodes(gpus=40))
    (folder / "pods.csv").write_text(generate_pods(gpus=40))
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


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_cut_off_or_loaded(
    command: str, reports: dict[str, Path], kind: str
) -> None:
    async with Browser(command) as browser:
        for width in WIDTHS:
            for dark in (False, True):
                await browser.look(width, dark=dark)
                await browser.open(reports[kind])
                await browser.run(OPEN_ALL)
                assert await browser.run(CUT_OFF) == [], (width, dark)
                assert browser.complaints == []
                assert browser.requests == [reports[kind].as_uri()]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        ("document.querySelector('figure svg.wide').style.minWidth = '1500px'", "page: "),
        ("document.querySelector('tbody td').style.maxWidth = '9px'", "out of its box"),
        ("document.querySelector('h2').style.cssText = 'overflow:hidden;width:9px'", "clipped"),
        ("document.querySelectorAll('svg.wide text')[3].setAttribute('x', '900')", "text on text"),
        ("document.querySelectorAll('svg.wide text')[0].setAttribute('x', '-9')", "its figure"),
    ],
)
async def test_what_is_cut_off_is_noticed(
    command: str, reports: dict[str, Path], spoil: str, problem: str
) -> None:
    async with Browser(command) as browser:
        await browser.look(1440, dark=False)
        await browser.open(reports["plain"])
        await browser.run(spoil)
        assert any(problem in said for said in await browser.run(CUT_OFF))


ROWS = (
    "[...document.querySelectorAll('table tbody')[0].rows].map(row => row.cells[COLUMN].innerText)"
)
CLICK = "document.querySelectorAll('table')[0].querySelectorAll('thead button')[COLUMN].click()"


async def test_tables_sort_by_every_column_both_ways(
    command: str, reports: dict[str, Path]
) -> None:
    async with Browser(command) as browser:
        await browser.open(reports["plain"])
        failed = 6

        async def values() -> list[float]:
            shown = await browser.run(ROWS.replace("COLUMN", str(failed)))
            return [float(cell.split()[0].replace(",", "")) for cell in shown]

        before = await values()
        await browser.run(CLICK.replace("COLUMN", str(failed)))
        assert await values() == sorted(before)
        await browser.run(CLICK.replace("COLUMN", str(failed)))
        assert await values() == sorted(before, reverse=True)
        await browser.run(CLICK.replace("COLUMN", "0"))
        names = await browser.run(ROWS.replace("COLUMN", "0"))
        assert names == sorted(names)


TIP = "document.querySelector('#tip.on')?.textContent"
FOCUS = "document.querySelector('PLACE').focus()"


async def test_points_and_nodes_say_their_values_to_the_keyboard(
    command: str, reports: dict[str, Path]
) -> None:
    async with Browser(command) as browser:
        await browser.look(1440, dark=False)
        await browser.open(reports["plain"])
        await browser.run(FOCUS.replace("PLACE", "#allocation svg.wide .points [tabindex]"))
        first = await browser.run(TIP)
        await browser.press("ArrowRight")
        second = await browser.run(TIP)
        await browser.press("ArrowDown")
        other = await browser.run(TIP)
        assert all("% asked for" in said and "% demand" in said for said in (first, second, other))
        assert first.split(":")[0] == second.split(":")[0] != other.split(":")[0]
        assert first != second
        await browser.run(FOCUS.replace("PLACE", ".map[open] .n"))
        assert "GPU" in await browser.run(TIP)


async def test_points_say_their_values_to_the_mouse_within_the_window(
    command: str, reports: dict[str, Path]
) -> None:
    async with Browser(command) as browser:
        await browser.look(390, dark=True)
        await browser.open(reports["timed"])
        await browser.run("document.querySelector('#queue').scrollIntoView()")
        where = "[...document.querySelectorAll('#queue svg.narrow .points')[0].children].at(-1)"
        box = await browser.run(
            f"(r => [r.x + r.width / 2, r.y + r.height / 2])({where}.getBoundingClientRect())"
        )
        await browser.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        assert "pods waiting" in await browser.run(TIP)
        sides = "(r => [r.left, r.right])(document.querySelector('#tip').getBoundingClientRect())"
        left, right = await browser.run(sides)
        assert left >= 0
        assert right <= 390


async def test_without_scripts_the_page_is_whole(command: str, reports: dict[str, Path]) -> None:
    async with Browser(command) as browser:
        await browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        for width in WIDTHS:
            await browser.look(width, dark=False)
            await browser.open(reports["plain"])
            assert await browser.run("document.querySelectorAll('thead button').length") == 0
            assert await browser.run(CUT_OFF) == []
            assert "% demand" in await browser.run(
                "document.querySelector('.points title').textContent"
            )

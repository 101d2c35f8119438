import functools
import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import structs
from report_samples import CEILINGS, results, run, timed, timed_run

from weft.core.policies.catalog import BUILT_IN
from weft.interference.intervals import mean_interval
from weft.lab.experiment.pages import charts
from weft.lab.experiment.pages.charts import simulation_charts
from weft.lab.experiment.pages.figures import (
    NARROW,
    SIZES,
    WIDE,
    Chart,
    EmptyChart,
    HeatMap,
    LineChart,
    Size,
    number,
    to_pdf,
    to_png,
    to_svg,
)
from weft.lab.experiment.pages.looks import (
    DASHES,
    HEAT,
    ON_HEAT,
    ON_REASONS,
    PAINTS,
    PLACES,
    REASONS,
    SERIES,
    dark_rules,
    looks,
    numbered,
    shorten,
)
from weft.lab.experiment.statistics.ranking import summarise
from weft.lab.simulate.results import SimulationResults, Timeline
from weft.model.errors import BadInputError

SVG = "{http://www.w3.org/2000/svg}"
COLOUR = re.compile(r"(?:fill|stroke): (#[0-9a-f]{6})")


def parse(chart: Chart, size: Size = WIDE) -> ET.Element:
    return ET.fromstring(to_svg(chart, size))


@functools.cache
def standard(name: str, size: Size = WIDE) -> ET.Element:
    """A figure of the usual results, drawn once for all tests that look at it."""
    return parse(chart_of(results(), name), size)


def groups(root: ET.Element, kind: str) -> dict[str, ET.Element]:
    return {g.get("data-name", ""): g for g in root.iter(f"{SVG}g") if g.get("class") == kind}


def texts(element: ET.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def chart_of(what: SimulationResults, name: str, gpus: dict[str, int] | None = None) -> Chart:
    return next(chart for chart in simulation_charts(what, gpus) if chart.name == name)


def lines_of(what: SimulationResults, name: str = "allocation") -> LineChart:
    chart = chart_of(what, name)
    assert isinstance(chart, LineChart)
    return chart


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_a_line_figure_has_a_line_a_panel_and_one_label_a_policy(size: Size):
    root = standard("allocation", size)
    named = {f"{row.policy}: {row.gpu_allocated_percent:.2f}" for row in results().summary}
    lines = [g.get("data-name") for g in root.iter(f"{SVG}g") if g.get("class") == "series"]
    assert sorted(lines) == sorted([*named, *named])  # the whole, and the close-up
    assert set(groups(root, "label")) == set(CEILINGS)


def test_labels_say_what_the_tables_say():
    for name, value in (("allocation", "allocated"), ("fragmentation", "fragmentation")):
        labels = groups(standard(name), "label")
        for summary in results().summary:
            shown = f"{getattr(summary, f'gpu_{value}_percent'):.2f}"
            (text,) = texts(labels[summary.policy])
            assert text.split() == [shown, summary.policy]


def test_text_stays_inside_every_figure():
    """Positions; `tests/browser` sees the letters."""
    long = {"a" * 90: (0.0, 1.0), "b": (60.0, 61.0)}
    for what in (timed(), results(long)):
        for size, chart in itertools.product(SIZES, simulation_charts(what, {"G2": 10})):
            root = parse(chart, size)
            _, _, width, height = map(float, (root.get("viewBox") or "").split())
            assert width == size.width
            for text in root.iter(f"{SVG}text"):
                assert 0 <= float(text.get("x", "0")) <= width
                assert 0 <= float(text.get("y", "0")) <= height


def test_seeds_make_a_band_and_one_seed_makes_none():
    assert set(groups(standard("allocation"), "band")) == set(CEILINGS)
    single = lines_of(results({name: values[:1] for name, values in CEILINGS.items()}))
    assert groups(parse(single), "band") == {}
    assert single.under.endswith("one seed")


def test_few_seeds_show_their_range_and_many_their_interval():
    few = charts.allocation_lines(results({"a": (90.0, 92.0, 91.0)}))[0]
    assert (few.mean[-1], few.low[-1], few.high[-1]) == (91.0, 90.0, 92.0)
    ceilings = (90.0, 92.0, 91.0, 93.0, 94.0, 92.5)
    many = charts.allocation_lines(results({"a": ceilings}))[0]
    assert (many.low[-1], many.high[-1]) == pytest.approx(mean_interval(ceilings))


def test_seeds_that_skip_a_percent_are_read_between_their_points():
    runs = [
        run("a", 1, 90.0, curve={"0": 0.0, "10": 10.0, "20": 20.0}),
        run("a", 2, 90.0, curve={"0": 0.0, "15": 9.0, "20": 14.0}),
    ]
    series = charts.allocation_lines(SimulationResults(runs, summarise(runs)))[0]
    assert series.x == (0, 10, 15, 20)
    assert series.mean == pytest.approx((0, 8, 12, 17))


def test_a_mean_ends_with_the_shortest_seed():
    runs = [
        run("a", 1, 90.0, curve={"0": 0.0, "130": 90.0}),
        run("a", 2, 90.0, curve={"0": 0.0, "128": 90.0}),
    ]
    assert charts.allocation_lines(SimulationResults(runs, summarise(runs)))[0].x == (0, 128)


def test_long_curves_are_thinned():
    long = {str(x): 50.0 for x in range(5000)}
    series = charts.allocation_lines(results({"a": (50.0,)}, curve=long))[0]
    assert len(series.x) == charts.MOST_POINTS
    assert (series.x[0], series.x[-1]) == (0, 4999)


def test_in_time_a_mean_goes_on_to_the_last_start_of_the_longest_run():
    """One run has its last start after 2 s and is empty from 4 s on, the other's is after 8 s."""
    short = Timeline(1.0, 2, *[[40.0, 40.0, 20.0, 20.0, 0.0]] * 4)
    long = Timeline(2.0, 4, *[[60.0, 60.0, 80.0, 80.0, 0.0, 0.0]] * 4)
    runs = [
        structs.replace(timed_run("one", seed, 5.0), timeline=line)
        for seed, line in ((42, short), (43, long))
    ]
    (curve,) = charts.allocation_lines(SimulationResults(runs, summarise(runs), []))
    assert curve.x == (0.5, 1.0, 1.5, 2.5, 3.0, 3.5, 4.5, 5.0, 7.0)
    assert (curve.mean[0], curve.mean[-1]) == (50.0, 40.0)
    assert (curve.low[-1], curve.high[-1]) == (0.0, 80.0)
    assert curve.end == (40 + 70) / 2, "the mean up to each run's last start"


def test_timed_curves_leave_out_the_empty_cluster_after_everybody_left():
    (first, *_), step_min = charts.allocation_lines(timed()), 16 / 60
    assert (first.x[0], first.x[-1]) == pytest.approx((0.5 * step_min, 299.5 * step_min))
    assert first.end == pytest.approx(51.0)
    assert max(charts.waiting_lines(timed())[0].mean) == 4.0


def test_runs_without_curves_say_so():
    what = results(curve={}, fragmentation_curve={}, by_model={}, unscheduled={})
    allocation, fragmentation, by_model, unscheduled = simulation_charts(what)
    for chart in (allocation, fragmentation):
        assert "These runs recorded no curve." in texts(parse(chart))
    assert by_model.says == "Nothing is allocated any more at the end."
    assert "every pod found a place" in unscheduled.under


def test_models_are_ordered_by_their_gpus():
    chart = chart_of(results(), "by-model", {"T4": 900, "G2": 90, "A10": 1})
    assert isinstance(chart, HeatMap)
    heads = ["T4\n900 GPUs", "G2\n90 GPUs", "A10\n1 GPU", "all\n991 GPUs"]
    assert list(chart.columns) == heads


def test_heat_cells_hold_the_means():
    cells = groups(standard("by-model"), "cell")
    assert [name for name in cells if name.startswith("fgd")] == [
        "fgd, A10: 50.0",
        "fgd, G2: 95.2",
        "fgd, T4: 85.2",
        "fgd, all: 95.2",
    ]
    assert all(texts(cell) == [name.split(": ")[1]] for name, cell in cells.items())


def test_a_model_without_a_value_is_a_dash():
    runs = [run("a", 1, 90.0, by_model={"G2": 90.0}), run("b", 1, 90.0, by_model={"T4": 80.0})]
    chart = chart_of(SimulationResults(runs, summarise(runs)), "by-model")
    assert {"a, G2: 90.0", "a, T4: –", "a, all: 90.0"} <= set(groups(parse(chart), "cell"))


def test_bars_add_up_to_the_failed_pods():
    chart = chart_of(results(), "unscheduled")
    failed = {row.policy: row.failed_pods for row in results().summary}
    shown = {f"{policy}: {pods:,.0f}" for policy, pods in failed.items()}
    assert set(groups(standard("unscheduled"), "policy")) == shown
    for place, policy in enumerate(chart.rows):
        parts = sum(part.lengths[place] for part in chart.parts)
        assert parts == pytest.approx(failed[policy])


def test_many_reasons_are_folded_into_the_last():
    many = {f"reason {i}": 20 - i for i in range(12)}
    what = results({"a": (90.0,)}, unscheduled=many)
    assert len(charts.top_reasons(what)) == 7
    (name,) = groups(parse(chart_of(what, "unscheduled")), "policy")
    assert name == f"a: {sum(many.values())}"


def test_figures_are_the_same_bytes_in_another_process():
    """Names of marks are hashes, and Python's own differ from process to process."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from report_samples import results\n"
        "from weft.lab.experiment.pages.charts import simulation_charts\n"
        "from weft.lab.experiment.pages.figures import to_svg\n"
        "sys.stdout.write(''.join(map(to_svg, simulation_charts(results()))))"
    )
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert there.stdout.decode() == "".join(map(to_svg, simulation_charts(results())))


def test_text_is_escaped_and_control_characters_are_replaced():
    evil = "<a>&\x00\"'"
    for chart in simulation_charts(results({evil: (90.0, 91.0)}, unscheduled={evil: 2})):
        for size in SIZES:
            said = texts(parse(chart, size))
            if size is NARROW or chart.name != "by-model":
                assert any("<a>&�" in text for text in said), chart.name


def test_every_colour_in_a_figure_can_be_recoloured_for_the_dark():
    css = dark_rules()
    for chart in simulation_charts(results(), {"G2": 1}):
        for what in COLOUR.finditer(to_svg(chart)):
            assert f'[style*="{what[0]}"]' in css


def test_a_light_colour_has_one_dark_colour():
    assert len({paint.light for paint in PAINTS}) == len(PAINTS)


def _contrast(one: str, two: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_lines_stand_out_from_their_paper():
    for paint in SERIES:
        assert _contrast(paint.light, "#ffffff") >= 3
        assert _contrast(paint.dark, "#151b22") >= 3


def test_numbers_on_colours_can_be_read():
    pairs = [*zip(HEAT, ON_HEAT, strict=True), *zip(REASONS, ON_REASONS, strict=True)]
    for paper, ink in pairs:
        assert _contrast(paper.light, ink.light) >= 4.5
        assert _contrast(paper.dark, ink.dark) >= 4.5


def test_every_policy_of_weft_has_its_place():
    assert sorted(PLACES) == sorted(policy.name for policy in BUILT_IN)


def test_a_policy_has_its_colour_in_every_report():
    everybody = looks([*PLACES, "fgd:option=1", "third-party", "./mine.py:Class"])
    assert len(set(everybody.values())) == len(everybody)
    for policy, look in everybody.items():
        assert looks(["random", policy])[policy].paint == look.paint
    for policy in PLACES:
        assert looks(["third-party", policy, f"{policy}:option=1"])[policy] == everybody[policy]


@settings(max_examples=few_or_many(30, 100))
@given(st.lists(st.text(max_size=4) | st.sampled_from(PLACES), max_size=60))
def test_no_two_policies_of_a_report_look_alike(names):
    look_of = looks(names)
    assert set(look_of) == set(names)
    assert len(set(look_of.values())) == len(look_of)
    assert look_of == looks(sorted(names, reverse=True))


def test_policies_of_one_colour_differ_in_dash_and_in_marker():
    for one, two in itertools.combinations(looks(PLACES).values(), 2):
        if one.paint == two.paint:
            assert one.dash != two.dash
            assert one.marker != two.marker


def test_colours_are_far_apart():
    """Distances in Oklab: neighbours in this palette are about a tenth apart."""
    for shade in ("light", "dark"):
        colours = {paint: _oklab(getattr(paint, shade)) for paint in SERIES}
        for one, two in itertools.combinations(colours, 2):
            assert math.dist(colours[one], colours[two]) > 0.095, (shade, one, two)


def _oklab(colour: str) -> tuple[float, float, float]:
    """Björn Ottosson's space of even differences (2020)."""
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (r, g, b))
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def test_numbered_lines_differ():
    assert len({numbered(i) for i in range(40)}) == 40
    assert len(DASHES) == len(set(DASHES))


MANY = {policy: (95.0 - i, 94.0 - i) for i, policy in enumerate(PLACES[:12])}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)
def test_more_than_eight_policies_have_a_panel_each(size: Size):
    root = parse(lines_of(results(MANY)), size)
    starts = []
    for name, line in groups(root, "series").items():
        path = line.find(f"{SVG}path")
        assert path is not None, name
        starts.append(tuple(re.findall(r"-?[\d.]+", path.get("d") or "")[:2]))
    assert len(starts) == len(set(starts)) == 12


def test_eight_policies_share_a_panel():
    chart = lines_of(results(dict(list(MANY.items())[:8])), "fragmentation")
    assert not chart.apart
    assert len(groups(parse(chart), "series")) == 8


def test_bands_end_at_nothing() -> None:
    """An interval below 0 once left out the points there, and its band ran across the figure."""
    wide = charts.allocation_lines(results({"a": (1.0, 90.0, 1.0, 1.0, 1.0)}))[0]
    assert min(wide.low) == 0.0
    assert all(low <= mean for low, mean in zip(wide.low, wide.mean, strict=True))


def test_timed_figures_are_over_time():
    # 300 steps of 16 s are 80 minutes.
    for name, value in (("allocation", "51.00"), ("queue", "2.00")):
        chart = lines_of(timed(), name)
        assert chart.x_title == "Minutes since the first pod"
        labels = groups(parse(chart), "label")
        assert set(labels) == {"slow", "quick"}
        assert texts(labels["slow"])[0].split() == [value, "slow"]


def test_a_close_up_shows_where_lines_part():
    assert lines_of(results()).corner == (82.5, 97.5)
    assert lines_of(results({"a": (10.0,), "b": (90.0,)})).corner is None


def test_ticks_are_short():
    assert [number(v) for v in (0, 2.5, 12_500.0, 0.1 + 0.2)] == ["0", "2.5", "12,500", "0.3"]


def test_long_names_lose_their_middle():
    assert shorten("short") == "short"
    assert len(shorten("x" * 50)) == 26
    assert shorten("policy-of-a-third-party-number-7", 20).endswith("number-7")


def test_readmes_figure_has_the_colours_of_todays_reports() -> None:
    """`make demo` draws it anew: build/demo/report/allocation.svg."""
    drawn = (Path(__file__).parents[4] / "docs" / "images" / "allocation.svg").read_text()
    said = drawn.partition("</desc>")[0]
    policies = re.findall(r"([a-z-]+) \d+\.\d\d", said)
    assert len(policies) == 7
    for policy, look in looks(policies).items():
        (line, *_) = re.findall(rf'class="series" data-name="{policy}: .*?</g>', drawn, re.DOTALL)
        assert f"stroke: {look.paint.light}" in line


@pytest.mark.parametrize("draw", [to_svg, to_png, lambda chart: to_pdf([chart], "t")])
def test_without_matplotlib_the_remedy_is_said(
    draw: Callable[[Chart], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the image, where nothing is drawn."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInputError, match=r"figures: need matplotlib, .* pip install it"):
        draw(EmptyChart(name="empty", title="none"))

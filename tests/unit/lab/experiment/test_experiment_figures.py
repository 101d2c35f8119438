import itertools
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec import structs
from report_samples import CEILINGS, results, run, timed, timed_run

from weft.core.policies.catalog import BUILT_IN
from weft.interference.intervals import mean_interval
from weft.lab.experiment.pages import bar_figures, curves, line_figures
from weft.lab.experiment.pages.drawing import (
    ALL,
    DASHES,
    ON_HEAT,
    PLACES,
    SERIES,
    Drawing,
    Rect,
    looks,
    numbered,
    recolour,
    shorten,
)
from weft.lab.experiment.pages.line_charts import (
    LAYOUTS,
    CurveSeries,
    Layout,
    Panel,
    Scale,
    label,
    nice_ceiling,
    spread,
    ticks,
)
from weft.lab.experiment.pages.pictures import to_svg
from weft.lab.experiment.pages.report import draw_all, names_of
from weft.lab.experiment.statistics.ranking import summarise
from weft.lab.simulate.results import SimulationResults, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def parse(drawing: Drawing) -> ET.Element:
    return ET.fromstring(to_svg(drawing))


def groups(root: ET.Element, kind: str) -> dict[str, ET.Element]:
    return {g.get("data-name", ""): g for g in root.iter(f"{SVG}g") if g.get("class") == kind}


def texts(element: ET.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


@pytest.mark.parametrize("draw", [line_figures.allocation, line_figures.fragmentation])
def test_a_line_figure_has_one_line_and_one_label_a_policy(draw):
    root = parse(draw(results()))
    lines, labels = groups(root, "series"), groups(root, "label")
    assert set(lines) == set(labels) == set(CEILINGS)
    for line in lines.values():
        assert len(list(line.iter(f"{SVG}path"))) == 1
    looks = {
        (p.get("stroke"), p.get("stroke-dasharray"))
        for line in lines.values()
        for p in line.iter(f"{SVG}path")
    }
    assert len(looks) == 3


def test_labels_say_what_the_tables_say():
    what = results()
    allocation = groups(parse(line_figures.allocation(what)), "label")
    fragments = groups(parse(line_figures.fragmentation(what)), "label")
    for summary in what.summary:
        shown = f"{summary.gpu_allocation_percent:.2f}"
        assert texts(allocation[summary.policy]) == [shown, summary.policy]
        assert f"{summary.gpu_fragmentation_percent:.2f}" in texts(fragments[summary.policy])


def test_marks_stay_inside_every_figure():
    for what in (results(), timed(), results({"one": (60.0,)}), results({"a" * 90: (0.0, 1.0)})):
        drawings = [
            (width, each) for width in LAYOUTS for each in draw_all(what, {"G2": 10}, width)
        ]
        for layout, drawing in drawings:
            assert drawing.width == layout.width
            root = parse(drawing)
            for path in root.iter(f"{SVG}path"):
                numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d") or "")]
                assert all(0 <= x <= drawing.width for x in numbers[::2])
                assert all(0 <= y <= drawing.height for y in numbers[1::2])
            for text in root.iter(f"{SVG}text"):
                assert 0 <= float(text.get("x", "0")) <= drawing.width
                assert 0 <= float(text.get("y", "0")) <= drawing.height


def test_seeds_make_a_band_and_one_seed_makes_none():
    assert set(groups(parse(line_figures.allocation(results())), "band")) == set(CEILINGS)
    single = results({name: values[:1] for name, values in CEILINGS.items()})
    root = parse(line_figures.allocation(single))
    assert groups(root, "band") == {}
    assert "one seed" in texts(root)


def test_few_seeds_show_their_range_and_many_their_interval():
    few = curves.allocation(results({"a": (90.0, 92.0, 91.0)}))[0]
    assert (few.mean[-1], few.low[-1], few.high[-1]) == (91.0, 90.0, 92.0)
    ceilings = (90.0, 92.0, 91.0, 93.0, 94.0, 92.5)
    many = curves.allocation(results({"a": ceilings}))[0]
    assert (many.low[-1], many.high[-1]) == pytest.approx(mean_interval(ceilings))


def test_seeds_that_skip_a_percent_are_read_between_their_points():
    runs = [
        run("a", 1, 90.0, curve={"0": 0.0, "10": 10.0, "20": 20.0}),
        run("a", 2, 90.0, curve={"0": 0.0, "15": 9.0, "20": 14.0}),
    ]
    series = curves.allocation(SimulationResults(runs, summarise(runs)))[0]
    assert series.x == (0, 10, 15, 20)
    assert series.mean == pytest.approx((0, 8, 12, 17))


def test_a_mean_ends_with_the_shortest_seed():
    runs = [
        run("a", 1, 90.0, curve={"0": 0.0, "130": 90.0}),
        run("a", 2, 90.0, curve={"0": 0.0, "128": 90.0}),
    ]
    assert curves.allocation(SimulationResults(runs, summarise(runs)))[0].x == (0, 128)


def test_long_curves_are_thinned():
    long = {str(x): 50.0 for x in range(5000)}
    series = curves.allocation(results({"a": (50.0,)}, curve=long))[0]
    assert len(series.x) == curves.MOST_POINTS
    assert (series.x[0], series.x[-1]) == (0, 4999)


def test_in_time_a_mean_goes_on_to_the_last_start_of_the_longest_run():
    """One run has its last start after 2 s and is empty from 4 s on, the other's is after 8 s."""
    short = Timeline(1.0, 2, *[[40.0, 40.0, 20.0, 20.0, 0.0]] * 4)
    long = Timeline(2.0, 4, *[[60.0, 60.0, 80.0, 80.0, 0.0, 0.0]] * 4)
    runs = [
        structs.replace(timed_run("one", seed, 5.0), timeline=line)
        for seed, line in ((42, short), (43, long))
    ]
    (curve,) = curves.allocation(SimulationResults(runs, summarise(runs), []))
    assert curve.x == (0.5, 1.0, 1.5, 2.5, 3.0, 3.5, 4.5, 5.0, 7.0)
    assert (curve.mean[0], curve.mean[-1]) == (50.0, 40.0)
    assert (curve.low[-1], curve.high[-1]) == (0.0, 80.0)
    assert curve.end == (40 + 70) / 2, "the mean up to each run's last start"


def test_timed_curves_leave_out_the_empty_cluster_after_everybody_left():
    (first, *_), step_min = curves.allocation(timed()), 16 / 60
    assert (first.x[0], first.x[-1]) == pytest.approx((0.5 * step_min, 299.5 * step_min))
    assert first.end == pytest.approx(51.0)
    assert max(curves.waiting(timed())[0].mean) == 4.0


def test_runs_without_curves_say_so():
    what = results(curve={}, fragmentation_curve={}, by_model={}, unscheduled={})
    assert [drawing.name for drawing in draw_all(what)] == list(names_of(what))
    assert "These runs recorded no curve." in texts(parse(line_figures.allocation(what)))
    assert "every pod found a place" in texts(parse(bar_figures.unscheduled(what)))


def test_models_are_ordered_by_their_gpus():
    root = parse(bar_figures.by_model(results(), {"T4": 900, "G2": 90, "A10": 1}))
    shown = texts(root)
    heads = [text for text in shown if text in ("T4", "G2", "A10", "all")]
    assert heads == ["T4", "G2", "A10", "all"]
    assert "900 GPUs" in shown
    assert "1 GPU" in shown
    assert "991 GPUs" in shown


def test_heat_cells_hold_the_means():
    rows = groups(parse(bar_figures.by_model(results())), "policy")
    assert list(rows) == ["fgd", "best-fit", "random"]
    assert texts(rows["fgd"]) == ["fgd", "50.0", "95.2", "85.2", "95.2"]


def test_a_model_without_a_value_is_a_dash():
    runs = [run("a", 1, 90.0, by_model={"G2": 90.0}), run("b", 1, 90.0, by_model={"T4": 80.0})]
    rows = groups(parse(bar_figures.by_model(SimulationResults(runs, summarise(runs)))), "policy")
    assert texts(rows["a"]) == ["a", "90.0", "–", "90.0"]


def test_bars_add_up_to_the_failed_pods():
    what = results()
    drawing = bar_figures.unscheduled(what)
    rows = groups(parse(drawing), "policy")
    for summary in what.summary:
        assert texts(rows[summary.policy])[-1] == f"{summary.failed_pods:,.0f}"
    boxes = [
        mark
        for group in drawing.marks
        if hasattr(group, "marks")
        for mark in group.marks
        if isinstance(mark, Rect)
    ]
    assert len(boxes) == 6


def test_many_reasons_are_folded_into_the_last():
    many = {f"reason {i}": 20 - i for i in range(12)}
    what = results({"a": (90.0,)}, unscheduled=many)
    assert len(bar_figures.top_reasons(what)) == 7
    row = groups(parse(bar_figures.unscheduled(what)), "policy")["a"]
    assert texts(row)[-1] == str(sum(many.values()))


def test_figures_are_deterministic():
    one, two = ([to_svg(drawing) for drawing in draw_all(results(), {"G2": 1})] for _ in range(2))
    assert one == two


def test_text_is_escaped_and_control_characters_are_replaced():
    evil = "<a>&\x00\"'"
    for drawing in draw_all(results({evil: (90.0, 91.0)}, unscheduled={evil: 2})):
        assert any("<a>&�" in text for text in texts(parse(drawing))), drawing.name


def test_every_colour_in_a_figure_can_be_recoloured_for_the_dark():
    css = recolour(dark=True)
    for drawing in draw_all(results(), {"G2": 1}):
        for name in re.findall(r'class="([fl]-\w+)"', to_svg(drawing)):
            assert f".{name}{{" in css


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
    from weft.lab.experiment.pages.drawing import HEAT, ON_REASONS, REASONS

    pairs = [*zip(HEAT, ON_HEAT, strict=True), *zip(REASONS, ON_REASONS, strict=True)]
    for paper, ink in pairs:
        assert _contrast(paper.light, ink.light) >= 4.5, paper.name
        assert _contrast(paper.dark, ink.dark) >= 4.5, paper.name


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
        colours = {paint.name: _oklab(getattr(paint, shade)) for paint in SERIES}
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
    assert len({paint.name for paint in ALL}) == len(ALL)
    assert len(DASHES) == len(set(DASHES))


MANY = {policy: (95.0 - i, 94.0 - i) for i, policy in enumerate(PLACES[:12])}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_more_than_eight_policies_have_a_panel_each(layout: Layout):
    root = parse(line_figures.allocation(results(MANY), layout))
    lines = groups(root, "series")
    assert list(lines) == list(MANY)
    boxes = []
    for line in lines.values():
        (path,) = line.iter(f"{SVG}path")
        numbers = [float(n) for n in re.findall(r"-?[\d.]+", path.get("d") or "")]
        boxes.append((min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])))
    for one, two in itertools.combinations(boxes, 2):
        beside = one[1] < two[0] or two[1] < one[0]
        assert beside or one[3] < two[2] or two[3] < one[2]


def test_eight_policies_share_a_panel():
    eight = dict(list(MANY.items())[:8])
    root = parse(line_figures.fragmentation(results(eight)))
    starts = {
        path.get("d", "").split(" ")[0]
        for line in groups(root, "series").values()
        for path in line.iter(f"{SVG}path")
    }
    assert len(starts) == 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_points_say_their_values(layout: Layout):
    what = results()
    points = groups(parse(line_figures.allocation(what, layout)), "points")
    assert set(points) == set(CEILINGS)
    for policy, group in points.items():
        spots = [spot for spot in group if spot.get("data-spot") is not None]
        said = [spot.findtext(f"{SVG}title") or "" for spot in spots]
        assert len(said) >= 5
        assert [spot.get("tabindex") for spot in spots] == ["0"] + ["-1"] * (len(spots) - 1)
        mean = next(s.gpu_asked_percent for s in what.summary if s.policy == policy)
        # The last point is the end of the curve.
        assert said[-1].startswith(f"{policy}: {mean:.2f} % asked for (")
        assert said[-1].endswith(" at 130 % demand")


def test_bands_end_at_nothing() -> None:
    """An interval below 0 once left out the points there, and its band ran across the figure."""
    wide = curves.allocation(results({"a": (1.0, 90.0, 1.0, 1.0, 1.0)}))[0]
    assert min(wide.low) == 0.0
    assert all(low <= mean for low, mean in zip(wide.low, wide.mean, strict=True))


def test_timed_figures_are_over_time():
    allocation, queue = (
        parse(draw(timed())) for draw in (line_figures.allocation, line_figures.queue)
    )
    # 300 steps of 16 s are 80 minutes.
    for root in (allocation, queue):
        assert "Minutes since the first pod" in texts(root)
        assert set(groups(root, "series")) == {"slow", "quick"}
    assert texts(groups(allocation, "label")["slow"]) == ["51.00", "slow"]
    assert texts(groups(queue, "label")["slow"]) == ["2.00", "slow"]


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 100, 5, [0, 20, 40, 60, 80, 100]),
        (82.5, 97.5, 6, [82.5, 85, 87.5, 90, 92.5, 95, 97.5]),
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
        (3, 3, 4, [3]),
    ],
)
def test_ticks_are_round(low, high, about, expected):
    assert ticks(low, high, about) == pytest.approx(expected)


def test_labels_are_short():
    assert [label(v) for v in (0, 2.5, 12_500.0, 0.1 + 0.2)] == ["0", "2.5", "12,500", "0.3"]


@pytest.mark.parametrize(("value", "top"), [(16.4, 20), (100, 100), (0, 1), (0.037, 0.04)])
def test_axes_end_on_a_tick(value, top):
    assert nice_ceiling(value) == pytest.approx(top)


def test_labels_make_room_and_stay_in_bounds():
    places = spread([10, 11, 12, 300], 16, 0, 320)
    assert all(b - a >= 16 for a, b in itertools.pairwise(places))
    crowd = spread([300.0] * 40, 16, 0, 320)
    assert crowd[0] >= -1e-9
    assert crowd[-1] <= 320
    assert spread([], 16, 0, 320) == []


def test_a_curve_enters_a_close_up_at_its_edge():
    panel = Panel(Scale(80, 120, 0, 40), Scale(80, 100, 20, 0))
    series = CurveSeries("a", numbered(0), (0.0, 100.0, 120.0), (0.0, 100.0, 100.0), (), (), 100.0)
    assert panel.inside(series.x, series.mean) == ((0.0, 20.0), (20.0, 0.0), (40.0, 0.0))


def test_long_names_lose_their_middle():
    assert shorten("short") == "short"
    assert len(shorten("x" * 50)) == 26
    assert shorten("policy-of-a-third-party-number-7", 20).endswith("number-7")


def test_readmes_figure_has_the_colours_of_todays_reports() -> None:
    """`make demo` draws it anew: build/demo/report/allocation.svg."""
    drawn = (Path(__file__).parents[4] / "docs" / "images" / "allocation.svg").read_text()
    policies = re.findall(r"([a-z-]+) \d+\.\d\d", drawn.partition("</desc>")[0])
    assert len(policies) == 7
    wanted = {(look.paint.name, look.paint.light) for look in looks(policies).values()}
    found = set(re.findall(r'class="l-(s\d)" stroke="(#[0-9a-f]{6})"', drawn))
    assert found == wanted

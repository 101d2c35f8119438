import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from report_samples import CEILINGS, results, run, timed

from weft.lab.experiment import bar_figures, curves, line_figures
from weft.lab.experiment.axes import CurveSeries, Panel, Scale, label, nice_ceiling, spread, ticks
from weft.lab.experiment.drawing import Drawing, Rect
from weft.lab.experiment.figures import NAMES, draw_all
from weft.lab.experiment.statistics import mean_interval, summarise
from weft.lab.experiment.style import (
    ALL,
    DASHES,
    ON_HEAT,
    SERIES,
    recolour,
    series_dash,
    series_paint,
    shorten,
)
from weft.lab.experiment.svg import to_svg
from weft.lab.simulate.results import SimulationResults

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
        for drawing in draw_all(what, {"G2": 10}):
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


def test_timed_curves_leave_out_the_empty_cluster_after_everybody_left():
    (first, *_), step_min = curves.allocation(timed()), 16 / 60
    assert (first.x[0], first.x[-1]) == pytest.approx((0.5 * step_min, 299.5 * step_min))
    assert first.end == pytest.approx(51.0)
    assert max(curves.waiting(timed())[0].mean) == 4.0


def test_runs_without_curves_say_so():
    what = results(curve={}, fragmentation_curve={}, by_model={}, unscheduled={})
    assert [drawing.name for drawing in draw_all(what)] == list(NAMES)
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
    from weft.lab.experiment.style import HEAT, ON_REASONS, REASONS

    pairs = [*zip(HEAT, ON_HEAT, strict=True), *zip(REASONS, ON_REASONS, strict=True)]
    for paper, ink in pairs:
        assert _contrast(paper.light, ink.light) >= 4.5, paper.name
        assert _contrast(paper.dark, ink.dark) >= 4.5, paper.name


def test_many_policies_differ_in_colour_or_dash():
    looks = {(series_paint(i).name, series_dash(i)) for i in range(len(SERIES) * len(DASHES))}
    assert len(looks) == len(SERIES) * len(DASHES)
    assert len({paint.name for paint in ALL}) == len(ALL)


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
    series = CurveSeries("a", 0, (0.0, 100.0, 120.0), (0.0, 100.0, 100.0), (), (), 100.0)
    assert panel.inside(series.x, series.mean) == ((0.0, 20.0), (20.0, 0.0), (40.0, 0.0))


def test_long_names_lose_their_middle():
    assert shorten("short") == "short"
    assert len(shorten("x" * 50)) == 26
    assert shorten("policy-of-a-third-party-number-7", 20).endswith("number-7")

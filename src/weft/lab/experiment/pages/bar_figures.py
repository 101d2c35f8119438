"""Figures with bars and boxes: use per GPU model, why pods failed, and a measure with its interval
when no axis has several numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence

from weft.lab.experiment.pages.drawing import (
    HEAT,
    INK,
    ON_HEAT,
    ON_REASONS,
    REASONS,
    SOFT,
    Drawing,
    DrawingGroup,
    Look,
    Mark,
    Rect,
    Stroke,
    Text,
    fitted,
    shorten,
    text_width,
)
from weft.lab.experiment.pages.line_charts import WIDE, Layout, empty_figure, heading, nice_ceiling
from weft.lab.experiment.statistics.comparison import MeasureSummary
from weft.lab.experiment.statistics.ranking import ranked
from weft.lab.simulate.results import SimulationResults

_ROW = 34.0
_OTHER = "other reasons"
Marks = list[Mark | DrawingGroup]


def by_model(
    results: SimulationResults,
    models_gpus: dict[str, int] | None = None,
    layout: Layout = WIDE,
) -> Drawing:
    """Draw a heat map: one row per policy, one column per GPU model, allocation at the end.

    In the narrow layout a policy's models are in lines below its name."""
    title, order = "GPUs allocated at the end, by model", ranked(results)
    rows = {policy: model_means(results, policy) for policy in order}
    if not any(value for row in rows.values() for value in row.values()):
        text = "Nothing is allocated any more at the end."
        return empty_figure("by-model", title, text, layout)
    table = _ModelTable(results, rows, models_gpus or {}, layout)
    marks, y = table.head(title)
    for place, policy in enumerate(order):
        row, y = table.row(policy, y, bold=place == 0)
        marks.append(DrawingGroup(tuple(row), "policy", policy))
    totals = "; ".join(f"{policy} {table.everything[policy]:.1f} % in all" for policy in order)
    text = f"A row a policy, a column a model: {totals}."
    return Drawing("by-model", title, text, layout.width, y + 20, tuple(marks))


class _ModelTable:
    """Positions of the cells of a table of policies and models."""

    def __init__(
        self,
        results: SimulationResults,
        rows: dict[str, dict[str, float]],
        gpus: dict[str, int],
        layout: Layout,
    ) -> None:
        self.rows, self.gpus, self.layout = rows, gpus, layout
        models = sorted(
            {m for row in rows.values() for m in row}, key=lambda m: (-gpus.get(m, 0), m)
        )
        self.columns = [*models, "all"]
        self.everything = {
            summary.policy: summary.gpu_allocation_percent for summary in results.summary
        }
        values = [value for row in rows.values() for value in row.values()]
        self.low = 10 * int(min([*values, *self.everything.values(), 90]) // 10)
        if layout.narrow:
            self.left, self.in_a_line = 20.0, min(5, len(self.columns))
            self.step = (layout.width - 40) / self.in_a_line
        else:
            self.left, self.in_a_line = _after_names(list(rows), layout), len(self.columns)
            self.step = (layout.width - 34 - self.left) / len(self.columns)

    def head(self, title: str) -> tuple[Marks, float]:
        """Draw title, colour key, and in wide tables the models' names; return where the rows
        begin."""
        under, ramp = "mean over seeds, % of the model's GPUs", 250.0
        if self.layout.narrow:
            head = heading(title, under, self.layout)
            return [*head.marks, *self._ramp(head.bottom + 14)], head.bottom + 36
        head = heading(title, under, self.layout, right=ramp)
        marks: Marks = [*head.marks, *self._ramp(20)]
        top = head.bottom + 36
        for place, model in enumerate(self.columns):
            middle = self._x(place) + self.step / 2
            name = fitted(model, self.step - 4, 12.5, bold=True)
            marks.append(Text(middle, top, name, INK, 12.5, "middle", bold=True))
            count = fitted(_gpus(self._count(model)), self.step - 2, 11)
            marks.append(Text(middle, top + 15, count, SOFT, 11, "middle"))
        return marks, top + 26

    def row(self, policy: str, y: float, *, bold: bool) -> tuple[list[Mark], float]:
        """Draw a policy's cells from `y` on; return where the next row begins."""
        narrow = self.layout.narrow
        room = self.layout.width - 40 if narrow else self.left - 36
        name = fitted(policy, room, 13, bold=True)
        marks: list[Mark] = [Text(20, y + (14 if narrow else 21), name, INK, 13, bold=bold)]
        top = y + 22 if narrow else y
        for place, model in enumerate(self.columns):
            value = self.everything[policy] if model == "all" else self.rows[policy].get(model)
            line = top + (place // self.in_a_line) * (_ROW + 10)
            marks += self._cell(policy, model, value, (self._x(place), line))
        lines = -(-len(self.columns) // self.in_a_line)
        return marks, top + (lines * (_ROW + 10) + 8 if narrow else _ROW)

    def _cell(
        self, policy: str, model: str, value: float | None, at: tuple[float, float]
    ) -> list[Mark]:
        (x, y), narrow = at, self.layout.narrow
        tall, wide = _ROW + (10 if narrow else 0), self.step
        text_y = y + (34 if narrow else 21)
        if value is None:
            return [Text(x + wide / 2, text_y, "–", SOFT, 12.5, "middle")]
        share = min(1.0, max(0.0, (value - self.low) / (100 - self.low)))
        shade = round((len(HEAT) - 1) * share)
        hint = f"{policy}, {model}: {value:.2f} %"
        size = 12.5 if wide >= 46 else 10
        ink = ON_HEAT[shade]
        marks: list[Mark] = [
            Rect(x + 1.5, y + 1.5, wide - 3, tall - 3, HEAT[shade], radius=4, hint=hint),
            Text(x + wide / 2, text_y, f"{value:.1f}", ink, size, "middle"),
        ]
        if narrow:
            name = fitted(model, wide - 8, 11)
            marks.append(Text(x + wide / 2, y + 17, name, ink, 11, "middle"))
        return marks

    def _x(self, place: int) -> float:
        """Return a column's x; in a wide table the last column, for all models, is set apart."""
        apart = 14 if place == len(self.columns) - 1 and not self.layout.narrow else 0
        return self.left + (place % self.in_a_line) * self.step + apart

    def _count(self, model: str) -> int:
        return sum(self.gpus.values()) if model == "all" else self.gpus.get(model, 0)

    def _ramp(self, y: float) -> list[Mark]:
        """Draw the colour key, at the right, or at the left in the narrow layout."""
        wide = 16.0
        start = self.layout.width - 68 - wide * len(HEAT)
        if self.layout.narrow:
            start = 58.0
        end = start + wide * len(HEAT)
        return [
            *(Rect(start + i * wide, y, wide, 12, shade) for i, shade in enumerate(HEAT)),
            Text(start - 8, y + 10, f"{self.low:g} %", SOFT, 11.5, "end"),
            Text(end + 8, y + 10, "100 %", SOFT, 11.5),
        ]


def _after_names(policies: list[str], layout: Layout) -> float:
    """Return the x at which numbers begin, right of the longest name."""
    longest = max(text_width(shorten(policy), 13, bold=True) for policy in policies)
    return 36 + min(longest, layout.width / 4)


def _gpus(count: int) -> str:
    return "" if not count else "1 GPU" if count == 1 else f"{count:,} GPUs"


def model_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Return allocation (%) by GPU model, averaged over the seeds that have the model."""
    runs = [run for run in results.runs if run.policy == policy]
    models = {model for run in runs for model in run.by_model}
    means = {}
    for model in models:
        values = [run.by_model[model] for run in runs if model in run.by_model]
        means[model] = sum(values) / len(values)
    return means


def reason_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Return unscheduled pods by reason, averaged over all seeds (a seed without a reason counts
    0)."""
    runs = [run for run in results.runs if run.policy == policy]
    sums: Counter[str] = Counter()
    for run in runs:
        sums.update(run.unscheduled)
    return {reason: count / len(runs) for reason, count in sums.items()}


def top_reasons(results: SimulationResults) -> list[str]:
    """Return reasons by descending frequency; if there are more than colours, the rest become
    one."""
    sums: Counter[str] = Counter()
    for run in results.runs:
        sums.update(run.unscheduled)
    order = sorted(sums, key=lambda reason: (-sums[reason], reason))
    if len(order) <= len(REASONS):
        return order
    return [*order[: len(REASONS) - 1], _OTHER]


def unscheduled(results: SimulationResults, layout: Layout = WIDE) -> Drawing:
    """Draw stacked bars of pods that were not placed, by the reason that most nodes gave."""
    title, order, reasons = "Pods without a place, by reason", ranked(results), top_reasons(results)
    means = {policy: _folded(reason_means(results, policy), reasons) for policy in order}
    totals = {policy: sum(means[policy].values()) for policy in order}
    head = heading(title, "mean per seed; the reason is what most nodes said", layout)
    key, y = _key(reasons, layout, head.bottom + 27)
    marks: Marks = [*head.marks, *key]
    names = layout.width - 40 if layout.narrow else _after_names(order, layout) - 36
    left = 20.0 if layout.narrow else names + 36
    per_pod = (layout.width - 90 - left) / max([*totals.values(), 1.0])
    for place, policy in enumerate(order):
        name = fitted(policy, names, 13, bold=True)
        text_y = y + (14 if layout.narrow else 21)
        row: list[Mark] = [Text(20, text_y, name, INK, 13, bold=place == 0)]
        y, x = y + (18 if layout.narrow else 0), left
        for i, reason in enumerate(reasons):
            count = means[policy].get(reason, 0.0)
            row += _segment(x, y, count * per_pod, i, count, f"{policy}, {reason}")
            x += count * per_pod
        row.append(Text(x + 8, y + 21, _count(totals[policy]), INK, 12.5, bold=place == 0))
        marks.append(DrawingGroup(tuple(row), "policy", policy))
        y += _ROW + (4 if layout.narrow else 0)
    counts = "; ".join(f"{policy} {_count(totals[policy])}" for policy in order)
    text = f"Stacked bars, pods without a place: {counts}."
    return Drawing("unscheduled", title, text, layout.width, y + 20, tuple(marks))


def _folded(means: dict[str, float], reasons: list[str]) -> dict[str, float]:
    named = {reason: means[reason] for reason in reasons if reason in means}
    rest = sum(count for reason, count in means.items() if reason not in reasons)
    return {**named, _OTHER: rest} if rest else named


def _segment(x: float, y: float, width: float, i: int, count: float, name: str) -> list[Mark]:
    if width <= 0:
        return []
    text = _count(count)
    box = Rect(x, y + 4, max(0.5, width - 1), _ROW - 8, REASONS[i], hint=f"{name}: {text}")
    if width < text_width(text, 11.5) + 10:
        return [box]
    return [box, Text(x + width / 2, y + 21, text, ON_REASONS[i], 11.5, "middle")]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _key(reasons: list[str], layout: Layout, y: float) -> tuple[list[Mark], float]:
    """Draw the legend on as many lines as needed; return where the bars begin."""
    marks: list[Mark] = []
    x = 20.0
    for i, reason in enumerate(reasons):
        text = fitted(shorten(reason, 60), layout.width - 60, 12)
        wide = text_width(text, 12) + 38
        if x + wide > layout.width - 20 and x > 20:
            x, y = 20.0, y + 20
        marks.append(Rect(x, y - 10, 12, 12, REASONS[i], radius=2))
        marks.append(Text(x + 18, y, text, INK, 12))
        x += wide
    if not reasons:
        marks.append(Text(20, y, "every pod found a place", SOFT, 12))
    return marks, y + 16


_BAR_ROW, _THICK = 30.0, 16.0


def draw_bars(
    name: str,
    titles: tuple[str, str],
    means: Sequence[MeasureSummary],
    look_of: Mapping[str, Look],
    layout: Layout,
) -> Drawing:
    """Draw bars from 0 in the order of `means`; `titles` are the figure's title and subtitle."""
    head = heading(*titles, layout)
    longest = max(text_width(shorten(row.scheduler), 12.5) for row in means)
    left = 20.0 if layout.narrow else 34 + min(longest, layout.width / 3)
    top = nice_ceiling(max(row.mean + (row.ci95 or 0.0) for row in means))
    scale = (layout.width - 90 - left) / top
    step = _BAR_ROW + (18 if layout.narrow else 0)
    marks: list[Mark | DrawingGroup] = list(head.marks)
    y = head.bottom + 16
    for row in means:
        marks.append(
            DrawingGroup(tuple(_bar(row, look_of, (left, y, scale), layout)), "bar", row.scheduler)
        )
        y += step
    values_text = "; ".join(f"{row.scheduler} {row.mean:,.6g}" for row in means)
    return Drawing(
        name, titles[0], f"A bar a scheduler: {values_text}.", layout.width, y + 10, tuple(marks)
    )


def _bar(
    row: MeasureSummary,
    look_of: Mapping[str, Look],
    at: tuple[float, float, float],
    layout: Layout,
) -> list[Mark]:
    """Draw name, bar, interval and value; `at` is the bar's left end, the row's top, and pixels per
    unit."""
    left, y, scale = at
    label_y, bar_y = y + 13, y + (18 if layout.narrow else 0)
    room = layout.width - 40 if layout.narrow else left - 30
    middle, end = bar_y + _THICK / 2, left + row.mean * scale
    hint = f"{row.scheduler}: {row.mean:,.6g}"
    marks: list[Mark] = [
        Text(20, label_y, fitted(row.scheduler, room, 12.5), INK, 12.5),
        Rect(left, bar_y, max(1.0, end - left), _THICK, look_of[row.scheduler].paint, 2, hint),
    ]
    if row.ci95:
        half = row.ci95 * scale
        ends = (max(left, end - half), end + half)
        marks.append(Stroke(((ends[0], middle), (ends[1], middle)), INK, 1.4))
        marks += [Stroke(((x, middle - 4), (x, middle + 4)), INK, 1.4) for x in ends]
        end = ends[1]
    return [*marks, Text(end + 8, bar_y + 12, f"{row.mean:,.6g}", INK, 12)]

"""The two figures of what was left at the end: use per GPU model, and why pods failed."""

from collections import Counter

from weft.lab.experiment import style
from weft.lab.experiment.drawing import Drawing, DrawingGroup, Mark, Rect, Text
from weft.lab.experiment.line_figures import WIDTH, empty_figure, heading
from weft.lab.experiment.ranking import ranked
from weft.lab.experiment.style import HEAT, INK, REASONS, SOFT, shorten, text_width
from weft.lab.simulate.results import SimulationResults

_ROW = 34.0
_OTHER = "other reasons"


def by_model(results: SimulationResults, models_gpus: dict[str, int] | None = None) -> Drawing:
    """A table of colours: one row a policy, one column a GPU model, allocation at the end."""
    title, order = "GPUs allocated at the end, by model", ranked(results)
    rows = {policy: model_means(results, policy) for policy in order}
    counts = models_gpus or {}
    models = sorted({m for row in rows.values() for m in row}, key=lambda m: (-counts.get(m, 0), m))
    everything = {summary.policy: summary.gpu_allocation_percent for summary in results.summary}
    values = [value for row in rows.values() for value in row.values()]
    if not any(values):
        return empty_figure("by-model", title, "Nothing is allocated any more at the end.")
    low = 10 * int(min([*values, *everything.values(), 90]) // 10)
    left = _after_names(order)
    step = (WIDTH - 20 - 14 - left) / (len(models) + 1)
    under = "mean over seeds, % of the model's GPUs"
    marks: list[Mark | DrawingGroup] = [*heading(title, under), *_ramp(low)]
    for i, model in enumerate([*models, "all"]):
        middle = _column(i, len(models), left, step) + step / 2
        gpus = sum(counts.values()) if i == len(models) else counts.get(model, 0)
        marks.append(Text(middle, 84, shorten(model, 14), INK, 12.5, "middle", bold=True))
        marks.append(Text(middle, 99, _gpus(gpus), SOFT, 11, "middle"))
    for r, policy in enumerate(order):
        y = 110 + r * _ROW
        row: list[Mark] = [Text(20, y + 21, shorten(policy), INK, 13, bold=r == 0)]
        for i, model in enumerate([*models, "all"]):
            value = everything[policy] if i == len(models) else rows[policy].get(model)
            x = _column(i, len(models), left, step)
            row += _cell(x, y, step, value, low, f"{policy}, {model}")
        marks.append(DrawingGroup(tuple(row), "policy", policy))
    totals = "; ".join(f"{policy} {everything[policy]:.1f} % in all" for policy in order)
    text, height = f"A row a policy, a column a model: {totals}.", 110 + len(order) * _ROW + 20
    return Drawing("by-model", title, text, WIDTH, height, tuple(marks))


def _after_names(policies: list[str]) -> float:
    """The x at which the numbers begin: right of the longest name."""
    return 36 + max(text_width(shorten(policy), 13, bold=True) for policy in policies)


def _column(i: int, models: int, left: float, step: float) -> float:
    """The last column, of all models, stands apart."""
    return left + i * step + (14 if i == models else 0)


def _gpus(count: int) -> str:
    return "" if not count else "1 GPU" if count == 1 else f"{count:,} GPUs"


def _cell(
    x: float, y: float, wide: float, value: float | None, low: float, name: str
) -> list[Mark]:
    if value is None:
        return [Text(x + wide / 2, y + 21, "–", SOFT, 12.5, "middle")]
    shade = round((len(HEAT) - 1) * min(1.0, max(0.0, (value - low) / (100 - low))))
    size = 12.5 if wide >= 46 else 10
    hint = f"{name}: {value:.2f} %"
    return [
        Rect(x + 1.5, y + 1.5, wide - 3, _ROW - 3, HEAT[shade], radius=4, hint=hint),
        Text(x + wide / 2, y + 21, f"{value:.1f}", style.ON_HEAT[shade], size, "middle"),
    ]


def _ramp(low: float) -> list[Mark]:
    """The key of the colours, at the upper right."""
    right, wide = WIDTH - 20, 16.0
    start = right - 48 - wide * len(HEAT)
    return [
        *(Rect(start + i * wide, 20, wide, 12, shade) for i, shade in enumerate(HEAT)),
        Text(start - 8, 30, f"{low:g} %", SOFT, 11.5, "end"),
        Text(right, 30, "100 %", SOFT, 11.5, "end"),
    ]


def model_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Allocation (%) by GPU model, mean over the seeds that have it."""
    runs = [run for run in results.runs if run.policy == policy]
    models = {model for run in runs for model in run.by_model}
    means = {}
    for model in models:
        values = [run.by_model[model] for run in runs if model in run.by_model]
        means[model] = sum(values) / len(values)
    return means


def reason_means(results: SimulationResults, policy: str) -> dict[str, float]:
    """Unscheduled pods by reason, mean over all seeds (a seed without a reason counts 0)."""
    runs = [run for run in results.runs if run.policy == policy]
    sums: Counter[str] = Counter()
    for run in runs:
        sums.update(run.unscheduled)
    return {reason: count / len(runs) for reason, count in sums.items()}


def top_reasons(results: SimulationResults) -> list[str]:
    """The commonest reasons first; past the colours we have, the rest is one."""
    sums: Counter[str] = Counter()
    for run in results.runs:
        sums.update(run.unscheduled)
    order = sorted(sums, key=lambda reason: (-sums[reason], reason))
    if len(order) <= len(REASONS):
        return order
    return [*order[: len(REASONS) - 1], _OTHER]


def unscheduled(results: SimulationResults) -> Drawing:
    """Stacked bars: how many pods found no place, by the reason most nodes gave."""
    title, order, reasons = "Pods without a place, by reason", ranked(results), top_reasons(results)
    means = {policy: _folded(reason_means(results, policy), reasons) for policy in order}
    totals = {policy: sum(means[policy].values()) for policy in order}
    key, top = _key(reasons)
    under = "mean per seed; the reason is what most nodes said"
    marks: list[Mark | DrawingGroup] = [*heading(title, under), *key]
    left = _after_names(order)
    per_pod = (WIDTH - 90 - left) / max([*totals.values(), 1.0])
    for r, policy in enumerate(order):
        y, x = top + r * _ROW, left
        row: list[Mark] = [Text(20, y + 21, shorten(policy), INK, 13, bold=r == 0)]
        for i, reason in enumerate(reasons):
            count = means[policy].get(reason, 0.0)
            row += _segment(x, y, count * per_pod, i, count, f"{policy}, {reason}")
            x += count * per_pod
        row.append(Text(x + 8, y + 21, _count(totals[policy]), INK, 12.5, bold=r == 0))
        marks.append(DrawingGroup(tuple(row), "policy", policy))
    counts = "; ".join(f"{policy} {_count(totals[policy])}" for policy in order)
    text, height = f"Stacked bars, pods without a place: {counts}.", top + len(order) * _ROW + 20
    return Drawing("unscheduled", title, text, WIDTH, height, tuple(marks))


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
    return [box, Text(x + width / 2, y + 21, text, style.ON_REASONS[i], 11.5, "middle")]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def _key(reasons: list[str]) -> tuple[list[Mark], float]:
    """The legend, in as many lines as it takes, and where the bars begin."""
    marks: list[Mark] = []
    x, y = 20.0, 74.0
    for i, reason in enumerate(reasons):
        text = shorten(reason, 60)
        wide = text_width(text, 12) + 38
        if x + wide > WIDTH - 20 and x > 20:
            x, y = 20.0, y + 20
        marks.append(Rect(x, y - 10, 12, 12, REASONS[i], radius=2))
        marks.append(Text(x + 18, y, text, INK, 12))
        x += wide
    if not reasons:
        marks.append(Text(20, y, "every pod found a place", SOFT, 12))
    return marks, y + 16

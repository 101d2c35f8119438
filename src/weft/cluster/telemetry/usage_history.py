"""Sums up GPU-hours from a metrics server that evaluates Weft's recording rules.

Each rule is summed over the period in steps; a step without a sample counts as 0."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from weft.cluster.telemetry.cluster_history import TraceSpan
from weft.core.record.usage import NO_MODEL, cost_of
from weft.model import BadInputError
from weft.model.usage_groups import OTHER_QUEUE, OTHER_QUEUES, OTHERS
from weft.telemetry.meaning.answers import QueryResult, TelemetryError
from weft.telemetry.sources.prometheus import Prometheus

if TYPE_CHECKING:
    from weft.cluster.config.form import TelemetrySettings

_OF_ALL = {
    "gpu_hours": "weft_gpus_held",
    "gib_hours": "weft_gpu_memory_held_gib",
    "idle_gib_hours": "weft_gpu_memory_idle_gib",
    "lent_gib_hours": "weft_gpu_memory_lent_gib",
    "borrowed_gib_hours": "weft_gpu_memory_borrowed_gib",
    "used_gpu_hours": "weft_gpus_used",
}
_OF_QUEUES = {**_OF_ALL, "borrowed_gpu_hours": "weft_gpus_borrowed"}
RULES: dict[str, dict[str, str]] = {
    by: {name: f"{by}:{rule}" for name, rule in rules.items()}
    for by, rules in {
        "namespace": _OF_ALL,
        "queue": _OF_QUEUES,
        "workload": _OF_ALL,
        "label": _OF_ALL,
    }.items()
}
"""Recording rules of deploy/monitoring/rules.yaml, by grouping and by the amount that they sum up
to."""
BY_MODEL = {by: f"{by}_model:weft_gpus_held" for by in RULES}
"""Recording rules of GPUs held by the GPUs' model, by grouping; servers with older rules lack
them."""
TOTALS = {
    "capacity_gpu_hours": "cluster:weft_gpus",
    "stranded_gpu_hours": "cluster:weft_gpus_stranded",
    "lent_gib_hours": "cluster:weft_gpu_memory_lent_gib",
    "used_gpu_hours": "cluster:weft_gpus_used",
}
_OTHERS = (OTHERS, OTHER_QUEUES, OTHER_QUEUE)
"""Names under which metrics sum up the groups without series of their own; the first that occurs is
used."""
_LEAST_STEP_S, _MOST_STEPS = 15, 10_000
_HOUR_S = 3_600
_ROUNDED_HOURS = 1e-6
"""Sums of rounded numbers may differ by this much."""


class MeteredRow(msgspec.Struct, frozen=True):
    """Hours of one group: GPUs held, GPUs busy, GiB of memory held, GiB of it that were idle, lent
    and borrowed, and GPUs borrowed by a queue (as in `weft queues`). None: the server lacks the
    amount; unset: this grouping has no such amount. `gpu_hours_by_model` and `cost` are unset
    without prices."""

    group: str
    gpu_hours: float
    used_gpu_hours: float | msgspec.UnsetType | None = UNSET
    gib_hours: float | msgspec.UnsetType | None = UNSET
    idle_gib_hours: float | msgspec.UnsetType | None = UNSET
    lent_gib_hours: float | msgspec.UnsetType | None = UNSET
    borrowed_gib_hours: float | msgspec.UnsetType | None = UNSET
    borrowed_gpu_hours: float | msgspec.UnsetType | None = UNSET
    gpu_hours_by_model: dict[str, float] | msgspec.UnsetType = UNSET
    cost: float | msgspec.UnsetType = UNSET


class MeteredUsage(msgspec.Struct, frozen=True):
    """Usage in a period, with `rows` in falling order of GPU-hours.

    `capacity_gpu_hours` counts all GPUs, `idle_gpu_hours` the part that no pod held,
    `stranded_gpu_hours` the idle part that no typical pod could use; `lent_gib_hours` is memory
    given beyond the GPUs' size, `used_gpu_hours` the time in which GPUs were busy. None: the
    server lacks the amount. `scaled_gpu_hours` has the groups of which the server has more hours
    by model than in all, with these hours; they were scaled down. Unset if there are none."""

    hours: float
    capacity_gpu_hours: float | None
    idle_gpu_hours: float | None
    stranded_gpu_hours: float | None
    lent_gib_hours: float | None
    used_gpu_hours: float | None
    rows: tuple[MeteredRow, ...]
    scaled_gpu_hours: dict[str, float] | msgspec.UnsetType = UNSET


async def usage_history(
    settings: "TelemetrySettings",
    url: str,
    by: str,
    span: TraceSpan,
    prices: Mapping[str, float] | None = None,
) -> MeteredUsage:
    """Return the usage during `span` from the server at `url`, or the configured one. `by` is a
    grouping of `RULES`; a label's grouping includes its key, such as label:team. `prices` are those
    of `cost_of`. Raises `BadInputError` if the server cannot answer, or has no such series."""
    from weft.cluster.telemetry.metric_sources import prometheus_options

    grouping = by.partition(":")[0]
    options = prometheus_options(msgspec.structs.replace(settings, url=url) if url else settings)
    try:
        async with Prometheus(options) as source:
            groups = await _groups(source, RULES[grouping], by, span)
            totals = await _groups(source, TOTALS, "", span)
            models = None if prices is None else await _models(source, by, span)
    except TelemetryError as error:
        raise BadInputError("--prometheus", str(error)) from error
    if not groups["gpu_hours"]:
        rule = RULES[grouping]["gpu_hours"]
        wrong = f"has no {rule} of that time; add the recording rules deploy/monitoring/rules.yaml"
        if grouping == "label":
            wrong = f"has no {rule} of {by} at that time; name the label in usage.labels of Weft's "
            wrong += "configuration, and add the recording rules deploy/monitoring/rules.yaml"
        raise BadInputError(options.url, wrong)
    total = {name: sum(found.values()) if found else None for name, found in totals.items()}
    held, capacity = sum(groups["gpu_hours"].values()), total["capacity_gpu_hours"]
    return MeteredUsage(
        (span.end_s - span.start_s) / _HOUR_S,
        capacity,
        None if capacity is None else max(0.0, capacity - held),
        total["stranded_gpu_hours"],
        total["lent_gib_hours"],
        total["used_gpu_hours"],
        tuple(_rows(groups, models, prices or {})),
        _beyond(groups["gpu_hours"], models or {}) or UNSET,
    )


def _rows(
    groups: Mapping[str, Mapping[str, float]],
    models: Mapping[str, Mapping[str, float]] | None,
    prices: Mapping[str, float],
) -> list[MeteredRow]:
    """Return the rows. Agents report every pod's use under its own group, but the scheduler reports
    the holdings of some groups only in a sum of others: their use is added to that group too."""
    held, used = groups["gpu_hours"], groups["used_gpu_hours"]
    if used and (others := next((name for name in _OTHERS if name in held), "")):
        named = {group: hours for group, hours in used.items() if group in held}
        rest = sum(hours for group, hours in used.items() if group not in held)
        groups = {**groups, "used_gpu_hours": {**named, others: named.get(others, 0.0) + rest}}
    hours_by_model = {
        group: UNSET if models is None else _by_model(hours, models.get(group, {}))
        for group, hours in held.items()
    }
    rows = [
        MeteredRow(
            group,
            hours,
            **{name: found.get(group) for name, found in groups.items() if name != "gpu_hours"},
            gpu_hours_by_model=by_model,
            cost=UNSET if by_model is UNSET else cost_of(by_model, prices),
        )
        for (group, hours), by_model in zip(held.items(), hours_by_model.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.gpu_hours, row.group))


def _by_model(hours: float, models: Mapping[str, float]) -> dict[str, float]:
    """Return a group's hours by model, which sum up to its hours. Hours that the server has of no
    model, as those from before it had the rules by model, are of an unknown model; if it has more
    hours by model than in all, each model's are scaled down."""
    by_model = sum(models.values())
    if by_model > hours:
        return {model: value * hours / by_model for model, value in models.items()}
    if hours - by_model <= _ROUNDED_HOURS:
        return dict(models)
    return {**models, NO_MODEL: models.get(NO_MODEL, 0.0) + hours - by_model}


def _beyond(
    held: Mapping[str, float], models: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return the sum by model of each group of which it is more than the group held."""
    sums = {group: sum(models.get(group, {}).values()) for group in held}
    return {group: total for group, total in sums.items() if total > held[group] + _ROUNDED_HOURS}


async def _models(source: Prometheus, by: str, span: TraceSpan) -> dict[str, dict[str, float]]:
    """Return the GPU-hours held by each group of `by`, by the GPUs' model."""
    name, _, key = by.partition(":")
    (answer,) = await _answers(source, [BY_MODEL[name]], by, span)
    found: dict[str, dict[str, float]] = {}
    for text, value in zip(answer.labels, answer.values.tolist(), strict=True):
        labels = msgspec.json.decode(text, type=dict[str, str])
        models = found.setdefault(labels.get("value" if key else name, ""), {})
        model = labels.get("model", NO_MODEL)
        models[model] = models.get(model, 0.0) + value
    return found


async def _groups(
    source: Prometheus, rules: Mapping[str, str], by: str, span: TraceSpan
) -> dict[str, dict[str, float]]:
    """Return each rule's hours, by the groups of `by`; a single total if `by` is ""."""
    name, _, key = by.partition(":")
    label = "value" if key else name
    answers = await _answers(source, list(rules.values()), by, span)
    return {rule: _by(answer, label) for rule, answer in zip(rules, answers, strict=True)}


async def _answers(
    source: Prometheus, rules: Sequence[str], by: str, span: TraceSpan
) -> list[QueryResult]:
    """Return each rule's hours during `span`, of the label's key if `by` is a label."""
    lasted_s = round(span.end_s - span.start_s)
    step_s = max(_LEAST_STEP_S, round(span.step_s), -(-lasted_s // _MOST_STEPS))
    steps = max(1, round(lasted_s / step_s))
    back_ms = 1_000 * steps * step_s - 500 * step_s  # older servers count also the range's begin
    key = by.partition(":")[2]
    matchers = [source.options.selector, f'label="{key}"' if key else ""]
    selector = f"{{{','.join(filter(None, matchers))}}}" if any(matchers) else ""
    queries = [
        f"sum_over_time({rule}{selector}[{back_ms}ms:{step_s}s]) * {step_s} / {_HOUR_S}"
        for rule in rules
    ]
    end_s = span.end_s // step_s * step_s  # where the server's own steps are
    return await asyncio.gather(*(source.query(query, end_s) for query in queries))


def _by(answer: QueryResult, label: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for text, value in zip(answer.labels, answer.values.tolist(), strict=True):
        labels = msgspec.json.decode(text, type=dict[str, str])
        group = labels.get(label, "") if label else ""
        found[group] = found.get(group, 0.0) + value
    return found

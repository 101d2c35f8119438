"""Profiles as tables for people, and as JSON for programs."""

from collections import Counter
from typing import TYPE_CHECKING

from weft.cli.output import ListOutput, print_table, table_with
from weft.cli.text_table import shown

if TYPE_CHECKING:
    from weft.interference.dataset import Dataset, SoloProfile

_COLUMNS = {
    "SM active": ("sm_active_ratio", 2),
    "DRAM": ("dram_active_ratio", 2),
    "tensor": ("tensor_active_ratio", 2),
    "GPU util": ("gpu_util_ratio", 2),
    "power W": ("power_w", 0),
}


def print_dataset(dataset: "Dataset", output: ListOutput) -> None:
    """Print one line per profile, then pairs that did not fit."""
    if output is ListOutput.json:
        _print_json(dataset)
        return
    numbers = ("from", "runs", "seconds", "it/s", *_COLUMNS, "MiB", "peak MiB", "co-runs")
    table = table_with("application|GPU model|sharing|" + "|>".join(numbers))
    co_runs = Counter((run.target, run.gpu_model, run.isolation) for run in dataset.corun)
    for solo in dataset.solo:
        beside = co_runs[solo.application, solo.gpu_model, solo.isolation]
        table.add_row(
            solo.application,
            solo.gpu_model or "–",
            solo.isolation,
            solo.source or "–",
            str(solo.runs),
            f"{solo.seconds:,.0f}",
            "–" if solo.rate_per_s is None else f"{solo.rate_per_s:,.4g}",
            *(_cell(solo, name, digits) for name, digits in _COLUMNS.values()),
            f"{solo.memory_mib:,}",
            f"{solo.peak_mib:,}",
            str(beside),
        )
    print_table(table)
    for infeasible in dataset.infeasible:
        print(
            shown(
                f"infeasible: {' + '.join(infeasible.applications)} ({infeasible.isolation}): "
                f"{infeasible.failed}: {infeasible.reason}: {infeasible.text[:100]}"
            )
        )


def print_application(dataset: "Dataset", application: str, output: ListOutput) -> None:
    """Print an application's features (mean and p95), then its speed next to other applications,
    and their speed next to it."""
    if output is ListOutput.json:
        _print_json(dataset)
        return
    for solo in (solo for solo in dataset.solo if solo.application == application):
        rate = "" if solo.rate_per_s is None else f", {solo.rate_per_s:,.4g} it/s"
        print(
            shown(
                f"{solo.application} on {solo.gpu_model or '(unknown GPU)'}, "
                f"{solo.isolation}: {solo.memory_mib:,} MiB, peak {solo.peak_mib:,}{rate}"
            )
        )
        table = table_with("feature|>mean|>p95")
        for name, feature in sorted(solo.features.items()):
            table.add_row(name, f"{feature.mean:,.4g}", f"{feature.p95:,.4g}")
        print_table(table)
    if dataset.corun:
        table = table_with("application|next to|GPU model|sharing|>speed|>slowdown|>runs")
        for run in dataset.corun:
            slowdown = f"{1 / run.speed:.2f}" if run.speed > 0 else "–"
            names = run.target, " + ".join(run.aggressors), run.gpu_model, run.isolation
            table.add_row(*names, f"{run.speed:.3f}", slowdown, str(run.runs))
        print_table(table)
    for infeasible in dataset.infeasible:
        print(
            shown(
                f"infeasible: {' + '.join(infeasible.applications)} on {infeasible.gpu_model} "
                f"({infeasible.isolation}): {infeasible.failed}: {infeasible.reason}: "
                f"{infeasible.text}"
            )
        )


def _cell(solo: "SoloProfile", name: str, digits: int) -> str:
    feature = solo.features.get(name)
    return "–" if feature is None else f"{feature.mean:,.{digits}f}"


def _print_json(dataset: "Dataset") -> None:
    from weft.interference.dataset import encode

    print(encode(dataset).decode(), end="")

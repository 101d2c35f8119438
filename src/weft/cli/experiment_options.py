"""Experiments that a command's options describe, instead of a file: nothing is kept on disk."""

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from weft.cli.progress import bar

if TYPE_CHECKING:
    from weft.lab.experiment.run.runner import CellResult, Runner
    from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell
    from weft.lab.experiment.spec.workloads import Workload


def spec_of_options(
    name: str, workload: "Workload", schedulers: Sequence[str], seeds: tuple[int, int]
) -> "ExperimentSpec":
    """The experiment; `seeds` are the first, and how many. The first scheduler is the baseline."""
    from weft.lab.experiment.spec.experiment import ExperimentSpec, Seeds

    return ExperimentSpec(
        api_version="weft.dev/v1",
        kind="Experiment",
        name=name,
        workload=workload,
        schedulers=tuple(schedulers),
        seeds=Seeds(*seeds),
        decisions=False,
    )


def known_policies(names: Sequence[str], but: Collection[str] = ()) -> tuple[str, ...]:
    """Each of these once; a wrong one fails here, before anything long is run.

    Those in `but` are no policies, and need not be known.
    """
    from weft.cli.policies import registry

    policies = registry()
    each_once = tuple(dict.fromkeys(names))
    for name in each_once:
        if name not in but:
            policies.from_spec(name)
    return each_once


def results_of(
    spec: "ExperimentSpec", runner: "Runner", jobs: int | None
) -> "dict[PlannedCell, CellResult]":
    """Run all cells, with progress for people who watch."""
    from weft.lab.experiment.run.execution import run_in_memory
    from weft.lab.experiment.spec.experiment import plan

    cells = plan(spec)
    return run_in_memory(runner, cells, jobs or os.cpu_count() or 1, bar(len(cells)))

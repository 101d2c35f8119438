"""Experiments on a cluster, for `weft experiment check` and `run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.progress import status_line

if TYPE_CHECKING:
    from weft.lab.experiment.runner import Runner
    from weft.lab.experiment.spec import ExperimentSpec


def runner(spec: "ExperimentSpec", data: Mapping[str, Path]) -> "Runner":
    """The runner that carries out its cells on its cluster."""
    from weft.lab.experiment.spec_cluster import ClusterJobs
    from weft.lab.trial.runner import ClusterRunner

    assert spec.cluster is not None
    assert isinstance(spec.workload, ClusterJobs)  # as `read_spec` has seen
    return ClusterRunner(spec.name, spec.workload, spec.cluster, data.get("models"), status_line())


def how_long(spec: "ExperimentSpec", folder: Path, turns: int) -> str:
    """Estimates the turns' length before they run."""
    from weft.lab.experiment.cluster_jobs import planned_jobs
    from weft.lab.experiment.spec import data_paths
    from weft.lab.experiment.spec_cluster import ClusterJobs

    assert isinstance(spec.workload, ClusterJobs)
    jobs = planned_jobs(spec.workload, data_paths(spec, folder).get("models"), spec.seeds.first)
    last_s = jobs[-1].arrival_s
    return (
        f"{turns} turns on the cluster, one after another; in each {len(jobs)} Jobs come within "
        f"{last_s:,.0f} s, and it lasts until the last one ends"
    )

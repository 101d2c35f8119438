"""One measuring session, from a plan to a dataset, for `weft profile measure` and `make gpu-check`.

plan ─▶ a machine ─▶ a campaign ─▶ runs.jsonl ─▶ dataset.json"""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from weft.interference.dataset import Dataset
from weft.lab.profiling import files
from weft.lab.profiling.campaign import Campaign, CampaignProgress, CampaignSettings
from weft.lab.profiling.dataset_builder import compile_dataset
from weft.lab.profiling.gpu_bench import Bench, BenchError
from weft.lab.profiling.machine import Machine, MachineOptions
from weft.lab.profiling.pytorch import check_pytorch
from weft.lab.profiling.runlog import MeasuringBegan, RunLogWriter, read
from weft.lab.stopping import interrupted_by_sigterm
from weft.lab.workloads.catalog import BY_NAME, WORKLOADS, Workload
from weft.model import BadInputError
from weft.model.nearest import unknown

RUNS, DATASET = "runs.jsonl", "dataset.json"


class MeasuringPlan(NamedTuple):
    """The measurements to take: workloads, isolations, settings, machine, and the log's folder."""

    folder: Path
    workloads: Sequence[Workload]
    isolations: Sequence[str]
    settings: CampaignSettings = CampaignSettings()
    how: MachineOptions = MachineOptions()


def measure(wishes: MeasuringPlan, tell: Callable[[str], None]) -> Dataset:
    """Measure what the folder's log lacks, and return the dataset of all its runs.

    `tell` is called with a line per run. `BadInputError` if measuring is impossible; runs until
    then are kept."""
    _check_folder(wishes.folder)
    try:
        with interrupted_by_sigterm(), Machine(wishes.how) as machine:
            check_pytorch(wishes.how)
            if machine.card.others:
                tell(f"{machine.card.others} other processes are on the GPU and distort results")
            run(machine, wishes, tell)
    except BenchError as error:
        raise BadInputError("profile measure", str(error)) from error
    finally:
        dataset = compile_folder(wishes.folder)
    return dataset


def _check_folder(folder: Path) -> None:
    """Check the folder early, since looking for PyTorch takes seconds."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise BadInputError(str(folder / RUNS), f"cannot be written: {there} is not a folder")


def workloads_named(names: Sequence[str]) -> list[Workload]:
    """Return the named workloads, or all if none is named."""
    wrong = [name for name in names if name not in BY_NAME]
    if wrong:
        raise BadInputError("--workload", unknown(wrong[0], BY_NAME))
    return [BY_NAME[name] for name in dict.fromkeys(names)] or list(WORKLOADS)


def run(bench: Bench, wishes: MeasuringPlan, tell: Callable[[str], None]) -> bool:
    """Measure what the folder's log lacks; returns whether all was done.

    `BadInputError` if the log is of another GPU model or other sizes."""
    folder, settings = wishes.folder, wishes.settings
    sizes = "tiny" if wishes.how.tiny else "full"
    log = read(folder / RUNS)
    for begin in log.begins:
        if begin.card.gpu_model != bench.card.gpu_model or begin.card.fake != bench.card.fake:
            models = f"a {begin.card.gpu_model}, this is a {bench.card.gpu_model}"
            raise BadInputError(str(folder), f"has runs of {models}; name another folder")
        if begin.settings.get("sizes") != sizes:
            raise BadInputError(str(folder), "has runs of other sizes; name another folder")
    how = {"sizes": sizes, "window_s": f"{settings.window_s:g}", "warm_s": f"{settings.warm_s:g}"}
    writer = RunLogWriter(folder / RUNS)
    try:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        writer.write(MeasuringBegan(bench.card, at, settings=how))
        campaign = Campaign(
            bench, wishes.workloads, writer, settings, lambda t: tell(progress_line(t))
        )
        return campaign.run(wishes.isolations, log)
    finally:
        writer.close()


def compile_folder(folder: Path) -> Dataset:
    """Build the dataset of all runs in the folder, and write it there."""
    dataset = compile_dataset(read(folder / RUNS))
    if (folder / RUNS).exists():
        files.write(folder / DATASET, dataset)
    return dataset


def progress_line(progress: CampaignProgress) -> str:
    """Return a run's result as one line."""
    names = " + ".join(progress.run.applications)
    if progress.run.failure is not None:
        outcome = f"failed: {progress.run.failure.application}: {progress.run.failure.reason}"
    else:
        outcome = ", ".join(f"{rate:.4g} it/s" for rate in progress.run.rates)
    left = f"{progress.runs_left} runs, about {progress.seconds_left:.0f} s left"
    return f"{progress.run.isolation}, {names}: {outcome} ({left})"

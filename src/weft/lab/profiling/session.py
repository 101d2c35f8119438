"""One measuring session, from a plan to a dataset, for `weft profile measure` and `make gpu-check`.

plan ─▶ a machine ─▶ a campaign ─▶ runs.jsonl ─▶ dataset.json"""

import datetime
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from weft.interference import dataset
from weft.interference.dataset import CoLocationSample, Dataset, Feature, Infeasible, SoloProfile
from weft.interference.records import FASTEST
from weft.lab.profiling import files
from weft.lab.profiling.campaign import Campaign, CampaignProgress, CampaignSettings
from weft.lab.profiling.gpu_bench import Bench, BenchError
from weft.lab.profiling.machine import Machine, MachineOptions
from weft.lab.profiling.runlog import LoggedRun, MeasuringBegan, RunLog, RunLogWriter, read
from weft.lab.stopping import interrupted_by_sigterm
from weft.lab.workloads.catalog import BY_NAME, WORKLOADS, Workload
from weft.model import BadInputError
from weft.model.nearest import unknown

# --- Checks before measuring that a Python has a PyTorch that can run workloads -------------------

_IMPORTS = "import torch"
_SEES_GPU = (
    "import sys, torch; sys.exit(None if torch.cuda.is_available() else 'torch sees no CUDA GPU')"
)
_COLD_S = 300.0
"""Timeout in seconds; importing PyTorch from a cold disk takes a minute."""
_NO_MODULE = "No module named 'torch'"


def check_pytorch(how: MachineOptions) -> None:
    """Raise `BenchError` if the chosen Python cannot run PyTorch workloads on the device.

    Checked first, so that no workload is recorded as infeasible for lack of PyTorch."""
    asked = _SEES_GPU if how.device == "cuda" else _IMPORTS
    try:
        ended = subprocess.run(
            [how.python, "-c", asked], capture_output=True, text=True, timeout=_COLD_S, check=False
        )
    except OSError as error:
        raise BenchError(f"{how.python} does not start: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{how.python}: importing torch takes over {_COLD_S:.0f} s") from error
    if ended.returncode == 0:
        return
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    ways = "mend its PyTorch or this machine's driver, or name another Python with --python"
    if _NO_MODULE in ended.stderr:
        lines = ["has no PyTorch"]
        ways = f"{how.python} -m pip install torch, or name a Python that has it with --python"
    raise BenchError(f"{how.python}: {lines[-1][:200]}; {ways}")


# --- Turns a log of runs into a dataset with the medians of repetitions. Pure functions -----------

UNSTEADY = "unsteady"
Together = tuple[tuple[str, ...], str]


def compile_dataset(log: RunLog) -> Dataset:
    """Return a dataset with each application and pair: measured, or infeasible with the reason.

    A pair's speed is relative to the median rate of the application alone with the same isolation;
    without a rate alone the pair is left out. A pair's failures count only if none of its runs
    succeeded. If an application ran implausibly faster with a neighbour than alone, the pair counts
    as infeasible too."""
    good: dict[Together, list[LoggedRun]] = defaultdict(list)
    bad: dict[Together, LoggedRun] = {}
    for run in log.runs:
        key = (run.applications, run.isolation)
        if run.failure is None:
            good[key].append(run)
        else:
            bad.setdefault(key, run)
    card = log.begins[-1].card if log.begins else None
    model = card.gpu_model if card else ""
    alone = {key: _solo(runs, model) for key, runs in good.items() if len(key[0]) == 1}
    rates = {key: solo.rate_per_s for key, solo in alone.items() if solo.rate_per_s}
    coruns: list[CoLocationSample] = []
    failed = [_infeasible(run, model) for key, run in bad.items() if key not in good]
    for (names, isolation), runs in good.items():
        samples = _coruns(runs, rates, model, isolation) if len(names) > 1 else []
        wrong = next((sample for sample in samples if sample.speed > FASTEST), None)
        if wrong is None:
            coruns += samples
        else:
            text = f"{wrong.speed:.1f} times as fast as alone: measure it again, longer"
            failed.append(Infeasible(names, model, isolation, wrong.target, UNSTEADY, text))
    solos, together = tuple(alone.values()), tuple(coruns)
    whole = Dataset(about=_about(log), solo=solos, corun=together, infeasible=tuple(failed))
    return dataset.EMPTY.merged(whole)


def _about(log: RunLog) -> dict[str, str]:
    if not log.begins:
        return {}
    last = log.begins[-1]
    about = {
        "gpuModel": last.card.gpu_model,
        "driver": last.card.driver,
        "counters": last.card.counters,
        "torch": next((run.versions for run in log.runs if run.versions), ""),
        "began": log.begins[0].at,
        **last.settings,
    }
    if any(begin.card.others for begin in log.begins):
        about["others"] = "other processes were on the GPU when measuring began"
    if last.card.fake:
        about["fake"] = "these numbers come from a fake GPU; nothing was measured"
    return {name: text for name, text in about.items() if text}


def _solo(runs: Sequence[LoggedRun], model: str) -> SoloProfile:
    names = sorted({name for run in runs for name in run.features})
    features = {}
    for name in names:
        values = [run.features[name] for run in runs if name in run.features]
        features[name] = Feature(median(f.mean for f in values), median(f.p95 for f in values))
    return SoloProfile(
        runs[0].applications[0],
        model,
        runs[0].isolation,
        features,
        round(median(run.memories_mib[0] for run in runs)),
        max(run.peaks_mib[0] for run in runs),
        median(run.rates[0] for run in runs),
        len(runs),
        round(sum(run.window_s for run in runs), 3),
        "measured",
    )


def _coruns(
    runs: Sequence[LoggedRun], alone: Mapping[Together, float], model: str, isolation: str
) -> list[CoLocationSample]:
    """Return one sample per application of the pair as target; two copies of one application give
    one sample with the mean of their rates."""
    names = runs[0].applications
    samples = []
    for name in sorted(set(names)):
        solo = alone.get(((name,), isolation))
        if not solo:
            continue
        own = [at for at, other in enumerate(names) if other == name]
        others = tuple(sorted([*names[: own[0]], *names[own[0] + 1 :]]))
        beside = median(sum(run.rates[at] for at in own) / len(own) for run in runs)
        speed = beside / solo
        sample = CoLocationSample(name, others, model, isolation, beside, speed, len(runs))
        samples.append(sample)
    return samples


def _infeasible(run: LoggedRun, model: str) -> Infeasible:
    assert run.failure is not None
    return Infeasible(
        run.applications,
        model,
        run.isolation,
        run.failure.application,
        run.failure.reason,
        run.failure.text,
    )


RUNS, DATASET = "runs.jsonl", "dataset.json"


class MeasuringPlan(NamedTuple):
    """The measurements to take: workloads, isolations, settings, machine, and the log's folder."""

    folder: Path
    workloads: Sequence[Workload]
    isolations: Sequence[str]
    settings: CampaignSettings = CampaignSettings()
    how: MachineOptions = MachineOptions()


def measure(wishes: MeasuringPlan, tell: Callable[[str], None]) -> Dataset:
    """Measure the runs that the folder's log lacks, and return the dataset of all its runs.

    `tell` is called with a line per run. `BadInputError` if measuring is impossible; runs made
    before the error are kept."""
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
    """Fail early if the folder cannot be created, since looking for PyTorch takes seconds."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise BadInputError(str(folder / RUNS), f"cannot be written: {there} is not a folder")


def workloads_named(names: Sequence[str]) -> list[Workload]:
    """Return the named workloads, or all if `names` is empty."""
    wrong = [name for name in names if name not in BY_NAME]
    if wrong:
        raise BadInputError("--workload", unknown(wrong[0], BY_NAME))
    return [BY_NAME[name] for name in dict.fromkeys(names)] or list(WORKLOADS)


def run(bench: Bench, wishes: MeasuringPlan, tell: Callable[[str], None]) -> bool:
    """Measure the runs that the folder's log lacks; return True if all are done.

    `BadInputError` if the log is of another GPU model or of other workload sizes."""
    folder, settings = wishes.folder, wishes.settings
    sizes = "tiny" if wishes.how.tiny else "full"
    log = read(folder / RUNS)
    for begin in log.begins:
        if begin.card.gpu_model != bench.card.gpu_model or begin.card.fake != bench.card.fake:
            models = f"a {begin.card.gpu_model}, this is a {bench.card.gpu_model}"
            raise BadInputError(str(folder), f"has runs of {models}; name another folder")
        if begin.settings.get("sizes") != sizes:
            raise BadInputError(
                str(folder), "has runs of other sizes (tiny or full); name another folder"
            )
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

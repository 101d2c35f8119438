"""Turns a log of runs into a dataset with the medians of repetitions. Pure functions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from weft.interference import dataset
from weft.interference.dataset import CoLocationSample, Dataset, Feature, Infeasible, SoloProfile
from weft.interference.records import FASTEST
from weft.lab.profiling.runlog import LoggedRun, RunLog

UNSTEADY = "unsteady"
Together = tuple[tuple[str, ...], str]


def compile_dataset(log: RunLog) -> Dataset:
    """Return each application and pair with a successful run; the others with the reason of
    failure.

    A pair's speed is relative to the solo median with the same isolation; without that solo the
    pair is left out. A pair's failures count only if none of its runs succeeded. If an application
    ran implausibly faster with a neighbour than alone, the pair counts as failed too."""
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
    """Return one sample per application as target; two copies of one application give one sample,
    with the mean of their rates."""
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

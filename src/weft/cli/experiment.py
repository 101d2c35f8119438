"""`weft experiment overprovision`: policies on jobs that ask for more than they use.

The other experiment, `interference`, has its own module.
"""

import math
import os
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.experiment_interference import interference
from weft.cli.output import json_text
from weft.cli.progress import bar
from weft.cli.simulate import SimulateOutput
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.lab.experiment.overprovision import OverprovisionStudy, StudyResults
    from weft.lab.simulate.sharing.ece_like import JobMix
    from weft.lab.simulate.sharing.exporter import ExporterFaults
    from weft.lab.simulate.sharing.pipeline import ScrapeOptions

experiment_app = typer.Typer(help="Experiments that make their own workload.", no_args_is_help=True)
MIXES = ("ssd", "mixed", "peaky")

_Policies = Annotated[
    list[str], typer.Option(help="A policy: name, or name:option=value,…; repeat for several.")
]
_Percents = Annotated[
    list[int],
    typer.Option(min=0, max=1000, help="A level of over-provisioning; repeat for several."),
]
_Baseline = Annotated[
    str, typer.Option(help="The policy that others are compared with; always run.")
]
_Mix = Annotated[
    str,
    typer.Option(
        help="ssd: one program, calibrated; mixed: three programs; peaky: a short memory peak "
        "late in each job."
    ),
]
_Seconds = Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the cards.")]
_Delay = Annotated[float, typer.Option(min=0.0, help="Seconds by which every sample is late.")]
_Seeds = Annotated[int, typer.Option(min=1, help="How many workloads.")]
_FirstSeed = Annotated[int, typer.Option(help="The first seed; the others follow.")]
_Gpus = Annotated[int, typer.Option(min=1, help="Cards; each gets thirty jobs.")]
_Dropped = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of samples that never arrive.")
]
_Missing = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of cards of which nothing ever does.")
]
_Noise = Annotated[float, typer.Option(min=0.0, help="Relative standard deviation of every value.")]
_Spoof = Annotated[str, typer.Option(help="METRIC=zero or METRIC=most: what it always reads.")]
_Jobs = Annotated[
    int | None,
    typer.Option(min=1, show_default=False, help="Processes.  [default: one per processor]"),
]
_Limit = Annotated[
    float,
    typer.Option(min=1.0, help="Declared limit: harvesting promises at most so many times a card."),
]


def overprovision(
    policy: _Policies,
    percent: _Percents = [0, 50, 100, 150, 200, 250],  # noqa: B006 - typer's way of a list default
    baseline: _Baseline = "gpushare",
    seeds: _Seeds = 10,
    first_seed: _FirstSeed = 0,
    gpus: _Gpus = 1,
    mix: _Mix = "ssd",
    harvest_limit: _Limit = 4.0,
    scrape_s: _Seconds = 5.0,
    delay_s: _Delay = 0.0,
    dropped: _Dropped = 0.0,
    missing: _Missing = 0.0,
    noise: _Noise = 0.0,
    spoof: _Spoof = "",
    jobs: _Jobs = None,
    output: Annotated[SimulateOutput, typer.Option(help="What to print.")] = SimulateOutput.table,
) -> None:
    """Run thirty inference jobs a card, over-provisioned by each level, and compare policies.

    Jobs, cards and slowdown are shaped after published measurements of a shared V100. Policies see
    the cards through a metric pipeline that can be late, lossy, noisy or lying.
    """
    from weft.cli.policies import registry
    from weft.lab.experiment.overprovision import OverprovisionStudy, run_study

    _finite(
        ("--harvest-limit", harvest_limit),
        ("--scrape-s", scrape_s),
        ("--delay-s", delay_s),
        ("--noise", noise),
    )
    known = registry()
    names = tuple(dict.fromkeys([baseline, *policy]))
    for name in names:
        known.from_spec(name)  # a wrong name fails before anything long is run
    study = OverprovisionStudy(
        names,
        tuple(dict.fromkeys(percent)),
        tuple(range(first_seed, first_seed + seeds)),
        known.from_spec,
        baseline,
        gpus,
        _known_mix(mix),
        _watching(scrape_s),
        _faults(delay_s, dropped, missing, noise, spoof),
        round(harvest_limit * 1000),
    )
    _print(run_study(study, _workers(study, jobs), bar(len(study.cells()))), output)


experiment_app.command("overprovision")(overprovision)
experiment_app.command("interference")(interference)


@experiment_app.callback()
def experiment() -> None:
    """Options that come before the experiment's name."""


def _faults(
    delay_s: float, dropped: float, missing: float, noise: float, spoof: str
) -> "ExporterFaults":
    from weft.lab.simulate.sharing.exporter import METRICS, ExporterFaults
    from weft.lab.simulate.sharing.job import SECOND_NS

    metric, _, reads = spoof.partition("=")
    if spoof and (metric not in METRICS or reads not in {"zero", "most"}):
        raise BadInputError(
            f"--spoof {spoof}",
            f"is not METRIC=zero or METRIC=most with one of {', '.join(METRICS)}",
        )
    return ExporterFaults(
        round(delay_s * SECOND_NS), dropped, missing, noise, metric, reads or "zero"
    )


def _finite(*options: tuple[str, float]) -> None:
    for option, value in options:
        if not math.isfinite(value):
            raise BadInputError(option, f"{value} is no amount; write a finite number")


def _known_mix(mix: str) -> "JobMix":
    from weft.lab.simulate.sharing.ece_like import JobMix

    if mix not in MIXES:
        raise BadInputError("--mix", f"{mix!r} is unknown; write one of {', '.join(MIXES)}")
    return JobMix(mix)


def _watching(scrape_s: float) -> "ScrapeOptions":
    from weft.lab.simulate.sharing.job import SECOND_NS
    from weft.lab.simulate.sharing.pipeline import ScrapeOptions

    return ScrapeOptions(scrape_ns=round(scrape_s * SECOND_NS))


def _workers(study: "OverprovisionStudy", jobs: int | None) -> int:
    return min(jobs or os.cpu_count() or 1, len(study.cells()))


def _print(results: "StudyResults", output: SimulateOutput) -> None:
    if output is SimulateOutput.json:
        print(json_text(results))
        return
    from weft.cli.experiment_tables import print_csv, print_levels

    if output is SimulateOutput.csv:
        print_csv(results)
    else:
        print_levels(results)

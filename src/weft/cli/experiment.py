"""`weft experiment`: its commands, and `overprovision`, jobs that ask for more than they use.

The others have modules of their own: `interference`, and experiments that a file describes.
"""

import math
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option, Typer

from weft.cli import experiment_file, options
from weft.cli.experiment_compare import compare
from weft.cli.experiment_interference import interference
from weft.cli.experiment_options import known_policies, results_of, spec_of_options
from weft.cli.experiment_reproduce import reproduce
from weft.cli.output import SimulateOutput, json_text
from weft.model.errors import BadInputError
from weft.model.nearest import unknown

if TYPE_CHECKING:
    from weft.lab.experiment.spec.workloads import MetricFaults, MixName
    from weft.lab.experiment.statistics.levels import OverprovisionResults

experiment_app = Typer(
    help="Experiments: of a file, or that make their own workload.", no_args_is_help=True
)
MIXES = ("ssd", "rigid", "mixed", "peaky", "late", "grown")

_Policies = Annotated[
    list[str], Option(help="A policy: name, or name:option=value,…; repeat for several.")
]
_Percents = Annotated[
    list[int], Option(min=0, max=1000, help="A level of over-provisioning; repeat for several.")
]
_Baseline = Annotated[str, Option(help="The policy that others are compared with; always run.")]
_Mix = Annotated[
    str,
    Option(
        help="ssd: one program, calibrated; rigid: it dies without all of its memory; mixed: three "
        "programs; peaky: a short memory peak late in each job; late: a plateau that grows at nine "
        "tenths; grown: later runs use more."
    ),
]
_Seconds = Annotated[float, Option(min=0.1, help="Seconds between two looks at the cards.")]
_Dropped = Annotated[float, Option(min=0.0, max=1.0, help="Share of samples that never arrive.")]
_Missing = Annotated[
    float, Option(min=0.0, max=1.0, help="Share of cards of which nothing ever does.")
]
_Noise = Annotated[float, Option(min=0.0, help="Relative standard deviation of every value.")]
_Frozen = Annotated[
    float | None,
    Option(min=0.0, help="Seconds after which exporters repeat their last page for ever."),
]
_Limit = Annotated[
    float,
    Option(
        min=1.0,
        help="Declared limit: harvesting promises at most so many times a card. Up to 2 only pods "
        "whose peak is known lend; beyond, peaks that come late run pods out of memory. Both "
        "rest on runs using no more than those before.",
    ),
]


def overprovision(
    policy: _Policies,
    percent: _Percents = [0, 50, 100, 150, 200, 250],  # noqa: B006 - typer's way of a list default
    baseline: _Baseline = "gpushare",
    seeds: options.Workloads = 20,
    first_seed: options.FirstSeed = 0,
    gpus: Annotated[int, Option(min=1, max=10_000, help="Cards; each gets thirty jobs.")] = 1,
    mix: _Mix = "ssd",
    harvest_limit: _Limit = 4.0,
    scrape_s: _Seconds = 5.0,
    delay_s: Annotated[float, Option(min=0.0, help="Seconds by which every sample is late.")] = 0.0,
    dropped: _Dropped = 0.0,
    missing: _Missing = 0.0,
    noise: _Noise = 0.0,
    spoof: Annotated[str, Option(help="METRIC=zero or METRIC=most: what it always reads.")] = "",
    frozen_s: _Frozen = None,
    frozen_busy: Annotated[
        bool, Option("--frozen-busy", help="With --frozen-s: that page shows cards at work.")
    ] = False,
    jobs: options.Jobs = None,
    output: options.ResultsOutput = SimulateOutput.table,
) -> None:
    """Run thirty inference jobs a card, over-provisioned by each level, and compare policies.

    Jobs, cards and slowdown are shaped after published measurements of a shared V100. Policies see
    the cards through a metric pipeline that can be late, lossy, noisy or lying.
    """
    from weft.cli.policies import registry
    from weft.lab.experiment.run.shared_gpus import BEST
    from weft.lab.experiment.run.simulated import runner_of
    from weft.lab.experiment.spec.workloads import MetricFaults, OverprovisionedJobs
    from weft.lab.experiment.statistics.levels import overprovision_results

    _finite(harvest_limit=harvest_limit, scrape_s=scrape_s, delay_s=delay_s, noise=noise)
    names = *known_policies([baseline, *policy]), BEST
    faults = MetricFaults("asked", delay_s, dropped, missing, noise, spoof, frozen_s, frozen_busy)
    workload = OverprovisionedJobs(
        percents=tuple(dict.fromkeys(percent)),
        mix=_known_mix(mix),
        cards=gpus,
        faults=(_checked(faults),),
        harvest_limit=harvest_limit,
        scrape_seconds=scrape_s,
    )
    spec = spec_of_options("overprovision", workload, names, (first_seed, seeds))
    cells = results_of(spec, runner_of(spec, {}, registry().from_spec), jobs)
    _print(overprovision_results(spec, cells), output)


experiment_app.command("init")(experiment_file.init)
experiment_app.command("check")(experiment_file.check)
experiment_app.command("run")(experiment_file.run)
experiment_app.command("report")(experiment_file.report)
experiment_app.command("compare")(compare)
experiment_app.command("reproduce")(reproduce)
experiment_app.command("overprovision")(overprovision)
experiment_app.command("interference")(interference)


@experiment_app.callback()
def experiment() -> None:
    """Options that come before the experiment's name."""


def _checked(faults: "MetricFaults") -> "MetricFaults":
    """The same; `BadInputError` names the option that is wrong."""
    from weft.lab.simulate.sharing.exporter import read_spoof

    try:
        read_spoof(faults.spoof)
    except BadInputError as error:
        raise BadInputError(f"--spoof {faults.spoof}", error.problem) from None
    if faults.frozen_seconds is not None:
        _finite(frozen_s=faults.frozen_seconds)
    elif faults.frozen_busy:
        raise BadInputError("--frozen-busy", "says what a frozen page shows; add --frozen-s")
    return faults


def _finite(**amounts: float) -> None:
    for name, value in amounts.items():
        if not math.isfinite(value):
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(option, f"{value} is no amount; write a finite number")


def _known_mix(mix: str) -> "MixName":
    if mix not in MIXES:
        raise BadInputError("--mix", unknown(mix, MIXES))
    return cast("MixName", mix)


def _print(results: "OverprovisionResults", output: SimulateOutput) -> None:
    if output is SimulateOutput.json:
        print(json_text(results))
        return
    from weft.cli.experiment_tables import print_csv, print_levels

    if output is SimulateOutput.csv:
        print_csv(results)
    else:
        print_levels(results)

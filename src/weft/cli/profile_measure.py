"""`weft profile measure`: measures workloads alone and in pairs, on a GPU used exclusively."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from weft.cli.options import Output
from weft.cli.output import ListOutput
from weft.cli.profile_tables import print_dataset


class Isolation(StrEnum):
    """The isolation of workloads that share the GPU."""

    time_slicing = "time-slicing"
    mps = "mps"


class Device(StrEnum):
    """The device on which the workloads run."""

    cuda = "cuda"
    cpu = "cpu"


_Folder = Annotated[
    Path,
    Argument(help="The folder for runs.jsonl and dataset.json; a second run continues there."),
]
_Workloads = Annotated[list[str], Option(help="A workload; repeat for several.  [default: all]")]
_Isolations = Annotated[list[Isolation], Option(help="The isolation; repeat for both.")]
_Budget = Annotated[
    float, Option("--budget-s", min=0.0, help="Seconds for the whole measurement; 0: no limit.")
]
_Window = Annotated[
    float, Option("--window-s", min=0.1, max=600, help="Seconds of each measuring window.")
]
_Warm = Annotated[
    float, Option("--warm-s", min=0.0, max=600, help="Seconds of warm-up before each window.")
]
_Python = Annotated[
    str, Option(help="A Python that has PyTorch.  [default: the one that runs Weft]")
]
_Device = Annotated[Device, Option(help="cpu is for a trial; it measures no GPU.")]


def measure(
    folder: _Folder,
    workload: _Workloads = [],  # noqa: B006 - typer's way of a list default
    isolation: _Isolations = [Isolation.time_slicing],  # noqa: B006
    runs: Annotated[
        int,
        Option(
            min=1,
            max=1_000,
            help="Runs of each workload alone and of each pair; the median counts.",
        ),
    ] = 3,
    budget_s: _Budget = 0.0,
    window_s: _Window = 3.0,
    warm_s: _Warm = 1.5,
    gpu: Annotated[str, Option(help="Which GPU, by index or UUID.")] = "0",
    python: _Python = "",
    device: _Device = Device.cuda,
    tiny: Annotated[bool, Option("--tiny", help="Tiny sizes, for trying out.")] = False,
    output: Output = ListOutput.table,
) -> None:
    """Measure workloads alone and in pairs on a GPU: rates, features, and pairs that do not fit.

    Nothing else may run on the GPU meanwhile. Each measurement is stored at once.
    """
    from weft.lab.profiling.campaign import CampaignSettings
    from weft.lab.profiling.machine import MachineOptions
    from weft.lab.profiling.session import MeasuringPlan, workloads_named
    from weft.lab.profiling.session import measure as measured

    workloads = workloads_named(workload)
    settings = CampaignSettings(runs=runs, window_s=window_s, warm_s=warm_s, budget_s=budget_s)
    how = MachineOptions(device.value, gpu, python or sys.executable, warm_s, tiny)
    isolations = list(dict.fromkeys(way.value for way in isolation))
    wishes = MeasuringPlan(folder, workloads, isolations, settings, how)
    print_dataset(measured(wishes, _say), output)


def _say(line: str) -> None:
    print(f"weft: {line}", file=sys.stderr, flush=True)

"""`weft profile measure`: workloads alone and in pairs, on a GPU that is ours meanwhile."""

import datetime
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.output import ListOutput
from weft.cli.profile_tables import print_dataset
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.profiling.bench import Bench
    from weft.profiling.campaign import Settings, Told
    from weft.signals.interference.dataset import Dataset
    from weft.workloads.catalog import Workload

RUNS, DATASET = "runs.jsonl", "dataset.json"


class Isolation(StrEnum):
    """How residents share the GPU."""

    time_slicing = "time-slicing"
    mps = "mps"


class Device(StrEnum):
    """What the workloads run on."""

    cuda = "cuda"
    cpu = "cpu"


_Folder = Annotated[
    Path, typer.Argument(help=f"Where {RUNS} and {DATASET} go; a second start goes on there.")
]
_Workloads = Annotated[
    list[str], typer.Option(help="A workload; repeat for several.  [default: all]")
]
_Isolations = Annotated[list[Isolation], typer.Option(help="How to share; repeat for both.")]
_Runs = Annotated[int, typer.Option(min=1, help="Of each solo and pair; their median counts.")]
_Budget = Annotated[
    float, typer.Option("--budget-s", min=0.0, help="Seconds for all of it; 0 is without end.")
]
_Window = Annotated[
    float, typer.Option("--window-s", min=0.1, help="Seconds of a measuring window.")
]
_Warm = Annotated[float, typer.Option("--warm-s", min=0.0, help="Seconds of warm-up before one.")]
_Gpu = Annotated[str, typer.Option(help="Which GPU, by index or UUID.")]
_Python = Annotated[
    str, typer.Option(help="A Python that has PyTorch.  [default: the one that runs Weft]")
]
_Device = Annotated[Device, typer.Option(help="cpu tries everything out; it measures no GPU.")]
_Tiny = Annotated[bool, typer.Option("--tiny", help="Tiny sizes, to try everything out.")]
_Output = Annotated[ListOutput, typer.Option(help="What to print at the end.")]


def measure(
    folder: _Folder,
    workload: _Workloads = [],  # noqa: B006 - typer's way of a list default
    isolation: _Isolations = [Isolation.time_slicing],  # noqa: B006
    runs: _Runs = 3,
    budget_s: _Budget = 0.0,
    window_s: _Window = 3.0,
    warm_s: _Warm = 1.5,
    gpu: _Gpu = "0",
    python: _Python = "",
    device: _Device = Device.cuda,
    tiny: _Tiny = False,
    output: _Output = ListOutput.table,
) -> None:
    """Measure workloads alone and in pairs on a GPU: rates, features, and who does not fit.

    Nothing else may run on the GPU meanwhile. What was measured is kept at once.
    """
    from weft.profiling.bench import BenchError
    from weft.profiling.campaign import Settings
    from weft.profiling.machine import How, Machine

    workloads = named(workload)
    settings = Settings(runs=runs, window_s=window_s, warm_s=warm_s, budget_s=budget_s)
    how = How(device.value, gpu, python or sys.executable, warm_s, tiny)
    try:
        with interrupted_by_sigterm(), Machine(how) as machine:
            told = {"sizes": "tiny" if tiny else "full"}
            run(machine, workloads, [one.value for one in isolation], settings, folder, told)
    except BenchError as error:
        raise BadInputError("profile measure", str(error)) from error
    finally:
        found = compile_folder(folder)
    print_dataset(found, output)


def named(names: "Sequence[str]") -> "list[Workload]":
    """These workloads; all, where none is named."""
    from weft.workloads.catalog import BY_NAME, WORKLOADS

    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise BadInputError("--workload", f"{unknown[0]!r} is none of {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names] or list(WORKLOADS)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: workloads and MPS are stopped, what was measured is kept."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(
    bench: "Bench",
    workloads: "Sequence[Workload]",
    isolations: "Sequence[str]",
    settings: "Settings",
    folder: Path,
    told: dict[str, str],
) -> bool:
    """Measure what the folder's log lacks; whether all was done. `BadInputError`: another GPU's."""
    from weft.profiling.campaign import Campaign
    from weft.profiling.runlog import Begin, Writer, read

    log = read(folder / RUNS)
    kept = {**told, "window_s": f"{settings.window_s:g}", "warm_s": f"{settings.warm_s:g}"}
    for begin in log.begins:
        if begin.card.gpu_model != bench.card.gpu_model or begin.card.fake != bench.card.fake:
            raise BadInputError(
                str(folder), f"has runs of a {begin.card.gpu_model}, this is a "
                f"{bench.card.gpu_model}; name another folder",
            )  # fmt: skip
        if begin.settings.get("sizes") != told.get("sizes"):
            raise BadInputError(str(folder), "has runs of other sizes; name another folder")
    writer = Writer(folder / RUNS)
    try:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        writer.write(Begin(bench.card, at, settings=kept))
        return Campaign(bench, workloads, writer, settings, _say).run(isolations, log)
    finally:
        writer.close()


def compile_folder(folder: Path) -> "Dataset":
    """Make the dataset of the runs that there are, and write it beside them."""
    from weft.profiling import files
    from weft.profiling.compiled import compiled
    from weft.profiling.runlog import read

    found = compiled(read(folder / RUNS))
    if (folder / RUNS).exists():
        files.write(folder / DATASET, found)
    return found


def _say(told: "Told") -> None:
    """A line a run, on stderr."""
    names = " + ".join(told.run.applications)
    if told.run.failure is not None:
        what = f"failed: {told.run.failure.application}: {told.run.failure.reason}"
    else:
        what = ", ".join(f"{rate:.4g} it/s" for rate in told.run.rates)
    left = f"{told.runs_left} runs, about {told.seconds_left:.0f} s left"
    print(f"weft: {told.run.isolation}, {names}: {what} ({left})",
          file=sys.stderr, flush=True)  # fmt: skip

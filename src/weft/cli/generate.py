"""`weft generate nodes|pods`: synthetic clusters and workloads for `weft simulate`."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from weft.cli.output import print_remark
from weft.files.writing import unwritten, write_whole
from weft.lab.simulate.generate import WorkloadMix
from weft.model.errors import BadInputError

_File = Annotated[str, Argument(metavar="FILE", help="The file to write; - is standard output.")]
_Output = Annotated[str, Option("--output", "-o", help="The format to write: only csv.")]
_FORMATS = ("csv", "json", "table")
Seed = Annotated[int, Option(help="The same seed gives the same file.")]

generate_app = Typer(help="Make a synthetic cluster or workload.", no_args_is_help=True)


@generate_app.command("nodes")
def nodes(
    file: _File = "-",
    gpus: Annotated[
        int | None, Option(help="The total number of GPUs.  [default: 6212]", show_default=False)
    ] = None,
    count: Annotated[int | None, Option(help="The number of nodes, instead of --gpus.")] = None,
    seed: Seed = 42,
    output: _Output = "csv",
) -> None:
    """Generate a cluster: a node list in openb CSV.

    Models, GPUs per node, CPU and memory come in the proportions of a published production cluster
    (Alibaba's cluster-trace-gpu-v2023), scaled to the requested size.
    """
    from weft.lab.simulate.generate import generate_nodes

    place = _place(file, output, "nodes")
    _write(place, generate_nodes(gpus=gpus, count=count, seed=seed))


@generate_app.command("pods")
def pods(
    file: _File = "-",
    gpus: Annotated[int, Option(help="GPUs of the cluster for these pods.")] = 6212,
    count: Annotated[
        int | None,
        Option(
            help="The number of pods.  [default: as many as request all --gpus]", show_default=False
        ),
    ] = None,
    mix: Annotated[
        WorkloadMix,
        Option(
            help="default: the trace's shares of a GPU, whole GPUs and CPU-only pods; multigpu: "
            "with many pods of 2, 4 and 8 GPUs; shared: shares of a GPU only; spec: a third of "
            "the GPU pods require GPU models."
        ),
    ] = WorkloadMix.DEFAULT,
    load: Annotated[
        float,
        Option(
            help="Arrival rate × GPUs × lifetime over --gpus: the part of the cluster that pods "
            "would keep busy with `weft simulate --timed`."
        ),
    ] = 0.8,
    seed: Seed = 42,
    output: _Output = "csv",
) -> None:
    """Generate a workload: a pod list in openb CSV, with arrival, start and end times.

    Sizes, quality of service and the heavy-tailed lifetimes follow the statistics of a published
    production trace (Alibaba's cluster-trace-gpu-v2023).
    """
    from weft.lab.simulate.generate import generate_pods

    place = _place(file, output, "pods")
    _write(place, generate_pods(gpus=gpus, count=count, mix=mix, load=load, seed=seed))


def _place(file: str, output: str, kind: str) -> str:
    """Return the file to write; a file given to --output, as in earlier versions, is still
    accepted."""
    if output == "csv":
        return file
    if file != "-" or output in _FORMATS or not ("." in output or "/" in output or output == "-"):
        problem = "is not a supported format; use csv, or name the file without an option: "
        raise BadInputError(f"--output {output}", problem + f"weft generate {kind} {kind}.csv")
    instead = f"weft generate {kind} {output}"
    print_remark(f"--output selects the format; to write a file: {instead}")
    return output


def _write(file: str, text: str) -> None:
    """Write to standard output, or atomically to a file."""
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        write_whole(Path(file), text.encode())
    except OSError as error:
        raise unwritten(file, error) from None

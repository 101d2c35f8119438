"""Options shared by several commands, each declared once."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Option

from weft.cli.output import ListOutput, SimulateOutput
from weft.files.reading import STDIN
from weft.model.errors import BadInputError

Output = Annotated[ListOutput, Option("--output", "-o", help="What to print.")]
ResultsOutput = Annotated[SimulateOutput, Option("--output", "-o", help="What to print.")]
MOST_SEEDS, LARGEST_SEED = 10_000, 1 << 53
"""Limits of --seeds and --first-seed, the same as in an experiment's file."""

Workloads = Annotated[int, Option(min=1, max=MOST_SEEDS, help="How many workloads.")]
Jobs = Annotated[
    int | None,
    Option(min=1, max=1_024, show_default=False, help="Processes.  [default: one per processor]"),
]
PolicyFiles = Annotated[
    list[str],
    Option(
        metavar="FILE.py:Class",
        help="File and class of a policy that the decisions file names; repeatable.",
    ),
]
ConfigFile = Annotated[Path | None, Option(help="The configuration file.  [default: built in]")]
Kubeconfig = Annotated[
    Path | None,
    Option(help="The kubeconfig.  [default: KUBECONFIG, the pod's own, ~/.kube/config]"),
]
Context = Annotated[str, Option(help="A context of the kubeconfig.  [default: its current one]")]
LeaderElect = Annotated[
    bool | None,
    Option(
        "--leader-elect/--no-leader-elect",
        help="Whether a Lease decides who binds.  [default: as configured, which is yes]",
    ),
]
HttpPort = Annotated[
    int | None,
    Option(
        min=0,
        max=65535,
        help="Port of health, metrics, explain; 0: any free one.  [default: as configured, 10259]",
    ),
]
Address = Annotated[
    str, Option(help="The extender's address.  [default: as configured, 127.0.0.1]")
]
OriginalPorts = Annotated[
    bool, Option("--original-ports", help="Also serve the extender on 39999 and 12345.")
]


class MissingOptionError(BadInputError):
    """An option that is missing but needed: exit code 2, as for options that the parser finds
    missing."""


class ElasticPriority(StrEnum):
    """The values of Elastic GPU's `-priority`."""

    BINPACK = "binpack"
    SPREAD = "spread"
    RANDOM = "random"


Priority = Annotated[
    ElasticPriority | None,
    Option(
        help="Policy for Elastic GPU's path /scheduler: its binpack, spread or random.  "
        "[default: as configured]"
    ),
]
Decisions = Annotated[
    Path | None,
    Option(help="Record every event and decision in this file, for `weft replay`."),
]
DecisionsMib = Annotated[
    int,
    Option(
        min=0,
        max=1 << 30,
        help="With --decisions: end recording when file and signals have this size, MiB; 0: never.",
    ),
]
MOST_MIB = 10_240


def read_once(inputs: Sequence[Path]) -> None:
    """Raise `BadInputError` if several of a command's files are standard input."""
    if inputs.count(STDIN) > 1:
        raise BadInputError(
            str(STDIN), "can be read only once; specify files for all options but one"
        )

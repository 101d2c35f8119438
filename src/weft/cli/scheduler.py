"""`weft scheduler`: both forms in one process on one ledger; composed in `hosting`.

Pods whose schedulerName is one of the profiles' are scheduled here; where an extender port is
given, kube-scheduler may ask about all others on the same accounts.
"""

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cli.hosting import Hosting
    from weft.cluster.config.form import Configuration

ConfigFile = Annotated[
    Path | None, typer.Option(help="The configuration file.  [default: built in]")
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Which cluster.  [default: KUBECONFIG, the pod's own, ~/.kube/config]"),
]
Context = Annotated[str, typer.Option(help="Of the kubeconfig.  [default: its current]")]
LeaderElect = Annotated[
    bool | None,
    typer.Option(
        "--leader-elect/--no-leader-elect",
        help="Whether a Lease decides who binds.  [default: as configured, which is yes]",
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Health, metrics and explain; 0 is any free one.  [default: as configured, 10259]",
    ),
]
Address = Annotated[
    str, typer.Option(help="The extender's address.  [default: as configured, 127.0.0.1]")
]
OriginalPorts = Annotated[
    bool, typer.Option("--original-ports", help="The extender also on 39999 and 12345.")
]


class ElasticPriority(StrEnum):
    """Elastic GPU's `-priority`."""

    BINPACK = "binpack"
    SPREAD = "spread"
    RANDOM = "random"


Priority = Annotated[
    ElasticPriority | None,
    typer.Option(
        help="How /scheduler decides: elastic-binpack, spread or random.  [default: as configured]"
    ),
]
Decisions = Annotated[
    Path | None,
    typer.Option(help="Put every event and decision on record in this file, for `weft replay`."),
]
DecisionsMib = Annotated[
    int,
    typer.Option(
        min=0,
        max=1 << 30,
        help="The most MiB of that file and its signals together; then the record ends. 0: no end.",
    ),
]
MOST_MIB = 10_240


def scheduler(
    config: ConfigFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    extender_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Also serve kube-scheduler's extender here."),
    ] = None,
    extender_address: Address = "",
    extender_priority: Priority = None,
    original_ports: OriginalPorts = False,
    leader_elect: LeaderElect = None,
    http_port: HttpPort = None,
    decisions: Decisions = None,
    decisions_mib: DecisionsMib = MOST_MIB,
) -> None:
    """Schedule a cluster's pods, by schedulerName and, with --extender-port, for kube-scheduler.

    Several processes may run: one leads, by a Lease, the others are ready to follow.
    """
    from weft.cli.hosting import Hosting

    settings = configuration(config, leader_elect, http_port)
    settings = with_extender(
        settings, extender_port, extender_address, original_ports, extender_priority
    )
    if original_ports and not settings.extender.enabled:
        raise BadInputError("--original-ports", "goes with --extender-port; add it")
    paths = (kubeconfig,) if kubeconfig else ()
    where = str(config or "")
    run(
        settings,
        Hosting(paths, context, decisions=decisions, decisions_mib=decisions_mib, where=where),
    )


def configuration(
    path: Path | None, leader_elect: bool | None, http_port: int | None
) -> "Configuration":
    """The file's settings, or the built-in ones, with what the command line says otherwise."""
    from msgspec.structs import replace

    from weft.cluster.config.form import Configuration
    from weft.cluster.config.read import read

    settings = read(path) if path is not None else Configuration()
    if leader_elect is not None:
        settings = replace(settings, lease=replace(settings.lease, enabled=leader_elect))
    if http_port is not None:
        settings = replace(settings, http=replace(settings.http, port=http_port))
    return settings


def with_extender(
    found: "Configuration",
    port: int | None,
    address: str,
    original_ports: bool,
    priority: ElasticPriority | None,
) -> "Configuration":
    """The extender as the command line says; a port switches it on."""
    from msgspec.structs import replace

    from weft.cluster.config.bounds import check_again
    from weft.cluster.extender.setup import with_priority

    settings = found.extender
    if priority is not None:
        settings = with_priority(settings, priority.value)
    if port is not None:
        settings = replace(settings, enabled=True, port=port)
    if address:
        settings = replace(settings, address=address)
    if original_ports:
        settings = replace(settings, original_ports=True)
    found = replace(found, extender=settings)
    check_again(found)
    return found


def run(settings: "Configuration", hosting: "Hosting") -> None:
    """Host until told to stop. Lost leadership is exit code 1."""
    import uvloop

    from weft.cli.hosting import host
    from weft.cli.policies import registry
    from weft.cluster.scheduler.process import LeadershipLostError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        uvloop.run(host(settings, registry(), hosting))
    except LeadershipLostError as error:
        print(f"weft: {error}; ending, to be started anew", file=sys.stderr)
        raise typer.Exit(1) from error

"""`weft scheduler`: scheduler and extender in one process with one ledger; composed in
`host/scheduler.py`.

Pods whose schedulerName belongs to a profile are scheduled here; with an extender port,
kube-scheduler can ask about all other pods, which are charged to the same ledger."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from weft.cli import logs, options
from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.cluster.config.form import Configuration
    from weft.host.plan import Hosting

log = logging.getLogger("weft.scheduler")


def scheduler(
    config: options.ConfigFile = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = "",
    extender_port: Annotated[
        int | None, Option(min=0, max=65535, help="Also serve kube-scheduler's extender here.")
    ] = None,
    extender_address: options.Address = "",
    extender_priority: options.Priority = None,
    original_ports: options.OriginalPorts = False,
    leader_elect: options.LeaderElect = None,
    http_port: options.HttpPort = None,
    decisions: options.Decisions = None,
    decisions_mib: options.DecisionsMib = options.MOST_MIB,
    log_level: logs.Log = logs.LogLevel.INFO,
    log_format: logs.Format = logs.LogFormat.TEXT,
) -> None:
    """Schedule a cluster's pods, by schedulerName and, with --extender-port, for kube-scheduler.

    Several replicas may run: one leads, by a Lease, and the others stand by.
    """
    from weft.host.plan import Hosting

    with logs.daemon(log_format, log_level):
        settings = configuration(config, leader_elect, http_port)
        settings = with_extender(
            settings, extender_port, extender_address, original_ports, extender_priority
        )
        if original_ports and not settings.extender.enabled:
            raise BadInputError("--original-ports", "needs --extender-port; add it")
        paths = (kubeconfig,) if kubeconfig else ()
        run(settings, Hosting(paths, context, str(config or ""), decisions, decisions_mib))


def configuration(
    path: Path | None, leader_elect: bool | None = None, http_port: int | None = None
) -> "Configuration":
    """Return the file's settings, or the built-in ones, with the command line's overrides."""
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
    config: "Configuration",
    port: int | None,
    address: str,
    original_ports: bool,
    priority: options.ElasticPriority | None,
) -> "Configuration":
    """Return the configuration with the extender's options; a port enables the extender."""
    from msgspec.structs import replace

    from weft.cluster.config.bounds import check_again
    from weft.cluster.extender.setup import with_priority

    settings = config.extender
    if priority is not None:
        settings = with_priority(settings, priority.value)
    if port is not None:
        settings = replace(settings, enabled=True, port=port)
    if address:
        settings = replace(settings, address=address)
    if original_ports:
        settings = replace(settings, original_ports=True)
    config = replace(config, extender=settings)
    check_again(config)
    return config


def run(settings: "Configuration", hosting: "Hosting") -> None:
    """Run until SIGTERM or SIGINT; exit code 1 if leadership was lost."""
    import uvloop

    from weft.cli.policies import registry
    from weft.host.scheduler import host
    from weft.host.scheduler_process import LeadershipLostError

    try:
        uvloop.run(host(settings, registry(), hosting))
    except LeadershipLostError as error:
        log.error("%s; exiting, to be restarted", error)
        raise Exit(1) from error

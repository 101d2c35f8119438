"""`weft scheduler`: both forms in one process on one ledger; where the live hosts are composed.

Pods whose schedulerName is one of the profiles' are scheduled here; where an extender port is
given, kube-scheduler may ask about all others on the same accounts.
"""

import asyncio
import logging
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.config.form import Configuration
    from weft.extender.listening import Listening
    from weft.extender.routes import Route
    from weft.framework import Profile
    from weft.framework.registry import Registry
    from weft.live.cluster import Cluster

log = logging.getLogger("weft.scheduler")


def scheduler(
    config: Annotated[
        Path | None, typer.Option(help="The configuration file.  [default: built in]")
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Which cluster.  [default: KUBECONFIG, the pod's own, ~/.kube/config]"),
    ] = None,
    context: Annotated[str, typer.Option(help="Of the kubeconfig.  [default: its current]")] = "",
    extender_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Also serve kube-scheduler's extender here."),
    ] = None,
    extender_address: Annotated[str, typer.Option(help="The extender's address.")] = "0.0.0.0",
    original_ports: Annotated[
        bool, typer.Option("--original-ports", help="The extender also on 39999 and 12345.")
    ] = False,
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Whether a Lease decides who binds.  [default: as configured, which is yes]",
        ),
    ] = None,
) -> None:
    """Schedule a cluster's pods, by schedulerName and, with --extender-port, for kube-scheduler.

    Several processes may run: one leads, by a Lease, the others are ready to follow.
    """
    from weft.cli.policies import registry
    from weft.config.read import profiles
    from weft.extender.listening import Listening
    from weft.scheduler.process import LeadershipLostError

    if original_ports and extender_port is None:
        raise BadInputError("--original-ports", "goes with --extender-port; add it")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    found = _configuration(config, leader_elect)
    known = registry()
    made = profiles(found, known, str(config or ""))
    wish = None
    if extender_port is not None:
        wish = Listening(extender_address, extender_port, original_ports)
    paths = (kubeconfig,) if kubeconfig else ()
    try:
        asyncio.run(_serve(found, made, known, wish, paths, context))
    except LeadershipLostError as error:
        print(f"weft: {error}; ending, to be started anew", file=sys.stderr)
        raise typer.Exit(1) from error


def _configuration(path: Path | None, leader_elect: bool | None) -> "Configuration":
    """The file's settings, or the built-in ones, with what the command line says otherwise."""
    import msgspec

    from weft.config.form import Configuration
    from weft.config.read import read

    found = read(path) if path is not None else Configuration()
    if leader_elect is None:
        return found
    lease = msgspec.structs.replace(found.lease, enabled=leader_elect)
    return msgspec.structs.replace(found, lease=lease)


async def _serve(
    config: "Configuration", profiles: "list[Profile]", registry: "Registry",
    wish: "Listening | None", paths: tuple[Path, ...], context: str,
) -> None:  # fmt: skip
    from weft.extender.routes import default_routes, route_profiles
    from weft.kube.bind import BindOptions
    from weft.kube.client import ApiClient, ClientOptions
    from weft.kube.config import load
    from weft.kube.lease import Elector, LeaseOptions
    from weft.kube.sources import Rule
    from weft.live.cluster import Cluster
    from weft.live.telling import Teller
    from weft.scheduler.process import Process, told_to_stop
    from weft.scheduler.role import Role

    routes = default_routes()
    all_profiles = [*profiles, *route_profiles(routes, registry.create)] if wish else profiles
    rules = [Rule(r.count, r.memory_mib, r.model, r.nodes, r.labels) for r in config.inventory]
    client_options = ClientOptions(qps=config.client.qps, burst=config.client.burst)
    async with ApiClient(load(context, paths=paths), client_options) as client:
        elector = None
        if config.lease.enabled:
            lease = config.lease
            wanted = LeaseOptions(
                lease.namespace, lease.name, lease.duration_seconds, lease.renew_seconds
            )
            elector = Elector(client, f"{socket.gethostname()}_{uuid.uuid4()}", wanted)
        binding = BindOptions(
            in_flight=config.client.binds_in_flight,
            request_timeout_s=config.client.request_timeout_seconds,
        )
        live = Cluster(
            client, all_profiles, names=[p.name for p in profiles], rules=rules,
            gpushare_unit=config.gpushare_unit, seed=config.seed, binding=binding,
            may_bind=elector.may_bind if elector else None,
        )  # fmt: skip
        role = Role(client, os.environ.get("POD_NAMESPACE", ""), os.environ.get("POD_NAME", ""))
        process = Process(live, Teller(live, client, socket.gethostname()), role, elector)
        if wish is not None:
            process.parts.append(_ExtenderPart(live, routes, wish))
        await process.run(told_to_stop())


class _ExtenderPart:
    """The extender, served by the scheduler's process."""

    def __init__(self, live: "Cluster", routes: "Sequence[Route]", wish: "Listening") -> None:
        from weft.extender.server import Server
        from weft.extender.service import Extender

        self._server, self._wish = Server(Extender(live), routes), wish

    async def start(self) -> str:
        """Open its ports."""
        from weft.extender.listening import listen

        return "extender on " + ", ".join(map(str, await listen(self._server, self._wish)))

    async def close(self) -> None:
        """Answer what was asked, then close."""
        await self._server.close()

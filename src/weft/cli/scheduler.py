"""`weft scheduler`: both forms in one process on one ledger; where the live hosts are composed.

Pods whose schedulerName is one of the profiles' are scheduled here; where an extender port is
given, kube-scheduler may ask about all others on the same accounts. One process at a time: there
is no lease yet.
"""

import asyncio
import logging
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.config.form import Configuration
    from weft.extender.listening import Listening
    from weft.framework import Profile
    from weft.framework.registry import Registry

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
) -> None:
    """Schedule a cluster's pods, by schedulerName and, with --extender-port, for kube-scheduler.

    Run one process: there is no leader election yet.
    """
    from weft.cli.policies import registry
    from weft.config.form import Configuration
    from weft.config.read import profiles, read
    from weft.extender.listening import Listening

    if original_ports and extender_port is None:
        raise BadInputError("--original-ports", "goes with --extender-port; add it")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    found = read(config) if config is not None else Configuration()
    known = registry()
    made = profiles(found, known, str(config or ""))
    wish = None
    if extender_port is not None:
        wish = Listening(extender_address, extender_port, original_ports)
    asyncio.run(_serve(found, made, known, wish, (kubeconfig,) if kubeconfig else (), context))


async def _serve(
    config: "Configuration", profiles: "list[Profile]", registry: "Registry",
    wish: "Listening | None", paths: tuple[Path, ...], context: str,
) -> None:  # fmt: skip
    from weft.extender.listening import listen
    from weft.extender.routes import default_routes, route_profiles
    from weft.extender.server import Server
    from weft.extender.service import Extender
    from weft.kube.client import ApiClient, ClientOptions
    from weft.kube.config import load
    from weft.kube.sources import Rule
    from weft.live.cluster import Cluster
    from weft.live.telling import Teller

    routes = default_routes()
    all_profiles = [*profiles, *route_profiles(routes, registry.create)] if wish else profiles
    rules = [Rule(r.count, r.memory_mib, r.model, r.nodes, r.labels) for r in config.inventory]
    options = ClientOptions(qps=config.client.qps, burst=config.client.burst)
    async with ApiClient(load(context, paths=paths), options) as client:
        live = Cluster(client, all_profiles, names=[p.name for p in profiles], rules=rules,
                       gpushare_unit=config.gpushare_unit, seed=config.seed)  # fmt: skip
        server = Server(Extender(live), routes) if wish is not None else None
        telling = asyncio.ensure_future(Teller(live, client, socket.gethostname()).run())
        stopping = asyncio.ensure_future(_told_to_stop())
        try:
            await live.start()
            if server is not None and wish is not None:
                ports = await listen(server, wish)
                log.info("extender on %s", ", ".join(map(str, ports)))
            log.info("ready: %d nodes", live.engine.ledger.table.count)
            failing = asyncio.ensure_future(live.failed())
            done, _ = await asyncio.wait(
                {stopping, failing, telling}, return_when="FIRST_COMPLETED"
            )
            failing.cancel()
            for ended in done:
                ended.result()
        finally:
            stopping.cancel()
            telling.cancel()
            if server is not None:
                await server.close()
            await live.stop()
            log.info("stopped")


async def _told_to_stop() -> None:
    """Returns at SIGTERM or SIGINT: what is being written is then finished first."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    await told.wait()

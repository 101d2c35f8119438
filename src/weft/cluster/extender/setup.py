"""Converts the configuration's `extender` section to routes and ports, and opens the ports.

The policy `auto` of gpushare's path depends on the cluster: Co-scheML's policy if there is an
interference table, otherwise gpushare's."""

import logging
from collections.abc import Collection
from pathlib import Path

import msgspec

from weft.cluster.config.form import BY_AUTO, BY_SCHEDULER_NAME, ExtenderSettings
from weft.cluster.extender.routes import (
    ELASTIC,
    ELASTIC_POLICIES,
    ORIGINAL_PORTS,
    ElasticPriority,
    Route,
    route_at,
)
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.http.access import AccessRule
from weft.cluster.http.tls import server_tls
from weft.model import BadInputError

# --- listeners ------------------------------------------------------------------------------------


class ListenerOptions(msgspec.Struct, frozen=True):
    """Addresses and access of the listeners, with reasons for the defaults.

    `host`: by default loopback, because clients may bind pods. `port`: by default Elastic GPU's.
    `original_ports`: also listen on 39999 and 12345, so that kube-schedulers configured for the
    original systems keep working. `certificate`, `key`: PEM files; without them plain HTTP.
    `client_authority`: admit only clients with a certificate signed by it. `anyone`: admit every
    client.

    Any admitted client may bind any pod. So a port that other machines can reach requires client
    certificates, unless the configuration explicitly allows anyone.
    """

    host: str = "127.0.0.1"
    port: int = ORIGINAL_PORTS[0]
    original_ports: bool = False
    certificate: Path | None = None
    key: Path | None = None
    client_authority: Path | None = None
    anyone: bool = False

    @property
    def door(self) -> AccessRule:
        """Rule that decides which clients are admitted."""
        return AccessRule(self.client_authority is not None, self.anyone)


async def listen(server: ExtenderServer, wish: ListenerOptions) -> list[int]:
    """Open every port and return the numbers. `BadInputError` if a port cannot be opened."""
    if (wish.certificate is None) != (wish.key is None):
        raise BadInputError("certificate", "requires its key; specify both")
    if wish.client_authority is not None and wish.certificate is None:
        raise BadInputError("client_authority", "needs a certificate of the server's own")
    tls = None
    if wish.certificate is not None and wish.key is not None:
        tls = server_tls(wish.certificate, wish.key, wish.client_authority)
    ports = []
    extra = ORIGINAL_PORTS if wish.original_ports else ()
    for port in dict.fromkeys((wish.port, *extra)):
        try:
            opened = await server.listen(wish.host, port, tls)
        except OSError as error:
            raise BadInputError(f"port {port}", f"can't be listened on: {error}") from error
        ports.append(opened)
    return ports


log = logging.getLogger("weft.extender")

COSCHEML, GPUSHARE = "coscheml", "gpushare"
USUAL_TABLE = ExtenderSettings().interference_table
"""Path at which Co-scheML kept its table; the file is optional."""


def routes_of(
    settings: ExtenderSettings, known: Collection[str], *, predicted: bool = False
) -> list[Route]:
    """Return the routes to serve. `known` are the existing policies; `route_profiles` reports an
    unknown name. `predicted`: predictions of interference are configured elsewhere."""
    by_auto = COSCHEML if predicted else _auto(settings.interference_table, known)
    special = {BY_SCHEDULER_NAME: "", BY_AUTO: by_auto}
    return [route_at(path, special.get(name, name)) for path, name in settings.routes.items()]


def table_of(settings: ExtenderSettings) -> Path | None:
    """Return the path of the interference table if the file exists, otherwise None."""
    path = Path(settings.interference_table)
    return path if settings.interference_table and path.is_file() else None


def with_priority(settings: ExtenderSettings, priority: ElasticPriority) -> ExtenderSettings:
    """Return the settings with `/scheduler` deciding by Elastic GPU's option `-priority`."""
    routes = settings.routes | {ELASTIC: ELASTIC_POLICIES[priority]}
    return msgspec.structs.replace(settings, routes=routes)


def listening_of(settings: ExtenderSettings) -> ListenerOptions:
    """Return the listeners' addresses, certificates and access."""
    return ListenerOptions(
        settings.address,
        settings.port,
        settings.original_ports,
        _path(settings.certificate_file),
        _path(settings.key_file),
        _path(settings.client_authority_file),
        settings.anyone_may_bind,
    )


def _auto(table: str, known: Collection[str]) -> str:
    if not table:
        return GPUSHARE
    if not Path(table).is_file():
        if table != USUAL_TABLE:
            raise BadInputError("extender.interferenceTable", f"there is no file {table}")
        return GPUSHARE
    if COSCHEML in known:
        return COSCHEML
    log.warning("%s is ignored: there is no policy %s; %s decides", table, COSCHEML, GPUSHARE)
    return GPUSHARE


def _path(text: str) -> Path | None:
    return Path(text) if text else None

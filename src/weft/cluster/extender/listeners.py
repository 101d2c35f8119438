"""Listeners of the extender: its own port, and optionally the original systems' ports, with or
without TLS.

Any admitted client may bind any pod. So a port that other machines can reach requires client
certificates, unless the configuration explicitly allows anyone."""

from pathlib import Path

import msgspec

from weft.cluster.extender.routes import ORIGINAL_PORTS
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.http.access import AccessRule
from weft.cluster.http.tls import server_tls
from weft.model import BadInputError


class ListenerOptions(msgspec.Struct, frozen=True):
    """Addresses and access of the listeners, with reasons for the defaults.

    `host`: loopback, because its clients may bind pods. `port`: Elastic GPU's. `original_ports`:
    also listen on 39999 and 12345, so that kube-schedulers configured for the original systems keep
    working. `certificate`, `key`: PEM files; without them plain HTTP. `client_authority`: admit
    only clients with a certificate signed by it. `anyone`: admit every client."""

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

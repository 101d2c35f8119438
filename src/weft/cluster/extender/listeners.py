"""The extender's listeners: its own port, on wish the originals' too, with or without TLS.

Whoever is let in may bind any pod. So what other machines can reach is behind a client certificate,
unless somebody said in so many words that it need not be.
"""

from pathlib import Path

import msgspec

from weft.cluster.extender.routes import ORIGINAL_PORTS
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.http.access import AccessRule
from weft.cluster.http.tls import server_tls
from weft.model import BadInputError


class ListenerOptions(msgspec.Struct, frozen=True):
    """Settings, with reasons.

    `host`: loopback, for whoever reaches it may bind. `port`: Elastic GPU's. `original_ports`: also
    39999 and 12345, so that kube-schedulers configured for the originals go on. `certificate`,
    `key`: PEM files; without them plain HTTP. `client_authority`: answer only clients with a
    certificate that it signed. `anyone`: answer whoever reaches it.
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
        """The rule of who is let in."""
        return AccessRule(self.client_authority is not None, self.anyone)


async def listen(server: ExtenderServer, wish: ListenerOptions) -> list[int]:
    """Open every port; which ones they are. `BadInputError` where one can't be had."""
    if (wish.certificate is None) != (wish.key is None):
        raise BadInputError("certificate", "belongs together with its key; name both")
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

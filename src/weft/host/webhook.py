"""The admission webhook's process: one server, whose certificate is reloaded when it changes."""

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

from weft.cluster.admission.webhook import WebhookServer
from weft.cluster.http.tls import follow_certificate, server_tls
from weft.host.shell import cancel, stop_signal
from weft.model.errors import BadInputError

log = logging.getLogger("weft.webhook")


class WebhookPlace(NamedTuple):
    """The webhook's address, and its certificate."""

    address: str
    port: int
    certificate: Path
    key: Path


async def host(place: WebhookPlace, scheduler_name: str) -> None:
    """Answer the API server until SIGTERM or SIGINT."""
    tls = server_tls(place.certificate, place.key, None)
    server = WebhookServer(scheduler_name)
    try:
        port = await server.listen(place.address, place.port, tls)
    except OSError as error:
        raise BadInputError(f"--port {place.port}", f"can't be listened on: {error}") from error
    log.info("webhook on %s:%d", place.address, port)
    following = asyncio.ensure_future(follow_certificate(tls, place.certificate, place.key, log))
    await stop_signal().wait()
    await cancel({following})
    await server.close()

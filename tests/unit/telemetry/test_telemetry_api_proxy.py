"""Through the API server's proxy: what whoever stands behind it says, however much that is."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.sources.api_proxy import ApiProxyTransport
from weft.telemetry.sources.transport import MIB, Direct, ResponseLimits, ServerCredentials

LIMITS = ResponseLimits(timeout_s=60, most_mib=1)
PIECE = b"0" * (1 << 16)


class Endless:
    """A server whose answer never ends, or ends after `pieces`; a fake. `left`: it was left."""

    def __init__(self, pieces: int | None, packed: bool) -> None:
        self.pieces, self.packed = pieces, packed
        self.left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        packer = zlib.compressobj(wbits=31)
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"} if self.packed else {})
        await response.prepare(request)
        sent = 0
        try:
            while self.pieces is None or sent < self.pieces:
                piece = packer.compress(PIECE) if self.packed else PIECE
                if piece:
                    await response.write(piece)
                await asyncio.sleep(0)
                sent += 1
            if self.packed:
                await response.write(packer.flush())
        except ConnectionError:
            self.left.set()
        return response


@asynccontextmanager
async def served(server: Endless) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/page", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    finally:
        await runner.cleanup()


async def ask(url: str, proxied: bool) -> tuple[int, bytes]:
    """The page, through the API server's client or straight."""
    if proxied:
        async with ApiClient(Endpoint(url, FixedCredentials())) as client:
            return await ApiProxyTransport(client, "", limits=LIMITS).get("/page")
    direct = Direct(url, ServerCredentials(), LIMITS)
    try:
        return await direct.get(f"{url}/page")
    finally:
        await direct.close()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("proxied", [False, True])
async def test_an_answer_without_an_end_is_left_as_soon_as_it_is_too_large(
    proxied: bool, packed: bool
) -> None:
    server = Endless(None, packed)
    async with served(server) as url:
        with pytest.raises(TelemetryError, match="more than 1 MiB") as found:
            await ask(url, proxied)
        assert found.value.kind == "oversized"
        await asyncio.wait_for(server.left.wait(), 60)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("proxied", [False, True])
async def test_an_answer_of_just_the_size_allowed_is_taken(proxied: bool, packed: bool) -> None:
    async with served(Endless(MIB // len(PIECE), packed)) as url:
        assert await ask(url, proxied) == (200, b"0" * MIB)

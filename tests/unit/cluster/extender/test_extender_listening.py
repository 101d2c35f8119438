"""Which ports are opened."""

from pathlib import Path

import pytest
from extender_world import ROUTES, StubCluster

from weft.cluster.extender import setup
from weft.cluster.extender.server import ExtenderServer
from weft.cluster.extender.service import Extender
from weft.cluster.extender.setup import ListenerOptions, listen
from weft.model import BadInputError


async def opened(wish: ListenerOptions) -> list[int]:
    async def main() -> list[int]:
        server = ExtenderServer(Extender(StubCluster()), ROUTES)
        try:
            return await listen(server, wish)
        finally:
            await server.close()

    return await main()


async def test_one_port_or_the_originals_too(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        await opened(ListenerOptions("127.0.0.1", 0)),
        await opened(ListenerOptions("127.0.0.1", 0)),
    )
    monkeypatch.setattr(setup, "ORIGINAL_PORTS", (first[0], second[0]))
    both = [first[0], second[0]]
    assert await opened(ListenerOptions("127.0.0.1", first[0], original_ports=True)) == both


def test_the_originals_ports_are_what_they_were() -> None:
    assert setup.ORIGINAL_PORTS == (39999, 12345)


async def test_a_port_that_is_taken_is_named() -> None:
    server = ExtenderServer(Extender(StubCluster()), ROUTES)
    try:
        (port,) = await listen(server, ListenerOptions("127.0.0.1", 0))
        with pytest.raises(BadInputError, match=f"port {port}"):
            await listen(server, ListenerOptions("127.0.0.1", port))
    finally:
        await server.close()


@pytest.mark.parametrize(
    "wish", [ListenerOptions(certificate=Path("a")), ListenerOptions(client_authority=Path("a"))]
)
async def test_half_a_wish_for_tls_is_named(wish: ListenerOptions) -> None:
    with pytest.raises(BadInputError, match="certificate"):
        await opened(wish)

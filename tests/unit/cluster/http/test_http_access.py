"""Which addresses are this very machine's, and who is let in from where."""

import asyncio
from typing import Any

import pytest

from weft.cluster.http.access import AccessRule, is_loopback


class End(asyncio.BaseTransport):
    """A connection that was made."""

    def __init__(self, peer: str, own: str, certificate: object = None) -> None:
        super().__init__({"peername": (peer, 1), "sockname": (own, 2), "peercert": certificate})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "LocalHost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "127.1", "", "½"]
)
def test_everything_else_is_elsewhere(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("door", "peer", "own", "certificate", "open_"),
    [
        (AccessRule(), "127.0.0.1", "127.0.0.1", None, True),
        (AccessRule(), "10.0.0.1", "10.0.0.2", None, False),
        (AccessRule(), "127.0.0.1", "10.0.0.2", None, False),
        (AccessRule(), "10.0.0.1", "127.0.0.1", None, False),
        (AccessRule(certificate=True), "127.0.0.1", "127.0.0.1", None, False),
        (AccessRule(certificate=True), "10.0.0.1", "10.0.0.2", {"subject": ()}, True),
        (AccessRule(anyone=True), "10.0.0.1", "10.0.0.2", None, True),
    ],
)
def test_who_is_let_in(
    door: AccessRule, peer: str, own: str, certificate: Any, open_: bool
) -> None:
    assert door.admits(End(peer, own, certificate)) is open_


@pytest.mark.parametrize("door", [AccessRule(), AccessRule(certificate=True)])
def test_a_connection_that_is_gone_or_has_no_address_is_not_let_in(door: AccessRule) -> None:
    assert not door.admits(None)
    assert not door.admits(asyncio.BaseTransport())

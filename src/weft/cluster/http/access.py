"""Access to what not everybody may see or do: the one rule of every server of Weft.

What tells of health and counts is behind no door: the kubelet and Prometheus show nothing. What
tells of pods, and what binds them, is.
"""

import asyncio
import ipaddress
from typing import Any

import msgspec

LOCALHOST = "localhost"


class AccessRule(msgspec.Struct, frozen=True):
    """Without either, whoever comes from this very machine or pod (by loopback) is let in.

    `certificate`: whoever shows a client certificate that the server's TLS trusts, and nobody else.
    `anyone`: everybody, for the network itself is trusted.
    """

    certificate: bool = False
    anyone: bool = False

    def admits(self, transport: asyncio.BaseTransport | None) -> bool:
        """True if what came by this connection is let in."""
        if self.anyone:
            return True
        if transport is None:
            return False
        if self.certificate:
            return bool(transport.get_extra_info("peercert"))
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        return all(_is_local(end) for end in ends)


def is_loopback(host: str) -> bool:
    """True if only this machine or pod can reach this address."""
    if host.lower() == LOCALHOST:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inner or address).is_loopback


def _is_local(end: Any) -> bool:
    return isinstance(end, tuple) and bool(end) and is_loopback(str(end[0]))

"""Access rule of all of Weft's servers, for restricted pages.

Health pages and metrics are open: the kubelet and Prometheus send no credentials. Pages about pods,
and binding, are restricted."""

import asyncio
import ipaddress
from typing import Any

import msgspec

LOCALHOST = "localhost"


class AccessRule(msgspec.Struct, frozen=True):
    """Decides which connections are admitted; by default only those over loopback, from the same
    machine or pod.

    `certificate`: only clients with a client certificate that the server's TLS trusts. `anyone`:
    every client, because the network itself is trusted."""

    certificate: bool = False
    anyone: bool = False

    def admits(self, transport: asyncio.BaseTransport | None) -> bool:
        """Return True if requests on this connection are admitted."""
        if self.anyone:
            return True
        if transport is None:
            return False
        if self.certificate:
            return bool(transport.get_extra_info("peercert"))
        ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        return all(_is_local(end) for end in ends)


def is_loopback(host: str) -> bool:
    """Return True if only the same machine or pod can reach this address."""
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

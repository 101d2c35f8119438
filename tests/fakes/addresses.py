"""Addresses of this machine, for tests of who may come from where."""

import socket


def own_address() -> str:
    """One that is not loopback, as another pod would dial; "" where the machine has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])

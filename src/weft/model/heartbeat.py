"""The Lease by which a node's agent says that it delivers: its name, and when it is late."""

from typing import Final

HEARTBEAT_PREFIX: Final = "weft-agent-"
HEARTBEAT_LATE_S: Final = 14
"""An agent renews its Lease every 10 s; one attempt may fail."""


def heartbeat_name(node: str) -> str:
    """Return the name of the Lease of this node's agent."""
    return f"{HEARTBEAT_PREFIX}{node}"

"""The pod, node and scheduling cycle that a log line is about, as `extra` of the call.

`kube/log_lines.py` writes them as fields of a line of JSON; people read them in the message, too.
"""

from typing import NamedTuple, Protocol

POD, POD_UID, NODE, CYCLE = "pod", "podUID", "node", "cycle"
FIELDS = (POD, POD_UID, NODE, CYCLE)
"""Keys as Kubernetes' own components write them; `cycle` is the decision's number, `seq` of the
decisions file."""


class NamedPod(Protocol):
    """Has a pod's name: metadata, requests, records and the agent's own names are such."""

    @property
    def namespace(self) -> str:
        """Its namespace."""
        ...

    @property
    def name(self) -> str:
        """Its name there."""
        ...

    @property
    def uid(self) -> str:
        """Which of all that ever had that name; "" if that is unknown."""
        ...


class PodReference(NamedTuple):
    """A pod of which no more is known than this."""

    namespace: str
    name: str
    uid: str = ""


def about(
    pod: NamedPod | None = None, *, node: str = "", cycle: int | None = None
) -> dict[str, str | int]:
    """Return the known ones of the three fields, for `extra`."""
    fields: dict[str, str | int] = {}
    if pod is not None:
        fields[POD] = f"{pod.namespace}/{pod.name}"
        fields |= {POD_UID: pod.uid} if pod.uid else {}
    if node:
        fields[NODE] = node
    if cycle is not None:
        fields[CYCLE] = cycle
    return fields

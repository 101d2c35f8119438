"""The pod, node and scheduling cycle that a log line is about, for the argument `extra` of the
logging call.

`kube/log_lines.py` writes them as fields of a line of JSON; in text logs the message has them.
"""

from typing import NamedTuple, Protocol

POD, POD_UID, NODE, CYCLE = "pod", "podUID", "node", "cycle"
FIELDS = (POD, POD_UID, NODE, CYCLE)
"""Keys as Kubernetes' own components write them; `cycle` is the decision's number, `seq` of the
decisions file."""


class NamedPod(Protocol):
    """An object with a pod's name, such as metadata, requests and delivery records."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        ...

    @property
    def name(self) -> str:
        """The pod's name."""
        ...

    @property
    def uid(self) -> str:
        """The pod's UID; "" if unknown."""
        ...


class PodReference(NamedTuple):
    """A pod's namespace and name, and its UID if known."""

    namespace: str
    name: str
    uid: str = ""


def about(
    pod: NamedPod | None = None, *, node: str = "", cycle: int | None = None
) -> dict[str, str | int]:
    """Return the `extra` of a log call about this pod, node and scheduling cycle."""
    fields: dict[str, str | int] = {}
    if pod is not None:
        fields[POD] = f"{pod.namespace}/{pod.name}"
        fields |= {POD_UID: pod.uid} if pod.uid else {}
    if node:
        fields[NODE] = node
    if cycle is not None:
        fields[CYCLE] = cycle
    return fields

"""Records what a node reports of a resource while its kubelet is restarted."""

import contextlib
import sys
import time
from typing import NamedTuple

from kube_api import Object
from real_node import RealNode

_TOLD_S = 13.0  # a kubelet tells of its node when it starts, and ten seconds later


class AmountTold(NamedTuple):
    """How much the node can give, and how many seconds after the kubelet's start it said so."""

    after_s: float
    amount: str


class Restart(NamedTuple):
    """`back_s` is when the node had as much as before and kept it; 0 where it never had less."""

    back_s: float
    told: list[AmountTold]


def restart_kubelet(node: RealNode, resource: str) -> Restart:
    """Restart it, and look at its node until it has told the API server of it twice."""
    before = node.api.get("Node", node.name)
    since, wanted = before["metadata"]["resourceVersion"], amount_of(before, resource)
    node.kubelet.stop()
    began = time.monotonic()
    node.kubelet.start()
    told, heard = [AmountTold(0.0, wanted)], 0
    with contextlib.closing(node.api.watch("Node", since=since, timeout_s=_TOLD_S)) as events:
        for event in events:
            heard += heartbeat_of(event.object) > heartbeat_of(before)
            if (amount := amount_of(event.object, resource)) != told[-1].amount:
                told.append(AmountTold(time.monotonic() - began, amount))
    assert heard, "the kubelet has not told of its node"
    assert told[-1].amount == wanted, told
    lines = [f"  after {one.after_s:.2f} s: {one.amount}\n" for one in told]
    sys.stdout.write(f"{resource} after a kubelet's restart\n{''.join(lines)}")  # pytest -rP
    return Restart(told[-1].after_s, told)


def amount_of(node: Object, resource: str) -> str:
    """How much of it pods can have."""
    return str(node["status"]["allocatable"].get(resource))


def heartbeat_of(node: Object) -> str:
    """When its kubelet last told of it."""
    times = (one["lastHeartbeatTime"] for one in node["status"]["conditions"])
    return max(times, default="")

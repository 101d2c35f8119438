"""A view of pods and the ledger that hears of all it tells, without an API server or a loop."""

import json
from typing import Any

import msgspec
from live_world import CARD_MIB, node

from fakes.api_clock import VirtualClock
from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pods import PodView
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import PodGone, PodSeenBound
from weft.core.ledger import Ledger
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added
from weft.model import Node, Placement

CARDS = 3


def pod(uid: str, asks: dict[str, int], gpu: int | None = None, born: int = 0) -> Pod:
    """A pod bound to n; with Weft's marks where `gpu` is given."""
    marks: dict[str, str] = {}
    if gpu is not None:
        mib = asks.get("weft.dev/gpu-memory", CARD_MIB)
        shares = [[0, gpu, mib, 0 if mib < CARD_MIB else 1000, ""]]
        marks = {"weft.dev/placement": json.dumps({"pod": uid, "node": "n", "shares": shares})}
    whole: dict[str, Any] = {
        "metadata": {
            "name": uid,
            "namespace": "d",
            "uid": uid,
            "annotations": marks,
            "creationTimestamp": f"2026-01-01T00:00:{born:02}Z",
        },
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": asks}}]},
    }
    return msgspec.convert(whole, Pod)


class Account:
    """A view of pods, and the ledger that hears of all it tells, as a live cluster's does."""

    def __init__(self, cards: int = CARDS) -> None:
        self.nodes = NodeView()
        self.ledger = Ledger(self._shown(cards))
        self.view = PodView(
            ["weft"],
            self.nodes,
            VolumeView(),
            self.ledger,
            DialectSettings(gpushare_unit="node"),
            on_bad=lambda pod, why: None,
            clock=VirtualClock(),
        )
        self.most_free = [0] * CARDS

    def _shown(self, cards: int) -> tuple[Node, ...]:
        self.nodes.take_node(Added(msgspec.convert(node("n", cards), KubeNode)))
        return self.nodes.changed()[0]

    def shows(self, cards: int) -> None:
        """The node shows so many cards now."""
        changed = self._shown(cards)
        self._hear([self.view.update(one) for one in self.view.on_node("n")])
        self.ledger.set_nodes(changed)

    def take(self, *pods: Pod) -> "Account":
        for one in pods:
            self._hear([self.view.update(one)])
        return self

    def forget(self, one: Pod) -> None:
        self._hear([self.view.forget(one)])

    def _hear(self, events: Any) -> None:
        self.most_free = [0] * CARDS
        for event in self.view.in_safe_order(events):
            if isinstance(event, PodGone):
                self.ledger.release(event.uid)
            elif isinstance(event, PodSeenBound):
                self.ledger.adopt(event.placement)
            self.most_free = list(map(max, self.most_free, self.free()))

    def free(self) -> list[int]:
        return [CARD_MIB - used for used in self.ledger.table.memory_used]

    def cards(self, uid: str) -> list[int]:
        placed = self.view.decided(uid)
        return sorted(share.gpu for share in placed.shares) if placed else []

    def all(self) -> dict[str, Placement]:
        return {uid: held.placement for uid, held in self.ledger.holdings.items()}

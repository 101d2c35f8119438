"""NVIDIA's device plugin on a node, and what the node's agent tells of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from account_world import Account
from kai_world import Json, meta
from live_world import CARD_MIB
from test_live_kai import with_uuids

from weft.kube.structs import KubeNode
from weft.kube.watch import Added

CARDS = 3
Told = Mapping[str, Sequence[tuple[int, int, int]]]
"""Card, devices and replicas by pod."""


def asking(name: str, devices: int = 1, *, by: str = "nvidia.com/gpu", born: int = 0) -> Json:
    """A pod that anybody bound to the node."""
    limits = {by: str(devices)}
    made = meta(name, "d", {}, {}) | {"creationTimestamp": f"2026-01-01T00:00:{born:02}Z"}
    return {
        "metadata": made,
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "resources": {"limits": limits}}],
        },
    }


def shared(name: str, devices: int = 1, born: int = 0) -> Json:
    """One that asks by the name of shared cards."""
    return asking(name, devices, by="nvidia.com/gpu.shared", born=born)


def telling(told: Told | None, count: int = CARDS, replicas: int = 4, **more: Any) -> Json:
    """The node, whose agent tells so much; None: it tells nothing."""
    made = with_uuids(count=count)
    if told is not None:
        text = {"cards": [f"GPU-{card}" for card in range(count)], "pods": told}
        made["metadata"]["annotations"]["weft.dev/plugin-gpus"] = msgspec.json.encode(text).decode()
    if replicas > 1:
        made["metadata"].setdefault("labels", {})["nvidia.com/gpu.replicas"] = str(replicas)
        made["status"]["allocatable"]["nvidia.com/gpu.shared"] = str(replicas * count)
    made["metadata"]["annotations"] |= more
    return made


class PluginAccount(Account):
    """An account on a node whose agent tells what the plugin gave."""

    def __init__(self, told: Told | None = None, replicas: int = 4) -> None:
        self.told, self.replicas = told, replicas
        super().__init__()

    def _shown(self, cards: int) -> Any:
        made = telling(self.told, cards, self.replicas)
        self.nodes.take_node(Added(msgspec.convert(made, KubeNode)))
        return self.nodes.changed()[0]

    def tells(self, told: Told | None) -> None:
        """The agent tells this now."""
        self.told = told
        self.shows_node(telling(told, CARDS, self.replicas))

    def shows_node(self, node: Json) -> None:
        """The API shows the node so, and its pods are charged anew where that changes something."""
        self.nodes.take_node(Added(msgspec.convert(node, KubeNode)))
        new, _ = self.nodes.changed()
        stale, self.nodes.renamed = self.nodes.renamed | {node.name for node in new}, set()
        for name in sorted(stale):
            self._hear([self.view.update(one) for one in self.view.on_node(name)])
        if new:
            self.ledger.set_nodes(new)

    def used(self) -> list[tuple[int, int]]:
        """MiB and thousandths by card."""
        table = self.ledger.table
        used = zip(table.memory_used, table.milli_used, strict=True)
        return [(int(mib), int(milli)) for mib, milli in used]


QUARTER = CARD_MIB // 4, 250
NOTHING = 0, 0
WHOLE = CARD_MIB, 1000

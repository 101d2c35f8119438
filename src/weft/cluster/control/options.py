"""Settings of a live cluster."""

from collections.abc import Sequence

import msgspec

from weft.cluster.control.volume_binder import TIMEOUT_S
from weft.cluster.state.nodes import Unit
from weft.core.ledger import STRICT, RequestLimits
from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import InventoryFallback
from weft.dialects.node_links import LinksRule
from weft.kube.bind import BindOptions
from weft.model.ceilings import MOST_GANG_PODS
from weft.model.queue_rules import (
    NO_MOVES,
    NO_QUEUES,
    NOTHING_KEPT,
    HeadOfLine,
    MoveRules,
    QueueRules,
)


class EngineClusterOptions(msgspec.Struct, frozen=True):
    """Settings of a live cluster.

    `names` are the schedulerNames to schedule for (None: those of all profiles), `rules` describe
    the GPUs of nodes that report none, `links` how GPUs are connected; `limits` are the ledger's,
    `queues` are teams' shares, `head_of_line` says when GPUs are reserved for waiting pods, `moves`
    when pods are moved for other pods. `gang_pods`: the most pods that a group may need together.
    `interference`: an interference table is configured. `volume_timeout_s`: how long a placed pod
    waits until its volumes are bound.
    """

    names: Sequence[str] | None = None
    rules: Sequence[InventoryFallback] = ()
    links: Sequence[LinksRule] = ()
    gpushare_unit: Unit = "auto"
    volcano_memory_factor: int = 1
    seed: int = 0
    binding: BindOptions | None = None
    limits: RequestLimits = STRICT
    queues: QueueRules = NO_QUEUES
    head_of_line: HeadOfLine = NOTHING_KEPT
    moves: MoveRules = NO_MOVES
    gang_pods: int = MOST_GANG_PODS
    interference: bool = False
    volume_timeout_s: float = TIMEOUT_S

    @property
    def settings(self) -> DialectSettings:
        """Settings by which dialects read pods."""
        unit = self.gpushare_unit
        return DialectSettings(
            gpushare_unit="node" if unit == "auto" else unit,
            lends=max(self.limits) > 1000,
            interference_table=self.interference,
            volcano_memory_factor=self.volcano_memory_factor,
        )

"""Nodes with their GPUs (and MIG instances), as decisions see them."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from weft.model.gpu_links import GpuLinks
from weft.model.plugin_gpus import NONE_GIVEN, PluginGpus
from weft.model.request import Taint


class Gpu(msgspec.Struct, frozen=True, gc=False):
    """One GPU, or one MIG instance of it.

    `index` is the NVML index on its node, `memory_mib` the card's true memory, `milli` its cores in
    thousandths of a card (a MIG instance still counts 1000 of *itself*). `parent` is the index of
    the card that a MIG instance is cut from: the two are never held at the same time. `in_service`
    is False for cards reported broken: pods that have a part of such a card keep it, and no others
    get one.
    """

    index: int
    memory_mib: int
    model: str = ""
    uuid: str = ""
    milli: int = 1000
    parent: int | None = None
    in_service: bool = True


class CardNames(msgspec.Struct, frozen=True, gc=False):
    """Names of a node's cards in other systems' annotations, from objects other than the Node
    itself.

    `cards` are UUIDs by name: KAI's groups, Koordinator's minor numbers. `sharing` has, for each
    pod on the node with shares of KAI's groups, the groups; `reserved` has, for a group whose
    reservation pods name several cards, their UUIDs; `found` are all UUIDs that reservation pods
    name, the oldest pod's first. `given` are the GPUs that NVIDIA's device plugin gave to pods on
    the node, as the node's agent reports.
    """

    cards: dict[str, str] = {}
    sharing: frozenset[tuple[str, ...]] = frozenset()
    reserved: dict[str, tuple[str, ...]] = {}
    found: tuple[str, ...] = ()
    given: PluginGpus = NONE_GIVEN


class Node(msgspec.Struct, frozen=True, gc=False):
    """A node's GPUs and its other resources.

    `cpu_milli`, `memory_mib` and `extended` are allocatable amounts (thousandths of a core, MiB,
    and whole numbers by resource name). `rank` orders nodes with equal scores: lower first, then by
    name. `unit_mib` is the gpushare unit the node advertises (1024 for GiB, 1 for MiB, 0 if
    unknown).

    `delivers` are the GPU resources that reach containers there, as the kubelet ignores others;
    None: all reach them. `isolation` are the modes in which containers can have GPUs there
    (`model/agent_offer.py`); None: any, as on a trace's nodes. `fail_closed`: no container of a pod
    that requires the agent starts there without it. `silent_since` is when shares stopped being
    delivered (RFC 3339); unset while an agent delivers them, or if none ever did.

    `schedulable` is False for nodes that are not ready. `links` say how its GPUs are connected,
    unset if unknown. `declared_features` are those features of its kubelet that some pods need,
    unset for none. `called` has other systems' names of the cards, to read the annotations of bound
    pods; no decision uses it.
    """

    name: str
    gpus: tuple[Gpu, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    extended: dict[str, int] = {}
    labels: dict[str, str] = {}
    rank: int = 0
    unit_mib: int = 0
    delivers: tuple[str, ...] | None = None
    isolation: tuple[str, ...] | None = None
    fail_closed: bool = False
    schedulable: bool = True
    taints: tuple[Taint, ...] = ()
    links: GpuLinks | UnsetType = UNSET  # left out of a decisions file if unset
    silent_since: str | UnsetType = UNSET
    declared_features: tuple[str, ...] | UnsetType = UNSET
    called: CardNames | UnsetType = UNSET

    def lacks(self, resources: Sequence[str]) -> tuple[str, ...]:
        """Return those of these GPU resources that would not reach a pod's containers on this
        node."""
        if self.delivers is None:
            return ()
        return tuple(name for name in resources if name not in self.delivers)

    def isolates(self, mode: str) -> bool:
        """Return True if containers can have GPUs in this isolation mode on this node; always
        True for the mode ""."""
        return not mode or self.isolation is None or mode in self.isolation


class ClosedNode(msgspec.Struct, frozen=True, gc=False):
    """Reasons that keep pods off a node now: its taints, and whether it takes any pods at all."""

    name: str
    taints: tuple[Taint, ...] = ()
    schedulable: bool = True

"""Finds a node's GPUs from any source, so that clusters work before Weft's own agent is installed.

The first of these that a node has counts: Weft's annotation, Alnair's annotations, Volcano's, GPU
feature discovery's labels, gpushare's capacity, Elastic GPU's allocatable, the configuration.
ResourceSlices come before all of them unless an annotation describes each GPU. The other sources
are compared with the first: if they contradict each other the smaller size counts, with a warning,
since a size too small wastes a little memory and one too large kills processes.

A rounded size ("16 units of GiB") counts as the least memory it can mean.

If only `nvidia.com/gpu` is known of a node, its GPUs have unknown size and count as 100 MiB: whole
cards and percentages can be assigned there, amounts of memory cannot.
"""

import fnmatch
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from weft.dialects import alnair, elastic, gpushare, koordinator, node_links, nvidia, volcano, weft
from weft.dialects.catalog import is_gpu_resource
from weft.dialects.node_gpus import (
    InventorySource,
    ReportedGpu,
    advertised_by_agent,
    equal_gpus,
)
from weft.model import BadInputError, Gpu, Node, NodeManifest, parse_cpu_milli, parse_quantity
from weft.model.agent_offer import BY_NAME, WITHOUT_AGENT, AgentOffer, decode_offer
from weft.model.annotations import AGENT
from weft.model.ceilings import MOST_AMOUNT, MOST_CPU_MILLI, MOST_MEMORY_MIB
from weft.model.declared_features import NEEDED
from weft.model.manifest import Quantities
from weft.model.request import CORDON, Taint

UNKNOWN_MIB = 100
"""Memory assumed for a GPU of unknown size: every GPU has this much, and percentages are exact."""
UNLIMITED = 2**62
_MIB = 2**20
_RESERVE_PART = 16
"""A driver reserves less than 1/16 of a card's memory; feature discovery counts that part too."""
_NATIVE = ("cpu", "memory")
_SOURCES = tuple(
    system.reported_gpus for system in (weft, alnair, volcano, nvidia, gpushare, elastic)
)


class InventoryFallback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `inventory:` in the configuration: nodes whose GPUs no other source reports.

    `nodes` is a shell pattern on the node's name; `labels` must all be on the node. The first entry
    that fits a node counts.
    """

    count: int
    memory_mib: int
    model: str = ""
    nodes: str = "*"
    labels: dict[str, str] = {}

    def fits(self, node: NodeManifest) -> bool:
        """Return True if this entry is for the node."""
        labels = node.metadata.labels or {}
        return fnmatch.fnmatchcase(node.metadata.name, self.nodes) and all(
            labels.get(key) == value for key, value in self.labels.items()
        )


def inventory(
    node: NodeManifest,
    *,
    rules: Sequence[InventoryFallback] = (),
    unhealthy: str = "",
    accounted: Sequence[str] = (),
    links: Sequence[node_links.LinksRule] = (),
    slices: InventorySource | None = None,
) -> tuple[Node, tuple[str, ...]]:
    """Return the node as Weft sees it, and warnings (each names its source).

    `unhealthy` are the indexes in the ConfigMap kube-system/unhealthy-gpu-<node>, if there is one.
    `accounted` are GPU resources to count as the node's kubelet does: up to what the node
    advertises, without limit (`UNLIMITED`) if it does not advertise them. `links` are configured
    connections of GPUs, for nodes without another source. `slices` are the node's GPUs as drivers
    of dynamic resource allocation publish them.
    """
    warnings: list[str] = []
    sources = _sources_of(node, rules, slices, warnings)
    gpus = _combine(sources, warnings) if sources else _unknown_size(node, warnings)
    gpus = _out_of_service(gpus, unhealthy, gpushare.unhealthy_name(node.metadata.name), warnings)
    allocatable = node.status.allocatable or {}
    cpu = min(_amount(allocatable, "cpu", parse_cpu_milli, warnings), MOST_CPU_MILLI)
    memory = _amount(allocatable, "memory", parse_quantity, warnings) // _MIB
    offer = _offer(node, warnings)
    return Node(
        name=node.metadata.name,
        gpus=gpus,
        cpu_milli=cpu,
        memory_mib=min(memory, MOST_MEMORY_MIB),
        extended=_extended(allocatable, warnings) | _accounted(allocatable, accounted, warnings),
        labels=dict(node.metadata.labels or {}),
        unit_mib=_unit_mib(node, sources, gpus, warnings),
        delivers=_delivers(node, offer, warnings),
        isolation=offer.isolation if offer is not None else WITHOUT_AGENT,
        fail_closed=offer is not None and offer.fail_closed,
        schedulable=node.ready,
        taints=taints_of(node),
        links=node_links.links_of(node, gpus, links, warnings)
        or node_links.of_cards(sources[0].links if sources else None, gpus)
        or UNSET,
        declared_features=tuple(sorted(NEEDED.intersection(node.status.declared_features or ())))
        or UNSET,
    ), tuple(warnings)


def _unit_mib(
    node: NodeManifest,
    sources: Sequence[InventorySource],
    gpus: Sequence[Gpu],
    warnings: list[str],
) -> int:
    """Return the gpushare unit that the node counts in; 0 if unknown."""
    if advertised_by_agent(node, gpushare.GPU_MEM):
        capacity = node.status.capacity or {}
        total = _amount(capacity, gpushare.GPU_MEM, parse_quantity, warnings)
        return gpushare.agent_unit_mib(total, gpus) if total and gpus else 0
    return max((source.unit_mib for source in sources), default=0)


def _offer(node: NodeManifest, warnings: list[str]) -> AgentOffer | None:
    """Return the agent's offer on the node; None if there is none, or it cannot be read."""
    text = (node.metadata.annotations or {}).get(AGENT)
    if text is None:
        return None
    try:
        return decode_offer(text)
    except ValueError as error:
        warnings.append(f"ignored: {AGENT}: {error}: the node counts as one without an agent")
        return None


def _delivers(
    node: NodeManifest, offer: AgentOffer | None, warnings: list[str]
) -> tuple[str, ...] | None:
    """Return the GPU resources that the kubelet advertises; None if the agent delivers shares
    without them (by pod name).

    This decides which pods a node may get: a kubelet ignores resources that its node does not
    advertise, and would start a pod without its share.
    """
    if offer is not None and offer.delivery == BY_NAME:
        return None
    allocatable = node.status.allocatable or {}
    gpu_resources = [name for name in allocatable if is_gpu_resource(name)]
    amounts = {name: _amount(allocatable, name, parse_quantity, warnings) for name in gpu_resources}
    return tuple(sorted(name for name, amount in amounts.items() if amount))


def taints_of(node: NodeManifest) -> tuple[Taint, ...]:
    """Return the node's taints, with a cordon as one more taint, as in kube-scheduler: some pods
    tolerate it."""
    taints = tuple(Taint(t.key, t.effect, t.value) for t in node.spec.taints or ())
    if not node.spec.unschedulable or CORDON in taints:
        return taints
    return (*taints, replace(CORDON, is_cordon=True))


def _sources_of(
    node: NodeManifest,
    rules: Sequence[InventoryFallback],
    slices: InventorySource | None,
    warnings: list[str],
) -> list[InventorySource]:
    """Return the node's sources in order of precedence.

    ResourceSlices count only if no agent describes each GPU: a driver need not publish all GPUs.
    """
    readers: tuple[Callable[[NodeManifest], InventorySource | None], ...] = (
        *_SOURCES,
        lambda node: _configured(node, rules),
    )
    sources = []
    for read in readers:
        try:
            source = read(node)
        except BadInputError as error:
            warnings.append(f"ignored: {error}")
            continue
        if source is not None:
            sources.append(source)
    if slices is not None and not any(source.exact for source in sources):
        sources.insert(0, slices)
    return sources


def _configured(node: NodeManifest, rules: Sequence[InventoryFallback]) -> InventorySource | None:
    """Return the GPUs by the first configured entry for this node; None if there is none."""
    for rule in rules:
        if rule.fits(node):
            size = rule.memory_mib
            return equal_gpus("the configuration", rule.count, size, size, rule.model)
    return None


def _combine(sources: Sequence[InventorySource], warnings: list[str]) -> tuple[Gpu, ...]:
    first, *others = sources
    if first.exact:
        base: tuple[Gpu, ...] = first.exact
    else:
        base = tuple(Gpu(i, c.least, c.model, c.uuid) for i, c in enumerate(first.cards))
    count = min(len(source.cards) for source in sources)
    for other in others:
        if len(other.cards) != len(first.cards):
            warnings.append(
                f"{other.name} says {len(other.cards)} GPUs, {first.name} {len(first.cards)}: "
                "the smaller number counts"
            )
    gpus: list[Gpu] = []
    place = 0
    for gpu in base:
        if gpu.parent is None:
            if place < count:
                cards = [source.cards[place] for source in sources]
                sized = _sized(gpu, cards, sources, warnings)
                if first.name == koordinator.SOURCE:  # which has no models
                    model = next((card.model for card in cards if card.model), "")
                    sized = msgspec.structs.replace(sized, model=model)
                gpus.append(sized)
            place += 1
        elif any(instance.index == gpu.parent for instance in gpus):
            gpus.append(gpu)
    return tuple(gpus)


def _sized(
    gpu: Gpu, cards: Sequence[ReportedGpu], sources: Sequence[InventorySource], warnings: list[str]
) -> Gpu:
    """Return the card with a size that all sources allow; if they contradict each other, with the
    smallest, and a warning."""
    sized = [(card, source) for card, source in zip(cards, sources, strict=True) if card.most]
    if sources[0].exact:
        sized[1:] = [pair for pair in sized[1:] if not _counts_reserve(pair[0], gpu.memory_mib)]
    if len(sized) < 2:
        return gpu
    least, most = max(card.least for card, _ in sized), min(card.most for card, _ in sized)
    if least <= most:
        return msgspec.structs.replace(gpu, memory_mib=least)
    smallest = min(card.least for card, _ in sized)
    text = ", ".join(f"{source.name} {_range(card)}" for card, source in sized)
    warnings.append(f"GPU {gpu.index}: {text} MiB: the smaller size counts, {smallest} MiB")
    return msgspec.structs.replace(gpu, memory_mib=smallest)


def _counts_reserve(card: ReportedGpu, usable_mib: int) -> bool:
    """Return True if the reported size fits a card of this usable memory, with or without the part
    that the driver reserves."""
    return card.least - card.least // _RESERVE_PART <= usable_mib <= card.most


def _range(card: ReportedGpu) -> str:
    return f"{card.least}" if card.least == card.most else f"{card.least} to {card.most}"


def _unknown_size(node: NodeManifest, warnings: list[str]) -> tuple[Gpu, ...]:
    try:
        source = nvidia.counted_gpus(node)
    except BadInputError as error:
        warnings.append(f"ignored: {error}")
        return ()
    if source is None:
        return ()
    warnings.append(
        f"{len(source.cards)} GPUs of unknown memory: only whole cards and percentages can be "
        "assigned; install Weft's agent or write `inventory:` into the configuration"
    )
    return tuple(Gpu(index, UNKNOWN_MIB) for index in range(len(source.cards)))


def _out_of_service(
    gpus: tuple[Gpu, ...], unhealthy: str, config_map: str, warnings: list[str]
) -> tuple[Gpu, ...]:
    """Return the GPUs with those that the ConfigMap names, and their MIG instances, out of
    service."""
    broken: set[int] = set()
    for part in unhealthy.split(","):
        text = part.strip()
        if text.isascii() and text.isdecimal() and len(text) < 9:
            broken.add(int(text))
        elif text:
            warnings.append(f"ConfigMap {config_map}: {text[:40]!r} is not a GPU index")
    known = {gpu.index for gpu in gpus}
    warnings += [
        f"ConfigMap {config_map}: there is no GPU {index}" for index in sorted(broken - known)
    ]
    return tuple(
        msgspec.structs.replace(gpu, in_service=False) if {gpu.index, gpu.parent} & broken else gpu
        for gpu in gpus
    )


def _amount(
    amounts: Quantities,
    name: str,
    parse: Callable[[str | int | float, str], int],
    warnings: list[str],
) -> int:
    if name not in amounts:
        return 0
    try:
        return parse(amounts[name], name)
    except BadInputError as error:
        warnings.append(f"ignored: {error}")
        return 0


def _extended(allocatable: Quantities, warnings: list[str]) -> dict[str, int]:
    """Return the allocatable amounts of resources other than CPU, memory and GPUs."""
    return {
        name: min(_amount(allocatable, name, parse_quantity, warnings), MOST_AMOUNT)
        for name in allocatable
        if name not in _NATIVE and not is_gpu_resource(name)
    }


def _accounted(
    allocatable: Quantities, names: Sequence[str], warnings: list[str]
) -> dict[str, int]:
    """Return the allocatable amounts of these GPU resources, `UNLIMITED` for one that the node does
    not advertise: kubelets do not check such resources at admission."""
    return {
        name: min(_amount(allocatable, name, parse_quantity, warnings), MOST_AMOUNT)
        if name in allocatable
        else UNLIMITED
        for name in names
    }

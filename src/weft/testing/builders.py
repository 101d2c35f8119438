"""Builders: `pod(memory_mib=300)`, `node("a", gpus=8, model="A100")`. Pass only what matters.

`memory_mib` means GPU memory; host memory is `host_memory_mib`. What is left out is ample on nodes
and zero on pods, so that only what a test names can decide its outcome.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from weft.model import (
    DeviceRule,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    Placement,
    PodRequest,
    Shape,
    Share,
)
from weft.model.agent_offer import BY_NAME, ISOLATIONS, AgentOffer, encode_offer
from weft.model.annotations import AGENT
from weft.model.gpu_links import GpuLinks
from weft.model.request import TopologyWish

ROOMY_CPU_MILLI = 128_000
ROOMY_HOST_MEMORY_MIB = 1_048_576
CARD_MIB = 16_384

AGENT_BY_NAME = {AGENT: encode_offer(AgentOffer("test", BY_NAME, ISOLATIONS))}
"""The annotation of a node whose agent delivers every kind of request, in every isolation mode."""

MIG_CUTS = {1: (7, 1), 2: (3, 2), 3: (2, 4), 4: (1, 4), 7: (1, 8)}
"""For each number of equal instances per card: the compute slices of one instance, and the divisor
of the card's memory."""


def node(
    name: str,
    *,
    gpus: int = 0,
    model: str | Sequence[str] = "",
    memory_mib: int | Sequence[int] = CARD_MIB,
    mig: int = 0,
    broken: Iterable[int] = (),
    cpu_milli: int = ROOMY_CPU_MILLI,
    host_memory_mib: int = ROOMY_HOST_MEMORY_MIB,
    extended: Mapping[str, int] | None = None,
    rank: int = 0,
    unit_mib: int = 0,
    schedulable: bool = True,
    delivers: Sequence[str] | None = None,
    isolation: Sequence[str] | None = None,
    links: GpuLinks | None = None,
) -> Node:
    """Build a node with `gpus` cards; `model` and `memory_mib` are for all cards, or one for each.

    `mig` cuts every card into that many equal instances (1, 2, 3, 4 or 7), listed after the cards;
    `broken` are indexes of GPUs out of service. UUIDs are `GPU-<node>-<index>`. `delivers` are the
    GPU resources that the node advertises; by default any request is delivered. `isolation` are the
    modes that it offers; by default all. `links` says how the cards are connected.
    """
    models = [model] * gpus if isinstance(model, str) else list(model)
    sizes = [memory_mib] * gpus if isinstance(memory_mib, int) else list(memory_mib)
    cards = [
        Gpu(index=index, memory_mib=size, model=kind, uuid=f"GPU-{name}-{index}")
        for index, (kind, size) in enumerate(zip(models, sizes, strict=True))
    ]
    devices = cards + [part for card in cards for part in _instances(name, card, mig, len(cards))]
    out = frozenset(broken)
    return Node(
        name=name,
        gpus=tuple(replace(gpu, in_service=gpu.index not in out) for gpu in devices),
        cpu_milli=cpu_milli,
        memory_mib=host_memory_mib,
        extended=dict(extended or {}),
        rank=rank,
        unit_mib=unit_mib,
        delivers=None if delivers is None else tuple(delivers),
        isolation=None if isolation is None else tuple(isolation),
        schedulable=schedulable,
        links=links or UNSET,
    )


def _instances(name: str, card: Gpu, mig: int, cards: int) -> list[Gpu]:
    if mig == 0:
        return []
    if mig not in MIG_CUTS:
        raise ValueError(f"mig is {mig}; a card is cut into 1, 2, 3, 4 or 7 equal instances")
    compute, part = MIG_CUTS[mig]
    size = card.memory_mib // part
    return [
        Gpu(
            index=cards + card.index * mig + offset,
            memory_mib=size,
            model=f"{card.model}-MIG-{compute}g.{size // 1024}gb",
            uuid=f"MIG-{name}-{card.index}-{offset}",
            parent=card.index,
        )
        for offset in range(mig)
    ]


def shape(
    *,
    gpus: int = 0,
    memory_mib: int = 0,
    percent: int = 0,
    milli: int = 0,
    gpu_requests: Sequence[GpuRequest] = (),
    cpu_milli: int = 0,
    host_memory_mib: int = 0,
    extended: Mapping[str, int] | None = None,
    models: Sequence[str] = (),
    not_models: Sequence[str] = (),
    how: Literal["exact", "contains", "regex"] = "exact",
    uuids: Sequence[str] = (),
    not_uuids: Sequence[str] = (),
    needs_gpu_node: bool = False,
    unit_mib: int = 0,
    resources: Sequence[str] = (),
    isolation: str = "",
    node_name: str = "",
    application: str = "",
    job_class: str = "",
    topology: TopologyWish | UnsetType = UNSET,
) -> Shape:
    """Build a pod's request. `gpus=2` alone means two whole cards; with `memory_mib`, `percent` or
    `milli` it means that much of each of two cards; `gpu_requests` states the GPU requests in full
    instead."""
    return Shape(
        gpu_requests=tuple(gpu_requests) or _gpu_request(gpus, memory_mib, percent, milli),
        cpu_milli=cpu_milli,
        memory_mib=host_memory_mib,
        extended=tuple(sorted((extended or {}).items())),
        devices=DeviceRule(tuple(models), tuple(not_models), how, tuple(uuids), tuple(not_uuids)),
        needs_gpu_node=needs_gpu_node,
        unit_mib=unit_mib,
        resources=tuple(resources),
        isolation=isolation,
        node_name=node_name,
        application=application,
        job_class=job_class,
        topology=topology,
    )


def _gpu_request(gpus: int, memory_mib: int, percent: int, milli: int) -> tuple[GpuRequest, ...]:
    if memory_mib or percent or milli:
        memory = GpuMemoryRequest("mib", memory_mib) if memory_mib else GpuMemoryRequest()
        if percent:
            memory = GpuMemoryRequest("percent", percent)
        return (GpuRequest(count=max(gpus, 1), memory=memory, milli=milli),)
    if gpus:
        return (GpuRequest(count=gpus, memory=GpuMemoryRequest("whole"), milli=1000, whole=True),)
    return ()


def pod(
    name: str = "pod",
    *,
    gpus: int = 0,
    memory_mib: int = 0,
    percent: int = 0,
    milli: int = 0,
    gpu_requests: Sequence[GpuRequest] = (),
    cpu_milli: int = 0,
    host_memory_mib: int = 0,
    models: Sequence[str] = (),
    node_name: str = "",
    application: str = "",
    job_class: str = "",
    asks: Shape | None = None,
    priority: int = 0,
    queue_priority: int = 0,
    created_ns: int = 0,
    scheduler_name: str = "weft",
) -> PodRequest:
    """Build a pod whose UID is its name. `asks` is a shape from `shape(...)` for rarer requests."""
    requested = asks or shape(
        gpus=gpus,
        memory_mib=memory_mib,
        percent=percent,
        milli=milli,
        gpu_requests=gpu_requests,
        cpu_milli=cpu_milli,
        host_memory_mib=host_memory_mib,
        models=models,
        node_name=node_name,
        application=application,
        job_class=job_class,
    )
    return PodRequest(
        uid=name,
        name=name,
        shape=requested,
        scheduler_name=scheduler_name,
        priority=priority,
        queue_priority=queue_priority,
        created_ns=created_ns,
    )


def placement(
    uid: str,
    node: str,
    gpu: int | Sequence[int] = (),
    *,
    memory_mib: int = 0,
    milli: int = 0,
    shares: Sequence[Share] = (),
    cpu_milli: int = 0,
    host_memory_mib: int = 0,
    extended: Mapping[str, int] | None = None,
) -> Placement:
    """Build a pod's placement: this much memory and cores of each GPU in `gpu`, or `shares` stated
    in full."""
    indexes = (gpu,) if isinstance(gpu, int) else tuple(gpu)
    return Placement(
        uid=uid,
        node=node,
        shares=tuple(shares) or tuple(Share(0, index, memory_mib, milli) for index in indexes),
        cpu_milli=cpu_milli,
        memory_mib=host_memory_mib,
        extended=tuple(sorted((extended or {}).items())),
    )

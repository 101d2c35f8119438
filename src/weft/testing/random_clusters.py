"""Random small clusters and shapes that exercise every rule, for differential tests."""

from random import Random

from weft.model import DeviceRule, GpuMemoryRequest, GpuRequest, Node, Shape
from weft.model.agent_offer import MPS, TIME_SLICING, WITHOUT_AGENT
from weft.testing.builders import node

CARDS = (("T4", 16_160), ("A100-SXM4-40GB", 40_960), ("A100-SXM4-80GB", 81_920), ("V100", 16_384))
RULES: tuple[DeviceRule, ...] = (
    DeviceRule(models=("T4",)),
    DeviceRule(models=("T4", "V100")),
    DeviceRule(models=("a100",), how="contains"),
    DeviceRule(models=("A100.SXM4", "^v1"), how="regex"),
    DeviceRule(not_models=("T4",)),
    DeviceRule(not_models=("mig",), how="contains"),
    DeviceRule(models=("mig",), how="contains"),
    DeviceRule(models=("H100",)),
)
LICENCE = "example.com/licence"


def random_nodes(random: Random, most: int = 5, *, mig: bool = True) -> list[Node]:
    """Return one to `most` nodes. In two of five clusters all nodes are alike and plain."""
    count = random.randint(1, most)
    if random.random() < 0.4:
        model, size = random.choice(CARDS)
        gpus = random.randint(0, 4)
        return [
            node(f"n{i}", gpus=gpus, model=model, memory_mib=size, cpu_milli=4000)
            for i in range(count)
        ]
    return [random_node(random, f"n{i}", mig=mig) for i in range(count)]


def random_node(random: Random, name: str, *, mig: bool = True) -> Node:
    """Return a node with cards of one or several models, perhaps broken, MIG, cordoned or small."""
    gpus = random.choice((0, 1, 2, 2, 3, 4))
    cards = [random.choice(CARDS) for _ in range(gpus)]
    if random.random() < 0.5:
        cards = cards[:1] * gpus
    cut = random.choice((2, 3)) if mig and gpus in (1, 2) and random.random() < 0.5 else 0
    total = gpus * (1 + cut)
    return node(
        name,
        gpus=gpus,
        model=[model for model, _ in cards],
        memory_mib=[size for _, size in cards],
        mig=cut,
        broken=[index for index in range(total) if random.random() < 0.1],
        cpu_milli=random.choice((2000, 8000)),
        host_memory_mib=random.choice((4096, 65_536)),
        extended={LICENCE: random.randint(0, 3)} if random.random() < 0.5 else {},
        rank=random.randint(0, 2),
        unit_mib=random.choice((0, 0, 1, 1024)),
        schedulable=random.random() < 0.9,
        isolation=_aside(random).choice((None, None, WITHOUT_AGENT, (*WITHOUT_AGENT, MPS))),
    )


def random_shape(random: Random, nodes: list[Node]) -> Shape:
    """Return a shape that may use any field of a request; about half of them fit somewhere."""
    rare = random.random
    return Shape(
        gpu_requests=_gpu_requests(random),
        cpu_milli=random.choice((0, 0, 500, 3000)),
        memory_mib=random.choice((0, 0, 1024, 8192)),
        extended=((LICENCE, random.randint(1, 2)),) if rare() < 0.15 else (),
        devices=_rule(random, nodes),
        needs_gpu_node=rare() < 0.3,
        unit_mib=random.choice((1, 1024)) if rare() < 0.15 else 0,
        node_name=random.choice([*(place.name for place in nodes), "gone"])
        if rare() < 0.15
        else "",
        isolation=_aside(random).choice((TIME_SLICING, MPS, *("",) * 11)),
    )


def _aside(random: Random) -> Random:
    """Return a second generator: drawing from it does not change what `random` yields
    afterwards."""
    return Random(str(random.getstate()[1][-1]) + str(random.getstate()[1][:2]))


def _rule(random: Random, nodes: list[Node]) -> DeviceRule:
    draw = random.random()
    if draw < 0.6:
        return DeviceRule()
    if draw < 0.85:
        return random.choice(RULES)
    uuids = [gpu.uuid for place in nodes for gpu in place.gpus] or ["none"]
    some = tuple(random.sample(uuids, min(len(uuids), random.randint(1, 4))))
    return DeviceRule(uuids=some) if random.random() < 0.5 else DeviceRule(not_uuids=some)


def _gpu_requests(random: Random) -> tuple[GpuRequest, ...]:
    draw = random.random()
    if draw < 0.1:
        return ()
    headroom = random.choice((0, 0, 0, 1, 2000))
    if draw < 0.45:
        return (_one(random, headroom, 1),)
    if draw < 0.65:
        return (_one(random, headroom, random.randint(2, 3)),)
    if draw < 0.75:
        return (_split(random),)
    if draw < 0.82:
        return (_one(random, headroom, random.randint(1, 2)), _split(random))
    gpu_requests = random.randint(2, 3)
    return tuple(
        _one(random, headroom, random.choice((1, 1, 2)) if gpu_requests == 2 else 1)
        for _ in range(gpu_requests)
    )


def _one(random: Random, headroom_mib: int, count: int) -> GpuRequest:
    if random.random() < 0.3:
        least = random.choice(
            (GpuMemoryRequest("whole"), GpuMemoryRequest("whole"), GpuMemoryRequest("mib", 20_000))
        )
        return GpuRequest(count=count, memory=least, milli=1000, whole=True)
    return GpuRequest(
        count=count,
        memory=random_memory(random),
        milli=random.choice((0, 0, 250, 500, 700, 1000)),
        headroom_mib=headroom_mib,
    )


def random_memory(random: Random) -> GpuMemoryRequest:
    """Return a memory request of any kind."""
    return random.choice(
        (
            GpuMemoryRequest(),
            GpuMemoryRequest("mib", random.choice((1, 4096, 8192, 16_160, 20_480, 40_960))),
            GpuMemoryRequest("units", random.randint(1, 40), unit_mib=1024),
            GpuMemoryRequest("units", random.randint(1, 16), unit_mib=1024, half_up=True),
            GpuMemoryRequest(
                "node-units", random.choice((4, 15, 40, 9000)), random.choice((1, 1024))
            ),
            GpuMemoryRequest("percent", random.choice((10, 33, 50, 100))),
            GpuMemoryRequest("whole"),
        )
    )


def _split(random: Random) -> GpuRequest:
    return GpuRequest(
        count=random.randint(1, 3),
        memory=GpuMemoryRequest("mib", random.choice((4096, 16_161, 30_000, 60_000, 120_000))),
        milli=random.choice((0, 0, 0, 300)),
        split=True,
    )

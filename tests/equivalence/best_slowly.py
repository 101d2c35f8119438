"""The most GPU that pods can be given, found by trying every way to place them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.model import Node, Shape


class FreeGpu(NamedTuple):
    """The free part of a GPU: thousandths of its cores, MiB."""

    model: str
    milli: int
    memory_mib: int
    size_mib: int


class FreeNode(NamedTuple):
    """The free part of a node: CPU, memory, each GPU."""

    cpu_milli: int
    memory_mib: int
    gpus: tuple[FreeGpu, ...]


def free(node: Node) -> FreeNode:
    """An empty node."""
    gpus = (FreeGpu(gpu.model, gpu.milli, gpu.memory_mib, gpu.memory_mib) for gpu in node.gpus)
    return FreeNode(node.cpu_milli, node.memory_mib, tuple(gpus))


def placements(node: FreeNode, shape: Shape) -> Iterator[FreeNode]:
    """Yields the rest of the node after each way to place a pod of one GPU request, or none,
    there."""
    if node.cpu_milli < shape.cpu_milli or node.memory_mib < shape.memory_mib:
        return
    left = node.cpu_milli - shape.cpu_milli, node.memory_mib - shape.memory_mib
    if not shape.gpu_requests:
        yield FreeNode(*left, node.gpus)
        return
    (request,) = shape.gpu_requests
    fitting: dict[FreeGpu, list[int]] = {}
    for at, gpu in enumerate(node.gpus):
        mib = request.memory.mib_on(gpu.size_mib)
        idle = gpu.milli == 1000 and gpu.memory_mib == gpu.size_mib
        enough = idle if request.whole else gpu.milli >= request.milli and gpu.memory_mib >= mib
        if enough and shape.devices.accepts_model(gpu.model):
            fitting.setdefault(gpu, []).append(at)
    for chosen in _choices(list(fitting.values()), request.count):
        gpus = list(node.gpus)
        for at in chosen:
            gpu = gpus[at]
            mib = request.memory.mib_on(gpu.size_mib)
            rest = (0, 0) if request.whole else (gpu.milli - request.milli, gpu.memory_mib - mib)
            gpus[at] = FreeGpu(gpu.model, *rest, gpu.size_mib)
        yield FreeNode(*left, tuple(sorted(gpus)))


def _choices(alike: list[list[int]], count: int) -> Iterator[tuple[int, ...]]:
    """Every number of GPUs out of each group of equal ones, `count` in all."""
    if not count:
        yield ()
    elif alike:
        for taken in range(min(count, len(alike[0])) + 1):
            for others in _choices(alike[1:], count - taken):
                yield (*alike[0][:taken], *others)


def best_milli(nodes: Sequence[Node], pods: Sequence[tuple[Shape, int]], must: int) -> int | None:
    """The most thousandths of GPU over all sets of pods that hold the first `must`; None: none."""
    known: dict[tuple[int, tuple[FreeNode, ...]], int | None] = {}

    def best(at: int, state: tuple[FreeNode, ...]) -> int | None:
        if at == len(pods):
            return 0
        key = at, state
        if key not in known:
            shape, milli = pods[at]
            found = [] if at < must else [best(at + 1, state)]
            for place, node in enumerate(state):
                if node in state[:place]:
                    continue
                for left in placements(node, shape):
                    after = tuple(sorted((*state[:place], left, *state[place + 1 :])))
                    rest = best(at + 1, after)
                    found.append(None if rest is None else milli + rest)
            known[key] = max((one for one in found if one is not None), default=None)
        return known[key]

    return best(0, tuple(sorted(map(free, nodes))))

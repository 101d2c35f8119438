"""The policies once more, slow and obvious, straight from their sources.

Nothing here is shared with the fast ones but the model's values and the seeded draw.
"""

import itertools
import math
from collections.abc import Iterator

from placing_slowly import Card, Chosen, Machine, Reference, asks_memory, room, undo

from weft.core.framework.fragments import TypicalPods
from weft.core.framework.policy import draw
from weft.model import GpuMemoryRequest, GpuRequest, Shape

# --- how much of GPUs, in thousandths --------------------------------------------------------


def memory_pod(shape: Shape) -> bool:
    return any(asks_memory(gpu_request) for gpu_request in shape.gpu_requests)


def share(card: Card, shape: Shape) -> int:
    return card.free * 1000 // card.total if memory_pod(shape) else card.free_milli


def asked(machine: Machine, shape: Shape) -> int:
    if not memory_pod(shape):
        return sum(c.count * (1000 if c.whole else c.milli) for c in shape.gpu_requests)
    card = machine.cards[0]
    return sum(c.count * (card.charge(c)[0] * 1000 // card.total) for c in shape.gpu_requests)


def free(machine: Machine, shape: Shape) -> int:
    return sum(share(card, shape) for card in machine.cards)


# --- one class a policy ------------------------------------------------------------------------


class BestFit(Reference):
    def node_score(self, machine, shape):
        gpu_left = sum(card.free_milli for card in machine.cards) - sum(
            c.count * (1000 if c.whole else c.milli) for c in shape.gpu_requests
        )
        v = 0.5 * (machine.cpu - shape.cpu_milli) / 128000 + 0.5 * gpu_left / 8000
        return math.trunc(100 * (1 - v))


class DotProduct(Reference):
    def node_score(self, machine, shape):
        cpu = machine.cpu / 128000 * (shape.cpu_milli / 128000)
        gpu = free(machine, shape) / 8000 * (asked(machine, shape) / 8000)
        return math.trunc(100 * (1 - (cpu + gpu) / 2))


class GpuPacking(Reference):
    def node_score(self, machine, shape):
        if not shape.gpu_requests:
            return 0
        gpus = len(machine.cards)
        if all(card.idle for card in machine.cards):
            return max(33 - gpus, gpus)
        gpu_request = shape.gpu_requests[0]
        if gpu_request.whole:
            return max(50 - gpu_request.count, 33)
        fitting = [share(card, shape) for card in machine.cards if card.fits(gpu_request, shape)]
        tightest = sorted(fitting)[: gpu_request.count]
        idle = tightest.count(1000)
        if idle:
            return max(50 - idle, 33)
        return max(100 - sum(100 * g // 1000 for g in tightest) // 10, 50)


class GpuClustering(Reference):
    def node_score(self, machine, shape):
        if not shape.gpu_requests:
            return 0
        gpus = sum(gpu_request.count for gpu_request in shape.gpu_requests)
        one = gpus == 1 and not shape.gpu_requests[0].whole and shape.gpu_requests[0].milli < 1000
        own = 0 if one else gpus
        base = 25 * (8000 - free(machine, shape)) // 8000
        if own in machine.classes:
            return base + (75 if set(machine.classes) == {own} else 50)
        return base + (0 if machine.classes else 25)


class Random(Reference):
    def pick_node(self, machines, key):
        return machines[draw(key, len(machines))]

    def pick(self, machine, gpus, gpu_request, key):
        return gpus[draw(key, len(gpus))]


class FirstFit(Reference):
    def pick(self, machine, gpus, gpu_request, key):
        return gpus[0]


class Exclusive(Reference):
    def shape(self, shape):
        gpu_requests = tuple(
            GpuRequest(c.count, self.least(c), whole=True) for c in shape.gpu_requests
        )
        return Shape(gpu_requests, shape.cpu_milli, shape.memory_mib, devices=shape.devices)

    @staticmethod
    def least(gpu_request):
        if gpu_request.headroom_mib == 0 or gpu_request.memory.kind in {
            "units",
            "percent",
            "whole",
        }:
            return gpu_request.memory
        return GpuMemoryRequest("mib", gpu_request.memory.value + gpu_request.headroom_mib)


def standing(machine: Machine, gpu: int, gpu_request: GpuRequest) -> int:
    if gpu_request.whole:
        return sum(card.idle for card in machine.cards)
    return room(machine.cards[gpu], gpu_request)


class Binpack(Reference):
    by_device = True

    def gpu_score(self, machine, gpu, shape, gpu_request):
        return -standing(machine, gpu, shape.gpu_requests[gpu_request])


class Spread(Reference):
    by_device = True

    def gpu_score(self, machine, gpu, shape, gpu_request):
        on_node = free(machine, shape) // len(machine.serving)
        return 1000 * standing(machine, gpu, shape.gpu_requests[gpu_request]) + min(on_node, 999)


class GpuShare(Reference):
    pass


class SmallestFirst(Reference):
    pass


class NanoBinpack(Reference):
    last_first = True

    def node_score(self, machine, shape):
        gpus = len(machine.serving)
        used = sum(1000 - card.free_milli for card in machine.serving)
        return (100 * used // (1000 * gpus) if gpus else 0) - gpus

    def pick(self, machine, gpus, gpu_request, key):
        return min(gpus, key=lambda g: (self.left(machine.cards[g], gpu_request), g))

    @staticmethod
    def left(card, gpu_request):
        return card.free_milli if gpu_request.milli else room(card, gpu_request)


class NanoSpread(NanoBinpack):
    def node_score(self, machine, shape):
        idle = sum(card.idle for card in machine.serving)
        percent = sum(card.free_milli for card in machine.serving)
        return 100 * idle + percent // 100 - len(machine.serving)

    def pick(self, machine, gpus, gpu_request, key):
        return max(gpus, key=lambda g: (self.left(machine.cards[g], gpu_request), g))


class AlnairCostSaving(Reference):
    def node_score(self, machine, shape):
        return sum((card.total - card.free + 512) // 1024 for card in machine.serving)

    def pick(self, machine, gpus, gpu_request, key):
        return min(gpus, key=lambda gpu: machine.cards[gpu].uuid)


class AlnairHighPerformance(AlnairCostSaving):
    def node_score(self, machine, shape):
        return 10_000 - super().node_score(machine, shape)


class AlnairExact(AlnairCostSaving):
    def node_score(self, machine, shape):
        return 0


class ElasticBinpack(Reference):
    """Every assignment in container order, GPUs ascending; the last of the best leaves."""

    def assign(self, machine, shape, machines, key):
        best = None
        for chosen in leaves(machine, shape, 0, []):
            score = self.leaf(machine, shape, chosen)
            if best is None or score >= best[0]:
                best = (score, chosen)
        return best

    def leaf(self, machine, shape, chosen):
        if not chosen:
            return 0
        memory = [card.free for card in machine.cards]
        core = [card.free_milli for card in machine.cards]
        single = {gpu for gpu_request, gpu in chosen if shape.gpu_requests[gpu_request].count == 1}
        card = max(card.total for card in machine.cards)
        return self.score(memory, core, card, len(single))

    def score(self, memory, core, card, used):
        apart = (max(memory) - min(memory)) * 100_000 // card + (max(core) - min(core)) * 100
        return apart // (2 * (used + 1))


class ElasticBinpackExact(ElasticBinpack):
    def score(self, memory, core, card, used):
        percent = [milli // 10 for milli in core]
        return (max(memory) + max(percent) - min(memory) - min(percent)) // 2 // (used + 1) * 100


class ElasticSpread(ElasticBinpack):
    def leaf(self, machine, shape, chosen):
        return 0


def leaves(machine: Machine, shape: Shape, index: int, chosen: Chosen) -> Iterator[Chosen]:
    """All assignments, with the machine's cards charged while each is looked at."""
    if index == len(shape.gpu_requests):
        yield list(chosen)
        return
    gpu_request = shape.gpu_requests[index]
    fits = [gpu for gpu, card in enumerate(machine.cards) if card.fits(gpu_request, shape)]
    ways = itertools.permutations(fits, gpu_request.count)
    if gpu_request.whole:
        ways = iter([tuple(fits[: gpu_request.count])] if len(fits) >= gpu_request.count else [])
    for gpus in ways:
        for gpu in gpus:
            machine.cards[gpu].take(gpu_request)
        yield from leaves(machine, shape, index + 1, chosen + [(index, gpu) for gpu in gpus])
        for gpu in gpus:
            machine.cards[gpu].take(gpu_request, -1)


class Fgd(Reference):
    by_device = True

    def __init__(self, typical: TypicalPods):
        self.typical = typical

    def node_score(self, machine, shape):
        single = len(shape.gpu_requests) == 1 and shape.gpu_requests[0].whole
        if shape.gpu_requests and not single:
            return 0
        before = self.fragment(machine, machine.cpu)
        chosen = []
        if shape.gpu_requests:
            fits = [
                g for g, card in enumerate(machine.cards) if card.fits(shape.gpu_requests[0], shape)
            ]
            chosen = [(0, gpu) for gpu in fits[: shape.gpu_requests[0].count]]
        return self.fall(machine, shape, chosen, before)

    def gpu_score(self, machine, gpu, shape, gpu_request):
        if shape.gpu_requests[gpu_request].whole:
            return None
        several = len(shape.gpu_requests) > 1 or shape.gpu_requests[gpu_request].count > 1
        cpu_before = machine.cpu - (shape.cpu_milli if several else 0)
        before = self.fragment(machine, cpu_before)
        return self.fall(machine, shape, [(gpu_request, gpu)], before)

    def fall(self, machine, shape, chosen, before):
        for gpu_request, gpu in chosen:
            machine.cards[gpu].take(shape.gpu_requests[gpu_request])
        after = self.fragment(machine, machine.cpu - shape.cpu_milli)
        undo(machine, shape, chosen)
        return int(100 / (1 + math.exp(-(before - after) / 1000)))

    def fragment(self, machine: Machine, cpu: int) -> float:
        """F of the node for the typical pods, added up by category in the published order."""
        shares = [min(card.free_milli, card.free * 1000 // card.total) for card in machine.serving]
        all_of_it = sum(shares)
        sums = dict.fromkeys("abcdef", 0.0)
        model = machine.cards[0].model if machine.cards else ""
        typical = self.typical
        for kind, part, rule in zip(
            typical.gpu_types, typical.gpu_share.tolist(), typical.rules, strict=True
        ):
            pod_cpu, milli, gpus, _ = kind
            gpu_fits = sum(share >= milli for share in shares) >= gpus
            lost = sum(share for share in shares if share < milli)
            if not rule.accepts_model(model):
                sums["f"] += part * all_of_it
            elif cpu >= pod_cpu:
                sums["b"] += part * (lost if gpu_fits else all_of_it)
            else:
                sums["c" if gpu_fits else "a"] += part * all_of_it
        cpu_types = zip(
            typical.cpu_only_milli.tolist(), typical.cpu_only_share.tolist(), strict=True
        )
        for pod_cpu, part in cpu_types:
            sums["d" if cpu >= pod_cpu else "e"] += part * all_of_it
        total = 0.0
        for category in "abcdef":
            total += sums[category]
        return total

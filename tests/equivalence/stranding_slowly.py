"""Least stranding as its formulas say, one node and one GPU after another, everything anew.

For clusters of whole cards of 1000 thousandths whose pods ask for no GPU memory.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from weft.model import Node, Shape


class Popular(NamedTuple):
    """One shape, how often, and what follows from the two."""

    shape: Shape
    count: int

    @property
    def gpus(self) -> int:
        return sum(request.count for request in self.shape.gpu_requests)

    @property
    def milli(self) -> int:
        return sum(
            request.count * (1000 if request.whole else request.milli)
            for request in self.shape.gpu_requests
        )

    @property
    def is_share(self) -> bool:
        return self.gpus == 1 and self.milli < 1000


class SlowState:
    """A node: free CPU, memory, GPUs."""

    def __init__(self, node: Node) -> None:
        self.name, self.cpu, self.memory = node.name, node.cpu_milli, node.memory_mib
        self.gpus = [1000] * len(node.gpus)
        self.model = node.gpus[0].model if node.gpus else ""

    @property
    def free(self) -> int:
        return sum(self.gpus)

    @property
    def idle(self) -> int:
        return self.gpus.count(1000)


class SlowTurnover:
    """Tells whose place pods took: all that is held is known by pod, and counted anew each time."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.came: list[int] = []
        self.went: list[int] = []
        self.part, self.seen = 0.0, 0

    def takes(self, pod: int, amount: int) -> None:
        self.held[pod] = amount
        self.came.append(amount)

    def frees(self, pod: int) -> None:
        self.went.append(self.held.pop(pod))

    def settle(self) -> float:
        old, new = sum(self.before.values()), sum(self.came)
        if old + new:
            self.part = min(1.0, (self.part * old + sum(self.went)) / (old + new))
        self.before, self.came, self.went = dict(self.held), [], []
        return self.part

    @property
    def comes_back(self) -> float:
        """How much of what is taken is reckoned to come back: from a half on everything, and
        while fewer than 200 pods were `seen` to come."""
        return min(1.0, 2 * self.part) if self.seen >= 200 else 1.0


class SlowStranding:
    """Decides for pods in order; `refresh` makes the prices anew."""

    def __init__(
        self, nodes: Sequence[Node], popular: Sequence[tuple[Shape, int]], f: float, pack: float
    ) -> None:
        self.nodes = [SlowState(node) for node in nodes]
        self.popular = [Popular(shape, count) for shape, count in popular]
        self.f, self.pack = f, pack
        self.total = sum(each.milli * each.count for each in self.popular)
        self.completion = _completion(self.popular)
        self.refresh()

    def refresh(self) -> None:
        models = {node.model for node in self.nodes}
        free = {m: sum(n.free for n in self.nodes if n.model == m) for m in models}
        all_free = sum(free.values())
        self.price = dict.fromkeys(models, 0.0)
        self.slots: list[tuple[int, int, set[str], float]] = []
        for each in self.popular:
            accepted = {m for m in models if each.shape.devices.accepts_model(m)}
            part = each.milli * each.count / self.total if self.total else 0.0
            there = sum(free[m] for m in accepted)
            if accepted != models and there:
                for model in accepted:
                    self.price[model] += part * all_free / there
            if each.gpus > 1:
                cpu = each.shape.cpu_milli
                fitting = sum(
                    min(n.idle // each.gpus, n.cpu // cpu if cpu else n.idle)
                    for n in self.nodes
                    if n.model in accepted
                )
                wanted = part * all_free / (fitting * each.gpus * 1000) if fitting else math.inf
                self.slots.append((each.gpus, cpu, accepted, wanted))

    def cost(self, cpu: int, memory: int, gpus: Sequence[int], model: str) -> float:
        free, idle = sum(gpus), list(gpus).count(1000)
        cost = -sum(self.completion[share // 10] for share in gpus)
        cost -= min(1.0, self.price.get(model, 0.0)) * free
        for size in sorted({slot[0] for slot in self.slots}):
            for number in range(1, idle // size + 1):
                wanted = sum(
                    w
                    for s, asked, accepted, w in self.slots
                    if s == size and asked <= cpu // number and model in accepted
                )
                cost -= 1000 * size * min(1.0, wanted) ** 4
        asked_cpu = sum(each.shape.cpu_milli * each.count for each in self.popular)
        asked_memory = sum(each.shape.memory_mib * each.count for each in self.popular)
        total = max(self.total, 1)
        short = [
            max(0.0, 1 - have / (self.f * asked / total * free)) ** 2 if asked and free else 0.0
            for have, asked in ((cpu, asked_cpu), (memory, asked_memory))
        ]
        return cost + free * max(short)

    def end(self, shape: Shape, place: tuple[str, tuple[int, ...]]) -> None:
        """The pod that was placed there gives everything back."""
        pod = Popular(shape, 1)
        node = next(node for node in self.nodes if node.name == place[0])
        node.cpu += shape.cpu_milli
        node.memory += shape.memory_mib
        for gpu in place[1]:
            node.gpus[gpu] += pod.milli if pod.is_share else 1000

    def place(self, shape: Shape) -> tuple[str, tuple[int, ...]] | None:
        """Node and GPUs of the pod, which it then holds; None where it fits nowhere."""
        pod = Popular(shape, 1)
        best: tuple[int, int, tuple[int, ...]] | None = None
        for at, node in enumerate(self.nodes):
            if node.cpu < shape.cpu_milli or node.memory < shape.memory_mib:
                continue
            if pod.gpus and not shape.devices.accepts_model(node.model):
                continue
            before = self.cost(node.cpu, node.memory, node.gpus, node.model)
            for taken, gpus in _ways(node.gpus, pod):
                cpu, memory = node.cpu - shape.cpu_milli, node.memory - shape.memory_mib
                rise = self.cost(cpu, memory, gpus, node.model) - before
                score = math.floor(100 * (rise + self.pack * sum(gpus)) + 0.5)
                if best is None or score < best[0]:
                    best = score, at, taken
        if best is None:
            return None
        _, at, taken = best
        node = self.nodes[at]
        node.cpu -= shape.cpu_milli
        node.memory -= shape.memory_mib
        for gpu in taken:
            node.gpus[gpu] -= pod.milli if pod.is_share else 1000
        return node.name, taken


class ColdStranding:
    """Cost of a pod on a machine of cards, where halves of a GPU with four cores and whole
    ones with eight are all that is expected: no models, no slots, no memory beside."""

    def take(self, f: float, pack: float) -> None:
        """The constants from now on."""
        self.cpu_per_milli, self.pack = f * 12_000 / 1_500, pack

    def cost(self, machine, cpu: int) -> float:
        """GPU thousandths that are stranded."""
        shares = [min(card.free_milli, card.strict * 1000 // card.total) for card in machine.cards]
        free = sum(shares)
        worth = sum(1000 if share == 1000 else 500 if share >= 500 else 0 for share in shares)
        short = max(0.0, 1 - cpu / (self.cpu_per_milli * free)) if free else 0.0
        return free - worth + free * short**2

    def free(self, machine) -> int:
        return sum(min(card.free_milli, card.strict * 1000 // card.total) for card in machine.cards)

    def points(self, machine, shape: Shape, chosen, *, is_step: bool) -> int:
        """Points by what the place spares, through FGD's sigmoid: thousandths of 0 to 100. A step
        is one of several GPU requests, whose pod has its CPU already."""
        cpu_after = machine.cpu - shape.cpu_milli
        before = self.cost(machine, cpu_after if is_step else machine.cpu)
        free_before = self.free(machine)
        for gpu_request, gpu in chosen:
            machine.cards[gpu].take(shape.gpu_requests[gpu_request])
        packed = self.free(machine) - (free_before if is_step else 0)
        rise = self.cost(machine, cpu_after) - before + self.pack * packed
        for gpu_request, gpu in chosen:
            machine.cards[gpu].take(shape.gpu_requests[gpu_request], -1)
        rounded = math.floor(100 * rise + 0.5) / 100_000
        return round(100_000 / (1 + math.exp(rounded)))


def _ways(gpus: Sequence[int], pod: Popular) -> list[tuple[tuple[int, ...], list[int]]]:
    """The GPUs that the pod could take, and what is free then."""
    if pod.is_share:
        return [
            ((at,), [*gpus[:at], share - pod.milli, *gpus[at + 1 :]])
            for at, share in enumerate(gpus)
            if share >= pod.milli
        ]
    idle = [at for at, share in enumerate(gpus) if share == 1000][: pod.gpus]
    if len(idle) < pod.gpus:
        return []
    return [(tuple(idle), [0 if at in idle else share for at, share in enumerate(gpus)])]


def _completion(popular: Sequence[Popular]) -> list[float]:
    """Multiplicative weights over the usual sizes; [101], thousandths."""
    weights: Counter[int] = Counter()
    for each in popular:
        if each.is_share:
            weights[math.ceil(each.milli / 10)] += each.count
    if not weights:
        return [0.0] * 100 + [1000.0]
    sizes = sorted(weights)
    covered = dict.fromkeys(sizes, 0.0)
    total = [0.0] * 101
    for number in range(3000):
        lowest = min(covered.values())
        price = {s: math.exp(-0.1 * (covered[s] - lowest)) / weights[s] for s in sizes}
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for level in range(1, 101):
            ending = [(best[level - s][0] + price[s], s) for s in sizes if s <= level]
            most = max((value for value, _ in ending), default=0.0)
            if most > best[-1][0]:
                size = next(s for value, s in ending if value == most)
                best.append((most, (*best[level - size][1], size)))
            else:
                best.append(best[-1])
        if number >= 600:
            total = [t + value / best[100][0] for t, (value, _) in zip(total, best, strict=True)]
        pattern = Counter(best[100][1])
        step = min(weights[s] / n for s, n in pattern.items())
        for s, n in pattern.items():
            covered[s] += step * n / weights[s]
    return [1000 * t / 2400 for t in total[:100]] + [1000.0]

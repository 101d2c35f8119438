"""Placement once more, slow and obvious: loops over nodes and GPUs, for any policy.

Nothing here is shared with the fast one but the model's values.
"""

from weft.model import GpuRequest, Node, Shape

Chosen = list[tuple[int, int]]
"""(claim index, GPU position) once per GPU."""


class Card:
    def __init__(self, gpu):
        self.model, self.total, self.uuid, self.serves = (
            gpu.model,
            gpu.memory_mib,
            gpu.uuid,
            gpu.in_service,
        )
        self.memory, self.milli, self.pods = gpu.memory_mib, 1000, 0

    @property
    def free(self):
        return self.memory if self.serves else 0

    @property
    def free_milli(self):
        return self.milli if self.serves else 0

    @property
    def idle(self):
        return self.serves and self.pods == 0

    def charge(self, gpu_request: GpuRequest) -> tuple[int, int]:
        if gpu_request.whole:
            return self.total, 1000
        return gpu_request.memory.mib_on(self.total), gpu_request.milli

    def take(self, gpu_request: GpuRequest, sign: int = 1) -> None:
        memory, milli = self.charge(gpu_request)
        self.memory -= sign * memory
        self.milli -= sign * milli
        self.pods += sign

    def fits(self, gpu_request: GpuRequest, shape: Shape) -> bool:
        if not self.serves or not shape.devices.accepts_model(self.model):
            return False
        memory, milli = self.charge(gpu_request)
        if gpu_request.whole:
            return self.idle and gpu_request.memory.mib_on(self.total) <= self.total
        return self.free_milli >= milli and self.free >= memory + gpu_request.headroom_mib


class Machine:
    def __init__(self, node: Node):
        self.node, self.name = node, node.name
        self.cpu, self.memory = node.cpu_milli, node.memory_mib
        self.cards = [Card(gpu) for gpu in node.gpus]
        self.classes: list[int] = []

    @property
    def serving(self):
        return [card for card in self.cards if card.serves]

    def place(self, shape: Shape, chosen: Chosen, sign: int = 1) -> None:
        self.cpu -= sign * shape.cpu_milli
        self.memory -= sign * shape.memory_mib
        together: dict[int, list[GpuRequest]] = {}
        for gpu_request, gpu in chosen:
            together.setdefault(gpu, []).append(shape.gpu_requests[gpu_request])
        for gpu, gpu_requests in together.items():
            for gpu_request in gpu_requests:
                self.cards[gpu].take(gpu_request, sign)
            self.cards[gpu].pods -= sign * (len(gpu_requests) - 1)
        if chosen:
            lone = (
                len(chosen) == 1
                and self.cards[chosen[0][1]].charge(shape.gpu_requests[0])[1] < 1000
            )
            hosted = 0 if lone else len(together)
            self.classes.append(hosted) if sign > 0 else self.classes.remove(hosted)


def asks_memory(gpu_request: GpuRequest) -> bool:
    return not gpu_request.whole and (
        gpu_request.memory.kind != "none" or gpu_request.headroom_mib > 0
    )


def room(card: Card, gpu_request: GpuRequest) -> int:
    return card.free if asks_memory(gpu_request) else card.free_milli


def steps(shape: Shape, biggest: list[int], last_first: bool) -> list[int]:
    """Claim indexes, once per GPU, largest first: whole, then by memory, cores, position."""
    sign = -1 if last_first else 1
    order = sorted(
        range(len(shape.gpu_requests)),
        key=lambda i: (
            -shape.gpu_requests[i].whole,
            -biggest[i],
            -shape.gpu_requests[i].milli,
            sign * i,
        ),
    )
    return [i for i in order for _ in range(shape.gpu_requests[i].count)]


class Reference:
    """Greedy placement with the policy's own choice; subclasses say what is good."""

    last_first = False
    by_device = False

    def shape(self, shape: Shape) -> Shape:
        return shape

    def node_score(self, _machine: Machine, _shape: Shape) -> int:
        return 0

    def gpu_score(
        self, _machine: Machine, _gpu: int, _shape: Shape, _gpu_request: int
    ) -> int | None:
        return None

    def allows(self, _machine: Machine, _gpu: int, _shape: Shape, _gpu_request: int) -> bool:
        return True

    def pick(self, machine: Machine, gpus: list[int], gpu_request: GpuRequest, _key: str) -> int:
        return min(gpus, key=lambda gpu: (room(machine.cards[gpu], gpu_request), gpu))

    def pick_node(self, machines: list[Machine], _key: str) -> Machine:
        return machines[0]

    # --- how pods are placed, for all of them ---------------------------------------------------

    def decide(self, machines: list[Machine], shape: Shape, key: str):
        """(machine, chosen GPUs), or None."""
        found: list[tuple[int, Machine]] = []
        for machine in sorted(machines, key=lambda m: (m.node.rank, m.name)):
            score = self.rate(machine, shape, machines)
            if score is not None:
                found.append((score, machine))
        if not found:
            return None
        best = max(score for score, _ in found)
        machine = self.pick_node([m for score, m in found if score == best], key + "/node")
        return machine, sorted(self.choose(machine, shape, machines, key))

    def rate(self, machine: Machine, shape: Shape, machines: list[Machine]) -> int | None:
        if machine.cpu < shape.cpu_milli or machine.memory < shape.memory_mib:
            return None
        placed = self.assign(machine, shape, machines, "")
        return None if placed is None else placed[0] + self.node_score(machine, shape)

    def choose(self, machine: Machine, shape: Shape, machines: list[Machine], key: str) -> Chosen:
        placed = self.assign(machine, shape, machines, key)
        assert placed is not None
        return placed[1]

    def assign(self, machine: Machine, shape: Shape, machines: list[Machine], key: str):
        """(score, chosen): one GPU after the other, each the best in the state so far."""
        single = len(shape.gpu_requests) == 1 and (
            shape.gpu_requests[0].whole or shape.gpu_requests[0].count == 1
        )
        kinds = {card.total for m in machines for card in m.cards}
        biggest = [
            max(
                (max(c.memory.mib_on(t), t if c.whole else 0) + c.headroom_mib for t in kinds),
                default=0,
            )
            for c in shape.gpu_requests
        ]
        todo = steps(shape, biggest, self.last_first)
        score, chosen = 0, []
        for number, index in enumerate(todo):
            key_now = (key + "/gpu" if single else f"{key}/{number}/gpu") if key else ""
            one = self.step(machine, shape, index, chosen, key_now)
            if one is None:
                undo(machine, shape, chosen)
                return self.search(machine, shape, todo)
            score += 0 if single and number else one[0]
            machine.cards[one[1]].take(shape.gpu_requests[index])
            chosen.append((index, one[1]))
        undo(machine, shape, chosen)
        return score, chosen

    def step(self, machine: Machine, shape: Shape, index: int, chosen: Chosen, key: str):
        gpu_request = shape.gpu_requests[index]
        mine = [gpu for other, gpu in chosen if other == index]
        gpus = [
            gpu
            for gpu, card in enumerate(machine.cards)
            if gpu not in mine
            and card.fits(gpu_request, shape)
            and self.allows(machine, gpu, shape, index)
        ]
        if not gpus:
            return None
        if self.by_device:
            scores = {gpu: self.gpu_score(machine, gpu, shape, index) for gpu in gpus}
            if scores[gpus[0]] is not None:
                best = max(gpus, key=lambda gpu: (scores[gpu], -gpu))
                return scores[best], best
        if key and not gpu_request.whole:
            return 0, self.pick(machine, gpus, gpu_request, key)
        return 0, Reference.pick(self, machine, gpus, gpu_request, "")

    def search(self, machine: Machine, shape: Shape, todo: list[int]):
        """The greedy way is stuck: the first way that works, tightest GPUs first."""
        allowed = [
            {
                gpu
                for gpu in range(len(machine.cards))
                if self.allows(machine, gpu, shape, gpu_request)
            }
            for gpu_request in range(len(shape.gpu_requests))
        ]
        chosen = first(machine, shape, todo, [], allowed)
        if chosen is None:
            return None
        score, sofar = 0, []
        for index, gpu in chosen:
            if self.by_device:
                score += self.gpu_score(machine, gpu, shape, index) or 0
            machine.cards[gpu].take(shape.gpu_requests[index])
            sofar.append((index, gpu))
        undo(machine, shape, sofar)
        return score, chosen


def undo(machine: Machine, shape: Shape, chosen: Chosen) -> None:
    for index, gpu in chosen:
        machine.cards[gpu].take(shape.gpu_requests[index], -1)


def first(
    machine: Machine, shape: Shape, todo: list[int], chosen: Chosen, allowed: list[set[int]]
) -> Chosen | None:
    if len(chosen) == len(todo):
        return list(chosen)
    index = todo[len(chosen)]
    gpu_request = shape.gpu_requests[index]
    mine = [gpu for other, gpu in chosen if other == index]
    fits = [
        g
        for g, card in enumerate(machine.cards)
        if g not in mine and g in allowed[index] and card.fits(gpu_request, shape)
    ]
    order = sorted(fits, key=lambda g: (machine.cards[g].free, machine.cards[g].free_milli, g))
    for gpu in fits[:1] if gpu_request.whole else order:
        machine.cards[gpu].take(gpu_request)
        found = first(machine, shape, todo, [*chosen, (index, gpu)], allowed)
        machine.cards[gpu].take(gpu_request, -1)
        if found is not None:
            return found
    return None

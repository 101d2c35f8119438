"""The policies that read metrics once more, slow and obvious, straight from their sources.

Cards know their own readings: `seen[column]` is (value, age), absent where nobody measured it.
Nothing here is shared with the fast ones but the model's values.
"""

import contextlib
import math

from placing_slowly import Card, Chosen, Machine, Reference, asks_memory
from stranding_slowly import ColdStranding

from weft.core.framework.signals import FRESH, STALE
from weft.model import GpuRequest, Node


class WatchedCard(Card):
    """A card with readings, and with memory that its residents hold and leave idle."""

    def __init__(self, gpu, harvest_permille):
        super().__init__(gpu)
        self.harvest_permille = harvest_permille
        self.seen: dict[str, tuple[float, int]] = {}
        self.idle_mib = 0
        self.harvesting = False
        self.closed = False  # lent from since the last look
        self.others = 0

    @property
    def promised(self):
        return self.total - self.memory

    @property
    def strict(self):
        return max(0, self.memory) if self.serves else 0

    @property
    def reserve(self):
        return max(512, self.total * 20 // 1000)

    @property
    def free(self):
        if not (self.serves and self.harvesting) or not self.pods:
            return self.strict
        by_requests = max(0, self.total - self.promised)
        if self.closed:
            return by_requests
        within = self.total - self.reserve - self.promised + self.idle_mib
        declared = self.total * self.harvest_permille // 1000 - self.promised
        return max(by_requests, min(declared, within))

    def reading(self, *columns, fresh=False):
        """The first of these columns that is known; None without."""
        for column in columns:
            if column in self.seen:
                value, age = self.seen[column]
                return None if fresh and age != FRESH else value
        return None

    def load(self, *columns):
        """A share of 1, taken for a quarter more where it is old."""
        for column in columns:
            if column in self.seen:
                value, age = self.seen[column]
                return min(1.0, max(0.0, value * (1.25 if age == STALE else 1)))
        return None


class WatchedMachine(Machine):
    def __init__(self, node: Node, harvest_permille: int = 1000):
        super().__init__(node)
        self.cards = [WatchedCard(gpu, harvest_permille) for gpu in node.gpus]


class Watching(Reference):
    """Rates devices; whole cards are the first idle ones, rated by the best of them."""

    by_device = True
    harvests = False

    def decide(self, machines, shape, key):
        one = (
            len(shape.gpu_requests) == 1
            and shape.gpu_requests[0].count == 1
            and asks_memory(shape.gpu_requests[0])
        )
        one = one and shape.job_class != "latency-critical"
        for machine in machines:
            for card in machine.cards:
                card.others = card.pods
                card.harvesting = self.harvests and one and card.harvest_permille > 1000
        return super().decide(machines, shape, key)

    def assign(self, machine, shape, machines, key):
        if len(shape.gpu_requests) != 1 or not shape.gpu_requests[0].whole:
            return super().assign(machine, shape, machines, key)
        gpu_request = shape.gpu_requests[0]
        fits = [
            gpu
            for gpu, card in enumerate(machine.cards)
            if card.fits(gpu_request, shape) and self.allows(machine, gpu, shape, 0)
        ]
        if len(fits) < gpu_request.count:
            return None
        chosen: Chosen = [(0, gpu) for gpu in fits[: gpu_request.count]]
        scores = [self.gpu_score(machine, gpu, shape, 0) for gpu in fits]
        return max(scores) if scores[0] is not None else 0, chosen


def asks(card: Card, gpu_request: GpuRequest) -> int:
    return card.charge(gpu_request)[0] + gpu_request.headroom_mib


SM = ("sm_active_ratio", "graphics_active_ratio", "gpu_util_ratio")
DRAM = ("dram_active_ratio", "memory_copy_ratio")


def memory_share(card: WatchedCard):
    for column, how in (
        ("memory_used_mib", lambda value: value / card.total),
        ("memory_used_ratio", lambda value: value),
        ("memory_free_mib", lambda value: 1 - value / card.total),
    ):
        value = card.reading(column)
        if value is not None:
            return min(1.0, max(0.0, how(value)))
    return None


def gate_shut(card: WatchedCard, gpu_request: GpuRequest) -> bool:
    """policies.md 7.5: CARMA's rule, with its fall-backs."""
    sm, dram = card.load(*SM), card.load(*DRAM)
    occupancy = card.reading("sm_occupancy_ratio")
    if sm is not None and sm >= 0.8:
        if dram is None and occupancy is None:
            return True
        if (dram is not None and dram >= 0.4) or (occupancy is not None and occupancy >= 0.45):
            return True
    return lacks_memory(card, asks(card, gpu_request), 2048)


def lacks_memory(card: WatchedCard, asked: int, margin: int) -> bool:
    """Too little is measured free, and requests do not say why that may be."""
    free = card.reading("memory_free_mib.last", "memory_free_mib")
    if free is None:
        used = memory_share(card)
        free = None if used is None else (1 - used) * card.total
    if free is None or free >= asked + margin:
        return False
    promised = max(card.promised, card.reading("memory_promised_mib") or 0)
    return not (asked <= card.strict and card.total - free <= promised + card.reserve)


def measured_load(card: WatchedCard) -> float:
    memory = memory_share(card)
    if memory is None:
        memory = min(1.0, card.promised / card.total)
    total, weights = 0.2 * memory, 0.2
    power, limit = card.reading("power_w"), card.reading("power_limit_w")
    watts = None if power is None or limit is None else min(1.0, power / max(limit, 1.0))
    for weight, value in ((0.4, card.load(*SM)), (0.3, card.load(*DRAM)), (0.1, watts)):
        if value is not None:
            total, weights = total + weight * value, weights + weight
    return total / weights


class LoadAware(Watching):
    def __init__(self, idle_points: int = 0):
        self.idle_points = idle_points

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        if card.others == 0:
            return True
        if shape.job_class == "latency-critical" and card.load(*SM) is None:
            return False
        return not gate_shut(card, shape.gpu_requests[gpu_request])

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        if card.load(*SM) is None:
            score = 50_000 - 10_000 * card.others
        else:
            score = math.trunc(100_000 * (1 - measured_load(card)))
        return score + (self.idle_points if card.idle else 0)


class Horus(Watching):
    """policies.md 7.6."""

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        measured = memory_share(card)
        used = max(card.promised, 0 if measured is None else measured * card.total)
        util = None
        for column in ("gpu_util_ratio", "graphics_active_ratio", "sm_active_ratio"):
            if column in card.seen:
                value = card.reading(column, fresh=True)
                util = None if value is None else 100 * min(1.0, max(0.0, value))
                break
        if util is None:
            util = 90 * card.others
        mine = 15 if shape.job_class == "latency-critical" else 90
        over = util + mine
        u = 1.6 * (over - 100) if over > 100 else 100 - over
        memory = (used + asks(card, shape.gpu_requests[gpu_request])) / card.total
        return -math.trunc(1000 * (1.3 * memory + u / 100 + card.others))


class ResAg(Reference):
    def decide(self, machines, shape, key):
        for machine in machines:
            for card in machine.cards:
                card.harvesting = False
        return super().decide(machines, shape, key)

    def pick(self, machine, gpus, gpu_request, key):
        return gpus[0]


def trusted(card: WatchedCard, fresh: bool = True) -> bool:
    samples = card.reading("window.samples", fresh=fresh)
    if fresh and card.reading("memory_free_mib.cov", fresh=True) is None:
        return False
    return samples is not None and samples >= 20


def room_asked(card: WatchedCard, gpu_request: GpuRequest) -> int:
    return card.strict if asks_memory(gpu_request) else card.free_milli


def idle_cards(machine: Machine) -> int:
    return sum(card.idle for card in machine.cards)


def may_borrow(machine: Machine, card: WatchedCard, gpu_request: GpuRequest) -> bool:
    """Pods of which nothing is known borrow of one card of a machine."""
    lent = any(one.promised > one.total for one in machine.cards)
    return bool(gpu_request.expected_mib) or asks(card, gpu_request) <= card.strict or not lent


class KubeKnotsCbp(Watching):
    harvests = True

    def __init__(self, correlation: bool = True):
        self.correlation = correlation

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        asked = asks(card, shape.gpu_requests[gpu_request])
        if card.others == 0:
            return True
        return asked <= card.strict or (
            self.willing(card, asked, shape)
            and may_borrow(machine, card, shape.gpu_requests[gpu_request])
        )

    def willing(self, card, asked, shape):
        return trusted(card) and self.admits(card, asked, shape)

    def admits(self, card, asked, shape):
        critical = shape.job_class == "latency-critical"
        cov = card.reading("memory_free_mib.cov")
        together = card.reading(f"correlation.{shape.application}")
        if self.correlation and together is not None:
            return together < 0.5
        small = self.correlation and critical and asked * 10 <= card.total
        return small or (cov is not None and cov < 0.5)

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card, gpu_request = machine.cards[gpu], shape.gpu_requests[gpu_request]
        if gpu_request.whole:
            return -idle_cards(machine)
        if not trusted(card):
            return 10**12 - room_asked(card, gpu_request)
        if not card.others:
            return -room_asked(card, gpu_request)
        if self.willing(card, asks(card, gpu_request), shape):
            return 2 * 10**12 + card.free
        return -(10**12) - room_asked(card, gpu_request)


class KubeKnotsPp(KubeKnotsCbp):
    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        next_sm = card.reading("sm_active_ratio.next")
        full = trusted(card) and next_sm is not None and next_sm + 0.15 > 1.0
        if card.others and full and shape.job_class == "latency-critical":
            return False
        return super().allows(machine, gpu, shape, gpu_request)

    def admits(self, card, asked, shape):
        yes = super().admits(card, asked, shape)
        trend = card.reading("memory_free_mib.autocorrelation")
        predicted = card.reading("memory_free_mib.predicted")
        if trend is not None and trend > 0 and predicted is not None:
            yes = yes or asked <= min(math.trunc(predicted), card.total) - card.reserve
        return yes


class Ferikoglou(Watching):
    """contracts.md 7.1, on the card's own capacity."""

    fresh = False

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        asked = asks(card, shape.gpu_requests[gpu_request])
        if asked <= card.total - card.promised:
            return True
        if not trusted(card, self.fresh):
            return False
        cov, used = card.reading("memory_free_mib.cov"), card.reading("memory_used_mib.p80")
        if cov is not None and used is not None and cov < 0.5 and asked <= card.total - int(used):
            return True
        trend = card.reading("memory_free_mib.autocorrelation")
        predicted = card.reading("memory_free_mib.predicted")
        known = trend is not None and predicted is not None
        return known and trend > 0.35 and asked <= int(predicted)

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card, gpu_request = machine.cards[gpu], shape.gpu_requests[gpu_request]
        if gpu_request.whole:
            return -idle_cards(machine)
        if asks(card, gpu_request) <= card.total - card.promised:
            return 10**12 - room_asked(card, gpu_request)
        return card.free


class FerikoglouSafe(Ferikoglou):
    harvests = True
    fresh = True

    def allows(self, machine, gpu, shape, gpu_request):
        admitted = super().allows(machine, gpu, shape, gpu_request)
        return admitted and may_borrow(machine, machine.cards[gpu], shape.gpu_requests[gpu_request])


class Auto(LoadAware):
    """Points for what is stranded and the load, 0 to 100 each; by requests where not known."""

    harvests = True

    def __init__(self):
        super().__init__()
        self.stranding = ColdStranding()

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        columns = ("memory_used_mib", "memory_used_ratio", "memory_free_mib")
        first = next((column for column in columns if column in card.seen), None)
        fresh = first is not None and card.seen[first][1] == FRESH
        newest = [f"{column}.last" for column in SM]
        known = [sm for sm in (card.load(*SM), card.load(*newest)) if sm is not None]
        crowded = any(sm * (card.others + 1) > max(card.others, 1) for sm in known)
        lends = fresh and not crowded
        if not lends and asks(card, shape.gpu_requests[gpu_request]) > card.strict:
            return False
        return super().allows(machine, gpu, shape, gpu_request)

    def node_score(self, machine, shape):
        requests, chosen = shape.gpu_requests, []
        if len(requests) == 1 and requests[0].whole:
            fits = [gpu for gpu, card in enumerate(machine.cards) if card.fits(requests[0], shape)]
            chosen = [(0, gpu) for gpu in fits[: requests[0].count]]
        elif len(requests) == 1 and requests[0].count == 1:
            return 0
        with strictly(machine):
            return self.stranding.points(machine, shape, chosen, is_step=False)

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card, several = machine.cards[gpu], len(shape.gpu_requests) > 1
        if card.load(*SM) is None:
            memory = any(asks_memory(gpu_request) for gpu_request in shape.gpu_requests)
            free = card.strict * 1000 // card.total if memory else card.free_milli
            points = 50 * (1000 - free)
        else:
            points = math.trunc(100_000 * (1 - measured_load(card)))
        asked = shape.gpu_requests[gpu_request]
        if asked.whole and not several:
            return points
        is_step = several or asked.count > 1
        chosen = [(gpu_request, gpu)]
        with strictly(machine):
            return points + self.stranding.points(machine, shape, chosen, is_step=is_step)


@contextlib.contextmanager
def strictly(machine):
    """Inside, cards have free what nobody was promised."""
    was = [card.harvesting for card in machine.cards]
    for card in machine.cards:
        card.harvesting = False
    yield
    for card, before in zip(machine.cards, was, strict=True):
        card.harvesting = before

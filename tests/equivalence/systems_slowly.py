"""Genius and nano-gpu's load-aware raters once more, slow and obvious."""

import math

from load_policies_slowly import (
    WatchedCard,
    Watching,
    asks,
    idle_cards,
    lacks_memory,
    memory_share,
    room_asked,
)
from placing_slowly import asks_memory
from policies_slowly import NanoBinpack, NanoSpread

MODELS = {"T4": (40, 2, 1, 320), "V100": (80, 1, 3, 900), "A10": (72, 2, 1, 600)}


def measured_free(card: WatchedCard):
    free = card.reading("memory_free_mib.last", "memory_free_mib")
    if free is None and memory_share(card) is not None:
        free = (1 - memory_share(card)) * card.total
    return free


class Genius(Watching):
    """Weighted means of what is known, against the best card of the cluster."""

    def decide(self, machines, shape, key):
        rows = [(card.total, *MODELS[card.model]) for m in machines for card in m.cards]
        self.best = [max([1, *column]) for column in zip(*rows, strict=True)] or [1] * 5
        return super().decide(machines, shape, key)

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        return not lacks_memory(card, asks(card, shape.gpu_requests[gpu_request]), 0)

    def node_score(self, machine, shape):
        if shape.gpu_requests or not machine.cards:
            return 0
        scores = [math.trunc(1000 * self.merit(card)) for card in machine.cards]
        return sum(scores) // len(scores)

    def gpu_score(self, machine, gpu, shape, gpu_request):
        card, gpu_request = machine.cards[gpu], shape.gpu_requests[gpu_request]
        room = idle_cards(machine) if gpu_request.whole else room_asked(card, gpu_request)
        return 10**9 * math.trunc(18 * self.merit(card) + 1e-6) - room

    def merit(self, card):
        told = (card.total, *MODELS[card.model])
        static = mean(
            zip((2, 2, 1, 1, 2), (a / b for a, b in zip(told, self.best, strict=True)), strict=True)
        )
        free = measured_free(card)
        unused = not card.others and (free is None or free / card.total >= 0.9)
        power, limit = card.reading("power_w"), card.reading("power_limit_w")
        watts = None if power is None or limit is None else min(1.0, power / max(limit, 1.0))
        use = (watts, card.reading("encoder_ratio"), card.reading("decoder_ratio"))
        calm = [None if value is None else 1 - min(1.0, max(0.0, value)) for value in use]
        dynamic = mean(zip((2, 1, 1, 1), (float(unused), *calm), strict=True))
        return (static + 2 * dynamic) / 3


def mean(pairs) -> float:
    total = weights = 0.0
    for weight, value in pairs:
        if value is not None:
            total, weights = total + weight * value, weights + weight
    return total / max(weights, 1.0)


class GeniusExact(Watching):
    """contracts.md 6; unknown readings are 0, and so are terms that divide by 0."""

    def allows(self, machine, gpu, shape, gpu_request):
        card = machine.cards[gpu]
        free = measured_free(card)
        return free is None or free >= asks(card, shape.gpu_requests[gpu_request])

    def gpu_score(self, machine, gpu, shape, gpu_request):
        return 0

    def decide(self, machines, shape, key):
        self.cards = [card for machine in machines for card in machine.cards]
        return super().decide(machines, shape, key)

    def node_score(self, machine, _shape):
        n, c = len(self.cards), max(1, len(machine.cards))

        def part(value, cards):
            whole = sum(value(card) for card in self.cards)
            return sum(value(card) for card in cards) / whole if whole > 0 else 0.0

        static = n * sum(
            weight * part(value, machine.cards)
            for weight, value in (
                (2, lambda card: card.total),
                *(
                    (w, lambda card, at=at: MODELS[card.model][at])
                    for at, w in enumerate((2, 1, 1, 2))
                ),
            )
        )
        dynamic = (
            n
            / c
            * sum(
                weight * part(value, machine.cards)
                for weight, value in (
                    (2, lambda card: measured_free(card) or 0.0),
                    (1, lambda card: card.reading("power_w") or 0.0),
                    (1, lambda card: 1 - clipped(card.reading("encoder_ratio"))),
                    (1, lambda card: 1 - clipped(card.reading("decoder_ratio"))),
                )
            )
        )
        return max(0, math.trunc(static + 2 * dynamic))


def clipped(value) -> float:
    return min(1.0, max(0.0, value or 0.0))


class NanoLoadBinpack(NanoBinpack):
    """contracts.md 2.4, in tenths of a percent: load is Σ ceil(10 u) / 10 of two metrics."""

    def decide(self, machines, shape, key):
        self.whole_shape = shape
        return super().decide(machines, shape, key)

    @staticmethod
    def tenths(card) -> int:
        if not card.serves:
            return 0
        used = (card.reading("gpu_util_ratio"), memory_share(card))
        return sum(math.ceil(10 * min(1.0, max(0.0, value or 0.0))) for value in used)

    def loads(self, machine) -> int:
        return sum(self.tenths(card) for card in machine.cards) // 10

    def node_score(self, machine, shape):
        more = 50 * self.loads(machine) // max(1, len(machine.serving))
        return super().node_score(machine, shape) + more

    def left(self, card, gpu_request):
        by_cores = gpu_request.milli or not asks_memory(gpu_request)
        free = card.free_milli
        if not by_cores:
            any_memory = any(asks_memory(one) for one in self.whole_shape.gpu_requests)
            free = card.free * 1000 // card.total if any_memory else card.free_milli
        return free + 500 * (2 - self.tenths(card) // 10)


class NanoLoadSpread(NanoLoadBinpack):
    def node_score(self, machine, shape):
        less = self.loads(machine) // max(1, len(machine.serving))
        return NanoSpread.node_score(self, machine, shape) - less

    def pick(self, machine, gpus, gpu_request, key):
        return max(gpus, key=lambda g: (self.left(machine.cards[g], gpu_request), g))

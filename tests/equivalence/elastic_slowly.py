"""Elastic GPU's scheduler once more, slow and obvious, from what is known of its source: its cards,
its search and its binpack rater. Nothing of Weft is used.
"""

from typing import NamedTuple


class Ask(NamedTuple):
    """A container's request, as the original reads it: percent of a card's cores, MiB, cards."""

    core: int
    memory: int
    count: int = 0


def asked(core: int, memory: int) -> Ask:
    """From 100 percent on whole cards: memory is ignored, and so is what exceeds the hundreds."""
    return Ask(0, 0, core // 100) if core >= 100 else Ask(core, memory)


class Card:
    """A card: its free cores and memory."""

    def __init__(self, memory: int) -> None:
        self.core_total = self.core = 100
        self.memory_total = self.memory = memory

    def whole(self) -> bool:
        return self.core == self.core_total and self.memory == self.memory_total


class Found(NamedTuple):
    score: int
    gpus: tuple[tuple[int, ...], ...]


def trade(cards: list[Card], asks: list[Ask]) -> Found | None:
    """The best way to place the containers in order; of equal ones the last that was found."""
    best: Found | None = None

    def deeper(index: int, chosen: list[tuple[int, ...]]) -> None:
        nonlocal best
        if index == len(asks):
            score = rate(cards, chosen)
            if best is None or score >= best.score:
                best = Found(score, tuple(chosen))
            return
        ask = asks[index]
        if ask.count:
            free = [gpu for gpu, card in enumerate(cards) if card.whole()][: ask.count]
            if len(free) == ask.count:
                for gpu in free:
                    cards[gpu].core = cards[gpu].memory = 0
                deeper(index + 1, [*chosen, tuple(free)])
                for gpu in free:
                    cards[gpu].core = cards[gpu].core_total
                    cards[gpu].memory = cards[gpu].memory_total
            return
        for gpu, card in enumerate(cards):
            if card.core >= ask.core and card.memory >= ask.memory:
                card.core -= ask.core
                card.memory -= ask.memory
                deeper(index + 1, [*chosen, (gpu,)])
                card.core += ask.core
                card.memory += ask.memory

    deeper(0, [])
    return best


def rate(cards: list[Card], chosen: list[tuple[int, ...]]) -> int:
    """Its Binpack: integer divisions in this order; who has several cards uses none."""
    memory, core = [card.memory for card in cards], [card.core for card in cards]
    used = {gpus[0] for gpus in chosen if len(gpus) == 1}
    return (max(memory) + max(core) - min(memory) - min(core)) // 2 // (len(used) + 1) * 100

"""Exhaustive search for several claims on one node, over *distinct* device states.

Devices in the same state are interchangeable, so trying one of each is enough; which one stands
for its kind is the tie-break (the first, or the last for Elastic). Plain lists: a node has few
devices, and answers are remembered by node state.
"""

import itertools
from typing import NamedTuple

from weft.framework.policy import Option, Policy


class Step(NamedTuple):
    """One GPU for one claim; the lists are per device column of the query."""

    claim: int
    whole: bool
    milli: int
    ask_mib: list[int]
    memory_mib: list[int]
    allowed: list[bool]


class Columns(NamedTuple):
    """Free memory (MiB) and cores (thousandths), idleness, and the card's memory, by device;
    `parent` is the position on the node of the card that a MIG instance is cut from, else −1."""

    memory: list[int]
    milli: list[int]
    idle: list[bool]
    total: list[int]
    parent: list[int]


class Spread(NamedTuple):
    """A `split` claim: `memory_mib` over at least `gpus` GPUs, `milli` on each."""

    claim: int
    gpus: int
    memory_mib: int
    milli: int
    allowed: list[bool]


class _Node:
    """One node's devices during the search."""

    def __init__(
        self, todo: list[Step], begin: int, count: int, columns: Columns,
        spread: Spread | None = None,
    ) -> None:  # fmt: skip
        cells = slice(begin, begin + count)
        self.count = count
        self.memory, self.milli = columns.memory[cells], columns.milli[cells]
        self.idle, self.total = columns.idle[cells], columns.total[cells]
        self.parent = columns.parent[cells]
        self.family = [p if p >= 0 else d for d, p in enumerate(self.parent)]
        self.has_family = any(p >= 0 for p in self.parent)
        self.spread = spread
        self.spreadable = spread.allowed[cells] if spread else []
        self.branches_whole = True
        self.ask = [step.ask_mib[cells] for step in todo]
        self.charge = [step.memory_mib[cells] for step in todo]
        self.allowed = [step.allowed[cells] for step in todo]
        self.steps = todo
        self.chosen: list[int] = []

    def key(self) -> object:
        """Everything the answer depends on, in device order."""
        return (tuple(self.memory), tuple(self.milli), tuple(self.idle), tuple(self.total),
                tuple(self.parent), tuple(self.spreadable),
                tuple(map(tuple, self.ask)), tuple(map(tuple, self.allowed)))  # fmt: skip

    def fits(self, index: int, device: int) -> bool:
        step = self.steps[index]
        if not self.allowed[index][device] or device in self._same_claim(index):
            return False
        if self.has_family and self._relative_is_chosen(device):
            return False
        if step.whole:
            return self.idle[device]
        return self.milli[device] >= step.milli and self.memory[device] >= self.ask[index][device]

    def _same_claim(self, index: int) -> list[int]:
        claim = self.steps[index].claim
        return [d for d, s in zip(self.chosen, self.steps, strict=False) if s.claim == claim]

    def _relative_is_chosen(self, device: int) -> bool:
        """A card and the MIG instances cut from it are never held at the same time."""
        return any(
            self.parent[device] == other or self.parent[other] == device for other in self.chosen
        )

    def spread_fits(self) -> bool:
        """Whether what is left holds the `split` claim too, if there is one."""
        if self.spread is None:
            return True
        ok = [
            allowed and self.milli[d] >= self.spread.milli and not self._relative_is_chosen(d)
            for d, allowed in enumerate(self.spreadable)
        ]
        return fewest(self.memory, ok, self.parent, self.spread) is not None

    def state(self, index: int, device: int) -> object:
        """Devices with equal states here are interchangeable for all steps from `index` on."""
        later = range(index, len(self.steps))
        return (self.memory[device], self.milli[device], self.idle[device], self.total[device],
                tuple((self.ask[i][device], self.charge[i][device], self.allowed[i][device])
                      for i in later),
                device in self._same_claim(index),
                (self.family[device], self.parent[device] >= 0) if self.has_family else None,
                bool(self.spreadable) and self.spreadable[device])  # fmt: skip

    def choices(self, index: int, last: bool) -> list[int]:
        """One fitting device of each distinct state; whole cards in order where unbranched."""
        order = range(self.count - 1, -1, -1) if last else range(self.count)
        if self.steps[index].whole and not self.branches_whole:
            return next(([d] for d in range(self.count) if self.fits(index, d)), [])
        seen, found = set(), []
        for device in order:
            if self.fits(index, device):
                state = self.state(index, device)
                if state not in seen:
                    seen.add(state)
                    found.append(device)
        return found

    def take(self, index: int, device: int) -> bool:
        was_idle = self.idle[device]
        self.memory[device] -= self.charge[index][device]
        self.milli[device] -= self.steps[index].milli
        self.idle[device] = False
        self.chosen.append(device)
        return was_idle

    def give_back(self, index: int, device: int, was_idle: bool) -> None:
        self.chosen.pop()
        self.memory[device] += self.charge[index][device]
        self.milli[device] += self.steps[index].milli
        self.idle[device] = was_idle


def fewest(
    memory: list[int], ok: list[bool], parent: list[int], spread: Spread
) -> list[int] | None:
    """Positions of the fewest `ok` devices that hold a `split` claim, roomiest first.

    Of each card cut by MIG either the card or its instances come into question.
    """
    cut = sorted({p for d, p in enumerate(parent) if p >= 0 and ok[d] and ok[p]})
    best: list[int] | None = None
    for as_card in itertools.product((True, False), repeat=len(cut)):
        out = {p for p, card in zip(cut, as_card, strict=True) if not card}
        out |= {
            d for d, p in enumerate(parent) if (p, True) in zip(cut, as_card, strict=True)
        }  # fmt: skip
        order = sorted(
            (d for d, usable in enumerate(ok) if usable and d not in out),
            key=lambda d: (-memory[d], d),
        )
        for count in range(max(1, spread.gpus), len(order) + 1):
            if sum(memory[d] for d in order[:count]) >= spread.memory_mib:
                if best is None or count < len(best):
                    best = order[:count]
                break
    return best


def search_first(
    todo: list[Step], begin: int, count: int, columns: Columns,
    known: dict[object, list[int] | None], spread: Spread | None = None,
) -> list[int] | None:  # fmt: skip
    """Positions for all steps on this node, tightest devices tried first; None without any."""
    node = _Node(todo, begin, count, columns, spread)
    key = node.key()
    if key not in known:
        known[key] = _first(node, 0, set())
    return known[key]


def _first(node: _Node, index: int, dead: set[object]) -> list[int] | None:
    if index == len(node.steps):
        return list(node.chosen) if node.spread_fits() else None
    here = (index, tuple(sorted(map(repr, (node.state(index, d) for d in range(node.count))))))
    if here in dead:
        return None
    choices = node.choices(index, last=False)
    for device in sorted(choices, key=lambda d: (node.memory[d], node.milli[d], d)):
        was_idle = node.take(index, device)
        found = _first(node, index + 1, dead)
        node.give_back(index, device, was_idle)
        if found is not None:
            return found
    dead.add(here)
    return None


def search_best(
    todo: list[Step], begin: int, count: int, columns: Columns,
    policy: Policy, known: dict[object, tuple[int, list[int]] | None],
    spread: Spread | None = None,
) -> tuple[int, list[int]] | None:  # fmt: skip
    """The best-rated assignment on this node, ties by the policy's `ties`; None without any.

    Whole cards are taken in order, as the raters' originals do; any others only if they must be.
    """
    node = _Node(todo, begin, count, columns, spread)
    key = node.key()
    if key not in known:
        last = policy.ties == "last"
        best: list[tuple[int, list[int]]] = []
        node.branches_whole = False
        _visit(node, 0, policy, last, best)
        if not best and any(step.whole for step in todo):
            node.branches_whole = True
            _visit(node, 0, policy, last, best)
        known[key] = best[0] if best else None
    return known[key]


def _visit(
    node: _Node, index: int, policy: Policy, last: bool, best: list[tuple[int, list[int]]]
) -> None:
    if index == len(node.steps):
        if not node.spread_fits():
            return
        claims = tuple(step.claim for step in node.steps)
        option = Option(tuple(node.memory), tuple(node.milli), tuple(node.total),
                        claims, tuple(node.chosen))  # fmt: skip
        score = policy.rate_option(option)
        leaf = (score, list(node.chosen))
        if not best or _beats(leaf, best[0], last):
            best[:] = [leaf]
        return
    for device in node.choices(index, last):
        was_idle = node.take(index, device)
        _visit(node, index + 1, policy, last, best)
        node.give_back(index, device, was_idle)


def _beats(leaf: tuple[int, list[int]], best: tuple[int, list[int]], last: bool) -> bool:
    if leaf[0] != best[0]:
        return leaf[0] > best[0]
    return leaf[1] > best[1] if last else leaf[1] < best[1]

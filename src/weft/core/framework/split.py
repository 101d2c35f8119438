"""A `split` GPU request: a total of memory over the fewest GPUs that hold it together.

Of a GPU divided by MIG either the GPU or its instances can be used, never both; choosing between
them is a knapsack over the GPUs, so that the effort grows with devices × GPUs and not with
2^GPUs."""

from typing import NamedTuple

import numpy as np

from weft.core.ledger.table import Bools, Ints

Taken = tuple[int, tuple[int, ...]]


class SplitRequest(NamedTuple):
    """A total of `memory_mib` over at least `gpus` GPUs, with `milli` thousandths on each;
    `gpu_request` is the number of the GPU request."""

    gpu_request: int
    gpus: int
    memory_mib: int
    milli: int


def fewest(
    memory: list[int], ok: list[bool], parent: list[int], spread: SplitRequest
) -> list[int] | None:
    """Return the positions of the fewest `ok` devices that hold the request, roomiest first; None
    if they cannot. `parent` is the position of the GPU that a MIG instance belongs to, −1 for
    GPUs."""
    usable = [d for d, yes in enumerate(ok) if yes]
    cut = {parent[d] for d in usable if parent[d] >= 0 and ok[parent[d]]}
    single = [d for d in usable if d not in cut and parent[d] not in cut]
    best = _most_of_each(_in_order(single, memory))
    for card in sorted(cut):
        instances = _in_order([d for d in usable if parent[d] == card], memory)
        best = _with_card(best, (memory[card], (card,)), _most_of_each(instances))
    for count in range(max(1, spread.gpus), len(best)):
        if best[count][0] >= spread.memory_mib:
            return sorted(best[count][1], key=lambda d: (-memory[d], d))
    return None


def _in_order(devices: list[int], memory: list[int]) -> list[tuple[int, int]]:
    return [(memory[d], d) for d in sorted(devices, key=lambda d: (-memory[d], d))]


def _most_of_each(roomiest: list[tuple[int, int]]) -> list[Taken]:
    """Return the most memory that k of these devices have, with the devices, for each k from 0."""
    largest: list[Taken] = [(0, ())]
    for room, device in roomiest:
        total, devices = largest[-1]
        largest.append((total + room, (*devices, device)))
    return largest


def _with_card(before: list[Taken], card: Taken, instances: list[Taken]) -> list[Taken]:
    """Extend `before` by one more GPU, used as a whole, by some of its MIG instances, or not at
    all."""
    options = list(instances)
    if len(options) < 2 or card[0] >= options[1][0]:
        options[1:2] = [card]
    largest: list[Taken | None] = [None] * (len(before) + len(options) - 1)
    for count, (room, devices) in enumerate(before):
        for more, (extra, chosen) in enumerate(options):
            known = largest[count + more]
            if known is None or room + extra > known[0]:
                largest[count + more] = (room + extra, devices + chosen)
    return [taken for taken in largest if taken is not None]


def holds(memory: Ints, ok: Bools, family: Ints, instance: Bools, spread: SplitRequest) -> Bools:
    """Return a mask of the nodes (rows) whose `ok` devices hold the GPU request; all arrays are
    [rows, devices]. `family` is the position of each device's GPU (its own for a GPU), `instance`
    marks MIG instances."""
    rows, width = memory.shape
    cells = (np.arange(rows)[:, None] * width + family).ravel()
    room = np.where(ok, memory, 0)

    def by_family(values: Ints) -> Ints:
        holding = np.zeros(rows * width, dtype=np.int64)
        np.add.at(holding, cells, values.ravel())
        return holding.reshape(rows, width)

    inside = by_family(np.where(instance, room, 0))
    number = by_family((ok & instance).astype(np.int64))
    as_card = ok & ~instance & (room > inside)  # by itself, and more than its instances together
    most = np.where(as_card, room, inside).sum(axis=1)
    count = np.where(as_card, 1, np.where(ok & ~instance & (number == 0), 1, number)).sum(axis=1)
    enough = most >= spread.memory_mib
    holding: Bools = enough & (count >= spread.gpus)
    for row in np.flatnonzero(enough & ~holding).tolist():  # roomy enough on fewer, larger devices
        parents = np.where(instance[row], family[row], -1).tolist()
        holding[row] = fewest(memory[row].tolist(), ok[row].tolist(), parents, spread) is not None
    return holding

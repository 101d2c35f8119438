"""Chooses well connected GPUs for a pod. The other modules choose devices by their state only;
among devices in equal states, this module picks the best connected set (`GpuSets`). Devices whose
links are unknown stay as chosen."""

from collections.abc import Hashable, Sequence
from itertools import combinations

import msgspec
import numpy as np

from weft.core.framework import policy as ask
from weft.core.framework.demand import Codes, Demand, Need
from weft.core.framework.gpu_sets import NO_SET, GpuSets, gpu_sets
from weft.core.framework.profile import Profile
from weft.core.framework.query import Query
from weft.core.framework.signals import SignalsView
from weft.core.ledger.table import Bools, Ints, LedgerTable
from weft.model import Code, Shape
from weft.model.gpu_links import gbps_of


class ChosenLinks(msgspec.Struct, frozen=True, gc=False):
    """How a pod's GPUs are connected, and the best connection of as many GPUs of the node.

    `path` is the type of the path that limits the GPUs' ring (as in `nvidia-smi topo -m`), found
    between the GPUs `between`; `gbps` is its bandwidth in one direction as NCCL computes it,
    `numa_nodes` the number of the GPUs' NUMA nodes. `best_path` and `best_gbps` belong to
    `best_gpus`, the first such set on the empty node; `taken` are its GPUs that other pods hold.
    All four are empty if nothing better exists."""

    gpus: tuple[int, ...]
    path: str
    between: tuple[int, int]
    gbps: float
    numa_nodes: int
    best_path: str = ""
    best_gbps: float = 0.0
    best_gpus: tuple[int, ...] = ()
    taken: tuple[int, ...] = ()


def matters(shape: Shape, table: LedgerTable) -> bool:
    """Return True if links matter to the pod, and links of some node are known."""
    return bool(table.links) and shape.topology != "none"


def sets_on(table: LedgerTable, row: int) -> GpuSets | None:
    """Return the sets of this node's GPUs; None if its links are unknown."""
    number = int(table.links_of[row])
    return None if number < 0 else gpu_sets(table.links[number])


# --- over nodes ---


def unknown_to(table: LedgerTable, demand: Demand) -> Bools | None:
    """Return a mask of nodes with unknown links, [N], if the pod requires the best links; otherwise
    None."""
    if demand.shape.topology != "required" or demand.gpus < 2:
        return None
    return np.asarray(table.links_of < 0)


def best_by_node(table: LedgerTable, demand: Demand, rows: Ints | None = None) -> Ints | None:
    """Return, for each node or each of `rows`, the quality of the best connected set with as many
    GPUs as the pod requests, as if the node were empty. None if links do not matter to this demand,
    or the demand is not a single request for several GPUs."""
    if len(demand.needs) != 1 or demand.need.gpu_request.split or demand.need.count < 2:
        return None
    if not matters(demand.shape, table):
        return None
    query = Query(table, demand, rows)
    accepted = query.take_devices(table.serving()) & demand.need.will_do.take(query.device_kind)
    if demand.device_accepts is not None:
        accepted &= query.take_devices(demand.device_accepts)
    return _best(table, query, accepted, np.arange(table.count) if rows is None else rows)


def best_free(query: Query, profile: Profile) -> Ints:
    """Return, for each node, the quality of the best connected set among the devices that fit now
    and that policies accept, [n]."""
    fits = query.device_fits
    if not query.narrowed:
        for policy in profile.device_filters:
            mask = ask.filter_devices(policy, query)
            if mask is not None:
                fits = fits & mask
    table = query.table
    rows = np.arange(table.count) if query.rows is None else query.rows
    return _best(table, query, fits, rows)


def _best(table: LedgerTable, query: Query, fits: Bools, rows: Ints) -> Ints:
    bits = query.take_devices(table.device_link_bit)
    masks = query.sum(np.where(fits, bits, 0))
    numbers = table.links_of.take(rows)
    best = np.full(len(rows), NO_SET, dtype=np.int64)
    for number, links in enumerate(table.links):
        at = np.flatnonzero(numbers == number)
        if len(at):
            best[at] = gpu_sets(links).best(query.demand.need.count).take(masks[at])
    return best


def required_codes(query: Query, codes: Codes, free: Ints, ever: Ints) -> Codes:
    """Return the codes, with `LINKS_TAKEN` on nodes whose best free set (`free`) is connected worse
    than the best set of the empty node (`ever`), if the pod requires that."""
    if query.demand.shape.topology != "required":
        return codes
    best = ever if query.rows is None else ever.take(query.rows)
    return np.where((codes == 0) & (free < best), np.int8(Code.LINKS_TAKEN), codes)


# --- on one node ---


def bits_of(table: LedgerTable, row: int, positions: Sequence[int]) -> list[int]:
    """Return, for each device at these positions of the node, its bit in the masks of GPU sets; 0
    if its links are unknown."""
    begin = table.start[row]
    return [int(table.device_link_bit[begin + position]) for position in positions]


def best_of_free(table: LedgerTable, row: int, positions: Sequence[int], count: int) -> list[int]:
    """Return the positions of the best connected `count` of these interchangeable free devices;
    the first `count` if links are unknown."""
    sets, bits = sets_on(table, row), bits_of(table, row, positions)
    if sets is None or not all(bits) or len(positions) < count:
        return list(positions[:count])
    free = sum(bits)
    candidates = sets.sets(count)
    chosen = sets.choose(candidates[(candidates & ~free) == 0], free)
    return [position for position, bit in zip(positions, bits, strict=True) if chosen & bit]


def exchanged(
    table: LedgerTable,
    row: int,
    positions: Sequence[int],
    demand: Demand,
    signals: SignalsView | None,
) -> list[int]:
    """Return the chosen positions, with devices exchanged for others in equal states so that they
    are as well connected as possible, if links matter. `signals` are those that policies saw."""
    if not matters(demand.shape, table):
        return list(positions)
    alike = _alike(table, row, demand, signals)
    sets = sets_on(table, row)
    chosen = list(dict.fromkeys(positions))
    keys = {position: alike[position] for position in chosen}
    if sets is None or not all(bits_of(table, row, chosen)):
        return list(positions)
    candidates = sets.sets(len(chosen))
    members: dict[Hashable, list[int]] = {}
    for key in dict.fromkeys(keys.values()):
        of_key = [at for at, other in enumerate(alike) if other == key]
        mask = sum(bits_of(table, row, of_key))
        wanted = sum(keys[position] == key for position in chosen)
        candidates = candidates[np.bitwise_count(candidates & mask) == wanted]
        members[key] = of_key
    mine = sum(bits_of(table, row, chosen))
    idle = [at for at in range(len(alike)) if table.state[table.start[row] + at].idle]
    best = sets.choose(candidates, mine | sum(bits_of(table, row, idle)))
    new: dict[int, int] = {}
    for key, of_key in members.items():
        takes = [at for at in of_key if best & bits_of(table, row, [at])[0]]
        mine_of_key = [position for position in chosen if keys[position] == key]
        new.update(zip(sorted(mine_of_key), takes, strict=True))
    return [new[position] for position in positions]


def _alike(
    table: LedgerTable, row: int, demand: Demand, signals: SignalsView | None
) -> list[Hashable]:
    """Return a key for each device of the node: policies cannot distinguish devices with equal
    keys."""
    node, begin = table.nodes[row], table.start[row]
    keys: list[Hashable] = []
    for position, gpu in enumerate(node.gpus):
        device = begin + position
        accepted = demand.device_accepts is None or bool(demand.device_accepts[device])
        readings = signals.of_gpu(node.name, gpu.index) if signals is not None else None
        read = readings and tuple(column.tobytes() for column in readings)
        keys.append((table.state[device], table.residents.on(device), accepted, read))
    return keys


def lacking(query: Query, chosen: Ints) -> Ints:
    """Return the nodes (positions in the query) whose `chosen` devices, [n, steps], are not
    connected as well as the same number of that node's GPUs could be."""
    table = query.table
    rows = np.arange(table.count) if query.rows is None else query.rows
    bits = table.device_link_bit[table.starts[rows][:, None] + chosen]
    masks = np.bitwise_or.reduce(bits, axis=1)
    serving = np.where(table.serving(), table.device_link_bit, 0)
    poor = np.zeros(len(rows), dtype=np.bool_)
    for at, row in enumerate(rows.tolist()):
        sets, mask = sets_on(table, row), int(masks[at])
        if sets is None or mask.bit_count() < 2:
            continue
        all_cards = int(serving[table.start[row] : table.start[row + 1]].sum())
        best = sets.best(mask.bit_count())[mask | all_cards]
        poor[at] = sets.quality[mask] < best
    return np.flatnonzero(poor)


def best_scored(
    table: LedgerTable, row: int, fits: Sequence[Bools], scores: Ints
) -> list[int] | None:
    """Return one device per step, such that `fits[step]` allows it: of the sets that are
    connected as well as any set on the empty node, the one with the highest sum of scores. None
    if no such set is free, or the node's links are unknown. Arrays are over the node's devices."""
    sets = sets_on(table, row)
    if sets is None:
        return None
    count, any_fits = len(fits), np.any(fits, axis=0)
    begin, end = table.start[row], table.start[row + 1]
    bits = table.device_link_bit[begin:end]
    all_cards = int(bits[table.serving()[begin:end] & (bits > 0)].sum())
    free = int(bits[any_fits].sum())
    candidates = sets.sets(count)
    candidates = candidates[(candidates & ~free) == 0]
    candidates = candidates[sets.quality.take(candidates) >= sets.best(count)[all_cards]]
    total = np.zeros(len(candidates), dtype=np.int64)
    for position in np.flatnonzero(any_fits & (bits > 0)).tolist():
        total += np.where(candidates & bits[position], scores[position], 0)
    for at in np.argsort(-total, kind="stable").tolist():
        members = np.flatnonzero(bits & candidates[at]).tolist()
        if (places := _matched(fits, members)) is not None:
            return places
    return None


def _matched(fits: Sequence[Bools], members: Sequence[int]) -> list[int] | None:
    """Assign one of these devices to each step, by augmenting paths; None if that is impossible."""
    taken: dict[int, int] = {}

    def found(step: int, seen: set[int]) -> bool:
        for device in members:
            if fits[step][device] and device not in seen:
                seen.add(device)
                if device not in taken or found(taken[device], seen):
                    taken[device] = step
                    return True
        return False

    if not all(found(step, set()) for step in range(len(fits))):
        return None
    place = {step: device for device, step in taken.items()}
    return [place[step] for step in range(len(fits))]


def may_share(steps: Sequence[tuple[int, Need]]) -> bool:
    """Return True if shares of two GPU requests could be on one GPU, which the search does not
    try."""
    shares = [(at, need) for at, need in steps if not need.whole]
    return any(
        one[0] != other[0]
        and one[1].milli + other[1].milli <= 1000
        and bool((one[1].memory_mib + other[1].memory_mib <= one[1].card_mib).any())
        for one, other in combinations(shares, 2)
    )


def links_chosen(table: LedgerTable, row: int, gpus: Sequence[int]) -> ChosenLinks | None:
    """Return how the GPUs with these indexes are connected; None for one GPU, or if unknown."""
    sets, indexes = sets_on(table, row), tuple(sorted(set(gpus)))
    if sets is None or len(indexes) < 2 or any(index not in sets.place for index in indexes):
        return None
    mask = sum(1 << sets.place[index] for index in indexes)
    weakest = sets.weakest(mask)
    cards = sets.links.indexes
    chosen = ChosenLinks(
        indexes,
        weakest.word,
        (cards[weakest.one], cards[weakest.other]),
        gbps_of(sets.ring(mask)),
        len({sets.links.numa[sets.place[index]] for index in indexes} if sets.links.numa else {0}),
    )
    begin, end = table.start[row], table.start[row + 1]
    ours = table.device_link_bit[begin:end]
    serving = int(ours[table.serving()[begin:end]].sum())
    best = sets.first_best(len(indexes), serving | mask)
    if sets.quality[best] <= sets.quality[mask]:
        return chosen
    best_gpus = tuple(sorted(index for index, place in sets.place.items() if best >> place & 1))
    held = [index for index in best_gpus if _held(table, row, index)]
    return msgspec.structs.replace(
        chosen,
        best_path=sets.weakest(best).word,
        best_gbps=gbps_of(sets.ring(best)),
        best_gpus=best_gpus,
        taken=tuple(held),
    )


def _held(table: LedgerTable, row: int, index: int) -> bool:
    device = table.device_row(row, index)
    return device >= 0 and not table.state[device].idle

"""The choice of a node, and of those of its devices that the pod gets, as shares."""

import numpy as np
from msgspec import UNSET, UnsetType

from weft.core.constraints import PodWishes, PreferredAmong
from weft.core.engine.assessment import Assessment
from weft.core.framework import (
    NEVER,
    Need,
    Policy,
    Profile,
    Query,
    assignment,
    connection,
)
from weft.core.framework import (
    policy as ask,
)
from weft.core.framework.connection import ChosenLinks
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.ledger.table import Ints, LedgerTable
from weft.model import Placement, Shape, Share


def placement_on(
    table: LedgerTable, row: int, uid: str, shares: tuple[Share, ...], shape: Shape
) -> Placement:
    """Return the pod's place: its shares, what it takes of the node beside them, and what it
    runs."""
    return Placement(
        uid,
        table.nodes[row].name,
        shares,
        shape.cpu_milli,
        shape.memory_mib,
        shape.extended,
        shape.constraints.ports,
        shape.application,
        shape.job_class,
        shape.expected_s,
        shape.slowdown_limit,
    )


def best_row(known: Assessment, profile: Profile, key: str) -> int:
    """Return the row of the best node, −1 if none fits; `key` is for policies that draw.

    Of nodes that score almost equally, the one that the pod prefers. Of those that score equally,
    the one whose free GPUs are connected best, then the first.
    """
    rows = known.rows
    scores = known.total if rows is None else known.scores
    if len(scores) == 0:
        return -1
    at = int(scores.argmax())
    best = scores[at]
    if best == NEVER:
        return -1
    near = None
    if known.wishes is not None:
        near = _preferred(known, known.wishes, profile.preferences, int(best))
        if near is not None and len(near) == 1:
            return int(near[0])
    if near is None and (profile.breaks_ties or known.connected is not None):
        near = (scores == best).nonzero()[0]
        near = near if rows is None else rows.take(near)
    if near is None:
        return at if rows is None else int(rows[at])
    first = 0
    if profile.breaks_ties:
        first = ask.choose_node(profile.lead, near, key)
    elif known.connected is not None:
        first = int(known.connected.take(near).argmax())
    return int(near[first])


def _preferred(known: Assessment, wishes: PodWishes, percent: int, best: int) -> Ints | None:
    """Return the best rows for the pod's preferences, of those within `percent` % of the range of
    scores from the `best`; of equals those with the best score. None if it has none among them."""
    rows = known.rows
    if rows is None:
        rows = (known.total != NEVER).nonzero()[0]
        scores = known.total.take(rows)
    else:
        scores = known.scores
    worst = int(scores[scores.argmin()])
    near = (scores >= best - (best - worst) * percent // 100).nonzero()[0]
    if len(near) == 1:
        return None
    some = None if len(near) == len(rows) else near
    parts = wishes.parts(rows, some)
    if len(parts) > 1:
        parts = [part for part in parts if part.tells_apart]
    if not parts:
        return None
    sums = parts[0].points if len(parts) == 1 else np.sum([part.points for part in parts], axis=0)
    chosen = (sums == sums[sums.argmax()]).nonzero()[0]
    if len(chosen) == len(sums):
        return None
    at = chosen if some is None else near.take(chosen)
    by_score = scores.take(at)
    known.preferred = PreferredAmong(rows, some, percent, parts)
    return np.asarray(rows.take(at[by_score == by_score[by_score.argmax()]]))


def shares_on(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str
) -> tuple[Share, ...]:
    """Shares for all GPU requests of the demand on node `row`, which is known to fit."""
    demand = known.demand
    if demand.mode == "none":
        return ()
    if demand.mode == "many":
        return _many(table, row, known, profile, key)
    need = demand.need
    if need.whole:
        positions = _whole(table, row, known, profile)
    elif known.position is not None:
        position = int(known.position[row])
        positions = _exchanged(table, row, known, profile, [position])
    else:
        position = _shared(table, row, known, profile, key)
        positions = _exchanged(table, row, known, profile, [position])
    return tuple(_share(table, row, position, 0, need) for position in positions)


def predicted(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, shares: tuple[Share, ...]
) -> tuple[ExpectedSlowdown, ...]:
    """Slowdowns expected of the pod and its co-residents; () where it is alone."""
    if not profile.predicts or len(shares) != 1:
        return ()
    device = table.device_row(row, shares[0].gpu)
    co_residents = table.residents.on(device)
    model = table.gpu(row, device).model
    return profile.lead.predict(known.shape, co_residents, model) if co_residents else ()


def links(
    table: LedgerTable, row: int, known: Assessment, shares: tuple[Share, ...]
) -> ChosenLinks | UnsetType:
    """How the pod's GPUs are connected; unset if unknown, or it has one."""
    if len(shares) < 2 or not connection.matters(known.shape, table):
        return UNSET
    return connection.links_chosen(table, row, [share.gpu for share in shares]) or UNSET


def _share(table: LedgerTable, row: int, position: int, gpu_request: int, need: Need) -> Share:
    device = table.start[row] + position
    gpu = table.nodes[row].gpus[position]
    memory = int(need.memory_mib[table.kind_of[device]])
    milli = gpu.milli if need.whole else need.milli
    return Share(gpu_request, gpu.index, memory, milli, gpu.uuid)


def _whole(table: LedgerTable, row: int, known: Assessment, profile: Profile) -> list[int]:
    """Return the best connected idle devices that are accepted; the first, where links say
    nothing."""
    idle, count = _idle(table, row, known, profile), known.demand.need.count
    if not connection.matters(known.shape, table):
        return idle[:count]
    return connection.best_of_free(table, row, idle, count)


def _idle(table: LedgerTable, row: int, known: Assessment, profile: Profile) -> list[int]:
    """Return the idle devices that are accepted."""
    if known.demand.mode == "device" or profile.device_filters:
        fits: list[int] = _fitting(table, row, known, profile)[1].tolist()
        return fits
    begin, end = table.start[row], table.start[row + 1]
    return [device - begin for device in range(begin, end) if table.state[device].idle]


def _exchanged(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, positions: list[int]
) -> list[int]:
    """Return the same devices, or others that no policy could tell from them and are connected
    better.

    Where the policy chooses among equals itself, or goes by who else waits, that stays.
    """
    lead = profile.lead
    if not table.links or lead.ties == "last" or profile.matcher:
        return positions
    if len(positions) == 1:
        if type(lead).choose_device is not Policy.choose_device:
            return positions
        if not table.state[table.start[row] + positions[0]].idle:
            return positions  # it takes no card from those who come later
    signals = known.observed.signals if profile.observes else None
    return connection.exchanged(table, row, positions, known.demand, signals)


def _fitting(
    table: LedgerTable, row: int, known: Assessment, profile: Profile
) -> tuple[Query, Ints]:
    """Return the question about this node alone, and the positions of the devices that fit."""
    query = known.query(table, np.array([row], dtype=np.int64))
    for policy in profile.device_filters:
        mask = ask.filter_devices(policy, query)
        if mask is not None:
            query.narrow(mask)
    return query, np.flatnonzero(query.device_fits)


def _shared(table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str) -> int:
    custom = type(profile.lead).choose_device is not Policy.choose_device
    if custom or profile.device_filters or known.demand.mode == "device":
        query, fits = _fitting(table, row, known, profile)
        return int(fits[ask.choose_device(profile.lead, query, fits, key)])
    return _tightest(table, row, known.demand.need)


def _tightest(table: LedgerTable, row: int, need: Need) -> int:
    """`Policy.choose_device`'s default for a demand by one number, without arrays."""
    begin, end = table.start[row], table.start[row + 1]
    ask = int(need.ask_mib[table.kind_of[begin]])
    best, best_left = -1, -1
    for device in range(begin, end):
        state = table.state[device]
        free = state.memory if need.asks_memory else state.milli
        if (
            state.usable
            and state.memory >= ask
            and state.milli >= need.milli
            and (best < 0 or free < best_left)
        ):
            best, best_left = device - begin, free
    return best


def _many(
    table: LedgerTable, row: int, known: Assessment, profile: Profile, key: str
) -> tuple[Share, ...]:
    demand = known.demand
    query = known.query(table, np.array([row], dtype=np.int64))
    answer = _found_before(known, row, profile) or assignment.place(query, profile, key)
    chosen = answer.chosen[0].tolist()
    if demand.shape.topology != "required" and not any(n.gpu_request.split for n in demand.needs):
        chosen = _exchanged(table, row, known, profile, chosen)
    shares = [
        _share(table, row, position, gpu_request, need)
        for position, (gpu_request, need) in zip(chosen, answer.todo, strict=True)
    ]
    gpus = table.nodes[row].gpus
    shares += [
        Share(
            gpu_request,
            gpus[position].index,
            memory,
            demand.needs[gpu_request].milli,
            gpus[position].uuid,
        )
        for gpu_request, position, memory in assignment.split_shares(query, profile, answer)
    ]
    return tuple(sorted(shares, key=lambda share: (share.gpu_request, share.gpu)))


def _found_before(known: Assessment, row: int, profile: Profile) -> assignment.Assignment | None:
    """Return the answer found on this node when it was assessed; None if it was not just then, or
    where the policy's own choice among equals is still to be asked."""
    if known.places is None or type(profile.lead).choose_device is not Policy.choose_device:
        return None
    rows, answer = known.places
    at = np.flatnonzero(rows == row)
    return answer.only(at) if len(at) else None

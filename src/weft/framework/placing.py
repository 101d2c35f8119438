"""Where each claim goes when a pod has several: greedily over all nodes, exactly if need be.

The claims are taken largest first, one GPU at a time, each on the best device the policy knows
in the state the earlier ones left (as nano-gpu does). That is vectorised over nodes. Where it
ends without a place, `search` looks through every distinct assignment, so that "does not fit" is
never the fault of the order. A policy that rates whole assignments (`rate_option`) gets the
search for every node.
"""

import numpy as np

from weft.framework.demand import Demand, Need
from weft.framework.feasibility import Codes
from weft.framework.policy import Policy
from weft.framework.profile import Profile
from weft.framework.query import NEVER, Query
from weft.framework.search import Columns, Spread, Step, fewest, search_best, search_first
from weft.ledger.table import Bools, Ints
from weft.model import Code


class Answer:
    """Per node of the query: does it fit (`codes` says why not), the devices' summed `score`,
    and the `chosen` position for each of the `todo` steps, [n, steps]."""

    __slots__ = ("chosen", "codes", "fits", "score", "todo")

    def __init__(self, n: int, todo: list[tuple[int, Need]]) -> None:
        self.todo = todo
        self.fits: Bools = np.ones(n, dtype=np.bool_)
        self.codes: Codes = np.zeros(n, dtype=np.int8)
        self.score: Ints = np.zeros(n, dtype=np.int64)
        self.chosen: Ints = np.full((n, len(todo)), -1, dtype=np.int64)


def steps(demand: Demand, policy: Policy) -> list[tuple[int, Need]]:
    """(claim index, need) once per GPU asked for, largest claims first; `split` ones come after."""
    sign = -1 if policy.last_claim_first else 1
    order = sorted(
        (i for i, need in enumerate(demand.needs) if not need.claim.split),
        key=lambda i: (-demand.needs[i].whole, -int(demand.needs[i].ask_mib.max(initial=0)),
                       -demand.needs[i].milli, sign * i),
    )  # fmt: skip
    return [(i, demand.needs[i]) for i in order for _ in range(demand.needs[i].count)]


def place(query: Query, profile: Profile, key: str = "") -> Answer:
    """Find devices for all claims on every node of `query`.

    With a `key` (and then for one node) the lead's `choose_device` takes the devices where no
    policy scores them; whether the claims fit never depends on that.
    """
    policy = profile.device_scorer or profile.lead
    alone = len(query.demand.needs) == 1 and query.demand.needs[0].claim.split
    if type(policy).rate_option is not Policy.rate_option and not alone:
        return _search_all(query, profile, policy)
    answer = _greedy(query, profile, policy, key=key)
    stuck = np.flatnonzero(~answer.fits)
    if len(stuck) and not alone:
        _search_stuck(query, profile, policy, answer, stuck)
    return answer


class _Scratch(Query):
    """The query's nodes as they would be after the steps so far; an ordinary query to policies."""

    hypothetical = True
    __slots__ = ("_children", "_parents", "alone")

    def __init__(self, query: Query) -> None:
        super().__init__(query.table, query.demand, query.rows)
        self._children = self._parents = np.zeros(0, dtype=np.int64)
        if query.table.has_parents:
            parent = _parents(self)
            self._children = np.flatnonzero(parent >= 0)
            first = self.at(np.zeros(self.n, dtype=np.int64)).take(self.device_node)
            self._parents = (first + parent).take(self._children)
        self._cells = self._cells.copy()
        self._device_cells = self._devices().copy()
        self._cells[0] -= self.demand.cpu_milli
        self._cells[1] -= self.demand.memory_mib
        self.alone: Bools = np.ones(self._device_cells.shape[1], dtype=np.bool_)

    def ask(self, need: Need, same_claim: bool) -> None:
        """Turn to the next step; `same_claim` keeps it off the devices its claim already has."""
        self.need = need
        self._fits = None
        if not same_claim:
            self.alone[:] = True
        self._fits = self.device_fits & self.alone

    def take(self, need: Need, devices: Ints) -> None:
        """Charge the step on these devices (positions in the query's device columns)."""
        cells = self._devices()
        cells[0, devices] -= need.memory_mib.take(cells[5, devices])
        cells[1, devices] -= need.milli
        cells[2, devices] = 0
        cells[10, devices] += need.memory_mib.take(cells[5, devices])
        self.alone[devices] = False
        if len(self._children):
            self._block_relatives(devices)
        cells[4] = 1
        self._cells[2] = self.sum(self.device_milli_free)
        self._cells[3] = self.max(self.device_milli_free, -1)
        self._cells[4] = self.max(self.device_memory_free, -1)
        self._cells[5] = self.sum(self.device_idle.astype(np.int64))

    def _block_relatives(self, devices: Ints) -> None:
        """A card and the MIG instances cut from it are never held at the same time."""
        cells = self._devices()
        taken = np.zeros(cells.shape[1], dtype=np.bool_)
        taken[devices] = True
        cells[:4, self._children[taken[self._parents]]] = 0
        cells[:4, self._parents[taken[self._children]]] = 0

    def row(self, position: int) -> Ints:
        """The table's row of the node at this position, as an array of one."""
        row = position if self.rows is None else self.rows[position]
        return np.array([row], dtype=np.int64)

    def at(self, positions: Ints) -> Ints:
        """Device columns' index of these positions on each node."""
        self._devices()
        assert self._offsets is not None
        return self._offsets + positions


def _greedy(
    query: Query, profile: Profile, policy: Policy, forced: Ints | None = None, key: str = ""
) -> Answer:
    """One pass of steps; `forced` [n, steps] prescribes the devices (to score a found answer)."""
    todo = steps(query.demand, policy)
    answer = Answer(query.n, todo)
    scratch = _Scratch(query)
    before = -1
    for index, (claim, need) in enumerate(todo):
        scratch.ask(need, same_claim=claim == before)
        before = claim
        for filtering in profile.device_filters:
            mask = filtering.filter_devices(scratch)
            if mask is not None:
                scratch.narrow(mask)
        scores = policy.score_devices(scratch)
        wanted = -scratch.room if scores is None else scores
        if forced is None:
            if key and scores is None and not need.whole:
                wanted = _chosen_first(scratch, policy, f"{key}/{index}")
            best, position = scratch.best(wanted, last=policy.ties == "last")
            fits = best != NEVER
        else:
            position = forced[:, index]
            fits = np.ones(query.n, dtype=np.bool_)
            best = wanted[scratch.at(position)]
        answer.chosen[:, index] = np.where(fits, position, -1)
        if scores is not None:
            answer.score += np.where(fits, best, 0)
        new = answer.fits & ~fits
        if new.any():
            alone = len(query.demand.needs) == 1 and index > 0
            lone = Code.TOGETHER if index and not alone else need.lack_code
            answer.codes[new] = lone
            answer.fits &= fits
        good = np.flatnonzero(answer.fits)
        if len(good) == 0:
            break
        scratch.take(need, scratch.at(position)[good])
    if forced is None:
        _check_split(scratch, profile, answer)
    return answer


def _chosen_first(query: Query, policy: Policy, key: str) -> Ints:
    """Scores that put the policy's own choice first, on the one node of `query`."""
    wanted = np.zeros(len(query.device_local), dtype=np.int64)
    fits = np.flatnonzero(query.device_fits)
    if len(fits):
        wanted[fits[policy.choose_device(query, fits, key)]] = 1
    return wanted


def _split_need(demand: Demand) -> tuple[int, Need] | None:
    """The `split` claim, if the demand has one: it gets what the others leave."""
    return next(((i, need) for i, need in enumerate(demand.needs) if need.claim.split), None)


def _spread_on(scratch: _Scratch, profile: Profile) -> Spread | None:
    split = _split_need(scratch.demand)
    if split is None:
        return None
    claim, need = split
    scratch.ask(need, same_claim=False)
    allowed = _acceptable(scratch, need, profile)
    return Spread(claim, need.count, need.claim.memory.value, need.milli, allowed.tolist())


def _check_split(scratch: _Scratch, profile: Profile, answer: Answer) -> None:
    """A memory total over the fewest GPUs: fits where all usable cards together have it."""
    split = _split_need(scratch.demand)
    if split is None:
        return
    need = split[1]
    scratch.ask(need, same_claim=False)
    ok = _acceptable(scratch, need, profile) & (scratch.device_milli_free >= need.milli)
    room = scratch.sum(np.where(ok, scratch.device_memory_free, 0))
    enough = (room >= need.claim.memory.value) & (scratch.count(ok) >= need.count)
    if scratch.table.has_parents:
        for row in np.flatnonzero(enough & answer.fits).tolist():
            here = Query(scratch.table, scratch.demand, scratch.row(row))
            enough[row] = bool(_spread(here, profile, answer.todo, answer.chosen[row]))
    answer.codes[answer.fits & ~enough] = Code.TOGETHER if answer.todo else Code.GPU_MEMORY
    answer.fits &= enough


def _spread(
    query: Query, profile: Profile, todo: list[tuple[int, Need]], chosen: Ints
) -> list[tuple[int, int]]:
    """(position, free MiB) of the fewest GPUs for the split claim on the one node of `query`."""
    scratch = _Scratch(query)
    for position, (_, need) in zip(chosen, todo, strict=True):
        scratch.take(need, scratch.at(np.array([position], dtype=np.int64)))
    spread = _spread_on(scratch, profile)
    if spread is None:
        return []
    room, milli = scratch.device_memory_free.tolist(), scratch.device_milli_free.tolist()
    ok = [yes and milli[d] >= spread.milli for d, yes in enumerate(spread.allowed)]
    found = fewest(room, ok, _parents(scratch).tolist(), spread)
    return [(position, room[position]) for position in found or []]


def split_shares(query: Query, profile: Profile, answer: Answer) -> list[tuple[int, int, int]]:
    """(claim, position, MiB) for a split claim on the one node of `query`: the fewest GPUs, evenly.

    `answer` says where the other claims go; empty without a split claim.
    """
    split = _split_need(query.demand)
    if split is None:
        return []
    claim, left = split[0], split[1].claim.memory.value
    chosen = _spread(query, profile, answer.todo, answer.chosen[0])
    shares = []
    for done, (position, room) in enumerate(reversed(chosen)):
        amount = min(room, -(-left // (len(chosen) - done)))
        shares.append((claim, position, amount))
        left -= amount
    return sorted(shares)


# --- the exact search, for the nodes where the greedy pass found nothing ------------------------


def _steps_on(scratch: _Scratch, profile: Profile, todo: list[tuple[int, Need]]) -> list[Step]:
    """Each step with what every device column answers to it in the untouched state."""
    found = []
    for claim, need in todo:
        scratch.ask(need, same_claim=False)
        allowed = _acceptable(scratch, need, profile)
        kinds = scratch.device_kind
        found.append(
            Step(claim, need.whole, need.milli, need.ask_mib.take(kinds).tolist(),
                 need.memory_mib.take(kinds).tolist(), allowed.tolist())
        )  # fmt: skip
    return found


def _acceptable(query: Query, need: Need, profile: Profile) -> Bools:
    allowed = query.device_usable & need.will_do.take(query.device_kind)
    by_uuid = query.demand.device_accepts
    if by_uuid is not None:
        rows = query._device_rows
        allowed &= by_uuid if rows is None else by_uuid.take(rows)
    for filtering in profile.device_filters:
        mask = filtering.filter_devices(query)
        if mask is not None:
            allowed &= mask
    return allowed


def _columns(scratch: _Scratch) -> Columns:
    return Columns(
        scratch.device_memory_free.tolist(), scratch.device_milli_free.tolist(),
        scratch.device_idle.tolist(), scratch.device_memory_total.tolist(),
        _parents(scratch).tolist(),
    )  # fmt: skip


def _parents(query: Query) -> Ints:
    """Position on its node of the card that each device is cut from, −1 for cards, [d]."""
    local = query.device_local
    if not query.table.has_parents:
        return np.full(len(local), -1, dtype=np.int64)
    rows = query._device_rows
    everywhere = query.table.device_parent
    parent = everywhere if rows is None else everywhere.take(rows)
    here = np.arange(len(parent)) if rows is None else rows
    return np.where(parent < 0, -1, parent - (here - local))


def _nodes(scratch: _Scratch) -> list[tuple[int, int]]:
    """(first device column, devices) of each node."""
    scratch._devices()
    assert scratch._offsets is not None
    return list(zip(scratch._offsets.tolist(), scratch.gpus.tolist(), strict=True))


def _search_stuck(
    query: Query, profile: Profile, policy: Policy, answer: Answer, stuck: Ints
) -> None:
    """Give every node on which the greedy pass failed the exact search; score what it finds."""
    rows = stuck if query.rows is None else query.rows.take(stuck)
    part = Query(query.table, query.demand, rows)
    scratch = _Scratch(part)
    todo = _steps_on(scratch, profile, answer.todo)
    spread = _spread_on(scratch, profile)
    columns = _columns(scratch)
    known: dict[object, list[int] | None] = {}
    found: list[tuple[int, list[int]]] = []
    for index, (begin, count) in enumerate(_nodes(scratch)):
        positions = search_first(todo, begin, count, columns, known, spread)
        if positions is not None:
            found.append((index, positions))
    if not found:
        return
    at = np.array([index for index, _ in found], dtype=np.int64)
    chosen = np.array([positions for _, positions in found], dtype=np.int64)
    forced = _greedy(Query(query.table, query.demand, rows.take(at)), profile, policy, chosen)
    where = stuck.take(at)
    answer.fits[where] = True
    answer.codes[where] = 0
    answer.chosen[where] = chosen
    answer.score[where] = forced.score


def _search_all(query: Query, profile: Profile, policy: Policy) -> Answer:
    """The policy rates whole assignments: look through all distinct ones on every node."""
    scratch = _Scratch(query)
    answer = Answer(query.n, steps(query.demand, policy))
    todo = _steps_on(scratch, profile, answer.todo)
    spread = _spread_on(scratch, profile)
    in_order = sorted(range(len(todo)), key=lambda i: todo[i].claim)
    ordered = [todo[i] for i in in_order]
    columns = _columns(scratch)
    known: dict[object, tuple[int, list[int]] | None] = {}
    for index, (begin, count) in enumerate(_nodes(scratch)):
        best = search_best(ordered, begin, count, columns, policy, known, spread)
        if best is None:
            answer.fits[index] = False
            alone = len(ordered) == 1
            answer.codes[index] = query.demand.needs[0].lack_code if alone else Code.TOGETHER
        else:
            answer.score[index] = best[0]
            answer.chosen[index, in_order] = best[1]
    return answer

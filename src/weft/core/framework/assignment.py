"""Assigns GPUs to each GPU request of a pod with several: greedily on all nodes, or by a search.

The greedy pass takes the GPU requests largest first, one GPU at a time, each on the best device by
the policy in the state that the earlier steps left (as nano-gpu does), vectorised over nodes. On
nodes where it fails, `search` tries the distinct assignments, within a bound, so that a pod is not
refused because of the order. A policy that rates whole assignments (`rate_options`) gets the search
for every node.

An example, tested with the policy `binpack`: a node whose GPUs have 10 and 8 GiB free, a pod whose
containers request 4, 5, 4 and 5 GiB.
  greedy   5 → GPU 1 (the tightest; 3 left), 5 → GPU 0 (5 left), 4 → GPU 0 (1 left), 4 → nowhere
  search   the distinct assignments one after another: 5 + 5 on GPU 0 and 4 + 4 on GPU 1 fit"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from weft.core.framework import connection
from weft.core.framework import policy as ask
from weft.core.framework.demand import Demand, Need
from weft.core.framework.device_rows import DeviceRows
from weft.core.framework.feasibility import Codes
from weft.core.framework.partial_states import DeviceRequest
from weft.core.framework.policy import Policy
from weft.core.framework.profile import Profile
from weft.core.framework.query import NEVER, Query
from weft.core.framework.search import SearchResult
from weft.core.framework.split import SplitRequest, fewest
from weft.core.ledger import table
from weft.core.ledger.table import DEVICE_USABLE, MEMORY_FREE, MILLI_FREE, Bools, Ints
from weft.model import Code

MOST_GPUS = 64
"""Maximum number of GPU shares of one pod, summed over its containers; pods with more do not
fit."""
FEW_GPUS = 4
"""Pods with at most this many shares are placed on any number of nodes in one decision."""
GREEDY_CELLS = 150_000
"""Maximum of devices × GPU shares for one decision, about 30 ms; beyond it, only the emptiest nodes
are considered."""
SCORED_AT_ONCE = 4_096
"""Number of devices that a policy scores in one call if the states to score are known in
advance."""
Step = tuple[int, Need]
"""One GPU to place: the number of its GPU request, and its need."""

NODES_CONNECTED = 256
"""Maximum number of nodes on which one decision searches other, connected GPUs for a pod that
requires them: about 30 ms."""


_PER_NODE = ("fits", "exact", "codes", "score", "chosen")


class Assignment:
    """Result per node of the query: `codes` (0 fits), the devices' summed `score`, and the `chosen`
    position for each of the `todo` steps, [n, steps]. `exact` is False if the search ended at its
    bound: a better assignment may exist."""

    __slots__ = ("chosen", "codes", "exact", "fits", "score", "todo")

    def __init__(self, n: int, todo: list[tuple[int, Need]]) -> None:
        self.todo = todo
        self.fits: Bools = np.ones(n, dtype=np.bool_)
        self.exact: Bools = np.ones(n, dtype=np.bool_)
        self.codes: Codes = np.zeros(n, dtype=np.int8)
        self.score: Ints = np.zeros(n, dtype=np.int64)
        self.chosen: Ints = np.full((n, len(todo)), -1, dtype=np.int64)

    def only(self, positions: Ints) -> "Assignment":
        """Return the result for the nodes at these positions."""
        part = Assignment(len(positions), self.todo)
        for name in _PER_NODE:
            setattr(part, name, getattr(self, name)[positions])
        return part

    def put(self, positions: Ints, part: "Assignment") -> None:
        """Set the result for the nodes at these positions."""
        for name in _PER_NODE:
            getattr(self, name)[positions] = getattr(part, name)


def steps(demand: Demand, policy: Policy) -> list[tuple[int, Need]]:
    """List (GPU request, need) once per requested GPU, the largest first, without `split`
    requests."""
    sign = -1 if policy.last_request_first else 1
    order = sorted(
        (i for i, need in enumerate(demand.needs) if not need.gpu_request.split),
        key=lambda i: (
            -demand.needs[i].whole,
            -int(demand.needs[i].ask_mib.max(initial=0)),
            -demand.needs[i].milli,
            sign * i,
        ),
    )
    return [(i, demand.needs[i]) for i in order for _ in range(demand.needs[i].count)]


def place(query: Query, profile: Profile, key: str = "") -> Assignment:
    """Find devices for all GPU requests on every node of `query`.

    With a `key`, for a single node, the lead policy's `choose_device` chooses the devices if no
    policy scores them; whether the GPU requests fit never depends on that. If GPU requests times
    devices are too many for one decision, only the emptiest nodes are considered, and the others
    get the code `NOT_SEARCHED`."""
    policy = profile.device_scorer or profile.lead
    gpus = sum(need.count for need in query.demand.needs if not need.gpu_request.split)
    todo = steps(query.demand, policy) if gpus <= MOST_GPUS else []
    rows = _affordable(query, gpus)
    if len(rows) == query.n:
        return _connected(query, profile, policy, _place(query, profile, policy, todo, key))
    answer = Assignment(query.n, todo)
    answer.fits[:], answer.codes[:] = False, Code.NOT_SEARCHED
    if len(rows):
        part = query.only(rows)
        placed = _place(part, profile, policy, todo, key)
        answer.put(rows, _connected(part, profile, policy, placed))
    return answer


def _connected(query: Query, profile: Profile, policy: Policy, answer: Assignment) -> Assignment:
    """For a pod that requires connected GPUs, replace poorly connected devices by the best scored
    set that is connected well enough, one GPU per step. Without such a set the node does not fit;
    if shares of several GPU requests could share a GPU, its code is `NOT_SEARCHED`."""
    at = np.flatnonzero(answer.fits)
    if query.demand.shape.topology != "required" or not answer.todo or not len(at):
        return answer
    at = at[connection.lacking(query.only(at), answer.chosen[at])]
    if not len(at):
        return answer
    taken = Code.NOT_SEARCHED if connection.may_share(answer.todo) else Code.LINKS_TAKEN
    answer.fits[at], answer.codes[at] = False, taken
    answer.codes[at[NODES_CONNECTED:]] = Code.NOT_SEARCHED
    part = query.only(at[:NODES_CONNECTED])
    before = answer.chosen[at[:NODES_CONNECTED]]
    chosen = _other_devices(part, profile, policy, answer.todo, before)
    good = np.flatnonzero(chosen.min(axis=1) >= 0)
    if len(good):
        placed = _found(part.only(good), profile, policy, answer.todo, chosen[good])
        answer.put(at[good], placed)
    return answer


def _other_devices(
    query: Query, profile: Profile, policy: Policy, todo: list[Step], chosen: Ints
) -> Ints:
    """Return better connected devices for each node, [n, steps]: the best scored set of devices,
    or else the chosen ones, exchanged for equivalent devices; −1 if these are connected poorly
    too."""
    others = np.full_like(chosen, -1)
    scratch = _Scratch(query)
    fits, wanted = list[Bools](), scratch.room
    for _, need in todo:
        scratch.begin_step(need, same_request=False)
        if not fits:
            scores = ask.score_devices(policy, scratch)
            wanted = -scratch.room if scores is None else scores
        fits.append(scratch.device_fits & _acceptable(scratch, need, profile))
    assert query.rows is not None
    signals, ends = query.signals if profile.observes else None, query.gpus.cumsum()
    for at, (row, end) in enumerate(zip(query.rows.tolist(), ends.tolist(), strict=True)):
        own = slice(end - int(query.gpus[at]), end)
        best = connection.best_scored(query.table, row, [fit[own] for fit in fits], wanted[own])
        others[at] = best or connection.exchanged(
            query.table, row, chosen[at].tolist(), query.demand, signals
        )
    others[connection.lacking(query, others)] = -1
    return others


def _affordable(query: Query, gpus: int) -> Ints:
    """Return the positions of nodes that one decision can consider: all, or the emptiest, in
    order."""
    if gpus > MOST_GPUS:
        return np.zeros(0, dtype=np.int64)
    if gpus <= FEW_GPUS or int(query.gpus.sum()) * gpus <= GREEDY_CELLS:
        return np.arange(query.n)
    emptiest = np.argsort(-query.milli_free, kind="stable")
    cells = query.gpus[emptiest].cumsum() * gpus
    return np.sort(emptiest[: max(1, int((cells <= GREEDY_CELLS).sum()))])


def _place(
    query: Query, profile: Profile, policy: Policy, todo: list[tuple[int, Need]], key: str
) -> Assignment:
    alone = len(query.demand.needs) == 1 and query.demand.needs[0].gpu_request.split
    if type(policy).rate_options is not Policy.rate_options and not alone:
        answer = _search_all(query, profile, policy, todo)
        _say_what_lacks_alone(query, profile, answer)
        return answer
    answer = _greedy(query, profile, policy, todo, key=key)
    stuck = np.flatnonzero(~answer.fits)
    if len(stuck) and not alone:
        _search_stuck(query, profile, policy, answer, stuck)
        if key and not answer.fits.all():  # the policy's own choice may have failed
            return _place(query, profile, policy, todo, "")
        _say_what_lacks_alone(query, profile, answer)
    return answer


def _say_what_lacks_alone(query: Query, profile: Profile, answer: Assignment) -> None:
    """Keep the reason `TOGETHER` only if each GPU request fits alone; otherwise set the reason of
    the first request that does not."""
    at, scratch = np.flatnonzero(answer.codes == Code.TOGETHER), None
    for gpu_request, need in enumerate(query.demand.needs):
        if not len(at):
            return
        if not need.gpu_request.split:
            scratch = scratch or _Scratch(query.only(at))
            fits = _fits_alone(scratch, profile, gpu_request, need)
            if not fits.all():
                answer.codes[at[~fits]] = need.short_code
                at, scratch = at[fits], None


def _fits_alone(scratch: "_Scratch", profile: Profile, gpu_request: int, need: Need) -> Bools:
    """Return a mask of nodes that have enough GPUs for this request alone, before any step, [n]."""
    scratch.begin_step(need, same_request=False)
    for filtering in profile.device_filters:
        mask = ask.filter_devices(filtering, scratch)
        if mask is not None:
            scratch.narrow(mask)
    fits = scratch.count(scratch.device_fits) >= need.count
    at = np.flatnonzero(fits)
    # A GPU and its MIG instances cannot be held at the same time.
    split = _split_need(scratch.demand)
    if need.count > 1 and scratch.table.has_parents and len(at) and not split:
        result = _search(scratch.only(at), profile, [gpu_request] * need.count, None)
        fits[at] = result.fits | ~result.exact
    return fits


class _State(NamedTuple):
    """Columns of a `_Scratch` at one step."""

    cells: Ints
    device_cells: Ints
    alone: Bools


class _Scratch(Query):
    """The query's nodes in the state after earlier steps; policies see an ordinary query. With
    several `states` the nodes are repeated once per state. The node columns of the first state must
    be up to date (`sum_up`)."""

    hypothetical = True
    __slots__ = ("_children", "_parents", "alone")

    def __init__(self, query: Query, states: Sequence[_State] = ()) -> None:
        rows = query.rows
        if states:
            rows = np.tile(np.arange(query.n) if rows is None else rows, len(states))
        super().__init__(query.table, query.demand, rows, query.observed)
        if states:
            self._lay_out()
            cells, device_cells, alone = zip(*states, strict=True)
            self.cells, self.alone = np.concatenate(cells, axis=1), np.concatenate(alone)
            self._device_cells = np.concatenate(device_cells, axis=1)
            self.__dict__.clear()
            self.sum_up()
            self.cells[:, : query.n] = cells[0]
            return
        self._children = self._parents = np.zeros(0, dtype=np.int64)
        if query.table.has_parents:
            parent = _parents(self)
            self._children = np.flatnonzero(parent >= 0)
            first = self.at(np.zeros(self.n, dtype=np.int64)).take(self.device_node)
            self._parents = (first + parent).take(self._children)
        self.cells = self.cells.copy()
        self._device_cells = self._devices().copy()
        self.__dict__.clear()  # columns of the former state
        self.cells[table.CPU_FREE] -= self.demand.cpu_milli
        self.cells[MEMORY_FREE] -= self.demand.memory_mib
        self.alone = np.ones(self._device_cells.shape[1], dtype=np.bool_)

    def state(self) -> _State:
        """Return the present columns, for a `_Scratch` of several states."""
        return _State(self.cells, self._devices().copy(), self.alone.copy())

    def begin_step(self, need: Need, same_request: bool) -> None:
        """Begin a step for `need`; `same_request` excludes devices that its GPU request already
        has."""
        self.need = need
        self._fits = None
        if not same_request:
            self.alone[:] = True
        self._fits = self.device_fits & self.alone

    def take(self, need: Need, devices: Ints) -> None:
        """Charge the step on these devices (positions in the query's device columns).

        The node columns are updated only by `sum_up`."""
        cells = self._devices()
        charged_mib = need.memory_mib.take(cells[table.DEVICE_KIND, devices])
        cells[table.DEVICE_MEMORY_FREE, devices] -= charged_mib
        cells[table.DEVICE_MILLI_FREE, devices] -= need.milli
        cells[table.DEVICE_IDLE, devices] = 0
        cells[table.DEVICE_PROMISED, devices] += charged_mib
        self.alone[devices] = False
        if len(self._children):
            self._block_relatives(devices)
        cells[table.DEVICE_FIRST] = 1

    def sum_up(self) -> None:
        """Update the node columns from the device columns."""
        self.cells[MILLI_FREE] = self.sum(self.device_milli_free)
        self.cells[table.MAX_MILLI_FREE] = self.max(self.device_milli_free, -1)
        self.cells[table.MAX_MEMORY_FREE] = self.max(self.device_memory_free, -1)
        self.cells[table.IDLE] = self.sum(self.device_idle.astype(np.int64))

    def _block_relatives(self, devices: Ints) -> None:
        """Make MIG instances of taken GPUs unusable, and GPUs of taken instances."""
        cells = self._devices()
        is_taken = np.zeros(cells.shape[1], dtype=np.bool_)
        is_taken[devices] = True
        cells[: DEVICE_USABLE + 1, self._children[is_taken[self._parents]]] = 0
        cells[: DEVICE_USABLE + 1, self._parents[is_taken[self._children]]] = 0

    def row(self, position: int) -> Ints:
        """Return the table's row of the node at this position, as an array of one."""
        row = position if self.rows is None else self.rows[position]
        return np.array([row], dtype=np.int64)

    def at(self, positions: Ints) -> Ints:
        """Return the index in the device columns of these positions on each node."""
        self._devices()
        assert self._offsets is not None
        return self._offsets + positions


def _greedy(
    query: Query,
    profile: Profile,
    policy: Policy,
    todo: list[Step],
    key: str = "",
) -> Assignment:
    """Place the steps in one pass, each on the best device that the earlier steps left."""
    answer = Assignment(query.n, todo)
    scratch = _Scratch(query)
    before = -1
    for index, (gpu_request, need) in enumerate(todo):
        scratch.begin_step(need, same_request=gpu_request == before)
        before = gpu_request
        scores = _filtered_scores(scratch, profile, policy)
        wanted = -scratch.room if scores is None else scores
        if key and scores is None and not need.whole:
            wanted = _chosen_first(scratch, policy, f"{key}/{index}")
        best, position = scratch.best(wanted, last=policy.ties == "last")
        fits = best != NEVER
        answer.chosen[:, index] = np.where(fits, position, -1)
        if scores is not None:
            answer.score += np.where(fits, best, 0)
        new = answer.fits & ~fits
        if new.any():
            alone = len(query.demand.needs) == 1 and index > 0
            lone = Code.TOGETHER if index and not alone else need.short_code
            answer.codes[new] = lone
            answer.fits &= fits
        good = np.flatnonzero(answer.fits)
        if len(good) == 0:
            break
        scratch.take(need, scratch.at(position)[good])
        scratch.sum_up()
    _check_split(scratch, profile, answer)
    return answer


def _filtered_scores(scratch: _Scratch, profile: Profile, policy: Policy) -> Ints | None:
    """Return the policy's scores for the step's devices, after applying the device filters; None
    if the policy does not score devices."""
    for filtering in profile.device_filters:
        mask = ask.filter_devices(filtering, scratch)
        if mask is not None:
            scratch.narrow(mask)
    return ask.score_devices(policy, scratch)


def _found(
    query: Query, profile: Profile, policy: Policy, todo: list[Step], chosen: Ints
) -> Assignment:
    """Return a result with these devices, [n, steps], scored as if the steps had been taken one by
    one.

    The states to score are known in advance, so the policy is asked about many steps of one GPU
    request at once, each as a copy of the nodes."""
    answer = Assignment(query.n, todo)
    answer.chosen[:] = chosen
    scratch = _Scratch(query)
    at_once = max(1, SCORED_AT_ONCE // max(1, query.d))
    for gpu_request, of_request in groupby(range(len(todo)), key=lambda at: todo[at][0]):
        need, indexes = query.demand.needs[gpu_request], list(of_request)
        scratch.begin_step(need, same_request=False)
        for begin in range(0, len(indexes), at_once):
            devices, states = [], []
            for index in indexes[begin : begin + at_once]:
                devices.append(scratch.at(chosen[:, index]))
                states.append(scratch.state())
                scratch.take(need, devices[-1])
            stack = _Scratch(query, states)
            stack.begin_step(need, same_request=True)
            scores = _filtered_scores(stack, profile, policy)
            if scores is not None:
                places = np.stack(devices) + query.d * np.arange(len(devices))[:, None]
                answer.score += scores.take(places).sum(axis=0)
            scratch.sum_up()
    return answer


def _chosen_first(query: Query, policy: Policy, key: str) -> Ints:
    """Return scores that put the policy's own choice first, on the one node of `query`."""
    wanted = np.zeros(len(query.device_local), dtype=np.int64)
    fits = np.flatnonzero(query.device_fits)
    if len(fits):
        wanted[fits[ask.choose_device(policy, query, fits, key)]] = 1
    return wanted


def _split_need(demand: Demand) -> tuple[int, Need] | None:
    """Return the number and need of the `split` GPU request, which gets memory that the other
    requests leave; None if the pod has no such request."""
    return next(((i, need) for i, need in enumerate(demand.needs) if need.gpu_request.split), None)


def _spread_on(scratch: _Scratch, profile: Profile) -> tuple[SplitRequest, Bools] | None:
    """Return the `split` GPU request, and a mask of acceptable devices; None if the pod has no such
    request."""
    split = _split_need(scratch.demand)
    if split is None:
        return None
    gpu_request, need = split
    scratch.begin_step(need, same_request=False)
    spread = SplitRequest(gpu_request, need.count, need.gpu_request.memory.value, need.milli)
    return spread, _acceptable(scratch, need, profile)


def _check_split(scratch: _Scratch, profile: Profile, answer: Assignment) -> None:
    """Check the `split` request: the node fits if all acceptable GPUs together have the memory."""
    split = _spread_on(scratch, profile)
    if split is None:
        return
    spread, allowed = split
    rows = _device_rows(scratch, allowed)
    enough = rows.hold(spread)
    answer.codes[answer.fits & ~enough] = Code.TOGETHER if answer.todo else Code.GPU_MEMORY
    answer.fits &= enough


def _spread(
    query: Query, profile: Profile, todo: list[tuple[int, Need]], chosen: Ints
) -> list[tuple[int, int]]:
    """Return (position, free MiB) of the fewest GPUs that hold the `split` request (a memory
    total over several GPUs) on the one node of `query`; [] if the pod has no such request, or
    the GPUs cannot hold it."""
    scratch = _Scratch(query)
    for position, (_, need) in zip(chosen, todo, strict=True):
        scratch.take(need, scratch.at(np.array([position], dtype=np.int64)))
    split = _spread_on(scratch, profile)
    if split is None:
        return []
    spread, allowed = split
    room = scratch.device_memory_free.tolist()
    ok = (allowed & (scratch.device_milli_free >= spread.milli)).tolist()
    positions = fewest(room, ok, _parents(scratch).tolist(), spread)
    return [(position, room[position]) for position in positions or []]


def split_shares(query: Query, profile: Profile, answer: Assignment) -> list[tuple[int, int, int]]:
    """Return (GPU request, position, MiB) of each share of the split request on the one node of
    `query`: the fewest GPUs, in equal parts as far as possible. `answer` has the places of the
    other GPU requests. Empty if there is no split request."""
    split = _split_need(query.demand)
    if split is None:
        return []
    gpu_request, rest_mib = split[0], split[1].gpu_request.memory.value
    chosen = _spread(query, profile, answer.todo, answer.chosen[0])
    shares = []
    for done, (position, room) in enumerate(reversed(chosen)):
        amount = min(room, -(-rest_mib // (len(chosen) - done)))
        shares.append((gpu_request, position, amount))
        rest_mib -= amount
    return sorted(shares)


# --- the search, for nodes where the greedy pass found nothing and for policies that rate ways ---


def _acceptable(query: Query, need: Need, profile: Profile) -> Bools:
    allowed = query.device_usable & need.will_do.take(query.device_kind)
    by_uuid = query.demand.device_accepts
    if by_uuid is not None:
        rows = query._device_rows
        allowed &= by_uuid if rows is None else by_uuid.take(rows)
    for filtering in profile.device_filters:
        mask = ask.filter_devices(filtering, query)
        if mask is not None:
            allowed &= mask
    return allowed


def _parents(query: Query) -> Ints:
    """Return the position on its node of the GPU that each MIG instance belongs to, −1 for GPUs,
    [d]."""
    local = query.device_local
    if not query.table.has_parents:
        return np.full(len(local), -1, dtype=np.int64)
    rows = query._device_rows
    everywhere = query.table.device_parent
    parent = everywhere if rows is None else everywhere.take(rows)
    node_rows = np.arange(len(parent)) if rows is None else rows
    return np.where(parent < 0, -1, parent - (node_rows - local))


def _device_rows(scratch: _Scratch, spreadable: Bools) -> DeviceRows:
    scratch._devices()
    assert scratch._offsets is not None
    return DeviceRows(
        scratch._offsets,
        scratch.gpus,
        scratch.device_memory_free,
        scratch.device_milli_free,
        scratch.device_idle,
        scratch.device_memory_total,
        _parents(scratch),
        spreadable,
    )


def _search(
    query: Query, profile: Profile, order: list[int], policy: Policy | None
) -> SearchResult:
    """Search places for GPU requests in this `order`, once per GPU, on every node of the query."""
    scratch = _Scratch(query)
    asks = {}
    for gpu_request in dict.fromkeys(order):
        need = scratch.demand.needs[gpu_request]
        scratch.begin_step(need, same_request=False)
        kinds = scratch.device_kind
        asks[gpu_request] = DeviceRequest(
            need.count > 1,
            need.whole,
            need.milli,
            need.ask_mib.take(kinds),
            need.memory_mib.take(kinds),
            _acceptable(scratch, need, profile),
        )
    split = _spread_on(scratch, profile)
    nowhere = np.zeros(len(scratch.device_kind), dtype=np.bool_)
    spread, spreadable = split or (None, nowhere)
    rows = _device_rows(scratch, spreadable)
    return rows.search(asks, order, policy, spread, query.table.count)


def _search_stuck(
    query: Query, profile: Profile, policy: Policy, answer: Assignment, stuck: Ints
) -> None:
    """Search every node on which the greedy pass failed, and score the places found."""
    part = query.only(stuck)
    result = _search(part, profile, [gpu_request for gpu_request, _ in answer.todo], None)
    answer.codes[stuck[~result.fits & ~result.exact]] = Code.NOT_SEARCHED
    at = np.flatnonzero(result.fits)
    if len(at) == 0:
        return
    found = _found(part.only(at), profile, policy, answer.todo, result.chosen[at])
    answer.put(stuck[at], found)


def _search_all(
    query: Query, profile: Profile, policy: Policy, todo: list[tuple[int, Need]]
) -> Assignment:
    """Search for a policy that rates complete placements, with requests in the pod's order."""
    answer = Assignment(query.n, todo)
    in_order = sorted(range(len(todo)), key=lambda i: todo[i][0])
    result = _search(query, profile, [todo[i][0] for i in in_order], policy)
    alone = len(query.demand.needs) == 1
    lack = query.demand.needs[0].short_code if alone else Code.TOGETHER
    answer.fits[:], answer.exact[:] = result.fits, result.exact
    answer.codes[:] = np.where(result.fits, 0, np.where(result.exact, lack, Code.NOT_SEARCHED))
    answer.score[:] = np.where(result.fits, result.score, 0)
    answer.chosen[:, in_order] = np.where(result.fits[:, None], result.chosen, -1)
    return answer

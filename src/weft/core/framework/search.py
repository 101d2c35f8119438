"""Bounded search for several GPU requests: by level over distinct states, all nodes at once.

  start ──step 1──▶ states ──step 2──▶ states ── … ──▶ ways to place the whole pod
    (one device of each kind; equal outcomes once; only those that can still win)

Each node keeps `width` states per level. On a node that never had more states, the search is exact:
no other way fits, or none is rated higher. `exact` is False if states were cut off. The result for
a node depends on the node and the pod alone, not on other nodes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.core.framework import partial_states
from weft.core.framework import policy as ask
from weft.core.framework.partial_states import Asks, Nodes, PartialStates, StateSpace, by_row
from weft.core.framework.policy import PlacementOptions, Policy, RemainingRequest
from weft.core.framework.query import NEVER
from weft.core.framework.split import SplitRequest, holds
from weft.core.ledger.table import Bools, Ints


class SearchResult(NamedTuple):
    """Result per node: if the pod fits, in which way ([nodes, steps]), its rating, and if the
    search was exact, that is, no better way exists."""

    fits: Bools
    chosen: Ints
    score: Ints
    exact: Bools

    def put(self, positions: Ints, part: "SearchResult") -> None:
        """Set the results of the nodes at these positions."""
        for column, of_part in zip(self, part, strict=True):
            column[positions] = of_part


def nothing(nodes: int, steps: int) -> SearchResult:
    """Return an exact result for this many nodes on which nothing fits."""
    return SearchResult(
        np.zeros(nodes, dtype=np.bool_),
        np.zeros((nodes, steps), dtype=np.int64),
        np.full(nodes, NEVER, dtype=np.int64),
        np.ones(nodes, dtype=np.bool_),
    )


class AssignmentSearch:
    """Search for one pod's steps on some nodes. `policy` rates whole ways; without one the first
    way is taken, trying the tightest devices first."""

    def __init__(
        self,
        nodes: Nodes,
        asks: Asks,
        steps: Sequence[int],
        policy: Policy | None,
        spread: SplitRequest | None,
    ) -> None:
        self._space, self._nodes = StateSpace(nodes, asks, steps), nodes
        self._asks, self._steps = asks, steps
        self._policy, self._spread = policy, spread
        self._left = _left(asks, steps, len(nodes.memory))

    def run(self, width: Ints) -> SearchResult:
        """Return the best way on each node.

        If a policy rates ways, whole GPUs are taken in the node's order, as in the original systems
        of these policies; other whole GPUs are tried only if that finds no way."""
        if self._policy is None:
            return self._best(width, branches=True)
        result = self._best(width, branches=False)
        if result.fits.all() or not any(ask.whole for ask in self._asks.values()):
            return result
        retried = self._best(width, branches=True)
        failed = ~result.fits
        return SearchResult(
            np.where(failed, retried.fits, result.fits),
            np.where(failed[:, None], retried.chosen, result.chosen),
            np.where(failed, retried.score, result.score),
            np.where(failed, retried.exact, result.exact),
        )

    def _best(self, width: Ints, *, branches: bool) -> SearchResult:
        """Return the best way on each node: find a quick way first, as a bound, then search ways
        that could beat it."""
        none = nothing(len(self._nodes.memory), len(self._steps))
        if self._policy is None:
            first = self._tightest()
            return first if first.fits.all() else self._pass(width, first, branches=branches)
        quick = self._pass(np.ones_like(width), none, branches=branches)
        return self._pass(width, quick, branches=branches)

    def _tightest(self) -> SearchResult:
        """Return the way that takes the tightest device at each step, if that succeeds.

        This is the first way in search order, so a search without ratings would return it too."""
        result = nothing(len(self._nodes.memory), len(self._steps))
        states = self._space.start().take(np.arange(len(self._nodes.memory)))
        for index in range(len(self._steps)):
            fits = self._space.fits(states, index)
            row = np.flatnonzero(fits.any(axis=1))
            if len(row) < len(states):
                states, fits = states.take(row), fits[row]
            if not len(row):
                return result
            order = np.lexsort((states.milli, states.memory))
            place = np.take_along_axis(fits, order, axis=1).argmax(axis=1)
            self._space.put(states, index, order[np.arange(len(row)), place])
        if self._spread is not None:
            states = states.take(np.flatnonzero(self._leaves_room(states, self._spread)))
        result.fits[states.node], result.score[states.node] = True, 0
        result.chosen[states.node] = states.path
        return result

    def _pass(self, width: Ints, before: SearchResult, *, branches: bool) -> SearchResult:
        """Search level by level, keeping only states that may be as good as the result `before`,
        which stays for nodes where nothing better is found."""
        states = self._space.start()
        dropped = np.full(len(before.fits), NEVER, dtype=np.int64)
        for index in range(len(self._steps)):
            row, device = self._choices(states, index, branches=branches)
            if len(row) == 0:
                states = states.take(row)
                break
            states = self._space.follow(states, index, row, device)
            states = self._promising(states, index + 1, width, before, dropped)
        if len(states) and self._spread is not None:
            states = states.take(np.flatnonzero(self._leaves_room(states, self._spread)))
        return self._choose(states, before, dropped)

    def _choices(self, states: PartialStates, index: int, *, branches: bool) -> tuple[Ints, Ints]:
        """Return (state, device) for step `index`, in the order in which ways are tried."""
        fits = self._space.fits(states, index)
        width = fits.shape[1]
        if self._asks[self._steps[index]].whole and not branches:
            row = np.flatnonzero(fits.any(axis=1))
            return row, fits[row].argmax(axis=1)
        if self._policy is None:
            order = np.lexsort((states.milli, states.memory))
            row, place = np.take_along_axis(fits, order, axis=1).nonzero()
            device = order[row, place]
        elif self._policy.ties == "last":
            row, place = fits[:, ::-1].nonzero()
            device = width - 1 - place
        else:
            row, device = fits.nonzero()
        return self._space.distinct(states, row, device)

    def _promising(
        self, states: PartialStates, index: int, width: Ints, before: SearchResult, dropped: Ints
    ) -> PartialStates:
        """Keep the most promising states of each node, up to `width`. `dropped` records the best
        bound of the states that were cut off."""
        bound = self._bound(states, index)
        promising, node = np.arange(len(states)), states.node
        if self._policy is not None and before.fits.any():
            promising = np.flatnonzero(self._may_win(states, index, bound, before))
            node, bound = node[promising], bound[promising]
        place = np.arange(len(node))
        at, most = place - np.searchsorted(node, node), width[node]
        if (at >= most).any():
            rank = np.empty_like(place)
            # Each node's states stay contiguous.
            rank[np.lexsort((-bound, node))] = at
            lost = rank >= most
            np.maximum.at(dropped, node[lost], bound[lost])
            promising = promising[~lost]
        return states if len(promising) == len(states) else states.take(promising)

    def _may_win(
        self, states: PartialStates, index: int, bound: Ints, before: SearchResult
    ) -> Bools:
        """Return a mask of states that may lead to a better way, or to an earlier, equally good
        one."""
        assert self._policy is not None
        mark = before.score[states.node]
        ties = np.flatnonzero(bound == mark)
        may_win: Bools = bound > mark
        if len(ties):
            apart = states.path[ties, :index] - before.chosen[states.node[ties], :index]
            if self._policy.ties == "last":
                apart = -apart
            first_apart = (apart != 0).argmax(axis=1)
            may_win[ties] = apart[np.arange(len(ties)), first_apart] <= 0
        return may_win

    def _bound(self, states: PartialStates, index: int) -> Ints:
        """Return an upper bound of the rating of any way that continues a state."""
        if self._policy is None:
            return np.zeros(len(states), dtype=np.int64)
        options = self._options(states)
        if index == len(self._steps):
            return ask.rate_options(self._policy, options)
        memory, milli, gpus = self._left
        node = states.node
        remaining = RemainingRequest(memory[index][node], milli[index], gpus[index])
        return ask.bound_options(self._policy, options, remaining)

    def _options(self, states: PartialStates) -> PlacementOptions:
        node = states.node
        return PlacementOptions(
            states.memory,
            states.milli,
            by_row(self._nodes.total, node),
            by_row(self._nodes.there, node),
            (states.flags & partial_states.SINGLE) != 0,
            (states.flags & partial_states.SEVERAL) != 0,
        )

    def _leaves_room(self, states: PartialStates, spread: SplitRequest) -> Bools:
        """Return a mask of states whose remaining memory also holds the `split` GPU request."""
        node = states.node
        ok = by_row(self._nodes.spreadable, node) & (states.milli >= spread.milli)
        if self._space.has_families:
            ok &= ~self._space.blocked(states)
        family, instance = self._nodes.family[node], self._nodes.instance[node]
        return holds(states.memory, ok, family, instance, spread)

    def _choose(self, states: PartialStates, before: SearchResult, dropped: Ints) -> SearchResult:
        """Return the best rated way on each node, the first of equals."""
        if len(states) == 0:
            lost = dropped > NEVER
            return before._replace(exact=~lost)
        score = self._bound(states, len(self._steps))
        order = np.lexsort((np.arange(len(states)), -score, states.node))
        best = order[np.unique(states.node[order], return_index=True)[1]]
        node = states.node[best]
        fits, chosen, scores = before.fits.copy(), before.chosen.copy(), before.score.copy()
        better = ~fits[node] | (score[best] >= scores[node])
        best, node = best[better], node[better]
        fits[node], scores[node], chosen[node] = True, score[best], states.path[best]
        # The first way in order is found, or cut off together with all later ones.
        exact = (dropped < scores) if self._policy is not None else fits | (dropped == NEVER)
        return SearchResult(fits, chosen, scores, exact | (dropped == NEVER))


def _left(asks: Asks, steps: Sequence[int], nodes: int) -> tuple[list[Ints], list[int], list[int]]:
    """Return, for each step number, upper bounds over that step and the later ones: MiB charged to
    one device, by node; thousandths charged; and the number of GPU requests for one GPU."""
    most = {
        gpu_request: np.where(ask.allowed, ask.charge_mib, 0).max(axis=1, initial=0)
        for gpu_request, ask in asks.items()
    }
    memory, milli, gpus = [np.zeros(nodes, dtype=np.int64)], [0], [0]
    for gpu_request in reversed(steps):
        memory.append(memory[-1] + most[gpu_request])
        milli.append(milli[-1] + asks[gpu_request].milli)
        gpus.append(gpus[-1] + (not asks[gpu_request].several))
    return memory[::-1], milli[::-1], gpus[::-1]

"""Answers kube-scheduler's preempt verb: the victims on each node so that the pod fits.

    proposed, and enough on a card too         kept as they are
    proposed, and no help on any card          others are searched among those of the node's cards
    nobody proposed (after Kubernetes 1.37)    the same

Until 1.37 kube-scheduler proposes victims by what the node has in all, and leaves out a node on
which only a card is too full; later it sends that one with an empty list, and takes an empty list
in the answer for an error. Pure questions: nobody is asked to go here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.core.engine.engine import Engine
from weft.core.engine.preempting import FitTrials, PreemptionRights, is_open, on_node, rights_of
from weft.core.engine.queue import WaitingPod
from weft.core.framework import Profile
from weft.core.ledger.table import Bools
from weft.core.preempt import FoundVictims, Victim, VictimSearch, uids_of
from weft.model import PodRequest


class OfferedVictims(NamedTuple):
    """Pods (by UID) whose end makes room on one node, and how many more that is than disruption
    budgets allow."""

    uids: tuple[str, ...] = ()
    violations: int = 0


def offered_victims(
    engine: Engine,
    profile: Profile,
    pod: PodRequest,
    proposed: Mapping[str, OfferedVictims],
    *,
    by_sums: bool,
) -> dict[str, OfferedVictims]:
    """Return the nodes where ending pods helps, and which pods. Where others than those `proposed`
    must be found, on the 48 likeliest nodes. `by_sums`: nothing but what nodes have in all can have
    made kube-scheduler propose them, so others may go in their stead; else they go too."""
    rights, rows = rights_of(engine, pod), engine.ledger.table.row_of
    fits = FitTrials(engine, profile, WaitingPod(pod, profile, 0), rights)
    offers, others = {}, {}
    for name, offer in proposed.items():
        if name not in rows:
            continue
        if offer.uids and fits(rows[name], [*rights.going, *offer.uids]):
            offers[name] = offer
        else:
            others[name] = offer
    if not others:
        return offers
    cards = _CardVictims(engine, profile, pod, rights, fits)
    in_their_stead = by_sums and not engine.existing.owners
    for name in cards.likeliest(others):
        theirs = others[name]
        tries = [OfferedVictims(), theirs] if in_their_stead and theirs.uids else [theirs]
        found = next(filter(None, (cards.on(name, beside) for beside in tries)), None)
        if found is not None:
            offers[name] = found
    return offers


class _CardVictims:
    """Searches victims for one pod on nodes' cards."""

    def __init__(
        self,
        engine: Engine,
        profile: Profile,
        pod: PodRequest,
        rights: PreemptionRights,
        fits: FitTrials,
    ) -> None:
        self._engine, self._law, self._rights = engine, profile.budgets_are_law, rights
        self._known, self._fits = engine.assess(profile, pod, None), fits

    def likeliest(self, nodes: Mapping[str, OfferedVictims]) -> Iterator[str]:
        """Yield those of the nodes that are worth a search, the likeliest first."""
        table = self._engine.ledger.table
        here = np.zeros(table.count, dtype=np.bool_)
        here[[table.row_of[name] for name in nodes]] = True
        anyway = [uid for offer in nodes.values() for uid in offer.uids]
        for row in self._search(here, anyway).likeliest():
            yield table.nodes[row].name

    def on(self, node: str, beside: OfferedVictims) -> OfferedVictims | None:
        """Return the victims on this node, including `beside`, who leave in any case; None if there
        are none."""
        engine, table = self._engine, self._engine.ledger.table
        everywhere = np.ones(table.count, dtype=np.bool_)
        search = self._search(everywhere, beside.uids)
        found: FoundVictims | None = search.find_on(table.row_of[node])
        if found is None:
            return None
        leaving = [uid for uid in self._rights.going if uid in engine.preemption.going]
        uids = (*beside.uids, *on_node(engine, leaving, node), *uids_of(found.victims))
        over = beside.violations + (found.cost.violations if found.cost else 0)
        return OfferedVictims(tuple(dict.fromkeys(uids)), over) if uids else None

    def _search(self, here: Bools, anyway: Sequence[str]) -> VictimSearch:
        return VictimSearch(
            self._engine.ledger,
            self._engine.preemption.lower,
            self._known.demand,
            self._rights.below,
            here & is_open(self._known),
            fits=self._fits,
            victims_on=self._victims_on,
            allowed=self._engine.preemption.allowed,
            going=[*self._rights.going, *anyway],
            may_violate=not self._law,
        )

    def _victims_on(self, node: str) -> list[Victim]:
        """Pods that may be ended, and that kube-scheduler sees there: their binding is done, and of
        a gang no pod is elsewhere."""
        there = {
            holding.placement.uid
            for holding in self._engine.ledger.pods_on(node)
            if holding.state == "committed"
        }
        victims = self._rights.victims_on(self._engine, node)
        return [victim for victim in victims if there.issuperset(victim.uids)]

"""Answers kube-scheduler's preempt verb: the victims on each node whose eviction makes the pod fit.

    victims proposed, and enough on a GPU too     kept as they are
    victims proposed, but no help on any GPU      others are searched among the pods of the GPUs
    no victims proposed (after Kubernetes 1.37)   likewise

Until 1.37 kube-scheduler proposes victims by the node's totals, and leaves out a node on which only
a GPU is too full; later versions send such a node with an empty list, but treat an empty list in
the answer as an error. Pure questions: nothing is evicted here.
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
    """Pods (by UID) whose end makes room on one node, and by how many evictions they exceed
    disruption budgets."""

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
    """Return the nodes where ending pods helps, and which pods. If other pods than those `proposed`
    must be found, only the 48 likeliest nodes are searched. `by_sums`: kube-scheduler can only have
    proposed victims because of node totals, so other pods may be evicted instead; otherwise the
    proposed ones are evicted too."""
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
    """Searches victims for one pod on nodes' GPUs."""

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
        """Yield the nodes that are worth a search, the likeliest first."""
        table = self._engine.ledger.table
        here = np.zeros(table.count, dtype=np.bool_)
        here[[table.row_of[name] for name in nodes]] = True
        anyway = [uid for offer in nodes.values() for uid in offer.uids]
        for row in self._search(here, anyway).likeliest():
            yield table.nodes[row].name

    def on(self, node: str, beside: OfferedVictims) -> OfferedVictims | None:
        """Return the victims on this node, including `beside`, which are evicted in any case; None
        if no victims help."""
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
        """Return pods of the node that may be evicted and that kube-scheduler sees there: pods that
        are bound, and not of a gang with pods on other nodes."""
        there = {
            holding.placement.uid
            for holding in self._engine.ledger.pods_on(node)
            if holding.state == "committed"
        }
        victims = self._rights.victims_on(self._engine, node)
        return [victim for victim in victims if there.issuperset(victim.uids)]

"""Places like pods of a gang that fill one node after the other, on all of these nodes together.

A gang's next pod goes to the node of the last one while that has room (`gang_search`). For like
pods the room of each node therefore tells which pods go where, before any of them is placed. So the
first pods of all these nodes are placed together, then their second ones: scoring a hundred nodes
takes little longer than scoring one. Records are as if the pods had been placed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from weft.core.engine import deciding
from weft.core.engine.assessment import LOOKS_AT_LEAST, Assessment
from weft.core.engine.deciding import ChosenPlace
from weft.core.engine.gang_room import room_for
from weft.core.engine.queue import WaitingPod
from weft.core.framework import Demand, Profile
from weft.core.ledger.table import Bools, Ints
from weft.model import Shape

if TYPE_CHECKING:
    from weft.core.engine.engine import Engine


class FilledNode(NamedTuple):
    """A node's row, the number of the first pod that goes there, and how many do."""

    row: int
    first: int
    pods: int


class Filling:
    """Fills nodes with the pods of one gang, in the order of `waiting`. `holds` gets False if a
    node had room for more or fewer pods than its amounts say: then pods are to be placed one by
    one."""

    def __init__(self, engine: Engine, waiting: Sequence[WaitingPod], now_ns: int) -> None:
        self._engine, self._waiting, self._now_ns = engine, waiting, now_ns
        self._applies: dict[tuple[str, Shape], bool] = {}
        self.holds = True

    def fill(
        self, known: Assessment, at: int, used: Bools, rooms: dict[Demand, Ints]
    ) -> list[ChosenPlace]:
        """Reserve places, on trial, for pod number `at`, which `known` is about, and the like pods
        after it, on nodes not `used` yet. Return them in the pods' order; none if this pod has to
        be placed by itself. `rooms` is the room of the nodes that are not used yet."""
        engine, first = self._engine, self._waiting[at]
        alike = first.profile.name, first.pod.shape
        if not known.counts[0] or not self._applies.get(alike, True):
            return []
        if (known.codes[used] == 0).any():
            return []  # that node is next
        pods = self._alike_from(at)
        if alike not in self._applies:
            by_shape = _applies(engine, first.profile, known)
            self._applies[alike] = by_shape and all(_goes_by_shape(engine, each) for each in pods)
            if not self._applies[alike]:
                return []
        if (room := rooms.get(known.demand)) is None:
            room = rooms[known.demand] = room_for(known.demand, engine.ledger.table)
        left = len(self._waiting) - at
        nodes = next_nodes(known, room, left, len(pods))
        looked = engine.assessor.looked
        places = self._fill_all(pods, known, nodes)
        used[[node.row for node in nodes]] = True
        # The work is counted as if the pods had been assessed one by one.
        assessed = len(places) - 1
        more = assessed + 1 < len(pods)
        engine.assessor.looked = looked + assessed * (LOOKS_AT_LEAST + 1) + more
        return places

    def _alike_from(self, at: int) -> Sequence[WaitingPod]:
        """Return this pod and those after it that are like it."""
        first, end = self._waiting[at], at + 1
        while end < len(self._waiting) and _are_alike(first, self._waiting[end]):
            end += 1
        return self._waiting[at:end]

    def _fill_all(
        self, pods: Sequence[WaitingPod], known: Assessment, nodes: Sequence[FilledNode]
    ) -> list[ChosenPlace]:
        engine, version = self._engine, self._engine.journal.version
        counts, ends = list(known.counts), [0] * len(nodes)
        rows = np.array([node.row for node in nodes], dtype=np.int64)
        found: dict[int, ChosenPlace] = {}
        for step in range(max(node.pods for node in nodes) + 1):
            now = engine.assessor.assess(pods[0].profile, known.shape)
            for at, code in enumerate(now.codes.take(rows).tolist()):
                node = nodes[at]
                if step < node.pods and not code:
                    waiting = pods[node.first + step]
                    place = deciding.choose_place(engine, waiting, now, node.row, self._now_ns)
                    deciding.reserve_on_trial(engine, place, node.row)
                    found[node.first + step] = place
                elif step < node.pods or (step == node.pods and not code and node is not nodes[-1]):
                    self.holds = False
                    return []
                elif step == node.pods:
                    ends[at] = code
        for at, node in enumerate(nodes):
            for number in range(node.first, node.first + node.pods):
                own = found[number].placed
                own.record = replace(own.record, counts=tuple(counts), version=version + number)
            counts[0] -= 1
            counts[ends[at]] += 1
        return [found[number] for number in range(len(found))]


def next_nodes(known: Assessment, room: Ints, left: int, pods: int) -> list[FilledNode]:
    """Return the nodes that so many like pods, of `left` pods in all, fill one after the other: the
    roomiest first, of these the best rated."""
    rows = (known.codes == 0).nonzero()[0]
    total, rooms = known.total.take(rows), room.take(rows)
    order = np.lexsort((-total, -rooms))
    rows, total, rooms = rows.take(order), total.take(order), rooms.take(order)
    nodes: list[FilledNode] = []
    first = 0
    for at in range(min(len(rows), pods)):
        row = int(rows[at])
        if rooms[at] >= left - first:  # these all have room for the rest
            enough = at + np.flatnonzero(rooms[at:] >= left - first)
            best = enough[total[enough] == total[enough].max()]
            row = int(rows[best].min())
        nodes.append(FilledNode(row, first, min(max(1, int(rooms[at])), pods - first)))
        first += nodes[-1].pods
        if first == pods:
            break
    return nodes


def _are_alike(one: WaitingPod, other: WaitingPod) -> bool:
    return one.profile.name == other.profile.name and one.pod.shape == other.pod.shape


def _applies(engine: Engine, profile: Profile, known: Assessment) -> bool:
    """Return True if a node's answers depend on its own pods only, and its amounts tell (but for
    host ports and extended resources) how many of these pods it has room for."""
    demand, table, constraints = known.demand, engine.ledger.table, known.shape.constraints
    by_node = (
        profile.answers_by_node
        and len(profile.scorers) < 2  # several are normalised over all nodes
        and not (profile.breaks_ties or profile.matcher or engine.keep_top)
        and known.connected is None
        and known.wishes is None
        and not (engine.existing.owners or engine.oom_history.known or engine.peaks.known)
    )
    by_amounts = (
        table.uniform
        and not (table.has_parents or demand.mode == "many" or demand.device_accepts is not None)
        and not (demand.harvests or profile.node_filters or profile.device_filters)
    )
    return by_node and by_amounts and not (constraints.pods or constraints.storage)


def _goes_by_shape(engine: Engine, waiting: WaitingPod) -> bool:
    """Return True if nothing but the pod's shape says where it may go."""
    pod, teams = waiting.pod, engine.teams
    limited = teams.count and teams.is_limited(pod.team_queue)
    return not (pod.preferences or pod.claims or limited)

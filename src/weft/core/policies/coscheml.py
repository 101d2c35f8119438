"""Co-scheML: chooses an empty GPU, otherwise one whose only pod disturbs and suffers least.

The filter makes the whole decision, so that kube-scheduler is left with one node. Pending pods are
matched with running pods, cheapest pair first; a GPU that suits another pending pod better is left
to that pod. Slowdown is not limited: the cheapest match is always taken."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from weft.core.framework import Policy, Query
from weft.core.framework.policy import ExpectedSlowdown
from weft.core.ledger.table import Bools, CoResidents, Ints, Resident
from weft.core.policies.co_residents import CoResidentCache, asking, one_by_one
from weft.core.policies.compat import Compat, is_exact
from weft.core.policies.pair_costs import greedy, greedy_alike
from weft.core.policies.sharing_cost import predictions
from weft.model import BadInputError, Shape, interference_table
from weft.model.interference_table import Distances, InterferenceTable, InterferenceView
from weft.model.nearest import unknown

Pairing = Literal["cheapest", "fifo", "gpu-util", "mystic"]
PAIRINGS = ("cheapest", "fifo", "gpu-util", "mystic")
MOST = 2
"""Maximum number of pods on a GPU."""

UTILISATION_PERCENT = {
    "LAMMPS": 25.0,
    "GROMACS": 69.0,
    "HOOMD": 97.69,
    "QMCPACK": 46.7,
    "CNN": 92.02,
    "Googlenet": 90.65,
    "Alexnet": 92.6,
    "vgg16": 82.83,
    "vgg11": 97.23,
    "classification": 13.4,
    "multiout": 11.72,
    "regression": 11.91,
}
"""GPU utilisation of each application running alone, from the original's branch gpu_util."""

HOSTS = {"GROMACS": ("dccgpu",), "QMCPACK": ("ubuntu", "dccgpu")}
"""Nodes on which the original allows these applications an empty GPU (`exact` only)."""

FORBIDDEN = float("inf")


class CoschemlPolicy(Policy):
    """Chooses an empty GPU first, otherwise by greedy matching of pending and running pods; at most
    two pods per GPU.

    `pairing` names a branch of the original's repository, and with it the cost of a pair:
    `cheapest` is the sum of both predicted slowdowns; `mystic` prefers the largest distance between
    the applications; `gpu-util` prefers a sum of utilisations near 100 %; `fifo` takes the first
    GPU. `exact` reproduces flaws: it decides per node as if each had one GPU, takes the last empty
    node, limits some applications to hosts by name (except `mystic`), confuses pods of the same
    application, and counts unknown pairs as free of interference; where the original would crash,
    nothing fits."""

    name = "coscheml"
    summary = "an empty GPU, else the GPU whose pod makes the cheapest pair with a waiting pod"
    source = "Co-scheML (Kim & Kim, CLUSTER'20)"
    compat_system = "coscheml"
    reads = frozenset({"occupants", "co_residents", "pending"})
    inputs: Mapping[str, Any] = {
        interference_table.INTERFERENCE: InterferenceTable,
        interference_table.MYSTIC: Distances,
    }

    def __init__(self, pairing: Pairing = "cheapest", compat: Compat = "sane") -> None:
        if pairing not in PAIRINGS:
            place = f"policy {self.name}, option pairing"
            raise BadInputError(place, unknown(pairing, PAIRINGS))
        self.pairing, self.exact = pairing, is_exact(self.name, compat)
        if pairing != "mystic":
            self.inputs = {interference_table.INTERFERENCE: InterferenceTable}
        if self.exact:
            self.inputs = {**self.inputs, interference_table.PREDICTED: InterferenceTable}
        self.view = InterferenceView()
        self.distances: Distances = {}
        self._numbers: dict[str, int] = {}
        self._costs = CoResidentCache(one_by_one(self._judge), (FORBIDDEN,), MOST)

    def take_input(self, name: str, value: Any) -> None:
        """Take predicted interference, or mystic's distances. With `exact`, observed interference
        is ignored."""
        if name == interference_table.MYSTIC:
            self.distances = value
        elif self.exact and interference_table.OBSERVED in value.sources:
            return
        else:
            self.view = InterferenceView(value)
        known = dict.fromkeys((*self.view.source.classes, *self.distances))
        self._numbers = {name: number for number, name in enumerate(known)}
        self._costs.forget()

    # --- filters and scores for one pod -----------------------------------------------------------

    def filter_nodes(self, query: Query) -> Bools | None:
        """With `exact`, accept nodes with fewer than two pods on their first GPU, [n]; otherwise
        None. The original counts all GPU pods of the node, as it assumes one GPU per node."""
        if not self.exact or query.need is None:
            return None
        first = query.sum(np.where(query.device_local == 0, query.device_pods, 0))
        return np.asarray(first < MOST)

    def filter_devices(self, query: Query) -> Bools | None:
        """Without `exact`, accept GPUs with fewer than two pods, unless the pod there and the new
        one must not share a GPU, [d]; with `exact`, return None."""
        return None if self.exact else np.isfinite(self._costs.over(query)[0])

    def score_devices(self, query: Query) -> Ints:
        """Without `exact`, score minus the pair's cost in thousandths, and an empty GPU far higher,
        [d].

        With `exact`, prefer the GPU with the least free memory that is enough."""
        if self.exact:
            return -query.room
        cost = self._costs.over(query)[0]
        cost = np.where(np.isfinite(cost), cost, 0.0)
        return np.asarray(-np.rint(1000.0 * cost)).astype(np.int64)

    def predict(
        self, shape: Shape, co_residents: CoResidents, model: str
    ) -> tuple[ExpectedSlowdown, ...]:
        """Predict the slowdown of the pod and of its co-residents."""
        return predictions(self.view, shape, co_residents, model)

    # --- matching with other waiting pods ---------------------------------------------------------

    def filter_pending(self, query: Query, pending: Sequence[Shape]) -> Bools | None:
        """Accept only the GPU (with `exact` the node) that the pod is matched with; none if all
        GPUs suit other waiting pods better, [d]."""
        if self.exact:
            return self._exactly(query, pending)
        fits = np.flatnonzero(query.device_fits)
        chosen = np.zeros(len(query.device_pods), dtype=np.bool_)
        idle = fits[query.device_pods.take(fits) == 0]
        best = int(idle[0]) if len(idle) else self._matched(query, fits, pending)
        if best >= 0:
            chosen[best] = True
        return chosen

    def _matched(self, query: Query, fits: Ints, pending: Sequence[Shape]) -> int:
        """Return the device whose pod is matched with the query's pod; −1 if none is."""
        own = asking(query.demand.shape)
        rivals = [asking(shape) for shape in pending if shape.gpu_requests]
        if self.pairing in {"fifo", "gpu-util"}:
            rivals = [own]
        kinds: dict[Resident, list[int]] = {}
        for number, rival in enumerate(rivals):
            kinds.setdefault(rival, []).append(number)
        if own not in kinds:
            return -1
        group = (query.device_co_residents * len(query.table.kinds) + query.device_kind).take(fits)
        order = np.argsort(group, kind="stable")
        begins = np.flatnonzero(np.diff(group.take(order), prepend=-1))
        groups = [part.tolist() for part in np.split(fits.take(order), begins[1:])]
        first = fits.take(order.take(begins))
        costs = np.array([self._costs.over(query, rival)[0].take(first) for rival in kinds])
        return greedy_alike(costs, list(kinds.values()), groups, list(kinds).index(own))

    def _judge(self, joining: Resident, co_residents: CoResidents, model: str) -> tuple[float]:
        """Return the cost of joining this GPU's pod, lower is better; −1000 for an empty GPU."""
        if not co_residents:
            return (-1000.0,)
        return (self.cost(joining.application, co_residents[0].application, model),)

    def cost(self, waits: str, runs: str, model: str = "") -> float:
        """Return the cost of a waiting and a running application on one GPU; +inf if they cannot
        share a GPU."""
        if self.exact and self.pairing in {"cheapest", "mystic"}:
            return self._exact_cost(waits, runs)
        card = self.view.of(model)
        waiting, running = self.view.index_of(waits), self.view.index_of(runs)
        if not np.isfinite([card.upper[waiting, running], card.upper[running, waiting]]).all():
            return FORBIDDEN
        if self.pairing == "mystic":
            return -self.distances.get(waits, {}).get(runs, 0.0)
        if self.pairing == "fifo":
            return 0.0
        if self.pairing == "gpu-util":
            utilisation = sum(UTILISATION_PERCENT.get(name, 100.0) for name in (waits, runs))
            return abs(utilisation - 100.0)
        return float(np.exp(card.mean[waiting, running]) + np.exp(card.mean[running, waiting]))

    # --- the original, flaws included ------------------------------------------------------------

    def _exact_cost(self, waits: str, runs: str) -> float:
        """Return the cost from the original's table: −1 in both directions forbids a pair, missing
        entries count 0."""
        if self.pairing == "mystic":
            return -self.distances.get(waits, {}).get(runs, 0.0)
        one, other = self.view.index_of(waits), self.view.index_of(runs)
        costs = self._written(one, other), self._written(other, one)
        return FORBIDDEN if costs == (-1.0, -1.0) else sum(costs)

    def _written(self, target: int, other: int) -> float:
        card = self.view.of("")
        if not np.isfinite(card.upper[target, other]):
            return -1.0
        known = abs(card.tier[target, other]) != interference_table.PredictionTier.UNKNOWN
        return float(np.exp(card.mean[target, other])) if known else 0.0

    def _exactly(self, query: Query, pending: Sequence[Shape]) -> Bools:
        table, local = query.table, query.device_local
        own = query.demand.shape.application
        nodes = query.device_node
        first = np.flatnonzero(local == 0)
        selected, idle = -1, False
        running: dict[str, int] = {}
        for device in first.tolist():
            row = int(nodes[device])
            name = table.nodes[row if query.rows is None else int(query.rows[row])].name
            co_residents = table.residents.members[int(query.device_co_residents[device])]
            if not co_residents:
                idle = True
                if self.pairing == "mystic" or name in HOSTS.get(own, (name,)):
                    selected = row
            else:
                if co_residents[0].application not in self._numbers:
                    return np.zeros(len(local), dtype=np.bool_)
                running[co_residents[0].application] = row
        if not idle:
            selected = self._exact_match(own, running, pending)
        return np.asarray(nodes == selected)

    def _exact_match(self, own: str, running: Mapping[str, int], pending: Sequence[Shape]) -> int:
        if self.pairing == "fifo":
            return next(iter(running.values()), -1)
        waits = dict.fromkeys(shape.application for shape in pending)
        if self.pairing == "gpu-util":
            waits = {own: None}
        pairs = [
            (self.cost(application, runs), application, runs)
            for application in sorted(waits, key=lambda name: self._numbers.get(name, -1))
            for runs in sorted(running, key=lambda name: self._numbers[name])
        ]
        matched = greedy(pair for pair in pairs if pair[0] < FORBIDDEN)
        return running.get(matched.get(own, ""), -1)

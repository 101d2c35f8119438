"""Gain of moving pods on a full cluster: points of allocation for each 1 % of pods moved.

openb's cluster and a trace (WEFT_DATA), filled by a policy with its published arrivals up to 100 %
demand. Then pods are moved in three ways, each from the same state: *room*, for one pod after the
other of those that were turned away, the smallest plan that makes room for it (of two moves at
most); *stranded*, the moves that lower stranded GPUs by most; *random*, pods drawn at random, as
many as the larger of these. After the moves every pod that was turned away is tried once more.
Beside it: how long a plan takes. Any pod may be moved. Writes build/bench/defrag.json.

    python benchmarks/bench_defrag.py [--trace default] [--policy fgd] [--seeds 3] [--pods 12]
"""

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cluster.control.typical_pods import usual_shapes
from weft.core.engine import Bind, PodAdded, PodBound, PodGone
from weft.core.engine.making_room import RoomSearch
from weft.core.engine.move_trials import MovablePod, MoveTrials
from weft.core.engine.stranding_moves import StrandingSearch
from weft.core.policies.catalog import built_in
from weft.lab.simulate.arrivals import Arrivals, cut, read_orders
from weft.lab.simulate.scenario import Scenario, read_scenario
from weft.model import PodRequest

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "openb"
OUT = Path("build/bench/defrag.json")
WAYS = ("room", "stranded", "random")
MOST_MOVES = 2
MOST_STRANDED_MOVES = 200


class FullCluster:
    """The engine after all pods came; `bound` and `refused` are the pods."""

    def __init__(self, scenario: Scenario, policy: str, order: Arrivals) -> None:
        self.capacity = scenario.capacity_milli
        self.engine, handle = scenario.start(built_in().from_spec(policy), order)
        self.bound: dict[str, PodRequest] = {}
        self.refused: list[PodRequest] = []
        for at, row in enumerate(order.pod_rows):
            pod = scenario.pods[row]
            request = PodRequest(str(at), pod.name, pod.shape)
            if any(isinstance(command, Bind) for command in handle(PodAdded(request), at)):
                handle(PodBound(request.uid), at)
                self.bound[request.uid] = request
            else:
                handle(PodGone(request.uid), at)
                self.refused.append(request)
        self.usual = usual_shapes(pod.shape for pod in scenario.pods if pod.shape.gpu_requests)
        self._held = {uid: one.placement for uid, one in self.engine.ledger.holdings.items()}

    @property
    def percent(self) -> float:
        """GPU given away."""
        return 100 * sum(self.engine.ledger.table.milli_used) / self.capacity

    def restore(self) -> None:
        """As it was when it was full."""
        ledger = self.engine.ledger
        for uid, holding in list(ledger.holdings.items()):
            if self._held.get(uid) != holding.placement:
                ledger.release(uid)
        for placement in self._held.values():
            ledger.adopt(placement)


def retried(full: FullCluster, trials: MoveTrials) -> None:
    """Every pod that was turned away once more."""
    for pod in full.refused:
        if pod.uid not in full.engine.ledger.holdings:
            trials.place(pod)


def make_room(full: FullCluster, trials: MoveTrials, pods: int, times: list[float]) -> int:
    """Move pods for one after the other of the first that were turned away; how many moved."""
    moved: set[str] = set()
    for pod in full.refused[:pods]:
        movable = [one for uid, one in trials.movable.items() if uid not in moved]
        begin = time.process_time()
        plan = RoomSearch(full.engine, movable).plan(pod, MOST_MOVES)
        times.append(time.process_time() - begin)
        if plan is None:
            continue
        placed = trials.place(pod)
        for move in plan.moves:
            trials.evict(move.uid)
            placed = placed or trials.place(pod)
            assert trials.place(full.bound[move.uid]) == move.to_node
            moved.add(move.uid)
        assert placed == plan.node
    return len(moved)


def lower_stranded(full: FullCluster, trials: MoveTrials, times: list[float]) -> int:
    begin = time.process_time()
    movable = list(trials.movable.values())
    plan = StrandingSearch(full.engine, movable, full.usual).plan(MOST_STRANDED_MOVES)
    times.append(time.process_time() - begin)
    for move in plan.moves:
        trials.evict(move.uid)
        assert trials.place(full.bound[move.uid]) == move.to_node
    return len(plan.moves)


def at_random(full: FullCluster, trials: MoveTrials, count: int, seed: int) -> int:
    """Move so many pods drawn at random; those that find no other place are put back."""
    for uid in random.Random(seed).sample(sorted(full.bound), count):
        before = full.engine.ledger.holdings[uid].placement
        trials.evict(uid)
        if trials.place(full.bound[uid]) is None:
            full.engine.ledger.adopt(before)
    return count


def one_seed(scenario: Scenario, policy: str, order: Arrivals, pods: int) -> list[dict[str, Any]]:
    full = FullCluster(scenario, policy, order)
    begin, rows, most = full.percent, [], 0
    for way in WAYS:
        trials = MoveTrials(full.engine, [MovablePod(pod) for pod in full.bound.values()])
        times: list[float] = []
        if way == "room":
            moved = make_room(full, trials, pods, times)
        elif way == "stranded":
            moved = lower_stranded(full, trials, times)
        else:
            moved = at_random(full, trials, most, order.seed)
        most = max(most, moved)
        retried(full, trials)
        share = 100 * moved / len(full.bound)
        won = full.percent - begin
        rows.append(
            {
                "seed": order.seed,
                "way": way,
                "allocation": round(begin, 3),
                "moved": moved,
                "moved_percent": round(share, 3),
                "won": round(won, 3),
                "won_per_percent": round(won / share, 2) if share else 0.0,
                "plan_s": [round(float(one), 2) for one in _median_and_longest(times)],
            }
        )
        full.restore()
    return rows


def _median_and_longest(times: Sequence[float]) -> tuple[float, float]:
    return (float(np.median(times)), max(times)) if times else (0.0, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", default="default")
    parser.add_argument("--policy", default="fgd")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pods", type=int, default=12, help="turned away, that room is made for")
    options = parser.parse_args()
    scenario = read_scenario(
        DATA / "openb_node_list_gpu_node.csv",
        DATA / f"openb_pod_list_{options.trace}.csv",
        timed=False,
    )
    path = DATA / f"openb_order_{options.trace}.json.gz"
    orders = read_orders(path, len(scenario.pods), len(scenario.nodes), options.seeds)
    rows = []
    for order in orders:
        part = cut(order, scenario.pods, scenario.capacity_milli, 1.0)
        for row in one_seed(scenario, options.policy, part, options.pods):
            rows.append({"trace": options.trace, "policy": options.policy, **row})
            print(json.dumps(rows[-1]), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

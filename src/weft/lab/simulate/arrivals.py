"""The order in which pods arrive, and the rank of each node: read from an order file, or drawn by
seed.

The order is drawn by FGD's rule (ATC'23): shuffle the workload, then inflate it to a demand by
drawing pods again with replacement, or thin it at random if its demand is higher. In timed mode
arrivals are the trace's own, or resampled: the times are kept, and the pods are drawn again."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from weft.files.reading import read_text
from weft.lab.simulate.openb import TracePod
from weft.model import BadInputError

DEMAND = 1.3
"""Ratio of arrived GPU demand to capacity in FGD's experiments."""
USUAL_SEEDS = 20
"""Default number of arrival orders: a run takes seconds, and with 20 runs skewed differences hardly
distort intervals."""
MOST_DEMAND = 100
"""Upper limit of demand, as a multiple of capacity; beyond it only the run time changes."""


class Arrivals(msgspec.Struct, frozen=True):
    """An arrival order: `pod_rows[i]` is the workload row of the i-th pod to arrive.

    `node_rank[r]` is the rank of the node in row r, which breaks ties between equal scores.

    In timed mode the i-th pod arrives at the creation time of workload row i."""

    seed: int
    pod_rows: list[int]
    node_rank: list[int]


def draw(
    pods: list[TracePod], nodes: int, capacity_milli: int, seed: int, demand: float
) -> Arrivals:
    """Draw an arrival order by FGD's rule; the same inputs give the same order on every machine."""
    if not 0 < demand <= MOST_DEMAND:
        raise BadInputError("demand", f"{demand:g} is not above 0 and at most {MOST_DEMAND}")
    rng = random.Random(f"weft-arrivals-{seed}")
    rows = list(range(len(pods)))
    rng.shuffle(rows)
    target = demand * capacity_milli
    total = sum(pod.total_milli for pod in pods)
    if total > target:
        while total > target and rows:
            total -= pods[rows.pop(rng.randrange(len(rows)))].total_milli
    elif total:
        while True:
            row = rng.randrange(len(pods))
            # The published rule counts only one GPU of the next pod in this test.
            if total + pods[row].milli > target:
                break
            rows.append(row)
            total += pods[row].total_milli
    return Arrivals(seed, rows, _ranks(rng, nodes))


def replayed(pods: int, nodes: int, seed: int) -> Arrivals:
    """Return the trace's own arrivals, in order; only the nodes' ranks, which break ties, are
    drawn."""
    return Arrivals(seed, list(range(pods)), _ranks(random.Random(f"weft-replay-{seed}"), nodes))


def resampled(pods: int, nodes: int, seed: int) -> Arrivals:
    """Return the trace's arrival times, each with a pod of the trace drawn with replacement."""
    rng = random.Random(f"weft-resample-{seed}")
    return Arrivals(seed, rng.choices(range(pods), k=pods), _ranks(rng, nodes))


def resampled_gangs(pods: Sequence[TracePod], nodes: int, seed: int) -> Arrivals:
    """Return `resampled` arrivals of a trace with gangs, so that gangs stay whole.

    At a gang's arrival times come the pods of a gang of equal size, drawn with replacement; at a
    single pod's time comes a single pod."""
    rng = random.Random(f"weft-resample-{seed}")
    gangs: dict[str, list[int]] = {}
    for row, pod in enumerate(pods):
        gangs.setdefault(pod.gang.key if pod.gang else f"row {row}", []).append(row)
    alike: dict[int, list[list[int]]] = {}
    for rows in gangs.values():
        alike.setdefault(len(rows), []).append(rows)
    drawn = [0] * len(pods)
    for rows in gangs.values():
        for at, row in zip(rows, rng.choice(alike[len(rows)]), strict=True):
            drawn[at] = row
    return Arrivals(seed, drawn, _ranks(rng, nodes))


def _ranks(rng: random.Random, nodes: int) -> list[int]:
    ranks = list(range(nodes))
    rng.shuffle(ranks)
    return ranks


def cut(order: Arrivals, pods: list[TracePod], capacity_milli: int, demand: float) -> Arrivals:
    """Return the beginning of an order, up to the pod with which demand reaches `demand`."""
    target, total = demand * capacity_milli, 0
    for index, row in enumerate(order.pod_rows):
        if total >= target:
            return Arrivals(order.seed, order.pod_rows[:index], order.node_rank)
        total += pods[row].total_milli
    return order


def read_orders(path: Path, pods: int, nodes: int, seeds: int | None) -> list[Arrivals]:
    """Read the first `seeds` orders of an order file (JSON, plain or gzipped); None: up to
    `USUAL_SEEDS`.

    The form is `{seed: {"pod_rows": […], "node_rank": […]}}`, with rows counted from 0."""
    try:
        orders: Any = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        raise BadInputError(place, f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # or a number of thousands of digits
        raise BadInputError(str(path), f"not JSON that can be read: {error}") from None
    if not isinstance(orders, dict) or not orders:
        raise BadInputError(str(path), "must be an object {seed: {pod_rows, node_rank}}")
    try:
        names = sorted(orders, key=int)
    except ValueError:
        raise BadInputError(str(path), "its keys must be seeds (whole numbers)") from None
    if seeds is None:
        seeds = min(USUAL_SEEDS, len(names))
    if len(names) < seeds:
        raise BadInputError(str(path), f"holds {len(names)} seeds, {seeds} are asked for")
    return [_order(path, name, orders[name], pods, nodes) for name in names[:seeds]]


def _order(path: Path, seed: str, order: Any, pods: int, nodes: int) -> Arrivals:
    where = f"{path}, seed {seed}"
    if not isinstance(order, dict):
        raise BadInputError(where, "must be an object with pod_rows and node_rank")
    rows = _row_numbers(f"{where}, field pod_rows", order.get("pod_rows"), pods)
    ranking = f"{where}, field node_rank"
    ranks = _row_numbers(ranking, order.get("node_rank"), nodes)
    if len(ranks) != nodes or len(set(ranks)) != nodes:
        raise BadInputError(ranking, f"must rank each of the {nodes} nodes once")
    return Arrivals(int(seed), rows, ranks)


def _row_numbers(where: str, values: Any, count: int) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise BadInputError(where, "must be a list of whole numbers")
    bad = next((value for value in values if not 0 <= value < count), None)
    if bad is not None:
        advice = f"there are {count}; is this the order of another trace?"
        raise BadInputError(where, f"{bad} is not a row: {advice}")
    return values

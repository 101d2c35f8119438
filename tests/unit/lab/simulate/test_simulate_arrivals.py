"""Arrival orders: drawn, read, cut."""

import gzip
import json
import math
from pathlib import Path

import pytest
from traces import trace_pod

from weft.lab.simulate.arrivals import Arrivals, cut, draw, read_orders, replayed, resampled
from weft.model import BadInputError

SMALL = [trace_pod(f"p{i}", 1, 100 * (1 + i % 5)) for i in range(20)]
"""20 pods that ask for 6,000 milli in all."""


def asked(order: Arrivals, pods: list = SMALL) -> int:  # type: ignore[type-arg]
    return sum(pods[row].total_milli for row in order.pod_rows)


def test_a_seed_draws_the_same_order_every_time_and_others_another() -> None:
    first = draw(SMALL, 5, 10_000, 42, 1.3)
    assert first == draw(SMALL, 5, 10_000, 42, 1.3)
    assert first.pod_rows != draw(SMALL, 5, 10_000, 43, 1.3).pod_rows
    assert first.node_rank != draw(SMALL, 50, 10_000, 42, 1.3).node_rank[:5]


def test_the_order_of_a_seed_is_fixed_for_all_versions() -> None:
    """Published figures name seeds: a change here changes them."""
    order = draw(SMALL[:6], 4, 1000, 42, 1.3)
    assert (order.seed, order.pod_rows, order.node_rank) == (42, [3, 0, 1, 2, 5], [1, 3, 0, 2])


def test_timed_arrivals_are_the_traces_or_drawn_from_it_with_replacement() -> None:
    own, again = replayed(100, 7, 42), replayed(100, 7, 43)
    assert own.pod_rows == again.pod_rows == list(range(100))
    assert sorted(own.node_rank) == list(range(7))
    drawn = [resampled(100, 7, seed) for seed in range(30)]
    assert drawn[0] == resampled(100, 7, 0)
    assert len({tuple(order.pod_rows) for order in drawn}) == 30
    assert all(len(order.pod_rows) == 100 for order in drawn)
    shares = [len(set(order.pod_rows)) / 100 for order in drawn]
    assert sum(shares) / 30 == pytest.approx(1 - 1 / math.e, abs=0.03), "with replacement"
    assert {row for order in drawn for row in order.pod_rows} == set(range(100))


@pytest.mark.parametrize("seed", range(20))
def test_every_pod_arrives_once_before_any_is_drawn_again(seed: int) -> None:
    order = draw(SMALL, 7, 10_000, seed, 1.3)
    assert sorted(order.pod_rows[:20]) == list(range(20))
    assert sorted(order.node_rank) == list(range(7))


@pytest.mark.parametrize("seed", range(20))
def test_pods_are_drawn_again_until_the_next_would_pass_the_demand(seed: int) -> None:
    order = draw(SMALL, 7, 10_000, seed, 1.3)
    assert 13_000 - 500 < asked(order) <= 13_000


def test_the_published_rule_weighs_the_next_pod_by_one_of_its_gpus() -> None:
    """A pod of four whole GPUs counts 1,000 when it is asked whether it still goes in."""
    pods = [trace_pod("four", 4, 1000)]
    order = draw(pods, 1, 10_000, 1, 1.0)
    assert [asked(order, pods)] == [12_000]


@pytest.mark.parametrize("seed", range(20))
def test_a_workload_beyond_the_demand_is_thinned_to_it(seed: int) -> None:
    order = draw(SMALL, 7, 2000, seed, 1.0)
    assert 2000 - 500 < asked(order) <= 2000
    assert len(set(order.pod_rows)) == len(order.pod_rows)


def test_pods_without_gpus_are_not_multiplied_for_ever() -> None:
    cpu_only = [trace_pod("c", 0, 0)] * 3
    assert sorted(draw(cpu_only, 1, 1000, 1, 1.3).pod_rows) == [0, 1, 2]
    assert draw([], 1, 1000, 1, 1.3).pod_rows == []
    mixed = [*cpu_only, trace_pod("g", 1, 500)]
    assert asked(draw(mixed, 1, 1000, 1, 1.0), mixed) == 1000


def test_an_order_is_cut_at_the_pod_that_reaches_the_demand() -> None:
    order = Arrivals(1, list(range(20)), [0])
    assert cut(order, SMALL, 1000, 1.0).pod_rows == [0, 1, 2, 3]
    assert cut(order, SMALL, 1001, 1.0).pod_rows == [0, 1, 2, 3, 4]
    assert cut(order, SMALL, 6000, 1.0) == order
    assert cut(order, SMALL, 99_999, 1.0) == order
    assert cut(order, SMALL, 1000, 1.0).node_rank == [0]


# --- order files ----------

GOOD = {
    "43": {"pod_rows": [2, 0], "node_rank": [1, 0]},
    "7": {"pod_rows": [1, 1, 1], "node_rank": [0, 1]},
}


def orders_file(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "orders.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def error_of(path: Path, seeds: int = 1) -> str:
    with pytest.raises(BadInputError) as caught:
        read_orders(path, pods=3, nodes=2, seeds=seeds)
    return str(caught.value).replace(str(path), "FILE")


def test_orders_come_by_seed_plain_or_gzipped(tmp_path: Path) -> None:
    want = [Arrivals(7, [1, 1, 1], [0, 1]), Arrivals(43, [2, 0], [1, 0])]
    path = orders_file(tmp_path, GOOD)
    assert read_orders(path, 3, 2, 2) == want
    assert read_orders(path, 3, 2, 1) == want[:1]
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_orders(path, 3, 2, 2) == want


def test_too_few_seeds_are_said(tmp_path: Path) -> None:
    assert error_of(orders_file(tmp_path, GOOD), 3) == "FILE: holds 2 seeds, 3 are asked for"


def changed(seed: str, **fields: object) -> dict[str, object]:
    return {**GOOD, seed: {**GOOD[seed], **fields}}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "FILE, line 1, column 1: not JSON: Expecting value"),
        ('{\n "7": [}', "FILE, line 2, column 8: not JSON: Expecting value"),
        ([], "FILE: must be an object {seed: {pod_rows, node_rank}}"),
        ({}, "FILE: must be an object {seed: {pod_rows, node_rank}}"),
        ({"first": {}}, "FILE: its keys must be seeds (whole numbers)"),
        ({"7": []}, "FILE, seed 7: must be an object with pod_rows and node_rank"),
        ({"7": {}}, "FILE, seed 7, field pod_rows: must be a list of whole numbers"),
        (
            changed("7", pod_rows=["1"]),
            "FILE, seed 7, field pod_rows: must be a list of whole numbers",
        ),
        (
            changed("7", pod_rows=[1.0]),
            "FILE, seed 7, field pod_rows: must be a list of whole numbers",
        ),
        (
            changed("7", pod_rows=[True]),
            "FILE, seed 7, field pod_rows: must be a list of whole numbers",
        ),
        (
            changed("7", pod_rows=[0, 3]),
            "FILE, seed 7, field pod_rows: 3 is not a row: there are 3; is this the order of "
            "another "
            "trace?",
        ),
        (
            changed("7", pod_rows=[-1]),
            "FILE, seed 7, field pod_rows: -1 is not a row: there are 3; is this the order of "
            "another "
            "trace?",
        ),
        (
            changed("7", node_rank=[0]),
            "FILE, seed 7, field node_rank: must rank each of the 2 nodes once",
        ),
        (
            changed("7", node_rank=[0, 0]),
            "FILE, seed 7, field node_rank: must rank each of the 2 nodes once",
        ),
    ],
)
def test_what_is_wrong_in_an_order_file_is_named(
    tmp_path: Path, content: object, error: str
) -> None:
    assert error_of(orders_file(tmp_path, content)) == error


def test_an_order_with_no_pods_is_legal(tmp_path: Path) -> None:
    path = orders_file(tmp_path, {"1": {"pod_rows": [], "node_rank": [1, 0]}})
    assert read_orders(path, 3, 2, 1) == [Arrivals(1, [], [1, 0])]

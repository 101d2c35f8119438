"""Columns of a query, over all nodes or some, and what is reduced from devices to nodes."""

import numpy as np
import pytest

from weft.core.framework import NEVER, Demand, Query
from weft.core.ledger import Ledger, RequestLimits
from weft.model import DeviceRule, Gpu, GpuMemoryRequest, GpuRequest, Node, Shape
from weft.testing import node, placement, shape


def ledger() -> Ledger:
    """Nodes a (2 GPUs, one half held), b (none), c (3 GPUs of two sizes, one broken)."""
    found = Ledger(
        [
            node("a", gpus=2, memory_mib=1000, cpu_milli=4000),
            node("b", cpu_milli=2000),
            node("c", gpus=3, memory_mib=[1000, 2000, 2000], model=["", "big", "big"], broken=[2]),
        ]
    )
    found.reserve(placement("p", "a", 1, memory_mib=400, milli=500, cpu_milli=1000))
    return found


def query(asked: Shape, rows: list[int] | None = None) -> Query:
    live = ledger()
    some = None if rows is None else np.array(rows, dtype=np.int64)
    return Query(live.table, Demand(asked, live.table), some)


ROWS = [None, [2, 0], [0], [1]]


@pytest.mark.parametrize("rows", ROWS)
def test_some_rows_answer_as_all_rows_do_there(rows: list[int] | None) -> None:
    whole, part = query(shape(memory_mib=500)), query(shape(memory_mib=500), rows)
    at = list(range(3)) if rows is None else rows
    for name in (
        "cpu_free",
        "cpu_total",
        "memory_free",
        "milli_free",
        "max_milli_free",
        "max_memory_free",
        "idle",
        "gpus",
        "usable_gpus",
        "node_kind",
    ):
        assert getattr(part, name).tolist() == getattr(whole, name)[at].tolist(), name
    assert part.hosted.tolist() == whole.hosted[at].tolist()
    for name in (
        "device_memory_free",
        "device_milli_free",
        "device_memory_total",
        "device_kind",
        "device_local",
        "device_idle",
        "device_usable",
        "device_first",
        "device_fits",
        "room",
    ):
        values = getattr(whole, name).tolist()
        start = whole.table.start
        wanted = [value for row in at for value in values[start[row] : start[row + 1]]]
        assert getattr(part, name).tolist() == wanted, name
    assert part.count(part.device_fits).tolist() == whole.count(whole.device_fits)[at].tolist()


def test_device_nodes_count_from_the_query_s_own_first() -> None:
    assert query(shape(milli=1)).device_node.tolist() == [0, 0, 2, 2, 2]
    assert query(shape(milli=1), [2, 1, 0]).device_node.tolist() == [0, 0, 0, 2, 2]


def test_reductions_know_nodes_without_devices() -> None:
    asked = query(shape(milli=1))
    free = asked.device_memory_free
    assert free.tolist() == [1000, 600, 1000, 2000, 0]
    assert asked.sum(free).tolist() == [1600, 0, 3000]
    assert asked.max(free, -7).tolist() == [1000, -7, 2000]
    assert asked.min(free, -7).tolist() == [600, -7, 0]
    assert asked.count(free > 999).tolist() == [1, 0, 2]
    nowhere = query(shape(milli=1), [])
    assert nowhere.sum(nowhere.device_memory_free).tolist() == []
    only_b = query(shape(milli=1), [1])
    assert only_b.max(only_b.device_memory_free, 5).tolist() == [5]


def test_the_best_device_is_the_first_or_the_last_of_equals_that_fit() -> None:
    asked = query(shape(memory_mib=500), [2, 0])
    best, where = asked.best(np.array([3, 3, 9, -2, -2]))
    assert (best.tolist(), where.tolist()) == ([3, -2], [0, 0])
    best, where = asked.best(np.array([3, 3, 9, -2, -2]), last=True)
    assert (best.tolist(), where.tolist()) == ([3, -2], [1, 1])
    asked.narrow(np.array([False, True, True, False, False]))
    best, where = asked.best(np.array([3, 3, 9, -2, -2]))
    assert (best.tolist(), where[0]) == ([3, NEVER], 1)


def test_negative_and_large_scores_keep_their_order() -> None:
    asked = query(shape(milli=1), [0])
    for low, high in ((-(1 << 49), -5), (-1, 0), (0, 1 << 49), (-1, 1)):
        best, where = asked.best(np.array([low, high]))
        assert (best.tolist(), where.tolist()) == ([high], [1])
        best, where = asked.best(np.array([high, low]), last=True)
        assert (best.tolist(), where.tolist()) == ([high], [0])


def test_room_is_what_the_claim_shares_by() -> None:
    assert query(shape(memory_mib=1), [0]).room.tolist() == [1000, 600]
    assert query(shape(milli=1), [0]).room.tolist() == [1000, 500]
    assert query(shape(gpus=1), [0]).room.tolist() == [1000, 500]


def test_what_is_asked_is_one_number_where_it_can_be() -> None:
    assert query(shape(memory_mib=700)).device_ask_mib == 700
    asked = query(shape(percent=50)).device_ask_mib
    assert np.asarray(asked).tolist() == [500, 500, 500, 1000, 1000]


def test_a_demand_without_gpus_has_no_fitting_devices_to_ask_about() -> None:
    with pytest.raises(ValueError, match="asks for no GPU"):
        _ = query(shape(cpu_milli=1)).device_fits


def test_a_demand_names_the_columns_of_the_query_to_compare() -> None:
    asked = query(shape(cpu_milli=3500))
    lacks = asked.cells.take(asked.demand.node_columns, axis=0) < asked.demand.node_needs
    assert lacks[0].tolist() == [True, True, False]


# --- demand --------------------------------------------------------------------------------------

UNIFORM = [node("a", gpus=2, model="T4", memory_mib=1000), node("b", gpus=2, memory_mib=1000)]
MIXED = [node("a", gpus=2, model=["T4", "V100"])]
MIG = [node("a", gpus=2, mig=2)]


@pytest.mark.parametrize(
    ("asked", "nodes", "mode"),
    [
        (shape(cpu_milli=1), UNIFORM, "none"),
        (shape(gpus=2), UNIFORM, "node"),
        (shape(milli=100), UNIFORM, "node"),
        (shape(memory_mib=100), UNIFORM, "node"),
        (shape(memory_mib=100, milli=100), UNIFORM, "device"),
        (shape(memory_mib=100, uuids=["GPU-a-0"]), UNIFORM, "device"),
        (shape(percent=50), [*UNIFORM, node("c", gpus=1, memory_mib=2000)], "device"),
        (shape(gpus=2), MIXED, "device"),
        (shape(gpus=1), MIG, "device"),
        (shape(gpus=2), MIG, "many"),
        (shape(gpus=2, memory_mib=10), UNIFORM, "many"),
        (shape(gpu_requests=[GpuRequest(milli=1), GpuRequest(milli=1)]), UNIFORM, "many"),
        (
            shape(gpu_requests=[GpuRequest(memory=GpuMemoryRequest("mib", 5), split=True)]),
            UNIFORM,
            "many",
        ),
    ],
)
def test_the_cheapest_exact_way_to_check_is_chosen(
    asked: Shape, nodes: list[Node], mode: str
) -> None:
    assert Demand(asked, Ledger(nodes).table).mode == mode


def test_a_demand_sums_up_its_claims() -> None:
    table = Ledger(UNIFORM).table
    two = Demand(shape(gpus=2), table)
    assert (two.gpus, two.milli, two.pod_class) == (2, 2000, 2)
    part = Demand(shape(milli=300), table)
    assert (part.gpus, part.milli, part.pod_class) == (1, 300, 0)
    assert Demand(shape(gpus=40), table).pod_class == 17
    assert part.need is part.needs[0]


def test_needs_are_resolved_on_each_kind_of_card() -> None:
    table = Ledger([node("a", gpus=2, model=["T4", "V100"], memory_mib=[1000, 3000])]).table
    gpu_request = GpuRequest(memory=GpuMemoryRequest("percent", 50), headroom_mib=1)
    need = Demand(Shape((gpu_request,), devices=DeviceRule(models=("T4",))), table).need
    assert need.memory_mib.tolist() == [500, 1500]
    assert need.ask_mib.tolist() == [501, 1501]
    assert need.accepts.tolist() == [True, False]
    assert need.uniform_ask_mib is None
    assert not need.takes_any_kind


def test_a_whole_card_at_least_so_large_is_charged_whole() -> None:
    table = Ledger([node("a", gpus=2, memory_mib=[1000, 3000])]).table
    gpu_request = GpuRequest(memory=GpuMemoryRequest("mib", 2000), milli=1000, whole=True)
    need = Demand(Shape((gpu_request,)), table).need
    assert need.will_do.tolist() == [False, True]
    assert need.memory_mib.tolist() == [1000, 3000]


def test_with_overcommit_no_pod_gets_more_than_a_card_has() -> None:
    live = Ledger([node("a", gpus=2, memory_mib=[1000, 3000])], limits=RequestLimits(2000))
    asked = Query(live.table, Demand(shape(memory_mib=1500), live.table))
    assert asked.device_memory_free.tolist() == [2000, 6000]
    assert asked.device_fits.tolist() == [False, True]


def test_a_claim_without_memory_or_cores_needs_a_card_in_service() -> None:
    live = Ledger([Node("a", (Gpu(0, 1000), Gpu(1, 1000, in_service=False)))])
    asked = Query(live.table, Demand(Shape((GpuRequest(),)), live.table))
    assert asked.device_fits.tolist() == [True, False]

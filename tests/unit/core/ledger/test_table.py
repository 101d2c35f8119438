"""How the columns are laid out: order, size, and what is derived."""

import numpy as np

from weft.core.ledger import Ledger, LedgerTable
from weft.testing import node, placement


def test_rows_are_in_rank_order_then_by_name() -> None:
    nodes = [node("b", rank=1), node("c"), node("a", rank=1), node("d", rank=-1)]
    table = LedgerTable(nodes)
    assert [one.name for one in table.nodes] == ["d", "c", "a", "b"]
    assert table.row_of == {"d": 0, "c": 1, "a": 2, "b": 3}
    again = LedgerTable(list(reversed(nodes)))
    assert [one.name for one in again.nodes] == ["d", "c", "a", "b"]


def test_a_node_with_56_mig_instances_costs_its_neighbours_nothing() -> None:
    plain = [node(f"n{i:03}", gpus=2) for i in range(100)]
    without = LedgerTable(plain)
    wide = node("wide", gpus=8, model="A100", memory_mib=40_960, mig=7, rank=1)
    table = LedgerTable([*plain, wide])
    assert len(wide.gpus) == 64
    assert table.devices == without.devices + 64
    assert table.device_cells.shape == (len(table.device_cells), 264)
    assert table.cells.shape[1] == 101
    assert table.start[:101] == without.start
    assert len(table.state) == len(table.memory_used) == 264


def test_a_ledger_decides_on_the_first_best_row_whatever_order_nodes_came_in() -> None:
    one = Ledger([node("a"), node("b"), node("c")])
    other = Ledger([node("c")])
    other.set_nodes([node("b")])
    other.set_nodes([node("a")])
    assert one.table.row_of == other.table.row_of


def test_equal_devices_have_one_representative_and_busy_ones_their_own() -> None:
    ledger = Ledger([node("a", gpus=4), node("b", gpus=1)])
    assert ledger.table.device_first.tolist() == [1, 0, 0, 0, 1]
    ledger.reserve(placement("p", "a", 1, milli=500))
    assert ledger.table.device_first.tolist() == [1, 1, 0, 0, 1]
    ledger.reserve(placement("q", "a", 0, milli=500))
    assert ledger.table.device_first.tolist() == [1, 0, 1, 0, 1]
    ledger.reserve(placement("r", "a", 0, memory_mib=1))
    assert ledger.table.device_first.tolist() == [1, 1, 1, 0, 1]


def test_instances_of_two_cards_are_not_alike() -> None:
    ledger = Ledger([node("a", gpus=2, model="A100", mig=2)])
    assert ledger.table.device_first.tolist() == [1, 0, 1, 0, 1, 0]
    assert ledger.table.device_parent.tolist() == [-1, -1, 0, 0, 1, 1]


def test_a_node_without_gpus_has_no_room_on_any() -> None:
    table = LedgerTable([node("a"), node("b", gpus=1, memory_mib=7)])
    assert table.max_milli_free.tolist() == [-1, 1000]
    assert table.max_memory_free.tolist() == [-1, 7]
    assert table.node_kind.tolist() == [-1, 0]
    assert table.usable_gpus.tolist() == [0, 1]


def test_a_node_with_only_broken_gpus_has_no_room_either() -> None:
    table = LedgerTable([node("a", gpus=2, broken=[0, 1])])
    assert table.max_milli_free.tolist() == [-1]
    assert table.milli_free.tolist() == [0]
    assert table.idle.tolist() == [0]
    assert table.in_service().tolist() == [0]
    assert table.all_in_service is False


def test_in_service_counts_whoever_holds_them() -> None:
    ledger = Ledger([node("a", gpus=3, broken=[1]), node("b")])
    ledger.reserve(placement("p", "a", 0, milli=1000))
    assert ledger.table.in_service().tolist() == [2, 0]


def test_gpus_are_found_by_index_even_with_gaps() -> None:
    whole = node("a", gpus=4)
    gappy = node("a", gpus=4).gpus
    table = LedgerTable([whole])
    assert table.device_row(0, 3) == 3
    some = Ledger([type(whole)(name="a", gpus=(gappy[1], gappy[3]))]).table
    assert [some.device_row(0, index) for index in (0, 1, 2, 3, 9)] == [-1, 0, -1, 1, -1]


def test_uniform_means_each_node_is_of_one_kind() -> None:
    assert LedgerTable([node("a", gpus=2, model="T4"), node("b", gpus=1, model="V100")]).uniform
    assert LedgerTable([node("a")]).uniform
    assert not LedgerTable([node("a", gpus=2, model=["T4", "V100"])]).uniform
    assert not LedgerTable([node("a", gpus=1, mig=2)]).uniform


def test_kinds_are_numbered_in_the_order_of_the_rows_whatever_came_before() -> None:
    ledger = Ledger([node("b", gpus=1, model="T4")])
    ledger.set_nodes([node("a", gpus=1, model="V100")])
    assert ledger.table.device_kind.tolist() == [0, 1]
    ledger.set_nodes([], ["a"])
    assert ledger.table.device_kind.tolist() == [0]
    assert [kind.model for kind in ledger.table.kinds] == ["T4"]


def test_changed_rows_are_marked_with_the_version() -> None:
    ledger = Ledger([node("a", gpus=1), node("b", gpus=1)])
    before = ledger.version
    ledger.reserve(placement("p", "b", 0, milli=1))
    assert np.flatnonzero(ledger.table.changed_at > before).tolist() == [1]

"""Audit names what is wrong: tamper with an account and read the sentence."""

from collections.abc import Callable

import pytest

from weft.core.ledger import Ledger, LedgerTable, audit
from weft.core.ledger.audit import differences
from weft.model import Gpu, Node
from weft.testing import node, placement


def some_ledger() -> Ledger:
    ledger = Ledger(
        [node("a", gpus=2, memory_mib=1000, extended={"x": 2}), node("b", gpus=1, memory_mib=1000)]
    )
    ledger.reserve(
        placement("p", "a", 1, memory_mib=300, milli=250, cpu_milli=500, extended={"x": 1})
    )
    return ledger


def tamper(column: str, at: int, value: int) -> Callable[[LedgerTable], None]:
    def change(table: LedgerTable) -> None:
        getattr(table, column)[at] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (tamper("memory_used", 1, 290), "a GPU 1: memory_mib used 290, holdings sum to 300"),
        (tamper("milli_used", 2, 5), "b GPU 0: milli used 5, holdings sum to 0"),
        (
            tamper("memory_used", 0, 1100),
            "a GPU 0: memory 1100 MiB used of 1000, overbooked by 100",
        ),
        (tamper("milli_used", 0, 1001), "a GPU 0: cores 1001 m used of 1000, overbooked by 1"),
        (tamper("milli_used", 0, -1), "a GPU 0: cores -1 m used of 1000, overbooked by -1001"),
        (tamper("cpu_free", 0, 1), "cpu_free[0] is 1, rebuilt it is 127500"),
        (tamper("memory_free", 1, 0), "memory_free[1] is 0, rebuilt it is 1048576"),
        (tamper("device_memory_free", 1, 9), "device_memory_free[1] is 9, rebuilt it is 700"),
        (tamper("device_idle", 1, 1), "device_idle[1] is 1, rebuilt it is 0"),
        (tamper("device_first", 1, 0), "device_first[1] is 0, rebuilt it is 1"),
        (tamper("idle", 0, 2), "idle[0] is 2, rebuilt it is 1"),
        (tamper("pods", 1, 2), "pods[1] is 2, rebuilt it is 1"),
        (tamper("max_milli_free", 1, 3), "max_milli_free[1] is 3, rebuilt it is 1000"),
    ],
)
def test_each_difference_is_a_sentence(
    change: Callable[[LedgerTable], None], sentence: str
) -> None:
    ledger = some_ledger()
    assert audit(ledger) == []
    change(ledger.table)
    assert sentence in audit(ledger)


def test_a_wrong_count_of_pods_by_class_is_found() -> None:
    ledger = some_ledger()
    ledger.table.hosted[0, 3] = 1
    assert [text.split(" is ")[0] for text in audit(ledger)] == ["hosted[0]"]


def test_a_wrong_extended_resource_is_found() -> None:
    ledger = some_ledger()
    ledger.table.extended["x"][0] = 2
    assert audit(ledger) == ["extended resource x differs"]


def test_gpus_are_named_by_their_index_not_their_place() -> None:
    ledger = Ledger([Node("a", (Gpu(4, 1000), Gpu(6, 1000)))])
    ledger.adopt(placement("p", "a", 6, memory_mib=1001))
    assert audit(ledger) == ["a GPU 6: memory 1001 MiB used of 1000, overbooked by 1"]


def test_a_ledger_that_saw_kinds_in_another_order_is_no_different() -> None:
    ledger = Ledger([node("b", gpus=1, model="T4")])
    ledger.set_nodes([node("a", gpus=1, model="V100")])
    assert audit(ledger) == []


def test_another_model_is_a_difference() -> None:
    found = differences(
        LedgerTable([node("a", gpus=1, model="T4")]), LedgerTable([node("a", gpus=1, model="V100")])
    )
    assert found == ["kinds are ('T4', 16384, 1000), rebuilt they are ('V100', 16384, 1000)"]


def test_other_nodes_are_said_first() -> None:
    left, right = LedgerTable([node("a")]), LedgerTable([node("b")])
    assert differences(left, right) == ["the tables hold different nodes, or in another order"]

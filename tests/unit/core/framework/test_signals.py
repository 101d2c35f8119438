"""The snapshot that policies see: aligned to the ledger's rows, and unknown where not measured."""

import msgspec
import numpy as np

from weft.core.framework import Demand, Query
from weft.core.framework.query import Observations
from weft.core.framework.signals import (
    FRESH,
    MISSING,
    NO_SIGNALS,
    STALE,
    SignalsSnapshot,
    SignalsView,
    snapshot,
)
from weft.core.ledger import LedgerTable
from weft.testing import node, shape

USED = "memory_used_mib"
GPUS = [("b", 1), ("a", 0), ("gone", 0), ("b", 0)]


def of(*values: float, fresh: tuple[int, ...] = (), gpus: object = GPUS) -> SignalsSnapshot:
    """In an order of its own, with one GPU that the cluster does not have."""
    states = np.array(fresh or [FRESH] * len(values), dtype=np.int8)
    return snapshot(1, 5, gpus, {USED: (np.array(values), states)})  # type: ignore[arg-type]


def table() -> LedgerTable:
    return LedgerTable([node("b", gpus=2), node("c", gpus=1), node("a", gpus=2)])


def test_rows_follow_the_ledgers_table_and_devices_nobody_measures_are_missing() -> None:
    rows = table()
    seen = SignalsView(of(11, 7, 77, 10, fresh=(FRESH, MISSING, FRESH, STALE)))
    demand = Demand(shape(memory_mib=1), rows)
    query = Query(rows, demand, None, Observations(seen))
    values, freshness = query.measured(USED)
    np.testing.assert_array_equal(values, [np.nan, np.nan, 10, 11, np.nan])
    assert freshness.tolist() == [MISSING, MISSING, STALE, FRESH, MISSING]
    part = Query(rows, demand, np.array([1]), Observations(seen))
    np.testing.assert_array_equal(part.measured(USED)[0], [10, 11])
    assert part.about(demand).signals is query.only(np.array([1])).signals is seen


def test_rows_go_by_nvml_index_not_by_position() -> None:
    cut = LedgerTable([node("m", gpus=1, memory_mib=40_960, mig=2)])
    seen = SignalsView(of(5.0, gpus=[("m", 2)]))
    np.testing.assert_array_equal(seen.over(cut, USED)[0], [np.nan, np.nan, 5.0])


def test_what_is_not_measured_admits_nothing_by_accident() -> None:
    values, fresh = NO_SIGNALS.over(table(), USED)
    assert fresh.tolist() == [MISSING] * 5
    with np.errstate(invalid="ignore"):
        assert not (values < 1e9).any()
        assert not (values >= 0).any()


def test_it_is_the_same_when_it_comes_back_from_a_file() -> None:
    told = of(11, 7, 77, 10)
    again = msgspec.json.decode(msgspec.json.encode(told), type=SignalsSnapshot)
    assert again == told
    np.testing.assert_array_equal(
        SignalsView(again).over(table(), USED)[0], SignalsView(told).over(table(), USED)[0]
    )


def test_moved_nodes_are_those_whose_numbers_or_freshness_changed() -> None:
    rows, before = table(), SignalsView(of(1, 2, 3, np.nan))
    assert [rows.nodes[row].name for row in range(3)] == ["a", "b", "c"]
    assert SignalsView(of(1, 2, 99, np.nan)).moved(before, rows).tolist() == []
    assert SignalsView(of(1, 5, 3, np.nan)).moved(before, rows).tolist() == [0]
    assert SignalsView(of(1, 2, 3, 4)).moved(before, rows).tolist() == [1]
    stale = SignalsView(of(1, 2, 3, np.nan, fresh=(FRESH, STALE, FRESH, FRESH)))
    assert stale.moved(before, rows).tolist() == [0]
    assert NO_SIGNALS.moved(before, rows).tolist() == [0, 1, 2]

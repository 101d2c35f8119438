"""Rows that answers leave are found by domain first; a plain loop over all nodes finds the same."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.constraints import PodAnswer, RowsLeft, refusals
from weft.core.ledger.node_labels import LabelColumn, as_bits
from weft.model import Code

CODES = (Code.POD_AFFINITY, Code.POD_ANTI_AFFINITY, Code.TOPOLOGY_SPREAD, Code.NO_VOLUME)
OTHERS = (0, 0, 0, int(Code.CPU), int(Code.TAINT))


@dataclass
class Drawn:
    """Nodes with zones and racks, what room says of each, and answers with what they refuse."""

    codes: list[int]
    labels: dict[str, list[str | None]]
    answers: list[tuple[Code, str, set[int]]]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Up to 12 nodes, and up to five answers by zone, by rack or by node; of these it may be known
    which they are."""
    nodes = draw(st.integers(1, 12))
    value = st.sampled_from([None, "a", "b", "c"])
    labels = {
        key: draw(st.lists(value, min_size=nodes, max_size=nodes)) for key in ("zone", "rack")
    }
    codes = draw(st.lists(st.sampled_from(OTHERS), min_size=nodes, max_size=nodes))
    rows = st.sets(st.integers(0, nodes - 1))
    kind = st.sampled_from(["zone", "rack", "node", "known nodes"])
    answers = draw(st.lists(st.tuples(st.sampled_from(CODES), kind, rows), max_size=5))
    return Drawn(codes, labels, answers)


def slowly(world: Drawn, columns: dict[str, LabelColumn]) -> list[int]:
    """Each node's code: of the first key that refuses it, in the order of the keys' first answers
    that refuse anything, the first answer's."""
    found = []
    asked = [
        (code, kind, refused(world, columns, kind, rows)) for code, kind, rows in world.answers
    ]
    order = list(dict.fromkeys(key_of(kind) for _, kind, rows in asked if rows))
    for row, before in enumerate(world.codes):
        ranked = [
            (order.index(key_of(kind)), at, int(code))
            for at, (code, kind, rows) in enumerate(asked)
            if row in rows
        ]
        found.append(before or (min(ranked)[2] if ranked else 0))
    return found


def key_of(kind: str) -> str:
    """Answers by node are asked together."""
    return "node" if kind == "known nodes" else kind


def refused(world: Drawn, columns: dict[str, LabelColumn], kind: str, rows: set[int]) -> set[int]:
    """By domain all nodes of these rows' domains are refused."""
    if kind not in columns:
        return rows
    values = {world.labels[kind][row] for row in rows}
    return {row for row, value in enumerate(world.labels[kind]) if value in values}


def answer(columns: dict[str, LabelColumn], code: Code, kind: str, rows: set[int]) -> PodAnswer:
    """As rules give it."""
    some = np.array(sorted(rows), dtype=np.int64)
    column = columns.get(kind)
    mask = np.zeros(
        len(columns["zone"].of_node) if column is None else column.count, dtype=np.bool_
    )
    mask[some if column is None else column.of_node[some]] = True
    few = dict.fromkeys(rows, 1) if kind == "known nodes" else None
    return PodAnswer(code, mask if column is None else as_bits(mask), str, column, few)


@settings(max_examples=few_or_many(100, 20_000))
@given(drawn())
def test_rows_left_are_those_of_all_nodes_one_by_one(world: Drawn) -> None:
    columns = {key: LabelColumn(values) for key, values in world.labels.items()}
    answers = [answer(columns, *each) for each in world.answers]
    codes = np.array(world.codes, dtype=np.int8)
    counts = np.bincount(codes, minlength=len(Code)).tolist()
    left, expected = RowsLeft(codes, counts, answers), slowly(world, columns)
    if left.rows is None:
        assert left.codes.tolist() == expected
    else:
        free = left.rows.tolist()
        assert free == [row for row, code in enumerate(expected) if code == 0]
    assert left.counts == np.bincount(expected, minlength=len(Code)).tolist()
    assert codes.tolist() == world.codes
    found = refusals(answers, len(codes))
    refusing = codes if found is None else codes + found * (codes == 0)
    assert refusing.tolist() == expected


def test_a_set_of_domains_that_was_asked_about_is_found_again() -> None:
    column = LabelColumn(["a", None, "b", "a"])
    assert column.rows_in(0b1 << 8).tolist() == [0, 3]
    assert column.rows_in(0b1 << 8) is column.rows_in(0b1 << 8)
    assert column.rows_in(column.everywhere).tolist() == [0, 1, 2, 3]
    assert not column.is_everywhere

"""FGD looks at one or two nodes without arrays: the same numbers, to the last bit, as with them."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.framework import NEVER, Demand, Query, feasibility
from weft.core.framework.fragments import Fragments, NodeShares, TypicalPods
from weft.core.ledger import Ledger
from weft.core.ledger.table import Ints
from weft.core.policies.fgd import Fgd
from weft.model import DeviceRule, Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, Shape, Share

CARDS = (("T4", 15_360, 1000), ("V100", 16_160, 1000), ("A10", 23_028, 700))
MILLI = (10, 120, 230, 333, 500, 701, 960)


def a_shape(dice: Random) -> Shape:
    cpu = dice.choice((0, 500, 2000, 4000, 7000, 16_000))
    models = dice.choice(((), (), (), ("T4",), ("V100", "A10")))
    kind = dice.choice(("none", "whole", "milli", "memory", "both"))
    milli = dice.choice(MILLI) if kind in ("milli", "both") else 0
    memory = (
        GpuMemoryRequest("mib", dice.randint(1, 16_000))
        if kind in ("memory", "both")
        else GpuMemoryRequest()
    )
    gpu_requests: tuple[GpuRequest, ...] = (GpuRequest(memory=memory, milli=milli),)
    if kind == "none":
        gpu_requests = ()
    elif kind == "whole":
        gpu_requests = (GpuRequest(dice.randint(1, 3), whole=True),)
    return Shape(gpu_requests, cpu, devices=DeviceRule(models), trace_spec="|".join(models))


def some_shapes(dice: Random) -> list[Shape]:
    return [a_shape(dice) for _ in range(dice.randint(1, 12))]


def a_ledger(dice: Random) -> Ledger:
    """Up to 5 nodes of 0 to 5 cards, some out of service, with pods on some cards."""
    nodes = []
    for number in range(dice.randint(3, 5)):
        mixed, card = dice.random() < 0.5, dice.choice(CARDS)
        gpus = []
        for index in range(dice.randint(0, 5)):
            model, mib, milli = dice.choice(CARDS) if mixed else card
            in_service = dice.random() < 0.9
            gpus.append(Gpu(index, mib, model, milli=milli, in_service=in_service))
        nodes.append(Node(f"n{number}", tuple(gpus), 16_000, 64_000))
    ledger = Ledger(nodes)
    for number in range(dice.randint(0, 8)):
        node = dice.choice(nodes)
        if node.gpus:
            gpu = dice.choice(node.gpus)
            mib = dice.choice((0, gpu.memory_mib, dice.randint(0, gpu.memory_mib)))
            share = Share(0, gpu.index, mib, dice.choice(MILLI))
            ledger.reserve(Placement(str(number), node.name, (share,), dice.randint(0, 6000)))
    return ledger


@settings(max_examples=few_or_many(60, 300), deadline=None)
@given(st.randoms(use_true_random=True))
def test_one_node_at_a_time_and_all_by_arrays_keep_the_same(dice: Random) -> None:
    table, typical = a_ledger(dice).table, TypicalPods(some_shapes(dice))
    pattern = Fragments(typical, [kind.model for kind in table.kinds])
    arrays = NodeShares.of_query(pattern, Query(table, Demand(Shape(), table)))
    single = NodeShares(pattern, table)
    last = int(table.changed_at.max())
    for row in range(table.count):
        table.changed_at[:] = -1
        table.changed_at[row] = last + row  # only this one changed since
        single.mend()
    for name in ("free", "lost", "fitting", "fragments"):
        assert getattr(arrays, name).tobytes() == getattr(single, name).tobytes(), name


@settings(max_examples=few_or_many(80, 400), deadline=None)
@given(st.randoms(use_true_random=True))
def test_the_scores_of_one_or_two_nodes_are_those_among_all(dice: Random) -> None:
    table, policy = a_ledger(dice).table, Fgd(TypicalPods(some_shapes(dice)))
    demand = Demand(a_shape(dice), table)
    if demand.mode == "many":
        return
    every = Query(table, demand)
    fits = (feasibility.declared_codes(table, demand) == 0) & (feasibility.codes(every) == 0)
    among_all = _scores(policy, every)
    for rows in [[row] for row in range(table.count)] + [[0, 2], [1, 2]]:
        here = [row for row in rows if fits[row]]
        if here:
            some = np.array(here, dtype=np.int64)
            assert _scores(policy, Query(table, demand, some)) == [among_all[row] for row in here]


def _scores(policy: Fgd, query: Query) -> list[tuple[int, int]]:
    """Each node's score and the position of its best device."""
    nothing: Ints = np.zeros(query.n, dtype=np.int64)
    on_nodes = policy.score_nodes(query)
    total, where = (nothing if on_nodes is None else on_nodes), nothing
    by_device = policy.score_devices(query)
    if by_device is not None:
        best, where = query.best(by_device)
        total = np.where(best == NEVER, NEVER, total + best)
    return list(zip(total.tolist(), where.tolist(), strict=True))

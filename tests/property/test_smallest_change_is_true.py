"""Every change that `whatif` offers is true, each the smallest of its axis, and asking is free."""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodGone, PodSeenBound
from weft.core.explain.smallest_change import SmallestChange, changes
from weft.core.framework import Plugin, Policy, Profile
from weft.core.ledger import Ledger
from weft.core.ledger.audit import differences
from weft.core.policies.alnair import AlnairCostSaving
from weft.core.policies.elastic import ElasticBinpack
from weft.core.policies.fgd import Fgd
from weft.core.policies.packing import BestFit
from weft.core.policies.spreading import Exclusive, SpreadPolicy
from weft.model import PodRequest, Shape
from weft.testing import random_nodes, random_shape

LEADS: tuple[type[Policy], ...] = (
    BestFit,
    Exclusive,
    Fgd,
    ElasticBinpack,
    AlnairCostSaving,
    SpreadPolicy,
)


def crowded(random: Random) -> Engine:
    """A small cluster with pods on it, as many as random ones fit."""
    lead = random.choice(LEADS)()
    engine = Engine([Profile("weft", [Plugin(lead), Plugin(BestFit())])], random_nodes(random, 4))
    nodes = engine.ledger.table.nodes
    for index in range(random.randint(2, 14)):
        pod = PodRequest(f"p{index}", f"p{index}", random_shape(random, nodes))
        if not isinstance(engine.handle(PodAdded(pod), 0)[0], Bind):
            engine.handle(PodGone(pod.uid), 0)
    return engine


def twin(engine: Engine, without: tuple[str, ...] = ()) -> Engine:
    """A fresh engine in the same state, less the pods that were to be freed."""
    fresh = Engine(list(engine.profiles.values()))
    fresh.handle(NodesChanged(tuple(engine.ledger.table.nodes)), 0)
    for holding in engine.ledger.holdings.values():
        fresh.handle(PodSeenBound(holding.placement), 0)
    for uid in without:
        fresh.handle(PodGone(uid), 0)
    return fresh


def is_placed(engine: Engine, shape: Shape) -> bool:
    return isinstance(engine.handle(PodAdded(PodRequest("new", "new", shape)), 0)[0], Bind)


def one_step_less_modest(change: SmallestChange, asked: Shape) -> Shape | None:
    """The change with one MiB, thousandth or GPU more, where that is still a change."""
    assert change.shape is not None
    if change.axis in {"cpu", "memory"} and change.shape.gpu_requests == asked.gpu_requests:
        field = "cpu_milli" if change.axis == "cpu" else "memory_mib"
        more = {field: getattr(change.shape, field) + 1}
        return msgspec.structs.replace(change.shape, **more)
    if change.axis == "memory":
        return one_more_of_memory(change.shape, asked)
    if change.axis == "cores" and not any(gpu_request.whole for gpu_request in asked.gpu_requests):
        best = max(gpu_request.milli for gpu_request in change.shape.gpu_requests)
        return msgspec.structs.replace(
            asked,
            gpu_requests=tuple(
                msgspec.structs.replace(gpu_request, milli=min(gpu_request.milli, best + 1))
                for gpu_request in asked.gpu_requests
            ),
        )
    if change.axis == "count":
        best = max(gpu_request.count for gpu_request in change.shape.gpu_requests)
        return msgspec.structs.replace(
            asked,
            gpu_requests=tuple(
                msgspec.structs.replace(gpu_request, count=min(gpu_request.count, best + 1))
                for gpu_request in asked.gpu_requests
            ),
        )
    return None


def one_more_of_memory(changed: Shape, asked: Shape) -> Shape:
    """One more in the kind that was lowered; all of a shared card is 100 percent of it."""
    pairs = list(zip(asked.gpu_requests, changed.gpu_requests, strict=True))
    kind = next(new.memory.kind for old, new in pairs if old.memory != new.memory)
    best = max(new.memory.value for _, new in pairs if new.memory.kind == kind and not new.whole)
    gpu_requests = []
    for old, new in pairs:
        if new.memory.kind == kind and not new.whole:
            most = 100 if old.memory.kind == "whole" else old.memory.value
            memory = msgspec.structs.replace(new.memory, value=min(most, best + 1))
            new = msgspec.structs.replace(new, memory=memory)  # noqa: PLW2901
        gpu_requests.append(new)
    return msgspec.structs.replace(asked, gpu_requests=tuple(gpu_requests))


def smaller_pods(engine: Engine, uid: str) -> list[str]:
    """Pods that hold less than this one: GPU cores, then GPU memory, then CPU."""

    def size(uid: str) -> tuple[int, int, int, str]:
        place = engine.ledger.holdings[uid].placement
        milli = sum(share.milli for share in place.shares)
        return milli, sum(share.memory_mib for share in place.shares), place.cpu_milli, uid

    return [other for other in engine.ledger.holdings if size(other) < size(uid)]


@settings(max_examples=few_or_many(20, 150))
@given(st.randoms(use_true_random=True))
def test_each_change_is_true_and_the_smallest_of_its_axis(random: Random) -> None:
    engine = crowded(random)
    asked = random_shape(random, engine.ledger.table.nodes)
    if is_placed(twin(engine), asked):
        return
    before = list(engine.ledger.holdings)
    found = changes(engine, PodRequest("new", "new", asked))
    axes = [
        (change.axis, change.shape is not None and change.shape.gpu_requests != asked.gpu_requests)
        for change in found
    ]
    assert len(set(axes)) == len(axes), "one change an axis"
    for change in found:
        if change.free:
            assert change.shape is None
            assert is_placed(twin(engine, change.free), asked), change
            if len(change.free) == 1:
                for other in smaller_pods(engine, change.free[0]):
                    assert not is_placed(twin(engine, (other,)), asked), (change, other)
        else:
            assert change.shape is not None
            assert change.shape != asked
            assert is_placed(twin(engine), change.shape), change
            more = one_step_less_modest(change, asked)
            if more is not None:
                assert not is_placed(twin(engine), more), (change, more)
    assert sorted(engine.ledger.holdings) == sorted(before)
    rebuilt = Ledger(engine.ledger.table.nodes)
    for holding in engine.ledger.holdings.values():
        rebuilt.adopt(holding.placement)
    assert differences(engine.ledger.table, rebuilt.table) == []


@settings(max_examples=few_or_many(12, 60))
@given(st.randoms(use_true_random=True))
def test_no_single_pod_s_end_was_overlooked(random: Random) -> None:
    engine = crowded(random)
    asked = random_shape(random, engine.ledger.table.nodes)
    if is_placed(twin(engine), asked):
        return
    freed = [c.free for c in changes(engine, PodRequest("new", "new", asked)) if c.free]
    would_do = [uid for uid in engine.ledger.holdings if is_placed(twin(engine, (uid,)), asked)]
    assert bool(would_do) == any(len(free) == 1 for free in freed)
    assert all(free[0] in would_do for free in freed if len(free) == 1)

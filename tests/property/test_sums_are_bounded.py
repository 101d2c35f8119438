"""No sum of numbers that people may write leaves 64 bits: not on a node, not in any score."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.engine import (
    Bind,
    Engine,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    Unschedulable,
)
from weft.core.framework import NEVER, Profile
from weft.core.ledger import Ledger, audit
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, Share
from weft.model.ceilings import (
    MOST_AMOUNT,
    MOST_ASKING,
    MOST_CPU_MILLI,
    MOST_GPU_MIB,
    MOST_GPU_MILLI,
    MOST_GPUS,
    MOST_MEMORY_MIB,
)
from weft.testing import pod, shape

MOST_PODS = 2**30
NAME = "example.com/licence"


def vast_node(name: str = "n", gpus: int = 2) -> Node:
    cards = tuple(Gpu(i, MOST_GPU_MIB, "m", f"u{name}{i}") for i in range(gpus))
    return Node(name, cards, MOST_CPU_MILLI, MOST_MEMORY_MIB, {NAME: MOST_AMOUNT, "pods": 110})


def vast(uid: str, times: int = 1) -> Placement:
    shares = tuple(Share(c, c % 2, MOST_GPU_MIB, MOST_GPU_MILLI) for c in range(2))
    extended = ((NAME, MOST_AMOUNT * times), ("pods", 1))
    return Placement(uid, "n", shares, MOST_CPU_MILLI * times, MOST_MEMORY_MIB * times, extended)


def test_what_a_node_s_pods_may_ask_for_together_fits_64_bits() -> None:
    """The sum in the docstring of `model/ceilings.py`."""
    for most in (MOST_CPU_MILLI, MOST_MEMORY_MIB, MOST_GPU_MIB * MOST_ASKING):
        assert most * (MOST_PODS + 1) < 2**63
    assert MOST_GPU_MIB * MOST_GPUS * 1000 < 2**50, "a score in thousandths (`Query.best`)"


def test_more_pods_than_64_bits_could_add_up_are_counted_and_leave_nothing_behind() -> None:
    ledger, fresh = Ledger([vast_node()]), Ledger([vast_node()])
    for number in range(2_100):  # 2**52 of a resource each: 2,048 of them are 2**63
        ledger.adopt(vast(f"p{number}"))
    assert ledger.table.extended[NAME][0] < 0
    assert not ledger.fits(vast("one more"))
    ledger.set_nodes([vast_node("other")])  # laid out anew
    assert ledger.table.extended[NAME][ledger.table.row_of["n"]] < 0
    for number in range(2_100):
        ledger.release(f"p{number}")
    ledger.set_nodes([], ["other"])
    assert not audit(ledger)
    assert ledger.table.extended[NAME].tolist() == fresh.table.extended[NAME].tolist()
    assert ledger.table.cpu_free.tolist() == fresh.table.cpu_free.tolist()


amounts = st.sampled_from([1, 1000, 2**20, 2**30])
gpu_requests = st.builds(
    GpuRequest,
    count=st.sampled_from([1, 2, MOST_GPUS]),
    memory=st.sampled_from(
        [
            GpuMemoryRequest(),
            GpuMemoryRequest("mib", 1),
            GpuMemoryRequest("mib", MOST_GPU_MIB),
            GpuMemoryRequest("units", MOST_GPU_MIB, 1024),
            GpuMemoryRequest("percent", 100),
        ]
    ),
    milli=st.sampled_from([0, 10, 1000]),
)


@pytest.mark.parametrize("policy", [policy.name for policy in BUILT_IN])
@settings(max_examples=4)
@given(
    gpu_request=gpu_requests,
    cpu=st.sampled_from([0, 1, MOST_CPU_MILLI]),
    memory=st.sampled_from([0, 1, MOST_MEMORY_MIB]),
    whole=st.booleans(),
)
def test_no_policy_meets_a_number_that_it_cannot_hold(
    policy, gpu_request, cpu, memory, whole
) -> None:
    asks = shape(gpu_requests=[gpu_request], cpu_milli=cpu, host_memory_mib=memory)
    if whole:
        asks = shape(gpus=gpu_request.count, cpu_milli=cpu, host_memory_mib=memory)
    engine = Engine([Profile("weft", [built_in().create(policy)])], [vast_node(), vast_node("m")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.handle(PodSeenBound(vast("v")), 1)
        outcomes = engine.handle(PodAdded(pod("p", asks=asks)), 2)
        outcomes += engine.handle(PodAdded(pod("small", memory_mib=1)), 3)
        engine.handle(PodGone("v"), 4)
        engine.handle(NodesChanged((vast_node("k"),)), 20_000_000_000)
    decided = {c.pod.uid for c in outcomes if isinstance(c, Bind | Unschedulable)}
    assert decided == {"p", "small"}
    total = engine.assess(engine.profiles["weft"], pod("q", asks=asks)).total
    assert (np.abs(total[total != NEVER]) < 2**50).all()
    assert not audit(engine.ledger)

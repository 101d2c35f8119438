"""Every policy decides where there is no node, no GPU, or where the GPUs go away."""

import pytest
from long_form import few_or_many

from weft.core.engine import BindOn, BindOnRefused, Engine, NodesChanged, PodAdded, SignalsChanged
from weft.core.engine.questions import scores, which_fit
from weft.core.explain.smallest_change import changes
from weft.core.framework import Profile
from weft.core.framework.signals import snapshot
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import GpuMemoryRequest, GpuRequest, Node
from weft.testing import node, pod, shape

SHAPES = (
    shape(cpu_milli=100),
    shape(needs_gpu_node=True),
    shape(memory_mib=300, application="a", job_class="latency-critical"),
    shape(milli=300),
    shape(gpus=2),
    shape(gpu_requests=[GpuRequest(memory=GpuMemoryRequest("mib", size)) for size in (300, 400)]),
)
NAMES = [policy.name for policy in BUILT_IN]
MINUTE = 60_000_000_000
CLUSTERS: dict[str, list[Node]] = {
    "no node": [],
    "no GPU": [node("a")],
    "a card without memory": [node("a"), node("b", gpus=1, memory_mib=0)],
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("policy", NAMES)
def test_no_policy_needs_a_gpu_to_decide(policy, cluster):
    """The short form asks each policy for each shape on one or two of the clusters."""
    first = (NAMES.index(policy) + list(CLUSTERS).index(cluster)) % few_or_many(2, 1)
    for number, asks in enumerate(SHAPES[first :: few_or_many(2, 1)]):
        engine = Engine([Profile("weft", [built_in().create(policy)])], CLUSTERS[cluster])
        profile, late = engine.profiles["weft"], pod("late", asks=asks)
        engine.handle(SignalsChanged(snapshot(1, 0, [], {})), 1 * MINUTE)
        engine.handle(PodAdded(pod("early", asks=asks)), 2 * MINUTE)
        assert len(which_fit(engine, profile, late, ["a", "z"]).unknown) >= 1
        assert len(scores(engine, profile, late, ["a", "z"])) == 2
        if asks.gpu_requests and cluster != "a card without memory":
            assert "early" in engine.queue, number
            assert changes(engine, late) == []

        engine.handle(NodesChanged((node("a", gpus=2), node("z", gpus=2))), 3 * MINUTE)
        assert "early" in engine.ledger.holdings, number
        engine.handle(PodAdded(late), 4 * MINUTE)
        engine.handle(NodesChanged((node("a"),), ("b", "z")), 5 * MINUTE)
        engine.handle(SignalsChanged(snapshot(2, 0, [], {})), 6 * MINUTE)
        engine.handle(PodAdded(pod("after", asks=asks)), 7 * MINUTE)
        assert ("after" in engine.queue) == bool(asks.gpu_requests or asks.needs_gpu_node)
        if asks.gpu_requests:
            commands = engine.handle(BindOn(pod("bound", asks=asks), "a", "weft"), 8 * MINUTE)
            assert any(isinstance(command, BindOnRefused) for command in commands)

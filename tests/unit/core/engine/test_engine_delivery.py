"""A node gets only pods whose GPU resources would reach their containers there."""

from engine_talk import engine_of, places, refused

from weft.core.engine import NodesChanged, PodAdded, PodSeenBound
from weft.core.engine.questions import which_fit
from weft.core.explain.reasons import summarise
from weft.core.explain.smallest_change import changes
from weft.model import Code
from weft.testing import node, placement, pod, shape

SECOND = 10**9
MEMORY, COMPUTE = "alnair/vgpu-memory", "alnair/vgpu-compute"
ASKS = shape(memory_mib=4000, resources=(COMPUTE, MEMORY))
OTHER = node("other", gpus=2, delivers=("elasticgpu.io/gpu-memory",))
HALF = node("half", gpus=2, delivers=(MEMORY,))
ALNAIR = node("alnair", gpus=1, delivers=(COMPUTE, MEMORY, "nvidia.com/gpu"), rank=1)


def test_a_pod_waits_until_a_node_delivers_its_resources() -> None:
    engine = engine_of(OTHER, HALF)
    assert refused(engine.handle(PodAdded(pod("p", asks=ASKS)), 0)) == ["p"]
    assert places(engine.handle(NodesChanged((ALNAIR,)), 20 * SECOND)) == {"p": "alnair"}


def test_whoever_delivers_by_name_needs_advertise_nothing() -> None:
    engine = engine_of(OTHER, node("by-name", gpus=1, rank=1))
    assert places(engine.handle(PodAdded(pod("p", asks=ASKS)), 0)) == {"p": "by-name"}


def test_pods_that_ask_by_no_resource_go_anywhere() -> None:
    engine = engine_of(OTHER)
    assert places(engine.handle(PodAdded(pod("p", memory_mib=4000)), 0)) == {"p": "other"}


def test_the_reason_names_what_is_missing_and_that_no_pod_is_in_the_way() -> None:
    engine = engine_of(OTHER, HALF, node("plain", delivers=()))
    asked = pod("p", asks=ASKS)
    known = engine.assess(engine.profiles["weft"], asked)
    assert str(summarise(engine.ledger.table, known)) == (
        "0/2 GPU nodes: 2 × node does not advertise alnair/vgpu-compute or alnair/vgpu-memory"
    )
    found = which_fit(engine, engine.profiles["weft"], asked, ["half", "plain"])
    assert found.unresolvable.keys() == {"half", "plain"}
    assert found.unresolvable["plain"] == "node has no GPU"
    row = engine.ledger.table.row_of["half"]
    assert known.codes[row] == Code.NOT_ADVERTISED < Code.OUT_OF_SERVICE


def test_no_smaller_request_and_no_pod_s_end_is_suggested() -> None:
    engine = engine_of(OTHER, HALF)
    for number, name in enumerate(("other", "half")):
        held = placement(f"u{number}", name, (0, 1), memory_mib=16_000, cpu_milli=100)
        engine.handle(PodSeenBound(held), 0)
    assert changes(engine, pod("p", asks=ASKS)) == []

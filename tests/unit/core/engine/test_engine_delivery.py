"""A node gets only pods whose GPU resources would reach their containers there."""

from engine_talk import engine_of, places, refused

from weft.core.engine import NodesChanged, PodAdded, PodSeenBound
from weft.core.engine.questions import which_fit
from weft.core.engine.reasons import summarise
from weft.core.explain.smallest_change import changes
from weft.model import Code, PodRequest
from weft.model.reason import TEXT
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
    assert str(summarise(engine.ledger.table, known, ())) == (
        "0/2 GPU nodes: 2 × node does not advertise alnair/vgpu-compute or alnair/vgpu-memory"
    )
    found = which_fit(engine, engine.profiles["weft"], asked, ["half", "plain"])
    assert found.unresolvable.keys() == {"half", "plain"}
    assert found.unresolvable["plain"] == TEXT[Code.NO_GPU]
    row = engine.ledger.table.row_of["half"]
    assert known.codes[row] == Code.NOT_ADVERTISED < Code.OUT_OF_SERVICE


def test_no_smaller_request_and_no_pod_s_end_is_suggested() -> None:
    engine = engine_of(OTHER, HALF)
    for number, name in enumerate(("other", "half")):
        held = placement(f"u{number}", name, (0, 1), memory_mib=16_000, cpu_milli=100)
        engine.handle(PodSeenBound(held), 0)
    assert changes(engine, pod("p", asks=ASKS)) == []


# --- isolation ---

WITH_MPS = node("mps", gpus=1, isolation=("none", "time-slicing", "mps"), rank=1)
BARE = node("bare", gpus=2, isolation=("none", "time-slicing"))


def isolated(mode: str) -> PodRequest:
    return pod(mode or "whichever", asks=shape(memory_mib=4000, isolation=mode))


def test_a_pod_goes_where_its_isolation_is_offered() -> None:
    engine = engine_of(BARE, WITH_MPS)
    assert places(engine.handle(PodAdded(isolated("mps")), 0)) == {"mps": "mps"}
    assert places(engine.handle(PodAdded(isolated("time-slicing")), 0)) == {"time-slicing": "bare"}
    assert places(engine.handle(PodAdded(isolated("")), 0)) == {"whichever": "bare"}


def test_a_pod_waits_until_a_node_offers_its_isolation() -> None:
    engine = engine_of(BARE, node("other", gpus=1, isolation=("none", "mig")))
    assert refused(engine.handle(PodAdded(isolated("mps")), 0)) == ["mps"]
    assert places(engine.handle(NodesChanged((WITH_MPS,)), 20 * SECOND)) == {"mps": "mps"}


def test_nodes_that_say_nothing_of_isolation_take_every_mode() -> None:
    """A trace's nodes: what their agents would offer nobody says."""
    engine = engine_of(node("n", gpus=1))
    assert places(engine.handle(PodAdded(isolated("hook")), 0)) == {"hook": "n"}


def test_the_reason_names_the_isolation_and_the_change_is_another_one() -> None:
    busy = node("busy", gpus=1, isolation=("none", "time-slicing"), memory_mib=1000)
    engine = engine_of(BARE, busy, node("plain", isolation=("none",)))
    asked = isolated("mig")
    known = engine.assess(engine.profiles["weft"], asked)
    assert str(summarise(engine.ledger.table, known, ())) == (
        "0/2 GPU nodes: 2 × node does not offer isolation mig"
    )
    found = which_fit(engine, engine.profiles["weft"], asked, ["bare", "plain"])
    assert found.unresolvable == {
        "bare": "node does not offer isolation mig",
        "plain": TEXT[Code.NO_GPU],
    }
    assert [change.text for change in changes(engine, asked)] == [
        "ask for isolation time-slicing instead of mig"
    ]


def test_what_is_not_delivered_is_said_before_how_it_would_be_isolated() -> None:
    engine = engine_of(node("n", gpus=1, isolation=("none",), delivers=()))
    asks = pod("p", asks=shape(memory_mib=1, resources=(MEMORY,), isolation="mps"))
    known = engine.assess(engine.profiles["weft"], asks)
    assert known.codes.tolist() == [Code.NOT_ADVERTISED]

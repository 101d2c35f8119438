"""Which GPUs a pod gets where links are known, and what is said of them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.gpu_links import bridged_pairs, dgx_1, nvswitch, pcie_switches
from weft.core.engine.engine import Engine
from weft.core.engine.events import Bind, BindOn, BindOnRefused, NodesChanged, PodAdded, PodGone
from weft.core.engine.reasons import summarise
from weft.core.engine.records import Record
from weft.core.explain.sentences import decision_notes
from weft.core.explain.smallest_change import changes
from weft.core.framework import Policy, Profile
from weft.core.framework.connection import ChosenLinks
from weft.core.policies.catalog import built_in
from weft.core.policies.elastic import ElasticBinpack
from weft.core.policies.fgd import Fgd
from weft.core.policies.packing import BestFit, FirstFit
from weft.core.record import DecisionsWriter, Header, PolicyUse, ProfileUse, Recorder, read, replay
from weft.model import Code, Gang, GpuMemoryRequest, GpuRequest, Node, PodRequest
from weft.model.gpu_links import GpuLinks
from weft.model.reason import TEXT
from weft.testing.builders import node, pod, shape

ONE_SHARE = GpuRequest(1, GpuMemoryRequest("mib", 9_000))


def engine_of(*nodes: Node, policy: Policy | None = None) -> Engine:
    return Engine([Profile("weft", [policy or BestFit()])], nodes)


def linked(links: GpuLinks, name: str = "a", gpus: int = 8) -> Node:
    return node(name, gpus=gpus, links=links)


def placed(engine: Engine, asked: PodRequest, now_ns: int = 0) -> Record | None:
    for command in engine.handle(PodAdded(asked), now_ns):
        if isinstance(command, Bind):
            return command.record
    return None


def gpus_of(record: Record | None) -> list[int]:
    assert record is not None
    return sorted(share.gpu for share in record.shares)


def required(gpus: int, memory_mib: int = 0) -> PodRequest:
    asks = shape(gpus=gpus, memory_mib=memory_mib, topology="required")
    return pod(f"required-{gpus}-{memory_mib}", asks=asks)


@pytest.mark.parametrize("policy", [BestFit(), Fgd(), FirstFit()])
def test_two_gpus_are_those_of_the_strongest_link(policy: Policy) -> None:
    assert gpus_of(placed(engine_of(linked(dgx_1()), policy=policy), pod(gpus=2))) == [0, 3]


def test_four_gpus_are_one_socket_and_not_the_first_free() -> None:
    engine = engine_of(linked(pcie_switches(8, 4)))
    assert gpus_of(placed(engine, pod("one", gpus=1))) == [0]
    assert gpus_of(placed(engine, pod("four", gpus=4))) == [4, 5, 6, 7]


def test_of_equal_bandwidth_the_gpus_of_one_numa_node_are_taken() -> None:
    engine = engine_of(linked(nvswitch()))
    placed(engine, pod("one", gpus=1))
    assert gpus_of(placed(engine, pod("four", gpus=4))) == [4, 5, 6, 7]


def test_single_pods_break_as_few_pairs_as_they_can() -> None:
    engine = engine_of(linked(bridged_pairs()))
    singles = [gpus_of(placed(engine, pod(f"s{i}", gpus=1))) for i in range(2)]
    assert singles == [[0], [1]]
    engine.handle(PodGone("s0"), 1)
    placed(engine, pod("pair", gpus=2))
    engine.handle(PodGone("pair"), 1)
    assert gpus_of(placed(engine, pod("share", memory_mib=100))) == [0]


def test_shares_of_several_gpus_are_exchanged_only_for_gpus_in_the_same_state() -> None:
    engine = engine_of(linked(bridged_pairs()))
    placed(engine, pod("light", memory_mib=1_000))
    record = placed(engine, pod("two", gpus=2, memory_mib=5_000))
    assert gpus_of(record) == [0, 1]  # best fit wants GPU 0; of the others its neighbour is best


def test_containers_of_one_pod_get_connected_gpus() -> None:
    engine = engine_of(linked(bridged_pairs()))
    placed(engine, pod("first", memory_mib=16_000))
    whole = GpuRequest(1, GpuMemoryRequest("whole"), 1_000, whole=True)
    assert gpus_of(placed(engine, pod("two", gpu_requests=(whole, whole)))) == [2, 3]


def test_topology_none_takes_the_first() -> None:
    engine = engine_of(linked(dgx_1()))
    record = placed(engine, pod(asks=shape(gpus=2, topology="none")))
    assert gpus_of(record) == [0, 1]
    assert record is not None
    assert not isinstance(record.links, ChosenLinks)


def test_of_nodes_that_score_equally_the_better_connected_is_taken() -> None:
    nodes = linked(pcie_switches(), "a"), linked(nvswitch(), "b"), node("c", gpus=8)
    record = placed(engine_of(*nodes), pod("two", gpus=2))
    assert record is not None
    assert record.node == "b"
    one = placed(engine_of(*nodes), pod("one", gpus=1))
    assert one is not None
    assert one.node == "a"


def test_required_waits_until_the_best_gpus_are_free_together() -> None:
    engine = engine_of(linked(bridged_pairs(2), gpus=2), node("b", gpus=8))
    placed(engine, pod("one", gpus=1, node_name="a"))
    asked = required(2)
    assert placed(engine, asked) is None
    known = engine.assess(engine.profile_of(asked), asked)
    assert known.codes.tolist() == [Code.NOT_IDLE, Code.LINKS_UNKNOWN]
    found = [c.record for c in engine.handle(PodGone("one"), 10**10) if isinstance(c, Bind)]
    assert [(record.node, gpus_of(record)) for record in found] == [("a", [0, 1])]


def busy(engine: Engine) -> None:
    """GPUs 0, 2, 4 and 6 of `a` are held: no bridged pair is whole."""
    for number in range(4):
        uuid = f"GPU-a-{2 * number}"
        assert placed(engine, pod(f"p{number}", asks=shape(gpus=1, uuids=[uuid])))


def test_lost_links_are_a_reason_and_preferred_is_the_suggestion() -> None:
    engine = engine_of(linked(bridged_pairs()))
    busy(engine)
    asked = required(2)
    assert placed(engine, asked) is None
    known = engine.assess(engine.profile_of(asked), asked)
    assert str(summarise(engine.ledger.table, known, ())) == (
        f"0/1 GPU nodes: 1 × {TEXT[Code.LINKS_TAKEN]} (best free: NODE, best of the node: NV4)"
    )
    found = {change.axis: change for change in changes(engine, asked)}
    assert found["topology"].text == "ask for weft.dev/topology preferred instead of required"
    assert found["free"].free == ("p0",)


def test_a_record_says_which_links_were_had_and_lost() -> None:
    engine = engine_of(linked(bridged_pairs()))
    first = placed(engine, pod("two", gpus=2))
    assert first is not None
    assert decision_notes(first) == [
        "GPUs 0 and 1 have NV4 as their weakest link, between GPUs 0 and 1: 80 GB/s; "
        "no 2 GPUs of the node are connected better"
    ]
    engine.handle(PodGone("two"), 0)
    busy(engine)
    second = placed(engine, pod("late", gpus=2))
    assert second is not None
    assert decision_notes(second) == [
        "GPUs 1 and 3 have NODE as their weakest link, between GPUs 1 and 3: 10 GB/s; "
        "NV4 of GPUs 0 and 1 (80 GB/s) was not free: GPU 0 is taken"
    ]


@pytest.mark.parametrize("policy", [BestFit(), ElasticBinpack()])
def test_shares_that_require_links_get_the_best_scored_connected_set(policy: Policy) -> None:
    engine = engine_of(linked(bridged_pairs(4), gpus=4), policy=policy)
    for number, (gpu, memory_mib) in enumerate([(0, 9_000), (1, 1_000), (2, 8_000), (3, 3_000)]):
        asks = shape(memory_mib=memory_mib, uuids=[f"GPU-a-{gpu}"])
        assert placed(engine, pod(f"p{number}", asks=asks))
    # Without links best fit would take the two fullest, GPUs 0 and 2.
    assert gpus_of(placed(engine, required(2, 5_000))) == [2, 3]
    assert gpus_of(placed(engine, required(2, 4_000))) == [0, 1]
    assert placed(engine, required(2, 9_500)) is None


def test_containers_that_require_links_are_not_put_where_they_are_not_had() -> None:
    engine = engine_of(linked(bridged_pairs(4), gpus=4))
    for gpu in (0, 2):
        assert placed(engine, pod(f"p{gpu}", asks=shape(gpus=1, uuids=[f"GPU-a-{gpu}"])))
    asks = shape(gpu_requests=(ONE_SHARE, ONE_SHARE), topology="required")
    assert placed(engine, pod("two", asks=asks)) is None
    assert [
        type(command)
        for command in engine.handle(BindOn(pod("other", asks=asks), "a", "weft"), 1)
        if isinstance(command, BindOnRefused) and command.code is Code.LINKS_TAKEN
    ]


def gang_records(engine: Engine, asked: PodRequest, rack: str) -> list[Record]:
    """The records of a gang's two pods, the second of which completes it; [] if none has a
    place."""
    gang = Gang("scheduler-plugins", "default", "train", least=2, topology_key=rack)
    first, second = (replace(asked, uid=uid, name=uid, gang=gang) for uid in ("g0", "g1"))
    assert placed(engine, first) is None
    return [c.record for c in engine.handle(PodAdded(second), 0) if isinstance(c, Bind)]


def in_rack(each: Node) -> Node:
    return replace(each, labels={"rack": "r"})


@pytest.mark.parametrize("key", ["", "rack"])
def test_pods_of_a_gang_get_gpus_connected_as_well_as_single_pods_do(key: str) -> None:
    records = gang_records(engine_of(in_rack(linked(dgx_1()))), pod(gpus=2), key)
    assert [gpus_of(each) for each in records] == [[0, 3], [1, 2]]
    assert all(isinstance(each.links, ChosenLinks) for each in records)
    nodes = map(in_rack, (linked(pcie_switches()), linked(nvswitch(), "b"), node("c", gpus=8)))
    records = gang_records(engine_of(*nodes), pod(gpus=2), key)
    assert [each.node for each in records] == ["b", "b"]


@pytest.mark.parametrize("key", ["", "rack"])
def test_a_gang_whose_pods_require_links_waits_for_them(key: str) -> None:
    engine = engine_of(in_rack(linked(bridged_pairs(6), gpus=6)))
    for gpu in (0, 2):
        assert placed(engine, pod(f"p{gpu}", asks=shape(gpus=1, uuids=[f"GPU-a-{gpu}"])))
    assert gang_records(engine, required(2), key) == []
    commands = engine.handle(PodGone("p0"), 10**10)
    records = [command.record for command in commands if isinstance(command, Bind)]
    assert [gpus_of(each) for each in records] == [[0, 1], [4, 5]]


def test_broken_gpus_are_no_links_that_could_be_had() -> None:
    broken = node("a", gpus=8, links=bridged_pairs(), broken=[0, 2, 4, 6])
    assert gpus_of(placed(engine_of(broken), required(2))) == [1, 3]


def test_policies_of_originals_that_take_the_last_gpu_still_do_for_shares() -> None:
    links, share = linked(bridged_pairs()), pod("s", milli=300)
    alone = placed(engine_of(node("a", gpus=8), policy=ElasticBinpack()), share)
    assert gpus_of(placed(engine_of(links, policy=ElasticBinpack()), share)) == gpus_of(alone)


def test_decisions_by_links_replay(tmp_path: Path) -> None:
    create = built_in().create
    header = Header([ProfileUse("weft", [PolicyUse("best-fit")])])
    path = tmp_path / "d.jsonl"
    with path.open("wb") as out:
        writer = DecisionsWriter(out)
        recorder = Recorder(header.engine(create), header, writer.write)
        recorder.handle(NodesChanged((linked(dgx_1()), node("b", gpus=2))), 0)
        for number, gpus in enumerate([1, 2, 4, 2, 3]):
            asks = shape(gpus=gpus, topology="required") if number % 2 else shape(gpus=gpus)
            recorder.handle(PodAdded(pod(f"p{number}", asks=asks)), number)
        writer.close()
    assert replay(*read(path), create).identical
    assert '"paths":["X NV1' in path.read_text()


def test_nothing_is_said_of_links_where_nobody_tells_any(tmp_path: Path) -> None:
    engine = engine_of(node("a", gpus=8))
    record = placed(engine, pod(gpus=2))
    assert record is not None
    assert not isinstance(record.links, ChosenLinks)
    assert engine.assess(engine.profile_of(pod()), pod("q", gpus=2)).connected is None

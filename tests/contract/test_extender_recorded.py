"""The recorded requests of a real kube-scheduler 1.36, byte for byte, and the recorded answers."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extender_world import WEFT, StubCluster

from weft.cluster.extender import protocol
from weft.cluster.extender.service import Extender
from weft.core.engine import PodSeenBound
from weft.testing.builders import node, placement

pytestmark = pytest.mark.data
NODES = ("fake-00000", "fake-00001", "fake-00002")
BIG = 80_000
CASES = ("true", "false")


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Recorded:
    """One recorded call and its answer."""

    def __init__(self, folder: Path, name: str) -> None:
        call = json.loads((folder / f"{name}.json").read_text())
        self.body = compact(call["body"])
        self.asked = call["body"]
        self.answer = json.loads((folder / f"{name}.resp.json").read_text())
        self.bytes = call["raw_body_bytes"]


@pytest.fixture(scope="session")
def recorded(weft_data: Path) -> Path:
    return weft_data / "extender"


def roomy(*uids: str) -> StubCluster:
    cluster = StubCluster([node(name, gpus=8, memory_mib=BIG) for name in NODES])
    for number, uid in enumerate(uids):
        where = placement(uid, NODES[number % 3], range(8), memory_mib=BIG, milli=1000)
        cluster.handle(PodSeenBound(where))
    return cluster


def kinds(value: Any) -> Any:
    """The shape of an answer: keys and what stands there, numbers and texts aside."""
    if isinstance(value, dict):
        return {key: kinds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [kinds(inner) for inner in value]
    return type(value).__name__


@pytest.mark.parametrize("cached", CASES)
@pytest.mark.parametrize("number", [1, 2])
def test_filter(recorded: Path, cached: str, number: int) -> None:
    case = Recorded(recorded, f"nodeCacheCapable-{cached}-filter-{number}")
    found = json.loads(Extender(roomy()).filter(WEFT, case.body).body)
    nil = "Nodes" if cached == "true" else "NodeNames"
    assert found[nil] is None
    assert {*found} == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert {key: found[key] for key in case.answer if key != "Nodes"} == {
        key: value for key, value in case.answer.items() if key != "Nodes"
    }
    if cached == "false":
        assert found["Nodes"]["items"] == case.answer["Nodes"]["items"]


@pytest.mark.parametrize("cached", CASES)
def test_a_pod_of_two_systems_is_an_error_in_the_answer(recorded: Path, cached: str) -> None:
    """The recording pins the wire's shape; this pod asks in Elastic's words and NVIDIA's."""
    case = Recorded(recorded, f"nodeCacheCapable-{cached}-filter-0")
    reply = Extender(roomy()).filter(WEFT, case.body)
    assert reply.status == 200
    assert "elastic" in json.loads(reply.body)["Error"]


@pytest.mark.parametrize("cached", CASES)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_prioritize(recorded: Path, cached: str, number: int) -> None:
    case = Recorded(recorded, f"nodeCacheCapable-{cached}-prioritize-{number}")
    found = json.loads(Extender(roomy()).prioritize(WEFT, case.body).body)
    assert kinds(found) == kinds(case.answer)
    assert [one["Host"] for one in found] == [one["Host"] for one in case.answer]


@pytest.mark.parametrize("cached", CASES)
@pytest.mark.parametrize("number", [1, 2])
async def test_bind(recorded: Path, cached: str, number: int) -> None:
    filtered = Recorded(recorded, f"nodeCacheCapable-{cached}-filter-{number}")
    case = Recorded(recorded, f"nodeCacheCapable-{cached}-bind-{number}")
    cluster = roomy()
    extender = Extender(cluster)
    extender.filter(WEFT, filtered.body)
    reply = await extender.bind(WEFT, case.body)
    assert (reply.status, json.loads(reply.body)) == (200, case.answer)
    assert reply.body == b'{"Error":""}'
    assert [one.placement.node for one in cluster.bound] == [case.asked["Node"]]


@pytest.mark.parametrize("cached", CASES)
def test_preempt(recorded: Path, cached: str) -> None:
    """The pod wants six whole GPUs of eight: every victim holds all of its node's."""
    case = Recorded(recorded, f"nodeCacheCapable-{cached}-preempt-0")
    asked = protocol.read_preempt(case.body)
    cluster = StubCluster([node(name, gpus=8, memory_mib=BIG) for name in NODES])
    for where, victims in asked.victims.items():
        share = 8 // len(victims.uids)
        for number, uid in enumerate(victims.uids):
            gpus = range(number * share, (number + 1) * share)
            cluster.handle(PodSeenBound(placement(uid, where, gpus, memory_mib=BIG, milli=1000)))
    found = json.loads(Extender(cluster).preempt(WEFT, case.body).body)
    form = "NodeNameToVictims" if cached == "false" else "NodeNameToMetaVictims"
    told = case.asked[form]
    assert [*found] == ["NodeNameToMetaVictims"]
    assert {
        name: [pod["UID"] for pod in one["Pods"]]
        for name, one in found["NodeNameToMetaVictims"].items()
    } == {
        name: [pod.get("UID") or pod["metadata"]["uid"] for pod in one["Pods"]]
        for name, one in told.items()
    }
    assert {*found["NodeNameToMetaVictims"]} == {*case.answer["NodeNameToMetaVictims"]}
    assert kinds(found) == kinds(case.answer)


def test_the_bodies_are_the_recorded_bytes(recorded: Path) -> None:
    """The bodies sent here are as long as those on the wire were (one newline ends Go's JSON)."""
    for path in sorted(recorded.glob("nodeCacheCapable-*-?.json")):
        case = Recorded(recorded, path.stem)
        assert case.bytes - len(case.body) in {0, 1}, path.name


def test_an_old_kube_scheduler_in_lower_case_is_understood(recorded: Path) -> None:
    case = Recorded(recorded, "nodeCacheCapable-true-filter-1")
    lower = compact({key.lower(): value for key, value in case.asked.items()})
    extender = Extender(roomy())
    assert extender.filter(WEFT, lower) == extender.filter(WEFT, case.body)


def test_answers_are_json_without_floats(recorded: Path) -> None:
    case = Recorded(recorded, "nodeCacheCapable-true-prioritize-1")
    body = Extender(roomy()).prioritize(WEFT, case.body).body
    assert b"." not in body
    assert msgspec.json.decode(body) == json.loads(body)

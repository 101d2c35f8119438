"""Nodes and pods of a cluster as a simulation takes them: read as the scheduler reads them."""

import msgspec
from dialect_pods import ASKING, node, pod, pods

from weft.cluster.state import pod_reader
from weft.cluster.state.observed import ObservedCluster, PodTimes, observe
from weft.cluster.state.pod_reader import UnknownVolumes
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

SETTINGS = DialectSettings(gpushare_unit="node", interference_table=True)


def seen(nodes: list[dict], these: list[dict]) -> ObservedCluster:  # type: ignore[type-arg]
    return observe(
        msgspec.convert(nodes, list[KubeNode]), msgspec.convert(these, list[Pod]), SETTINGS
    )


def test_pods_of_every_dialect_ask_what_the_scheduler_reads_in_them() -> None:
    found = seen([node("a")], pods())
    assert found.warnings == []
    assert {one.name: one.dialect for one in found.pods} == {
        f"ml/{name}": "gpushare" if name == "coscheml" else name for name in ASKING
    }
    for one, manifest in zip(found.pods, pods(), strict=True):
        read = pod_reader.read(msgspec.convert(manifest, Pod), SETTINGS, UnknownVolumes()).shape
        assert [(r.count, r.memory.mib_on(16_160), r.milli) for r in one.shape.gpu_requests] == [
            (r.count, 0 if r.whole else r.memory.mib_on(16_160), r.milli) for r in read.gpu_requests
        ]
        assert (one.shape.cpu_milli, one.shape.memory_mib) == (1500, 2048)
        lacked = found.nodes[0].lacks(one.shape.resources)
        assert lacked == (), "no agent says what it delivers, and a simulation has one"


def test_times_come_from_metadata_conditions_and_the_containers_ends() -> None:
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T10:00:30Z"}
    ends = [
        {"name": name, "state": {"terminated": {"finishedAt": f"2026-03-01T1{hour}:00:00Z"}}}
        for name, hour in (("main", 1), ("other", 2))
    ]
    ended = {"phase": "Succeeded", "conditions": [bound], "containerStatuses": ends}
    waits, ran = seen(
        [node("a")],
        [pod("waits", ASKING["gpushare"]), pod("ran", ASKING["nvidia"], node="a", **ended)],
    ).pods
    made = 1772359200.0
    assert waits.times == PodTimes(made)
    assert ran.times == PodTimes(made, made + 30, made + 7200)


def test_what_is_not_simulated_is_left_out_and_said() -> None:
    broken = pod("broken", {"limits": {"aliyun.com/gpu-mem": "x"}})
    away = pod("away", ASKING["none"])
    rule = {"topologyKey": "zone"}
    away["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    }
    never = pod("never", ASKING["none"], phase="Failed")
    found = seen([node("a")], [broken, away, never])
    assert [one.name for one in found.pods] == ["ml/away"]
    assert found.pods[0].shape.constraints.unsupported == ""
    assert sorted(found.left_out.items()) == [
        ("pods that cannot be read", 1),
        ("pods that ended without ever having had a node", 1),
        ("pods whose affinity to pods, spreading or claims is not simulated", 1),
    ]
    assert [text.partition(": ")[0] for text in found.warnings] == ["pod ml/broken is left out"]


def test_labels_stay_only_where_a_pod_selects_by_them() -> None:
    picky = pod("picky", ASKING["nvidia"])
    picky["spec"]["nodeSelector"] = {"zone": "a"}
    assert seen([node("a")], [picky]).nodes[0].labels == {"zone": "a"}
    assert seen([node("a")], pods()).nodes[0].labels == {}

"""A pod takes of its node, beside GPUs, what Kubernetes counts."""

from typing import Any

import msgspec
import pytest

from weft.cluster.state.bound_share import BoundShare, held_by, without_node
from weft.cluster.state.pod_reader import read, read_asked, read_bound
from weft.cluster.state.volumes import VolumeView
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import BadInputError, Node, Shape
from weft.model.ceilings import MOST_CPU_MILLI, MOST_MEMORY_MIB

GI = 2**30


def shape(**spec: Any) -> Shape:
    whole = {"metadata": {"name": "a", "namespace": "d", "uid": "u"}, "spec": spec}
    pod = msgspec.convert(whole, Pod)
    found = read(pod, DialectSettings(), VolumeView()).shape
    held = read_bound(pod, DialectSettings()).shape
    asked = read_asked(pod, DialectSettings()).shape
    for other in (held, asked):  # the same is charged, whoever schedules it
        assert (other.cpu_milli, other.memory_mib, other.extended) == (
            found.cpu_milli,
            found.memory_mib,
            found.extended,
        )
    return found


def container(name: str = "c", restart: str | None = None, **requests: str) -> dict[str, Any]:
    asked = {key.replace("_", "-"): value for key, value in requests.items()}
    return {"name": name, "resources": {"requests": asked}, "restartPolicy": restart}


def test_init_containers_run_before_and_sidecars_beside() -> None:
    found = shape(
        initContainers=[
            container("side", "Always", cpu="1", memory="1Gi"),
            container("init", cpu="4", memory="1Gi"),
        ],
        containers=[container(cpu="2", memory="3Gi"), container("d", cpu="500m")],
    )
    assert (found.cpu_milli, found.memory_mib) == (5_000, 4_096)


def test_pod_level_resources_take_the_place_of_the_sum() -> None:
    found = shape(
        containers=[container(cpu="2", memory="3Gi"), container("d", cpu="2")],
        resources={"requests": {"cpu": "3"}, "limits": {"cpu": "8", "memory": "4Gi"}},
    )
    assert (found.cpu_milli, found.memory_mib) == (3_000, 3_072), "as the API server fills it in"


def test_a_pod_level_limit_counts_where_no_container_asks() -> None:
    limits = {"cpu": "2", "hugepages-2Mi": "4Mi"}
    found = shape(containers=[container(memory="1Gi")], resources={"limits": limits})
    assert (found.cpu_milli, found.memory_mib) == (2_000, 1_024)
    assert dict(found.extended)["hugepages-2Mi"] == 4 * 2**20


def test_overhead_may_be_of_any_resource() -> None:
    name = "example.com/slots"
    one = {"name": "c", "resources": {"limits": {name: "2"}}}
    assert dict(shape(containers=[one], overhead={name: "1"}).extended)[name] == 3
    assert dict(shape(containers=[container()], overhead={name: "1"}).extended)[name] == 1


def test_a_runtime_class_costs_its_overhead_with_either_level() -> None:
    overhead = {"cpu": "250m", "memory": "128Mi"}
    by_container = shape(containers=[container(cpu="1", memory="1Gi")], overhead=overhead)
    assert (by_container.cpu_milli, by_container.memory_mib) == (1_250, 1_152)
    by_pod = shape(
        containers=[container(cpu="1")],
        overhead=overhead,
        resources={"requests": {"cpu": "2", "memory": "2Gi"}},
    )
    assert (by_pod.cpu_milli, by_pod.memory_mib) == (2_250, 2_176)


def test_storage_and_huge_pages_are_counted() -> None:
    asks = {"ephemeral-storage": "1Gi", "hugepages-2Mi": "2Gi"}
    found = shape(
        initContainers=[{"name": "i", "resources": {"limits": {"ephemeral-storage": "5Gi"}}}],
        containers=[
            {"name": "c", "resources": {"requests": asks}},
            {"name": "d", "resources": {"requests": asks}},
        ],
        overhead={"ephemeral-storage": "1Gi"},
    )
    assert found.extended == (("ephemeral-storage", 6 * GI), ("hugepages-2Mi", 4 * GI), ("pods", 1))


def test_huge_pages_of_the_pod_level_take_the_place_of_the_sum() -> None:
    asks = {"hugepages-2Mi": "2Gi"}
    found = shape(
        containers=[{"name": "c", "resources": {"requests": asks}}],
        resources={"requests": {"hugepages-2Mi": "3Gi"}},
    )
    assert found.extended == (("hugepages-2Mi", 3 * GI), ("pods", 1))


@pytest.mark.parametrize("size", ["9000000000Gi", "1e18"])
def test_no_size_breaks_the_accounts(size: str) -> None:
    found = shape(containers=[container(ephemeral_storage=size)])
    assert dict(found.extended)["ephemeral-storage"] == 2**52


def _held(pod: Pod, settings: DialectSettings) -> BoundShare:
    return held_by(pod, Node("n"), settings, lambda gpu: (0, 0, 0, 0))


VAST = [container(f"c{i}", cpu="2000000", memory="2Pi") for i in range(3)]


def test_a_waiting_pod_that_asks_more_than_any_node_has_is_refused() -> None:
    pod = msgspec.convert({"metadata": {"name": "a"}, "spec": {"containers": VAST}}, Pod)
    with pytest.raises(BadInputError, match="6,000,000,000 thousandths of a core in all"):
        read(pod, DialectSettings(), VolumeView())


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": VAST},
        {"containers": [], "resources": {"requests": {"cpu": "1e30", "memory": "9" * 45}}},
        {"containers": VAST[:1], "overhead": {"cpu": "9E", "memory": "9E"}},
        {"containers": [container(cpu="9" * 50, memory="1e30")]},
    ],
)
def test_a_bound_pod_that_asks_so_is_charged_all_that_a_node_can_have(spec: Any) -> None:
    whole = {"metadata": {"name": "a"}, "spec": {**spec, "nodeName": "n"}}
    for found in (without_node, _held):
        held = found(msgspec.convert(whole, Pod), DialectSettings()).placement
        assert (held.cpu_milli, held.memory_mib) == (MOST_CPU_MILLI, MOST_MEMORY_MIB)

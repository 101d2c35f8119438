"""GPU requests in words that no dialect reads are named, with whose they are and the way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import ask, asks, parsed, pod

from weft.dialects.catalog import RESOURCES
from weft.dialects.foreign import foreign_requests, foreign_resource


@pytest.mark.parametrize(
    ("name", "owner", "waits"),
    [
        ("nvidia.com/mig-1g.10gb", "NVIDIA's device plugin's, a MIG instance", False),
        ("nvidia.com/mig-1g.10gb.shared", "NVIDIA's device plugin's", False),
        ("nvidia.com/gpu.shared", "time-slicing", False),
        ("amd.com/gpu", "AMD's device plugin's", False),
        ("amd.com/cpx_nps4", "AMD's device plugin's", False),
        ("gpu.intel.com/i915", "Intel's device plugin's", False),
        ("gpu.intel.com/xe", "Intel's device plugin's", False),
        ("tencent.com/vcuda-core", "Tencent's GPU manager's", True),
    ],
)
def test_other_systems_are_called_by_their_names(name, owner, waits):
    found = foreign_resource(name)
    assert found.text.startswith(f"{name} is ")
    assert owner in found.text
    assert "Weft does not place it" in found.text
    assert found.waits is waits


@pytest.mark.parametrize(
    ("name", "near", "waits"),
    [
        ("nvidia.com/gpus", "nvidia.com/gpu", False),
        ("nvidia.com/GPU", "nvidia.com/gpu", False),
        ("nvidia/gpu", "nvidia.com/gpu", False),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem", False),
        ("weft.dev/gpu-memoy", "weft.dev/gpu-memory", True),
        ("weft.dev/gpu-core", "weft.dev/gpu-cores", True),
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem", True),
        ("alnair/vgpu-mem", "alnair/vgpu-memory", True),
        ("amd.com/gpus", "amd.com/gpu", False),
    ],
)
def test_misspelled_names_get_the_nearest_one(name, near, waits):
    found = foreign_resource(name)
    assert found.text.endswith(f"did you mean {near}?")
    assert found.waits is waits


def test_a_name_like_none_has_no_nearest():
    found = foreign_resource("example.org/some-gpu-of-ours")
    assert "did you mean" not in found.text
    assert not found.waits


@pytest.mark.parametrize(
    "name",
    ["cpu", "memory", "hugepages-2Mi", "rdma/hca", "nvidia.com/priority", "nvidia.com/nic", "pods"],
)
def test_what_asks_for_no_gpu_is_left_alone(name):
    assert foreign_resource(name) is None


@given(st.sampled_from(RESOURCES))
def test_what_a_dialect_reads_is_not_foreign(name):
    assert foreign_resource(name) is None


def test_containers_that_ask_are_named_and_zero_asks_for_nothing():
    made = pod(ask("amd.com/gpu", 1, "a"), ask("amd.com/gpu", "0", "b"), ask("amd.com/gpu", 2, "c"))
    (found,) = foreign_requests(made)
    assert (found.name, found.containers) == ("amd.com/gpu", ("a", "c"))
    assert foreign_requests(pod(ask("nvidia.com/gpus", 0))) == []


def test_of_thousands_of_names_some_are_looked_at():
    """Each takes a millisecond, and a pod that nobody vouches for may not hold up the others."""
    names = {f"nvidia.com/gpu-{index}": 1 for index in range(5_000)}
    assert len(foreign_requests(pod(asks("c", names)))) == 16
    each = [ask(name, 1, f"c{index}") for index, name in enumerate(names)]
    assert len(foreign_requests(pod(*each))) == 16
    usual = {"cpu": 1, "memory": 1, "nvidia.com/gpu": 1}
    assert foreign_requests(pod(asks("c", usual)), by="weft") == []


@pytest.mark.parametrize(
    ("name", "value"), [("gpu-fraction", "0.5"), ("gpu-memory", "2000")], ids=str
)
def test_kais_annotations_keep_a_pod_waiting_only_where_nothing_else_asks(name, value):
    alone = pod(asks("c", {}), annotations={name: value})
    (found,) = foreign_requests(alone)
    assert f"annotation {name} is KAI Scheduler's: Weft does not place it" in found.text
    assert "schedulerName weft or kai-scheduler" in found.text
    assert found.waits
    (beside,) = foreign_requests(alone, by="weft")
    assert not beside.waits
    assert beside.text.endswith("it is ignored")
    asking = parsed(ask("weft.dev/gpu-memory", 100), annotations={name: value})
    assert beside.text in asking.warnings
    assert foreign_requests(pod(asks("c", {}), annotations={name: ""})) == []

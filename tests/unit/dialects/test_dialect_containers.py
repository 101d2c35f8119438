import pytest
from manifests import ask, asks, box, node, parsed, place, pod

from weft.dialects.registry import non_gpu_resources, write
from weft.dialects.resources import whole_cards
from weft.dialects.system import timestamp_ns
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest
from weft.model.annotations import GPU_CORES, GPU_COUNT, GPU_MEMORY


def mib(value, milli=0, count=1):
    return GpuRequest(count, GpuMemoryRequest("mib", value), milli)


def layout(*mains, init=()):
    request = parsed(*mains, init=list(init))
    return request.shape.gpu_requests, {c.name: c.gpu_requests for c in request.containers}


def m(name, value, **kind):
    return ask(GPU_MEMORY, value, name, **kind)


def test_a_smaller_init_container_borrows_without_growing():
    gpu_requests, uses = layout(m("a", 4), m("b", 8), init=[m("i", 6)])
    assert gpu_requests == (mib(4), mib(8))
    assert uses == {"i": (1,), "a": (0,), "b": (1,)}


def test_a_larger_init_container_grows_the_largest_claim():
    gpu_requests, uses = layout(m("a", 4), m("b", 8), init=[m("i", 10), m("j", 9)])
    assert gpu_requests == (mib(4), mib(10))
    assert uses["i"] == uses["j"] == (1,)


def test_the_element_wise_maximum_of_memory_and_cores():
    gpu_requests, _ = layout(
        asks("a", {GPU_MEMORY: 4, GPU_CORES: 50}), init=[asks("i", {GPU_MEMORY: 9, GPU_CORES: 10})]
    )
    assert gpu_requests == (mib(9, 500),)


def test_a_sidecar_holds_its_own_beside_everything():
    gpu_requests, uses = layout(m("a", 4), init=[m("s", 3, sidecar=True), m("i", 4)])
    assert gpu_requests == (mib(4), mib(3))
    assert uses == {"s": (1,), "i": (0,), "a": (0,)}


def test_an_init_container_alone_holds_its_claim_for_the_next_one():
    gpu_requests, uses = layout(box("a"), init=[m("i", 4), m("j", 9)])
    assert gpu_requests == (mib(9),)
    assert uses == {"i": (0,), "j": (0,), "a": ()}


def test_whole_cards_are_pooled_over_main_containers():
    gpu_requests, uses = layout(
        ask(GPU_COUNT, 1, "a"),
        ask(GPU_COUNT, 2, "b"),
        init=[ask(GPU_COUNT, 4, "i"), ask(GPU_COUNT, 3, "j")],
    )
    assert gpu_requests == (whole_cards(1), whole_cards(2), whole_cards(1))
    assert uses["i"] == (1, 0, 2)
    assert uses["j"] == (1, 0)


def test_a_shared_ask_fits_on_borrowed_whole_cards():
    gpu_requests, uses = layout(
        ask(GPU_COUNT, 2, "a"), init=[asks("i", {GPU_COUNT: 2, GPU_MEMORY: 9})]
    )
    assert gpu_requests == (whole_cards(2),)
    assert uses["i"] == (0,)


def test_a_whole_ask_makes_a_shared_claim_whole():
    gpu_requests, uses = layout(m("a", 4), init=[ask(GPU_COUNT, 2, "i")])
    assert gpu_requests == (whole_cards(1), whole_cards(1))
    assert uses == {"i": (0, 1), "a": (0,)}


def test_a_shared_claim_of_several_gpus_becomes_whole_as_one():
    gpu_requests, uses = layout(
        asks("a", {GPU_COUNT: 2, GPU_MEMORY: 5}), init=[ask(GPU_COUNT, 2, "i")]
    )
    assert gpu_requests == (whole_cards(2),)
    assert uses == {"i": (0,), "a": (0,)}


def test_a_container_sees_no_more_gpus_than_it_asked_for():
    request = parsed(ask(GPU_COUNT, 3, "a"), init=[ask(GPU_COUNT, 2, "i"), ask(GPU_COUNT, 1, "j")])
    on = node(8, 8, 8)
    seen = write(request, place(request, on, 2, 0, 1), on, 0).env
    assert {name: env["NVIDIA_VISIBLE_DEVICES"] for name, env in seen.items()} == {
        "i": "GPU-2,GPU-0",
        "j": "GPU-2",
        "a": "GPU-2,GPU-0,GPU-1",
    }


def test_distinct_gpus_are_never_borrowed_from_claims_that_may_meet():
    gpu_requests, uses = layout(
        m("a", 4), m("b", 4), init=[asks("i", {GPU_COUNT: 2, GPU_MEMORY: 2})]
    )
    assert gpu_requests == (mib(4, count=2), mib(4))
    assert uses["i"] == (0,)


def test_memory_of_another_kind_is_held_beside():
    gpu = "nvidia.com/gpu"
    request = parsed(
        asks("a", {gpu: 1, "nvidia.com/gpumem": 9}),
        init=[asks("i", {gpu: 1, "nvidia.com/gpumem-percentage": 50}), ask(gpu + "cores", 10, "j")],
    )
    # i can't borrow MiB for a percentage; j asks for all memory and so makes i's claim whole.
    assert [gpu_request.memory.kind for gpu_request in request.shape.gpu_requests] == [
        "mib",
        "whole",
    ]
    assert [c.gpu_requests for c in request.containers] == [(1,), (1,), (0,)]


def test_non_gpu_resources_follow_kubernetes_rules():
    def c(name, cpu, memory, **kind):
        made = box(name, **kind)
        made["resources"] = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "9"}}
        return made

    manifest = pod(
        c("a", "100m", "1Mi"),
        c("b", "200m", "1"),
        init=[
            c("s", "50m", "1Mi", sidecar=True),
            c("i", 1, "10Mi"),
            c("t", "1", "1Mi", sidecar=True),
        ],
        overhead={"cpu": "10m", "memory": "1Mi"},
    )
    # init: 50 + 1000; running: 50 + 1000 + 300; memory: 1 + 10 MiB before, 1 + 1 + 1 MiB + 1 after
    assert non_gpu_resources(manifest) == (1360, 12, ())


def test_limits_stand_in_for_missing_requests():
    assert non_gpu_resources(pod(asks("a", {"cpu": 2, "memory": "1Mi"}))) == (2000, 1, ())


def test_other_extended_resources_are_summed_or_maximal():
    manifest = pod(
        asks("a", {"rdma/hca": 1, "nvidia.com/mig-1g.5gb": 1}),
        asks("b", {"rdma/hca": 1, "elasticgpu.io/gpu-core": 5, "zero/x": 0}),
        init=[asks("i", {"rdma/hca": 5})],
    )
    assert non_gpu_resources(manifest)[2] == (("nvidia.com/mig-1g.5gb", 1), ("rdma/hca", 5))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-02-29T12:34:56Z", 1709210096 * 10**9),
        ("2026-11-20T23:50:31Z", 1795218631 * 10**9),
        ("2000-03-01T00:00:00.5Z", 951868800 * 10**9 + 5 * 10**8),
        (None, 0),
        ("", 0),
    ],
)
def test_timestamps_in_nanoseconds(text, ns):
    assert timestamp_ns(text) == ns


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z"])
def test_a_timestamp_that_is_none_is_named(text):
    with pytest.raises(BadInputError, match="creationTimestamp"):
        timestamp_ns(text)

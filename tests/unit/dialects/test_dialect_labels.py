"""Genius and Kube-Knots: pods that ask by label."""

import pytest
from manifests import EXACT, SANE, ask, box, node, parsed, place, pod

from weft.dialects.registry import read_placement, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest

GPU = "nvidia.com/gpu"


def genius(*containers, settings=SANE, scheduler="", **labels):
    names = {f"genius/{k.replace('_', '-')}": str(v) for k, v in labels.items()}
    return parsed(*containers, labels=names, settings=settings, scheduler=scheduler)


def mib(value):
    return GpuMemoryRequest("mib", value)


@pytest.mark.parametrize(
    ("labels", "gpu_requests"),
    [
        ({"gpu_number": 2}, (whole_cards(2),)),
        ({"gpu_number": 2, "gpu_memory_each": 100}, (GpuRequest(2, mib(100), headroom_mib=1),)),
        ({"gpu_memory_each": 100}, (GpuRequest(1, mib(100), headroom_mib=1),)),
        ({"gpu_memory_total": 900}, (GpuRequest(1, mib(900), split=True),)),
        ({"gpu_number": 3, "gpu_memory_total": 900}, (GpuRequest(3, mib(900), split=True),)),
        (
            {"gpu_number": 2, "gpu_memory_each": 100, "gpu_memory_total": 900},
            (GpuRequest(2, mib(100), headroom_mib=1), GpuRequest(1, mib(700), split=True)),
        ),
        (
            {"gpu_number": 2, "gpu_memory_each": 500, "gpu_memory_total": 900},
            (GpuRequest(2, mib(500), headroom_mib=1),),
        ),
    ],
)
def test_what_the_labels_charge(labels, gpu_requests):
    request = genius(**labels)
    assert request.dialect == "genius"
    assert request.shape.gpu_requests == gpu_requests
    assert request.shared_by_containers
    assert not request.shape.needs_gpu_node


@pytest.mark.parametrize(
    ("labels", "gpu_requests"),
    [
        ({"gpu_number": 2}, (GpuRequest(2),)),
        ({"gpu_number": 2, "gpu_memory_each": 100}, (GpuRequest(2, headroom_mib=101),)),
        ({"gpu_memory_each": 100}, ()),
        ({"gpu_memory_total": 900}, (GpuRequest(1, mib(900), split=True),)),
        ({}, ()),
    ],
)
def test_exact_filters_and_charges_nothing_but_totals(labels, gpu_requests):
    request = genius(settings=EXACT, scheduler="genius-scheduler", **labels)
    assert request.shape.gpu_requests == gpu_requests
    assert request.shape.needs_gpu_node == (not gpu_requests)


def test_without_asking_any_gpu_node_at_no_charge():
    request = genius(box("a"), scheduler="genius-scheduler")
    assert request.dialect == "genius"
    assert request.shape.gpu_requests == ()
    assert request.shape.needs_gpu_node
    assert request.containers[0].asked is None
    assert "charged nothing" in request.warnings[0]
    on = node(8)
    empty = place(request, on)
    assert write(request, empty, on, 0).annotations == {}
    assert read_placement(pod(box("a"), scheduler="genius-scheduler"), on, SANE) == empty


def test_the_model_is_a_pattern_where_dots_stand_for_spaces():
    request = genius(gpu_number=1, gpu_model="1070.Ti")
    assert request.shape.devices.accepts_model("NVIDIA GeForce GTX 1070 Ti")
    assert not request.shape.devices.accepts_model("NVIDIA GeForce GTX 1070")
    for label in ("GeForce_GTX_1070_Ti", "GeForce-GTX-1070-Ti"):
        rule = genius(gpu_model=label).shape.devices
        assert rule.accepts_model("NVIDIA GeForce GTX 1070 Ti")
        assert rule.accepts_model("NVIDIA-GeForce-GTX-1070-Ti")
    only = genius(gpu_model="1070")
    assert only.shape.needs_gpu_node
    assert only.warnings == ()


@pytest.mark.parametrize("pattern", ["*A", "[", "(?P<"])
def test_a_pattern_that_is_none_is_an_error(pattern):
    with pytest.raises(BadInputError, match="not a regular expression") as caught:
        genius(gpu_model=pattern)
    assert caught.value.where == "metadata.labels[genius/gpu-model]"
    assert repr(pattern) in str(caught.value)


def test_unreadable_numbers_count_as_zero_and_are_named():
    request = genius(gpu_number="two", gpu_memory_each="-5", priority="x")
    assert request.shape.gpu_requests == ()
    assert request.queue_priority == 0
    assert sum("counts as 0" in w for w in request.warnings) == 3


def test_the_queue_priority_is_geniuss_own():
    assert genius(gpu_number=1, priority=7).queue_priority == 7
    assert genius(gpu_number=1, priority=-2).queue_priority == -2


@pytest.mark.parametrize(
    ("told", "counts"),
    [(2**31, 2**31 - 1), (-(2**31) - 1, -(2**31)), (10**40, 2**31 - 1), (-(10**40), -(2**31))],
)
def test_a_priority_beyond_32_bits_counts_as_the_nearest_and_is_named(told, counts):
    request = genius(gpu_number=1, priority=told)
    assert request.queue_priority == counts
    assert any(f"is beyond 32 bits and counts as {counts}" in note for note in request.warnings)
    request = parsed(ask("aliyun.com/gpu-mem", 1), priority=told)
    assert request.priority == counts
    assert any("spec.priority" in note for note in request.warnings)


def test_priority_alone_asks_for_no_gpu():
    assert genius(priority=7).dialect == "none"
    assert genius(ask("aliyun.com/gpu-mem", 1), priority=7).dialect == "gpushare"


def test_every_container_uses_the_pods_gpus():
    request = genius(box("a"), box("b"), gpu_number=2, gpu_memory_each=5)
    on = node(8, 8, 8)
    marks = write(request, place(request, on, 2, 0), on, 0)
    seen = {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"}
    assert marks.env == {"a": seen, "b": seen}


def test_nvidia_beside_the_labels_merges_to_the_larger():
    one = genius(ask(GPU, 1, "a"), box("b"), gpu_memory_each=500)
    assert one.dialect == "genius"
    assert one.shape.gpu_requests == (whole_cards(1),)
    assert [c.gpu_requests for c in one.containers] == [(0,), ()]
    assert not one.shared_by_containers
    assert genius(ask(GPU, 1), gpu_number=3).shape.gpu_requests == (whole_cards(3),)
    assert genius(ask(GPU, 3), gpu_number=1).shape.gpu_requests == (whole_cards(3),)
    total = genius(ask(GPU, 1), gpu_memory_total=500)
    assert total.shape.gpu_requests == (whole_cards(1),)
    assert "not checked" in total.warnings[0]


def test_gpu_mem_req_is_mib_of_one_gpu():
    request = parsed(box(), labels={"GPU_MEM_REQ": "872"}, scheduler="custom-scheduler")
    assert request.dialect == "kubeknots"
    assert request.shape.gpu_requests == (GpuRequest(memory=mib(872)),)
    assert request.warnings == ()
    assert parsed(box(), labels={"GPU_MEM_REQ": "872"}).dialect == "kubeknots"


@pytest.mark.parametrize("labels", [{}, {"GPU_MEM_REQ": "lots"}, {"GPU_MEM_REQ": "-1"}])
def test_a_missing_or_bad_label_charges_nothing_and_warns(labels):
    request = parsed(box(), labels=labels, scheduler="custom-scheduler")
    assert request.shape.gpu_requests == (GpuRequest(memory=mib(0)),)
    assert "0 MiB" in request.warnings[0]


def test_gpu_mem_req_beside_nvidia_is_whole_cards():
    request = parsed(ask(GPU, 2), labels={"GPU_MEM_REQ": "872"})
    assert request.dialect == "kubeknots"
    assert request.shape.gpu_requests == (whole_cards(2),)

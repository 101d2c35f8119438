"""Requests for more than any node has are refused, also where only the sum is more."""

import contextlib
import sys

import pytest
from manifests import ask, asks, box, parsed

from weft.model import BadInputError
from weft.model.ceilings import (
    MOST_AMOUNT,
    MOST_ASKING,
    MOST_CPU_MILLI,
    MOST_GPU_MIB,
    MOST_GPUS,
    MOST_MEMORY_MIB,
)

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("name", "each", "most"),
    [
        ("cpu", f"{MOST_CPU_MILLI // 1000}", MOST_CPU_MILLI),
        ("memory", f"{MOST_MEMORY_MIB}Mi", MOST_MEMORY_MIB),
        ("rdma/hca", MOST_AMOUNT, MOST_AMOUNT),
        (GPU, MOST_GPUS, MOST_GPUS),
    ],
)
def test_the_sum_of_what_is_accepted_alone_may_be_too_much(name, each, most):
    one = ask(name, each, "a")
    assert parsed(one).shape is not None
    with pytest.raises(BadInputError) as caught:
        parsed(one, *(ask(name, each, f"b{i}") for i in range(200)))
    assert caught.value.where == "spec.containers"
    assert f"{most:,}" in str(caught.value), "the way out"


def test_the_overhead_is_in_the_sum():
    with pytest.raises(BadInputError, match="in all is larger"):
        parsed(ask("cpu", MOST_CPU_MILLI // 1000), overhead={"cpu": "1"})


@pytest.mark.parametrize(
    ("label", "most"),
    [
        ("genius/gpu-number", MOST_GPUS),
        ("genius/gpu-memory-each", MOST_GPU_MIB),
        ("genius/gpu-memory-total", MOST_GPUS * MOST_GPU_MIB),
        ("GPU_MEM_REQ", MOST_GPU_MIB),
    ],
)
def test_labels_are_bounded(label, most):
    assert parsed(labels={label: str(most)}).shape.gpu_requests
    for text in (str(most + 1), "9" * 18, "9" * 60):
        with pytest.raises(BadInputError, match=f"write {most:,} at most") as caught:
            parsed(labels={label: text})
        assert caught.value.where == f"metadata.labels[{label}]"


def test_labels_that_ask_together_for_more_gpus_than_a_node_has():
    labels = {
        "genius/gpu-number": str(MOST_GPUS),
        "genius/gpu-memory-each": "5",
        "genius/gpu-memory-total": "99999",
    }
    with pytest.raises(BadInputError, match="1,025 GPUs in all"):
        parsed(labels=labels)


def test_so_many_containers_may_ask_for_gpus_of_their_own():
    def boxes(count):
        return [asks(f"c{i}", {"elasticgpu.io/gpu-memory": 100 + i}) for i in range(count)]

    assert len(parsed(*boxes(MOST_ASKING)).shape.gpu_requests) == MOST_ASKING
    with pytest.raises(BadInputError, match="257 containers ask for GPUs") as caught:
        parsed(*boxes(MOST_ASKING + 1))
    assert caught.value.where == "spec.containers"


def test_one_card_may_serve_any_number_of_containers():
    many = [ask("aliyun.com/gpu-mem", 10, f"c{i}") for i in range(2_000)]
    request = parsed(box("a"), *many)
    assert [gpu_request.memory.value for gpu_request in request.shape.gpu_requests] == [20_000]


@pytest.mark.parametrize("name", ["example.com/r{}", "cpu", "elasticgpu.io/gpu-memory"])
def test_reading_takes_as_long_as_the_pod_is(name):
    """Thousands of containers, each with a resource that nobody else names, once took a minute."""

    def calls(count):
        boxes = [ask(name.format(i), "1", f"c{i}") for i in range(count)]
        made = 0

        def one_more(_frame, event, _what):
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(one_more)
        with contextlib.suppress(BadInputError):
            parsed(*boxes)
        sys.setprofile(None)
        return made

    assert calls(4_000) < 5 * calls(1_000)

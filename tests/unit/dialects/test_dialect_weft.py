import json

import pytest
from manifests import SANE, ask, asks, box, node, parsed, place, pod
from msgspec.structs import replace

from weft.dialects.registry import read_placement, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest

MEMORY, CORES, COUNT = "weft.dev/gpu-memory", "weft.dev/gpu-cores", "weft.dev/gpu-count"


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        (4096, 4096),
        ("16k", 16000),
        ("4e3", 4000),
        ("8Gi", 8192),
        ("8G", 7630),
        ("500Mi", 500),
        ("1Ki", 1),
    ],
)
def test_memory_is_mib_or_a_size(text, mib):
    assert parsed(ask(MEMORY, text)).shape.gpu_requests == (
        GpuRequest(memory=GpuMemoryRequest("mib", mib)),
    )


@pytest.mark.parametrize("text", [10**6, "2Ti", "1M"])
def test_what_no_card_has_is_refused(text):
    if text == "1M":  # Kubernetes' short form of a million bytes: a little less than one MiB
        assert parsed(ask(MEMORY, text)).shape.gpu_requests[0].memory.value == 1
        return
    with pytest.raises(BadInputError, match="more than any card"):
        parsed(ask(MEMORY, text))


def test_count_cores_and_memory():
    assert parsed(ask(COUNT, 2)).shape.gpu_requests == (whole_cards(2),)
    both = parsed(asks("c", {COUNT: 2, MEMORY: 5, CORES: 30}))
    assert both.shape.gpu_requests == (GpuRequest(2, GpuMemoryRequest("mib", 5), milli=300),)
    assert both.dialect == "weft"
    alone = parsed(ask(CORES, 30))
    assert alone.shape.gpu_requests == (GpuRequest(milli=300),)
    assert "no GPU memory" in alone.warnings[0]


def test_annotations_stand_on_any_systems_pod():
    marks = {
        "weft.dev/gpu-model": "A100, H100",
        "weft.dev/isolation": "mps",
        "weft.dev/application": "resnet",
        "weft.dev/class": "batch",
    }
    for name in (MEMORY, "aliyun.com/gpu-mem", "nvidia.com/gpu"):
        request = parsed(ask(name, 1), annotations=marks)
        assert request.shape.devices.accepts_model("NVIDIA H100 PCIe")
        assert not request.shape.devices.accepts_model("Tesla V100")
        assert request.shape.isolation == "mps"
        assert request.shape.application == "resnet"
        assert request.shape.job_class == "batch"


def test_a_systems_own_device_names_go_first():
    marks = {"weft.dev/gpu-model": "H100", "nvidia.com/use-gputype": "A100"}
    request = parsed(ask("nvidia.com/gpu", 1), annotations=marks)
    assert request.shape.devices.models == ("A100",)
    assert "weft.dev/gpu-model is ignored" in request.warnings[0]


@pytest.mark.parametrize("name", ["class", "isolation"])
def test_unknown_words_are_refused_not_ignored(name):
    with pytest.raises(BadInputError, match="'bacth' is unknown; ") as caught:
        parsed(ask(MEMORY, 1), annotations={f"weft.dev/{name}": "bacth"})
    assert caught.value.where == f"metadata.annotations[weft.dev/{name}]"


def test_the_placement_is_read_back_for_this_pod_on_this_node_only():
    containers = [asks("c", {COUNT: 2, MEMORY: 5}), box("proxy")]
    request = parsed(*containers)
    on = node(8, 8, 8)
    placement = place(request, on, 2, 0)
    marks = write(request, placement, on, 0)
    assert marks.env == {"c": {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"}}

    def read(where=on, **spec):
        return read_placement(pod(*containers, annotations=marks.annotations, **spec), where, SANE)

    assert read() == placement
    assert read(nodeName="n1") == placement
    assert read(nodeName="n2") is None
    assert read(node(8, 8, 8, name="n2")) is None
    assert read(node(8, 8)) is None  # the card is gone
    other = pod(*containers, annotations=marks.annotations)
    copied = replace(other, metadata=replace(other.metadata, uid="another"))
    assert read_placement(copied, on, SANE) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{",
        "[]",
        "{}",
        "1",
        '{"pod":"uid-1","node":"n1"}',
        '{"pod":"uid-1","node":"n1","shares":[[0,0]]}',
        '{"pod":"uid-1","node":"n1","shares":[[0,0,-1,0,""]]}',
        '{"pod":"uid-1","node":"n1","shares":[[5,0,1,0,""]]}',
        '{"pod":"uid-1","node":"n1","shares":[[0,0,1,0,7]]}',
        '{"pod":"uid-1","node":"n1","shares":7}',
    ],
)
def test_a_damaged_placement_is_none(text):
    bound = pod(ask(MEMORY, 5), annotations={"weft.dev/placement": text})
    assert read_placement(bound, node(8), SANE) is None


def test_the_systems_own_marks_stand_in_for_a_damaged_placement():
    bound = pod(
        ask("aliyun.com/gpu-mem", 1),
        annotations={"weft.dev/placement": "{", "ALIYUN_COM_GPU_MEM_IDX": "0"},
    )
    assert read_placement(bound, node(1024), SANE).shares[0].gpu == 0


@pytest.mark.parametrize("text", ["a" * 254, "a" * 200_000, "a\nb", "a\x00", "\u2028", "a\ud800"])
def test_an_application_that_is_no_name_is_ignored_with_a_warning(text):
    request = parsed(ask(MEMORY, 1), annotations={"weft.dev/application": text})
    assert request.shape.application == ""
    (warning,) = request.warnings
    assert warning.startswith("annotation weft.dev/application is ignored: ")
    assert warning.isprintable()
    assert len(warning) < 200


def test_an_application_has_the_length_of_a_name():
    request = parsed(ask(MEMORY, 1), annotations={"weft.dev/application": "ä" * 253})
    assert (request.shape.application, request.warnings) == ("ä" * 253, ())


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("weft.dev/gpu-model", MEMORY),
        ("nvidia.com/use-gputype", "nvidia.com/gpumem"),
        ("nvidia.com/nouse-gputype", "nvidia.com/gpumem"),
        ("nvidia.com/use-gpuuuid", "nvidia.com/gpumem"),
        ("nvidia.com/nouse-gpuuuid", "nvidia.com/gpumem"),
    ],
)
def test_a_list_without_end_is_refused_for_it_cannot_be_ignored(name, asked):
    parsed(ask(asked, 1), annotations={name: "x," * 8192})
    with pytest.raises(BadInputError, match="has 16,385 characters") as caught:
        parsed(ask(asked, 1), annotations={name: "x," * 8192 + "y"})
    assert caught.value.where == f"metadata.annotations[{name}]"


@pytest.mark.parametrize("name", ["class", "isolation"])
def test_an_unknown_word_is_told_in_part(name):
    with pytest.raises(BadInputError, match="is unknown; write") as caught:
        parsed(ask(MEMORY, 1), annotations={f"weft.dev/{name}": "b" * 200_000})
    assert len(str(caught.value)) < 300


def test_a_placement_says_no_more_than_a_pod_can_hold():
    rows = [[0, 0, 1, 0, ""], [0, 1, 1, 0, "G" * 253]]

    def read(shares):
        text = json.dumps({"pod": "uid-1", "node": "n1", "shares": shares})
        asked = asks("c", {COUNT: 2, MEMORY: 1})
        return read_placement(
            pod(asked, annotations={"weft.dev/placement": text}), node(8, 8), SANE
        )

    assert len(read(rows).shares) == 2
    assert read([[0, 0, 1, 0, "G" * 254]]) is None
    assert read(rows + rows[:1]) is None

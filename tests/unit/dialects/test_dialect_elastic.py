import pytest
from manifests import EXACT, ask, asks, box, node, parsed, place, pod

from weft.dialects.dialect import DialectSettings
from weft.dialects.elastic import CORE, MEMORY_MIB
from weft.dialects.registry import read_placement, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest

IO = "elasticgpu.io/gpu-"


@pytest.mark.parametrize("name", CORE)
def test_every_spelling_of_cores_is_percent_of_a_card(name):
    request = parsed(ask(name, "20"))
    assert request.dialect == "elastic"
    assert request.shape.gpu_requests == (GpuRequest(milli=200),)
    assert request.warnings == ()


@pytest.mark.parametrize(("name", "mib"), MEMORY_MIB.items())
def test_every_spelling_of_memory_has_its_unit(name, mib):
    assert parsed(ask(name, 3)).shape.gpu_requests[0].memory == GpuMemoryRequest("mib", 3 * mib)


def test_two_spellings_in_one_container_count_once():
    request = parsed(asks("c", {IO + "memory": 256, "elasticgpu.com/gpu-memory": 300}))
    assert request.shape.gpu_requests == (GpuRequest(memory=GpuMemoryRequest("mib", 300)),)
    assert "larger" in request.warnings[0]


def test_a_hundred_percent_and_more_are_whole_cards_with_warnings():
    request = parsed(asks("c", {IO + "core": 250, IO + "memory": 256}))
    assert request.shape.gpu_requests == (whole_cards(2),)
    assert len(request.warnings) == 2
    assert "256" in request.warnings[0]
    assert "50 of 250" in request.warnings[1]


def test_each_container_has_its_own_gpu_and_a_sidecar_without_gpu_none():
    request = parsed(box("proxy"), ask(IO + "memory", 5, "a"), ask(IO + "core", 100, "b"))
    assert [c.gpu_requests for c in request.containers] == [(), (0,), (1,)]
    assert request.containers[0].asked is None
    assert not request.shared_by_containers


def test_exact_places_the_container_without_a_gpu_and_ignores_init_containers():
    request = parsed(
        box("proxy"), ask(IO + "core", 100, "a"), init=[ask(IO + "core", 50, "i")], settings=EXACT
    )
    assert request.shape.gpu_requests == (GpuRequest(), whole_cards(1))
    assert request.containers[0].asked is None  # the init container


def test_marks_are_the_originals_and_read_back_without_wefts():
    request = parsed(ask(IO + "core", 200, "a"), ask(IO + "memory", 7, "b"), box("proxy"))
    on = node(16160, 16160, 16160)
    placement = place(request, on, 0, 2, 1)
    marks = write(request, placement, on, 5)
    assert marks.labels == {"elasticgpu.io/assumed": "true"}
    assert marks.annotations["elasticgpu.io/assumed"] == "true"
    assert marks.annotations["elasticgpu.io/container-a"] == "0,2"
    assert marks.annotations["elasticgpu.io/container-b"] == "1"
    assert "elasticgpu.io/container-proxy" not in marks.annotations
    assert marks.env["a"]["NVIDIA_VISIBLE_DEVICES"] == "0,2"
    assert len(marks.env["b"]["GPU"]) == 8
    assert "proxy" not in marks.env
    theirs = {k: v for k, v in marks.annotations.items() if k.startswith("elasticgpu")}
    bound = pod(
        ask(IO + "core", 200, "a"), ask(IO + "memory", 7, "b"), box("proxy"), annotations=theirs
    )
    assert read_placement(bound, on, DialectSettings()) == placement


def test_nano_gpu_marks_are_read_too():
    bound = pod(
        ask("nano-gpu/gpu-percent", 20, "a"),
        labels={"nano-gpu/assume": "true"},
        annotations={"nano-gpu/container-a": "1"},
    )
    placement = read_placement(bound, node(8, 8), DialectSettings())
    assert [(s.gpu, s.milli) for s in placement.shares] == [(1, 200)]


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {"elasticgpu.io/container-a": "1"},  # not assumed
        {"elasticgpu.io/assumed": "true"},
        {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-a": "7"},
        {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-a": "x"},
        {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-a": "-1"},
    ],
)
def test_marks_that_name_no_gpu_of_the_node_are_no_placement(marks):
    bound = pod(ask(IO + "core", 20, "a"), annotations=marks)
    assert read_placement(bound, node(8, 8), DialectSettings()) is None


def test_a_size_in_bytes_is_refused_with_its_place():
    with pytest.raises(BadInputError, match="not bytes; write how many") as caught:
        parsed(ask(IO + "memory", "256Mi"))
    assert caught.value.where == "spec.containers[0].resources.limits[elasticgpu.io/gpu-memory]"


def test_claims_nobody_implements_are_named():
    request = parsed(ask(IO + "core", 20), annotations={"egpuc.elasticgpu.io/x": "gpu_request"})
    assert "egpuc.elasticgpu.io/x" in request.warnings[0]

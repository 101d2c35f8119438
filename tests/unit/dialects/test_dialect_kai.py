import pytest
from manifests import SANE, ask, box, node, parsed, place, pod
from msgspec.structs import replace

from weft.dialects.kai import card_names
from weft.dialects.registry import read_bound, read_placement, read_pod, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, Node, PodManifest
from weft.testing import node as any_node

GPU = "nvidia.com/gpu"
ON = node(16_160, 16_160, 16_160)


def kai(labels=None, annotations=None, scheduler="kai-scheduler", containers=None, **spec):
    return pod(
        *(containers or ()), labels=labels, annotations=annotations, scheduler=scheduler, **spec
    )


def asking(**annotations):
    return {name.replace("_", "-"): text for name, text in annotations.items()}


def fraction(text):
    return GpuRequest(memory=GpuMemoryRequest("millionths", text))


def reservation(group="g", uuid="GPU-1", name="r", **labels) -> PodManifest:
    made = kai(
        {"runai-gpu-group": group, **labels} if group else labels,
        {"run.ai/reserve_for_gpu_index": uuid} if uuid else {},
        containers=[ask(GPU, 1)],
        nodeName="n1",
    )
    meta = replace(made.metadata, name=name, uid=name, namespace="kai-resource-reservation")
    return replace(made, metadata=meta)


def named(on: Node, *pods: PodManifest) -> Node:
    return replace(on, called=card_names(pods))


@pytest.mark.parametrize(
    ("annotations", "gpu_request"),
    [
        (asking(gpu_fraction="0.5"), fraction(500_000)),
        (asking(gpu_fraction=".25"), fraction(250_000)),
        (asking(gpu_fraction="5e-1"), fraction(500_000)),
        (asking(gpu_fraction="0.3333333"), fraction(333_334)),
        (asking(gpu_memory="2000"), GpuRequest(memory=GpuMemoryRequest("mib", 2000))),
        (
            asking(gpu_fraction="0.5", gpu_fraction_num_devices="2"),
            replace(fraction(500_000), count=2),
        ),
        (
            asking(gpu_memory="300", gpu_fraction_num_devices="2"),
            GpuRequest(2, GpuMemoryRequest("mib", 300)),
        ),
    ],
)
def test_annotations_ask_for_a_part_of_each_card_and_no_cores(annotations, gpu_request):
    for scheduler in ("kai-scheduler", "weft"):
        request = parsed(annotations=annotations, scheduler=scheduler)
        assert request.dialect == "kai"
        assert request.shape.gpu_requests == (gpu_request,)


def test_a_fraction_is_of_the_cards_memory():
    request = parsed(annotations=asking(gpu_fraction="0.3"), scheduler="weft")
    assert request.shape.gpu_requests[0].memory.mib_on(16_160) == 4_848


@pytest.mark.parametrize(
    "text", ["0", "1", "1.0", "-0.5", "nan", "0x1p-2", "half", "1e99", "0.5 GiB"]
)
def test_what_is_no_part_of_a_card_is_refused(text):
    with pytest.raises(BadInputError, match="gpu-fraction"):
        parsed(annotations=asking(gpu_fraction=text), scheduler="weft")


@pytest.mark.parametrize(
    ("annotations", "field"),
    [
        (asking(gpu_fraction="0.5", gpu_memory="100"), "gpu-memory"),
        (asking(gpu_memory="0"), "gpu-memory"),
        (asking(gpu_memory="10Gi"), "gpu-memory"),
        (asking(gpu_memory="1" * 5000), "gpu-memory"),
        (asking(gpu_fraction="0.5", gpu_fraction_num_devices="0"), "num-devices"),
        (asking(gpu_fraction="0.5", gpu_fraction_container_name="z"), "container-name"),
        (asking(gpu_memory="100", mps="true"), "mps"),
    ],
)
def test_other_mistakes_name_the_annotation(annotations, field):
    with pytest.raises(BadInputError, match=field):
        parsed(annotations=annotations, scheduler="weft")


def test_the_first_container_has_it_or_the_one_that_is_named():
    half = asking(gpu_fraction="0.5")
    both = [box("a"), box("b")]
    first = parsed(*both, init=[box("i")], annotations=half, scheduler="weft")
    assert [c.name for c in first.containers if c.asked] == ["a"]
    other = half | asking(gpu_fraction_container_name="i")
    chosen = parsed(*both, init=[box("i")], annotations=other, scheduler="weft")
    assert [c.name for c in chosen.containers if c.asked] == ["i"]


def test_mps_is_an_isolation():
    by_mps = asking(gpu_fraction="0.5", mps="true")
    assert parsed(annotations=by_mps, scheduler="weft").shape.isolation == "mps"
    said = by_mps | {"weft.dev/isolation": "none"}
    assert parsed(annotations=said, scheduler="weft").shape.isolation == "none"


def test_only_an_agent_that_delivers_by_name_serves_it():
    shape = parsed(annotations=asking(gpu_fraction="0.5"), scheduler="weft").shape
    assert any_node("a", gpus=1).lacks(shape.resources) == ()
    assert replace(any_node("a", gpus=1), delivers=(GPU,)).lacks(shape.resources)


def test_anybodys_annotation_is_kais_only_where_kai_or_weft_is_meant():
    half = asking(gpu_fraction="0.5")
    assert parsed(annotations=half).dialect == "none"
    assert parsed(annotations=half, scheduler="default-scheduler").dialect == "none"
    assert parsed(annotations=half, labels={"kai.scheduler/queue": "ml"}).dialect == "kai"
    assert parsed(annotations=half, labels={"runai-gpu-group": "g"}).dialect == "kai"


def test_beside_other_words_the_annotations_are_ignored():
    half = asking(gpu_fraction="0.5")
    request = parsed(ask(GPU, 1), annotations=half, scheduler="kai-scheduler")
    assert request.dialect == "nvidia"
    assert request.shape.gpu_requests == (whole_cards(1),)
    assert ["ignored" in note for note in request.warnings] == [True]
    plain = parsed(ask(GPU, 2), scheduler="kai-scheduler")
    assert (plain.dialect, plain.warnings) == ("nvidia", ())


def test_a_pod_of_kais_words_does_not_wait():
    reading = read_pod(kai(annotations=asking(gpu_memory="100"), scheduler="weft"), SANE)
    assert reading.foreign == ()


def test_weft_writes_none_of_kais_marks_and_delivers_what_its_config_map_does():
    request = parsed(annotations=asking(gpu_fraction="0.25"), scheduler="weft")
    marks = write(request, place(request, ON, 1), ON, 0)
    assert list(marks.annotations) == ["weft.dev/placement"]
    assert marks.labels == {}
    assert marks.env == {"c": {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "GPU_PORTION": "0.25"}}


@pytest.mark.parametrize(
    "labels", [{"runai-gpu-group": "g"}, {"runai-gpu-group/g": "g"}], ids=["one", "several"]
)
def test_a_bound_pod_holds_its_part_of_the_reserved_card(labels):
    half = kai(labels, asking(gpu_fraction="0.5"), nodeName="n1")
    placement = read_placement(half, named(ON, reservation(), half), SANE)
    assert [(s.gpu, s.memory_mib, s.milli) for s in placement.shares] == [(1, 8_080, 0)]


def test_several_cards_have_a_group_each():
    two = asking(gpu_memory="500", gpu_fraction_num_devices="2")
    both = kai({"runai-gpu-group/g": "g", "runai-gpu-group/h": "h"}, two, nodeName="n1")
    on = named(ON, reservation("g", "GPU-2"), reservation("h", "GPU-0", "s"), both)
    placement = read_placement(both, on, SANE)
    assert [(s.gpu, s.memory_mib) for s in placement.shares] == [(0, 500), (2, 500)]


@pytest.mark.parametrize(
    "on",
    [
        ON,
        named(ON, reservation("other")),
        named(ON, reservation(uuid="")),
        named(ON, reservation(uuid="GPU-9")),
        named(ON, reservation(uuid="1")),  # the name says index, the value never is one
        named(ON, reservation(""), reservation("")),
        replace(node(16_160, uuids=False), called=card_names([reservation()])),
    ],
    ids=["none", "other", "empty", "unknown", "index", "no group", "no UUIDs"],
)
def test_where_nobody_says_which_a_bound_pod_has_a_whole_card(on):
    half = kai({"runai-gpu-group": "g"}, asking(gpu_fraction="0.5"), nodeName="n1")
    request, placement = read_bound(half, on, SANE)
    assert placement is None
    assert request.shape.gpu_requests == (whole_cards(1),)


def test_a_reservation_is_no_card_while_somebody_shares_it():
    half = kai({"runai-gpu-group": "g"}, asking(gpu_fraction="0.5"), nodeName="n1")
    keeper = reservation()
    request, placement = read_bound(keeper, named(ON, keeper, half), SANE)
    assert request.dialect == "kai"
    assert placement.shares == ()
    _, alone = read_bound(keeper, named(ON, keeper), SANE)
    assert [(s.gpu, s.memory_mib, s.milli) for s in alone.shares] == [(1, 16_160, 1000)]


def test_elsewhere_nobody_can_say_that_a_pod_is_a_reservation():
    forged = replace(reservation(), metadata=replace(reservation().metadata, namespace="ml"))
    assert read_bound(forged, named(ON, forged), SANE)[0].dialect == "nvidia"
    assert card_names([forged]).cards == {}

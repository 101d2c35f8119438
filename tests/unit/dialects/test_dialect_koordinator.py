import json

import msgspec
import pytest
from manifests import SANE, ask, asks, box, node, parsed, place, pod
from msgspec.structs import replace

from weft.dialects.koordinator import KoordinatorDevice, minor_names, reported_by
from weft.dialects.registry import dialect, parse_pod, read_placement, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest
from weft.model.node import CardNames
from weft.model.request import WHOLE_CARD

GPU, SHARE = "nvidia.com/gpu", "koordinator.sh/gpu"
CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
RATIO, SHARED = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
GIB = 2**30


def device(*gpus, **more):
    devices = [{"type": "rdma", "minor": 0, "id": "nic", "health": True}]
    for minor, uuid in gpus:
        amounts = {CORE: "100", MEMORY: "16160Mi", RATIO: "100"}
        devices.append(
            {
                "type": "gpu",
                "minor": minor,
                "id": uuid,
                "health": True,
                "resources": amounts,
                **more,
            }
        )
    return msgspec.convert(
        {"metadata": {"name": "n1"}, "spec": {"devices": devices}}, KoordinatorDevice
    )


# The minor numbers run against NVML's indexes.
DEVICE = device((0, "GPU-2"), (1, "GPU-1"), (2, "GPU-0"))
ON = replace(node(16_160, 16_160, 16_160), called=CardNames(minor_names(DEVICE)))


def parts(millionths, milli, count=1):
    return GpuRequest(count, GpuMemoryRequest("millionths", millionths), milli)


@pytest.mark.parametrize(
    ("limits", "gpu_request"),
    [
        ({SHARE: 50}, parts(500_000, 500)),
        ({SHARE: 100}, whole_cards(1)),
        ({SHARE: 200}, whole_cards(2)),
        ({CORE: 30, RATIO: 40}, parts(400_000, 300)),
        ({CORE: 30, RATIO: 100}, GpuRequest(1, WHOLE_CARD, 300)),
        ({CORE: 200, RATIO: 200}, whole_cards(2)),
        ({CORE: 30, MEMORY: "8Gi"}, GpuRequest(1, GpuMemoryRequest("mib", 8192), 300)),
        ({MEMORY: 8 * GIB + 1}, GpuRequest(1, GpuMemoryRequest("mib", 8193))),
        ({SHARED: 2, CORE: 50, RATIO: 50}, parts(250_000, 250, 2)),
        ({SHARED: 2, CORE: 50, MEMORY: "8Gi"}, GpuRequest(2, GpuMemoryRequest("mib", 4096), 250)),
        ({SHARED: 3, SHARE: 100}, parts(333_333, 333, 3)),
        ({SHARED: 2, MEMORY: "3Mi"}, GpuRequest(2, GpuMemoryRequest("mib", 2))),
    ],
)
def test_amounts_are_the_pods_and_of_each_card(limits, gpu_request):
    for scheduler in ("koord-scheduler", "weft"):
        request = parsed(asks("c", limits), scheduler=scheduler)
        assert request.dialect == "koordinator"
        assert request.shape.gpu_requests == (gpu_request,)


def test_plain_gpus_are_its_own_under_its_scheduler_name():
    request = parsed(ask(GPU, 2), scheduler="koord-scheduler")
    assert (request.dialect, request.shape.gpu_requests) == ("koordinator", (whole_cards(2),))
    assert request.shape.resources == (GPU,)


@pytest.mark.parametrize(
    "limits",
    [
        {CORE: 50},
        {RATIO: 50},
        {SHARED: 2},
        {SHARE: 50, CORE: 50, RATIO: 50},
        {CORE: 50, MEMORY: "1Gi", RATIO: 50},
        {SHARE: 150},
        {CORE: 150, RATIO: 150},
        {CORE: 150, MEMORY: "8Gi"},
        {SHARED: 2, CORE: 201, RATIO: 100},
        {SHARE: 50, GPU: 1},
    ],
)
def test_other_combinations_are_invalid(limits):
    with pytest.raises(BadInputError):
        parsed(asks("c", limits), scheduler="koord-scheduler")


def test_containers_ask_together_and_see_the_same_cards():
    request = parsed(asks("a", {CORE: 20, RATIO: 10}), asks("b", {CORE: 10, RATIO: 20}), box("c"))
    assert request.shape.gpu_requests == (parts(300_000, 300),)
    marks = write(request, place(request, ON, 1), ON, 0)
    assert {
        name: env["NVIDIA_VISIBLE_DEVICES"] for name, env in marks.env.items()
    } == dict.fromkeys("abc", "GPU-1")


def test_isolation_by_hami_core_is_a_label():
    labels = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    assert parsed(ask(SHARE, 50), labels=labels).shape.isolation == "hook"


def test_cards_are_written_by_minor_number_and_read_back():
    request = parsed(asks("c", {SHARED: 2, CORE: 50, MEMORY: "8Gi"}))
    placement = place(request, ON, 0, 1)
    marks = write(request, placement, ON, 0).annotations
    amounts = {CORE: "25", MEMORY: "4096Mi", RATIO: "25"}
    assert json.loads(marks[ALLOCATED]) == {
        "gpu": [{"minor": 2, "resources": amounts}, {"minor": 1, "resources": amounts}]
    }
    assert held(marks[ALLOCATED], SHARED, 2, CORE, 50, MEMORY, "8Gi") == [
        (0, 4096, 250),
        (1, 4096, 250),
    ]
    assert (
        ALLOCATED not in write(request, placement, replace(ON, called=CardNames()), 0).annotations
    )


def bound(text, *pairs):
    limits = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return pod(asks("c", limits), annotations={ALLOCATED: text}, nodeName="n1")


def held(text, *pairs, on=ON):
    placement = read_placement(bound(text, *pairs), on, SANE)
    return placement and [(s.gpu, s.memory_mib, s.milli) for s in placement.shares]


def given(*entries):
    return json.dumps({"gpu": [{"minor": m, "resources": r} for m, r in entries]})


def test_the_minor_number_is_joined_with_the_devices_uuid():
    assert held(given((0, {CORE: "50", MEMORY: "8Gi", RATIO: "50"})), SHARE, 50) == [
        (2, 8_192, 500)
    ]
    assert held(given((0, {CORE: "100", RATIO: "100"})), SHARE, 100) == [(2, 16_160, 1000)]
    assert held('{"gpu": [{"resources": {"koordinator.sh/gpu-memory": "1Gi"}}]}', MEMORY, GIB) == [
        (2, 1024, 0)
    ]
    assert held(given((1, {RATIO: "50", CORE: "50"})), SHARE, 50) == [(1, 8_080, 500)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (given((7, {})), "minor 7"),
        (given(), "asks for 1"),
        (given((0, {}), (1, {})), "asks for 1"),
        ("[]", "not as Koordinator"),
        ("{" * 100_000, "not as Koordinator"),
        ('{"gpu": [{"minor": "0"}]}', "not as Koordinator"),
        ('{"gpu": [7]}', "not as Koordinator"),
        ('{"gpu": 7}', "not as Koordinator"),
        ('{"gpu": [{"minor": 0, "resources": [1]}]}', "not as Koordinator"),
        ('{"gpu": [{"minor": 0, "resources": "all"}]}', "not as Koordinator"),
    ],
)
def test_marks_that_say_no_card_are_named(text, told):
    assert held(text, SHARE, 50) is None
    assert told in wrong(text, SHARE, 50)


def test_without_the_device_object_no_card_is_known():
    text = given((0, {CORE: "50", RATIO: "50"}))
    assert held(text, SHARE, 50, on=node(16_160)) is None
    assert "Device object is not known" in wrong(text, SHARE, 50, on=node(16_160))


@pytest.mark.parametrize(
    ("resources", "share"),
    [
        ({CORE: "50", MEMORY: "1Gi", RATIO: "50"}, (2, 8_080, 500)),
        ({CORE: "50", MEMORY: "12Gi", RATIO: "50"}, (2, 12_288, 500)),
        ({CORE: "10", MEMORY: "1Gi", RATIO: "6"}, (2, 8_080, 500)),
        ({CORE: "fifty", MEMORY: "8Gi"}, (2, 8_192, 500)),
    ],
)
def test_of_amounts_that_contradict_the_larger_counts_and_they_are_named(resources, share):
    text = given((0, resources))
    assert held(text, SHARE, 50) == [share]
    assert ALLOCATED in wrong(text, SHARE, 50)


def wrong(text, *pairs, on=ON):
    one = bound(text, *pairs)
    return dialect("koordinator").wrong_marks(one, parse_pod(one, SANE), on).text


def test_the_device_object_says_which_gpus_there_are():
    source = reported_by(DEVICE)
    assert [(g.index, g.uuid, g.memory_mib, g.in_service) for g in source.exact] == [
        (0, "GPU-2", 16_160, True),
        (1, "GPU-1", 16_160, True),
        (2, "GPU-0", 16_160, True),
    ]
    assert not reported_by(device((0, "GPU-0"), health=False)).exact[0].in_service
    assert reported_by(device((0, "GPU-0"), resources={})) is None
    assert reported_by(None) is None


def test_devices_that_cannot_be_are_left_out():
    odd = device(
        (0, "GPU-0"), (0, "GPU-1"), (1, "GPU-0"), (-1, "GPU-4"), (None, "GPU-5"), (2, "x" * 999)
    )
    assert minor_names(odd) == {"koordinator/0": "GPU-0"}

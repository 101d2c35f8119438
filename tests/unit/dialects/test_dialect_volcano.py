import pytest
from manifests import ask, asks, box, node, parsed, place, pod

from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import dialect, read_placement, read_pod, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, NodeManifest, ObjectMeta
from weft.model.request import WHOLE_CARD

NUMBER, MEM = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
SHARE, CORES = "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
OLD_MEM, OLD_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
IDS, OLD_INDEX = "volcano.sh/vgpu-ids-new", "volcano.sh/gpu-index"
ON = node(16_160, 16_160, 16_160)
PLAIN = DialectSettings(gpushare_unit="GiB")
BY_TEN = DialectSettings(volcano_memory_factor=10)


@pytest.mark.parametrize(
    ("limits", "gpu_request"),
    [
        ({NUMBER: 2}, GpuRequest(2, WHOLE_CARD)),
        ({NUMBER: 1, MEM: 3000}, GpuRequest(1, GpuMemoryRequest("mib", 3000))),
        ({MEM: 3000}, GpuRequest(1, GpuMemoryRequest("mib", 3000))),
        ({NUMBER: 1, SHARE: 33}, GpuRequest(1, GpuMemoryRequest("percent", 33))),
        ({NUMBER: 2, CORES: 50}, GpuRequest(2, WHOLE_CARD, milli=500)),
        ({NUMBER: 1, MEM: 5, SHARE: 9}, GpuRequest(1, GpuMemoryRequest("mib", 5))),
    ],
)
def test_memory_and_cores_are_of_each_card(limits, gpu_request):
    for scheduler in ("volcano", "weft"):
        request = parsed(asks("c", limits), scheduler=scheduler)
        assert request.dialect == "volcano"
        assert request.shape.gpu_requests == (gpu_request,)


def test_memory_is_in_the_plugins_units():
    request = parsed(asks("c", {NUMBER: 1, MEM: 300}), settings=BY_TEN)
    assert request.shape.gpu_requests[0].memory == GpuMemoryRequest("mib", 3000)


def test_init_containers_are_not_read():
    request = parsed(
        ask(NUMBER, 1, "a"), init=[ask(NUMBER, 2, "i"), ask(MEM, 9, "s", sidecar=True)]
    )
    assert request.shape.gpu_requests == (GpuRequest(1, WHOLE_CARD),)
    assert sum("gives init containers no GPU" in note for note in request.warnings) == 2


@pytest.mark.parametrize("name", [SHARE, CORES])
def test_more_than_all_of_a_card_is_refused(name):
    with pytest.raises(BadInputError, match="more than 100 percent"):
        parsed(asks("c", {NUMBER: 1, name: 101}))


def test_cards_are_chosen_by_type_and_uuid():
    annotations = {
        "nvidia.com/use-gputype": "a100, V100",
        "nvidia.com/nouse-gputype": "t4",
        "volcano.sh/vgpu-use-gpuuuid": "GPU-1,GPU-2",
        "volcano.sh/vgpu-nouse-gpuuuid": "GPU-2",
    }
    rule = parsed(ask(NUMBER, 1), annotations=annotations).shape.devices
    assert [rule.accepts_model(name) for name in ("NVIDIA A100-SXM4", "Tesla T4")] == [True, False]
    assert [rule.accepts_uuid(f"GPU-{index}") for index in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    ("mode", "isolation"), [("hami-core", "hook"), ("mig", "mig"), ("mps", "mps")]
)
def test_the_mode_is_an_isolation(mode, isolation):
    request = parsed(ask(NUMBER, 1), annotations={"volcano.sh/vgpu-mode": mode})
    assert request.shape.isolation == isolation
    with pytest.raises(BadInputError, match="vgpu-mode"):
        parsed(ask(NUMBER, 1), annotations={"volcano.sh/vgpu-mode": "time"})


def test_a_pod_groups_policy_waits_with_its_reason():
    spread = pod(ask(NUMBER, 1), annotations={"volcano.sh/vgpu-podgroup-policy": "spread"})
    (found,) = read_pod(spread, PLAIN).foreign
    assert found.waits
    assert "volcano.sh/vgpu-podgroup-policy ('spread') is not honoured by Weft" in found.text


def test_the_older_mode_is_mib_of_one_card_or_whole_cards():
    memory = parsed(ask(OLD_MEM, 1000, "a"), ask(OLD_MEM, 500, "b"))
    assert memory.shape.gpu_requests == (GpuRequest(memory=GpuMemoryRequest("mib", 1500)),)
    whole = parsed(ask(OLD_NUMBER, 2))
    assert whole.shape.gpu_requests == (whole_cards(2),)
    for limits in ({OLD_MEM: 1, OLD_NUMBER: 1}, {OLD_MEM: 1, NUMBER: 1}):
        with pytest.raises(BadInputError, match="keep one"):
            parsed(asks("c", limits))


def test_marks_are_volcanos_and_limits_for_its_library():
    request = parsed(asks("a", {NUMBER: 2, MEM: 3000, CORES: 30}), box("b"), ask(NUMBER, 1, "c"))
    marks = write(request, place(request, ON, 0, 2, 1), ON, 5_000_000_000)
    text = "GPU-0,NVIDIA,3000,30:GPU-2,NVIDIA,3000,30:;;GPU-1,NVIDIA,16160,0:"
    assert {k: v for k, v in marks.annotations.items() if k.startswith("volcano.sh/")} == {
        IDS: text,
        "volcano.sh/devices-to-allocate": text,
        "volcano.sh/vgpu-node": "n1",
        "volcano.sh/vgpu-time": "5",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "5",
    }
    assert marks.env["a"] == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    older = parsed(ask(OLD_MEM, 1000))
    assert write(older, place(older, ON, 2), ON, 0).annotations[OLD_INDEX] == "2"


def held(text, *containers, name=IDS, settings=PLAIN):
    bound = pod(*containers, annotations={name: text}, nodeName="n1")
    placement = read_placement(bound, ON, settings)
    return placement and [(s.gpu, s.memory_mib, s.milli) for s in placement.shares]


def test_the_marks_mib_are_exact():
    one = asks("c", {NUMBER: 1, MEM: 300, CORES: 20})
    assert held("GPU-2,NVIDIA,3000,20:", one) == [(2, 3000, 200)]
    assert held("GPU-2,NVIDIA,3000,20:;", one, settings=BY_TEN) == [(2, 3000, 200)]
    assert held("GPU-2,NVIDIA,5332,0:", asks("c", {NUMBER: 1, SHARE: 33})) == [(2, 5332, 0)]
    assert held("GPU-2,NVIDIA,16384,0:", ask(NUMBER, 1)) == [(2, 16_160, 0)]


def test_each_container_has_its_own():
    text = "GPU-1,NVIDIA,100,0:;;GPU-0,NVIDIA,50,0:GPU-2,NVIDIA,50,0:"
    boxes = asks("a", {MEM: 100}), box("b"), asks("c", {NUMBER: 2, MEM: 50})
    assert held(text, *boxes) == [(1, 100, 0), (0, 50, 0), (2, 50, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "GPU-1,NVIDIA,100,0:;GPU-1,NVIDIA,100,0:",  # of two containers
        "GPU-9,NVIDIA,100,0:",
        "GPU-1,NVIDIA,100,0:GPU-2,NVIDIA,100,0:",
        "GPU-1,NVIDIA,100,0,{}:",
        '{"NVIDIA":[[{"uuid":"GPU-1","usedmem":100}]]}',  # HAMi's newer forms
        "GPU-1,NVIDIA,-100,0:",
        "GPU-1,NVIDIA,1e3,0:",
        ":" * 100_000,
    ],
)
def test_what_volcano_never_writes_is_named_and_says_nothing(text):
    bound = pod(asks("c", {MEM: 100}), annotations={IDS: text}, nodeName="n1")
    assert read_placement(bound, ON, PLAIN) is None
    request = read_pod(bound, PLAIN).request
    assert IDS in dialect("volcano").wrong_marks(bound, request, ON).text


def test_marks_that_say_less_than_is_asked_are_named_and_the_larger_counts():
    asked = asks("c", {NUMBER: 1, MEM: 3000, CORES: 50})
    bound = pod(asked, annotations={IDS: "GPU-1,NVIDIA,300,50:"}, nodeName="n1")
    assert held("GPU-1,NVIDIA,300,50:", asked) == [(1, 3000, 500)]
    wrong = dialect("volcano").wrong_marks(bound, read_pod(bound, PLAIN).request, ON).text
    assert "300 MiB" in wrong
    assert "3,000 MiB" in wrong


def test_the_older_modes_index():
    assert held("2", ask(OLD_MEM, 700), name=OLD_INDEX) == [(2, 700, 0)]
    assert held("0,2", ask(OLD_NUMBER, 2), name=OLD_INDEX) == [(0, 16_160, 1000), (2, 16_160, 1000)]
    for text in ("", "7", "0,1", "0,0", "GPU-0"):
        assert held(text, ask(OLD_MEM, 700), name=OLD_INDEX) is None


def registered(text):
    return inventory(
        NodeManifest(
            metadata=ObjectMeta(name="n", annotations={"volcano.sh/node-vgpu-register": text})
        )
    )


def test_its_nodes_say_which_cards_there_are():
    text = "GPU-b,10,16160,NVIDIA-V100,true,hami-core:GPU-a,10,32510,NVIDIA-A100,false,hami-core:"
    found, warnings = registered(text)
    assert warnings == ()
    assert [(g.index, g.uuid, g.memory_mib, g.model, g.in_service) for g in found.gpus] == [
        (0, "GPU-b", 16_160, "NVIDIA-V100", True),
        (1, "GPU-a", 32_510, "NVIDIA-A100", False),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a,10,x,V,true,m",
        "GPU-a,10,99999999999,V,true",
        "GPU-a,1,5,V,true:GPU-a,1,5,V,true",
        "{}",
    ],
)
def test_a_register_that_cannot_be_is_ignored_with_a_warning(text):
    found, warnings = registered(text)
    assert found.gpus == ()
    assert ["node-vgpu-register" in warning for warning in warnings] == [True]


def test_marks_list_the_main_containers_alone():
    request = parsed(ask(NUMBER, 1, "a"), init=[box("i"), box("s", sidecar=True)])
    marks = write(request, place(request, ON, 1), ON, 0)
    assert marks.annotations[IDS] == "GPU-1,NVIDIA,16160,0:"

import pytest
from manifests import SANE, ask, asks, box, node, parsed, place, pod

from weft.dialects.registry import read_placement, write
from weft.dialects.resources import whole_cards
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest
from weft.model.request import WHOLE_CARD

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
SHARE, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"


def test_plain_gpus_are_nvidias_whole_cards():
    request = parsed(ask(GPU, "2", "a"), box("proxy"))
    assert request.dialect == "nvidia"
    assert request.shape.gpu_requests == (whole_cards(2),)
    assert request.containers[1].asked is None


def test_nvidia_writes_what_each_container_sees_and_reads_only_wefts_mark():
    request = parsed(ask(GPU, 2, "a"), ask(GPU, 1, "b"))
    on = node(8, 8, 8)
    marks = write(request, place(request, on, 0, 2, 1), on, 0)
    assert marks.env == {
        "a": {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"},
        "b": {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
    }
    assert list(marks.annotations) == ["weft.dev/placement"]
    assert read_placement(pod(ask(GPU, 2, "a"), ask(GPU, 1, "b")), on, SANE) is None


@pytest.mark.parametrize(
    ("limits", "gpu_request"),
    [
        ({GPU: 2, MEM: 3000}, GpuRequest(2, GpuMemoryRequest("mib", 3000))),
        ({GPU: 1, SHARE: 50}, GpuRequest(1, GpuMemoryRequest("percent", 50))),
        ({GPU: 1, CORES: 30}, GpuRequest(1, WHOLE_CARD, milli=300)),
        ({GPU: 1, MEM: 3000, CORES: 30}, GpuRequest(1, GpuMemoryRequest("mib", 3000), milli=300)),
        ({MEM: "3k"}, GpuRequest(1, GpuMemoryRequest("mib", 3000))),
        ({GPU: 1, MEM: 3000, SHARE: 50}, GpuRequest(1, GpuMemoryRequest("mib", 3000))),
    ],
)
def test_memory_and_cores_are_per_gpu(limits, gpu_request):
    request = parsed(asks("c", limits))
    assert request.dialect == "hami"
    assert request.shape.gpu_requests == (gpu_request,)


def test_what_hami_leaves_out_or_overrides_is_said():
    assert "counts as 1" in parsed(ask(MEM, 5)).warnings[0]
    assert "is ignored, as" in parsed(asks("c", {GPU: 1, MEM: 3, SHARE: 50})).warnings[0]


@pytest.mark.parametrize("name", [SHARE, CORES])
def test_more_than_all_of_a_card_is_refused(name):
    with pytest.raises(BadInputError, match="more than 100 percent"):
        parsed(asks("c", {GPU: 1, name: 101}))


def test_devices_are_named_by_annotation():
    request = parsed(
        ask(GPU, 1),
        annotations={
            "nvidia.com/use-gputype": "A100, V100",
            "nvidia.com/nouse-gputype": "80GB",
            "nvidia.com/use-gpuuuid": "GPU-1,GPU-2",
            "nvidia.com/nouse-gpuuuid": "GPU-3",
        },
    )
    assert request.dialect == "hami"
    rule = request.shape.devices
    assert rule.accepts_model("nvidia a100-sxm4-40gb")
    assert not rule.accepts_model("NVIDIA A100-SXM4-80GB")
    assert rule.accepts_uuid("GPU-2")
    assert not rule.accepts_uuid("GPU-4")
    assert not rule.accepts_uuid("GPU-3")


def test_hamis_scheduler_or_annotation_makes_plain_gpus_shared_and_nothing_else():
    assert parsed(ask(GPU, 1), scheduler="hami-scheduler").shape.gpu_requests[0] == GpuRequest(
        1, WHOLE_CARD
    )
    assert parsed(box(), scheduler="hami-scheduler").dialect == "none"
    assert parsed(box(), annotations={"nvidia.com/use-gputype": "A100"}).dialect == "none"


def test_marks_list_devices_per_container_with_their_own_limits():
    first, second = asks("a", {GPU: 2, MEM: 3000, CORES: 30}), asks("b", {GPU: 1, SHARE: 50})
    request = parsed(first, box("proxy"), second)
    on = node(8000, 8000, 6000)
    marks = write(request, place(request, on, 0, 1, 2), on, 12 * 10**9 + 5)
    expected = "GPU-0,NVIDIA,3000,30:GPU-1,NVIDIA,3000,30:;;GPU-2,NVIDIA,3000,0:;"
    assert marks.annotations["hami.io/vgpu-devices-allocated"] == expected
    assert marks.annotations["hami.io/vgpu-devices-to-allocate"] == expected
    assert marks.annotations["hami.io/vgpu-node"] == "n1"
    assert marks.annotations["hami.io/vgpu-time"] == "12"
    assert marks.env["a"] == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    assert "CUDA_DEVICE_SM_LIMIT" not in marks.env["b"]
    assert "proxy" not in marks.env


def test_a_container_that_lent_its_claim_keeps_its_own_limit():
    request = parsed(asks("a", {GPU: 1, MEM: 1000}), init=[asks("i", {GPU: 1, MEM: 4000})])
    on = node(8000)
    marks = write(request, place(request, on, 0), on, 0)
    assert request.shape.gpu_requests == (GpuRequest(1, GpuMemoryRequest("mib", 4000)),)
    assert marks.env["a"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert marks.env["i"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        (";GPU-1,NVIDIA,9,0:;", [1]),  # init container listed
        ("GPU-1,NVIDIA,9,0:;", [1]),  # main containers alone
        (";;;GPU-1,NVIDIA,9,0:;", None),
        ("GPU-9,NVIDIA,9,0:;", None),
        (";", None),
        ("", None),
    ],
)
def test_pods_that_hami_placed_are_read_back(devices, gpus):
    marks = {"hami.io/vgpu-devices-allocated": devices}
    bound = pod(asks("a", {GPU: 1, MEM: 9}), init=[box("i")], annotations=marks)
    found = read_placement(bound, node(8000, 8000), SANE)
    assert (None if found is None else [s.gpu for s in found.shares]) == gpus

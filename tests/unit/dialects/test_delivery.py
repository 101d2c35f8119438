"""By which resources the kubelet must hear of each container's share."""

import pytest
from manifests import ask, asks, box, parsed

GPU, GPUMEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"alnair/vgpu-memory": 4}, ("alnair/vgpu-memory",)),
        (
            {"alnair/vgpu-memory": 4, "alnair/vgpu-compute": 20},
            ("alnair/vgpu-compute", "alnair/vgpu-memory"),
        ),
        ({"elasticgpu.com/gpu-memory": 400}, ("elasticgpu.com/gpu-memory",)),
        ({"tke.cloud.tencent.com/qgpu-memory": 4}, ("tke.cloud.tencent.com/qgpu-memory",)),
        ({"weft.dev/gpu-count": 1}, ("weft.dev/gpu-count",)),
        ({MEM: 4, COUNT: 1}, (MEM,)),
        ({GPU: 1}, (GPU,)),
        ({GPU: 1, GPUMEM: 3000, CORES: 30}, (GPU,)),
        ({GPUMEM: 3000}, (GPUMEM,)),
        ({MEM: 0}, ()),
        ({"cpu": 1, "rdma/hca": 1}, ()),
    ],
)
def test_a_pod_s_own_spelling_is_what_its_node_must_know(limits, wanted):
    assert parsed(asks("c", limits)).shape.resources == wanted


def test_every_container_counts():
    request = parsed(
        ask("elasticgpu.io/gpu-core", 20, "a"),
        box("b"),
        init=[ask("elasticgpu.io/gpu-memory", 100, "i")],
    )
    assert request.shape.resources == ("elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory")
    request = parsed(asks("a", {GPU: 1, GPUMEM: 300}), ask(GPUMEM, 300, "b"))
    assert request.shape.resources == (GPU, GPUMEM)  # of b no device plugin would hear


def test_pods_that_ask_by_label_need_nothing_of_the_kubelet():
    genius = {"genius/gpu-number": "1", "genius/gpu-memory-each": "1000"}
    assert parsed(labels=genius).shape.resources == ()
    assert parsed(ask(GPU, 1), labels=genius).shape.resources == (GPU,)
    assert parsed(labels={"GPU_MEM_REQ": "1000"}).shape.resources == ()
    assert parsed(ask(GPU, 1), labels={"GPU_MEM_REQ": "1000"}).shape.resources == (GPU,)

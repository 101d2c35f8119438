"""Records of pods that carry none: from the marks of the systems that placed them."""

import pytest
from manifests import SANE, ask, asks, node, parsed, pod

from weft.dialects.delivery import derived_record, record_of
from weft.dialects.registry import write
from weft.dialects.shares import placement_of
from weft.model import Node, Share
from weft.model.errors import BadInputError

MEM, ALNAIR = "aliyun.com/gpu-mem", "alnair/vgpu-memory"
CARDS = node(16_160, 16_160)


def derived(*containers, on: Node = CARDS, **kind):
    return derived_record(pod(*containers, nodeName="n1", **kind), on, SANE)


@pytest.mark.parametrize(
    ("container", "marks", "visible"),
    [
        (ask(MEM, 5), {"ALIYUN_COM_GPU_MEM_IDX": "1"}, "1"),
        (
            ask(MEM, 5),
            {"scheduler.framework.gpushare.allocation": '{"0": {"1": 5}}'},
            "1",
        ),
        (
            ask("elasticgpu.io/gpu-memory", 3000),
            {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-c": "1"},
            "1",
        ),
        (
            asks("c", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000}),
            {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,2000,0:;"},
            "GPU-1",
        ),
        (ask(ALNAIR, 2), {"ai.centaurus.io/alnair-gpu-id": "GPU-1_3,GPU-1_4"}, "GPU-1"),
    ],
    ids=["gpushare", "gpushare 2.0", "elastic", "hami", "alnair"],
)
def test_the_originals_marks_are_enough(container, marks, visible):
    record = derived(container, annotations=marks)
    assert record is not None
    assert (record.pod, record.node) == ("uid-1", "n1")
    assert [card.gpu for card in record.cards] == [1]
    assert [share.gpu for share in record.containers["c"].shares] == [1]
    assert record.containers["c"].env["NVIDIA_VISIBLE_DEVICES"] == visible


def test_there_is_none_where_nobody_says_which_gpu():
    assert derived(ask(MEM, 5)) is None
    assert derived(ask("nvidia.com/gpu", 1)) is None
    assert derived(ask(MEM, 5), annotations={"ALIYUN_COM_GPU_MEM_IDX": "7"}) is None
    assert derived(ask("cpu", 1), annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"}) is None
    with pytest.raises(BadInputError, match="keep one system"):
        derived(asks("c", {MEM: 5, ALNAIR: 1}))


def test_alnairs_device_plugin_named_its_folders_itself():
    two = ask(ALNAIR, 2, "a"), ask("alnair/vgpu-compute", 20, "b"), ask(ALNAIR, 1, "c")
    marks = {
        "ai.centaurus.io/alnair-gpu-id": "GPU-0_1,GPU-0_2,GPU-1_0",
        "ai.centaurus.io/alnair-id": "abcde,fghij",
    }
    record = derived(*two, annotations=marks)
    ids = {name: container.env["ALNAIR_ID"] for name, container in record.containers.items()}
    assert (ids["a"], ids["c"]) == ("abcde", "fghij")
    # Its units may lie on several cards: then every container sees them all.
    visible = {c.env["NVIDIA_VISIBLE_DEVICES"] for c in record.containers.values()}
    assert visible == {"GPU-0,GPU-1"}
    marks["ai.centaurus.io/alnair-id"] = "abcde"
    ids = derived(*two, annotations=marks).containers["a"].env["ALNAIR_ID"]
    assert ids not in ("abcde", "fghij")


def test_a_node_may_do_without_cgpu():
    marks = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
    assert "CGPU_DISABLE" not in derived(ask(MEM, 5), annotations=marks).containers["c"].env
    labelled = Node("n1", CARDS.gpus, labels={"cgpu.disable.isolation": "true"})
    record = derived(ask(MEM, 5), on=labelled, annotations=marks)
    assert record.containers["c"].env["CGPU_DISABLE"] == "true"


def test_a_pod_that_ran_out_of_memory_is_not_limited_to_what_was_too_little():
    request = parsed(
        asks("c", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000}),
        init=[asks("i", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 2500})],
    )
    placement = placement_of(request, CARDS, [Share(0, 1, 3125, 0, "GPU-1")])
    marks = write(request, placement, CARDS, 1)
    record = record_of(request, placement, CARDS, marks.env)
    (own,), (init,) = record.containers["c"].shares, record.containers["i"].shares
    # 625 MiB more than it ever asked: the container that stays gets all there is.
    assert (own.memory_mib, init.memory_mib) == (3125, 2500)
    assert marks.env["c"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3125m"

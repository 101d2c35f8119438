"""The builders policy authors use say what they mean."""

import pytest

from weft.model import GpuMemoryRequest, GpuRequest
from weft.testing import node, placement, pod, shape


def test_two_gpus_are_two_whole_cards_unless_a_part_is_asked() -> None:
    assert pod(gpus=2).shape.gpu_requests == (
        GpuRequest(2, GpuMemoryRequest("whole"), 1000, whole=True),
    )
    assert pod(memory_mib=300).shape.gpu_requests == (GpuRequest(1, GpuMemoryRequest("mib", 300)),)
    assert pod(gpus=2, percent=30, milli=5).shape.gpu_requests == (
        GpuRequest(2, GpuMemoryRequest("percent", 30), 5),
    )
    assert pod(cpu_milli=5).shape.gpu_requests == ()
    assert pod("p", asks=shape(uuids=["u"])).shape.devices.uuids == ("u",)


def test_a_mig_node_lists_its_cards_then_their_instances() -> None:
    wide = node("m", gpus=8, model="A100", memory_mib=40_960, mig=7)
    assert len(wide.gpus) == 64
    assert [gpu.index for gpu in wide.gpus] == list(range(64))
    assert [gpu.parent for gpu in wide.gpus[:9]] == [None] * 8 + [0]
    last = wide.gpus[-1]
    assert (last.parent, last.memory_mib, last.model) == (7, 5120, "A100-MIG-1g.5gb")
    assert len({gpu.uuid for gpu in wide.gpus}) == 64


def test_a_card_is_cut_as_nvidia_cuts_it() -> None:
    with pytest.raises(ValueError, match="1, 2, 3, 4 or 7"):
        node("m", gpus=1, mig=5)


def test_a_model_for_each_card_must_be_for_each() -> None:
    with pytest.raises(ValueError, match="zip"):
        node("m", gpus=2, model=["T4"])


def test_a_placement_shares_each_named_gpu_alike() -> None:
    shares = placement("p", "a", [1, 2], memory_mib=5, milli=7).shares
    assert [(s.gpu, s.memory_mib, s.milli) for s in shares] == [(1, 5, 7), (2, 5, 7)]
    assert placement("p", "a", 0).shares[0].gpu == 0
    assert placement("p", "a").shares == ()

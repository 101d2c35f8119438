"""Marks of bound pods count for what they are worth: where they say more, less or other."""

import pytest
from manifests import SANE, ask, asks, node, parsed, place, pod

from weft.dialects.registry import dialect, read_placement, write
from weft.dialects.shares import encode, placement_of
from weft.model import Share
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY

MEMORY, CORES, COUNT = "weft.dev/gpu-memory", "weft.dev/gpu-cores", "weft.dev/gpu-count"
WHOLE, GPUSHARE, ELASTIC = "nvidia.com/gpu", "aliyun.com/gpu-mem", "elasticgpu.io/gpu-memory"
CARD = 16_384
NODE = node(CARD, CARD, CARD)


def weighed(container, *shares, on=NODE, copy=None, **more):
    """The pod on this node, bound with these shares (claim, GPU, MiB, thousandths)."""
    request = parsed(container)

    def text(of):
        return encode(placement_of(request, on, [Share(*share) for share in of]))

    marks = {
        PLACEMENT: text(shares),
        PLACEMENT_COPY: text(shares if copy is None else copy),
        **more,
    }
    return dialect(request.dialect).weigh(pod(container, annotations=marks), request, on)


def held(found):
    return [(s.gpu, s.memory_mib, s.milli) for s in found.placement.shares]


@pytest.mark.parametrize(
    ("container", "share"),
    [
        (ask(MEMORY, 4_000), (0, 1, 5_000, 0)),  # it ran out of memory before
        (ask(MEMORY, 4_000), (0, 1, CARD, 1_000)),  # its policy gives whole cards
        (ask(GPUSHARE, 4), (0, 1, 6_000, 0)),
    ],
)
def test_more_than_it_asks_is_as_good_as_it_was_written(container, share):
    found = weighed(container, share)
    assert (held(found), found.edited) == ([share[1:]], "")


def test_a_card_that_shows_more_than_before_makes_no_pod_suspect():
    for container in (ask(WHOLE, 1), ask("alnair/vgpu-memory", 16)):
        milli = 1_000 if "nvidia.com/gpu" in container["resources"]["limits"] else 0
        found = weighed(container, (0, 1, 16_160, milli))
        assert (held(found), found.edited) == ([(1, CARD, milli)], "")


def test_less_than_it_asks_is_raised_even_where_both_say_so():
    found = weighed(asks("c", {MEMORY: 4_000, CORES: 30}), (0, 1, 4_000, 200))
    assert held(found) == [(1, 4_000, 300)]
    assert found.edited == (
        "4,000 MiB and 200 thousandths of GPU 1 is less than the pod asks for, "
        "4,000 MiB and 300 thousandths of GPU 1"
    )


def test_gpus_that_nobody_names_may_be_any():
    found = weighed(asks("c", {COUNT: 2, MEMORY: 100}), (0, 1, 100, 0))
    assert held(found) == [(1, 100, 0), (0, 100, 0), (2, 100, 0)]
    assert found.anywhere


@pytest.mark.parametrize(
    ("container", "mark", "theirs"),
    [
        (ask(GPUSHARE, 4), {"ALIYUN_COM_GPU_MEM_IDX": "2"}, 4_096),
        (
            ask(ELASTIC, 4_000),
            {"elasticgpu.io/assumed": "true", "elasticgpu.io/container-c": "2"},
            4_000,
        ),
        (
            asks("c", {WHOLE: 1, "nvidia.com/gpumem": 4_000}),
            {"hami.io/vgpu-devices-allocated": "GPU-2,NVIDIA,4000,0:;"},
            4_000,
        ),
    ],
    ids=["gpushare", "elastic", "hami"],
)
def test_a_systems_own_marks_that_say_another_gpu_count_as_well(container, mark, theirs):
    found = weighed(container, (0, 1, theirs, 0), **mark)
    assert held(found) == [(1, theirs, 0), (2, theirs, 0)]
    assert "own annotations GPU 2" in found.edited


def test_without_a_copy_what_is_written_counts():
    """Pods that an older Weft bound."""
    request = parsed(ask(MEMORY, 4_000))
    placement = place(request, NODE, 1)
    marks = write(request, placement, NODE, 0).annotations
    found = dialect("weft").weigh(pod(ask(MEMORY, 4_000), annotations=marks), request, NODE)
    assert (found.placement, found.edited) == (placement, "")


def test_a_gpu_that_is_not_there_is_believed_of_two_that_agree():
    share, elsewhere = (0, 7, 4_000, 0), (0, 1, 4_000, 0)
    lost = weighed(ask(MEMORY, 4_000), share)
    assert (held(lost), lost.edited, lost.lost) == ([share[1:]], "", (7,))
    doubted = weighed(ask(MEMORY, 4_000), share, copy=[elsewhere])
    assert held(doubted) == [elsewhere[1:]]
    assert "weft.dev/placement names GPU 7, which its node does not show" in doubted.edited
    request = parsed(ask(MEMORY, 4_000))
    alone = {PLACEMENT: encode(placement_of(request, NODE, [Share(*share)]))}
    assert read_placement(pod(ask(MEMORY, 4_000), annotations=alone), NODE, SANE) is None


def test_marks_of_a_copied_manifest_are_worth_nothing_in_both():
    request = parsed(ask(MEMORY, 4_000))
    text = encode(place(request, NODE, 1)).replace("uid-1", "another")
    marked = pod(ask(MEMORY, 4_000), annotations={PLACEMENT: text, PLACEMENT_COPY: text})
    assert dialect("weft").weigh(marked, request, NODE) is None

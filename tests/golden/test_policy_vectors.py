"""Published and independently computed decisions of the systems Weft speaks for, one GPU node each.

Elastic GPU: issue 15 of its scheduler, and its raters worked by hand. nano-gpu: the cases of its
v0.3 tests. gpushare: the example of its documentation.
"""

import pytest

from weft.engine import Bind, Engine, PodAdded, PodSeenBound
from weft.framework import Profile
from weft.model import Gpu, GpuClaim, Memory, Node, Placement, PodRequest, Shape, Share
from weft.policies.catalog import built_in


def decide(policy, cards, claims, *, used=(), **options):
    """(GPU of each GPU-using claim, in order, and the score), or None. `used` is (MiB, milli)."""
    gpus = tuple(Gpu(index, size, "T4", f"GPU-{index}") for index, size in enumerate(cards))
    engine = Engine([Profile("weft", [built_in().create(policy, **options)])], [Node("n", gpus)])
    for index, (memory, milli) in enumerate(used):
        if memory or milli:
            old = Placement(f"old-{index}", "n", (Share(0, index, memory, milli),))
            engine.handle(PodSeenBound(old), 0)
    command = engine.handle(PodAdded(PodRequest("new", "new", Shape(tuple(claims)))), 1)[0]
    if not isinstance(command, Bind):
        return None
    return [share.gpu for share in command.placement.shares], command.record.score


def memory(mib):
    return GpuClaim(memory=Memory("mib", mib))


def percent(cores):
    return GpuClaim(milli=10 * cores)


@pytest.mark.parametrize(
    ("cards", "used", "claims", "expected"),
    [
        ([15_109], [], [memory(256)], ([0], 0)),
        ([15_109, 15_109], [], [memory(256)], ([1], 6_400)),
        ([15_109, 15_109], [(5_000, 0)], [memory(256)], ([0], 131_400)),
        ([1_000, 1_000], [], [percent(20), percent(40)], ([1, 1], 1_500)),
        ([1_000] * 4, [], [GpuClaim(2, whole=True)], ([0, 1], 55_000)),
    ],
)
def test_elastic_binpack_exact(cards, used, claims, expected):
    assert decide("elastic-binpack", cards, claims, used=used, compat="exact") == expected


@pytest.mark.parametrize(
    ("cards", "used", "claims", "gpus"),
    [
        ([15_109], [], [memory(256)], [0]),
        ([15_109, 15_109], [], [memory(256)], [1]),
        ([15_109, 15_109], [(5_000, 0)], [memory(256)], [0]),
        ([1_000, 1_000], [], [percent(20), percent(40)], [1, 1]),
        ([1_000] * 4, [], [GpuClaim(2, whole=True)], [0, 1]),
    ],
)
def test_elastic_binpack_sane_takes_the_same_gpus_within_bounds(cards, used, claims, gpus):
    found, score = decide("elastic-binpack", cards, claims, used=used)
    assert found == gpus
    assert 0 <= score <= 100_000


def test_elastic_spread():
    assert decide("elastic-spread", [15_109] * 4, [memory(256)]) == ([3], 0)


NANO = [
    ("nano-binpack", [100, 100], [20, 40], [0, 0]),
    ("nano-binpack", [20, 100], [20, 40], [0, 1]),
    ("nano-binpack", [10, 100], [20, 40], [1, 1]),
    ("nano-binpack", [100, 100], [0, 40, 40], [0, 0]),
    ("nano-binpack", [10, 50], [20, 40], None),
    ("nano-spread", [100, 100], [20, 40], [0, 1]),
    ("nano-spread", [20, 100], [20, 40], [1, 1]),
    ("nano-spread", [100, 100], [0, 40, 40], [0, 1]),
]
"""Percent available, percent asked per container, GPU of each container that asks for some."""


@pytest.mark.parametrize(("policy", "available", "asked", "expected"), NANO)
def test_nano_gpu(policy, available, asked, expected):
    used = [(0, 1000 - 10 * left) for left in available]
    claims = [percent(cores) for cores in asked if cores]
    found = decide(policy, [16_160] * len(available), claims, used=used)
    assert (found and found[0]) == expected


@pytest.mark.parametrize("policy", ["gpushare", "binpack"])
@pytest.mark.parametrize(
    ("available", "expected"),
    [([12_207, 8_138, 4_069, 16_276], 1), ([12_207, 8_138, 8_138, 16_276], 1), ([9_000] * 3, 0)],
)
def test_gpushare(policy, available, expected):
    used = [(16_276 - left, 0) for left in available]
    found = decide(policy, [16_276] * len(available), [memory(8_138)], used=used)
    assert found is not None
    assert found[0] == [expected]

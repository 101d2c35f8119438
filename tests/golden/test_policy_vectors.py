"""Published and independently computed decisions of the systems Weft speaks for, one GPU node each.

Elastic GPU: issue 15 of its scheduler, and its raters worked by hand. nano-gpu: the cases of its
v0.3 tests. gpushare: the example of its documentation. Genius: worked by hand. Kube-Knots'
scheduler: one decision of its published logs (all of them are in test_ece).
"""

import numpy as np
import pytest

from weft.core.engine import Bind, Engine, PodAdded, PodSeenBound, SignalsChanged
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, snapshot
from weft.core.ledger import RequestLimits
from weft.core.policies.catalog import built_in
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest, Shape, Share


def decide(policy, cards, gpu_requests, *, used=(), **options):
    """(GPU of each GPU-using claim, in order, and the score), or None. `used` is (MiB, milli)."""
    gpus = tuple(Gpu(index, size, "T4", f"GPU-{index}") for index, size in enumerate(cards))
    engine = Engine([Profile("weft", [built_in().create(policy, **options)])], [Node("n", gpus)])
    for index, (memory, milli) in enumerate(used):
        if memory or milli:
            old = Placement(f"old-{index}", "n", (Share(0, index, memory, milli),))
            engine.handle(PodSeenBound(old), 0)
    command = engine.handle(PodAdded(PodRequest("new", "new", Shape(tuple(gpu_requests)))), 1)[0]
    if not isinstance(command, Bind):
        return None
    return [share.gpu for share in command.placement.shares], command.record.score


def memory(mib):
    return GpuRequest(memory=GpuMemoryRequest("mib", mib))


def percent(cores):
    return GpuRequest(milli=10 * cores)


@pytest.mark.parametrize(
    ("cards", "used", "gpu_requests", "expected"),
    [
        ([15_109], [], [memory(256)], ([0], 0)),
        ([15_109, 15_109], [], [memory(256)], ([1], 6_400)),
        ([15_109, 15_109], [(5_000, 0)], [memory(256)], ([0], 131_400)),
        ([1_000, 1_000], [], [percent(20), percent(40)], ([1, 1], 1_500)),
        ([1_000] * 4, [], [GpuRequest(2, whole=True)], ([0, 1], 55_000)),
    ],
)
def test_elastic_binpack_exact(cards, used, gpu_requests, expected):
    assert decide("elastic-binpack", cards, gpu_requests, used=used, compat="exact") == expected


@pytest.mark.parametrize(
    ("cards", "used", "gpu_requests", "gpus"),
    [
        ([15_109], [], [memory(256)], [0]),
        ([15_109, 15_109], [], [memory(256)], [1]),
        ([15_109, 15_109], [(5_000, 0)], [memory(256)], [0]),
        ([1_000, 1_000], [], [percent(20), percent(40)], [1, 1]),
        ([1_000] * 4, [], [GpuRequest(2, whole=True)], [0, 1]),
    ],
)
def test_elastic_binpack_sane_takes_the_same_gpus_within_bounds(cards, used, gpu_requests, gpus):
    found, score = decide("elastic-binpack", cards, gpu_requests, used=used)
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
    gpu_requests = [percent(cores) for cores in asked if cores]
    found = decide(policy, [16_160] * len(available), gpu_requests, used=used)
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


def test_genius_exact():
    """Two nodes worked by hand: static 7.2 and 16.8, dynamic 4.2059 and 5.3971."""
    nodes = [
        Node("a", (Gpu(0, 16_000, "Tesla V100", "GPU-a0"),)),
        Node("b", tuple(Gpu(i, 32_000, "Tesla V100", f"GPU-b{i}") for i in range(2))),
    ]
    columns = {
        "memory_free_mib": [8_000, 30_000, 30_000],
        "power_w": [100, 50, 50],
        "encoder_ratio": [0, 0, 0],
        "decoder_ratio": [0, 0, 0],
    }
    fresh = np.full(3, FRESH, dtype=np.int8)
    told = {name: (np.array(values, dtype=float), fresh) for name, values in columns.items()}
    gpus = [("a", 0), ("b", 0), ("b", 1)]
    profile = Profile("weft", [built_in().create("genius", compat="exact")])
    engine = Engine([profile], nodes)
    engine.handle(SignalsChanged(snapshot(1, 0, gpus, told)), 0)
    known = engine.assess(profile, PodRequest("new", "new", Shape((memory(100),))))
    assert known.total.tolist() == [15, 27]


@pytest.mark.parametrize(("asked", "admitted"), [(15_032, True), (15_033, False)])
def test_ferikoglous_logged_decision(asked, admitted):
    """2020-09-01 17:45:30, 50 % over-provisioning: admitted by the peak forecast alone."""
    columns = {
        "memory_free_mib.cov": 0.428321,
        "memory_used_mib.p80": 27_943.0,
        "memory_free_mib.autocorrelation": 0.368701,
        "window.samples": 82.0,
        "memory_free_mib.predicted": 15_032.4,
    }
    fresh = np.array([FRESH], dtype=np.int8)
    told = {name: (np.array([value]), fresh) for name, value in columns.items()}
    engine = Engine(
        [Profile("weft", [built_in().create("ferikoglou")])],
        [Node("n", (Gpu(0, 32_510, "V100", "GPU-0"),))],
        limits=RequestLimits(overcommit_permille=3000),
    )
    engine.handle(SignalsChanged(snapshot(1, 0, [("n", 0)], told)), 0)
    old = Placement("old", "n", (Share(0, 0, 32_000, 0),))
    engine.handle(PodSeenBound(old), 0)
    new = PodRequest("new", "new", Shape((memory(asked),)))
    assert isinstance(engine.handle(PodAdded(new), 1)[0], Bind) == admitted

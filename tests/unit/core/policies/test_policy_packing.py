"""The tiers and sums of FGD's baselines, number by number."""

import numpy as np
import pytest

from weft.core.framework import Demand, Query
from weft.core.ledger import Ledger
from weft.core.policies.catalog import built_in
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, Shape, Share

CARD = 10_000


def scores(policy, gpus, held, shape):
    """The policy's score of one node with `gpus` cards on which `held` (GPU, MiB, milli) sit."""
    cards = tuple(Gpu(index, CARD, "T4") for index in range(gpus))
    ledger = Ledger([Node("n", cards, 128_000, 65_536)])
    for number, (gpu, mib, milli) in enumerate(held):
        ledger.adopt(Placement(f"old-{number}", "n", (Share(0, gpu, mib, milli),)))
    query = Query(ledger.table, Demand(shape, ledger.table), np.array([0]))
    return int(built_in().create(policy).score_nodes(query)[0])


def cores(milli, count=1):
    return Shape((GpuRequest(count, milli=milli),))


def whole(count):
    return Shape((GpuRequest(count, whole=True),))


def mib(value, count=1):
    return Shape((GpuRequest(count, GpuMemoryRequest("mib", value)),))


@pytest.mark.parametrize(
    ("gpus", "held", "shape", "expected"),
    [
        (2, [], cores(300), 31),  # an idle node: 33 − 2
        (40, [], whole(1), 40),  # an idle node of very many
        (2, [(0, 0, 500)], cores(300), 95),  # a used GPU with half free: 100 − 50 / 10
        (2, [(0, 0, 500)], cores(600), 49),  # an idle GPU of a used node
        (4, [(0, 0, 500)], whole(3), 47),
        (40, [(0, 0, 500)], whole(30), 33),
        (2, [(0, 4_000, 0)], mib(3_000), 94),  # by memory where memory is asked
        (3, [(0, 4_000, 0), (1, 2_000, 0)], mib(3_000, 2), 86),  # 100 − (60 + 80) div 10
        (3, [(0, 4_000, 0)], mib(3_000, 2), 49),
        (4, [(0, 4_000, 0)], mib(3_000, 3), 48),
    ],
)
def test_gpu_packing(gpus, held, shape, expected):
    assert scores("gpu-packing", gpus, held, shape) == expected


@pytest.mark.parametrize(
    ("held", "shape", "expected"),
    [
        ([], cores(300), 18 + 25),  # 25 · (8 − 2) div 8, and no GPU pod
        ([(0, 0, 500)], cores(300), 20 + 75),
        ([(0, 0, 500)], whole(1), 20 + 0),
        ([(0, 0, 500), (1, CARD, 1000)], cores(300), 23 + 50),
        ([(0, 5_000, 0)], mib(3_000), 20 + 75),
    ],
)
def test_gpu_clustering(held, shape, expected):
    assert scores("gpu-clustering", 2, held, shape) == expected


@pytest.mark.parametrize(
    ("held", "shape", "expected"),
    [
        ([], Shape((GpuRequest(milli=800),), cpu_milli=64_000), 73),  # 1 − ½(½ + ¼ · ⅒)
        ([(0, 0, 1000), (1, 0, 1000)], Shape((), cpu_milli=64_000), 75),
        ([(0, 5_000, 0)], mib(8_000), 99),  # 1 − ½ · (1.5 / 8) · (0.8 / 8)
    ],
)
def test_dot_product(held, shape, expected):
    assert scores("dot-product", 2, held, shape) == expected


def test_best_fit():
    shape = Shape((GpuRequest(milli=500),), cpu_milli=64_000)
    assert scores("best-fit", 2, [], shape) == 65  # 1 − ½(64/128) − ½(1.5/8)


@pytest.mark.parametrize(
    ("policy", "expected"), [("nano-binpack", 23), ("nano-spread", 100 + 15 - 2)]
)
def test_nano(policy, expected):
    assert scores(policy, 2, [(0, 0, 500)], cores(100)) == expected


def test_alnair_counts_gib_per_card_to_the_nearest():
    held = [(0, 1_010, 0), (1, 8_080, 0)]
    assert scores("alnair-cost-saving", 2, held, cores(100)) == 1 + 8
    assert scores("alnair-high-performance", 2, held, cores(100)) == 10_000 - 9

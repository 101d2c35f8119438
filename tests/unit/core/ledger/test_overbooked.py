"""A GPU that facts overbook takes nothing more: no share of any kind, and nobody says otherwise."""

import pytest

from weft.core.engine import Bind, Engine, PodAdded
from weft.core.framework import Policy, Profile
from weft.core.ledger import Ledger, RequestLimits
from weft.core.ledger.ledger import MemoryAmount
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, PodRequest
from weft.testing import node, placement, pod

BY = {"memory": {"memory_mib": 17_000}, "cores": {"memory_mib": 1, "milli": 1_100}}
WANTED = {
    "cores": {"milli": 200},
    "memory": {"memory_mib": 10},
    "both": {"memory_mib": 10, "milli": 10},
    "nothing": {"gpu_requests": [GpuRequest()]},
    "a whole card": {"gpus": 1},
    "two shares": {
        "gpu_requests": [GpuRequest(milli=10), GpuRequest(memory=GpuMemoryRequest("mib", 10))]
    },
    "two GPUs": {"gpu_requests": [GpuRequest(count=2, milli=10)]},
    "a split total": {"gpu_requests": [GpuRequest(memory=GpuMemoryRequest("mib", 10), split=True)]},
}
ALIKE, MIXED = node("a", gpus=2, memory_mib=16_000), node("a", gpus=2, memory_mib=[16_000, 15_000])


class Plain(Policy):
    name = "plain"


def gpus_of(engine: Engine, wanted: PodRequest) -> set[int] | None:
    """Where it goes; None for nowhere."""
    for command in engine.handle(PodAdded(wanted), 0):
        if isinstance(command, Bind):
            return {share.gpu for share in command.placement.shares}
    return None


@pytest.mark.parametrize("over", BY)
@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("where", [ALIKE, MIXED], ids=["alike", "mixed"])
def test_nothing_more_is_given_away_there(over: str, wanted: str, where: Node) -> None:
    engine = Engine([Profile("weft", [Plain()])], [where])
    engine.ledger.adopt(placement("fact", "a", 0, **BY[over]))
    found = gpus_of(engine, pod("p", **WANTED[wanted]))
    assert found == (None if wanted == "two GPUs" else {1})
    engine.ledger.adopt(placement("fact too", "a", 1, **BY[over]))
    assert gpus_of(engine, pod("q", **WANTED[wanted])) is None


@pytest.mark.parametrize("amounts", [(0, 0), (0, 1), (1, 0)])
def test_the_ledger_refuses_it_as_well(amounts: tuple[int, int]) -> None:
    ledger = Ledger([ALIKE])
    asked = placement("p", "a", 0, memory_mib=amounts[0], milli=amounts[1])
    assert ledger.fits(asked)
    ledger.adopt(placement("fact", "a", 0, memory_mib=16_001))
    assert not ledger.reserve(asked)
    ledger.release("fact")
    assert ledger.reserve(asked)


def test_what_is_lent_within_its_limit_is_not_overbooked() -> None:
    ledger = Ledger([ALIKE], RequestLimits(harvest_permille=1_250))
    ledger.adopt(placement("lender", "a", 0, memory_mib=16_000))
    ledger.set_idle({"lender": (9_000,)})
    lent = placement("borrower", "a", 0, memory_mib=4_000)
    assert ledger.reserve(lent, asks=MemoryAmount(harvest=True))
    cores = placement("p", "a", 0, memory_mib=0, milli=100)
    assert ledger.fits(cores)
    ledger.adopt(placement("fact", "a", 0, memory_mib=1))
    assert not ledger.fits(cores)
    assert not ledger.fits(cores, MemoryAmount(harvest=True))


def test_an_instance_beside_its_overbooked_card_stays_closed() -> None:
    ledger = Ledger([Node("a", (Gpu(0, 16_000), Gpu(1, 8_000, parent=0), Gpu(2, 8_000, parent=0)))])
    ledger.adopt(placement("fact", "a", 1, memory_mib=9_000))
    assert ledger.table.device_usable.tolist() == [0, 0, 1]

"""Several claims on one node: distinct GPUs, exact even where a greedy pass gets stuck."""

import numpy as np
import pytest

from weft.core.engine.assessment import Assessor
from weft.core.engine.deciding import shares_on
from weft.core.framework import Policy, Profile, Query
from weft.core.framework.policy import PlacementOptions
from weft.core.framework.split import SplitRequest, fewest
from weft.core.ledger import Ledger
from weft.core.ledger.table import Ints
from weft.core.policies.packing import Binpack
from weft.model import Code, GpuMemoryRequest, GpuRequest, Placement, Shape, Share
from weft.testing import node, placement, shape


class Silent(Policy):
    """No opinion."""

    name = "silent"


class Emptiest(Policy):
    """The device with the most memory left, which a packing pod would rather leave alone."""

    name = "emptiest"

    def score_devices(self, query: Query) -> Ints:
        return query.device_memory_free


class Sum(Policy):
    """Rates assignments by how few devices they touch."""

    name = "sum"

    def rate_options(self, options: PlacementOptions) -> Ints:
        return -(options.single | options.several).sum(axis=1)


class SumLast(Sum):
    """The same, ties to the last."""

    name = "sum-last"
    ties = "last"


def mib(memory_mib: int, **rest: object) -> GpuRequest:
    return GpuRequest(memory=GpuMemoryRequest("mib", memory_mib), **rest)  # type: ignore[arg-type]


WHOLE = GpuRequest(memory=GpuMemoryRequest("whole"), milli=1000, whole=True)


def ask(ledger: Ledger, asked: Shape, policy: Policy | None = None) -> tuple[Share, ...] | Code:
    """Shares on the ledger's only node, or why there are none. Whatever is given must fit."""
    profile = Profile("test", [policy or Silent()])
    known = Assessor(ledger).assess(profile, asked)
    if known.codes[0]:
        return Code(known.codes[0])
    shares = shares_on(ledger.table, 0, known, profile, "key")
    assert ledger.fits(Placement("ask", ledger.table.nodes[0].name, shares))
    return shares


def gpus(shares: tuple[Share, ...] | Code) -> list[tuple[int, int]]:
    assert not isinstance(shares, Code)
    return [(share.gpu_request, share.gpu) for share in shares]


def test_gpus_of_one_claim_are_distinct_those_of_two_may_be_one() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    assert gpus(ask(ledger, shape(gpus=2, memory_mib=400))) == [(0, 0), (0, 1)]
    assert gpus(ask(ledger, shape(gpu_requests=[mib(400), mib(400)]))) == [(0, 0), (1, 0)]
    assert ask(ledger, shape(gpus=3, memory_mib=400)) == Code.TOO_FEW_GPUS


def test_too_few_shared_gpus_say_what_is_short() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 0, memory_mib=700))
    assert ask(ledger, shape(gpus=2, memory_mib=400)) == Code.GPU_MEMORY
    assert ask(ledger, shape(gpu_requests=[mib(900), mib(400)])) == Code.TOGETHER


@pytest.mark.parametrize("policy", [Silent(), Emptiest(), Sum()])
def test_a_place_is_found_where_a_greedy_pass_gets_stuck(policy: Policy) -> None:
    """600 + 300 + 300 + 200 + 200 + 200 on 900 + 900: largest first on the roomiest misfits."""
    ledger = Ledger([node("a", gpus=2, memory_mib=900)])
    parts = [mib(size) for size in (600, 300, 300, 200, 200, 200)]
    shares = ask(ledger, shape(gpu_requests=parts), policy)
    assert not isinstance(shares, Code)
    assert sum(share.memory_mib for share in shares) == 1800
    assert ask(ledger, shape(gpu_requests=[*parts, mib(1)]), policy) == Code.TOGETHER


@pytest.mark.parametrize("policy", [Silent(), Emptiest(), Sum(), SumLast()])
def test_a_whole_card_leaves_the_large_one_to_the_claim_that_needs_it(policy: Policy) -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=[4000, 1000])])
    assert gpus(ask(ledger, shape(gpu_requests=[WHOLE, mib(3000)]), policy)) == [(0, 1), (1, 0)]


@pytest.mark.parametrize("policy", [Silent(), Sum()])
def test_claims_of_one_pod_keep_off_mig_relatives(policy: Policy) -> None:
    """Card 0 and its halves 1 and 2: two whole devices are the halves, three there are not."""
    ledger = Ledger([node("a", gpus=1, model="A100", memory_mib=4000, mig=2)])
    assert gpus(ask(ledger, shape(gpus=2), policy)) == [(0, 1), (0, 2)]
    assert ask(ledger, shape(gpus=3), policy) in (Code.NOT_IDLE, Code.TOGETHER)
    assert gpus(ask(ledger, shape(gpu_requests=[mib(1500), mib(1500)]), policy)) in (
        [(0, 0), (1, 0)],
        [(0, 1), (1, 2)],
        [(0, 2), (1, 1)],
    )
    assert ask(ledger, shape(gpu_requests=[mib(3000), mib(1500)]), policy) == Code.TOGETHER


@pytest.mark.parametrize("policy", [Silent(), Emptiest(), Sum()])
def test_together_is_the_reason_only_where_each_claim_fits_alone(policy: Policy) -> None:
    """A card and its only instance count as two GPUs, but nobody holds both."""
    ledger = Ledger([node("a", gpus=1, model="A100", memory_mib=4000, mig=1)])
    two = GpuRequest(2)
    assert ask(ledger, shape(gpu_requests=[two]), policy) == Code.TOO_FEW_GPUS
    assert ask(ledger, shape(gpu_requests=[mib(500), two]), policy) == Code.TOO_FEW_GPUS
    ledger.reserve(placement("p", "a", 0, memory_mib=3500, milli=600))
    full = [GpuRequest(1), GpuRequest(1, milli=500)]
    assert ask(ledger, shape(gpu_requests=full), policy) == Code.GPU_CORES
    assert ask(ledger, shape(gpu_requests=[mib(600), GpuRequest(1)]), policy) == Code.GPU_MEMORY


def test_ratings_decide_and_ties_go_as_the_policy_says() -> None:
    ledger = Ledger([node("a", gpus=3, memory_mib=1000)])
    gpu_requests = shape(gpu_requests=[mib(400), mib(400)])
    assert gpus(ask(ledger, gpu_requests, Sum())) == [(0, 0), (1, 0)]
    assert gpus(ask(ledger, gpu_requests, SumLast())) == [(0, 2), (1, 2)]


# --- a memory total over several GPUs ------------------------------------------------------------


def test_a_total_is_spread_over_the_fewest_gpus_evenly() -> None:
    ledger = Ledger([node("a", gpus=4, memory_mib=1000)])
    split = shape(gpu_requests=[mib(1500, split=True)])
    shares = ask(ledger, split)
    assert not isinstance(shares, Code)
    assert [(share.gpu, share.memory_mib) for share in shares] == [(0, 750), (1, 750)]
    assert len(gpus(ask(ledger, shape(gpu_requests=[mib(900, split=True)])))) == 1
    assert len(gpus(ask(ledger, shape(gpu_requests=[mib(9, split=True, count=3)])))) == 3


def test_a_total_larger_than_any_card_fits_several_and_one_larger_than_all_does_not() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    assert not isinstance(ask(ledger, shape(gpu_requests=[mib(2000, split=True)])), Code)
    assert ask(ledger, shape(gpu_requests=[mib(2001, split=True)])) == Code.GPU_MEMORY


def test_a_total_minds_uuids_and_cores() -> None:
    ledger = Ledger([node("a", gpus=3, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 0, milli=800))
    assert (
        ask(ledger, shape(gpu_requests=[mib(1500, split=True)], uuids=["GPU-a-2"]))
        == Code.GPU_MEMORY
    )
    with_cores = shape(gpu_requests=[mib(1500, split=True, milli=300)])
    assert gpus(ask(ledger, with_cores)) == [(0, 1), (0, 2)]
    assert ask(ledger, shape(gpu_requests=[mib(2500, split=True, milli=300)])) == Code.GPU_MEMORY


def test_the_rest_of_a_total_gets_what_the_cards_before_it_leave() -> None:
    """Genius: two cards with 400 MiB each, and 700 more wherever it lies."""
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    both = [mib(400, count=2), mib(700, split=True)]
    shares = ask(ledger, shape(gpu_requests=both))
    assert not isinstance(shares, Code)
    assert sum(share.memory_mib for share in shares) == 1500
    assert [share.gpu_request for share in shares] == [0, 0, 1, 1]
    assert ask(ledger, shape(gpu_requests=[both[0], mib(1201, split=True)])) == Code.TOGETHER
    assert not isinstance(ask(ledger, shape(gpu_requests=[both[0], mib(1200, split=True)])), Code)
    assert not isinstance(ask(ledger, shape(gpu_requests=both), Sum()), Code)
    assert ask(ledger, shape(gpu_requests=[both[0], mib(1201, split=True)]), Sum()) == Code.TOGETHER


def test_a_total_uses_a_card_or_its_instances_never_both() -> None:
    ledger = Ledger([node("a", gpus=2, model="A100", memory_mib=4000, mig=2)])
    assert gpus(ask(ledger, shape(gpu_requests=[mib(8000, split=True)]))) == [(0, 0), (0, 1)]
    assert ask(ledger, shape(gpu_requests=[mib(8001, split=True)])) == Code.GPU_MEMORY
    ledger.reserve(placement("p", "a", 2, memory_mib=1000))
    assert gpus(ask(ledger, shape(gpu_requests=[mib(6500, split=True)]))) == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]


def test_fewest_takes_the_roomiest_and_respects_the_least_number() -> None:
    spread = SplitRequest(0, 2, 900, 0)
    assert fewest([500, 1000, 700], [True] * 3, [-1] * 3, spread) == [1, 2]
    assert fewest([500, 1000, 700], [True, False, True], [-1] * 3, spread) == [2, 0]
    assert fewest([500, 1000, 300], [True, False, True], [-1] * 3, spread) is None


def test_the_key_makes_the_lead_choose_each_device() -> None:
    class Last(Policy):
        name = "last"

        def choose_device(self, query: Query, fits: Ints, key: str) -> int:
            assert key.startswith("key/")
            return len(fits) - 1

    ledger = Ledger([node("a", gpus=3, memory_mib=1000)])
    assert gpus(ask(ledger, shape(gpus=2, memory_mib=400), Last())) == [(0, 1), (0, 2)]


def test_answers_cover_every_node_asked_about() -> None:
    ledger = Ledger([node(f"n{i}", gpus=i, memory_mib=1000) for i in range(4)])
    profile = Profile("test", [Silent()])
    known = Assessor(ledger).assess(profile, shape(gpus=2, memory_mib=600))
    assert np.flatnonzero(known.codes == 0).tolist() == [2, 3]
    assert known.counts[Code.NO_GPU] == 1
    assert known.counts[Code.TOO_FEW_GPUS] == 1


def test_the_example_in_its_header() -> None:
    """Greedy ends with 4 GiB that fit nowhere; the search finds 5 + 5 and 4 + 4."""
    ledger = Ledger([node("n", gpus=2, memory_mib=(10, 8))])
    asked = shape(gpu_requests=tuple(map(mib, (4, 5, 4, 5))))
    found = ask(ledger, asked, Binpack())
    assert isinstance(found, tuple)
    assert [share.gpu for share in found] == [1, 0, 1, 0]

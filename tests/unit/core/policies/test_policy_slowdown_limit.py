"""interference and auto: a pod's own bound by its SLO, and small pods that share a GPU by four."""

import msgspec
import numpy as np
import pytest
from policy_signals import engine_of

from weft.core.engine import Bind, PodAdded, PodBound, PodSeenBound, PolicyInput, Unschedulable
from weft.core.policies.catalog import built_in
from weft.model import BadInputError
from weft.model.interference_table import (
    INTERFERENCE,
    InterferenceTable,
    PredictionTier,
    interference,
    to_input,
)
from weft.testing import node, placement, pod

CRITICAL = "latency-critical"
MODELS = ("T4", "A100")
CARD_MIB = 16_000


def told(times: float = 1.05, known=("calm", "other"), tier=PredictionTier.MEASURED):
    """Whatever is beside a known application makes it so many times slower, on any model."""
    size = len(known) + 1
    mean, tiers = np.full((2, size, size), np.log(times)), np.full((2, size, size), tier)
    tiers[:, -1], tiers[:, :, -1] = PredictionTier.UNKNOWN, PredictionTier.UNKNOWN
    return to_input(interference(1, MODELS, known, (mean, mean, tiers.astype(np.int8))))


def engine(table=None, policy="interference", models=("T4",), **options):
    made = built_in().create(policy, **options)
    cluster = [
        node(f"n{at}", gpus=1, model=model, memory_mib=CARD_MIB) for at, model in enumerate(models)
    ]
    calm = {(one.name, 0): {"sm_active_ratio": 0.1} for one in cluster}
    found = engine_of(made, cluster, calm)
    found.handle(PolicyInput(INTERFERENCE, told() if table is None else table), 0)
    return found


def asks(name, job_class=CRITICAL, slowdown_limit=(), application="calm", mib=4_000, milli=0):
    new = pod(name, memory_mib=mib, milli=milli, application=application, job_class=job_class)
    return msgspec.structs.replace(
        new, shape=msgspec.structs.replace(new.shape, slowdown_limit=slowdown_limit)
    )


def comes(found, name, at_ns=0, **more):
    """The node it gets, or None."""
    command = found.handle(PodAdded(asks(name, **more)), at_ns)[0]
    if not isinstance(command, Bind):
        assert isinstance(command, Unschedulable)
        return None
    found.handle(PodBound(name), at_ns)
    return command.placement.node


def is_there(
    found, name, node, job_class=CRITICAL, slowdown_limit=(), application="calm", mib=4_000
):
    place = placement(name, node, 0, memory_mib=mib)
    found.handle(
        PodSeenBound(
            msgspec.structs.replace(
                place, application=application, job_class=job_class, slowdown_limit=slowdown_limit
            )
        ),
        0,
    )


BOTH = pytest.mark.parametrize("policy", ["interference", "auto"])


# --- a pod's own bound ---------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("slowdown_limit", "fits"),
    [
        ((), True),
        ((("", 105),), True),
        ((("", 104),), False),
        ((("", 100),), False),
        ((("", 400),), True),
        ((("t4", 104),), False),
        ((("a100", 104),), True),
        ((("a100", 104), ("", 104)), False),
    ],
)
def test_its_own_bound_counts_on_either_side(policy, slowdown_limit, fits) -> None:
    found = engine(policy=policy)
    is_there(found, "old", "n0", "best-effort")
    assert (comes(found, "new", slowdown_limit=slowdown_limit) is not None) == fits, (
        "where it comes"
    )
    found = engine(policy=policy)
    is_there(found, "old", "n0", slowdown_limit=slowdown_limit)
    assert (comes(found, "new", job_class="best-effort") is not None) == fits, "where it is"


@BOTH
def test_it_never_allows_more_than_the_policy(policy) -> None:
    found = engine(told(1.2), policy)
    is_there(found, "old", "n0", "best-effort")
    assert comes(found, "new", slowdown_limit=(("", 500),)) is None


def test_the_options_bound_counts_up_to_the_slack() -> None:
    for slowdown_limit, fits in ((125, True), (115, False), (300, True)):
        found = engine(told(1.2), critical=1.3)
        is_there(found, "old", "n0", "best-effort")
        assert (comes(found, "new", slowdown_limit=(("", slowdown_limit),)) is not None) == fits


def test_it_counts_for_latency_critical_pods_alone() -> None:
    found = engine()
    is_there(found, "old", "n0", "batch", slowdown_limit=(("", 100),))
    assert comes(found, "new", job_class="batch", slowdown_limit=(("", 100),)) == "n0"


def test_each_gpu_model_has_its_own() -> None:
    found = engine(models=("T4", "A100"))
    for at in (0, 1):
        is_there(found, f"old-{at}", f"n{at}", "best-effort")
    slowdown_limit = (("t4", 102), ("a100", 105))
    assert comes(found, "one", slowdown_limit=slowdown_limit) == "n1"
    assert comes(found, "two", slowdown_limit=slowdown_limit) is None


def test_what_costs_nothing_may_be_beside_a_pod_without_slack() -> None:
    found = engine(told(1.0))
    is_there(found, "old", "n0", slowdown_limit=(("", 100),))
    assert comes(found, "new", slowdown_limit=(("", 100),)) == "n0"


def test_the_matching_keeps_it() -> None:
    """Two wait for two GPUs with a pod each; the one there with little slack takes none of them."""
    found = engine(models=("T4", "T4"), patience=0)
    is_there(found, "tight", "n0", slowdown_limit=(("", 103),))
    is_there(found, "loose", "n1", slowdown_limit=(("", 110),))
    places = [comes(found, f"new-{at}", at, job_class="best-effort") for at in range(2)]
    assert sorted(places, key=str) == [None, "n1"]


@BOTH
def test_the_record_says_what_was_allowed(policy) -> None:
    found = engine(policy=policy)
    is_there(found, "old", "n0", slowdown_limit=(("", 107),))
    (bound,) = found.handle(PodAdded(asks("new", job_class="best-effort")), 0)
    assert [one.allowed for one in bound.record.predicted] == [0.0, 1.07]
    found = engine(policy=policy)
    is_there(found, "old", "n0", "best-effort")
    (bound,) = found.handle(PodAdded(asks("new", slowdown_limit=(("", 300),))), 0)
    assert [one.allowed for one in bound.record.predicted] == [1.10, 0.0]
    for more in (
        {},
        {"slowdown_limit": (("a100", 107),)},
        {"slowdown_limit": (("", 107),), "job_class": "batch"},
    ):
        found = engine(policy=policy)
        is_there(found, "old", "n0", "best-effort")
        (bound,) = found.handle(PodAdded(asks("new", **more)), 0)
        assert [one.allowed for one in bound.record.predicted] == [0.0, 0.0], more


@BOTH
def test_pods_that_say_much_of_other_models_are_alike(policy) -> None:
    """Each has a text of its own; decisions would slow down if each were company of its own."""
    found = engine(told(1.01), policy=policy, models=("T4",) * 8)
    for at in range(8):
        is_there(found, f"old-{at}", f"n{at}", slowdown_limit=((f"x{at}", 100), ("t4", 108)))
    assert len(found.ledger.table.residents.members) == 2, "nobody, and one such pod"
    (bound,) = found.handle(PodAdded(asks("new", slowdown_limit=(("y", 100), ("t4", 105)))), 0)
    assert [one.allowed for one in bound.record.predicted] == [1.05, 1.08]


@BOTH
def test_slowdown_beyond_all_numbers_is_no_company_and_no_error(policy) -> None:
    """Bounds of three pods add up to more than a number can say."""
    bounds = told(1.0)
    bounds["upper"] = np.full((2, 3, 3), 600.0).tobytes()
    found = engine(bounds, policy)
    for at in range(2):
        is_there(found, f"old-{at}", "n0", mib=1_000)
    assert comes(found, "new", mib=1_000) is None
    made = built_in().create(policy)
    made.take_input(INTERFERENCE, msgspec.convert(bounds, InterferenceTable))
    there = found.ledger.table.residents.on(0)
    told_of = made.predict(asks("new").shape, there, "T4")
    assert [one.upper for one in told_of] == [0.0] * 3


# --- small pods ----------------------------------------------------------------------------------


def crowd(found, count=4, **more):
    """How many of so many get a place, one after the other."""
    return sum(comes(found, f"p{at}", at, **more) is not None for at in range(count))


def test_small_latency_critical_pods_share_by_four() -> None:
    assert crowd(engine(told(1.01)), count=6, mib=2_000) == 4
    assert crowd(engine(told(1.01), most_small=3), mib=2_000) == 3
    assert crowd(engine(told(1.01), most_small=1), mib=2_000) == 2, "never fewer than `most`"
    assert crowd(engine(told(1.01), most=3, most_small=1), mib=2_000) == 3
    with pytest.raises(BadInputError, match="most_small"):
        engine(most_small=0)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"mib": 4_000}, 4),
        ({"mib": 4_000, "milli": 250}, 4),
        ({"mib": 0, "milli": 250}, 4),
        ({"mib": 4_000, "milli": 251}, 2),
        ({"mib": 4_001}, 2),
        ({"mib": 0, "milli": 251}, 2),
        ({"mib": 2_000, "job_class": "batch"}, 2),
        ({"mib": 2_000, "job_class": "best-effort"}, 2),
        ({"mib": 2_000, "job_class": ""}, 2),
    ],
)
def test_who_is_small(more, count) -> None:
    assert crowd(engine(told(1.01), patience=0), **more) == count


def test_a_pod_may_be_small_on_a_large_card_alone() -> None:
    found = engine(told(1.01), patience=0)
    small = node("half", gpus=1, model="T4", memory_mib=CARD_MIB // 2)
    large = node("n0", gpus=1, model="T4", memory_mib=CARD_MIB)
    found.ledger.set_nodes([small, large])
    places = [comes(found, f"p{at}", at, mib=2_500) for at in range(7)]
    assert [places.count(name) for name in ("n0", "half", None)] == [4, 2, 1]


@pytest.mark.parametrize(
    "other",
    [{"job_class": "batch"}, {"job_class": "best-effort"}, {"mib": 4_001}],
)
def test_one_batch_or_large_pod_among_them_and_it_is_two(other) -> None:
    for first in (True, False):
        found = engine(told(1.01), patience=0)
        got = [comes(found, "other", 0, **other) is not None] if first else []
        got += [comes(found, f"p{at}", at, mib=2_000) is not None for at in range(2)]
        got += [] if first else [comes(found, "other", 9, **other) is not None]
        assert got == [True, True, False]


def test_unknown_applications_are_two_at_most() -> None:
    """Neither among known ones, nor by themselves, nor where the bounds are not calibrated."""
    found = engine(told(1.01), patience=0)
    assert comes(found, "a", mib=1_000) == comes(found, "b", mib=1_000) == "n0"
    assert comes(found, "c", mib=1_000, application="who?") is None
    assert crowd(engine(told(1.01), patience=0), mib=1_000, application="who?") <= 2
    doubtful = told(1.01, tier=-PredictionTier.LEARNED)
    assert crowd(engine(doubtful, patience=0), mib=1_000) <= 2
    found = engine(told(1.01), patience=0)
    is_there(found, "a", "n0", mib=1_000)
    is_there(found, "b", "n0", mib=1_000, application="who?")
    assert comes(found, "c", mib=1_000) is None


def test_all_bounds_hold_for_each_of_them_and_slowdowns_multiply() -> None:
    """1.04 · 1.04 is within 1.10, 1.04³ is not; beside one with less slack it is two."""
    assert crowd(engine(told(1.04)), mib=1_000) == 3
    found = engine(told(1.04))
    assert comes(found, "tight", mib=1_000, slowdown_limit=(("", 107),)) == "n0"
    assert crowd(found, mib=1_000) == 1
    assert crowd(engine(told(1.04)), mib=1_000, slowdown_limit=(("", 109),)) == 3

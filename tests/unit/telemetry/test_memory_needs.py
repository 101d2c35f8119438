"""Idle memory is that of policies.md 7.1 read slowly, never more, and none where unsure."""

import math

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from memory_needs_slowly import Pod, Series, slow_holds

from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.core.ledger import Ledger
from weft.model import Share
from weft.telemetry.feed.memory_needs import (
    GpuMemory,
    MemoryNeeds,
    ResidentRows,
    WarmUp,
    idle_by_uid,
    measure,
    rows_of,
)
from weft.testing import node, placement

C = 10_000
AGES = [120.0 - 10 * i for i in range(13)]
NONE: Series = [None] * 13


def flat(mib: float) -> Series:
    return [mib] * 13


def ask(
    gpus: list[list[Pod]], used: list[Series], freshness: list[int], ages: list[float]
) -> MemoryNeeds:
    """The fast answer for GPUs of `C` MiB each."""
    pods = [(row, pod) for row, there in enumerate(gpus) for pod in there]
    residents = ResidentRows(
        np.array([row for row, _ in pods], dtype=np.int64),
        np.array([pod.asked for _, pod in pods], dtype=np.int64),
        np.array([np.nan if pod.age_s is None else pod.age_s for _, pod in pods]),
        np.array([pod.lends for _, pod in pods], dtype=np.bool_),
        np.array([pod.warmed for _, pod in pods], dtype=np.bool_),
        np.array([pod.series for _, pod in pods], dtype=np.float64).reshape(len(pods), len(ages)),
        np.array([pod.asked if pod.expected is None else pod.expected for _, pod in pods], int),
        np.array([pod.watched for _, pod in pods], dtype=np.float64),
    )
    cards = GpuMemory(
        np.full(len(gpus), C),
        np.array(used, dtype=np.float64).reshape(len(gpus), len(ages)),
        np.array(freshness, dtype=np.int8),
    )
    return measure(residents, cards, np.array(ages))


def one(pods: list[Pod], used: Series, freshness: int = FRESH) -> tuple[list[int], int, int]:
    """Idle by pod, need and freshness of one GPU."""
    found = ask([pods], [used], [freshness], AGES)
    return found.idle_mib.tolist(), int(found.need_mib[0]), int(found.freshness[0])


mib = st.sampled_from([0.0, 300.0, 2_000.0, 2_010.0, 2_100.0, 5_000.0, 9_000.0, 10_000.0])
series = st.one_of(
    st.just(NONE), mib.map(flat), st.lists(st.none() | mib, min_size=13, max_size=13)
)
pods = st.builds(
    Pod,
    st.sampled_from([0, 500, 3_000, 4_500, 9_000]),
    st.sampled_from([None, -5.0, 0.0, 15.0, 59.9, 60.0, 75.0, 119.0, 4_000.0]),
    series,
    st.booleans() | st.just(True),
    st.booleans(),
    st.none() | st.sampled_from([300, 2_005, 4_000, 9_500]),
    st.sampled_from([math.inf, math.inf, 0.0, 119.0, 120.0]),
)
freshness = st.sampled_from([FRESH, FRESH, STALE, MISSING])
cards = st.tuples(st.lists(pods, max_size=4), series, freshness)


@settings(max_examples=few_or_many(80, 200))
@given(st.lists(cards, min_size=1, max_size=3))
def test_it_is_what_the_text_says_and_never_more_is_idle(
    told: list[tuple[list[Pod], Series, int]],
) -> None:
    found = ask([p for p, _, _ in told], [u for _, u, _ in told], [f for _, _, f in told], AGES)
    at = 0
    for row, (there, used, fresh) in enumerate(told):
        slow = slow_holds(there, C, used, fresh, AGES)
        mine = slice(at, at + len(there))
        at += len(there)
        assert found.hold_mib[mine].tolist() == slow.hold
        assert found.warm[mine].tolist() == slow.warm
        assert int(found.need_mib[row]) == slow.need
        assert int(found.freshness[row]) == slow.freshness
        idle = found.idle_mib[mine].tolist()
        promised = sum(pod.asked for pod in there)
        # What is left to the pods, and what is beyond them, covers the need.
        assert promised - sum(idle) + int(found.beyond_mib[row]) >= slow.need
        assert int(found.beyond_mib[row]) == max(0, slow.need - promised)
        for pod, hold, is_warm, lent in zip(there, slow.hold, slow.warm, idle, strict=True):
            assert 0 <= lent <= max(0, pod.asked - hold)
            like = pod.expected is not None and pod.expected < pod.asked
            assert not lent or ((is_warm or like) and pod.lends and slow.freshness == FRESH)
        event(f"something idle {any(idle)}")
        event(f"beyond {bool(found.beyond_mib[row])}")


def test_what_a_warm_pod_does_not_use_is_idle() -> None:
    lender = Pod(9_000, 600, flat(3_000))
    assert one([lender], flat(3_200)) == ([5_800], 3_200, FRESH)  # the context is counted, too
    assert one([lender._replace(series=NONE)], flat(3_200)) == ([5_800], 3_200, FRESH)


def test_nothing_is_idle_of_pods_that_warm_up_or_are_latency_critical() -> None:
    lender = Pod(9_000, 600, flat(3_000))
    assert one([lender._replace(age_s=59)], flat(3_000))[0] == [0]
    assert one([lender._replace(age_s=None)], flat(3_000))[0] == [0]
    assert one([lender._replace(lends=False)], flat(3_000))[:2] == ([0], 9_000)
    growing: Series = [100.0 + 200 * i for i in range(13)]
    assert one([lender._replace(series=growing)], growing)[0] == [0]
    warmed = lender._replace(series=growing, warmed=True)
    assert one([warmed], growing)[0] == [6_500]  # it was stable once; now its peak counts


def test_a_pod_that_came_by_what_others_used_is_held_at_that_while_it_warms_up() -> None:
    """Its series so far, and what it is to be held at: 4,000 were expected, of 9,000 asked."""
    new = Pod(9_000, 30, [None] * 10 + [100.0, 200.0, 300.0], expected=4_000)
    used: Series = [0.0] * 10 + [150.0, 250.0, 350.0]
    assert one([new], used)[:2] == ([4_950], 4_050)  # what the card uses beside it, too
    assert one([new._replace(age_s=None, series=NONE)], flat(0.0)) == ([5_000], 4_000, FRESH)
    beyond = new._replace(series=[None] * 11 + [4_001.0, 500.0])
    assert one([beyond], [*used[:-1], 500.0])[0] == [0]  # it is not like them
    assert one([new._replace(lends=False)], used)[0] == [0]
    for age in (STALE, MISSING):
        assert one([new], used, age)[:2] == ([0], 9_000)


def test_a_warm_pod_is_held_at_what_is_still_to_be_expected_of_it() -> None:
    """Late peaks are what the others are known for; one that has passed them goes by its own."""
    pod = Pod(9_000, 600, flat(3_000), expected=4_000)
    assert one([pod], flat(3_000))[0] == [5_000]
    assert one([pod._replace(series=flat(4_500))], flat(4_500))[0] == [4_500]
    assert one([pod._replace(expected=2_000)], flat(3_000))[0] == [6_000]


def test_a_gpu_with_a_pod_of_before_that_is_not_known_to_be_warm_is_old_for_two_minutes() -> None:
    warm = Pod(4_000, 500, flat(1_000))
    short: Series = [*[None] * 12, 2_000.0]
    for watched, fresh in ((0.0, STALE), (119.0, STALE), (120.0, FRESH), (math.inf, FRESH)):
        pod = Pod(5_000, 500, short, watched=watched)
        idle, need, age = one([warm, pod], flat(3_000))
        assert age == fresh
        assert (idle, need) == (([0, 0], 9_000) if fresh == STALE else ([3_000, 0], 6_000))
    pod = Pod(5_000, 500, short, watched=0.0, warmed=True)
    assert one([warm, pod], flat(3_000)) == ([3_000, 3_000], 3_000, FRESH)
    assert one([pod._replace(warmed=False)], flat(3_000), MISSING)[2] == MISSING


def test_a_lost_sample_or_two_change_nothing() -> None:
    """Else the pod would need all it asked again, and who borrowed of it would have to go."""
    used, lender = flat(3_000), Pod(9_000, 600, flat(3_000), warmed=True)
    for lost in (1, 2):
        gap: Series = [*flat(3_000)[lost:], *[None] * lost]
        assert one([lender._replace(series=gap)], used) == one([lender], used)
        assert one([lender._replace(series=gap)], gap) == one([lender], used)
    silent: Series = [*flat(3_000)[3:], None, None, None]
    assert one([lender._replace(series=silent)], silent, STALE) == ([0], 9_000, STALE)


def test_a_newcomer_without_a_series_is_not_taken_for_its_lender() -> None:
    lender = Pod(9_000, 600, NONE, warmed=True)
    used: Series = [3_000.0] * 11 + [6_500.0, 7_000.0]
    newcomer = Pod(5_000, 15, NONE)
    assert one([lender, newcomer], used) == ([6_000, 0], 8_000, FRESH)
    used[-1] = 8_600.0  # more than the lender had, and the newcomer asked: somebody grew
    assert one([lender, newcomer], used) == ([5_400, 0], 8_600, FRESH)
    used[-1] = 3_000.0  # it has not begun
    assert one([lender, newcomer], used) == ([6_000, 0], 8_000, FRESH)


def test_nothing_is_idle_where_metrics_are_old_or_cannot_be_true() -> None:
    lender = Pod(9_000, 600, flat(3_000))
    assert one([lender], flat(3_000), STALE) == ([0], 9_000, STALE)
    assert one([lender], flat(9_500), STALE) == ([0], 9_500, STALE)
    assert one([lender], flat(3_000), MISSING) == ([0], 9_000, MISSING)
    assert one([lender], flat(0)) == ([0], 9_000, MISSING)
    assert one([lender], flat(C)) == ([0], 9_000, MISSING)
    assert one([lender], flat(2_000)) == ([0], 9_000, MISSING)  # the pod says more than the card
    assert one([lender], NONE) == ([0], 9_000, MISSING)


def test_a_pod_series_stuck_at_nothing_or_everything_is_none() -> None:
    for stuck in (0.0, float(C)):
        lender = Pod(9_000, 600, flat(stuck), warmed=True)
        assert one([lender], flat(3_000)) == ([6_000], 3_000, FRESH)
    assert one([Pod(9_000, 600, flat(0))], flat(3_000))[0] == [0]  # it may not have begun


def test_what_is_used_beyond_all_requests_is_told() -> None:
    found = ask([[Pod(2_000, 600, flat(2_500))]], [flat(4_000)], [FRESH], AGES)
    assert found.beyond_mib.tolist() == [2_000]
    assert found.idle_mib.tolist() == [0]


def test_shares_become_rows_and_rows_become_shares() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=C)])
    two = placement("two", "a", shares=[Share(0, 1, 4_000, 0), Share(1, 1, 1_000, 0)])
    for place in (placement("one", "a", 0, memory_mib=9_000), two, placement("x", "b", 0)):
        ledger.adopt(place)
    held = list(ledger.holdings.values())
    rows = rows_of(ledger.table, held)
    assert rows.uids == ("one", "two")
    assert rows.gpu.tolist() == [0, 1]
    assert rows.asked_mib.tolist() == [9_000, 5_000]
    told = idle_by_uid(ledger.table, held, rows, [6_000, 4_500])
    assert told == {"one": (6_000,), "two": (4_000, 500)}
    assert idle_by_uid(ledger.table, held, rows, [0, 0]) == {}


def idle_after(age_s: float, warm_up: WarmUp, watched: float = math.inf) -> int:
    """Idle memory of the GPU of a pod of 4,500 MiB that uses 2,000, which it has for so long."""
    residents = ResidentRows(
        np.array([0]),
        np.array([4_500]),
        np.array([age_s]),
        np.array([True]),
        np.array([False]),
        np.array([flat(2_000.0)], dtype=np.float64),
        watched_s=np.array([watched]),
    )
    cards = GpuMemory(np.array([C]), np.array([flat(2_000.0)]), np.array([FRESH], dtype=np.int8))
    return int(measure(residents, cards, np.array(AGES), warm_up).idle_mib[0])


def test_how_long_pods_warm_up_can_be_said() -> None:
    for age_s, usual, patient, hasty in ((15, 0, 0, 2_500), (70, 2_500, 0, 2_500)):
        assert idle_after(age_s, WarmUp()) == usual
        assert idle_after(age_s, WarmUp(warm_s=100.0)) == patient
        assert idle_after(age_s, WarmUp(5.0, 10.0)) == hasty
    assert idle_after(1_000, WarmUp(stable_s=60.0)) == 2_500
    assert idle_after(1_000, WarmUp(stable_s=200.0)) == 0  # longer than anybody looks back


def test_who_was_there_before_the_process_is_watched_for_as_long_as_pods_may_take() -> None:
    assert [WarmUp(*told).watch_s for told in ((), (5.0,), (300.0,), (100.0, 200.0))] == [
        120.0,
        120.0,
        600.0,
        300.0,
    ]

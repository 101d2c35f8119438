"""Whole cards without marks: what is guessed follows from the API's objects, in whatever order."""

import random

import pytest
from account_world import CARDS, Account, pod
from led_cluster import led
from live_world import CARD_MIB, LONG_AGO, World, bind, until, world
from live_world import pod as shared
from long_form import few_or_many

from weft.cluster.control.live_cluster import EngineCluster
from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd
from weft.kube.pods import Pod

WHOLE = {"nvidia.com/gpu": 1}
SHARE = {"weft.dev/gpu-memory": 6_000}


def test_marked_pods_come_first_in_whatever_order() -> None:
    unmarked, marked = pod("a", WHOLE), pod("z", WHOLE, CARDS - 1)
    for order in ([unmarked, marked], [marked, unmarked]):
        account = Account().take(*order)
        assert (account.cards("a"), account.cards("z")) == ([1], [2])


def test_a_card_is_held_even_where_none_is_idle() -> None:
    marked = [pod(f"m{gpu}", SHARE, gpu) for gpu in range(CARDS)]
    account = Account().take(*marked, pod("a", WHOLE))
    assert account.free() == [10_000, 10_000, -6_000]
    assert "on GPUs that other pods hold, too" in account.view.assumed["a"]
    account.take(pod("b", {"nvidia.com/gpu": CARDS}))
    assert account.cards("b") == [0, 1, 2]
    assert max(account.free()) < 0


def test_where_none_is_idle_the_emptiest_card_is_taken() -> None:
    marked = [pod("m0", SHARE, 0), pod("m1", WHOLE, 1), pod("m2", WHOLE, 2)]
    account = Account().take(*marked, pod("a", WHOLE))
    assert account.cards("a") == [0]


def test_a_card_about_to_be_bound_is_not_guessed_while_another_is_idle() -> None:
    account = Account()
    coming = Account().take(pod("ours", WHOLE, 2)).view.decided("ours")
    assert coming
    assert account.ledger.reserve(coming)
    account.take(pod("a", WHOLE))
    assert account.cards("a") == [1]
    account.take(pod("ours", WHOLE, 2))
    assert account.cards("a") == [1]
    account.forget(pod("ours", WHOLE, 2))
    assert account.cards("a") == [2]


def test_a_binding_that_failed_is_seen_with_the_next_change() -> None:
    account = Account()
    coming = Account().take(pod("ours", WHOLE, 2)).view.decided("ours")
    assert coming
    account.ledger.reserve(coming)
    account.take(pod("a", WHOLE))
    account.ledger.release("ours")
    account._hear([])
    assert account.cards("a") == [2]


def test_what_was_assumed_is_over_when_marks_say_it() -> None:
    account = Account().take(pod("a", SHARE))
    assert account.cards("a") == [0, 1, 2]
    assert "every card" in account.view.assumed["a"]
    account.take(pod("a", SHARE, 1))
    assert account.cards("a") == [1]
    assert account.view.assumed == {}


@pytest.mark.parametrize("seed", range(few_or_many(2, 40)))
def test_a_live_ledger_is_what_a_new_one_would_be(seed: int) -> None:
    """Also on the way: no card is free for a moment that is held before and after."""
    rng = random.Random(seed)
    live, there = Account(), dict[str, Pod]()
    for step in range(40):
        before = live.free()
        if there and rng.random() < 0.4:
            live.forget(there.pop(rng.choice(sorted(there))))
        else:
            known = there and rng.random() < 0.2
            uid = rng.choice(sorted(there)) if known else f"{rng.randrange(1000)}-{step}"
            asks = rng.choice([WHOLE, SHARE, {"nvidia.com/gpu": 2}])
            gpu = rng.choice([None, *range(CARDS)]) if "nvidia.com/gpu" not in asks else None
            if asks == WHOLE:
                gpu = rng.choice([None, rng.randrange(CARDS)])
            there[uid] = pod(uid, asks, gpu, born=int(uid[0]))
            live.take(there[uid])
        for most, *pair in zip(live.most_free, before, live.free(), strict=True):
            assert most <= max(0, *pair)
        anew = Account().take(*(there[uid] for uid in sorted(there)))
        assert live.all() == anew.all()
        assert live.view.assumed == anew.view.assumed
        _nothing_in_use_is_free(live, there)


def _nothing_in_use_is_free(live: Account, there: dict[str, Pod]) -> None:
    """Marked pods where they are; the unmarked hold as many cards as they ask, full ones."""
    full = sum(free <= 0 for free in live.free())
    wanted = 0
    for uid, one in there.items():
        asks = one.spec.containers[0].resources.limits or {}
        if not one.metadata.annotations and "nvidia.com/gpu" in asks:
            assert len(live.cards(uid)) == asks["nvidia.com/gpu"]
            wanted += int(asks["nvidia.com/gpu"])
    assert full >= min(wanted, CARDS)


async def test_after_a_restart_no_card_in_use_is_given_away() -> None:
    async with world() as made:
        server = made.server
        server.add("pods", shared("z", CARD_MIB))
        bind(server, "z", 1, LONG_AGO, memory_mib=CARD_MIB)
        foreign = shared("a", scheduler="default-scheduler")
        foreign["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        server.add("pods", foreign)
        bind(server, "a", None, LONG_AGO)
        await until(lambda: used(made.live) == [CARD_MIB] * 2)
        await made.live.stop()
        await started_anew(made)
        assert used(made.live) == [CARD_MIB] * 2
        assert made.parts.guard.over == {}


def used(live: EngineCluster) -> list[int]:
    return [int(mib) for mib in live.engine.ledger.table.memory_used]


async def started_anew(made: World) -> None:
    made.parts = led(made.client, [Profile("weft", [Fgd()])])
    made.live = made.parts.live
    await made.live.start()
    await made.live.lead(afresh=False)

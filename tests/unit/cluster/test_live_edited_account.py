"""Random edits of what Weft wrote, on a node that loses and regains GPUs: one account for all."""

import json
import random

import pytest
from account_world import CARDS, Account, pod
from live_world import CARD_MIB
from long_form import few_or_many
from msgspec.structs import replace

from weft.kube.pods import Pod
from weft.model.annotations import DELIVERY, PLACEMENT, PLACEMENT_COPY
from weft.model.delivery import DeliveredCard, DeliveryRecord, encode_delivery

ASKS = ({"weft.dev/gpu-memory": 6_000}, {"weft.dev/gpu-memory": 3_000}, {"nvidia.com/gpu": 1})


def bound(uid: str, asks: dict[str, int], gpu: int) -> Pod:
    """A pod as Weft binds it."""
    made = pod(uid, asks, gpu)
    marks = made.metadata.annotations or {}
    (row,) = json.loads(marks[PLACEMENT])["shares"]
    card = DeliveredCard(row[1], "", row[2], row[3], CARD_MIB, 1_000)
    record = encode_delivery(DeliveryRecord(uid, "n", "weft", (card,), {}))
    return marked(made, {**marks, PLACEMENT_COPY: marks[PLACEMENT], DELIVERY: record})


def marked(one: Pod, marks: dict[str, str]) -> Pod:
    return replace(one, metadata=replace(one.metadata, annotations=marks))


def edited(rng: random.Random, one: Pod) -> Pod:
    """One of its three annotations is not what it was."""
    marks = dict(one.metadata.annotations or {})
    key = rng.choice((PLACEMENT, PLACEMENT_COPY, DELIVERY))
    value = json.loads(marks[key])
    row = [0, rng.randrange(CARDS + 2), rng.randrange(20_000), rng.randrange(1_001), ""]
    value |= rng.choice(({"shares": [row]}, {"shares": []}, {"pod": "x"}, {"node": "m"}))
    marks[key] = rng.choice((json.dumps(value), json.dumps(value), "{"))
    if rng.random() < 0.2:
        del marks[key]
    return marked(one, marks)


@pytest.mark.parametrize("seed", range(few_or_many(10, 30)))
def test_an_edit_of_one_mark_changes_nothing_and_a_new_process_sees_the_same(seed: int) -> None:
    rng = random.Random(seed)
    live, there, was = Account(), dict[str, Pod](), dict[str, Pod]()
    shown = CARDS
    for step in range(25):
        chance = rng.random()
        if chance < 0.3 or not there:
            uid, gpu = f"{step}", rng.randrange(shown)
            there[uid] = was[uid] = bound(uid, rng.choice(ASKS), gpu)
            live.take(there[uid])
        elif chance < 0.7:
            uid = rng.choice(sorted(there))
            there[uid] = edited(rng, was[uid]) if rng.random() < 0.8 else was[uid]
            live.take(there[uid])
        elif chance < 0.85:
            live.forget(there.pop(rng.choice(sorted(there))))
        else:
            shown = rng.randint(1, CARDS)
            live.shows(shown)
        anew = Account(shown).take(*(there[uid] for uid in sorted(there)))
        assert live.all() == anew.all()
        assert live.view.doubts.keys() == anew.view.doubts.keys()
        _holds_what_it_was_given(live, there, was, shown)


def _holds_what_it_was_given(
    live: Account, there: dict[str, Pod], was: dict[str, Pod], shown: int
) -> None:
    for uid, one in there.items():
        (row,) = json.loads((was[uid].metadata.annotations or {})[PLACEMENT])["shares"]
        placed = live.view.decided(uid)
        assert placed is not None
        shares = [(share.gpu, share.memory_mib, share.milli) for share in placed.shares]
        assert shares == [tuple(row[1:4])]
        whole = (one.metadata.annotations or {}) == (was[uid].metadata.annotations or {})
        assert live.view.unsure(uid) <= (not whole)

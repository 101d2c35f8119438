"""Sets of co-residents have numbers: equal sets, equal number, whatever came first."""

import random

import msgspec
import pytest

from weft.core.ledger import Ledger
from weft.core.ledger.table import KEPT, Resident, Residents
from weft.model import Share
from weft.testing import node, placement


def runs(uid: str, application: str, gpu: int = 0, node: str = "a", job_class: str = ""):

    place = placement(uid, node, gpu, memory_mib=10)
    return msgspec.structs.replace(place, application=application, job_class=job_class)


def co_residents(ledger: Ledger) -> list[int]:
    found: list[int] = ledger.table.residents.co_residents.tolist()
    return found


def test_equal_company_has_equal_numbers_and_nobody_is_zero() -> None:
    ledger = Ledger([node("a", gpus=3)])
    ledger.adopt(runs("1", "cnn", 0))
    ledger.adopt(runs("2", "lammps", 0))
    ledger.adopt(runs("3", "lammps", 1))
    ledger.adopt(runs("4", "cnn", 1))
    first, second, third = co_residents(ledger)
    assert first == second != third == 0
    members = ledger.table.residents.members[first]
    assert members == (Resident("cnn", ""), Resident("lammps", ""))
    ledger.adopt(runs("5", "cnn", 2, job_class="batch"))
    assert len(set(co_residents(ledger))) == 2, "of another class it is another company"


def test_a_pod_with_two_shares_of_one_gpu_is_there_once() -> None:
    ledger = Ledger([node("a", gpus=2)])

    place = placement("1", "a", shares=[Share(0, 0, 10, 0), Share(1, 0, 10, 0), Share(2, 1, 10, 0)])
    ledger.adopt(msgspec.structs.replace(place, application="cnn"))
    assert [len(ledger.table.residents.on(device)) for device in (0, 1)] == [1, 1]


def test_it_follows_every_change_and_its_undoing() -> None:
    """Against a list kept beside it, over random arrivals, departures, rollbacks and new nodes."""
    dice = random.Random(7)
    ledger = Ledger([node("a", gpus=2), node("b", gpus=2)])
    there: dict[str, tuple[str, str, int]] = {}

    def check() -> None:
        table = ledger.table
        for row, one in enumerate(table.nodes):
            for gpu in range(len(one.gpus)):
                wanted = sorted(
                    app for app, where, on in there.values() if (where, on) == (one.name, gpu)
                )
                found = table.residents.on(table.device_row(row, gpu))
                assert [who.application for who in found] == wanted

    for number in range(300):
        if there and dice.random() < 0.4:
            uid = dice.choice(sorted(there))
            ledger.release(uid)
            del there[uid]
        else:
            told = (dice.choice("xyz"), dice.choice("ab"), dice.randrange(2))
            ledger.adopt(runs(str(number), told[0], told[2], told[1]))
            there[str(number)] = told
        if number % 20 == 0:
            ledger.checkpoint()
            for uid in list(there)[:3]:
                ledger.release(uid)
            ledger.rollback()
        if number % 50 == 0:
            ledger.set_nodes([node(f"new-{number}", gpus=1)])
        check()


def test_old_companies_are_forgotten() -> None:
    residents = Residents(2)

    for number in range(KEPT + 10):
        residents.change(0, Resident(str(number), ""), 1)
        residents.change(0, Resident(str(number), ""), -1)
    assert residents.epoch == 1
    assert len(residents.members) < 20
    assert residents.on(0) == residents.members[int(residents.co_residents[0])] == ()


@pytest.mark.parametrize(
    ("memory_mib", "milli", "small"),
    [
        (250, 0, True),
        (251, 0, False),
        (0, 250, True),
        (0, 251, False),
        (250, 250, True),
        (100, 251, False),
        (251, 100, False),
        (0, 0, False),
    ],
)
def test_small_is_a_quarter_of_the_card_of_what_it_asks(memory_mib, milli, small) -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000), node("b", gpus=1, memory_mib=2000)])
    place = placement("1", "a", 0, memory_mib=memory_mib, milli=milli)
    ledger.adopt(msgspec.structs.replace(place, job_class="latency-critical"))
    assert ledger.table.residents.on(0)[0].small == small
    ledger.adopt(msgspec.structs.replace(place, job_class="batch"))
    assert not ledger.table.residents.on(0)[0].small, "only latency-critical ones are told apart"


def test_all_its_shares_of_a_gpu_count_together() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    shares = [Share(0, 0, 200, 0), Share(1, 0, 200, 0), Share(2, 1, 200, 0)]
    place = placement("1", "a", shares=shares)
    ledger.adopt(msgspec.structs.replace(place, job_class="latency-critical"))
    assert [ledger.table.residents.on(device)[0].small for device in (0, 1)] == [False, True]
    ledger.release("1")
    assert [ledger.table.residents.on(device) for device in (0, 1)] == [(), ()]


@pytest.mark.parametrize(
    ("slowdown_limit", "percent"),
    [
        ((), 0),
        ((("t4", 110),), 110),
        ((("h100", 7), ("t4", 110), ("", 300)), 110),
        ((("a100", 130),), 0),
        ((("", 100),), 100),
    ],
)
def test_of_its_slack_only_the_percent_on_the_card_counts(slowdown_limit, percent) -> None:
    """Pods that differ in what they say of other cards are alike, and so is who is not critical."""
    ledger = Ledger([node("a", gpus=1, model="Tesla-T4"), node("b", gpus=1, model="L4")])
    place = msgspec.structs.replace(
        placement("1", "a", 0, memory_mib=10), slowdown_limit=slowdown_limit
    )
    ledger.adopt(msgspec.structs.replace(place, job_class="latency-critical"))
    assert [one.bound_percent for one in ledger.table.residents.on(0)] == [percent]
    ledger.set_nodes([node("a", gpus=1, model="L4")])
    any_model = dict(slowdown_limit).get("", 0)
    assert [one.bound_percent for one in ledger.table.residents.on(0)] == [any_model]
    ledger.adopt(msgspec.structs.replace(place, job_class="batch"))
    assert [one.bound_percent for one in ledger.table.residents.on(0)] == [0]

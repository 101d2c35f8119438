"""The ledger's rules, one by one."""

import msgspec
import pytest

from weft.core.ledger import FAR, Holding, Ledger, RequestLimits, audit
from weft.core.ledger.audit import differences
from weft.core.ledger.table import POD_CLASSES
from weft.model import HostPort, Placement, Share
from weft.testing import node, placement


def free(ledger: Ledger, name: str, gpu: int = 0) -> tuple[int, int]:
    """Free MiB and thousandths on a GPU, by its position."""
    device = ledger.table.start[ledger.table.row_of[name]] + gpu
    return int(ledger.table.device_memory_free[device]), int(ledger.table.device_milli_free[device])


def copy_of(ledger: Ledger) -> Ledger:
    """A ledger rebuilt from what the live one knows."""
    fresh = Ledger(ledger.table.nodes, ledger.limits)
    for held in ledger.holdings.values():
        fresh.adopt(held.placement)
    return fresh


# --- reserve, commit, release --------------------------------------------------------------------


def test_a_reservation_takes_exactly_its_share_and_gives_it_back() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000, extended={"x": 3})])
    wanted = placement(
        "p", "a", 1, memory_mib=300, milli=250, cpu_milli=500, host_memory_mib=64, extended={"x": 2}
    )
    before = copy_of(ledger).table
    assert ledger.reserve(wanted)
    assert free(ledger, "a", 0) == (1000, 1000)
    assert free(ledger, "a", 1) == (700, 750)
    assert ledger.table.cpu_free[0] == ledger.table.cpu_total[0] - 500
    assert ledger.table.memory_free[0] == ledger.table.memory_total[0] - 64
    assert ledger.table.extended["x"].tolist() == [1]
    assert ledger.table.idle[0] == 1
    held = ledger.release("p")
    assert held == Holding(wanted, "reserved", FAR)
    assert differences(ledger.table, before) == []


@pytest.mark.parametrize(
    "refused",
    [
        placement("q", "a", 0, memory_mib=701),
        placement("q", "a", 0, milli=751),
        placement("q", "a", 7, memory_mib=1),
        placement("q", "a", -1, memory_mib=1),
        placement("q", "b", 0, memory_mib=1),
        placement("q", "a", cpu_milli=128_001),
        placement("q", "a", host_memory_mib=1_048_577),
        placement("q", "a", extended={"x": 2}),
        placement("q", "a", extended={"unheard-of": 1}),
        placement("q", "a", shares=[Share(0, 0, 400, 0), Share(1, 0, 301, 0)]),
        placement("q", "a", shares=[Share(0, 0, 0, 400), Share(1, 0, 0, 351)]),
        placement("q", "cordoned", 0, memory_mib=1),
        placement("q", "a", 1, memory_mib=1),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(refused: Placement) -> None:
    ledger = Ledger(
        [
            node("a", gpus=2, memory_mib=1000, broken=[1], extended={"x": 1}),
            node("cordoned", gpus=1, schedulable=False),
        ]
    )
    assert ledger.reserve(placement("p", "a", 0, memory_mib=300, milli=250))
    before, version = copy_of(ledger).table, ledger.version
    assert ledger.reserve(refused) is False
    assert differences(ledger.table, before) == []
    assert ledger.version == version
    assert "q" not in ledger.holdings


@pytest.mark.parametrize(
    "negative",
    [
        placement("q", "a", 0, memory_mib=-1),
        placement("q", "a", 0, milli=-1),
        placement("q", "a", cpu_milli=-1),
        placement("q", "a", host_memory_mib=-1),
        placement("q", "a", extended={"x": -1}),
        placement("q", "a", shares=[Share(0, 0, -1, 0), Share(1, 0, 1, 0)]),
    ],
)
def test_negative_amounts_free_nothing(negative: Placement) -> None:
    ledger = Ledger([node("a", gpus=1, extended={"x": 1})])
    assert not ledger.reserve(negative)


def test_an_extended_resource_named_twice_counts_twice() -> None:
    ledger = Ledger([node("a", extended={"x": 1})])
    assert not ledger.reserve(Placement("p", "a", extended=(("x", 1), ("x", 1))))
    assert ledger.reserve(Placement("p", "a", extended=(("x", 1),)))


def test_the_last_thousandth_and_the_last_mib_can_be_had() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000)])
    assert ledger.reserve(placement("p", "a", 0, memory_mib=999, milli=999))
    assert not ledger.reserve(placement("q", "a", 0, memory_mib=2))
    assert ledger.reserve(placement("q", "a", 0, memory_mib=1, milli=1))
    assert free(ledger, "a") == (0, 0)
    assert audit(ledger) == []


def test_every_operation_is_idempotent_by_uid() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    wanted = placement("p", "a", 0, memory_mib=600)
    assert ledger.reserve(wanted, 5)
    version = ledger.version
    assert ledger.reserve(wanted, 9)
    assert ledger.holdings["p"].deadline_ns == 5
    assert not ledger.reserve(placement("p", "a", 1, memory_mib=100))
    assert ledger.commit("p")
    assert ledger.commit("p")
    assert ledger.reserve(wanted)
    assert ledger.adopt(wanted) is False
    assert ledger.version == version
    assert free(ledger, "a") == (400, 1000)
    assert ledger.release("p") is not None
    assert ledger.release("p") is None
    assert not ledger.commit("p")
    assert free(ledger, "a") == (1000, 1000)


def test_a_late_reservation_expires_a_committed_one_never() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000)])
    for uid, deadline_ns in (("z", 10), ("b", 10), ("a", 7), ("later", 11), ("sure", 3)):
        assert ledger.reserve(placement(uid, "a", 0, memory_mib=1), deadline_ns)
    ledger.commit("sure")
    assert ledger.expire(6) == []
    assert ledger.expire(10) == ["a", "b", "z"]
    assert sorted(ledger.holdings) == ["later", "sure"]
    assert ledger.expire(11) == ["later"]
    assert list(ledger.holdings) == ["sure"]


def test_occupants_come_in_order_and_only_of_that_gpu() -> None:
    ledger = Ledger([node("a", gpus=2)])
    ledger.reserve(placement("p", "a", 0, memory_mib=1))
    ledger.reserve(placement("q", "a", [0, 1], memory_mib=1))
    ledger.reserve(placement("r", "a", 1, memory_mib=1))
    assert ledger.occupants("a", 0) == ["p", "q"]
    assert ledger.occupants("a", 1) == ["q", "r"]
    assert ledger.occupants("nowhere", 0) == []
    assert [held.placement.uid for held in ledger.pods_on("a")] == ["p", "q", "r"]
    assert list(ledger.pods_on("nowhere")) == []


# --- facts ---------------------------------------------------------------------------------------


def test_a_fact_is_charged_even_where_it_overbooks() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000)])
    assert ledger.adopt(placement("p", "a", 0, memory_mib=1200, milli=100))
    assert free(ledger, "a") == (0, 0)
    assert audit(ledger) == ["a GPU 0: memory 1200 MiB used of 1000, overbooked by 200"]
    assert not ledger.reserve(placement("q", "a", 0, memory_mib=1))
    ledger.release("p")
    assert audit(ledger) == []
    assert free(ledger, "a") == (1000, 1000)


def test_another_fact_about_the_same_pod_replaces_the_first() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000), node("b", gpus=1, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 0, memory_mib=600))
    assert ledger.adopt(placement("p", "b", 0, memory_mib=500))
    assert (free(ledger, "a"), free(ledger, "b")) == ((1000, 1000), (500, 1000))
    assert ledger.holdings["p"].state == "committed"


def test_a_fact_about_a_reservation_commits_it() -> None:
    ledger = Ledger([node("a", gpus=1)])
    wanted = placement("p", "a", 0, memory_mib=600)
    ledger.reserve(wanted, 5)
    assert ledger.adopt(wanted)
    assert ledger.expire(6) == []


def test_a_fact_on_an_absent_gpu_is_held_and_charges_the_rest() -> None:
    ledger = Ledger([node("a", gpus=1)])
    ledger.adopt(placement("p", "a", 5, memory_mib=600, cpu_milli=1000, extended={"no": 1}))
    assert ledger.table.cpu_free[0] == ledger.table.cpu_total[0] - 1000
    assert ledger.table.idle[0] == 1
    assert audit(ledger) == ["a GPU 5: pod p holds a GPU that the node does not have"]


def test_audit_names_what_is_overbooked_beside_gpus() -> None:
    ledger = Ledger([node("a", gpus=1, cpu_milli=1000, host_memory_mib=100, extended={"x": 1})])
    ledger.adopt(placement("p", "a", cpu_milli=5000, host_memory_mib=300, extended={"x": 5}))
    port = HostPort(80)
    for uid in ("q", "r"):
        ledger.adopt(msgspec.structs.replace(placement(uid, "a"), ports=(port,)))
    assert audit(ledger) == [
        "a: cpu (m) overbooked by 4000",
        "a: memory (MiB) overbooked by 200",
        "a: x overbooked by 4",
        "a: host port 80 is held twice",
    ]


def test_audit_names_a_card_held_beside_its_instance() -> None:
    ledger = Ledger([node("a", gpus=1, mig=2)])
    ledger.adopt(placement("p", "a", 0, memory_mib=1))
    ledger.adopt(placement("q", "a", 1, memory_mib=1))
    assert audit(ledger) == ["a GPU 0 is held together with its MIG instance 1"]


# --- nodes ---------------------------------------------------------------------------------------


def test_a_node_goes_with_its_pods_and_comes_back_with_them() -> None:
    nodes = [node("a", gpus=1, memory_mib=1000), node("b", gpus=1, memory_mib=1000)]
    ledger = Ledger(nodes)
    ledger.reserve(placement("p", "a", 0, memory_mib=600))
    ledger.reserve(placement("q", "a", 0, memory_mib=100))
    assert ledger.set_nodes([], ["a"]) == ["a"]
    assert [one.name for one in ledger.table.nodes] == ["b"]
    assert sorted(ledger.holdings) == ["p", "q"]
    assert audit(ledger) == []
    assert not ledger.reserve(placement("r", "a", 0, memory_mib=1))
    ledger.release("q")
    ledger.commit("p")
    assert ledger.set_nodes([nodes[0]]) == ["a"]
    assert free(ledger, "a") == (400, 1000)
    assert audit(ledger) == []


def test_unchanged_nodes_change_nothing() -> None:
    ledger = Ledger([node("a", gpus=1)])
    version, generation = ledger.version, ledger.generation
    assert ledger.set_nodes([node("a", gpus=1)], ["never-heard-of"]) == []
    assert (ledger.version, ledger.generation) == (version, generation)


def test_a_card_that_breaks_keeps_its_pods_and_takes_no_more() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 0, memory_mib=600))
    ledger.set_nodes([node("a", gpus=2, memory_mib=1000, broken=[0])])
    assert free(ledger, "a") == (0, 0)
    assert ledger.occupants("a", 0) == ["p"]
    assert not ledger.reserve(placement("q", "a", 0, memory_mib=1))
    assert ledger.table.usable_gpus[0] == 1
    ledger.set_nodes([node("a", gpus=2, memory_mib=1000)])
    assert free(ledger, "a") == (400, 1000)


def test_a_node_that_comes_back_smaller_is_overbooked_and_says_so() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000)])
    ledger.reserve(placement("p", "a", 0, memory_mib=600))
    ledger.set_nodes([node("a", gpus=1, memory_mib=500)])
    assert audit(ledger) == ["a GPU 0: memory 600 MiB used of 500, overbooked by 100"]


# --- checkpoint and rollback ---------------------------------------------------------------------


def test_rollback_undoes_everything_in_the_order_it_was() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=1000), node("b", gpus=1, memory_mib=1000)])
    for uid in ("p", "q", "r"):
        ledger.reserve(placement(uid, "a", 0, memory_mib=100), 50)
    before, holdings = copy_of(ledger).table, dict(ledger.holdings)
    ledger.checkpoint()
    ledger.release("p")
    ledger.commit("q")
    ledger.adopt(placement("r", "b", 0, memory_mib=900))
    ledger.reserve(placement("s", "a", 1, memory_mib=1000))
    ledger.reserve(placement("p", "b", 0, memory_mib=100))
    ledger.expire(100)
    ledger.rollback()
    assert ledger.holdings == holdings
    assert ledger.occupants("a", 0) == ["p", "q", "r"]
    assert differences(ledger.table, before) == []
    assert audit(ledger) == []


def test_keep_keeps_and_closes() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1000)])
    ledger.checkpoint()
    ledger.reserve(placement("p", "a", 0, memory_mib=100))
    ledger.keep()
    ledger.rollback()
    assert "p" in ledger.holdings
    ledger.checkpoint()
    ledger.rollback()


def test_checkpoints_do_not_nest_and_nodes_stand_still_under_one() -> None:
    ledger = Ledger([node("a", gpus=1)])
    ledger.checkpoint()
    with pytest.raises(RuntimeError, match="already open"):
        ledger.checkpoint()
    with pytest.raises(RuntimeError, match="under a checkpoint"):
        ledger.set_nodes([node("b")])
    ledger.rollback()
    assert ledger.set_nodes([node("b")]) == ["b"]


# --- MIG, sizes, counting ------------------------------------------------------------------------


def test_a_card_and_its_mig_instances_exclude_each_other() -> None:
    ledger = Ledger([node("a", gpus=2, model="A100", memory_mib=40_960, mig=2)])
    table = ledger.table  # devices: card 0, card 1, 0/0, 0/1, 1/0, 1/1
    assert ledger.reserve(placement("p", "a", 2, memory_mib=100))
    assert table.device_usable.tolist() == [0, 1, 1, 1, 1, 1]
    assert not ledger.reserve(placement("q", "a", 0, memory_mib=1))
    assert ledger.reserve(placement("q", "a", 1, memory_mib=1))
    assert table.device_usable.tolist() == [0, 1, 1, 1, 0, 0]
    assert not ledger.reserve(placement("r", "a", 4, memory_mib=1))
    assert ledger.reserve(placement("r", "a", 3, memory_mib=1))
    ledger.release("p")
    assert table.device_usable.tolist() == [0, 1, 1, 1, 0, 0]
    ledger.release("r")
    assert table.device_usable.tolist() == [1, 1, 1, 1, 0, 0]
    assert table.idle.tolist() == [3]
    assert audit(ledger) == []


def test_one_pod_may_not_hold_a_card_and_its_instance() -> None:
    ledger = Ledger([node("a", gpus=2, model="A100", memory_mib=40_960, mig=2)])
    assert not ledger.reserve(placement("p", "a", [0, 2], memory_mib=1))
    assert ledger.reserve(placement("p", "a", [1, 2, 3], memory_mib=1))


def test_cards_of_one_node_may_differ_in_size() -> None:
    ledger = Ledger([node("a", gpus=2, memory_mib=[1000, 4000], model=["small", "large"])])
    assert not ledger.reserve(placement("p", "a", 0, memory_mib=1001))
    assert ledger.reserve(placement("p", "a", 1, memory_mib=3500))
    assert ledger.table.max_memory_free.tolist() == [1000]
    assert ledger.table.uniform is False


def test_pods_are_counted_by_class_and_device_by_pod() -> None:
    ledger = Ledger([node("a", gpus=8)])
    ledger.reserve(placement("shared", "a", 0, milli=500))
    ledger.reserve(placement("one", "a", 1, milli=1000))
    ledger.reserve(placement("three", "a", [2, 3, 4], milli=1000))
    ledger.reserve(placement("cpu", "a", cpu_milli=1))
    ledger.reserve(placement("twice", "a", shares=[Share(0, 0, 0, 100), Share(1, 0, 0, 100)]))
    hosted = ledger.table.hosted[0].tolist()
    assert hosted[:4] == [1, 2, 0, 1]
    assert sum(hosted) == 4
    assert ledger.table.pods == [2, 1, 1, 1, 1, 0, 0, 0]
    assert ledger.table.idle[0] == 3
    assert ledger.holdings["cpu"].pod_class == -1


def test_very_wide_pods_share_the_last_class() -> None:
    ledger = Ledger([node("a", gpus=20)])
    ledger.reserve(placement("wide", "a", range(20), milli=1000))
    assert ledger.holdings["wide"].pod_class == POD_CLASSES - 1


def test_a_declared_overcommit_is_a_limit_like_any_other() -> None:
    ledger = Ledger([node("a", gpus=1, memory_mib=1001)], limits=RequestLimits(1500))
    assert ledger.reserve(placement("p", "a", 0, memory_mib=1001))
    assert not ledger.reserve(placement("q", "a", 0, memory_mib=501))
    assert ledger.reserve(placement("q", "a", 0, memory_mib=500))
    assert audit(ledger) == []
    assert not ledger.reserve(placement("r", "a", 0, milli=1001))


def test_kinds_of_gpus_that_no_node_has_any_more_are_forgotten() -> None:
    """A cluster whose nodes come and go for years; and numbers are those of a ledger made anew."""
    ledger = Ledger(
        [node("a", gpus=1, model="T4"), node("b", gpus=1, model="V100", memory_mib=32_000)]
    )
    for number in range(50):
        ledger.set_nodes([node("a", gpus=1, model=f"model-{number}", memory_mib=1_000 + number)])
        ledger.reserve(placement(f"p{number}", "a", 0, milli=1))
        fresh = Ledger(ledger.table.nodes)
        assert ledger.table.kinds == fresh.table.kinds
        assert len(ledger.table.kinds) == 2
        assert audit(ledger) == []
    ledger.set_nodes([], ["a"])
    assert list(ledger.table.kinds) == [("V100", 32_000, 1000, 0)]
    assert ledger.table.device_kind.tolist() == [0]

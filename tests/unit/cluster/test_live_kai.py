"""Pods of KAI's are charged on the card that their group's reservation pod names, in any order."""

import itertools
from typing import Any

import msgspec
from account_world import Account
from kai_world import Json, keeper, sharing, shown
from live_world import CARD_MIB, anew, refusals, until, world
from live_world import node as any_node
from live_world import pod as shared

from weft.cluster.control.live_cluster import EngineCluster
from weft.kube.structs import KubeNode
from weft.kube.watch import Added

HALF = CARD_MIB // 2


def with_uuids(name: str = "n", count: int = 3) -> Json:
    """A node that says its cards' UUIDs."""
    made = any_node(name, count)
    cards = [
        {"index": index, "memory_mib": CARD_MIB, "uuid": f"GPU-{index}"} for index in range(count)
    ]
    made["metadata"]["annotations"]["weft.dev/inventory"] = msgspec.json.encode(
        {"gpus": cards}
    ).decode()
    return made


class KaiAccount(Account):
    """An account on a node whose cards have UUIDs."""

    def _shown(self, cards: int) -> Any:
        self.nodes.take_node(Added(msgspec.convert(with_uuids(count=cards), KubeNode)))
        return self.nodes.changed()[0]

    def used(self) -> list[int]:
        return [CARD_MIB - free for free in self.free()]


def account(*pods: Json) -> KaiAccount:
    made = KaiAccount()
    made.take(*map(shown, pods))
    return made


PODS = (
    keeper("g", "GPU-1"),
    sharing("half", "g", gpu_fraction="0.5"),
    sharing("some", "g", gpu_memory="1000"),
)


def test_whichever_pod_comes_first_the_charge_is_the_same() -> None:
    for order in itertools.permutations(PODS):
        made = account(*order)
        assert made.used() == [0, HALF + 1000, 0]
        assert made.view.assumed == {}


def test_a_group_that_ends_leaves_its_card_reserved_and_then_free() -> None:
    made = account(*PODS)
    made.forget(shown(PODS[1]))
    assert made.used() == [0, 1000, 0]
    made.forget(shown(PODS[2]))
    assert made.used() == [0, CARD_MIB, 0]
    assert "group" in made.view.assumed["keeper-g"]
    made.forget(shown(PODS[0]))
    assert made.used() == [0, 0, 0]


def test_without_its_reservation_a_pod_has_a_whole_card() -> None:
    made = account(*PODS)
    made.forget(shown(PODS[0]))
    assert made.used() == [0, CARD_MIB, CARD_MIB]
    assert set(made.view.assumed) == {"half", "some"}
    made.take(shown(PODS[0]))
    assert made.used() == [0, HALF + 1000, 0]
    assert made.view.assumed == {}


def test_a_card_that_one_group_of_a_pod_names_is_not_free_while_another_names_none() -> None:
    made = account(keeper("g", "GPU-0"), sharing("two", "g", "h", gpu_fraction="0.5"))
    assert made.used() == [CARD_MIB, 0, CARD_MIB]
    made.take(shown(sharing("other", "g", gpu_fraction="0.25")))
    assert made.used() == [CARD_MIB, 0, CARD_MIB]
    assert "whose GPUs are not known" in made.view.assumed["keeper-g"]

    made.take(shown(keeper("h", "GPU-1")))

    assert made.used() == [HALF + CARD_MIB // 4, HALF, 0]
    assert made.view.assumed == {}


def test_no_card_is_free_that_one_of_a_groups_reservation_pods_names() -> None:
    made = account(PODS[1], keeper("g", "GPU-0"), keeper("g", "GPU-1", "new"))
    assert made.used() == [CARD_MIB, CARD_MIB, 0]
    made.forget(shown(keeper("g", "GPU-0")))
    assert made.used() == [0, HALF, 0]


def test_groups_on_one_card_share_it() -> None:
    """As with time slicing: the plugin gives a card to two reservation pods."""
    made = account(*PODS, keeper("h", "GPU-1"), sharing("more", "h", gpu_fraction="0.25"))
    assert made.used() == [0, HALF + 1000 + CARD_MIB // 4, 0]


def test_the_card_is_known_once_the_reservation_says_it() -> None:
    early = keeper("g", "")
    made = account(early, PODS[1])
    assert sorted(made.used()) == [0, 0, CARD_MIB]
    made.take(shown(PODS[0]))
    assert made.used() == [0, HALF, 0]


def test_marks_that_change_later_move_nothing() -> None:
    made = account(*PODS, keeper("h", "GPU-2"), sharing("other", "h", gpu_fraction="0.25"))
    before = made.used()
    for edited in (
        sharing("half", "h", gpu_fraction="0.5"),
        sharing("half", gpu_fraction="0.5"),
        sharing("half", "g", gpu_fraction="0.01"),
        sharing("half", "g", gpu_memory="15000"),
    ):
        made.take(shown(edited))
        assert made.used() == before
    doubt = account(*PODS).take(shown(sharing("half", "h", gpu_fraction="0.5"))).view.doubts
    assert ["runai-gpu-group" in each.text for each in doubt["half"]] == [True]


class Unidentified(KaiAccount):
    """An account on a node that tells no UUIDs of its cards."""

    def _shown(self, cards: int) -> Any:
        made = any_node("n", cards)
        self.nodes.take_node(Added(msgspec.convert(made, KubeNode)))
        return self.nodes.changed()[0]


def test_where_a_node_tells_no_uuids_what_shares_a_card_is_charged_on_one() -> None:
    older, newer = keeper("h", "GPU-a"), keeper("g", "GPU-1")
    older["metadata"]["creationTimestamp"] = "2019-01-01T00:00:00Z"
    alone = sharing("alone", "h", gpu_fraction="0.25")
    for order in itertools.permutations((newer, *PODS[1:], older, alone)):
        made = Unidentified()
        made.take(*map(shown, order))
        assert made.used() == [0, HALF + 1000, CARD_MIB // 4]
        assert made.view.assumed == {}
    made.take(shown(keeper("x", "GPU-x")))
    assert made.used() == [CARD_MIB, HALF + 1000, CARD_MIB // 4]
    made.take(shown(keeper("y", "GPU-y")))  # its node has no card for it: one that is there counts
    assert sum(made.used()) == 2 * CARD_MIB + HALF + 1000 + CARD_MIB // 4


def test_a_reservation_without_a_group_is_named_and_keeps_its_card() -> None:
    made = account(keeper("", "GPU-1", "lost"))
    assert made.used() == [0, CARD_MIB, 0]
    assert "runai-gpu-group" in made.view.doubts["lost"][0].text


def test_of_asks_that_contradict_each_other_all_of_the_card_is_charged() -> None:
    made = account(PODS[0], sharing("both", "g", gpu_fraction="0.5", gpu_memory="9"))
    assert made.used() == [0, CARD_MIB, 0]
    assert "gpu-memory" in made.view.doubts["both"][0].text


async def test_weft_does_not_give_kais_card_away_and_gives_it_once_it_is_free() -> None:
    on_one = (keeper("g", "GPU-0"), *PODS[1:])
    async with world(with_uuids(count=1)) as made:
        for each in on_one:
            made.server.add("pods", each)
        await until(lambda: used(made.live) == [HALF + 1000])
        refused = refusals(made)
        made.server.add("pods", shared("ours", CARD_MIB))
        await until(lambda: "ours" in refused)
        await anew(made)
        assert used(made.live) == [HALF + 1000]
        for each in on_one:
            made.server.remove("pods", each["metadata"]["name"], each["metadata"]["namespace"])
        await until(lambda: made.server.get("pods", "ours", "d")["spec"].get("nodeName"))


def used(live: EngineCluster) -> list[int]:
    return [int(mib) for mib in live.engine.ledger.table.memory_used]

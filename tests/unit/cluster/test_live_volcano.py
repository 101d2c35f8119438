"""Pods that Volcano bound are charged what its mark says; where it errs, that is a doubt."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from account_world import Account
from kai_world import Json, meta, shown
from live_world import CARD_MIB, anew, refusals, until, world
from live_world import pod as shared
from long_form import few_or_many
from test_live_kai import with_uuids

from weft.kube.structs import KubeNode
from weft.kube.watch import Added

CARDS = 3
IDS, INDEX = "volcano.sh/vgpu-ids-new", "volcano.sh/gpu-index"
NUMBER, MEM = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"


def registered(count: int = CARDS) -> Json:
    """A node whose cards Volcano's plugin alone tells of."""
    made = with_uuids(count=count)
    cards = [f"GPU-{index},10,{CARD_MIB},NVIDIA-V100,true,hami-core" for index in range(count)]
    made["metadata"]["annotations"] = {"volcano.sh/node-vgpu-register": ":".join(cards) + ":"}
    made["status"]["allocatable"] |= {NUMBER: "30"}
    return made


class VolcanoAccount(Account):
    """An account on such a node."""

    def _shown(self, cards: int) -> Any:
        self.nodes.take_node(Added(msgspec.convert(registered(cards), KubeNode)))
        return self.nodes.changed()[0]

    def used(self) -> list[int]:
        return [CARD_MIB - free for free in self.free()]


def bound(name: str, *limits: Json, **marks: str) -> Json:
    """A pod with a container for each of `limits`; `ids` or `index` is Volcano's mark."""
    own = {"ids": IDS, "index": INDEX}
    annotations = {own[key]: text for key, text in marks.items()}
    containers = [
        {"name": f"c{number}", "resources": {"limits": {key: str(n) for key, n in each.items()}}}
        for number, each in enumerate(limits)
    ]
    spec = {"nodeName": "n", "schedulerName": "volcano", "containers": containers}
    return {"metadata": meta(name, "ml", {}, annotations), "spec": spec}


SOME = {NUMBER: 1, MEM: 3_000}
HALF = bound("half", SOME, ids="GPU-1,NVIDIA,3000,50:")


def account(*pods: Json) -> VolcanoAccount:
    made = VolcanoAccount()
    made.take(*map(shown, pods))
    return made


def test_the_mark_says_which_card_and_how_much() -> None:
    made = account(HALF, bound("two", {NUMBER: 2}, ids="GPU-0,NVIDIA,90,0:GPU-2,NVIDIA,90,0:"))
    assert made.used() == [90, 3_000, 90]
    assert (made.view.assumed, made.view.doubts) == ({}, {})


@pytest.mark.parametrize("ids", ["", '{"NVIDIA":[]}', "GPU-9,NVIDIA,3000,0:"])
def test_without_a_mark_that_can_be_read_it_may_be_on_any_card(ids: str) -> None:
    made = account(bound("half", SOME, **({"ids": ids} if ids else {})))
    assert made.used() == [3_000] * 3
    assert "every card" in made.view.assumed["half"]
    assert [IDS in doubt.text for doubt in made.view.doubts.get("half", ())] == [True] * bool(ids)


def test_the_cards_of_the_older_mode_that_its_node_still_has_are_not_free() -> None:
    made = account(bound("two", {"volcano.sh/gpu-number": 2}, index="0,7"))
    assert made.used() == [CARD_MIB, 0, CARD_MIB]
    assert "those that its annotations name" in made.view.assumed["two"]


def test_marks_that_change_later_move_nothing() -> None:
    made = account(HALF)
    for ids in ("GPU-0,NVIDIA,3000,50:", "GPU-1,NVIDIA,9000,50:", "GPU-1,NVIDIA,1,0:", "none"):
        made.take(shown(bound("half", SOME, ids=ids)))
        assert made.used() == [0, 3_000, 0]
        assert ["changed after" in doubt.text for doubt in made.view.doubts["half"]] == [True]
    made.take(shown(HALF))
    assert made.view.doubts == {}


def random_pods(rng: random.Random) -> list[Json]:
    pods = []
    for number in range(rng.randint(1, 6)):
        limits, marks = [], []
        for _ in range(rng.randint(1, 3)):
            count = rng.randint(0, CARDS)
            limits.append({NUMBER: count, MEM: rng.randint(1, 900)} if count else {"cpu": 1})
            cards = rng.sample(range(CARDS), count)
            mib = limits[-1].get(MEM, 0)
            more = rng.choice([0, 0, 100])
            marks.append("".join(f"GPU-{card},NVIDIA,{mib + more},0:" for card in cards))
        if rng.random() < 0.2:
            pods.append(bound(f"p{number}", {"volcano.sh/gpu-memory": 70}, index=str(number % 3)))
        else:
            pods.append(bound(f"p{number}", *limits, ids=";".join(marks)))
    return pods


def restated(pods: list[Json]) -> list[int]:
    """Volcano's own sum: the third field of each device of each container's mark."""
    used: Counter[str] = Counter()
    for each in pods:
        marks = each["metadata"]["annotations"]
        for container in marks.get(IDS, "").split(";"):
            for device in filter(None, container.split(":")):
                uuid, _, mib, _ = device.split(",")
                used[uuid] += int(mib)
        if INDEX in marks:
            used[f"GPU-{marks[INDEX]}"] += 70
    return [used[f"GPU-{card}"] for card in range(CARDS)]


@pytest.mark.parametrize("seed", range(few_or_many(30, 300)))
def test_the_account_is_volcanos(seed: int) -> None:
    rng = random.Random(seed)
    pods = random_pods(rng)
    made = account(*pods)
    assert made.used() == restated(pods)
    assert (made.view.assumed, made.view.doubts) == ({}, {})
    for each in rng.sample(pods, len(pods)):
        made.forget(shown(each))
    assert made.used() == [0] * CARDS


async def test_weft_does_not_give_volcanos_card_away_and_gives_it_once_it_is_free() -> None:
    async with world(with_uuids(count=1)) as made:
        made.server.add("pods", bound("v", SOME, ids="GPU-0,NVIDIA,3000,50:"))
        used = made.live.engine.ledger.table
        await until(lambda: list(used.memory_used) == [3_000])
        refused = refusals(made)
        made.server.add("pods", shared("ours", CARD_MIB))
        await until(lambda: "ours" in refused)
        await anew(made)
        assert list(made.live.engine.ledger.table.memory_used) == [3_000]
        made.server.remove("pods", "v", "ml")
        await until(lambda: made.server.get("pods", "ours", "d")["spec"].get("nodeName"))


async def test_weft_places_volcanos_pods_and_writes_its_marks() -> None:
    async with world(with_uuids(count=1)) as made:
        asks = {"name": "c", "resources": {"limits": {NUMBER: "1", MEM: "5000"}}}
        made.server.add("pods", shared("v", containers=[asks]))
        found = await until(lambda: _marks(made.server.get("pods", "v", "d")))
        assert found[IDS] == "GPU-0,NVIDIA,5000,0:"
        assert found["volcano.sh/vgpu-node"] == "n"
        assert "weft.dev/delivery" in found


def _marks(pod: Json) -> dict[str, str]:
    return pod["metadata"].get("annotations", {}) if pod["spec"].get("nodeName") else {}

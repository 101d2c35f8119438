"""Pods that Koordinator bound are charged by minor number, joined with its Device objects."""

import json
import logging
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from account_world import Account
from kai_world import Json, meta, shown
from live_world import CARD_MIB, World, anew, living, refusals, until
from live_world import pod as shared
from long_form import few_or_many
from test_live_kai import with_uuids

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.core.policies.fgd import Fgd
from weft.dialects.koordinator import KoordinatorDevice
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted

CARDS = 3
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
SHARE, CORE = "koordinator.sh/gpu", "koordinator.sh/gpu-core"
MEMORY, RATIO = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"


def device(count: int = CARDS) -> Json:
    """The node's cards, the last of them with minor number 0."""
    amounts = {CORE: "100", MEMORY: f"{CARD_MIB}Mi", RATIO: "100"}
    gpus = [
        {"type": "gpu", "minor": minor, "id": f"GPU-{count - 1 - minor}", "health": True}
        for minor in range(count)
    ]
    return {
        "metadata": {"name": "n"},
        "spec": {"devices": [{**gpu, "resources": amounts} for gpu in gpus]},
    }


class KoordinatorAccount(Account):
    """An account on a node of which Koordinator tells."""

    def _shown(self, cards: int) -> Any:
        self.nodes.take_node(Added(msgspec.convert(with_uuids(count=cards), KubeNode)))
        self.nodes.take_device(Added(msgspec.convert(device(cards), KoordinatorDevice)))
        return self.nodes.changed()[0]

    def used(self) -> list[int]:
        return [CARD_MIB - free for free in self.free()]


def bound(name: str, asks: Json, *given: tuple[int, Json]) -> Json:
    """A pod with these cards by minor number."""
    entries = [{"minor": minor, "resources": amounts} for minor, amounts in given]
    annotations = {ALLOCATED: json.dumps({"gpu": entries})} if given else {}
    limits = {key: str(value) for key, value in asks.items()}
    spec = {
        "nodeName": "n",
        "schedulerName": "koord-scheduler",
        "containers": [{"name": "c", "resources": {"limits": limits}}],
    }
    return {"metadata": meta(name, "ml", {}, annotations), "spec": spec}


HALF = bound("half", {SHARE: 50}, (0, {CORE: "50", MEMORY: f"{CARD_MIB // 2}Mi", RATIO: "50"}))


def account(*pods: Json) -> KoordinatorAccount:
    made = KoordinatorAccount()
    made.take(*map(shown, pods))
    return made


def test_the_minor_number_says_which_card() -> None:
    made = account(HALF)
    assert made.used() == [0, 0, CARD_MIB // 2]
    assert (made.view.assumed, made.view.doubts) == ({}, {})


def test_without_its_device_object_a_pod_may_be_on_any_card() -> None:
    made = account(HALF)
    made.nodes.take_device(Deleted(msgspec.convert(device(), KoordinatorDevice)))
    assert made.nodes.renamed == {"n"}
    made._hear([made.view.update(one) for one in made.view.on_node("n")])
    assert made.used() == [CARD_MIB // 2] * 3
    assert "Device object is not known" in made.view.doubts["half"][0].text


def test_the_cards_that_its_device_object_still_has_are_not_free() -> None:
    """The mark names a minor that the Device object lacks: another card is its, of those idle."""
    whole = {CORE: "100", RATIO: "100"}
    made = account(bound("two", {"nvidia.com/gpu": 2}, (0, whole), (7, whole)))
    assert made.used() == [0, CARD_MIB, CARD_MIB]
    made.take(shown(bound("one", {"nvidia.com/gpu": 1}, (1, whole), (2, whole))))
    assert made.used() == [CARD_MIB, 2 * CARD_MIB, CARD_MIB]
    assert "those that its annotations name" in made.view.assumed["one"]


def test_a_percent_that_is_shared_by_several_cards_is_none_of_each_in_the_mark() -> None:
    """Koordinator divides whole percents; that contradicts nothing, and what is asked is held."""
    each = {CORE: "0", MEMORY: "4000Mi"}
    asks = {CORE: 1, MEMORY: 8_000 * 2**20, "koordinator.sh/gpu.shared": 2}
    made = account(bound("two", asks, (0, each), (1, each)))
    assert made.view.doubts == {}
    assert list(made.ledger.table.milli_used) == [0, 5, 5]


def test_marks_that_change_later_move_nothing() -> None:
    made = account(HALF)
    for minor, core in ((1, "50"), (0, "90"), (7, "50")):
        edited = bound("half", {SHARE: 50}, (minor, {CORE: core, RATIO: core}))
        made.take(shown(edited))
        assert made.used() == [0, 0, CARD_MIB // 2]
        assert ["changed after" in doubt.text for doubt in made.view.doubts["half"]] == [True]


def random_pods(rng: random.Random) -> list[Json]:
    pods = []
    for number in range(rng.randint(1, 6)):
        name, count = f"p{number}", rng.randint(1, CARDS)
        minors = rng.sample(range(CARDS), count)
        if rng.random() < 0.3:
            amounts = {CORE: "100", MEMORY: f"{CARD_MIB}Mi", RATIO: "100"}
            asks: Json = {"nvidia.com/gpu": count}
        elif rng.random() < 0.5:
            mib, core = rng.randint(1, 4_000), rng.randint(1, 40)
            amounts = {CORE: str(core), MEMORY: f"{mib}Mi"}
            asks = {CORE: core * count, MEMORY: mib * count * 2**20}
            asks |= {"koordinator.sh/gpu.shared": count}
        else:
            minors, percent = minors[:1], rng.randint(1, 99)
            amounts = {CORE: str(percent), RATIO: str(percent)}
            asks = {SHARE: percent}
        pods.append(bound(name, asks, *((minor, amounts) for minor in minors)))
    return pods


def restated(pods: list[Json]) -> list[tuple[int, int]]:
    """Koordinator's own sums, device by device: bytes, or else the ratio of the device's."""
    mib, milli = Counter[int](), Counter[int]()
    for each in pods:
        for entry in json.loads(each["metadata"]["annotations"][ALLOCATED])["gpu"]:
            amounts, minor = entry["resources"], entry["minor"]
            given = amounts.get(MEMORY)
            by_ratio = int(amounts.get(RATIO, 0)) * CARD_MIB // 100
            mib[minor] += int(given.removesuffix("Mi")) if given else by_ratio
            milli[minor] += int(amounts[CORE]) * 10
    return [(mib[CARDS - 1 - card], milli[CARDS - 1 - card]) for card in range(CARDS)]


@pytest.mark.parametrize("seed", range(few_or_many(30, 300)))
def test_the_account_is_koordinators(seed: int) -> None:
    rng = random.Random(seed)
    pods = random_pods(rng)
    made = account(*pods)
    table = made.ledger.table
    held = zip(table.memory_used, table.milli_used, strict=True)
    assert list(held) == restated(pods)
    assert (made.view.assumed, made.view.doubts) == ({}, {})
    for each in rng.sample(pods, len(pods)):
        made.forget(shown(each))
    assert made.used() == [0] * CARDS


async def test_weft_does_not_give_koordinators_card_away_and_writes_its_marks() -> None:
    async with FakeApiServer(has_devices=True) as server, client_of(server) as client:
        server.add("nodes", with_uuids(count=1))
        server.add("devices", device(1))
        server.add("pods", HALF)
        made = World(server, client, Fgd())
        async with living(made):
            assert used(made) == [CARD_MIB // 2]
            refused = refusals(made)
            server.add("pods", shared("ours", CARD_MIB))
            await until(lambda: "ours" in refused)
            asks = {"name": "c", "resources": {"limits": {CORE: "50", RATIO: "50"}}}
            server.add("pods", shared("k", containers=[asks]))
            marks = await until(lambda: _marks(server.get("pods", "k", "d")))
            (given,) = json.loads(marks[ALLOCATED])["gpu"]
            assert given["minor"] == 0
            assert given["resources"] == {CORE: "50", MEMORY: f"{CARD_MIB // 2}Mi", RATIO: "50"}
            assert "weft.dev/delivery" in marks
            await anew(made)
            assert used(made) == [CARD_MIB]
            server.remove("pods", "half", "ml")
            server.remove("pods", "k", "d")
            await until(lambda: server.get("pods", "ours", "d")["spec"].get("nodeName"))


async def test_a_device_that_comes_later_says_where_a_pod_is() -> None:
    async with FakeApiServer(has_devices=True) as server, client_of(server) as client:
        server.add("nodes", with_uuids())
        server.add("pods", HALF)
        made = World(server, client, Fgd())
        async with living(made):
            assert used(made) == [CARD_MIB // 2] * 3
            server.add("devices", device())
            await until(lambda: used(made) == [0, 0, CARD_MIB // 2])


async def test_without_the_crd_nothing_more_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        server.add("nodes", with_uuids())
        made = World(server, client, Fgd())
        with caplog.at_level(logging.WARNING):
            async with living(made):
                assert not any(feed.resource.name == "devices" for feed in made.live.feeds)
        assert "Koordinator" not in caplog.text


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


def _marks(pod: Json) -> dict[str, str]:
    return pod["metadata"].get("annotations", {}) if pod["spec"].get("nodeName") else {}


async def test_who_may_not_see_devices_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer(has_devices=True) as server, client_of(server) as client:
        server.access.denied.add(("watch", "devices.scheduling.koordinator.sh"))
        server.access.denied.add(("watch", "devices"))
        server.add("nodes", with_uuids())
        server.add("pods", HALF)
        made = World(server, client, Fgd())
        with caplog.at_level(logging.WARNING):
            async with living(made):
                assert used(made) == [CARD_MIB // 2] * 3
        told = [line for line in caplog.messages if "no permission to watch devices" in line]
        assert len(told) == 1

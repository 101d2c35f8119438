"""A pod that becomes unreadable, or claims what nobody gave it, costs nobody else anything.

Its owner may edit labels and annotations while it runs. What it was decided to hold stays its
charge; whoever's share is assumed makes nobody go.
"""

import datetime
from typing import Any

import pytest
from live_world import CARD_MIB, World, anew, bind, node, pod, until, world
from long_form import LONG

CARDS = 4
EDITS: dict[str, dict[str, dict[str, str]]] = {
    "isolation": {"annotations": {"weft.dev/isolation": "x"}},
    "class": {"annotations": {"weft.dev/class": "x"}},
    "topology": {"annotations": {"weft.dev/topology": "x"}},
    "a list too long": {"annotations": {"weft.dev/gpu-model": "a," * 10_000}},
    "genius/gpu-number": {"labels": {"genius/gpu-number": "x"}},
    "more cards by label": {"labels": {"genius/gpu-number": "4"}},
    "GPU_MEM_REQ": {"labels": {"GPU_MEM_REQ": "x"}},
    "GPU_MEM_REQ, large": {"labels": {"GPU_MEM_REQ": "16000"}},
    "genius/gpu-memory-each": {"labels": {"genius/gpu-memory-each": "5"}},
    "a pattern": {"labels": {"genius/gpu-model": "("}},
}
ASKS: dict[str, dict[str, Any]] = {
    "weft": {"limits": {"weft.dev/gpu-memory": "1"}},
    "gpushare": {"limits": {"aliyun.com/gpu-mem": "1"}},
    "elastic": {"limits": {"elasticgpu.io/gpu-memory": "1"}},
    "nvidia": {"limits": {"nvidia.com/gpu": "1"}},
    "nothing": {},
}
FEW = [
    (asks, how)
    for at, asks in enumerate(ASKS)
    for number, how in enumerate(EDITS)
    if asks == "weft" or number % (len(ASKS) - 1) == at - 1
]
"""Each edit of a pod that asks as Weft's do, and of one that asks otherwise."""
MANY = [(asks, how) for asks in ASKS for how in EDITS]


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


def ago(seconds: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


async def weft_binds(made: World, name: str, asks: dict[str, Any], **meta: Any) -> str:
    """Weft binds such a pod; its UID."""
    asked = pod(name)
    asked["spec"]["containers"][0]["resources"] = asks
    asked["metadata"] |= meta
    made.server.add("pods", asked)
    await until(lambda: made.server.get("pods", name, "d")["spec"].get("nodeName"))
    await until(lambda: (seen := made.live.pod("d", name)) and seen.spec.node_name)
    return made.uid(name)


async def edit(made: World, name: str, how: dict[str, Any]) -> None:
    """Change the pod's metadata, and wait until the cluster has heard of that."""
    version = made.server.update("pods", name, {"metadata": how}, "d")["metadata"]
    await until(
        lambda: (
            (seen := made.live.pod("d", name))
            and seen.metadata.resource_version == version["resourceVersion"]
        )
    )


@pytest.mark.parametrize(("asks", "how"), MANY if LONG else FEW)
async def test_who_becomes_unreadable_keeps_his_charge_and_nobody_else_goes(
    asks: str, how: str
) -> None:
    async with world(node("n", CARDS)) as made:
        await weft_binds(made, "stranger", ASKS[asks])
        for number in range(CARDS - 1):
            await weft_binds(made, f"later-{number}", {"limits": {"nvidia.com/gpu": "1"}})
        before = used(made)
        await edit(made, "stranger", EDITS[how])
        for _ in range(2):
            made.parts.guard.check()
            assert used(made) == before
            assert made.parts.guard.over == {}
            assert made.parts.guard._tasks == {}
            await anew(made)
        assert "POST pods/eviction" not in made.server.requests


@pytest.mark.parametrize("how", ["isolation", "genius/gpu-number"])
async def test_people_hear_of_a_bound_pod_that_became_unreadable(how: str) -> None:
    async with world(node("n", CARDS)) as made:
        await weft_binds(made, "stranger", ASKS["weft"])
        await edit(made, "stranger", EDITS[how])
        (text,) = await until(lambda: made.told("PodUnreadable"))
        assert text.endswith("the pod is charged what it was bound with")
        assert not made.live.pods.unsure(made.uid("stranger"))


async def test_an_unreadable_pod_that_was_booked_twice_still_goes() -> None:
    async with world(node("n", 1)) as made:
        for name in ("first", "later"):
            made.server.add("pods", pod(name, 9_000, scheduler="other"))
        bind(made.server, "first", 0, ago(30), memory_mib=9_000)
        await edit(made, "later", {"annotations": {"weft.dev/isolation": "x"}})
        bind(made.server, "later", 0, ago(10), memory_mib=9_000)
        await until(lambda: made.deleting("later"))
        assert not made.deleting("first")


async def test_one_whose_share_is_assumed_sends_nobody_away() -> None:
    """Its neighbours were bound after it, and what is charged for it overbooks their cards."""
    async with world(node("n", 2)) as made:
        by_hand = pod("by-hand", 15_000, scheduler="other", nodeName="n")
        made.server.add("pods", by_hand)
        for gpu in range(2):
            name = f"later-{gpu}"
            made.server.add("pods", pod(name, 15_000, scheduler="other"))
            bind(made.server, name, gpu, ago(10), memory_mib=15_000)
        await until(lambda: made.parts.guard.overbooked == 2)
        assert made.live.pods.unsure(made.uid("by-hand"))
        for _ in range(2):
            assert made.parts.guard._tasks == {}
            await anew(made)
        assert "POST pods/eviction" not in made.server.requests


async def test_marks_that_come_after_the_binding_send_nobody_away() -> None:
    """An author who bound his pod can write both annotations where no policy forbids that."""
    async with world(node("n", 1)) as made:
        made.server.add("pods", pod("mine", 1, scheduler="other", nodeName="n"))
        await weft_binds(made, "theirs", {"limits": {"weft.dev/gpu-memory": "15999"}})
        value = f'{{"pod":"{made.uid("mine")}","node":"n","shares":[[0,0,9000,0,""]]}}'
        marks = dict.fromkeys(("weft.dev/placement", "weft.dev/placement-copy"), value)
        await edit(made, "mine", {"annotations": marks})
        await until(lambda: made.told("PlacementDoubted"))
        assert used(made) == [CARD_MIB]
        assert made.parts.guard._tasks == {}
        assert not made.deleting("theirs")


@pytest.mark.parametrize(
    ("limits", "before"),
    [({"cpu": "1"}, 0), ({"weft.dev/gpu-memory": "1000"}, 1000)],
    ids=["asks for nothing", "asks for a share"],
)
async def test_marks_that_come_after_the_binding_charge_no_more(
    limits: dict[str, str], before: int
) -> None:
    async with world(node("n", CARDS)) as made:
        asked = pod("mine", nodeName="n", scheduler="other")
        asked["spec"]["containers"][0]["resources"] = {"limits": limits}
        made.server.add("pods", asked)
        await until(lambda: made.uid("mine") in made.live.engine.ledger.holdings)
        shares = ",".join(f'[0,{gpu},{CARD_MIB},1000,""]' for gpu in range(CARDS))
        value = f'{{"pod":"{made.uid("mine")}","node":"n","shares":[{shares}]}}'
        await edit(made, "mine", {"annotations": {"weft.dev/placement": value}})
        copied = {"annotations": {"weft.dev/placement-copy": value}}
        await edit(made, "mine", copied)
        assert used(made) == [before] * CARDS


@pytest.mark.parametrize("key", ["placement", "placement-copy", "delivery"])
async def test_one_edited_mark_of_three_charges_nothing_else(key: str) -> None:
    async with world(node("n", 2)) as made:
        await weft_binds(made, "mine", {"limits": {"nvidia.com/gpu": "1"}})
        before, name = used(made), f"weft.dev/{key}"
        gpu = before.index(CARD_MIB)
        text = made.server.get("pods", "mine", "d")["metadata"]["annotations"][name]
        for new in (
            text.replace(f",{gpu},", f",{1 - gpu},").replace(f"[{gpu},", f"[{1 - gpu},"),
            "{",
            None,
        ):
            await edit(made, "mine", {"annotations": {name: new}})
            assert used(made) == before
            await anew(made)
            assert used(made) == before


@pytest.mark.parametrize("asks", ["weft", "nvidia"])
async def test_what_a_pod_says_of_itself_counts_as_it_was_bound(asks: str) -> None:
    """A class that came later would take back lent memory, and have borrowers evicted."""
    said = {"weft.dev/class": "batch", "weft.dev/application": "bert"}
    async with world() as made:
        uid = await weft_binds(made, "mine", ASKS[asks], annotations=said)
        later = {"weft.dev/class": "latency-critical", "weft.dev/slo-ms": "1"}
        await edit(made, "mine", {"annotations": {**later, "weft.dev/solo-p99-ms": "1"}})
        for _ in range(2):
            held = made.live.engine.ledger.holdings[uid]
            assert (held.placement.job_class, held.placement.application) == ("batch", "bert")
            assert held.placement.slowdown_limit == ()
            assert made.live.engine.harvest.class_of(held) == "batch"
            await anew(made)


CONTRADICTING: dict[str, tuple[dict[str, str], int]] = {
    "two systems": ({"weft.dev/gpu-memory": "1", "nvidia.com/gpu": "1"}, 1),
    "two shares": ({"weft.dev/gpu-memory": "1", "elasticgpu.io/gpu-memory": "1"}, 0),
    "larger than a card": ({"nvidia.com/gpu": "2", "weft.dev/gpu-cores": "101"}, CARDS),
}


@pytest.mark.parametrize("how", CONTRADICTING)
async def test_who_binds_himself_and_contradicts_himself_is_charged_what_he_asks_at_most(
    how: str,
) -> None:
    limits, most_cards = CONTRADICTING[how]
    async with world(node("n", CARDS)) as made:
        asked = pod("mine", scheduler="other", nodeName="n")
        asked["spec"]["containers"][0]["resources"] = {"limits": limits}
        made.server.add("pods", asked)
        await until(lambda: made.uid("mine") in made.live.engine.ledger.holdings)
        for _ in range(2):
            assert sum(mib >= CARD_MIB for mib in used(made)) == most_cards
            assert made.live.pods.unsure(made.uid("mine"))
            await anew(made)


@pytest.mark.parametrize("scheduler", ["custom-scheduler", "genius-scheduler"])
async def test_who_binds_himself_and_asks_for_nothing_closes_no_node(scheduler: str) -> None:
    """The name of a system that reads labels makes him one of its pods, without any request."""
    async with world(node("n", CARDS)) as made:
        asked = pod("mine", scheduler=scheduler, nodeName="n")
        asked["spec"]["containers"][0]["resources"] = {}
        made.server.add("pods", asked)
        await until(lambda: made.uid("mine") in made.live.engine.ledger.holdings)
        whole = {"limits": {"nvidia.com/gpu": str(CARDS)}}
        await weft_binds(made, "theirs", whole)
        assert used(made) == [CARD_MIB] * CARDS


@pytest.mark.parametrize("scheduler", ["weft", "default-scheduler"])
async def test_labels_of_a_pod_that_nobody_placed_by_them_charge_nothing(scheduler: str) -> None:
    async with world(node("n", CARDS)) as made:
        asked = pod("mine", scheduler=scheduler, nodeName="n")
        asked["spec"]["containers"][0]["resources"] = {}
        asked["metadata"]["labels"] = {"genius/gpu-number": str(CARDS)}
        made.server.add("pods", asked)
        await until(lambda: made.uid("mine") in made.live.engine.ledger.holdings)
        assert used(made) == [0] * CARDS


async def test_labels_that_a_bound_pod_gets_later_charge_nothing_more() -> None:
    """Its scheduler reads labels and leaves no marks: those that it was first seen with count."""
    async with world(node("n", CARDS)) as made:
        asked = pod("mine", scheduler="genius-scheduler", nodeName="n")
        asked["spec"]["containers"][0]["resources"] = {}
        asked["metadata"]["labels"] = {"genius/gpu-number": "1"}
        made.server.add("pods", asked)
        await until(lambda: made.uid("mine") in made.live.engine.ledger.holdings)
        before = used(made)
        assert sum(before) == CARD_MIB
        for number in (str(CARDS), "x", None):
            await edit(made, "mine", {"labels": {"genius/gpu-number": number}})
            assert used(made) == before


@pytest.mark.parametrize("treatment", ["charge", "evict"])
async def test_who_is_bound_past_his_scheduler_is_told_and_goes_where_it_is_asked_for(
    treatment: Any,
) -> None:
    async with world(node("n", 2), past_scheduler=treatment) as made:
        others = pod("others", 1, scheduler="default-scheduler", nodeName="n")
        made.server.add("pods", others)
        await weft_binds(made, "placed", {"limits": {"weft.dev/gpu-memory": "1"}})
        blocked = made.server.fault("status", path="eviction", code=429, times=1)
        made.server.add("pods", pod("mine", 1, nodeName="n"))
        (text,) = await until(lambda: made.told("BoundPastScheduler"))
        assert "was bound without its scheduler" in text
        assert made.parts.past_scheduler.here == {made.uid("mine")}
        if treatment == "evict":
            await until(lambda: made.deleting("mine"))
            assert blocked.hits == 1
        else:
            await anew(made)
            assert "POST pods/eviction" not in made.server.requests
        assert not made.deleting("others")
        assert not made.deleting("placed")

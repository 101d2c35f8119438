"""Bound pods whose marks are edited: nothing is freed, nobody else goes, and people are told."""

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest
from live_world import CARD_MIB, World, anew, bind, node, pod, refusals, until, world

MARK, COPY = "weft.dev/placement", "weft.dev/placement-copy"
Shares = list[list[Any]]


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


async def bound(made: World, name: str, memory_mib: int = 16_000, **limits: str) -> int:
    """Weft binds such a pod; its GPU."""
    asks = pod(name, memory_mib)
    if limits:
        asks["spec"]["containers"][0]["resources"] = {"limits": limits}
    made.server.add("pods", asks)
    uid = made.uid(name)
    await until(lambda: (seen := made.live.pods.by_uid(uid)) and seen.spec.node_name)
    return int(marks(made, name)["shares"][0][1])


def marks(made: World, name: str, key: str = MARK) -> Any:
    return json.loads(made.server.get("pods", name, "d")["metadata"]["annotations"][key])


def patch(made: World, name: str, **annotations: Any) -> None:
    changed = {f"weft.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    made.server.update("pods", name, {"metadata": {"annotations": changed}}, "d")


def edit(made: World, name: str, how: Callable[[Shares], Shares], *keys: str) -> None:
    """Change the shares that these annotations name."""
    value = marks(made, name)
    text = json.dumps({**value, "shares": how(value["shares"])})
    patch(made, name, **dict.fromkeys(keys or ("placement",), text))


def to(gpu: int, memory_mib: int = 16_000) -> Callable[[Shares], Shares]:
    return lambda _: [[0, gpu, memory_mib, 0, ""]]


EDITS: dict[str, Callable[[Shares], Shares]] = {
    "no share": lambda _: [],
    "one MiB": lambda shares: [[*shares[0][:2], 1, *shares[0][3:]]],
    "another GPU": lambda shares: [[0, 1 - shares[0][1], *shares[0][2:]]],
    "a GPU that does not exist": to(99),
    "nonsense": lambda _: [[0]],
}


@pytest.mark.parametrize("how", EDITS)
@pytest.mark.parametrize("key", ["placement", "placement_copy"])
async def test_an_edit_frees_nothing_and_is_told(how: str, key: str) -> None:
    async with world() as made:
        gpu = await bound(made, "p")
        waits = refusals(made)
        edit(made, "p", EDITS[how], key)
        (text,) = await until(lambda: made.told("PlacementDoubted"))
        assert text.startswith(
            "its annotations differ from what Weft wrote, or state less than it requests"
        )
        before = used(made)
        assert before[gpu] == CARD_MIB
        assert sum(before) == CARD_MIB
        for name in ("q", "r"):
            made.server.add("pods", pod(name, 12_000))
        await until(lambda: "r" in waits)
        assert max(used(made)) == CARD_MIB
        before = used(made)
        await anew(made)
        assert used(made) == before
        assert "POST pods/eviction" not in made.server.requests


@pytest.mark.parametrize("key", ["placement", "placement_copy"])
@pytest.mark.parametrize("text", [None, "", "{", '{"pod": "x", "node": "n", "shares": []}'])
async def test_a_mark_that_is_gone_or_damaged_frees_nothing(key: str, text: str | None) -> None:
    async with world() as made:
        gpu = await bound(made, "p")
        patch(made, "p", **{key: text})
        uid = made.uid("p")
        await until(lambda: text == _text(made, uid, key))
        assert used(made)[gpu] == CARD_MIB
        before = used(made)
        assert before[1 - gpu] == 0
        await anew(made)
        assert used(made) == before


def _text(made: World, uid: str, key: str) -> str | None:
    found = made.live.pods.by_uid(uid)
    assert found is not None
    return (found.metadata.annotations or {}).get(f"weft.dev/{key.replace('_', '-')}")


async def test_a_pod_on_a_whole_card_keeps_it_whatever_becomes_of_its_marks() -> None:
    """Without marks the last idle card would be taken to be its."""

    async with world(node("n", 3)) as made:
        gpu = await bound(made, "p", **{"nvidia.com/gpu": "1"})
        for key in ("placement", "placement_copy"):
            patch(made, "p", **{key: "{"})
            await until(lambda key=key: _text(made, made.uid("p"), key) == "{")
            assert used(made)[gpu] == CARD_MIB
        await anew(made)
        assert used(made) == [CARD_MIB] * 3  # nobody can say on which it is


async def test_one_that_edits_both_is_noticed_by_the_process_that_saw_it_bound() -> None:
    async with world() as made:
        gpu = await bound(made, "p")
        edit(made, "p", EDITS["another GPU"], "placement", "placement_copy")
        (text,) = await until(lambda: made.told("PlacementDoubted"))
        assert "its Binding" in text
        before = used(made)
        assert (before[gpu], sum(before)) == (CARD_MIB, CARD_MIB)
        edit(made, "p", to(gpu), "placement", "placement_copy")  # and back
        await until(lambda: marks(made, "p")["shares"][0][1] == gpu)
        assert used(made) == before
        edit(made, "p", EDITS["one MiB"], "placement", "placement_copy")
        await until(lambda: marks(made, "p")["shares"][0][2] == 1)
        await anew(made)  # it knows no better; but the spec is not the owner's to change
        assert used(made)[gpu] == CARD_MIB
        assert len(made.told("PlacementDoubted")) > 1


@pytest.mark.parametrize("memory_mib", [1, 16_000])
async def test_nobody_goes_for_a_claim_on_the_neighbours_gpu(memory_mib: int) -> None:
    async with world() as made:
        mine, _ = await bound(made, "mine"), await bound(made, "theirs")
        edit(made, "mine", to(1 - mine, memory_mib))
        await until(lambda: made.told("PlacementDoubted"))
        for _ in range(2):
            made.parts.guard.check()
            assert used(made) == [CARD_MIB] * 2
            assert made.parts.guard.overbooked == 0
            assert made.parts.guard._tasks == {}
            await anew(made)
        patch(made, "mine", delivery="{")  # now none of its marks agree: the most is charged
        await until(lambda: _text(made, made.uid("mine"), "delivery") == "{")
        await anew(made)
        told = await until(lambda: made.told("Overbooked"))
        assert "may hold up to 16,000 MiB more than it has" in told[0]
        assert made.parts.guard._tasks == {}
        assert "POST pods/eviction" not in made.server.requests


async def test_marks_written_by_hand_make_nobody_go() -> None:
    """A pod that somebody bound by hand and marked afterwards was there before Weft's own."""

    async with world(node("n", 1)) as made:
        by_hand = pod("mine", 1, scheduler="other", nodeName="n")
        made.server.add("pods", by_hand)
        await bound(made, "theirs", 15_999)
        value = {"pod": made.uid("mine"), "node": "n", "shares": [[0, 0, 2_000, 0, ""]]}
        patch(made, "mine", placement=json.dumps(value), placement_copy=json.dumps(value))
        await until(lambda: made.told("PlacementDoubted"))
        assert used(made) == [CARD_MIB]
        assert made.parts.guard._tasks == {}
        assert not made.deleting("theirs")


async def test_whoever_is_double_booked_beside_an_edited_pod_still_goes() -> None:
    async with world(node("n", 1)) as made:
        for name, mib in (("first", 9_000), ("edited", 1_000), ("later", 9_000)):
            made.server.add("pods", pod(name, mib, scheduler="other"))
        bind(made.server, "first", 0, ago(30), memory_mib=9_000)
        bind(made.server, "edited", 0, ago(20), memory_mib=1_000)
        edit(made, "edited", to(0, 16_000))
        await until(lambda: made.told("PlacementDoubted"))
        assert made.parts.guard._tasks == {}
        bind(made.server, "later", 0, ago(10), memory_mib=9_000)
        await until(lambda: made.deleting("later"))
        told = await until(lambda: made.told("DoubleBooked"))
        assert "2,000 of its 16,000 MiB are missing" in told[0]
        assert not made.deleting("edited")
        assert not made.deleting("first")


def ago(seconds: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

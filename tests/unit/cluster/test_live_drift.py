"""Alnair's device plugin picks the card itself: once it has written which, the pod is there."""

from live_world import CARD_MIB, Json, World, anew, node, pod, until, world

GPU_ID, MEMORY = "ai.centaurus.io/alnair-gpu-id", "alnair/vgpu-memory"


def asks(name: str, units: int = 8) -> Json:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"limits": {MEMORY: str(units)}}
    return made


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


def plugin_writes(made: World, name: str, gpu: int, units: int = 8) -> None:
    ids = ",".join(f"{gpu}_{number}" for number in range(units))
    made.server.update("pods", name, {"metadata": {"annotations": {GPU_ID: ids}}}, "d")


async def bound(made: World, name: str, units: int = 8) -> int:
    """Weft binds such a pod; the GPU it chose."""
    before = used(made)
    made.server.add("pods", asks(name, units))
    uid = made.uid(name)
    await until(lambda: (seen := made.live.pods.by_uid(uid)) and seen.spec.node_name)
    return [was != now for was, now in zip(before, used(made), strict=True)].index(True)


async def test_where_the_plugin_put_it_is_where_it_is_charged() -> None:
    async with world() as made:
        chosen = await bound(made, "p")
        plugin_writes(made, "p", chosen)  # as Weft chose: nothing to tell
        await until(lambda: GPU_ID in _marks(made, "p"))
        assert made.live.pods.doubts == {}
        plugin_writes(made, "p", 1 - chosen)
        (text,) = await until(lambda: made.told("PlacementMoved"))
        assert text == (
            f"alnair's agent gave it GPU {1 - chosen} ({GPU_ID}), Weft had chosen GPU "
            f"{chosen}. It is charged where it runs, and no pod is evicted for it"
        )
        half = CARD_MIB * 8 // 16
        assert (used(made)[chosen], used(made)[1 - chosen]) == (0, half)
        before = used(made)
        await anew(made)
        assert used(made) == before
        assert len(made.told("PlacementMoved")) == 2  # the next leader says it as well


def _marks(made: World, name: str) -> dict[str, str]:
    found = made.live.pods.by_uid(made.uid(name))
    return (found and found.metadata.annotations) or {}


async def test_a_card_that_the_plugin_overbooks_is_told_and_nobody_is_evicted() -> None:
    async with world() as made:
        first = await bound(made, "first", 12)
        second = await bound(made, "second", 12)
        assert first != second
        plugin_writes(made, "second", first, 12)
        assert await until(lambda: made.told("PlacementMoved"))
        assert await until(lambda: made.told("Overbooked"))
        assert made.parts.guard._tasks == {}
        await bound(made, "third", 12)  # the card it was chosen for is free
        assert used(made)[second] == CARD_MIB * 12 // 16
        assert used(made)[first] == 2 * (CARD_MIB * 12 // 16)
        before = used(made)
        await anew(made)
        assert used(made) == before
        assert made.parts.guard._tasks == {}
        assert "POST pods/eviction" not in made.server.requests


async def test_a_word_that_names_no_card_of_the_node_is_not_the_truth() -> None:
    async with world(node("n", 2)) as made:
        chosen = await bound(made, "p")
        for gpu in (7, 8):
            plugin_writes(made, "p", gpu)
            await until(lambda gpu=gpu: f"{gpu}_0" in _marks(made, "p").get(GPU_ID, ""))
            assert used(made)[chosen] == CARD_MIB // 2
            assert sum(used(made)) == CARD_MIB // 2

"""A node that shows fewer GPUs than before: its pods stay where they were, if that is known."""

import json

from led_cluster import led
from live_world import CARD_MIB, LONG_AGO, World, bind, gpus, node, pod, until, world

from weft.core.framework import Profile
from weft.core.policies.fgd import Fgd


def used(made: World) -> list[int]:
    return [int(mib) for mib in made.live.engine.ledger.table.memory_used]


def shows(made: World, count: int) -> None:
    made.server.update("nodes", "n", {"metadata": {"annotations": gpus(count)}})


async def anew(made: World) -> None:
    await made.live.stop()
    made.parts = led(made.client, [Profile("weft", [Fgd()])])
    made.live = made.parts.live
    await made.live.start()
    await made.live.lead(afresh=False)


async def on_each_gpu(made: World) -> dict[int, str]:
    """One of Weft's pods on each of the two GPUs, by GPU."""
    found = {}
    for name in ("a", "b"):
        made.server.add("pods", pod(name))
        uid = made.uid(name)
        seen = await until(
            lambda uid=uid: (one := made.live.pods.by_uid(uid)) and one.spec.node_name and one
        )
        found[json.loads(seen.metadata.annotations["weft.dev/placement"])["shares"][0][1]] = name
    assert used(made) == [10_000, 10_000]
    return found


async def test_a_pod_of_a_lost_gpu_is_charged_to_no_other_and_comes_back_with_it() -> None:
    async with world() as made:
        on = await on_each_gpu(made)
        shows(made, 1)
        (text,) = await until(lambda: made.told("GPULost"))
        assert text == (
            "was placed on GPU 1 of node n, which the node no longer reports: its share "
            "stays reserved there, and is charged to no other GPU"
        )
        (notice,) = [one for one in made.notices if one.reason == "GPULost"]
        assert notice.pod
        assert notice.pod.metadata.name == on[1]
        assert used(made) == [10_000]
        assert made.parts.guard.over == {}
        made.server.add("pods", pod("small", 6_000))  # GPU 0 has room for it
        await until(lambda: used(made) == [CARD_MIB])
        await anew(made)
        assert used(made) == [CARD_MIB]
        assert made.parts.guard.over == {}
        shows(made, 2)
        await until(lambda: used(made) == [CARD_MIB, 10_000])
        await until(lambda: not made.live.pods.doubts)
        await anew(made)
        assert used(made) == [CARD_MIB, 10_000]
        assert "POST pods/eviction" not in made.server.requests
        assert made.told("Overbooked") == []


async def test_a_pod_with_a_card_left_and_one_lost_keeps_both() -> None:
    async with world() as made:
        asks = pod("p")
        limits = {"weft.dev/gpu-memory": "10000", "weft.dev/gpu-count": "2"}
        asks["spec"]["containers"][0]["resources"] = {"limits": limits}
        made.server.add("pods", asks)
        await until(lambda: made.server.get("pods", "p", "d")["spec"].get("nodeName"))
        shows(made, 1)
        await until(lambda: made.told("GPULost"))
        assert used(made) == [10_000]
        await anew(made)
        assert used(made) == [10_000]


async def test_a_node_that_shows_no_gpu_at_all_loses_no_pod() -> None:
    async with world() as made:
        await on_each_gpu(made)
        shows(made, 0)
        await until(lambda: len(made.told("GPULost")) == 2)
        await anew(made)
        assert used(made) == []
        shows(made, 2)
        await until(lambda: used(made) == [10_000, 10_000])


async def test_where_nobody_knows_which_gpu_a_pod_had_it_may_be_any_and_that_is_said() -> None:
    """A mark without its copy: of a GPU that does not exist anybody could have written it."""

    async with world(node("n", 1)) as made:
        made.server.add("pods", pod("ours", 9_000))
        await until(lambda: used(made) == [9_000])
        made.server.add("pods", pod("old", scheduler="other"))
        value = {"pod": made.uid("old"), "node": "n", "shares": [[0, 1, 10_000, 0, ""]]}
        bind(made.server, "old", None, LONG_AGO, **{"weft.dev/placement": json.dumps(value)})
        (text,) = await until(lambda: made.told("Overbooked"))
        assert text.startswith("GPU 0 may hold up to 3,000 MiB more than it has (d/ours, d/old)")
        (why,) = made.told("PlacementDoubted")
        assert "weft.dev/placement names GPU 1, which its node does not show" in why
        assert used(made) == [19_000]

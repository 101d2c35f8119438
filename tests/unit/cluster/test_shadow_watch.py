"""A shadow compares each binding with its own choice in the state right before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from led_cluster import led
from live_world import CARD_MIB, LONG_AGO, api, bind, endpoint_of, node, pod, until

from fakes.api_server import FakeApiServer
from weft.cluster.rights import CLAIMS
from weft.cluster.shadow.comparison import BindingComparison
from weft.cluster.shadow.summary import ShadowSummary, ShadowTotals
from weft.cluster.shadow.watch import ShadowWatch, unreadable_lists
from weft.core.framework import Profile
from weft.core.policies.packing import Binpack
from weft.kube.preflight import lacking_of
from weft.kube.read_only import ReadOnlyClient


class ShadowWorld(NamedTuple):
    server: FakeApiServer
    watch: ShadowWatch
    seen: list[BindingComparison]
    totals: ShadowTotals

    async def bound(self, name: str, gpu: int | None, **how: Any) -> BindingComparison:
        """Another scheduler binds this pod; what the shadow says of it."""
        count = len(self.seen)
        bind(self.server, name, gpu, LONG_AGO, **how)
        await until(lambda: len(self.seen) > count)
        return self.seen[-1]

    def summary(self) -> ShadowSummary:
        return self.totals.summary(1.0, self.watch.could_place(), self.watch.unread)


@asynccontextmanager
async def shadowing(*nodes: Any) -> AsyncIterator[ShadowWorld]:
    async with api(*nodes) as server, ReadOnlyClient(endpoint_of(server)) as client:
        live = led(client, [Profile("weft", [Binpack()])]).live
        seen, totals = list[BindingComparison](), ShadowTotals()
        watch = ShadowWatch(live, lambda one: (seen.append(one), totals.add(one))[0])
        server.add("pods", pod("first", 4_000), "d")
        bind(server, "first", 1, LONG_AGO, memory_mib=4_000)
        await live.start()
        assert seen == [], "it was bound before"
        try:
            yield ShadowWorld(server, watch, seen, totals)
        finally:
            await live.stop()
        assert {name.split()[0] for name in server.requests} <= {"GET", "WATCH", "LIST"}


def test_the_same_place_differs_in_nothing() -> None:
    async def story() -> None:
        async with shadowing() as made:
            made.server.add("pods", pod("a", 4_000), "d")
            one = await made.bound("a", 1, memory_mib=4_000)
            assert (one.agrees, one.namespace, one.name, one.profile) == ("same", "d", "a", "weft")
            assert one.own == one.seen
            assert (one.seen.node, one.seen.gpus, one.seen.allocation_milli) == ("n", (1,), 250)

    asyncio.run(story())


def test_another_gpu_leaves_other_fragments() -> None:
    async def story() -> None:
        async with shadowing() as made:
            made.server.add("pods", pod("a", 4_000), "d")
            made.server.add("pods", pod("large", 14_000), "d")
            one = await made.bound("a", 0, memory_mib=4_000)
            assert one.agrees == "other GPU"
            assert one.own is not None
            assert one.own.gpus == (1,), "beside the first"
            assert one.own.fragmentation_percent < one.seen.fragmentation_percent
            found = made.summary()
            assert found.bindings == {"same": 0, "other GPU": 1, "other node": 0, "nowhere": 0}
            assert found.fragmentation_percent is not None
            assert found.fragmentation_percent < 0
            assert (found.waiting, found.would_place) == (1, 0), "no card has 14,000 MiB any more"

    asyncio.run(story())


def test_another_node_and_nowhere_say_so() -> None:
    async def story() -> None:
        async with shadowing(node("m"), node("n")) as made:
            for name, mib in (("a", 4_000), ("double", CARD_MIB)):
                made.server.add("pods", pod(name, mib), "d")
            one = await made.bound("a", 0, node="m", memory_mib=4_000)
            assert (one.agrees, one.own and one.own.node) == ("other node", "n")
            made.server.add("pods", pod("large", 99_000), "d")
            one = await made.bound("large", 1, node="m", memory_mib=99_000)
            assert (one.agrees, one.own) == ("nowhere", None)
            assert "99,000" in one.why
            assert made.summary().allocation_milli < 0

    asyncio.run(story())


def test_where_nobody_says_the_gpu_nodes_are_compared() -> None:
    async def story() -> None:
        async with shadowing() as made:
            made.server.add("pods", pod("a", 4_000, "default-scheduler"), "d")
            one = await made.bound("a", None)
            assert (one.agrees, one.assumed) == ("same", True)

    asyncio.run(story())


def test_pods_without_gpus_of_other_schedulers_are_no_matter() -> None:
    async def story() -> None:
        async with shadowing() as made:
            plain = {"containers": [{"name": "c"}], "schedulerName": "default-scheduler"}
            meta = {"name": "plain", "namespace": "d"}
            made.server.add("pods", {"metadata": meta, "spec": plain})
            bind(made.server, "plain", None, LONG_AGO)
            made.server.add("pods", pod("a", 4_000), "d")
            await made.bound("a", 1, memory_mib=4_000)
            assert [one.name for one in made.seen] == ["a"]

    asyncio.run(story())


def test_its_client_sends_nothing_but_questions() -> None:
    async def story() -> None:
        async with api() as server, ReadOnlyClient(endpoint_of(server)) as client:
            with pytest.raises(RuntimeError, match="is a write, and this process only reads"):
                await client.call("POST", "/api/v1/namespaces/d/pods", b"{}")
            assert server.requests == {}
            assert await lacking_of(client, CLAIMS) == []
            server.fault("status", path="persistentvolumes", code=403)
            assert await unreadable_lists(client) == ["/api/v1/persistentvolumes"]

    asyncio.run(story())

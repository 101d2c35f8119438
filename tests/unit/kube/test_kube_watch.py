import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from kube_world import node, pod, world

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import NODES, PODS, SkippedObjects
from weft.kube.errors import ExpiredError, LostError, api_error
from weft.kube.pods import Pod
from weft.kube.structs import ApiStatus
from weft.kube.watch import (
    Added,
    Change,
    Deleted,
    LineSplitter,
    ListWatch,
    Modified,
    Synced,
    WatchOptions,
    WatchPlan,
    WatchStep,
)


def told(changes: list[Change[Any]]) -> list[str]:
    """`+a`, `~a`, `-a`, and `=` for Synced."""
    signs = {Added: "+", Modified: "~", Deleted: "-"}
    return [
        "=" if isinstance(one, Synced) else signs[type(one)] + one.object.metadata.name
        for one in changes
    ]


class Follower:
    """Reads batches of a list-watch, and waits until so many changes came."""

    def __init__(self, batches: AsyncIterator[list[Change[Any]]]) -> None:
        self._batches = batches

    async def next(self, count: int = 1) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += told(await anext(self._batches))
        return found


@asynccontextmanager
async def following(
    client: ApiClient, resource: Any = PODS, **how: Any
) -> AsyncIterator[tuple[ListWatch[Any], Follower]]:
    watch = ListWatch(client, resource, **how)
    async with aclosing(watch.batches()) as batches:
        yield watch, Follower(batches)


async def watched(server: FakeApiServer, follower: Follower) -> "asyncio.Task[list[str]]":
    """The next batch, once the watch behind it is open."""
    task = asyncio.create_task(follower.next())
    while not server.watches("pods"):
        await asyncio.sleep(0)
    return task


async def test_the_list_comes_first_in_pages_and_then_what_happens() -> None:
    async with world() as (server, client):
        for name in "abcde":
            server.add("pods", pod(name))
        options = WatchOptions(page_size=2)
        async with following(client, options=options) as (watch, follower):
            assert await follower.next(6) == ["+a", "+b", "+c", "+d", "+e", "="]
            assert server.requests["GET pods"] == 3
            server.add("pods", pod("f"))
            server.update("pods", "a", {"metadata": {"labels": {"x": "y"}}})
            server.remove("pods", "b")
            assert await follower.next(3) == ["+f", "~a", "-b"]
            assert watch.plan.lists == 1
            assert watch.last_error == ""


async def test_modified_carries_what_was_before() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        watch = ListWatch(client, PODS)
        async with aclosing(watch.batches()) as batches:
            await anext(batches)
            server.update("pods", "a", {"spec": {"nodeName": "n"}})
            (change,) = await anext(batches)
            assert isinstance(change, Modified)
            assert (change.old.spec.node_name, change.object.spec.node_name) == ("", "n")


async def test_a_cut_watch_resumes_where_it_was() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        async with following(client) as (watch, follower):
            await follower.next(2)
            task = await watched(server, follower)
            server.cut_watches()
            server.add("pods", pod("b"))
            assert await task == ["+b"]
            assert (watch.plan.lists, watch.plan.resumes) == (1, 1)


async def test_after_compaction_it_lists_again_and_no_deletion_is_lost() -> None:
    async with world() as (server, client):
        for name in "abc":
            server.add("pods", pod(name))
        async with following(client) as (watch, follower):
            await follower.next(4)
            task = await watched(server, follower)
            server.cut_watches()
            server.remove("pods", "a")
            server.remove("pods", "b")
            server.add("pods", pod("b"))  # another b
            server.update("pods", "c", {"metadata": {"labels": {"x": "y"}}})
            server.add("pods", pod("d"))
            server.compact()
            assert await task == ["-b", "+b", "~c", "+d", "-a", "="]
            assert watch.plan.lists == 2


async def test_a_bookmark_moves_the_version_so_that_compaction_does_no_harm() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        async with following(client) as (watch, follower):
            await follower.next(2)
            task = await watched(server, follower)
            server.add("nodes", node())  # versions move on without pods
            server.bookmark()
            while watch.plan.version != str(server.store.version):
                await asyncio.sleep(0)
            server.compact()
            server.cut_watches()
            server.add("pods", pod("b"))
            assert await task == ["+b"]
            assert watch.plan.lists == 1


async def test_pages_that_expire_on_the_way_are_read_again() -> None:
    async with world() as (server, client):
        for name in "abc":
            server.add("pods", pod(name))
        seen: list[str] = []

        def compact_once(request: Any) -> None:
            if "continue" in request.query and not seen:
                seen.append("")
                server.compact()

        server.on_request = compact_once
        async with following(client, options=WatchOptions(page_size=2)) as (_, follower):
            assert await follower.next(4) == ["+a", "+b", "+c", "="]
            assert seen == [""]


async def test_unreadable_objects_are_counted_told_once_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        server.add("pods", pod("bad", containers="none"))
        async with following(client) as (watch, follower):
            assert await follower.next(2) == ["+a", "="]
            task = await watched(server, follower)
            (stream,) = server.watches("pods")
            stream.write(b'{"type":"NOVELTY","object":{}}\n')
            stream.write(b"not even JSON\n")
            server.update("pods", "a", {"spec": {"containers": 7}})  # a is as it was
            server.add("pods", pod("c"))
            server.update("pods", "bad", {"metadata": {"labels": {"x": "y"}}})
            assert await task == ["+c"]
            server.remove("pods", "a")
            assert await follower.next() == ["-a"]
            assert watch.skips.counts == {"pods": 6}
    assert [r.getMessage().split(":")[0] for r in caplog.records] == [
        "skipped pods default/bad",
        "skipped pods (no name)",
        "skipped pods default/a",
    ]


async def test_an_unreadable_successor_of_the_same_name_ends_the_one_before() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        async with following(client) as (_, follower):
            await follower.next(2)
            task = await watched(server, follower)
            server.cut_watches()
            server.remove("pods", "a")
            server.add("pods", pod("a", containers=1))
            server.compact()
            assert await task == ["-a", "="]


async def test_a_server_that_is_away_is_waited_for_with_growing_delays() -> None:
    clock = VirtualClock(auto=True)
    async with world(clock, attempts=1) as (server, client):
        server.add("pods", pod("a"))
        server.fault("status", path="pods", code=503, times=4)
        async with following(client) as (watch, follower):
            assert await follower.next(2) == ["+a", "="]
            delays = clock.slept
            assert len(delays) == 4
            for step, delay in zip((0.2, 0.4, 0.8, 1.6), delays, strict=True):
                assert step / 2 <= delay <= step
            assert watch.plan.failures == 0


async def test_a_silent_watch_is_taken_for_dead() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        options = WatchOptions(inactivity_s=0.05)
        async with following(client, options=options) as (watch, follower):
            await follower.next(2)
            task = asyncio.create_task(follower.next())
            while watch.plan.resumes == 0:
                await asyncio.sleep(0.01)
            server.add("pods", pod("b"))
            found = await task
            while "+b" not in found:  # after five silent ones it lists again
                found += await follower.next()


async def test_selectors_and_namespaces_choose() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a", nodeName="n"))
        server.add("pods", pod("b"))
        server.add("pods", pod("c", nodeName="n"), "other")
        chosen = {"fieldSelector": "spec.nodeName=n"}
        how = {"namespace": "default", "selectors": chosen}
        async with following(client, **how) as (_, follower):
            assert await follower.next(2) == ["+a", "="]
            server.update("pods", "b", {"spec": {"nodeName": "n"}})
            server.update("pods", "a", {"spec": {"nodeName": "m"}})
            server.remove("pods", "b")
            assert await follower.next(3) == ["+b", "-a", "-b"]


async def test_cluster_wide_objects_are_followed_too() -> None:
    async with world() as (server, client):
        server.add("nodes", node("n"))
        async with following(client, NODES) as (_, follower):
            assert await follower.next(2) == ["+n", "="]


# --- the pure parts ------------------------------------------------------------------------------


def plan() -> WatchPlan:
    return WatchPlan(WatchOptions(), Backoff(1, 8, random.Random(0)))


def test_plan_lists_again_after_410_at_once_but_not_in_a_tight_loop() -> None:
    gone = ExpiredError(ApiStatus(code=410))
    watch_plan = plan()
    watch_plan.listed("5")
    assert watch_plan.failed(gone) == WatchStep("list")
    assert watch_plan.failed(gone).delay_s > 0
    watch_plan.listed("9")
    assert watch_plan.failed(gone) == WatchStep("list")


def test_plan_resumes_after_other_failures_until_there_are_too_many() -> None:
    watch_plan = plan()
    watch_plan.listed("5")
    steps = [watch_plan.failed(LostError("x")).step for _ in range(6)]
    assert steps == ["watch"] * 4 + ["list"] * 2
    assert plan().failed(LostError("x")).step == "list"


def test_plan_waits_as_long_as_the_server_asks() -> None:
    watch_plan = plan()
    watch_plan.listed("5")
    asked = watch_plan.failed(api_error(429, b"{}", "", "20"))
    assert asked == WatchStep("watch", "5", 20)


def test_plan_takes_a_watch_that_ends_at_once_for_a_failure() -> None:
    watch_plan = plan()
    watch_plan.listed("5")
    assert watch_plan.ended(300, any_event=False) == WatchStep("watch", "5")
    assert watch_plan.ended(0.1, any_event=True) == WatchStep("watch", "5")
    assert watch_plan.ended(0.1, any_event=False).delay_s > 0
    watch_plan.progress("6")
    assert watch_plan.failures == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_come_out_whole_however_they_are_cut(size: int) -> None:
    text = b"one\n\ntwo\nthree\nrest"
    lines = LineSplitter()
    found = [line for i in range(0, len(text), size) for line in lines.feed(text[i : i + size])]
    assert found == [b"one", b"two", b"three"]
    assert lines.feed(b"!\n") == [b"rest!"]


def test_a_list_with_one_bad_object_keeps_the_others() -> None:
    page = PODS.decode_page(
        b'{"metadata":{"resourceVersion":"7","continue":"t"},"items":['
        b'{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":3},{"metadata":3},{"spec":{}}]}',
        SkippedObjects(),
    )
    assert [one.metadata.name for one in page.items] == ["a"]
    assert [meta.name for meta in page.unreadable] == ["b"]
    assert (page.version, page.next) == ("7", "t")
    assert isinstance(page.items[0], Pod)


def test_an_object_that_is_no_utf_8_is_set_aside_in_lists_and_watches() -> None:
    skips = SkippedObjects()
    bad = b'{"metadata":{"name":"b","namespace":"d"},"spec":{"nodeName":"\xff"}}'
    page = PODS.decode_page(b'{"items":[{"metadata":{"name":"a"}},%b]}' % bad, skips)
    assert [one.metadata.name for one in page.items] == ["a"]
    assert [meta.name for meta in page.unreadable] == ["b"]
    event = PODS.decode_line(b'{"type":"MODIFIED","object":%b}' % bad, skips)
    assert (event.type, event.meta.name, event.object) == ("MODIFIED", "b", None)
    nameless = PODS.decode_line(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}', skips)
    assert nameless.type == ""
    assert skips.counts == {"pods": 3}

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kube_world import client_of, pod, world

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.codec import PODS
from weft.kube.conditions import ConditionOptions, ConditionWriter
from weft.kube.events import (
    Aggregator,
    Count,
    Create,
    EventOptions,
    EventWriter,
    Note,
    shortened,
)
from weft.kube.structs import ObjectReference

POD = ObjectReference(kind="Pod", namespace="default", name="a", uid="u", api_version="v1")


def note(text: str, reason: str = "FailedScheduling", about: ObjectReference = POD) -> Note:
    return Note(about, reason, text, "Warning")


def events(server: FakeApiServer, namespace: str = "default") -> list[dict[str, Any]]:
    return server.store.all(server.kind("events"), namespace)


# --- what to write, and when ---------------------------------------------------------------------


def test_the_first_is_written_and_the_same_again_is_counted() -> None:
    aggregator = Aggregator(EventOptions(interval_s=60))
    first = aggregator.add(note("no room"), 0)
    assert isinstance(first, Create)
    assert [aggregator.add(note("no room"), at) for at in range(1, 60)] == [None] * 59
    assert aggregator.due(59) == []
    assert aggregator.due(60) == [Count(first.name, note("no room"), 60)]
    assert aggregator.due(999) == []
    assert aggregator.add(note("no room"), 999) == Count(first.name, note("no room"), 61)


def test_a_text_that_varies_fast_waits_and_only_the_latest_is_kept() -> None:
    aggregator = Aggregator(EventOptions(interval_s=60))
    aggregator.add(note("largest free 1"), 0)
    for number in range(2, 50):
        assert aggregator.add(note(f"largest free {number}"), number) is None
    (write,) = aggregator.due(60)
    assert isinstance(write, Create)
    assert write.note.note == "largest free 49"


def test_other_reasons_and_objects_do_not_wait() -> None:
    aggregator = Aggregator(EventOptions())
    other = ObjectReference(kind="Pod", namespace="default", name="b", uid="v")
    notes = [note("x"), note("x", "Scheduled"), note("x", about=other)]
    assert all(isinstance(aggregator.add(one, 0), Create) for one in notes)


def test_memory_is_bounded() -> None:
    aggregator = Aggregator(EventOptions(remembered=10))
    for number in range(100):
        about = ObjectReference(name=str(number), uid=str(number))
        aggregator.add(note("x", about=about), 0)
        aggregator.add(note("y", about=about), 0)
    assert len(aggregator.due(1_000)) == 10


def test_text_is_shortened_between_characters() -> None:
    assert shortened("kurz", 10) == "kurz"
    assert shortened("ä" * 10, 10) == "äää…"
    assert len(shortened("×" * 2_000, 1_024).encode()) <= 1_024


# --- writing -------------------------------------------------------------------------------------


@asynccontextmanager
async def writing(
    urgent: Sequence[bool] = (), **options: Any
) -> AsyncIterator[tuple[FakeApiServer, EventWriter, VirtualClock]]:
    clock = VirtualClock()
    async with FakeApiServer() as server, client_of(server, clock, attempts=1) as client:
        writer = EventWriter(
            client, "weft.dev/scheduler", "weft-0", lambda: bool(urgent), EventOptions(**options)
        )
        task = asyncio.create_task(writer.run())
        yield server, writer, clock
        task.cancel()


async def ended(writer: EventWriter) -> None:
    await asyncio.sleep(0)
    await writer.drained()


async def test_what_is_more_urgent_goes_first_but_not_for_ever() -> None:
    urgent = [True]
    async with writing(urgent, gives_way_s=3) as (server, writer, clock):
        writer.emit(note("no room"))
        await clock.asleep(2)
        assert events(server) == []
        urgent.clear()
        clock.advance(1)
        await ended(writer)
        assert len(events(server)) == 1
        urgent.append(True)
        for reason in ("A", "B", "C"):
            writer.emit(note("no room", reason))
        await clock.asleep(2)
        assert len(events(server)) == 1
        clock.advance(3)
        await ended(writer)  # it goes on being urgent, and all of them are written
        assert len(events(server)) == 4


async def test_an_event_is_as_the_api_wants_it_and_repeats_become_a_series() -> None:
    async with writing() as (server, writer, clock):
        writer.emit(note("no room"))
        await ended(writer)
        (event,) = events(server)
        assert event["reportingController"] == "weft.dev/scheduler"
        assert event["reportingInstance"] == "weft-0"
        assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"
        assert event["regarding"] == {
            "kind": "Pod",
            "namespace": "default",
            "name": "a",
            "uid": "u",
            "apiVersion": "v1",
        }
        assert (event["reason"], event["note"], event["type"], event["action"]) == (
            "FailedScheduling",
            "no room",
            "Warning",
            "Scheduling",
        )
        for _ in range(4):
            writer.emit(note("no room"))
        await clock.asleep()
        clock.advance(60)
        await clock.asleep()
        await ended(writer)
        (event,) = events(server)
        assert event["series"]["count"] == 5
        assert writer.written == 2


async def test_a_series_whose_event_is_gone_begins_anew() -> None:
    async with writing() as (server, writer, clock):
        writer.emit(note("no room"))
        await ended(writer)
        server.remove("events", events(server)[0]["metadata"]["name"])
        clock.advance(60)
        writer.emit(note("no room"))
        await ended(writer)
        assert [event["note"] for event in events(server)] == ["no room"]


async def test_events_of_cluster_wide_objects_are_in_default() -> None:
    async with writing() as (server, writer, _):
        writer.emit(note("x", about=ObjectReference(kind="Node", name="n")))
        await ended(writer)
        assert events(server)[0]["metadata"]["name"].startswith("n.")


async def test_events_do_not_wait_for_each_other() -> None:
    """At most so many writes are under way; a slow one holds none of the others up."""
    async with writing(in_flight=2) as (server, writer, _):
        slow = server.fault("delay", path="events")
        for number in range(5):
            writer.emit(note("x", about=ObjectReference(name=str(number), uid=str(number))))
        while writer.written < 4:
            await asyncio.sleep(0)
        assert slow.hits == 1
        assert len(events(server)) == 4


async def test_no_more_writes_are_under_way_than_allowed() -> None:
    async with writing(in_flight=2) as (server, writer, _):
        slow = server.fault("delay", path="events", times=9)
        for number in range(5):
            writer.emit(note("x", about=ObjectReference(name=str(number), uid=str(number))))
        while slow.hits < 2:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (slow.hits, writer.written) == (2, 0)


async def test_what_cannot_be_written_is_dropped_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with writing(waiting=2) as (server, writer, _):
        server.fault("status", path="events", times=9)
        for number in range(4):
            writer.emit(note("x", about=ObjectReference(name=str(number), uid=str(number))))
        await ended(writer)
        assert writer.dropped == 4  # two found no room in the queue
        assert events(server) == []
    assert len(caplog.records) == 1


# --- the condition -------------------------------------------------------------------------------


async def test_the_condition_is_written_when_it_is_news() -> None:
    clock = VirtualClock()
    async with world(clock) as (server, client):
        server.add("pods", pod("a"))
        writer = ConditionWriter(client, ConditionOptions(interval_s=60))

        async def tell(message: str) -> bool:
            return await writer.unschedulable(await client.get(PODS, "default", "a"), message)

        assert await tell("0/3 nodes")
        (condition,) = server.get("pods", "a")["status"]["conditions"]
        since = "2026-01-01T00:00:00Z"
        assert condition == {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes",
            "lastTransitionTime": since,
        }
        assert not await tell("0/3 nodes")
        assert not await tell("0/4 nodes")  # too soon
        clock.advance(60)
        assert await tell("0/4 nodes")
        (condition,) = server.get("pods", "a")["status"]["conditions"]
        assert condition["message"] == "0/4 nodes"
        assert condition["lastTransitionTime"] == since
        assert (writer.written, writer.spared) == (2, 2)


async def test_a_reason_of_another_kind_is_written_at_once_but_once_a_minute() -> None:
    clock = VirtualClock()
    async with world(clock) as (server, client):
        server.add("pods", pod("a"))
        writer = ConditionWriter(client, ConditionOptions(interval_s=60))

        async def tell(message: str) -> bool:
            return await writer.unschedulable(await client.get(PODS, "default", "a"), message)

        assert await tell("0/3 nodes: 3 without GPUs")
        clock.advance(1)
        assert not await tell("0/4 nodes: 4 without GPUs")
        assert await tell("0/4 nodes: 4 lack memory")
        assert not await tell("0/4 nodes: 4 without GPUs"), "as often as the reason changes"
        clock.advance(60)
        assert await tell("0/4 nodes: 4 without GPUs")


async def test_a_pod_that_is_gone_or_another_is_no_error() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        old = await client.get(PODS, "default", "a")
        server.remove("pods", "a")
        writer = ConditionWriter(client, ConditionOptions(remembered=1))
        assert not await writer.unschedulable(old, "x")
        server.add("pods", pod("a"))
        writer.forget(old.metadata.uid)
        assert not await writer.unschedulable(old, "x")
        now = await client.get(PODS, "default", "a")
        assert await writer.unschedulable(now, "x")
        assert writer.written == 1


async def test_a_pod_that_was_bound_meanwhile_is_not_told_that_it_waits() -> None:
    async with world() as (server, client):
        server.add("nodes", {"metadata": {"name": "n"}})
        server.add("pods", pod("a"))
        waiting = await client.get(PODS, "default", "a")
        binding = b'{"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}}'
        await client.call("POST", PODS.of("default", "a", "binding"), binding)
        writer = ConditionWriter(client)
        assert not await writer.unschedulable(waiting, "x")
        (condition,) = server.get("pods", "a")["status"]["conditions"]
        assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
        assert writer.written == writer.spared == 0

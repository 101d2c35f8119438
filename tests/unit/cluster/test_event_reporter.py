"""People are told everything once, and also what was said last before the end."""

import asyncio
import datetime
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_world import Json, World, bind, node, pod, until, world

from weft.cluster.control.event_reporter import EventReporter, EventReporterOptions, WaitingReason
from weft.dialects.foreign import foreign_resource
from weft.model.log_fields import FIELDS

MIXED = {"weft.dev/gpu-memory": 1, "aliyun.com/gpu-mem": 1}


@asynccontextmanager
async def telling(*nodes: Json, **options: Any) -> AsyncIterator[World]:
    async with world(*nodes) as made:
        teller = EventReporter(made.live, made.client, "here", EventReporterOptions(**options))
        task = asyncio.create_task(teller.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def events(made: World, about: str) -> list[tuple[str, str]]:
    """(reason, note) of the events about this object, in order."""
    found = made.server.store.all(made.server.kind("events"))
    return [(e["reason"], e["note"]) for e in found if e["regarding"]["name"] == about]


def condition(made: World, name: str) -> str:
    """The message of PodScheduled=False; "" where the pod has none."""
    for one in made.server.get("pods", name, "d")["status"].get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one["message"])
    return ""


def mixed(name: str) -> Json:
    asks = {"limits": {resource: str(value) for resource, value in MIXED.items()}}
    return pod(name, containers=[{"name": "c", "resources": asks}])


async def test_a_pod_that_contradicts_itself_says_so_until_it_changes() -> None:
    async with telling() as made:
        made.server.add("pods", mixed("a"))
        text = await until(lambda: condition(made, "a"))
        assert "keep one system and remove the others" in text
        assert await until(lambda: events(made, "a")) == [("FailedScheduling", text)]
        made.server.update("pods", "a", {"metadata": {"labels": {"x": "y"}}}, "d")
        await until(lambda: (p := made.live.pod("d", "a")) and p.metadata.labels)
        assert made.told("FailedScheduling") == [text]  # once
        one = [{"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": "99000"}}}]
        made.server.update("pods", "a", {"spec": {"containers": one}}, "d")
        await until(lambda: "asked 99,000" in condition(made, "a"))


async def test_a_contradiction_that_is_mended_gets_a_place() -> None:
    async with telling() as made:
        made.server.add("pods", mixed("a"))
        await until(lambda: condition(made, "a"))
        one = [{"name": "c", "resources": {"limits": {"weft.dev/gpu-memory": "10"}}}]
        made.server.update("pods", "a", {"spec": {"containers": one}}, "d")
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))
        assert condition(made, "a") == ""
        await until(lambda: "Scheduled" in dict(events(made, "a")))


def fields_of(record: logging.LogRecord) -> Json:
    """The objects of a log line, beside the pod's name."""
    return {key: record.__dict__[key] for key in FIELDS[1:] if key in record.__dict__}


async def test_decisions_are_logged_with_pod_node_and_cycle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "weft.cluster")
    async with telling() as made:
        made.server.add("pods", pod("large", 90_000))
        made.server.add("pods", pod("small"))
        made.server.add("pods", mixed("mixed"))
        await until(lambda: len(caplog.records) > 2)
        records = {record.__dict__["pod"]: record for record in caplog.records}
        placed = made.live.engine.placed[made.uid("small")].record
    waits, bound, bad = (records[f"d/{name}"] for name in ("large", "small", "mixed"))
    assert fields_of(waits) == {"podUID": made.uid("large"), "cycle": placed.seq - 1}
    assert fields_of(bound) == {"podUID": made.uid("small"), "node": "n", "cycle": placed.seq}
    assert fields_of(bad) == {"podUID": made.uid("mixed")}
    assert waits.getMessage().startswith("pod d/large waits: 0/")
    assert bound.getMessage() == "pod d/small: bound to n GPU 0"
    assert bad.getMessage().startswith("pod d/mixed waits: ")


async def test_bindings_may_go_without_events() -> None:
    async with telling(scheduled=False) as made:
        made.server.add("pods", pod("a", 9_000_000))
        made.server.add("pods", pod("b"))
        await until(lambda: made.server.get("pods", "b", "d")["spec"].get("nodeName"))
        await until(lambda: events(made, "a"))
    assert events(made, "b") == []


async def test_what_is_queued_at_the_end_is_written() -> None:
    async with world() as made:
        teller = EventReporter(made.live, made.client, "here")
        slow = made.server.fault("delay", path="events")
        task = asyncio.create_task(teller.run())
        for number in range(5):
            made.server.add("pods", pod(f"p{number}", 9_000_000))
        await asyncio.wait_for(slow.struck.wait(), 60)
        await until(lambda: all(made.live.pod("d", f"p{number}") for number in range(5)))
        task.cancel()
        slow.gate.set()
        await asyncio.gather(task, return_exceptions=True)
        for number in range(5):
            assert condition(made, f"p{number}")
            assert [reason for reason, _ in events(made, f"p{number}")] == ["FailedScheduling"]


async def test_the_end_is_not_waited_for_for_ever() -> None:
    async with world() as made:
        teller = EventReporter(made.live, made.client, "here", EventReporterOptions(drain_s=0.05))
        stuck = made.server.fault("delay", path="events")
        task = asyncio.create_task(teller.run())
        made.server.add("pods", pod("a", 9_000_000))
        await asyncio.wait_for(stuck.struck.wait(), 60)
        task.cancel()
        async with asyncio.timeout(10):  # the request's own time-out is 15 s
            await asyncio.gather(task, return_exceptions=True)
        stuck.gate.set()


async def test_a_reason_that_was_held_back_is_said_in_the_end() -> None:
    """The second try comes a second after the first, which is too soon; there is no third."""

    async with telling(node("n", 1), interval_s=1.6) as made:
        made.server.add("pods", pod("a", 17_000))
        first = await until(lambda: condition(made, "a"))
        made.server.update("nodes", "n", {"spec": {"unschedulable": True}})
        second = await until(lambda: (said := condition(made, "a")) != first and said)
        assert "cordon" in second


async def test_a_reason_that_was_held_back_never_replaces_a_newer_one() -> None:
    """The second one has other numbers only, too soon; the third is another, written at once."""
    async with world(node("n", 1)) as made:
        teller = EventReporter(made.live, made.client, "here", EventReporterOptions(interval_s=1))
        task = asyncio.create_task(teller.run())
        made.server.add("pods", pod("a", scheduler="other"))
        await until(lambda: made.live.pod("d", "a"))

        def says(text: str) -> None:
            if known := made.live.pod("d", "a"):
                teller._waits(known, WaitingReason(text))

        says("0/3 nodes: 3 without GPUs")
        await until(lambda: condition(made, "a"))
        says("0/4 nodes: 4 without GPUs")
        await until(lambda: teller._delayed)
        says(last := "0/4 nodes: 4 lack memory")
        await until(lambda: condition(made, "a") == last)
        with pytest.raises(TimeoutError):  # three times as long as a reason is held back
            await asyncio.wait_for(until(lambda: condition(made, "a") != last), 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_gpus_of_dead_nodes_are_named_in_the_reason() -> None:
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3, minutes=1)
    down = node("n", ready="Unknown", since=since.strftime("%Y-%m-%dT%H:%M:%SZ"))
    async with telling(down) as made:
        made.server.add("pods", pod("lost", scheduler="other"))
        bind(made.server, "lost", 1, "2020-01-01T00:00:00Z")
        await until(made.live.stuck)
        made.server.add("pods", pod("a"))
        text = await until(lambda: condition(made, "a"))
        assert text.endswith("; 1 GPU held by pods of dead nodes: d/lost for 3 h")


AMD = {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "amd.com/gpu": "2"}}


async def test_a_pod_that_asks_in_other_systems_words_is_told_whose_they_are() -> None:
    """In the words of `weft parse`."""
    texts = {
        name: text.text
        for name in ("tencent.com/vcuda-core", "nvidia.com/gpus", "weft.dev/gpu-mem", "amd.com/gpu")
        if (text := foreign_resource(name)) is not None
    }
    has = node()
    has["status"] |= AMD
    async with telling(has) as made:
        for number, name in enumerate(texts):
            one = [{"name": "c", "resources": {"limits": {name: "1"}}}]
            made.server.add("pods", pod(f"p{number}", containers=one))
        limits = {"volcano.sh/vgpu-number": "1"}
        spread = pod("spread", containers=[{"name": "c", "resources": {"limits": limits}}])
        policy = "volcano.sh/vgpu-podgroup-policy"
        spread["metadata"]["annotations"] = {policy: "spread"}
        made.server.add("pods", spread)
        for number, text in enumerate(list(texts.values())[:3]):
            await until(lambda at=number, text=text: text in condition(made, f"p{at}"))
        assert "(largest free 0 nvidia.com/gpus, asked 1)" in condition(made, "p1")
        said = await until(lambda: condition(made, "spread"))
        assert f"annotation {policy} ('spread') is not honoured by Weft" in said
        assert "run this pod through kube-scheduler" not in said
        # What its device plugin counts by itself is a matter of nodes alone.
        await until(lambda: made.server.get("pods", "p3", "d")["spec"].get("nodeName") == "n")
        request = made.live.parse(made.live.pod("d", "p3"))
        assert texts["amd.com/gpu"] in request.warnings


async def test_a_group_with_a_pod_of_another_scheduler_says_so_where_it_waits() -> None:
    async with telling() as made:
        for name, scheduler in (("x", "weft"), ("y", "other")):
            said = {
                "gang.scheduling.koordinator.sh/name": "train",
                "gang.scheduling.koordinator.sh/min-available": "2",
            }
            asked = pod(name, 1_000, scheduler)
            asked["metadata"]["annotations"] = said
            made.server.add("pods", asked)
        why = await until(
            lambda: named if "schedulerName" in (named := condition(made, "x")) else ""
        )
        assert why == (
            "group d/train needs 2 pods, but has 1; pod d/y of group d/train has "
            "schedulerName other, which is not Weft's: it does not count for the group until it is "
            "bound; write one schedulerName on all"
        )


async def test_a_pod_whose_group_has_no_known_size_is_told_what_to_write() -> None:
    job, jobset = {"batch.kubernetes.io/job-name": "j"}, {"jobset.sigs.k8s.io/jobset-name": "s"}
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    async with telling() as made:
        for name, labels in (
            ("job", job),
            ("jobset", {**jobset, **job, **index}),
            ("named", {"scheduling.x-k8s.io/pod-group": "train"}),
        ):
            asked = pod(name, 1_000, "weft")
            asked["metadata"]["labels"] = labels
            asked["metadata"]["annotations"] = {"weft.dev/gang": "owner"} if name != "named" else {}
            made.server.add("pods", asked)
        said = {name: await until(lambda at=name: condition(made, at)) for name in ("job", "named")}
        jobs = await until(lambda: condition(made, "jobset"))
    assert said["job"] == (
        "the size of group d/Job/j is not known, so its pods wait; it is unknown how many pods of "
        "Job/j must start together, so it stays pending: write annotation weft.dev/gang-size on "
        "its pods"
    )
    assert jobs.startswith("the size of group d/JobSet/s is not known, so its pods wait")
    assert jobs.endswith("several pods each; write annotation weft.dev/gang-size on its pods")
    assert "the pod waits for its PodGroup d/train, which cannot be read" in said["named"]

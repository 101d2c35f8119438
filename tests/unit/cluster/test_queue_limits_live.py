"""Limits of teams' queues on a live cluster: what pods are told, and what is counted after a
restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from led_cluster import led
from live_world import Json, World, until, world
from live_world import pod as bare

from weft.cluster.control.event_reporter import EventReporter, EventReporterOptions
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms

LIMITS = QueueAmounts(memory_mib=15_000)
RULES = QueueRules(queues=(QueueTerms("a", limits=LIMITS),))


def pod(name: str, memory_mib: int = 10_000, queue: str = "a") -> Json:
    made = bare(name, memory_mib)
    made["metadata"]["labels"] = {"weft.dev/queue": queue}
    return made


@asynccontextmanager
async def telling() -> AsyncIterator[World]:
    async with world(policy=FirstFit(), queues=RULES) as made:
        reporter = EventReporter(made.live, made.client, "here", EventReporterOptions())
        task = asyncio.create_task(reporter.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def condition(made: World, name: str) -> Any:
    for one in made.server.get("pods", name, "d")["status"].get("conditions") or []:
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return one
    return None


def node_of(made: World, name: str) -> str:
    return str(made.server.get("pods", name, "d")["spec"].get("nodeName") or "")


async def test_a_limited_pod_says_so_and_asks_no_autoscaler_for_a_node() -> None:
    async with telling() as made:
        made.server.add("pods", pod("a1"))
        await until(lambda: node_of(made, "a1"))
        made.server.add("pods", pod("a2"))
        made.server.add("pods", pod("large", 900_000, queue="b"))
        limited = await until(lambda: condition(made, "a2"))
        assert limited["reason"] == "QueueLimit"
        assert limited["message"].endswith(
            "queue a holds 10,000 of at most 15,000 MiB of GPU memory; this pod asks for 10,000"
        )
        full = await until(lambda: condition(made, "large"))
        assert full["reason"] == "Unschedulable"
        made.server.remove("pods", "a1", "d")
        assert await until(lambda: node_of(made, "a2"))


async def test_after_a_restart_bound_pods_count_as_before() -> None:
    async with telling() as made:
        made.server.add("pods", pod("a1"))
        await until(lambda: node_of(made, "a1"))
        await until(lambda: (known := made.live.pod("d", "a1")) and known.spec.node_name)
        await made.live.stop()
        again = led(made.client, [Profile("weft", [FirstFit()])], queues=RULES).live
        await again.start()
        await again.lead(afresh=False)
        assert again.engine.teams.use("a").memory_mib == 10_000
        made.server.add("pods", pod("a2"))
        await until(lambda: again.engine.queue.get(made.uid("a2")))
        assert not node_of(made, "a2")
        await again.stop()

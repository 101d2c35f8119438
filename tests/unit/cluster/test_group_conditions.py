"""Kubernetes' PodGroups say whether their pods have places."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_world import World, client_of, living, node, pod, until

from fakes.api_server import FakeApiServer
from weft.core.policies.fgd import Fgd

Json = dict[str, Any]
CORE, OLD_CORE = "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"
NAMES = {CORE: "PodGroupInitiallyScheduled", OLD_CORE: "PodGroupScheduled"}
PATCHES = "PATCH podgroups/status"


@asynccontextmanager
async def world(version: str = CORE, least: int = 2) -> AsyncIterator[World]:
    async with FakeApiServer(has_groups=[version]) as server, client_of(server) as client:
        server.add("nodes", node("n"))
        spec = {"schedulingPolicy": {"gang": {"minCount": least}}}
        group = {"metadata": {"name": "train", "namespace": "d"}, "spec": spec}
        server.add(f"podgroups.{version}", group)
        made = World(server, client, Fgd())
        async with living(made):
            yield made


def member(name: str, memory_mib: int = 1_000, **spec: Any) -> Json:
    return pod(name, memory_mib, schedulingGroup={"podGroupName": "train"}, **spec)


def said(made: World, version: str = CORE) -> Json:
    """The group's condition; empty where it has none."""
    group = made.server.get(f"podgroups.{version}", "train", "d")
    found = group.get("status", {}).get("conditions", [])
    assert len(found) < 2
    return dict(found[0]) if found else {}


@pytest.mark.parametrize("version", NAMES)
async def test_a_group_whose_pods_have_places_is_told_in_its_versions_word(version: str) -> None:
    async with world(version) as made:
        made.server.add("pods", member("a"))
        made.server.add("pods", member("b"))
        await until(lambda: said(made, version).get("status") == "True")
        found = said(made, version)
        assert (found["type"], found["reason"]) == (NAMES[version], "Scheduled")
        assert found["lastTransitionTime"].endswith("Z")


async def test_a_group_that_waits_says_why_and_later_that_it_has_places() -> None:
    async with world(least=1) as made:
        made.server.add("pods", member("a", nodeSelector={"no": "where"}))
        await until(lambda: said(made).get("status") == "False")
        assert said(made)["reason"] == "Unschedulable"
        assert said(made)["message"].startswith("pod a: ")
        made.server.add("pods", member("b"))
        await until(lambda: said(made)["status"] == "True")
        assert said(made)["message"] == ""


async def test_a_group_that_has_gathered_says_at_once_what_it_waits_for_then() -> None:
    async with world() as made:
        made.server.add("pods", member("a"))
        await until(lambda: "needs 2 pods, but has 1" in said(made).get("message", ""))
        made.server.add("pods", member("b", nodeSelector={"no": "where"}))
        await until(lambda: "needs places for 2 pods together" in said(made)["message"])


async def test_that_a_group_had_places_is_never_taken_back() -> None:
    async with world(least=1) as made:
        made.server.add("pods", member("a"))
        await until(lambda: said(made).get("status") == "True")
        made.server.add("pods", member("b", nodeSelector={"no": "where"}))
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        assert said(made)["status"] == "True"
        assert made.server.requests[PATCHES] == 1


async def test_it_is_not_taken_back_while_the_watch_has_not_shown_it_yet() -> None:
    async with world(least=1) as made:
        (watch,) = made.server.watches("podgroups")
        watch.silence()
        made.server.add("pods", member("a"))
        await until(lambda: said(made).get("status") == "True")
        made.server.add("pods", member("b", nodeSelector={"no": "where"}))
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        await until(lambda: not made.parts.groups._task.runs)
        assert said(made)["status"] == "True"
        assert made.server.requests[PATCHES] == 1


async def test_a_write_that_fails_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async with world(least=1) as made:
        made.server.fault("status", method="PATCH", path="podgroups", code=500, times=9)
        made.server.add("pods", member("a"))
        with caplog.at_level(logging.WARNING):
            await until(lambda: [t for t in caplog.messages if "is written again later" in t])
        made.server.faults.forget()
        await until(lambda: said(made).get("status") == "True")


async def test_that_a_group_had_places_is_written_whoever_waits_before_it_is() -> None:
    async with world(least=1) as made:
        held = made.server.fault("status", method="PATCH", path="podgroups", code=500, times=1)
        made.server.add("pods", member("a"))
        await held.struck.wait()
        made.server.add("pods", member("b", nodeSelector={"no": "where"}))
        await until(lambda: said(made).get("status") == "True")
        await until(lambda: not made.parts.groups._task.runs)
        assert said(made)["status"] == "True"


async def test_a_process_that_ends_begins_no_write_again() -> None:
    """Its tasks are cancelled, and what a cancelled one would do is not begun in another."""
    async with world(least=1) as made:
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
        other = {"metadata": {"name": "other", "namespace": "d"}, "spec": spec}
        made.server.add(f"podgroups.{CORE}", other)
        held = made.server.fault("delay", method="PATCH", path="podgroups")
        made.server.add("pods", member("a"))
        await held.struck.wait()
        made.server.add("pods", pod("b", 1_000, schedulingGroup={"podGroupName": "other"}))
        groups = made.parts.groups
        await until(lambda: groups._due)
        assert groups._task.runs
        await groups._task.stop()
        await until(lambda: not groups._task.runs)
        assert PATCHES not in made.server.requests


async def test_who_may_not_write_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world(least=1) as made:
        made.server.fault("status", method="PATCH", path="podgroups", code=403, times=9)
        with caplog.at_level(logging.WARNING):
            for name in ("a", "b"):
                made.server.add("pods", member(name))
            await until(lambda: made.server.requests.get("POST pods/binding", 0) == 2)
            lacking = "no permission to patch podgroups"
            await until(lambda: [text for text in caplog.messages if lacking in text])
        told = [text for text in caplog.messages if lacking in text]
        assert len(told) == 1


async def test_a_pod_of_another_scheduler_says_nothing() -> None:
    async with world(least=1) as made:
        made.server.add("pods", member("a", scheduler="other", nodeName="n"))
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        assert said(made) == {}

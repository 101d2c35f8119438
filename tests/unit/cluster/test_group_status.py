"""scheduler-plugins' PodGroups show their phase and how many of their pods run."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from live_world import World, client_of, living, node, pod, until

from fakes.api_server import FakeApiServer
from weft.cluster.leader.group_status import phase_of
from weft.core.policies.fgd import Fgd

Json = dict[str, Any]
GROUPS = "podgroups.scheduling.x-k8s.io/v1alpha1"
LABEL = "scheduling.x-k8s.io/pod-group"


@asynccontextmanager
async def world(least: int = 2, **how: Any) -> AsyncIterator[World]:
    version = GROUPS.partition(".")[2]
    async with FakeApiServer(has_groups=[version]) as server, client_of(server) as client:
        server.add("nodes", node("n"))
        made = World(server, client, Fgd(), **how)
        made.parts.group_statuses._interval_s = 0.02
        async with living(made):
            yield made


def group(least: int = 2, **meta: Any) -> Json:
    return {"metadata": {"name": "train", "namespace": "d", **meta}, "spec": {"minMember": least}}


def member(name: str, **spec: Any) -> Json:
    made = pod(name, 1_000, **spec)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u"}
    made["metadata"] |= {"labels": {LABEL: "train"}, "ownerReferences": [owner]}
    return made


def said(made: World) -> Json:
    """The group's status."""
    return dict(made.server.get(GROUPS, "train", "d").get("status", {}))


async def shows(made: World, **status: object) -> None:
    await until(lambda: status.items() <= said(made).items())


def becomes(made: World, phase: str, *names: str) -> None:
    for name in names:
        made.server.update("pods", name, {"status": {"phase": phase}}, "d")


@pytest.mark.parametrize(
    ("placed", "counts", "phase"),
    [
        (0, {}, "Pending"),
        (1, {"Running": 1}, "Pending"),
        (2, {"Pending": 2}, "Scheduling"),
        (2, {"Running": 1, "Succeeded": 1}, "Running"),
        (3, {"Succeeded": 2, "Failed": 1}, "Finished"),
        (2, {"Running": 1, "Failed": 1}, "Failed"),
        (1, {"Failed": 1}, "Pending"),
    ],
)
def test_a_phase_says_how_far_a_group_is(placed: int, counts: dict[str, int], phase: str) -> None:
    assert phase_of(placed, Counter(counts), 2) == phase


async def test_the_status_follows_the_groups_pods_until_they_are_done() -> None:
    async with world() as made:
        made.server.add(GROUPS, group())
        made.server.add("pods", member("a"))
        await shows(made, phase="Pending")
        made.server.add("pods", member("b"))
        await shows(made, phase="Scheduling", occupiedBy="d/job")
        assert said(made)["scheduleStartTime"].endswith("Z")
        becomes(made, "Running", "a", "b")
        await shows(made, phase="Running", running=2)
        becomes(made, "Succeeded", "a", "b")
        await shows(made, phase="Finished", running=0, succeeded=2)
        made.server.remove("pods", "a", "d")
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        await shows(made, phase="Finished", succeeded=2)


async def test_a_status_that_another_one_wrote_is_left_alone() -> None:
    fields = {"f:status": {".": {}, "f:phase": {}}}
    other = {"manager": "controller", "operation": "Update", "fieldsV1": fields}
    spec = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    async with world() as made:
        made.server.add(GROUPS, group(managedFields=[spec, other]))
        made.server.add("pods", member("a"))
        made.server.add("pods", member("b"))
        made.server.add(GROUPS, {**group(1), "metadata": {"name": "own", "namespace": "d"}})
        own = member("c")
        own["metadata"]["labels"] = {LABEL: "own"}
        made.server.add("pods", own)
        await until(
            lambda: (
                made.server.get(GROUPS, "own", "d").get("status", {}).get("phase") == "Scheduling"
            )
        )
        assert said(made) == {}


async def test_who_may_not_write_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as made:
        made.server.fault("status", method="PATCH", path="podgroups", code=403, times=9)
        made.server.add(GROUPS, group())
        made.server.add("pods", member("a"))
        made.server.add("pods", member("b"))
        text = "PodGroups' statuses are not written: no permission to patch podgroups/status"
        await until(lambda: [each for each in caplog.messages if each.startswith(text)])
        await until(lambda: not made.parts.group_statuses._task.runs)
        becomes(made, "Running", "a", "b")
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        assert not made.parts.group_statuses._task.runs
        assert said(made) == {}


async def test_a_write_that_fails_or_loses_is_repeated() -> None:
    async with world() as made:
        made.server.fault("status", method="PATCH", path="podgroups", code=500, times=2)
        made.server.add(GROUPS, group())
        made.server.add("pods", member("a"))
        await shows(made, phase="Pending")


async def test_nothing_is_written_where_it_is_turned_off() -> None:
    async with world(group_status=False) as made:
        made.server.add(GROUPS, group())
        made.server.add("pods", member("a"))
        made.server.add("pods", member("b"))
        await until(lambda: made.server.get("pods", "b", "d")["spec"].get("nodeName"))
        becomes(made, "Running", "a", "b")
        made.server.add("pods", pod("after", 1_000))
        await until(lambda: made.server.get("pods", "after", "d")["spec"].get("nodeName"))
        assert said(made) == {}

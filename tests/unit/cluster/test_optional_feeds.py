"""API kinds that appear after Weft began are followed without a restart, at a calm pace."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import test_live_koordinator as koordinator
from live_world import World, living, refusals, until
from live_world import pod as shared
from test_live_claims import slices, used
from test_live_kai import with_uuids

from fakes.api_http import Request
from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from fakes.claims import claim, result
from weft.cluster.control.optional_feeds import LOOKS_EVERY_S
from weft.core.policies.fgd import Fgd
from weft.kube.clock import SystemClock

CLAIMS, DEVICES = "resource.k8s.io", "scheduling.koordinator.sh"
CORE, OLD_CORE = "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha2"
GROUPS = (CORE, OLD_CORE, "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")


class CalmClock(SystemClock):
    """The machine's, but that it sleeps for minutes until it is told that they are over."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._over: asyncio.Queue[None] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        if seconds < LOOKS_EVERY_S / 2:
            await super().sleep(seconds)
            return
        self.slept.append(seconds)
        await self._over.get()

    async def pass_by(self) -> None:
        """One interval passes; returns once the next one begins, or nobody sleeps any more."""
        count = len(self.slept)
        self._over.put_nowait(None)
        await until(lambda: len(self.slept) > count)

    def last(self) -> None:
        """One interval passes, and none may follow."""
        self._over.put_nowait(None)


class Lately(World):
    """A cluster on such a clock, and the questions about API groups that its server was asked."""

    clock: CalmClock
    asked: list[str]


@asynccontextmanager
async def world(**has: Any) -> AsyncIterator[Lately]:
    clock = CalmClock()
    async with FakeApiServer(**has) as server, client_of(server, clock) as client:
        server.add("nodes", with_uuids(count=2))
        made = Lately(server, client, Fgd())
        made.clock, made.asked = clock, []

        def note(request: Request) -> None:
            about = (CLAIMS, DEVICES)
            if request.path == "/apis" or any(name in request.path for name in about):
                made.asked.append(request.path)

        server.on_request = note
        async with living(made):
            await until(lambda: clock.slept)
            yield made


async def test_claims_that_are_there_later_hold_their_cards() -> None:
    async with world() as made:
        made.server.has_claims = True
        made.server.add("resourceslices", slices())
        made.server.add("resourceclaims", claim("x", result("gpu-1")))

        await made.clock.pass_by()

        await until(lambda: used(made, 1) == (16_000, 1000))
        refused = refusals(made)
        made.server.add("pods", shared("a", 10_000))
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))
        made.server.add("pods", shared("b", 10_000))
        await until(lambda: "b" in refused)
        made.server.remove("resourceclaims", "x", "d")
        await until(lambda: made.server.get("pods", "b", "d")["spec"].get("nodeName"))


async def test_of_many_claims_that_nobody_can_place_each_is_charged_once() -> None:
    """One by one, each would move the guesses of those before it: the youngest is listed first."""
    count = 60
    async with world() as made:
        made.server.has_claims = True
        for number in range(count):
            body = claim(f"c{number:02}", result("gpu-9"))
            minute = f"2026-11-26T12:{count - 1 - number:02}:00Z"
            body["status"]["allocation"]["allocationTimestamp"] = minute
            made.server.add("resourceclaims", body)
        ledger = made.live.engine.ledger
        before = ledger.version

        await made.clock.pass_by()

        await until(lambda: len(ledger.holdings) == count)
        assert ledger.version - before < 2 * count


async def test_koordinators_crd_that_is_installed_later_says_where_its_pods_are() -> None:
    async with world() as made:
        made.server.add("pods", koordinator.HALF)
        await until(lambda: koordinator.used(made) == [8_000] * 2)
        made.server.has_devices = True
        made.server.add("devices", koordinator.device(2))

        await made.clock.pass_by()

        await until(lambda: koordinator.used(made) == [0, 8_000])


async def test_a_cluster_without_them_is_asked_once_an_interval() -> None:
    async with world() as made:
        began = len(made.asked)
        assert began == 2
        for _ in range(5):
            await made.clock.pass_by()
        assert made.asked[began:] == ["/apis"] * 5
        feeds = {feed.resource.name for feed in made.live.feeds}
        assert not feeds & {"resourceslices", "resourceclaims", "deviceclasses", "devices"}
        assert all(0.8 <= slept / LOOKS_EVERY_S <= 1.2 for slept in made.clock.slept)
        assert len(set(made.clock.slept)) == 6


async def test_where_all_are_there_nobody_asks_again() -> None:
    async with world(has_claims=True, has_groups=GROUPS) as made:
        made.server.has_devices = True
        made.server.add("devices", koordinator.device(2))
        made.clock.last()
        await until(lambda: any(feed.resource.name == "devices" for feed in made.live.feeds))
        asked = made.asked.count("/apis")
        made.clock.last()
        made.server.add("pods", shared("a", 10_000))
        await until(lambda: made.server.get("pods", "a", "d")["spec"].get("nodeName"))
        assert (made.asked.count("/apis"), len(made.clock.slept)) == (asked, 1)


async def test_rights_that_are_granted_later_are_used_and_their_lack_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    denied = {("watch", "resourceclaims.resource.k8s.io"), ("watch", "resourceclaims")}

    async with world() as made:
        made.server.has_claims = True
        made.server.access.denied |= denied
        made.server.add("resourceslices", slices())
        made.server.add("resourceclaims", claim("x", result("gpu-1")))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await made.clock.pass_by()
        told = [line for line in caplog.messages if "ResourceClaims are not counted" in line]
        assert len(told) == 1
        assert list(made.live.optional.unreadable) == ["resource.k8s.io/v1"]
        assert used(made, 1) == (0, 0)

        made.server.access.denied -= denied
        await made.clock.pass_by()

        await until(lambda: used(made, 1) == (16_000, 1000))
        assert not made.live.optional.unreadable


@pytest.mark.parametrize("code", [403, 500])
async def test_an_answer_that_does_not_come_is_no_harm(code: int) -> None:
    async with world() as made:
        made.server.has_claims = True
        made.server.add("resourceslices", slices())
        made.server.add("resourceclaims", claim("x", result("gpu-1")))
        made.server.fault("status", method="GET", path="/apis", code=code, times=50)
        await made.clock.pass_by()
        assert used(made, 1) == (0, 0)
        made.server.faults.forget()
        await made.clock.pass_by()
        await until(lambda: used(made, 1) == (16_000, 1000))


async def test_who_begins_to_lead_meanwhile_counts_them_too() -> None:
    async with world() as made:
        made.server.has_claims = True
        made.server.add("resourceslices", slices())
        made.server.add("resourceclaims", claim("x", result("gpu-1")))
        made.clock.last()
        await made.live.lead(afresh=True, term=4)
        await until(lambda: used(made, 1) == (16_000, 1000))


def versions(made: Lately) -> set[str]:
    """The API versions whose PodGroups are followed."""
    feeds = [feed.resource for feed in made.live.feeds]
    return {each.path.removeprefix("/apis/") for each in feeds if each.name == "podgroups"}


async def test_of_several_versions_of_an_object_the_newest_is_followed() -> None:
    async with world(has_groups=(CORE, OLD_CORE)) as made:
        assert versions(made) == {CORE}


async def test_an_older_version_is_followed_where_there_is_no_newer() -> None:
    async with world(has_groups=[OLD_CORE]) as made:
        assert versions(made) == {OLD_CORE}
        made.server.has_groups.add(CORE)
        await made.clock.pass_by()
        assert versions(made) == {OLD_CORE}, "they are the same objects"


async def test_versions_that_are_served_later_are_followed_once() -> None:
    async with world() as made:
        made.server.has_groups |= set(GROUPS)
        await made.clock.pass_by()
        assert versions(made) == set(GROUPS) - {OLD_CORE}

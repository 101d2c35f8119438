import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from kube_world import client_of

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.lease import Elector, LeaseObservation, LeaseOptions
from weft.kube.structs import Lease, LeaseSpec
from weft.model import BadInputError, ObjectMeta

FREE = {"metadata": {"name": "weft"}, "spec": {"leaseTransitions": 4}}


class Scene:
    """A fake API server with a free Lease, and candidates on one virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = FakeApiServer()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Scene":
        await self._stack.enter_async_context(self.server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def candidate(self, name: str, options: LeaseOptions | None = None) -> Elector:
        client = await self._stack.enter_async_context(client_of(self.server, self.clock))
        return Elector(client, name, options)

    def free(self) -> None:
        self.server.add("leases", FREE, "kube-system")

    def spec(self) -> Any:
        return self.server.get("leases", "weft", "kube-system")["spec"]

    async def pass_time(self, seconds: float, *, sleepers: int = 1, step: float = 0.25) -> None:
        """Let time pass in small steps; between them everybody goes on until they sleep."""
        for _ in range(round(seconds / step)):
            await self.clock.asleep(sleepers)
            self.clock.advance(step)
        await self.clock.asleep(sleepers)


async def test_a_free_lease_is_taken_at_once_with_a_new_term() -> None:
    async with Scene() as s:
        s.free()
        elector = await s.candidate("one")
        assert not elector.leading
        assert not elector.may_bind(0)
        assert await elector.acquire() == 5
        assert elector.leading
        assert s.spec()["holderIdentity"] == "one"
        assert s.spec()["leaseDurationSeconds"] == 10
        assert s.spec()["renewTime"] == "2026-01-01T00:00:00.000000Z"
        with pytest.raises(RuntimeError, match="cannot be regained"):
            await elector.acquire()


async def test_a_missing_lease_may_have_a_leader_who_does_not_know_yet() -> None:
    async with Scene() as s:
        elector = await s.candidate("one")
        acquiring = asyncio.create_task(elector.acquire())
        await s.pass_time(10)
        assert not acquiring.done()
        s.clock.advance(1)
        while not acquiring.done():
            if s.clock.sleepers:
                s.clock.advance(0.5)
            await asyncio.sleep(0.001)
        assert acquiring.result() == 1


async def test_may_bind_counts_from_the_send_of_the_last_renewal() -> None:
    async with Scene() as s:
        s.free()
        slow = s.server.fault("delay-answer", method="PATCH")
        elector = await s.candidate("one")
        acquiring = asyncio.create_task(elector.acquire())
        await slow.struck.wait()
        s.clock.advance(1.5)  # the answer takes its time
        slow.gate.set()
        await acquiring
        assert elector.may_bind(7.9)  # 10 - 1.5 - margin of 0.5
        assert not elector.may_bind(8.1)
        s.clock.advance(8.4)
        assert elector.leading
        assert not elector.may_bind(0)
        s.clock.advance(0.2)
        assert not elector.leading


async def test_a_slow_renewal_counts_from_its_send_too() -> None:
    async with Scene() as s:
        s.free()
        elector = await s.candidate("one")
        await elector.acquire()
        slow = s.server.fault("delay-answer", method="PATCH")
        holding = asyncio.create_task(elector.hold())
        await s.clock.asleep()
        s.clock.advance(2)
        await slow.struck.wait()
        s.clock.advance(1.5)
        slow.gate.set()
        await s.clock.asleep()
        assert elector.may_bind(7.9)
        assert not elector.may_bind(8.1)
        holding.cancel()


async def test_the_leader_renews_and_the_candidate_waits() -> None:
    async with Scene() as s:
        s.free()
        one, two = await s.candidate("one"), await s.candidate("two")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        waiting = asyncio.create_task(two.acquire())
        await s.pass_time(40, sleepers=2)
        assert one.may_bind(3)
        assert not waiting.done()
        assert two.holder == "one"
        waiting.cancel()
        holding.cancel()


async def test_a_dead_leader_is_waited_out_and_the_next_term_begins() -> None:
    async with Scene() as s:
        s.free()
        one, two = await s.candidate("one"), await s.candidate("two")
        await one.acquire()  # and never renews
        began = s.clock.monotonic()
        waiting = asyncio.create_task(two.acquire())
        while not waiting.done():
            assert not (one.may_bind(0) and two.may_bind(0))
            if s.clock.sleepers:
                s.clock.advance(0.1)
            await asyncio.sleep(0.0005)
        assert waiting.result() == 6
        assert 10.5 <= s.clock.monotonic() - began < 13
        assert not one.leading


async def test_a_leader_whose_lease_was_taken_is_told_who_has_it() -> None:
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        taken = {"spec": {"holderIdentity": "thief"}}
        s.server.update("leases", "weft", taken, "kube-system")
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        s.clock.advance(2)
        assert await holding == "thief took the lease"
        assert not one.leading
        assert not one.may_bind(0)


async def test_a_leader_that_cannot_renew_ends_before_its_lease_does() -> None:
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        s.server.fault("status", path="leases", times=1000)
        holding = asyncio.create_task(one.hold())
        while not holding.done():
            if s.clock.sleepers:
                s.clock.advance(0.25)
            await asyncio.sleep(0.0005)
        assert "planned fault 500" in await holding


async def test_a_process_that_was_held_up_does_not_renew_when_it_wakes() -> None:
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        before = dict(s.server.requests)
        s.clock.advance(11)
        assert "did not run for a while" in await holding
        assert s.server.requests == before


@pytest.mark.parametrize("fault", ["lose-answer", "lose-request"])
async def test_a_renewal_whose_answer_was_lost_is_found_out(fault: str) -> None:
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        s.server.fault(fault, method="PATCH")
        holding = asyncio.create_task(one.hold())
        await s.pass_time(30)
        assert one.may_bind(3)
        assert one.term == 5
        holding.cancel()


async def test_an_acquisition_whose_answer_was_lost_keeps_its_term() -> None:
    async with Scene() as s:
        s.free()
        s.server.fault("lose-answer", method="PATCH")
        one = await s.candidate("one")
        acquiring = asyncio.create_task(one.acquire())
        await s.clock.asleep()
        s.clock.advance(2)
        assert await acquiring == 5


HELMS = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "weft"},
}


async def test_a_lease_deleted_under_its_leader_is_made_again_as_it_was() -> None:
    async with Scene() as s:
        s.server.add("leases", {**FREE, "metadata": {"name": "weft", **HELMS}}, "kube-system")
        one = await s.candidate("one")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        s.server.remove("leases", "weft", "kube-system")
        await s.pass_time(12)
        assert s.spec()["leaseTransitions"] == 5
        made = s.server.get("leases", "weft", "kube-system")["metadata"]
        assert {field: made.get(field) for field in HELMS} == HELMS
        assert one.may_bind(3)
        holding.cancel()


async def test_a_lease_deleted_with_its_leader_is_not_made_again() -> None:
    """As by `helm uninstall`: the process is told to end within seconds."""
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        s.server.remove("leases", "weft", "kube-system")
        await s.pass_time(5)
        holding.cancel()
        await one.release()
        assert "POST leases" not in s.server.requests


@pytest.mark.parametrize(
    "options",
    [
        LeaseOptions(),
        LeaseOptions(renew_s=6),
        LeaseOptions(duration_s=2, renew_s=0.5, request_timeout_s=0.5),
    ],
)
async def test_a_deleted_lease_is_made_again_before_leadership_ends(options: LeaseOptions) -> None:
    async with Scene() as s:
        s.free()
        one = await s.candidate("one", options)
        await one.acquire()
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        for _ in range(3):
            s.server.remove("leases", "weft", "kube-system")
            await s.pass_time(15, step=0.1)
            assert one.leading
            assert s.spec()["holderIdentity"] == "one"
        holding.cancel()


async def test_a_released_lease_is_free_at_once() -> None:
    async with Scene() as s:
        s.free()
        one, two = await s.candidate("one"), await s.candidate("two")
        await one.acquire()
        await one.release()
        await one.release()
        assert not one.leading
        assert await two.acquire() == 6
        s.server.fault("status", path="leases")
        await two.release()  # best effort
        assert not two.leading


async def test_a_lease_whose_last_renewal_was_cut_short_is_released_all_the_same() -> None:
    """Told to end while a renewal is written: its version is not the one that was read last."""
    async with Scene() as s:
        s.free()
        one = await s.candidate("one")
        await one.acquire()
        slow = s.server.fault("delay-answer", method="PATCH")
        holding = asyncio.create_task(one.hold())
        await s.clock.asleep()
        s.clock.advance(2)
        await slow.struck.wait()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        slow.gate.set()
        await one.release()
        assert s.spec()["holderIdentity"] == ""


async def test_only_one_of_two_gets_a_free_lease() -> None:
    async with Scene() as s:
        s.free()
        one, two = await s.candidate("one"), await s.candidate("two")
        tasks = [asyncio.create_task(e.acquire()) for e in (one, two)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await s.clock.asleep()
        assert one.leading != two.leading
        for task in tasks:
            task.cancel()


def test_a_foreign_holders_own_duration_counts() -> None:
    meta = ObjectMeta(resource_version="1")
    seen = LeaseObservation(0.5)
    seen.see(Lease(meta, LeaseSpec("x", lease_duration_seconds=15)), 100)
    seen.see(Lease(meta, LeaseSpec("x", lease_duration_seconds=15)), 110)
    assert seen.free_in_s(110) == 5.5
    seen.see(Lease(ObjectMeta(resource_version="2"), LeaseSpec("x")), 111)
    assert seen.free_in_s(111) == 10.5


@pytest.mark.parametrize(
    "options", [LeaseOptions(duration_s=15), LeaseOptions(renew_s=8), LeaseOptions(duration_s=0)]
)
def test_settings_that_cannot_be_safe_are_refused(options: LeaseOptions) -> None:
    with pytest.raises(BadInputError, match="lease"):
        options.check()


async def test_a_lease_that_may_not_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A process that never leads must say why."""

    async with Scene() as scene:
        scene.free()
        scene.server.fault("status", path="/leases/", code=403, times=3)
        elector = await scene.candidate("a")
        acquiring = asyncio.ensure_future(elector.acquire())
        for _ in range(3):
            await scene.clock.asleep()
            assert "403" in elector.failing or "planned" in elector.failing
            scene.clock.advance(2.1)
        assert await asyncio.wait_for(acquiring, 60) == 5
        assert elector.failing == ""
    told = [record.getMessage() for record in caplog.records if "lease" in record.getMessage()]
    assert len(told) == 1
    assert "kube-system/weft" in told[0]

"""The life of a scheduler process on a fake API server: follow, lead, drain; and who calls whom."""

import asyncio

import pytest
from process_world import add_own_pod, add_pod, node_of, role_of, until, world

from weft.host.scheduler_process import LeadershipLostError


async def test_a_follower_is_ready_binds_nothing_and_takes_over_when_the_leader_stops() -> None:
    async with world() as (server, start):
        add_own_pod(server, "a")
        add_own_pod(server, "b")
        add_pod(server, "first")
        a = start("a")
        await until(lambda: role_of(server, "a") == "leader")
        b = start("b")
        await until(lambda: b.live.ready)
        await until(lambda: b.live.leadership.elsewhere == "a")
        assert a.live.leadership.lacking == b.live.leadership.lacking == ""
        await until(lambda: node_of(server, "first") == "n")
        assert (a.live.leadership.here, b.live.leadership.here) == (True, False)
        assert role_of(server, "b") == "follower"
        await a.stop()
        add_pod(server, "second")
        await until(lambda: node_of(server, "second") == "n")
        await until(lambda: role_of(server, "b") == "leader")
        assert b.live.leadership.here
        assert role_of(server, "a") == "follower"
        assert server.requests["POST pods/binding"] == 2


async def test_a_lost_lease_ends_the_process_and_nothing_is_bound_any_more() -> None:
    async with world() as (server, start):
        a = start("a")
        await until(lambda: a.live.leadership.here)
        taken = {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 60}}
        server.update("leases", "weft", taken, "kube-system")
        with pytest.raises(LeadershipLostError, match="other took the lease"):
            await a.task
        assert not a.live.leadership.here
        assert server.get("leases", "weft", "kube-system")["spec"]["holderIdentity"] == "other"


async def test_a_pod_that_comes_back_after_a_crash_is_a_follower_whatever_its_label_says() -> None:
    async with world() as (server, start):
        held = {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 60}}
        server.update("leases", "weft", held, "kube-system")
        add_own_pod(server, "a", "leader")
        a = start("a")
        await until(lambda: a.live.ready)
        assert role_of(server, "a") == "follower"
        assert not a.live.leadership.here


async def test_a_lease_that_a_dead_process_left_behind_is_no_leader_and_a_renewed_one_is() -> None:
    async with world() as (server, start):
        held = {"spec": {"holderIdentity": "dead", "leaseDurationSeconds": 60}}
        server.update("leases", "weft", held, "kube-system")
        a = start("a")
        await until(lambda: a.live.ready and a.elector.holder == "dead")
        assert a.live.leadership.lacking.startswith("no Weft process leads yet")
        renewed = {"spec": {"holderIdentity": "alive", "leaseDurationSeconds": 60}}
        server.update("leases", "weft", renewed, "kube-system")
        await until(lambda: a.live.leadership.elsewhere == "alive")
        assert a.live.leadership.lacking == ""
        server.update("leases", "weft", {"spec": {"holderIdentity": ""}}, "kube-system")
        await until(lambda: a.live.leadership.here)
        assert a.live.leadership.lacking == ""


async def test_a_leader_that_has_stopped_loses_its_mark_to_the_next() -> None:
    async with world() as (server, start):
        add_own_pod(server, "stopped", "leader")
        add_own_pod(server, "a")
        start("a")
        await until(lambda: role_of(server, "a") == "leader")
        assert role_of(server, "stopped") == "follower"


async def test_stopping_finishes_the_binding_under_way_and_keeps_the_lease_till_then() -> None:
    async with world() as (server, start):
        a = start("a")
        await until(lambda: a.live.leadership.here)
        held = server.fault("delay", path="/binding", method="POST")
        add_pod(server, "slow")
        await asyncio.wait_for(held.struck.wait(), 60)
        stopping = asyncio.ensure_future(a.stop())
        renewals = server.requests.get("PATCH leases", 0)
        await until(lambda: server.requests.get("PATCH leases", 0) >= renewals + 2)
        assert not stopping.done()
        holder = server.get("leases", "weft", "kube-system")["spec"]["holderIdentity"]
        assert holder == "a"
        held.gate.set()
        await stopping
        assert node_of(server, "slow") == "n"
        assert server.get("leases", "weft", "kube-system")["spec"]["holderIdentity"] == ""

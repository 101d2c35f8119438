"""The right to move pods: a Lease that one process at a time holds."""

import asyncio

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cluster.eviction.moving import MovingTurn


async def test_who_loses_the_lease_may_move_nothing_more() -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        turn = MovingTurn("me")
        holding = asyncio.create_task(turn.hold(client))
        await asyncio.to_thread(turn.settled.wait)
        assert turn.why_not == ""
        stolen = {"spec": {"holderIdentity": "thief"}}
        server.update("leases", "weft-defrag", stolen, "kube-system")
        await holding  # told when it renews
        assert "kube-system/weft-defrag was lost" in turn.why_not


async def test_it_is_given_back_at_the_end() -> None:
    async with FakeApiServer() as server, client_of(server) as client:
        for name in ("first", "second"):
            turn = MovingTurn(name)
            holding = asyncio.create_task(turn.hold(client))
            await asyncio.to_thread(turn.settled.wait)
            spec = server.get("leases", "weft-defrag", "kube-system")["spec"]
            assert (turn.why_not, spec["holderIdentity"]) == ("", name)
            turn.end()
            await holding
            assert turn.why_not

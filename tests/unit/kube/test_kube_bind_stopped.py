"""A process that is stopped between its last check and the send of a binding, and then woken."""

import asyncio
import random

import pytest
from kube_world import pod

from fakes.api_http import Request
from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock
from weft.kube.bind import Binder, BindRequest, Bound, Outcome, Refused, Unknown

pytestmark = pytest.mark.virtual_time

STOPPED_S = 8.0


async def bind(*, versioned: bool) -> tuple[Outcome, str]:
    """The binder's word on a binding that arrives after the first look at the pod, and where the
    pod is in the end."""
    server = FakeApiServer()
    line = MemoryLine(server, delay=lambda: 0, lag=lambda: 0)

    async def leaving(request: Request) -> None:
        late = request.path.endswith("/binding")
        if late:
            await asyncio.sleep(STOPPED_S)
        line.delay = lambda: 0.2 if late else 0

    line.leaving = leaving
    meta = server.add("pods", pod())["metadata"]
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        binder = Binder(client, may_bind=None)
        version = meta["resourceVersion"] if versioned else ""
        request = BindRequest(
            "default", "a", meta["uid"], "n", lambda: "", resource_version=version
        )
        outcome = await binder.bind(request)
        assert isinstance(outcome, Unknown)
        outcome = await binder.resolve(outcome)
        await asyncio.sleep(10)
        return outcome, server.get("pods", "a")["spec"].get("nodeName", "")


@pytest.mark.parametrize(("versioned", "outcome"), [(False, Bound), (True, Refused)])
async def test_what_is_said_of_it_is_what_becomes_of_it(versioned: bool, outcome: type) -> None:
    said, node = await bind(versioned=versioned)
    assert isinstance(said, outcome)
    assert node == ("n" if outcome is Bound else "")

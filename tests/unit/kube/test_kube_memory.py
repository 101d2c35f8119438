"""The way to the fake API server without sockets: as true as the one with them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kube_world import pod

from fakes.api_behaviours import BEHAVIOURS, check
from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_server import FakeApiServer
from fakes.api_time import LoopClock, NothingLeftError, run
from weft.kube.codec import PODS
from weft.kube.errors import LostError, NotSentError

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def world() -> AsyncIterator[tuple[FakeApiServer, MemoryClient]]:
    server = FakeApiServer()
    line = MemoryLine(server, delay=lambda: 0.01, lag=lambda: 0.01)
    async with MemoryClient(line, "weft", clock=LoopClock(), rng=random.Random(1)) as client:
        yield server, client


async def test_it_answers_as_over_sockets() -> None:
    async with world() as (_, client):
        for behaviour in BEHAVIOURS:
            assert await check(client, behaviour, "default") == "", behaviour.name


async def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    async with world() as (server, client):
        server.reachable = False
        with pytest.raises(NotSentError):
            await client.send("GET", PODS.of("default"))


@pytest.mark.parametrize("kind", ["lose-request", "lose-answer"])
async def test_a_reset_is_a_lost_answer(kind: str) -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        server.fault(kind, method="DELETE")
        with pytest.raises(LostError):
            await client.call("DELETE", PODS.of("default", "a"))
        there = server.store.has(server.kind("pods"), ("default", "a"))
        assert there == (kind == "lose-request")


async def test_a_request_that_was_given_up_arrives_all_the_same() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        late = server.fault("delay", method="DELETE")
        began = asyncio.get_running_loop().time()
        with pytest.raises(LostError):
            await client.call("DELETE", PODS.of("default", "a"), timeout_s=3)
        assert asyncio.get_running_loop().time() - began == pytest.approx(3)
        assert server.store.has(server.kind("pods"), ("default", "a"))
        late.gate.set()
        await asyncio.sleep(0.1)
        assert not server.store.has(server.kind("pods"), ("default", "a"))


async def test_a_watch_tells_until_it_is_cut_or_falls_silent() -> None:
    async with world() as (server, client):
        query = {"watch": "1", "resourceVersion": "1"}
        async with client.stream(PODS.of(""), query, 60) as content:
            server.add("pods", pod())
            assert b'"ADDED"' in await content.readany()
            server.watches("pods")[0].silence()
            server.add("pods", pod("b"))
            with pytest.raises(TimeoutError):
                await content.readany()
        told = b""
        with pytest.raises(LostError):  # noqa: PT012 - raised where the stream is left
            async with client.stream(PODS.of(""), query, 60) as content:
                told = await content.readany()
                server.cut_watches()
                await content.readany()
        assert b'"b"' in told


def test_waiting_for_what_nobody_does_is_an_error() -> None:
    async def scene() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingLeftError):
        run(scene())

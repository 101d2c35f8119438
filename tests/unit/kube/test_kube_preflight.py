"""Waiting for an API server that does not answer: it is said at once, and said again."""

import asyncio
import itertools
import logging
import socket

import pytest

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.preflight import wait_for_server

log = logging.getLogger("weft.test")


class _Times(logging.Handler):
    """The clock's times at which something was logged, and what."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock, self.lines = clock, list[tuple[float, str]]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((self.clock.now - 1_000, record.getMessage()))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(auto=True)


@pytest.fixture
def said(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    handler = _Times(clock)
    monkeypatch.setattr(log, "handlers", [handler])
    log.setLevel(logging.INFO)
    return handler.lines


async def test_it_is_said_at_once_then_every_thirty_seconds_and_when_it_answers(
    clock: VirtualClock, said: list[tuple[float, str]]
) -> None:
    async with FakeApiServer() as server:
        server.fault("status", path="/version", method="GET", times=60, code=503)
        async with ApiClient(Endpoint(server.url, FixedCredentials()), clock=clock) as client:
            await wait_for_server(client, log)
            assert client.unanswered == ""
    (first_s, first), *again, (last_s, last) = said
    assert first_s == 0
    assert first.startswith(f"the API server {server.url} does not answer: GET /version: 503")
    assert "retrying until it does" in first
    times = [first_s, *(at_s for at_s, _ in again)]
    assert len(times) > 3
    assert last_s - times[-1] <= 35
    assert all(30 <= b - a <= 35 for a, b in itertools.pairwise(times)), times
    assert all("503" in text for _, text in again)
    assert last == f"the API server answers, after {last_s:.0f} s"


async def test_a_server_that_answers_is_not_talked_of(
    clock: VirtualClock, said: list[tuple[float, str]]
) -> None:
    async with FakeApiServer() as server:
        server.fault("status", path="/version", method="GET", times=1, code=403)
        async with ApiClient(Endpoint(server.url, FixedCredentials()), clock=clock) as client:
            await wait_for_server(client, log)
    assert said == []


async def test_the_cause_of_a_connection_that_nobody_takes_is_kept() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        clock = VirtualClock()
        async with ApiClient(Endpoint(url, FixedCredentials()), clock=clock) as client:
            waiting = asyncio.ensure_future(wait_for_server(client, log))
            await clock.asleep()
            assert client.unanswered.startswith("GET /version: Cannot connect to host")
            waiting.cancel()

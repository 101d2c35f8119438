"""The console's server: what it answers, to whom, and that slow or many browsers do no harm."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from weft.cluster.http.server import ServerLimits
from weft.console.deltas import PictureDelta, applied
from weft.console.history import MOST_POINTS, GpuHistory, GpuPoint
from weft.console.picture import Picture, ShownEvent, ShownGpu, ShownPod
from weft.console.server import HEADERS, ConsoleOptions, ConsoleServer, static_files
from weft.console.sources import Kind
from weft.core.explain.explanation import Explanation

MARKUP = "<img src=x onerror=alert(1)>"
QUICK = ConsoleOptions(every_s=0.01, keepalive_s=0.05, close_s=0.2)


class CountedSource:
    """A cluster in which something happens each time that it is looked at."""

    kind: Kind = "demo"
    about = MARKUP
    lives = True

    def __init__(self, ballast: str = "") -> None:
        self.looks, self._ballast = 0, ballast

    def picture(self) -> Picture:
        self.looks += 1
        pod = ShownPod("u1", "ml", MARKUP, "n1", priority=self.looks)
        event = ShownEvent(self.looks, float(self.looks), "bound", self._ballast)
        return Picture(float(self.looks), pods={"u1": pod}, events={str(self.looks): event})

    async def explain(self, namespace: str, name: str) -> Explanation | None:
        if (namespace, name) != ("ml", MARKUP):
            return None
        return Explanation(namespace, name, "u1", "bound", "is bound on n1", "weft", leader=True)


@contextlib.asynccontextmanager
async def served(
    source: CountedSource, options: ConsoleOptions = QUICK
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    server = ConsoleServer(source, options)
    port = await server.listen("127.0.0.1", 0)
    lives = asyncio.create_task(server.run())
    try:
        async with aiohttp.ClientSession() as session:
            yield f"http://127.0.0.1:{port}", session
    finally:
        lives.cancel()
        await server.close()


async def events_of(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    kind = ""
    async for line in answer.content:
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            kind = text.removeprefix("event: ")
        elif text.startswith("data: "):
            yield kind, text.removeprefix("data: ")


@pytest.mark.parametrize("path", ["/", "/map", "/waiting", "/pod/ml/x", "/static/app.js", "/no"])
async def test_each_answer_forbids_inline_and_foreign_code(path: str) -> None:
    async with served(CountedSource()) as (url, session), session.get(url + path) as answer:
        assert answer.status == (404 if path == "/no" else 200)
        for name, value in HEADERS:
            assert answer.headers[name] == value


async def test_a_browser_gets_a_picture_and_deltas_that_lead_to_the_present_one() -> None:
    source = CountedSource()
    async with served(source) as (url, session), session.get(f"{url}/api/picture") as answer:
        assert answer.content_type == "text/event-stream"
        shown, deltas = Picture(0.0), 0
        async with asyncio.timeout(20):
            async for kind, data in events_of(answer):
                if kind == "picture":
                    shown = msgspec.json.decode(data, type=Picture)
                    continue
                shown = applied(shown, msgspec.json.decode(data, type=PictureDelta))
                assert shown.pods["u1"].priority == shown.at_s
                assert list(shown.events) == [str(int(shown.at_s))]
                deltas += 1
                if deltas == 5:
                    break
        assert deltas == 5


async def test_no_pictures_are_made_while_nobody_looks() -> None:
    """The first viewer sees the present state all the same, and it goes on for as long as they
    look."""
    source = CountedSource()
    options = ConsoleOptions(every_s=0.0, keepalive_s=0.05, close_s=0.2)  # no rest between two
    async with served(source, options) as (url, session), asyncio.timeout(20):

        async def looks_meanwhile() -> int:
            before = source.looks
            for _ in range(40):
                async with session.get(f"{url}/healthz") as answer:
                    await answer.read()
            return source.looks - before

        assert await looks_meanwhile() == 0
        fresh = 0
        while fresh < 2:  # a picture that took long, as on a busy machine, is shown once more
            before = source.looks
            async with session.get(f"{url}/api/picture") as answer:
                said = events_of(answer)
                kind, data = await anext(said)
                assert kind == "picture"
                fresh += msgspec.json.decode(data, type=Picture).at_s == before + 1
                for _ in range(3):
                    assert (await anext(said))[0] == "delta"
            while await looks_meanwhile():
                pass  # until the server has noticed that the browser is gone


async def test_pictures_go_on_slowly_while_nobody_looks() -> None:
    """Events and GPUs' histories have what happened meanwhile."""
    source = CountedSource()
    options = ConsoleOptions(every_s=0.0, unseen_every_s=0.0, close_s=0.2)
    async with served(source, options) as (url, session), asyncio.timeout(20):
        while source.looks < 5:
            async with session.get(f"{url}/healthz") as answer:
                await answer.read()


def test_a_gpus_history_has_a_point_for_each_change_and_forgets_the_oldest() -> None:
    history = GpuHistory()
    for at in range(2_000):
        gpus = {"a/0": ShownGpu("a", 0, promised_mib=at // 2), "a/1": ShownGpu("a", 1)}
        history.see(Picture(float(at), gpus=gpus))
    points = history.of("a/0")
    assert len(points) == MOST_POINTS
    assert points[-1] == GpuPoint(1_998.0, 0, 999, None, None)
    assert [point.promised_mib for point in points] == [*range(1_000 - MOST_POINTS, 1_000)]
    assert history.of("a/1") == [GpuPoint(0.0, 0, 0, None, None)]
    history.see(Picture(2_000.0))
    assert history.of("a/0") == []


async def test_two_hundred_browsers_are_served_at_once() -> None:
    async with served(CountedSource()) as (url, _):

        async def first_delta(session: aiohttp.ClientSession) -> str:
            async with session.get(f"{url}/api/picture") as answer:
                async for kind, _ in events_of(answer):
                    if kind == "delta":
                        return kind
            return "none"

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.timeout(60):
            got = await asyncio.gather(*(first_delta(session) for _ in range(200)))
    assert got == ["delta"] * 200


async def test_a_browser_that_stops_reading_is_closed_and_others_go_on() -> None:
    limits = ServerLimits(head_s=5, take_s=0.2, idle_s=5, most_connections=8)
    options = ConsoleOptions(every_s=0.01, keepalive_s=1, limits=limits, close_s=0.2)
    async with served(CountedSource("x" * 1_000_000), options) as (url, session):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /api/picture HTTP/1.1\r\nHost: localhost\r\n\r\n")
        transport = writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        await asyncio.sleep(1)  # longer than it may take
        transport.resume_reading()
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 20):
                    pass
        writer.close()
        async with session.get(f"{url}/api/about") as answer:
            assert answer.status == 200


async def test_other_sites_names_for_this_machine_are_refused() -> None:
    async with served(CountedSource()) as (url, session):
        for host, status in (("evil.example", 421), ("localhost:1", 200), ("[::1]:1", 200)):
            async with session.get(f"{url}/api/about", headers={"Host": host}) as answer:
                assert answer.status == status, host


async def test_nothing_can_be_changed_and_only_static_files_are_files() -> None:
    async with served(CountedSource()) as (url, session):
        async with session.post(f"{url}/api/about", data=b"x") as answer:
            assert answer.status == 405
        for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static/x", "/api/x"):
            target = aiohttp.client.URL(url + path, encoded=True)
            async with session.get(target) as answer:
                assert answer.status == 404, path


async def test_a_pod_is_explained_in_the_lines_of_the_command() -> None:
    async with served(CountedSource()) as (url, session):
        asked = {"namespace": "ml", "name": MARKUP}
        async with session.get(f"{url}/api/explain", params=asked) as answer:
            said = await answer.json()
        assert said["lines"][0] == f"ml/{MARKUP} (UID u1), schedulerName weft"
        assert said["explanation"]["text"] == "is bound on n1"
        async with session.get(f"{url}/api/explain", params={"name": "nobody"}) as answer:
            assert answer.status == 404
            assert json.loads(await answer.text())["error"] == "there is no pod /nobody"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere() -> None:
    for name, (body, _) in static_files().items():
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert "innerHTML" not in text, name
    page = static_files()["index.html"][0].decode()
    assert "<style" not in page
    assert "style=" not in page
    assert page.count("<script") == page.count('<script type="module" src="/static/')

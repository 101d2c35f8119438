"""The client: one question a metric, and whatever the server does, one clear error in time."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from telemetry_world import NOW_S, body, one

from weft.model import BadInputError
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.source import SourceReading

USED, SM = Metric.MEMORY_USED_MIB, Metric.SM_ACTIVE_RATIO
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A server that answers as told, and what it was asked."""

    def __init__(self, answering: Answering) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._answering = answering

    async def handle(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        self.asked.append({"path": request.path, "method": request.method, **form})
        self.headers.append(dict(request.headers))
        return await self._answering(request)


async def reading(
    answering: Answering, *metrics: Metric, **options: Any
) -> tuple[SourceReading, Server]:
    """The reading of one tick from such a server."""
    prefix = options.pop("prefix", "")

    async def story(server: Server, url: str) -> SourceReading:
        async with Prometheus(PrometheusOptions(url + prefix, **options)) as client:
            return await client.read(metrics or (USED,), 45)

    return await asked_of(answering, story)


async def asked_of(
    answering: Answering, asking: Callable[[Server, str], Awaitable[SourceReading]]
) -> tuple[SourceReading, Server]:
    """The reading from such a server, at its address."""

    async def story() -> tuple[SourceReading, Server]:
        server = Server(answering)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        try:
            return await asking(server, f"http://127.0.0.1:{port}"), server
        finally:
            await runner.cleanup()

    return await story()


async def good(request: web.Request) -> web.Response:
    told = body(one("DCGM_FI_DEV_FB_USED", 5, NOW_S, UUID="GPU-1"))
    return web.Response(body=told, content_type="application/json")


async def error_of(answering: Answering, **options: Any) -> TelemetryError:
    found, _ = await reading(answering, **options)
    assert found.answers == []
    (asked,) = found.asked
    assert asked.error is not None
    return asked.error


async def test_one_query_a_metric_asks_for_all_names_and_the_samples_themselves() -> None:
    found, server = await reading(good, USED, SM, prefix="/select/0/prometheus/")
    assert [answer.values.tolist() for answer in found.answers] == [[5.0], [5.0]]
    assert [asked.error for asked in found.asked] == [None, None]
    assert {(one["method"], one["path"]) for one in server.asked} == {
        ("POST", "/select/0/prometheus/api/v1/query")
    }
    queries = sorted(one["query"] for one in server.asked)
    assert queries[0].startswith('{__name__=~"DCGM_FI_DEV_FB_USED|dcgm_fb_used|observerward_')
    assert 'DCGM_FI_PROF_SM_ACTIVE|DCGM_FI_PROF_SM_UTIL_RATIO"}[45s]' in queries[1]


async def test_metrics_of_applications_are_one_question_by_name() -> None:
    async def story(server: Server, url: str) -> SourceReading:
        async with Prometheus(PrometheusOptions(url, selector='cluster="a"')) as client:
            return await client.series(("weft_progress_total", "p99"), 45)

    found, server = await asked_of(good, story)
    assert [answer.values.tolist() for answer in found.answers] == [[5.0]]
    assert [(asked.about, asked.error) for asked in found.asked] == [("progress", None)]
    (one,) = server.asked
    assert one["query"] == '{__name__=~"weft_progress_total|p99", cluster="a"}[45s]'


async def test_who_asks_and_for_which_tenant(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("secret\n")
    (tmp_path / "token").write_text("abc\n")
    _, server = await reading(
        good,
        username="weft",
        password_file=str(tmp_path / "word"),
        headers={"X-Scope-OrgID": "team-a"},
    )
    basic = base64.b64encode(b"weft:secret").decode()
    assert server.headers[0]["Authorization"] == f"Basic {basic}"
    assert server.headers[0]["X-Scope-OrgID"] == "team-a"
    _, server = await reading(
        good, bearer_token_file=str(tmp_path / "token"), partial=True, selector='cluster="a"'
    )
    assert server.headers[0]["Authorization"] == "Bearer abc"
    assert server.asked[0]["partial_response"] == "true"
    assert server.asked[0]["query"].endswith(', cluster="a"}[45s]')


def test_a_missing_file_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"telemetry.authorityFile: cannot read"):
        Prometheus(PrometheusOptions("https://p", authority_file=str(tmp_path / "none")))
    with pytest.raises(BadInputError, match=r"telemetry.url: 'p:9090' is not an http"):
        Prometheus(PrometheusOptions("p:9090"))


async def test_no_answer_in_time() -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    assert (await error_of(slow, timeout_s=0.2)).kind == "timeout"


async def test_an_answer_that_trickles_is_no_answer_in_time() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.01)

    assert (await error_of(trickle, timeout_s=0.3)).kind == "timeout"


async def test_an_answer_without_end_is_cut_off() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)

    error = await error_of(endless, most_mib=1)
    assert error.kind == "oversized"
    assert "more than 1 MiB" in str(error)


@pytest.mark.parametrize(
    ("status", "text", "kind", "says"),
    [
        (200, "<html>", "garbage", "not an answer to a query"),
        (401, "", "refused", "check the credentials"),
        (403, "", "refused", "access denied"),
        (302, "", "status", "302"),
        (503, "upstream is down", "status", "503: upstream is down"),
        (
            422,
            '{"status":"error","errorType":"execution","error":"too many samples"}',
            "status",
            "execution: too many samples",
        ),
    ],
)
async def test_other_answers(status: int, text: str, kind: str, says: str) -> None:
    async def answering(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers={"Location": "http://other/"})

    error = await error_of(answering)
    assert error.kind == kind
    assert says in str(error)


async def test_a_connection_that_breaks_off_is_no_shorter_answer() -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b'{"status":"success"')
        assert request.transport is not None
        request.transport.abort()
        return answer

    assert (await error_of(breaks)).kind == "unreachable"


async def test_one_metric_that_fails_leaves_the_others() -> None:
    async def half(request: web.Request) -> web.Response:
        form = await request.post()
        bad = "SM_ACTIVE" in str(form["query"])
        return web.Response(status=500, text="no") if bad else await good(request)

    found, _ = await reading(half, USED, SM)
    assert len(found.answers) == 1
    assert {asked.about: asked.error and asked.error.kind for asked in found.asked} == {
        USED: None,
        SM: "status",
    }


async def test_nobody_listens() -> None:
    async with Prometheus(PrometheusOptions("http://127.0.0.1:1")) as client:
        (asked,) = (await client.read([USED], 45)).asked
    assert asked.error is not None
    assert asked.error.kind == "unreachable"

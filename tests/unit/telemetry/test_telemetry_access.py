"""Credentials and trust, against a server that really checks them. And what Thanos says."""

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from telemetry_world import NOW_S

from fakes.certificates import self_signed
from weft.model import BadInputError
from weft.model.metric import Metric
from weft.telemetry.sources.exporters import ExporterSource
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.telemetry.sources.source import SourceReading
from weft.telemetry.sources.transport import ServerCredentials

USED = Metric.MEMORY_USED_MIB
SERIES = {"metric": {"__name__": "DCGM_FI_DEV_FB_USED", "UUID": "GPU-1"}, "values": [[NOW_S, "5"]]}


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """server.pem, client.pem, stranger.pem and their keys; each is its own authority."""
    return self_signed(tmp_path_factory.mktemp("pem"), "server", "client", "stranger")


class Guarded:
    """A server that lets in only who says `wants`, and answers with `more` in it. A fake."""

    def __init__(self) -> None:
        self.wants = ""
        self.more: dict[str, Any] = {}
        self.forms: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "") != self.wants:
            return web.Response(status=401, text="who are you?")
        if request.method == "GET":
            return web.Response(text='DCGM_FI_DEV_FB_USED{gpu="0"} 7\n')
        self.forms.append(dict(await request.post()))
        data = {"resultType": "matrix", "result": [SERIES]}
        return web.json_response({"status": "success", "data": data, **self.more})


@asynccontextmanager
async def guarded(tls: ssl.SSLContext | None = None) -> AsyncIterator[Guarded]:
    server = Guarded()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()


def mutual(pem: Path) -> ssl.SSLContext:
    """TLS that wants the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem / "server.pem", pem / "server.key")
    context.load_verify_locations(pem / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def read(source: Prometheus | ExporterSource) -> SourceReading:
    try:
        return await source.read([USED], 45)
    finally:
        await source.close()


def kind(reading: SourceReading) -> str:
    """The kind of fault; "" where the samples came."""
    (asked,) = reading.asked
    assert bool(reading.answers) is (asked.error is None)
    return asked.error.kind if asked.error else ""


@pytest.mark.parametrize(
    ("authority", "own", "verify", "wrong"),
    [
        ("server", "client", True, ""),
        ("", "client", False, ""),
        ("stranger", "client", True, "unreachable"),
        ("", "client", True, "unreachable"),
        ("server", "stranger", True, "unreachable"),
        ("server", "", True, "unreachable"),
    ],
)
async def test_both_sides_show_a_certificate(
    pem: Path, authority: str, own: str, verify: bool, wrong: str
) -> None:
    async with guarded(mutual(pem)) as server:

        def file(name: str, ending: str) -> str:
            return str(pem / f"{name}.{ending}") if name else ""

        options = PrometheusOptions(
            server.url,
            timeout_s=60,
            authority_file=file(authority, "pem"),
            verify=verify,
            certificate_file=file(own, "pem"),
            key_file=file(own, "key"),
        )
        assert kind(await read(Prometheus(options))) == wrong


@pytest.mark.parametrize("sort", ["token", "password"])
async def test_a_secret_that_is_replaced_is_read_again_after_a_refusal(
    tmp_path: Path, sort: str
) -> None:
    def header(word: str) -> str:
        both = base64.b64encode(f"weft:{word}".encode()).decode()
        return f"Bearer {word}" if sort == "token" else f"Basic {both}"

    async with guarded() as server:
        file = tmp_path / "secret"
        file.write_text("first\n")
        how: dict[str, str] = (
            {"bearer_token_file": str(file)}
            if sort == "token"
            else {"username": "weft", "password_file": str(file)}
        )
        async with Prometheus(PrometheusOptions(server.url, **how)) as source:
            server.wants = header("first")
            assert kind(await source.read([USED], 45)) == ""
            server.wants = header("second")
            assert kind(await source.read([USED], 45)) == "refused"
            file.write_text("second\n")
            assert kind(await source.read([USED], 45)) == ""
            file.unlink()  # being replaced: the last one still holds
            assert kind(await source.read([USED], 45)) == ""


async def test_exporters_are_asked_with_the_same_credentials(pem: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")

    async with guarded(mutual(pem)) as server:
        server.wants = "Bearer abc"
        access = ServerCredentials(
            bearer_token_file=str(tmp_path / "token"),
            authority_file=str(pem / "server.pem"),
            certificate_file=str(pem / "client.pem"),
            key_file=str(pem / "client.key"),
        )

        def targets() -> dict[str, str]:
            return {"a": f"{server.url}/metrics"}

        assert kind(await read(ExporterSource(targets, access=access))) == ""
        server.wants = "Bearer other"
        assert kind(await read(ExporterSource(targets, access=access))) == "refused"
        assert kind(await read(ExporterSource(targets))) == "unreachable"


def test_files_that_do_not_fit_are_named_at_the_start(pem: Path, tmp_path: Path) -> None:
    mixed = {"certificate_file": str(pem / "client.pem"), "key_file": str(pem / "server.key")}
    with pytest.raises(BadInputError, match=r"telemetry.certificateFile: client certificate and"):
        Prometheus(PrometheusOptions("https://p", **mixed))
    (tmp_path / "empty").write_text("")
    with pytest.raises(BadInputError, match=r"telemetry.passwordFile: the password file .* empty"):
        Prometheus(
            PrometheusOptions("https://p", username="a", password_file=str(tmp_path / "empty"))
        )


@pytest.mark.parametrize("partial", [False, True])
async def test_thanos_is_told_whether_a_part_is_enough_and_its_warnings_come_with_the_data(
    partial: bool,
) -> None:
    """As Thanos Query answers where a store is gone and `partial_response` is true."""

    async with guarded() as server:
        server.more = {"warnings": ["No StoreAPIs matched for this query"]}
        reading = await read(Prometheus(PrometheusOptions(server.url, partial=partial)))
        assert server.forms[0]["partial_response"] == str(partial).lower()
        (answer,) = reading.answers
        assert answer.values.tolist() == [5.0]
        assert answer.warnings == ("No StoreAPIs matched for this query",)

import asyncio
import os
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest
from kube_world import client_of, node, pod, world

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient, Endpoint, FixedCredentials, RateLimit
from weft.kube.clock import SystemClock
from weft.kube.codec import CONFIG_MAPS, NODES, PODS
from weft.kube.errors import ApiError, ConflictError, LostError, NotFoundError, NotSentError
from weft.kube.tls import client_tls, load_certificate
from weft.model import BadInputError


async def test_objects_come_as_structs() -> None:
    async with world() as (server, client):
        server.add("nodes", node("a"))
        found = await client.get(NODES, "", "a")
        assert found.metadata.name == "a"
        made = await client.create(
            CONFIG_MAPS, "default", b'{"metadata":{"name":"c"},"data":{"x":"y"}}'
        )
        assert made.data == {"x": "y"}
        assert made.metadata.uid
        with pytest.raises(ConflictError, match="precondition"):
            await client.delete(CONFIG_MAPS, "default", "c", uid="other")
        await client.delete(CONFIG_MAPS, "default", "c", uid=made.metadata.uid)
        with pytest.raises(NotFoundError) as info:
            await client.get(CONFIG_MAPS, "default", "c")
        assert info.value.reason == "NotFound"
        assert info.value.status.details is not None
        assert info.value.status.details.kind == "configmaps"


async def test_reads_are_tried_again_and_writes_are_not() -> None:
    clock = VirtualClock(auto=True)
    async with world(clock) as (server, client):
        server.fault("status", method="GET", code=503, times=3)
        await client.call("GET", NODES.of(""))
        assert client.answers == {("GET", 503): 3, ("GET", 200): 1}
        assert clock.slept == sorted(clock.slept)
        server.fault("status", method="POST", code=500)
        with pytest.raises(ApiError, match="planned fault 500"):
            await client.call("POST", PODS.of("default"), b'{"metadata":{"name":"a"}}')
        server.fault("lose-answer", method="POST")
        with pytest.raises(LostError):
            await client.call("POST", PODS.of("default"), b'{"metadata":{"name":"a"}}')
        assert client.answers["POST", 0] == 1
        assert server.get("pods", "a")


async def test_reads_give_up_after_their_attempts() -> None:
    async with world(attempts=2) as (server, client):
        fault = server.fault("status", code=500, times=9)
        with pytest.raises(ApiError):
            await client.call("GET", NODES.of(""))
        assert fault.hits == 2


async def test_429_holds_everybody_back_but_the_urgent() -> None:
    clock = VirtualClock(auto=True)
    async with world(clock) as (server, client):
        server.fault("status", method="POST", code=429, retry_after_s=12)
        body = b'{"metadata":{"name":"a"}}'
        await client.call("POST", NODES.of(""), body)
        assert clock.monotonic() >= 1_012
        client.limit.close_for(5)
        before = clock.monotonic()
        await client.call("GET", NODES.of(""), urgent=True)
        assert clock.monotonic() == before
        await client.call("GET", NODES.of(""))
        assert clock.monotonic() == before + 5
        server.fault("status", method="GET", code=429, times=9)
        with pytest.raises(ApiError) as info:
            await client.call("GET", NODES.of(""))
        assert info.value.code == 429


def test_the_rate_limit_is_a_token_bucket() -> None:
    clock = VirtualClock()
    limit = RateLimit(qps=10, burst=2, clock=clock)
    assert [round(limit.delay_s(), 3) for _ in range(4)] == [0, 0, 0.1, 0.2]
    clock.advance(10)
    assert [round(limit.delay_s(), 3) for _ in range(3)] == [0, 0, 0.1]
    assert round(limit.waited_s, 3) == 0.4


async def test_a_request_may_be_kept_back_at_the_last_moment() -> None:
    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    async with world() as (server, client):
        with pytest.raises(StopError):
            await client.send("GET", NODES.of(""), leaving=stop)
        assert server.requests == {}


async def test_nobody_there_is_not_sent_and_no_answer_in_time_is_lost() -> None:
    async with FakeApiServer() as server, client_of(server, attempts=1) as client:
        await client.call("GET", NODES.of(""))  # opens the connection
        fault = server.fault("delay")
        with pytest.raises(LostError):
            await client.send("GET", NODES.of(""), timeout_s=0.02)
        fault.gate.set()
        await server.stop()
        with pytest.raises(NotSentError):
            await client.call("GET", NODES.of(""))


async def test_an_answer_that_is_no_status_is_quoted() -> None:
    async def gateway(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 12\r\n\r\nproxy says n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(gateway, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        ApiClient(Endpoint(f"http://127.0.0.1:{port}", FixedCredentials())) as client,
    ):
        with pytest.raises(ApiError, match="403 proxy says n"):
            await client.call("GET", "/")
        with pytest.raises(ApiError, match="403"):
            async with client.stream("/", {}, 1):
                pass


async def test_an_eviction_is_asked_for_by_uid() -> None:
    async with world() as (server, client):
        made = server.add("pods", pod("a"))
        with pytest.raises(ConflictError):
            await client.evict("default", "a", "other")
        await client.evict("default", "a", made["metadata"]["uid"])
        with pytest.raises(NotFoundError):
            await client.get(PODS, "default", "a")


def test_names_cannot_leave_their_place_in_the_path() -> None:
    assert PODS.of("../x", "a/b?c") == "/api/v1/namespaces/..%2Fx/pods/a%2Fb%3Fc"


async def test_a_client_must_be_opened() -> None:
    client = ApiClient(Endpoint("http://127.0.0.1:1", FixedCredentials()))
    with pytest.raises(RuntimeError, match="async with"):
        await client.send("GET", "/")


async def test_the_machines_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= before
    assert clock.wall().tzinfo is not None


# --- TLS -----------------------------------------------------------------------------------------

_EXTENSIONS = {"server": "subjectAltName=DNS:kube.example,IP:127.0.0.1", "client": ""}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority (ca.pem), and server and client certificates with keys, made for the test."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)

    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
    try:
        openssl(f"req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=ca -days 2")
    except FileNotFoundError:
        pytest.skip("there is no openssl to make certificates with")
    for name, extension in _EXTENSIONS.items():
        openssl(f"req {curve} -keyout {name}.key -out {name}.csr -subj /CN={name}")
        (folder / f"{name}.ext").write_text(extension)
        openssl(f"x509 -req -in {name}.csr {signed} -out {name}.pem -extfile {name}.ext")
    return folder


def server_tls(pki: Path, *, client_certificates: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.pem", pki / "server.key")
    if client_certificates:
        context.load_verify_locations(pki / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_tls_with_the_clusters_authority_and_a_client_certificate(pki: Path) -> None:
    async with FakeApiServer(tls=server_tls(pki, client_certificates=True)) as server:
        context = client_tls((pki / "ca.pem").read_bytes(), "ca")
        load_certificate(
            context, (pki / "client.pem").read_bytes(), (pki / "client.key").read_bytes(), ""
        )
        async with ApiClient(Endpoint(server.url, FixedCredentials(), context)) as client:
            assert b"weft-fake" in await client.call("GET", "/version")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no files in memory here")
def test_a_client_certificate_needs_no_folder_that_may_be_written(
    pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root is read-only."""
    monkeypatch.setattr("tempfile.tempdir", str(pki / "nowhere"))
    pair = [(pki / name).read_bytes() for name in ("client.pem", "client.key")]
    load_certificate(client_tls(b"", ""), *pair, "here")


async def test_a_server_of_another_authority_or_name_is_not_spoken_to(pki: Path) -> None:
    async with FakeApiServer(tls=server_tls(pki, client_certificates=False)) as server:
        authority = (pki / "ca.pem").read_bytes()
        for context, name in (
            (client_tls(b"", ""), ""),
            (client_tls(authority, ""), "other.example"),
        ):
            endpoint = Endpoint(server.url, FixedCredentials(), context, name)
            async with ApiClient(endpoint) as client:
                with pytest.raises(NotSentError):
                    await client.call("GET", "/version", attempts=1)
        for context, name in (
            (client_tls(authority, ""), "kube.example"),
            (client_tls(b"", "", verify=False), ""),
        ):
            endpoint = Endpoint(server.url, FixedCredentials(), context, name)
            async with ApiClient(endpoint) as client:
                assert msgspec.json.decode(await client.call("GET", "/version"))


def test_certificates_that_are_none_are_named() -> None:
    with pytest.raises(BadInputError, match="here: is not a certificate"):
        client_tls(b"nonsense", "here")
    with pytest.raises(BadInputError, match="here: client certificate and key"):
        load_certificate(client_tls(b"", ""), b"no", b"no", "here")

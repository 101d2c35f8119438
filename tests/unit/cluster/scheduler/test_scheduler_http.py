"""The scheduler's own pages: health, readiness, limits, and whoever does not keep to the rules."""

import asyncio
import contextlib
import socket
import threading

import aiohttp
import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from scheduler_world import World, add_node, add_pod, world

from fakes.lease import LeaseStub
from weft.cluster.scheduler.explain_service import Explainer
from weft.host.pages import PagesOptions
from weft.host.scheduler import StatusPages
from weft.model import BadInputError

QUICK = PagesOptions(head_timeout_s=0.2, most_connections=3, close_s=0.2)


async def is_well(cluster: World) -> None:
    """Waits for an answer; asks again where a slow machine used up the time of the request."""
    while True:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            if await cluster.get("/healthz") == (200, "ok"):
                return


async def raw(port: int, data: bytes) -> bytes:
    """Whatever comes back for these bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_ready_has_read_all_and_leads_or_follows_a_leader() -> None:
    lease = LeaseStub()
    async with world(lease=lease) as cluster:
        add_node(cluster.server, "n")
        assert (await cluster.get("/livez"))[0] == 200
        status, text = await cluster.get("/readyz?verbose")
        assert status == 503
        assert "[-]ready failed: this process is still reading" in text
        assert "readyz check failed" in text
        status, text = await cluster.get("/explain/pods/d/a")
        assert status == 503
        assert "still reading" in text
        await cluster.live.start()
        assert not cluster.live.leadership.here
        status, text = await cluster.get("/readyz")
        assert status == 503
        assert "[+]ready ok" in text
        assert "[-]leader failed: no Weft process leads yet" in text
        lease.other = "weft-b_1"
        assert await cluster.get("/readyz") == (200, "ok")
        lease.other = ""
        await cluster.live.lead()
        assert await cluster.get("/readyz") == (200, "ok")
        status, text = await cluster.get("/readyz?verbose")
        assert status == 200
        assert "[+]read-pods ok" in text
        assert "[+]read-nodes ok" in text
        assert text.endswith("readyz check passed\n")


async def test_what_was_read_is_told_while_it_waits() -> None:
    """Pods can't be listed: readiness names exactly that."""

    async with world() as cluster:
        cluster.server.fault("status", path="/pods", method="GET", times=1000, code=503)
        starting = asyncio.ensure_future(cluster.live.start())
        while "[+]read-nodes" not in (await cluster.get("/readyz"))[1]:
            await asyncio.sleep(0.01)
        told = "[i]watch-pods: GET /api/v1/pods: 503"
        while told not in (text := (await cluster.get("/readyz?verbose"))[1]):
            await asyncio.sleep(0.01)
        assert "[-]read-pods failed: not read yet" in text
        status, text = await cluster.get("/livez?verbose")
        assert status == 200, "an API server that is down is not mended by a restart"
        assert told in text
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_pages_that_are_not_there_and_methods_that_are_not_taken() -> None:
    async with world() as cluster:
        for path in ("/", "/explain/pods/d", "/explain/pods//x", "/explain/pods/d/x/y"):
            assert (await cluster.get(path))[0] == 404
        address = f"http://127.0.0.1:{cluster.pages.port}"
        async with cluster.session.post(f"{address}/healthz", data=b"x") as answer:
            assert answer.status == 405
        async with cluster.session.get(f"{address}/healthz", data=b"x" * 100_000) as answer:
            assert answer.status == 413
        async with cluster.session.head(f"{address}/healthz") as answer:
            assert answer.status == 200


async def test_a_port_that_is_taken_is_an_error_with_a_way_out() -> None:
    async with world() as cluster:
        second = StatusPages(
            cluster.live,
            Explainer(cluster.live, cluster.parts.guard, None),
            [],
            address="127.0.0.1",
            port=cluster.pages.port,
        )
        with pytest.raises(BadInputError, match=r"http\.port .*set http\.port"):
            await second.start()
        await second.close()


@pytest.mark.parametrize(
    "data",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"\x16\x03\x01\x00\xff", b"G" * 100_000],
    ids=["silent", "half a head", "TLS", "no end"],
)
async def test_broken_requests_end_alone(data: bytes) -> None:
    async with world(QUICK) as cluster:
        said = await raw(cluster.pages.port, data)
        assert b"200" not in said
        await is_well(cluster)


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with world(PagesOptions(most_connections=3, close_s=0.2)) as cluster:
        opened = [await asyncio.open_connection("127.0.0.1", cluster.pages.port) for _ in range(3)]
        assert await raw(cluster.pages.port, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        for _, writer in opened:
            writer.close()


async def test_an_answer_that_fails_is_told_and_costs_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("broken page")

    async with world() as cluster:
        with monkeypatch.context() as patch:
            patch.setattr("weft.host.pages.generate_latest", broken)
            status, text = await cluster.get("/metrics")
            assert status == 500
            assert "its log says why" in text
            assert await cluster.get("/healthz") == (200, "ok")
        assert (await cluster.get("/metrics"))[0] == 200
    assert "broken page" in caplog.text


async def test_many_explanations_at_once_are_turned_away_not_queued() -> None:
    async with world(PagesOptions(most_explaining=2)) as cluster:
        add_node(cluster.server, "n")
        add_pod(cluster.server, "a", 20_000)
        await cluster.lead()
        answers = await asyncio.gather(*(cluster.get("/explain/pods/d/a") for _ in range(30)))
        statuses = [status for status, _ in answers]
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) >= 2


async def test_garbage_behind_a_request_costs_only_its_own_connection() -> None:
    async with world(PagesOptions(idle_timeout_s=0.5, close_s=0.2)) as cluster:
        whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        said = await raw(cluster.pages.port, whole + b"\x00\x01\r\n\r\n")
        assert b"this is not an HTTP request" in said
        assert b"x00" not in said
        assert b"200 OK" in await raw(cluster.pages.port, whole + b"GET /healthz HTT")
        assert await cluster.get("/healthz") == (200, "ok")


async def test_who_does_not_take_an_answer_is_not_waited_for() -> None:
    """An answer larger than what the system's buffers hold, to someone who reads nothing."""

    asked = threading.Event()

    class Large:
        def collect(self) -> list[Metric]:
            asked.set()
            family = GaugeMetricFamily("large", "Nothing.", labels=("n",))
            for number in range(300):
                family.add_metric((f"{number}" + "x" * 40_000,), 1)
            return [family]

    async with world(PagesOptions(answer_timeout_s=1, close_s=0.2)) as cluster:
        cluster.pages.collectors[:] = [Large()]  # type: ignore[list-item]
        slow = socket.create_connection(("127.0.0.1", cluster.pages.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await cluster.until(asked.is_set)
        await cluster.until(lambda: not cluster.pages.server.opened)
        slow.close()
        assert await cluster.get("/healthz") == (200, "ok")


@pytest.mark.parametrize("address", ["203.0.113.7", "no-such-host.invalid"])
async def test_a_wrong_address_is_not_called_a_port_problem(address: str) -> None:
    async with world() as cluster:
        pages = StatusPages(
            cluster.live,
            Explainer(cluster.live, cluster.parts.guard, None),
            [],
            address=address,
            port=0,
        )
        with pytest.raises(BadInputError, match=f"^http.address {address}: is not an address"):
            await pages.start()

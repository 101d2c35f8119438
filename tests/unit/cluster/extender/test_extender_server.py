"""HTTP: paths, limits, TLS, and whoever does not keep to the rules."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager

import aiohttp
import msgspec
import pytest
from extender_world import StubCluster, args, bind_args, elastic, is_well, serving

import weft
from fakes.lease import LeaseStub
from weft.cluster.control.leadership import Leadership
from weft.cluster.extender.server import ExtenderServer, ServerOptions
from weft.core.engine import PodSeenBound
from weft.kube.pods import Pod
from weft.testing.builders import node, placement

QUICK = ServerOptions(
    most_body_bytes=100_000, most_buffered_bytes=150_000, read_timeout_s=0.3, linger_s=0.1
)


def cluster() -> StubCluster:
    return StubCluster([node("n1", gpus=1, memory_mib=1000), node("n2", gpus=2, memory_mib=4000)])


async def raw(port: int, data: bytes, wait_s: float = 60) -> bytes:
    """Whatever comes back for these bytes until the server closes, or nothing more comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), wait_s)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def on_server(
    world: StubCluster | None = None, options: ServerOptions | None = None
) -> AbstractAsyncContextManager[tuple[ExtenderServer, int, aiohttp.ClientSession]]:
    return serving(world or cluster(), options)


async def test_every_original_path_answers() -> None:
    async with on_server() as (_, _, session):
        for path, prioritize in (
            ("/weft", "prioritize"),
            ("/scheduler", "priorities"),
            ("/gpushare-scheduler", "prioritize"),
        ):
            body = args(elastic(path[1:]), ["n1", "n2"])
            async with session.post(f"{path}/filter", data=body) as answer:
                assert answer.status == 200
                assert answer.content_type == "application/json"
                assert (await answer.json())["NodeNames"] == ["n1", "n2"]
            async with session.post(f"{path}/{prioritize}", data=body) as answer:
                assert [one["Host"] for one in await answer.json()] == ["n1", "n2"]
            async with session.post(f"{path}/bind", data=bind_args(path[1:], "n2")) as answer:
                assert (answer.status, await answer.json()) == (200, {"Error": ""})
            async with session.post(f"{path}/bind", data=bind_args(path[1:], "n1")) as answer:
                assert answer.status == (200 if path == "/weft" else 500)
                assert (await answer.json())["Error"]


async def test_pages() -> None:
    world = cluster()
    world.ready = False

    async with on_server(world) as (_, _, session):
        async with session.get("/version") as answer:
            assert await answer.text() == weft.__version__
        for path, code in (("/healthz", 200), ("/livez", 200), ("/readyz", 503)):
            async with session.get(path) as answer:
                assert answer.status == code
        world.ready = True
        async with session.get("/readyz") as answer:
            assert answer.status == 200
        async with session.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
            await answer.read()
        for path, code in (("/nothing", 404), ("/weft/filter", 405), ("/weft/inspect", 404)):
            async with session.get(path) as answer:
                assert answer.status == code
                assert (await answer.json())["Error"]
        for path in ("/debug/pprof/", "/debug/pprof/profile?seconds=5"):
            async with session.get(path) as answer:
                assert answer.status == 404
                assert "/metrics" in (await answer.json())["Error"], "what to use instead"
        async with session.get("/metrics") as answer:
            text = await answer.text()
        wanted = 'weft_extender_requests_total{path="/weft",result="ok",verb="filter"} 1.0\n'
        assert wanted in text
        assert 'weft_extender_rejected_total{why="path"} 2.0\n' in text
        assert 'duration_seconds_bucket{le="+Inf",path="/weft",verb="filter"} 1.0\n' in text


async def test_inspect_and_status_show_what_is_booked() -> None:
    world = StubCluster([node("n1", gpus=2, memory_mib=16160), node("plain")], unit="GiB")
    world.handle(PodSeenBound(placement("u", "n1", 1, memory_mib=2154, milli=250)))

    async with on_server(world) as (_, _, session):
        async with session.get("/gpushare-scheduler/inspect") as answer:
            everything = await answer.json()
        pod = {"name": "u", "namespace": "", "usedGPU": 2}
        devs = [
            {"id": 0, "totalGPU": 15, "usedGPU": 0, "pods": []},
            {"id": 1, "totalGPU": 15, "usedGPU": 2, "pods": [pod]},
        ]
        n1 = {"name": "n1", "totalGPU": 30, "usedGPU": 2, "devs": devs}
        assert everything == {"nodes": [n1]}
        async with session.get("/gpushare-scheduler/inspect/n1") as answer:
            assert await answer.json() == everything
        async with session.get("/gpushare-scheduler/inspect/who") as answer:
            assert answer.status == 200
            assert await answer.json() == {"nodes": [], "error": "node who is not known"}
        async with session.get("/scheduler/status") as answer:
            found = await answer.json()
        assert [*found] == ["elasticgpu.io/gpu-core", "elasticgpu.io/gpu-memory"]
        idle = {"CoreAvailable": 100, "MemoryAvailable": 16160}
        used = {"CoreAvailable": 75, "MemoryAvailable": 14006}
        total = {"CoreTotal": 100, "MemoryTotal": 16160}
        assert json.loads(found["elasticgpu.io/gpu-core"]) == {"n1": [idle | total, used | total]}


async def test_inspect_names_pods_that_were_only_seen_bound() -> None:
    world = StubCluster([node("n1", gpus=1, memory_mib=1000)])
    bound = msgspec.convert(elastic("trainer"), Pod)
    world.known["ns", "trainer"] = bound
    world.handle(PodSeenBound(placement(bound.metadata.uid, "n1", 0, memory_mib=256)))

    async with on_server(world) as (_, _, session):
        async with session.get("/gpushare-scheduler/inspect/n1") as answer:
            (found,) = (await answer.json())["nodes"]
        (pod,) = found["devs"][0]["pods"]
        assert (pod["namespace"], pod["name"]) == ("ns", "trainer")


async def test_every_port_has_every_page_and_path() -> None:
    """Elastic's port and gpushare's are two doors of one server."""

    async with on_server() as (server, _, session):
        second = await server.listen("127.0.0.1", 0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{second}") as other:
            for path in (
                "/version",
                "/healthz",
                "/livez",
                "/readyz",
                "/metrics",
                "/scheduler/status",
                "/gpushare-scheduler/inspect",
            ):
                for one in (session, other):
                    async with one.get(path) as answer:
                        assert answer.status == 200
            async with other.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
                assert (await answer.json())["NodeNames"] == ["n1"]


async def test_a_follower_is_ready_and_answers_but_binds_nothing() -> None:
    world = cluster()
    world.leadership = Leadership(LeaseStub(other="weft-b_1"))
    world.handle(PodSeenBound(placement("full", "n1", 0, memory_mib=1000)))

    async with on_server(world) as (_, _, session):
        async with session.get("/readyz") as answer:
            assert answer.status == 200
        for path, code in (("/weft", 200), ("/scheduler", 500), ("/gpushare-scheduler", 500)):
            body = args(elastic(), ["n1", "n2"])
            async with session.post(f"{path}/filter", data=body) as answer:
                assert (await answer.json())["NodeNames"] == ["n2"]
            async with session.post(f"{path}/prioritize", data=body) as answer:
                assert len(await answer.json()) == 2
            async with session.post(f"{path}/bind", data=bind_args("a", "n2")) as answer:
                assert answer.status == code
                error = (await answer.json())["Error"]
                assert error == "another Weft process is the leader: weft-b_1; ask there"
        assert not world.bound


async def test_too_much_is_turned_away() -> None:
    options = msgspec.structs.replace(QUICK, read_timeout_s=60)
    async with on_server(options=options) as (server, port, session):
        async with session.post("/weft/filter", data=b" " * 100_001) as answer:
            assert answer.status == 413
            assert "nodeCacheCapable" in (await answer.json())["Error"]
        head = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = b"".join(b"4e20\r\n" + b" " * 20_000 + b"\r\n" for _ in range(7))
        assert b" 413 " in await raw(port, head + chunks)
        headers = {"Content-Encoding": "gzip"}
        async with session.post("/weft/filter", data=b"x", headers=headers) as answer:
            assert answer.status == 415
        assert server.metrics.rejected == {"size": 2, "encoding": 1}


async def test_all_requests_together_have_a_budget() -> None:
    options = ServerOptions(100_000, 150_000, read_timeout_s=60, linger_s=0.1)
    async with on_server(options=options) as (_, port, session):
        half = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n"
        sent = {asyncio.create_task(raw(port, half + b" " * 80_000)) for _ in range(2)}
        over, held = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().split()[1] for one in over] == [b"503"]
        for one in held:
            one.cancel()
        large = args(elastic(), ["n1"]) + b" " * 80_000
        status = 503
        while status == 503:  # until the server has heard that the other one is gone
            async with session.post("/weft/filter", data=large) as answer:
                status = answer.status
        assert status == 200, "what was held is free again"


@pytest.mark.parametrize(
    "sent", [b"", b"POST /weft", b"POST /weft/filter HTTP/1.1\r\nContent-Length: 5\r\n"]
)
async def test_who_says_nothing_is_hung_up_on(sent: bytes) -> None:
    async with on_server(options=QUICK) as (server, port, _):
        assert await raw(port, sent) == b""
        assert server.metrics.rejected == {"slow": 1}


async def test_a_half_sent_body_is_told_so() -> None:
    async with on_server(options=QUICK) as (_, port, session):
        head = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"
        while b" 408 " not in await raw(port, head):
            pass  # on a slow machine the head, too, came late, and that is not answered
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        await writer.drain()
        writer.close()  # and gone
        await is_well(session)


async def test_an_idle_connection_is_kept() -> None:
    """kube-scheduler keeps its connections; only half a request must not take long."""

    options = msgspec.structs.replace(QUICK, read_timeout_s=1)
    async with on_server(options=options) as (_, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for idle_s in (options.read_timeout_s + 0.1, 0):
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await reader.readline()
            while (await reader.readline()).strip():
                pass
            await reader.readexactly(2)
            await asyncio.sleep(idle_s)
        writer.close()


async def test_closing_does_not_wait_for_idle_connections() -> None:
    async with serving(cluster(), ServerOptions(drain_s=600)) as (server, port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await reader.readline()
        async with asyncio.timeout(60):
            await server.close()
        writer.close()


async def test_connections_have_a_limit() -> None:
    async with on_server(options=ServerOptions(most_connections=3)) as (server, port, session):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await raw(port, b"GET /readyz HTTP/1.1\r\n\r\n") == b""
        assert server.metrics.rejected["connections"] == 1
        for _, writer in held:
            writer.close()
        await is_well(session)  # once the server has heard of it


async def test_a_binding_goes_on_when_the_asker_is_gone() -> None:
    world = cluster()
    world.may_bind.clear()

    async with on_server(world) as (_, _, session):
        async with session.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
            await answer.read()
        asking = asyncio.ensure_future(session.post("/weft/bind", data=bind_args("a", "n1")))
        await world.binding.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with session.get("/readyz") as answer:  # the server goes on meanwhile
            assert answer.status == 200
        world.may_bind.set()
        async with asyncio.timeout(60):
            while not world.bound:
                await asyncio.sleep(0.01)
        assert [one.pod.uid for one in world.bound] == ["u-a"]


async def test_an_answer_does_not_wait_for_ever() -> None:
    world = cluster()
    world.may_bind.clear()

    async with on_server(world, ServerOptions(bind_timeout_s=0.1, drain_s=60)) as (_, _, session):
        async with session.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
            await answer.read()
        async with session.post("/scheduler/bind", data=bind_args("a", "n1")) as answer:
            assert answer.status == 500
            assert "not known yet" in (await answer.json())["Error"]
        asyncio.get_running_loop().call_later(0.2, world.may_bind.set)
    assert len(world.bound) == 1, "closing waits for it"


async def test_a_fault_of_ours_is_an_answer_too() -> None:
    world = cluster()

    async with on_server(world) as (_, _, session):
        del world.engine.profiles["elastic-binpack"]
        for verb, data, status in (
            ("filter", args(elastic(), ["n1"]), 200),
            ("bind", bind_args("a", "n1"), 500),
        ):
            async with session.post(f"/scheduler/{verb}", data=data) as answer:
                assert answer.status == status
                assert "KeyError: 'elastic-binpack'" in (await answer.json())["Error"]
        world.engine.ledger, ledger = None, world.engine.ledger  # type: ignore[assignment]
        async with session.get("/scheduler/status") as answer:
            assert answer.status == 500
            assert "log" in (await answer.json())["Error"]
        world.engine.ledger = ledger
        async with session.post("/weft/filter", data=args(elastic(), ["n1"])) as answer:
            assert answer.status == 200

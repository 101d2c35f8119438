"""Whoever speaks may be broken or hostile: bodies that are no request, streams that are no HTTP."""

import asyncio
import io
import json
import socket
import threading
import tracemalloc
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import msgspec
import pytest
from extender_world import ROUTES, StubCluster, args, elastic, is_well, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.cluster.extender.server import MIB, ExtenderServer, ServerOptions
from weft.cluster.extender.service import Extender
from weft.core.ledger.audit import audit
from weft.testing.builders import node

FAULT = b"Weft failed to answer"
Served = tuple[ExtenderServer, int, aiohttp.ClientSession]


def world() -> StubCluster:
    return StubCluster([node("n1", gpus=2, memory_mib=1000, cpu_milli=4000)])


def on_server(options: ServerOptions | None = None) -> AbstractAsyncContextManager[Served]:
    return serving(world(), options)


# --- bodies --------------------------------------------------------------------------------------

odd_numbers = (
    st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 1e308, 0.5])
    | st.integers()
)
odd_texts = st.sampled_from(
    [
        "",
        "0",
        "-5",
        "1e400",
        "1e19",
        "9" * 40,
        "NaN",
        "inf",
        "١",
        "0x10",
        "1Ei",
        "9999999Ei",
        "1m",
        "1n",
        " 1",
        "🦊",
        "\x00",
        "true",
        "0,1",
        "n1",
    ]
)
odd = st.none() | st.booleans() | odd_numbers | odd_texts | st.just([]) | st.just({})
resources = st.dictionaries(
    st.sampled_from(
        [
            "elasticgpu.io/gpu-memory",
            "elasticgpu.io/gpu-core",
            "aliyun.com/gpu-mem",
            "cpu",
            "memory",
            "alnair/vgpu-memory",
            "alnair/vgpu-compute",
            "nvidia.com/gpu",
            "pods",
            "nvidia.com/gpumem",
            "nvidia.com/gpumem-percentage",
            "nvidia.com/gpucores",
            "x/y",
        ]
    ),
    odd,
    max_size=4,
)
labels = st.dictionaries(
    st.sampled_from(
        [
            "genius/gpu-number",
            "genius/gpu-memory-each",
            "genius/gpu-memory-total",
            "genius/priority",
            "GPU_MEM_REQ",
            "nvidia.com/use-gputype",
        ]
    ),
    odd_texts,
    max_size=3,
)
asks = st.fixed_dictionaries({"limits": resources, "requests": resources})
containers = st.fixed_dictionaries({"name": odd_texts, "resources": asks})
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "name": st.just("a"),
                "namespace": st.just("ns"),
                "uid": odd_texts,
                "labels": labels,
                "annotations": labels,
            }
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(containers, max_size=3), "priority": odd, "overhead": resources}
        ),
    }
)
requests = st.fixed_dictionaries(
    {"Pod": pods | odd},
    optional={
        "Nodes": odd | st.fixed_dictionaries({"items": st.lists(odd | pods, max_size=2)}),
        "NodeNames": odd | st.lists(odd_texts | st.just("n1"), max_size=4),
        "NodeNameToMetaVictims": odd | st.dictionaries(odd_texts, odd, max_size=2),
        "NodeNameToVictims": st.dictionaries(st.just("n1"), odd, max_size=1),
        "PodName": odd,
        "PodNamespace": odd,
        "PodUID": odd,
        "Node": odd,
    },
)


async def ask_all(extender: Extender, body: bytes) -> None:
    """Every verb of every route answers in JSON with a status of the protocol."""
    for route in ROUTES:
        bind = await extender.bind(route, body)
        assert bind.status in (200, 400, route.bind_failure)
        replies = [
            extender.filter(route, body),
            extender.prioritize(route, body),
            extender.preempt(route, body),
            bind,
        ]
        for reply in replies:
            json.loads(reply.body)
            assert reply.failed or reply.status == 200
        assert all(reply.status in (200, 400) for reply in replies[:3])
    assert not extender.cluster.engine.ledger.holdings
    assert audit(extender.cluster.engine.ledger) == []


@settings(max_examples=few_or_many(60, 400), deadline=None)
@given(requests.map(lambda value: json.dumps(value).encode()))
async def test_whatever_the_pod_says_there_is_an_answer(body: bytes) -> None:
    await ask_all(Extender(world()), body)


POD = b'{"metadata":{"name":"a","uid":"u"},"spec":{"containers":[]}}'
ODD_BODIES = {
    "both lists nil": b'{"Pod":%s,"Nodes":null,"NodeNames":null}' % POD,
    "neither list": b'{"Pod":%s}' % POD,
    "a key twice": b'{"Pod":%s,"Pod":7,"NodeNames":["n1"],"NodeNames":["n2"]}' % POD,
    "a key in two cases": b'{"Pod":%s,"pod":null,"NodeNames":["n1"]}' % POD,
    "deep": b'{"Pod":' + b'{"spec":' * 50_000 + b"}" * 50_001,
    "deep lists": b'{"Pod":%s,"NodeNames":' % POD + b"[" * 50_000,
    "deep in what is skipped": b'{"Pod":%s,"x":' % POD + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "NaN": b'{"Pod":{"spec":{"priority":NaN}},"NodeNames":["n1"]}',
    "a huge integer": b'{"Pod":{"spec":{"priority":%s}},"NodeNames":["n1"]}' % (b"9" * 5_000),
    "half a surrogate": b'{"Pod":%s,"NodeNames":["\\ud800"]}' % POD,
    "no UTF-8": b'{"Pod":%s,"NodeNames":["\xff\xfe"]}' % POD,
    "half a name": b'{"Pod":{"metadata":{"name":"a\\ud83d","uid":"u"}},"NodeNames":["n1"]}',
    "half a label": b'{"Pod":{"metadata":{"labels":{"a":"\\ude00"}}},"NodeNames":["n1"]}',
    "a byte order mark": b'\xef\xbb\xbf{"Pod":%s}' % POD,
    "UTF-16": '{"Pod":{}}'.encode("utf-16"),
    "two values": b'{"Pod":%s}{"Pod":%s}' % (POD, POD),
    "names a thousand times": b'{"Pod":%s,"NodeNames":[%s]}' % (POD, b",".join([b'"n1"'] * 1_000)),
    "a long name": b'{"Pod":%s,"NodeNames":["%s"]}' % (POD, b"n" * 1_000_000),
}


@pytest.mark.parametrize("name", ODD_BODIES)
async def test_odd_bodies(name: str) -> None:
    await ask_all(Extender(world()), ODD_BODIES[name])


def test_an_error_is_short_whatever_was_sent() -> None:
    body = b'{"Pod":{"metadata":{"name":%s}},"NodeNames":["n1"]}' % (b"[" + b"1," * 100_000 + b"1]")
    assert len(Extender(world()).filter(ROUTES[0], body).body) < 1_000


# --- streams -------------------------------------------------------------------------------------

lines = st.sampled_from(
    [
        b"POST /weft/filter HTTP/1.1",
        b"POST /weft/bind HTTP/1.1",
        b"POST /weft/preempt HTTP/1.0",
        b"GET /gpushare-scheduler/inspect/%2e%2e HTTP/1.1",
        b"POST /weft/filter HTTP/9.9",
        b"POST http://else/weft/filter HTTP/1.1",
        b"CONNECT x:1 HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"POST /" + b"a" * 9_000 + b" HTTP/1.1",
        b"",
        b"\x16\x03\x01\x02\x00\x01",
    ]
)
heads = st.lists(
    st.sampled_from(
        [
            b"Host: x",
            b"Content-Length: 5",
            b"Content-Length: 0",
            b"Content-Length: -1",
            b"Content-Length: 99999999999999999999",
            b"Content-Length: 5, 6",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: gzip, chunked",
            b"Upgrade: websocket",
            b"Connection: Upgrade",
            b"Connection: close",
            b"Expect: 100-continue",
            b": nothing",
            b"X: " + b"y" * 9_000,
            b"X\x00Y: z",
            b" folded",
            b"Content-Encoding: gzip",
        ]
    ),
    max_size=5,
)
tails = st.binary(max_size=60) | st.sampled_from(
    [b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\n", b"zz\r\n"]
)
streams = st.lists(
    st.builds(lambda line, head, tail: b"\r\n".join([line, *head, b"", tail]), lines, heads, tails),
    min_size=1,
    max_size=3,
).map(b"".join)


async def raw(port: int, data: bytes, cut: int = 0) -> bytes:
    """Whatever comes back for these bytes, sent in two pieces, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in (data[:cut], data[cut:]):
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@settings(max_examples=few_or_many(20, 40), deadline=None)
@given(st.lists(st.tuples(streams, st.integers(0, 200)), min_size=1, max_size=8))
async def test_streams_that_are_hardly_http(sent: list[tuple[bytes, int]]) -> None:
    async with on_server(ServerOptions(read_timeout_s=0.1, idle_timeout_s=0.1)) as (
        _,
        port,
        session,
    ):
        answers = await asyncio.gather(*(raw(port, data, cut) for data, cut in sent))
        assert not any(FAULT in answer for answer in answers)
        await is_well(session)


async def test_garbage_behind_a_request_costs_only_its_own_connection() -> None:
    body = args(elastic(), ["n1"])
    good = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async with on_server(ServerOptions(read_timeout_s=60, idle_timeout_s=0.3)) as (
        server,
        port,
        session,
    ):
        answer = await raw(port, good + good)
        assert answer.count(b'"NodeNames":["n1"]') == 2
        answer = await raw(port, good + b"\x00\x01garbage\r\n\r\n")
        assert b" 400 " in answer
        assert answer.endswith(b'"}')
        assert b"garbage" not in answer
        assert server.metrics.rejected["http"] == 1
        await is_well(session)


# --- slow and large ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"POST /weft/filter HTTP/1.1\r\n",
        b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["head", "body", "chunks"],
)
async def test_a_byte_now_and_then_buys_no_time(head: bytes) -> None:
    """Twenty who send a little every 50 ms get a few drops in: the time for one request."""
    drop = b"1\r\nx\r\n" if b"chunked" in head else b"x"

    async def dribble(port: int) -> int:
        drops = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        over = asyncio.ensure_future(reader.read())
        try:
            writer.write(head)
            while not over.done():
                writer.write(drop)
                drops += 1
                await asyncio.wait({over}, timeout=0.05)
            return drops
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)
            writer.close()

    async with on_server(ServerOptions(read_timeout_s=0.3, linger_s=0.2)) as (
        server,
        port,
        session,
    ):
        many = asyncio.gather(*(dribble(port) for _ in range(20)))
        await is_well(session)
        assert max(await many) < 50
        assert server.metrics.rejected["slow"] >= 20  # on a slow machine honest ones, too
        await is_well(session)


def pour(port: int, head: bytes, piece: bytes, times: int) -> bytes:
    """Send it as fast as it is taken; what came back first. Nothing of it is copied here."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        try:
            sock.sendall(head)
            for _ in range(times):
                sock.sendall(piece)
        except OSError:
            pass
        try:
            return sock.recv(100)
        except OSError:
            return b""


async def test_memory_is_bounded_whoever_sends_how_much() -> None:
    """Thirty send 4 MiB each, of 8: the budget is 8 MiB together, and no more is held."""
    head = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (8 * MIB)
    piece, answers = bytes(MIB), list[bytes]()

    async with on_server(ServerOptions(most_buffered_bytes=8 * MIB, read_timeout_s=2)) as (
        server,
        port,
        session,
    ):

        def one() -> None:
            answers.append(pour(port, head, piece, 4))

        threads = [threading.Thread(target=one) for _ in range(30)]
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        assert peak < 24 * MIB, f"{peak / MIB:.1f} MiB"
        assert server.metrics.rejected["busy"] > 0
        await is_well(session)
    assert len(answers) == 30


@pytest.mark.parametrize("chunked", [False, True])
async def test_over_32_mib_is_refused_as_it_ships(chunked: bool) -> None:
    told = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (33 * MIB)
    head = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\n" + told + b"\r\n\r\n"
    piece = b"100000\r\n" + bytes(MIB) + b"\r\n" if chunked else bytes(MIB)

    async with on_server() as (server, port, session):
        await asyncio.to_thread(pour, port, head, piece, 33)
        assert server.metrics.rejected == {"size": 1}
        await is_well(session)


async def test_a_body_of_nearly_32_mib_is_read() -> None:
    """Full nodes with 15 kB each, as kube-scheduler sends them without nodeCacheCapable."""
    items = [{"metadata": {"name": f"n{n}"}, "status": {"x": "y" * 15_000}} for n in range(2_150)]
    body = args(elastic(), None, {"metadata": {}, "items": items})
    assert 30 * MIB < len(body) < 32 * MIB

    async with on_server() as (_, _, session):
        async with session.post("/weft/filter", data=io.BytesIO(body)) as answer:
            found: Any = json.loads(await answer.read())
        assert found["Nodes"]["items"] == items[1:2]
        assert len(found["FailedNodes"]) == 2_149


@pytest.mark.parametrize("field", ["NodeNames", "Nodes", "NodeNameToMetaVictims"])
def test_more_nodes_than_any_cluster_has_are_refused(field: str) -> None:
    names = [f"n{number}" for number in range(100_001)]
    told: Any = {
        "NodeNames": names,
        "Nodes": {"items": [{"metadata": {"name": name}} for name in names]},
        "NodeNameToMetaVictims": dict.fromkeys(names),
    }[field]
    body = msgspec.json.encode({"Pod": elastic(), field: told})
    extender = Extender(world())
    asked = extender.preempt if "Victims" in field else extender.filter
    assert "100,001 nodes; 100,000 are the most" in json.loads(asked(ROUTES[0], body).body)["Error"]


def test_large_pods_are_not_remembered() -> None:
    """Or ten thousand of them would fill the memory."""
    large = elastic("large") | {"more": "x" * 70_000}
    extender = Extender(world())
    for pod in (large, elastic("small")) * 2:
        assert json.loads(extender.filter(ROUTES[0], args(pod, ["n1"])).body)["NodeNames"]
    assert extender.pods.parsed == 3, "the large one twice"


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_another_pods_name_uid_and_version_with_other_content_are_another_pod(verb: str) -> None:
    """A pod asks for more than there is; the forged one for next to nothing, and the other way
    round: neither answer depends on who asked before."""
    cluster = StubCluster(
        [node("n1", gpus=2, memory_mib=1_000), node("n2", gpus=2, memory_mib=2_000)]
    )
    large, small = elastic(memory=1_500), elastic(memory=100)

    def answers(pods: list[dict[str, Any]]) -> list[bytes]:
        extender = Extender(cluster)
        ask = getattr(extender, verb)
        gone = {"Pods": [{"UID": "gone"}]}
        more: Any = {"NodeNameToMetaVictims": {"n1": gone, "n2": gone}}
        return [
            ask(
                ROUTES[1], msgspec.json.encode({"Pod": pod, "NodeNames": ["n1", "n2"], **more})
            ).body
            for pod in pods
        ]

    alone = [answers([pod])[0] for pod in (large, small)]
    assert alone[0] != alone[1]
    assert answers([large, small, large]) == [alone[0], alone[1], alone[0]]
    assert answers([small, large, small]) == [alone[1], alone[0], alone[1]]


async def test_who_does_not_read_the_answer_is_hung_up_on() -> None:
    """A hundred thousand unknown names make some MB of reasons."""
    body = args(elastic(), [f"node-{number:020d}" for number in range(100_000)])
    head = b"POST /weft/filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)

    async with on_server(ServerOptions(read_timeout_s=0.5)) as (server, port, session):
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, head + body)
            async with asyncio.timeout(60):
                while server.metrics.rejected.get("slow") != 1:
                    await asyncio.sleep(0.02)
            await is_well(session)

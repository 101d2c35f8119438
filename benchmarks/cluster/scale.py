"""A large cluster: how long Weft takes to know it, what it keeps in memory, what watching costs.

5,000 nodes, four pods on each, all bound already: two with a whole card, two that share a third.
Then the nodes and pods say something new 500 times a second for a while.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
from contenders import cpu_s, memory_mb, said, weft_process
from objects import CARD_MIB, NAMESPACE, SHARE, WHOLE, node, node_name, pod
from report import Bar, Row, Sizes
from runs import say
from stage import SETTINGS, Stage, each

from weft.dialects.inventory import inventory
from weft.dialects.registry import parse_pod, write
from weft.kube.bind import BindRequest, encode
from weft.kube.client import MERGE_PATCH, ApiClient
from weft.kube.codec import NODES, PODS
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.model import Node, Placement, Share

EVENTS_PER_S = 500
SETTLE_S = 5
PATIENCE_S = 120


def scale(stage: Stage, sizes: Sizes) -> Row:
    """From start to ready, memory, and CPU time under steady watch traffic."""
    began = time.monotonic()
    stage.add_nodes(sizes.many_nodes)
    pods = fill(stage, sizes)
    say(f"{sizes.many_nodes} nodes and {pods} bound pods in {time.monotonic() - began:.0f} s")
    server = weft_process(stage)
    began = time.monotonic()
    server.start()
    try:
        server.wait_ready(lambda: " ready: " in said(server), timeout_s=PATIENCE_S)
        ready_s = time.monotonic() - began
        start_cpu_s = cpu_s(server)
        say(f"ready after {ready_s:.1f} s ({start_cpu_s:.1f} s of CPU), {memory_mb(server)} MB")
        # A new leader lists everything once more: that is part of no steady traffic.
        server.wait_ready(lambda: " leading, " in said(server), timeout_s=PATIENCE_S)
        leading_s = time.monotonic() - began
        say(f"leading after {leading_s:.1f} s")
        busy, rate = stage.run(lambda client: _traffic(client, sizes, lambda: cpu_s(server)))
        now_mb, most_mb = memory_mb(server)
        say(f"{rate:.0f} events a second take {busy:.3f} cores; {now_mb} MB, at most {most_mb} MB")
    finally:
        server.stop(timeout_s=20)
    figures = {
        "ready_s": round(ready_s, 2),
        "cpu_to_ready_s": round(start_cpu_s, 2),
        "leading_s": round(leading_s, 2),
        "rss_mb": now_mb,
        "most_rss_mb": most_mb,
        "events_per_s": round(rate, 1),
        "cores_under_traffic": round(busy, 3),
    }
    bars = [
        Bar.at_most("start to ready, seconds", ready_s, 15),
        Bar.at_most("most resident memory, MB", most_mb, 600),
        Bar.at_most("cores under the traffic", busy, 0.5),
        Bar.at_least("events a second", rate, 0.95 * EVENTS_PER_S),
    ]
    return Row({"nodes": sizes.many_nodes, "pods": pods}, figures, bars)


def fill(stage: Stage, sizes: Sizes) -> int:
    """Pods that are created and bound, with the marks that Weft would write."""
    known = inventory(msgspec.convert(node(node_name(0)), KubeNode))[0]
    number = range(sizes.scale_pods)

    async def add(client: ApiClient) -> None:
        async def one(index: int) -> None:
            turn, place = divmod(index, 4)
            where = msgspec.structs.replace(known, name=node_name(turn % sizes.many_nodes))
            gpu = (WHOLE, 1) if place < 2 else (SHARE, 20)
            manifest = pod(f"pod-{index:05d}", "weft", gpu)
            made = await client.create(PODS, NAMESPACE, msgspec.json.encode(manifest))
            request = bound_to(made, where, place)
            path = PODS.of(NAMESPACE, request.name, "binding")
            await client.call("POST", path, encode(request, ""))

        await each(one, number)

    stage.run(add)
    return len(number)


def bound_to(made: Pod, where: Node, place: int) -> BindRequest:
    """The first two pods of a node have a card each, the others a quarter of the third."""
    asked = parse_pod(made, SETTINGS)
    shape = asked.shape
    gpu, size = (place, CARD_MIB) if place < 2 else (2, 20 * 1024)
    milli = 1000 if place < 2 else shape.gpu_requests[0].milli
    share = Share(0, gpu, size, milli, where.gpus[gpu].uuid)
    placed = Placement(asked.uid, where.name, (share,), shape.cpu_milli, shape.memory_mib)
    marks = write(asked, placed, where, time.time_ns())
    return BindRequest(
        asked.namespace,
        asked.name,
        asked.uid,
        where.name,
        lambda: "",
        marks.annotations,
        marks.labels,
    )


async def _traffic(
    client: ApiClient, sizes: Sizes, cpu: Callable[[], float]
) -> tuple[float, float]:
    """Heartbeats of nodes and reports about pods, in turn; cores taken, and events a second."""
    sent, limit = 0, asyncio.Semaphore(64)
    tasks: set[asyncio.Task[None]] = set()

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        limit.release()

    began = time.monotonic()
    since, before, counted = 0.0, 0.0, 0
    while (now := time.monotonic()) < began + SETTLE_S + sizes.scale_s:
        if not since and now >= began + SETTLE_S:
            since, before, counted = now, cpu(), sent
        while sent < (now - began) * EVENTS_PER_S:
            await limit.acquire()
            task = asyncio.create_task(_report(client, sizes, sent))
            tasks.add(task)
            task.add_done_callback(ended)
            sent += 1
        await asyncio.sleep(0.005)
    now, after = time.monotonic(), cpu()
    await asyncio.gather(*tasks)
    return (after - before) / (now - since), (sent - counted) / (now - since)


async def _report(client: ApiClient, sizes: Sizes, number: int) -> None:
    said_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    turn = number // 2
    if number % 2:
        path = NODES.of("", node_name(turn % sizes.many_nodes), "status")
        beat = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": f"report {number}",
            "lastHeartbeatTime": said_at,
        }
        status: dict[str, object] = {"conditions": [beat]}
    else:
        path = PODS.of(NAMESPACE, f"pod-{turn % sizes.scale_pods:05d}", "status")
        ready = {"type": "Ready", "status": "True", "message": f"report {number}"}
        status = {"phase": "Running", "conditions": [ready]}
    body = msgspec.json.encode({"status": status})
    await client.call("PATCH", path, body, content_type=MERGE_PATCH)

"""How fast `Binder` binds, beside the barest POST that the same HTTP library can make, and with
the delivery record that nodes carry out, beside without.

A fake API server in a process of its own, bindings with both preconditions, 32 in flight; `--runs`
interleaved runs of each, medians. The fake answers in far less time than a real API server (about
1.2 ms of CPU a binding), so what is compared is the client's own cost. Writes
build/bench/bind.json.

    python benchmarks/bench_bind.py [--pods 1000] [--runs 5] [--quick]
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import uvloop
from yarl import URL

from weft.cluster.control.live_cluster import bind_request
from weft.core.engine import Bind
from weft.core.ledger import STRICT
from weft.dialects.delivery import record_of
from weft.dialects.dialect import DialectSettings
from weft.dialects.registry import parse_pod
from weft.dialects.shares import placement_of, share_on
from weft.kube.bind import Binder, BindOptions, BindRequest, Bound, encode
from weft.kube.client import ApiClient, ClientOptions, Endpoint, FixedCredentials
from weft.kube.codec import PODS, SkippedObjects
from weft.kube.pods import Pod
from weft.model import Gpu, Node
from weft.model.annotations import DELIVERY, PLACEMENT_COPY, REQUIRED_PLUGINS
from weft.model.delivery import encode_delivery

IN_FLIGHT = 32
LEAST_RATIO = 0.7
GPU = Gpu(0, 16_160, "V100", uuid="GPU-8f2a4c1e-0b7d-4c2a-9d53-1f6e0a7b9c24")
NODE = Node("node-00001", (GPU,), fail_closed=True)
OF_THE_NODE = (DELIVERY, PLACEMENT_COPY, REQUIRED_PLUGINS)
"""The annotation in a Binding for the node's agent."""


def pod_body(name: str) -> bytes:
    limits = {"aliyun.com/gpu-mem": "4", "cpu": "100m"}
    spec = {
        "schedulerName": "weft",
        "containers": [{"name": "main", "resources": {"limits": limits}}],
    }
    return msgspec.json.encode({"metadata": {"name": name}, "spec": spec})


def decided(pod: Pod) -> Bind:
    """The decision that puts the pod on the GPU."""
    request = parse_pod(pod, DialectSettings(gpushare_unit="GiB"))
    (asked,) = request.shape.gpu_requests
    share = share_on(0, msgspec.structs.replace(asked, memory=asked.memory.on_node(1024)), GPU)
    why: Any = None  # of no interest to a binding
    return Bind(request, placement_of(request, NODE, [share]), why)


def binding(pod: Pod, command: Bind) -> BindRequest:
    """The request that the scheduler sends."""
    request = bind_request(command, NODE, 0, 1, pod, STRICT, lambda: "")
    return msgspec.structs.replace(request, resource_version=pod.metadata.resource_version)


def without_record(request: BindRequest) -> BindRequest:
    """The same for a node without an agent's word: as before there were records."""
    kept = {key: text for key, text in request.annotations.items() if key not in OF_THE_NODE}
    return msgspec.structs.replace(request, annotations=kept)


def record_us(command: Bind) -> float:
    """Microseconds to make and encode a record, the best of many."""
    best_s = 1.0
    for _ in range(2_000):
        began = time.perf_counter()
        record = record_of(command.pod, command.placement, NODE, {"main": {"A": "1"}})
        assert record is not None
        encode_delivery(record)
        best_s = min(best_s, time.perf_counter() - began)
    return 1e6 * best_s


class Rate(NamedTuple):
    """Bindings a second, and microseconds of this process' CPU time for each."""

    binds_per_s: float
    cpu_us: float


async def many(work: Callable[[BindRequest], Awaitable[None]], todo: list[BindRequest]) -> Rate:
    """All of them with `IN_FLIGHT` at once."""
    left = iter(todo)

    async def worker() -> None:
        for request in left:
            await work(request)

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    cpu_s = time.process_time() - cpu_began
    return Rate(len(todo) / (time.perf_counter() - began), 1e6 * cpu_s / len(todo))


async def measure(url: str, pods: int, runs: int) -> dict[str, float]:
    rates: dict[str, list[Rate]] = {"raw": [], "without_record": [], "weft": []}
    async with ApiClient(
        Endpoint(url, FixedCredentials()), ClientOptions(qps=1e9, burst=10**9)
    ) as client:
        binder = Binder(client, BindOptions(in_flight=IN_FLIGHT), may_bind=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def raw(request: BindRequest) -> None:
                address = URL(url + PODS.of("default", request.name, "binding"), encoded=True)
                body = encode(request, request.resource_version)
                headers = {"Content-Type": "application/json"}
                async with session.post(address, data=body, headers=headers) as response:
                    await response.read()
                    assert response.status == 201

            async def weft(request: BindRequest) -> None:
                assert await binder.bind(request) == Bound()

            for turn in range(runs):
                for name, measured in rates.items():
                    for number in range(pods):
                        body = pod_body(f"{name}-{turn}-{number}")
                        await client.call("POST", PODS.of("default"), body)
                    page = PODS.decode_page(
                        await client.call("GET", PODS.of("default")), SkippedObjects()
                    )
                    waiting = [pod for pod in page.items if not pod.spec.node_name]
                    todo = [binding(pod, decided(pod)) for pod in waiting]
                    if name != "weft":
                        todo = [without_record(request) for request in todo]
                    measured.append(await many(raw if name == "raw" else weft, todo))
    return {**summary(rates), "record_us": round(record_us(decided(waiting[0])), 1)}


def summary(rates: dict[str, list[Rate]]) -> dict[str, float]:
    """Medians, and what Weft and the record cost by them."""
    per_s = {name: statistics.median(r.binds_per_s for r in rates[name]) for name in rates}
    cpu_us = {name: statistics.median(r.cpu_us for r in rates[name]) for name in rates}
    return {
        **{f"{name}_binds_per_s": round(rate, 1) for name, rate in per_s.items()},
        "ratio": round(per_s["weft"] / per_s["raw"], 3),
        **{f"{name}_cpu_us": round(each, 1) for name, each in cpu_us.items()},
        "with_record_over_without": round(cpu_us["weft"] / cpu_us["without_record"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="100 pods")
    args = parser.parse_args()
    command = [sys.executable, "-m", "fakes.api_server"]
    tests = Path(__file__).resolve().parents[1] / "tests"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tests) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            result = uvloop.run(measure(url, 100 if args.quick else args.pods, args.runs))
        finally:
            server.terminate()
    out = Path("build/bench/bind.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    if result["ratio"] < LEAST_RATIO:
        sys.exit(f"binding costs more than it may: ratio {result['ratio']} < {LEAST_RATIO}")


if __name__ == "__main__":
    main()

"""How fast `Binder` binds, beside the barest POST that the same HTTP library can make.

A fake API server in a process of its own, bindings with two annotations and both preconditions,
32 in flight; three interleaved runs each, medians. The fake answers in far less time than a real
API server (about 1.2 ms of CPU a binding), so what is compared is the client's own cost. Writes
build/bench/bind.json.

    python benchmarks/bench_bind.py [--pods 1000] [--quick]
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

import aiohttp
import msgspec
import uvloop
from yarl import URL

from weft.kube.bind import Binder, BindOptions, BindRequest, Bound, encode
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.codec import PODS, SkippedObjects
from weft.kube.config import Endpoint
from weft.kube.credentials import FixedCredentials
from weft.kube.pods import Pod

IN_FLIGHT = 32
LEAST_RATIO = 0.7


def pod_body(name: str) -> bytes:
    limits = {"nvidia.com/gpu": "1", "cpu": "100m"}
    spec = {
        "schedulerName": "weft",
        "containers": [{"name": "main", "resources": {"limits": limits}}],
    }
    return msgspec.json.encode({"metadata": {"name": name}, "spec": spec})


def requests_for(pods: list[Pod]) -> list[BindRequest]:
    marks = {"weft.dev/placement": "0:16160:1000@node-00001/" + "x" * 120, "example.com/a": "b"}
    return [
        BindRequest(
            "default",
            pod.metadata.name,
            pod.metadata.uid,
            "node-00001",
            lambda: "",
            marks,
            resource_version=pod.metadata.resource_version,
        )
        for pod in pods
    ]


async def many(work: Callable[[BindRequest], Awaitable[None]], todo: list[BindRequest]) -> float:
    """Requests a second with `IN_FLIGHT` at once."""
    left = iter(todo)

    async def worker() -> None:
        for request in left:
            await work(request)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return len(todo) / (time.perf_counter() - began)


async def measure(url: str, pods: int, runs: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {"raw": [], "weft": []}
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
                for name, work in (("raw", raw), ("weft", weft)):
                    for number in range(pods):
                        body = pod_body(f"{name}-{turn}-{number}")
                        await client.call("POST", PODS.of("default"), body)
                    page = PODS.decode_page(
                        await client.call("GET", PODS.of("default")), SkippedObjects()
                    )
                    waiting = [pod for pod in page.items if not pod.spec.node_name]
                    rates[name].append(await many(work, requests_for(waiting)))
    raw_rate, weft_rate = (statistics.median(rates[name]) for name in ("raw", "weft"))
    return {
        "raw_binds_per_s": round(raw_rate, 1),
        "weft_binds_per_s": round(weft_rate, 1),
        "ratio": round(weft_rate / raw_rate, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="100 pods")
    args = parser.parse_args()
    command = [sys.executable, "-m", "weft.testing.api_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            result = uvloop.run(measure(url, 100 if args.quick else args.pods, 3))
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

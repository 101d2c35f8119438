"""The row `shadow`: what a `weft shadow` adds to the time until a live scheduler's pods are bound.

Two clusters, each with a `weft scheduler`; a shadow watches one of them. They are given pods in
turns, one at a time: a pod here, the same pod there, who is first changes each time. So whatever
else the machine does falls on both. In earnest the shadow runs on another machine: here it has the
lowest priority, and what is left is what its watches cost the API server.
"""

import asyncio
import os
import random
import shutil
import statistics
import sys
import time
from typing import Any

import msgspec
from contenders import cpu_s, said, start_weft
from objects import NAMESPACE, SHARE, pod
from report import Bar, Row, Sizes
from stage import Stage  # makes tests/cluster importable

# isort: split
from processes import Server

from weft.kube.client import ApiClient, ClientOptions
from weft.kube.codec import PODS
from weft.kube.config import load
from weft.kube.watch import ListWatch

_WARM = 30
_NODES = 100
_MOST_RATIO = 1.05
_DRAWS = 2_000


class BoundPods:
    """Tells when a watch shows a pod bound."""

    def __init__(self, client: ApiClient) -> None:
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self._client, self._synced = client, asyncio.Event()
        self._task = asyncio.create_task(self._watch())

    async def place(self, name: str) -> float:
        """Create a pod with a share; milliseconds until it is seen bound."""
        seen: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[name] = seen
        body = msgspec.json.encode(pod(name, "weft", (SHARE, 1)))
        began = time.perf_counter()
        await self._client.call("POST", PODS.of(NAMESPACE), body)
        ended = await asyncio.wait_for(seen, 60)
        return 1000 * (ended - began)

    async def ready(self) -> None:
        await self._synced.wait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        async for batch in ListWatch(self._client, PODS).batches():
            self._synced.set()
            for change in batch:
                one = getattr(change, "object", None)
                if one is not None and one.spec.node_name:
                    seen = self._waiting.pop(one.metadata.name, None)
                    if seen is not None and not seen.done():
                        seen.set_result(time.perf_counter())


def shadow(stage: Stage, sizes: Sizes) -> Row:
    """p99 with a shadow over p99 without, and its 95 % interval by drawing pods again."""
    with Stage(stage.folder / "without") as bare:
        stages = [stage, bare]
        for one in stages:
            one.add_nodes(_NODES)
            start_weft(one)
        process = _start_shadow(stage)
        servers = [one.plane.api_server for one in stages]
        before = [cpu_s(server) for server in servers]
        took = asyncio.run(took_ms(stages, sizes.pods))
        used = [cpu_s(server) - b for server, b in zip(servers, before, strict=True)]
        # It has the lowest priority, and may still be reading.
        process.wait_ready(lambda: _seen(process) >= sizes.pods + _WARM, 300)
        own_s = cpu_s(process)
        process.stop()
        counts = _seen(process)
    found = figures(took)
    per_pod = [1000 * one / (sizes.pods + _WARM) for one in used]
    found["server_cpu_with_ms"], found["server_cpu_without_ms"] = map(_short, per_pod)
    found["shadow_cpu_ms_per_pod"] = _short(1000 * own_s / (sizes.pods + _WARM))
    found["load_average"] = _short(os.getloadavg()[0])
    bars = [
        Bar.at_most("p99 until bound, with a shadow over without", found["p99"], _MOST_RATIO),
        Bar.true("the shadow saw each binding", counts == sizes.pods + _WARM),
    ]
    return Row({"nodes": _NODES, "pods": sizes.pods}, {"shadow": found}, bars)


def _start_shadow(stage: Stage) -> Server:
    config = stage.folder / "shadow.yaml"
    config.write_text("apiVersion: weft.dev/v1\nkind: WeftConfiguration\n")
    kubeconfig = stage.plane.kubeconfig_for("shadow", "system:masters")
    command = [
        shutil.which("nice") or "nice",
        "-n",
        "19",
        sys.executable,
        "-m",
        "weft.cli.main",
        "shadow",
        "-o",
        "json",
    ]
    command += ["--config", str(config), "--kubeconfig", str(kubeconfig)]
    process = Server(command, stage.folder / "shadow.log")
    process.start()
    process.wait_ready(lambda: "reading only" in said(process), 60)
    return process


def _seen(process: Server) -> int:
    """How many bindings it has told of."""
    return said(process).count('"agrees"')


async def took_ms(stages: list[Stage], pods: int) -> list[list[float]]:
    """Milliseconds of each pod, with a shadow and without; the first are left out."""
    took: list[list[float]] = [[], []]
    options = ClientOptions(qps=1e6, burst=10**6)
    clients = [ApiClient(load(paths=(one.plane.kubeconfig,), env={}), options) for one in stages]
    async with clients[0], clients[1]:
        watches = [BoundPods(client) for client in clients]
        for watch in watches:
            await watch.ready()
        for number in range(_WARM + pods):
            for which in (0, 1) if number % 2 else (1, 0):
                one_ms = await watches[which].place(f"pod-{number:05d}")
                if number >= _WARM:
                    took[which].append(one_ms)
        for watch in watches:
            await watch.close()
    return took


def figures(took: list[list[float]]) -> dict[str, Any]:
    """Milliseconds of each pod on one cluster, by those of the same pod on the other."""
    draw, pods = random.Random(42), len(took[0])
    ratios = []
    for _ in range(_DRAWS):
        rows = draw.choices(range(pods), k=pods)
        ratios.append(_p99([took[0][row] for row in rows]) / _p99([took[1][row] for row in rows]))
    ratios.sort()
    medians = [statistics.median(one) for one in took]
    return {
        "p99": _short(_p99(took[0]) / _p99(took[1])),
        "p99_interval": [_short(ratios[_DRAWS // 40]), _short(ratios[-_DRAWS // 40])],
        "median": _short(medians[0] / medians[1]),
        "p99_with_ms": _short(_p99(took[0])),
        "p99_without_ms": _short(_p99(took[1])),
        "median_with_ms": _short(medians[0]),
        "median_without_ms": _short(medians[1]),
    }


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _short(value: float) -> float:
    return round(value, 3)

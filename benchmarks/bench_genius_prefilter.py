"""A decision that asks for metrics itself, as Genius did, beside one that looks at what is known.

Genius's preFilter asks Prometheus anew for every pod, one question after the other: which nodes
there are, which cards each node has, and the metrics of each card. 5,000 nodes of 8 GPUs are 45,001
questions. They are really asked, of a server that answers at once from memory, in a process of its
own: any Prometheus takes longer. `batched` asks for all cards in one question instead, which is the
best that can be done within a decision. Weft's decisions are `Engine.handle` on a cluster at 70 %
load with a snapshot of all GPUs, as in bench_decisions. Writes build/bench/genius_prefilter.json.

    python benchmarks/bench_genius_prefilter.py [--nodes 5000] [--asking 1]
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
import numpy as np

from bench_decisions import GPUS, World, a_snapshot
from bench_decisions import METRICS as MEASURED

METRICS = {
    "observerward_dynamic_gpu_used_global_memory_MiB": "4000",
    "observerward_dynamic_gpu_free_global_memory_MiB": "28510",
    "observerward_dynamic_gpu_power_usage_W": "61",
    "observerward_dynamic_gpu_encoder_utilization": "0",
    "observerward_dynamic_gpu_decoder_utilization": "0",
    "observerward_dynamic_gpu_memory_utilization": "12",
    "observerward_static_gpu_memory_size": "0",
    "observerward_static_gpu_multiprocessor_count": "0",
    "observerward_static_gpu_shared_decoder_count": "0",
    "observerward_static_gpu_shared_encoder_count": "0",
}
READ = 4
"""Genius's score reads free memory, power and the two utilisations: what `batched` asks for."""


# --- a server that plays Prometheus ----------


def vector(series: Iterator[dict[str, str]]) -> bytes:
    result = [{"metric": one, "value": [1.0, METRICS[one["__name__"]]]} for one in series]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def values(found: list[str]) -> bytes:
    return json.dumps({"status": "success", "data": found}).encode()


def card(node: str, gpu: str, metrics: list[str]) -> Iterator[dict[str, str]]:
    for name in metrics:
        yield {
            "__name__": name,
            "kubernetes_node": node,
            "id": gpu,
            "uuid": f"GPU-{node}-{gpu}",
            "model": "Tesla V100-SXM2-32GB",
            "instance": f"{node}:9909",
            "job": "gpu-metrics",
        }


class Playing(asyncio.Protocol):
    """HTTP/1.1 with as little as the client needs."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.rest = names, b""
        self.ids = values([str(gpu) for gpu in range(GPUS)])
        some = list(METRICS)[1 : 1 + READ]
        self.everything = vector(
            one for node in names for gpu in range(GPUS) for one in card(node, str(gpu), some)
        )

    def __call__(self) -> "Playing":
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while b"\r\n\r\n" in self.rest:
            head, _, self.rest = self.rest.partition(b"\r\n\r\n")
            body = self.answer(head.split(b" ", 2)[1].decode())
            start = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            self.transport.write(start + body)  # type: ignore[attr-defined]

    def answer(self, target: str) -> bytes:
        url = urlsplit(target)
        if "kubernetes_node/values" in url.path:
            return values(self.names)
        if "id/values" in url.path:
            return self.ids
        parts = parse_qs(url.query)["query"][0].split('"')
        return (
            vector(card(parts[3], parts[5], list(METRICS))) if len(parts) > 3 else self.everything
        )


def serve(names: list[str], tell: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Playing(names), "127.0.0.1", 0)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def prometheus(names: list[str]) -> Iterator[http.client.HTTPConnection]:
    """A connection to it, kept open: Genius's client does so too."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(names, there), daemon=True)
    process.start()
    connection = http.client.HTTPConnection("127.0.0.1", here.recv(), timeout=60)
    try:
        yield connection
    finally:
        connection.close()
        process.terminate()
        process.join()


# --- what is compared ----------


class Asker:
    """Counts its questions."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection, self.questions = connection, 0

    def get(self, path: str) -> bytes:
        self.questions += 1
        self.connection.request("GET", path)
        return self.connection.getresponse().read()


class Sample(msgspec.Struct):
    """One series of a vector."""

    metric: dict[str, str]
    value: tuple[float, str]


class Vector(msgspec.Struct):
    result: list[Sample]


class Answer(msgspec.Struct):
    data: Vector


DECODER = msgspec.json.Decoder(Answer)


def as_genius(asker: Asker) -> dict[tuple[str, str], dict[str, float]]:
    """Its questions, in its order; the numbers of each card."""
    found = {}
    for node in json.loads(asker.get("/api/v1/label/kubernetes_node/values"))["data"]:
        match = quote(f'{{kubernetes_node="{node}"}}')
        for gpu in json.loads(asker.get(f"/api/v1/label/id/values?match[]={match}"))["data"]:
            query = quote(f'{{__name__=~"observerward_.*", kubernetes_node="{node}", id="{gpu}"}}')
            told = DECODER.decode(asker.get(f"/api/v1/query?query={query}"))
            found[node, gpu] = {
                one.metric["__name__"]: float(one.value[1]) for one in told.data.result
            }
    return found


def batched(asker: Asker) -> dict[tuple[str, str], dict[str, float]]:
    """Everything in one question."""
    query = quote('{__name__=~"observerward_dynamic.*"}')
    found: dict[tuple[str, str], dict[str, float]] = {}
    for one in DECODER.decode(asker.get(f"/api/v1/query?query={query}")).data.result:
        labels = one.metric
        of_card = found.setdefault((labels["kubernetes_node"], labels["id"]), {})
        of_card[labels["__name__"]] = float(one.value[1])
    return found


def asking(names: list[str], decisions: int) -> dict[str, dict[str, float]]:
    """Both ways of asking within a decision, without the decision: that comes on top."""
    rows = {}
    with prometheus(names) as connection:
        for name, way in (("genius", as_genius), ("batched", batched)):
            times = []
            for _ in range(decisions):
                asker = Asker(connection)
                begin = time.perf_counter()
                found = way(asker)
                times.append(time.perf_counter() - begin)
                assert len(found) == len(names) * GPUS
            rows[name] = {
                "questions": asker.questions,
                "ms": round(1e3 * float(np.median(times)), 2),
            }
    return rows


def looking(policy: str, nodes: int, decisions: int) -> dict[str, float]:
    """Weft's decisions by what was looked at before."""
    world = World(policy, nodes, seed=1)
    if policy not in MEASURED:
        world.engine.handle(a_snapshot(world.names), 0)
    times = []
    for index in range(decisions + decisions // 4):
        world.depart()
        took, _ = world.arrive(world.rng.choice(world.shapes))
        if index >= decisions // 4:
            times.append(took * 1e3)
    return {
        "ms": round(float(np.median(times)), 4),
        "p99_ms": round(float(np.percentile(times, 99)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--asking", type=int, default=1, help="decisions that ask")
    options = parser.parse_args()
    names = [f"node-{index:05d}" for index in range(options.nodes)]
    result: dict[str, object] = {"nodes": options.nodes, "gpus": options.nodes * GPUS}
    weft = {name: looking(name, options.nodes, 2_000) for name in ("load-aware", "genius")}
    asked = asking(names, options.asking)
    result |= {"weft": weft, "asking": asked}
    result["times_as_long"] = {
        way: {policy: round(asked[way]["ms"] / row["ms"]) for policy, row in weft.items()}
        for way in asked
    }
    print(json.dumps(result, indent=1))
    out = Path("build/bench/genius_prefilter.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

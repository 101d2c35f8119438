"""Binding POSTs and nothing else: Weft's annotations and preconditions, pods in turn.

    python raw_process.py KUBECONFIG IN_FLIGHT [FILE]

Lists the pods that have no node, says `ready`, and binds them round-robin with Weft's client. With
FILE it binds nothing: it writes the requests there, one a line, for the client in Go (raw.go).
"""

import asyncio
import sys
import time
from pathlib import Path

import uvloop
from objects import CARD_MIB, GPUS, NAMESPACE

from weft.dialects.dialect import DialectSettings
from weft.dialects.inventory import inventory
from weft.dialects.registry import parse_pod, write
from weft.kube.bind import BindRequest, encode
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.codec import NODES, PODS, SkippedObjects
from weft.kube.config import load
from weft.kube.pods import Pod
from weft.model import Node, Placement, Share

TAIL = "binding?timeout=3s"


def request_for(pod: Pod, node: Node, gpu: int) -> BindRequest:
    """The request that Weft would write for this place."""
    asked = parse_pod(pod, DialectSettings())
    shares = (Share(0, gpu, CARD_MIB, 1000, node.gpus[gpu].uuid),)
    shape = asked.shape
    placement = Placement(asked.uid, node.name, shares, shape.cpu_milli, shape.memory_mib)
    marks = write(asked, placement, node, time.time_ns())
    meta = pod.metadata
    return BindRequest(
        meta.namespace,
        meta.name,
        meta.uid,
        node.name,
        lambda: "",
        marks.annotations,
        marks.labels,
        meta.resource_version,
    )


def path_of(request: BindRequest) -> str:
    return PODS.of(request.namespace, request.name, TAIL)


def line_of(request: BindRequest) -> bytes:
    """Path and body, which is JSON without a line break, with a tab between them."""
    return b"%s\t%s\n" % (path_of(request).encode(), encode(request, request.resource_version))


async def main() -> None:
    kubeconfig, in_flight = Path(sys.argv[1]), int(sys.argv[2])
    requests_file = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    endpoint = load(paths=(kubeconfig,), env={})
    async with ApiClient(endpoint, ClientOptions(qps=1e6, burst=10**6)) as client:
        listed = NODES.decode_page(await client.call("GET", NODES.of("")), SkippedObjects())
        nodes = [inventory(one)[0] for one in listed.items]
        page = PODS.decode_page(await client.call("GET", PODS.of(NAMESPACE)), SkippedObjects())
        waiting = [pod for pod in page.items if not pod.spec.node_name]
        count = len(nodes)
        requests = iter(
            [
                request_for(pod, nodes[number % count], number // count % GPUS)
                for number, pod in enumerate(waiting)
            ]
        )
        if requests_file is not None:
            requests_file.write_bytes(b"".join(map(line_of, requests)))
            return
        print("ready", flush=True)

        async def worker() -> None:
            for one in requests:
                answer = await client.send("POST", path_of(one), encode(one, one.resource_version))
                assert answer.code == 201, answer

        await asyncio.gather(*(worker() for _ in range(in_flight)))


if __name__ == "__main__":
    uvloop.run(main())

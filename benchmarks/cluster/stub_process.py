"""A pass-through extender: every node is good, none is better, a binding is POSTed as asked.

    python stub_process.py KUBECONFIG

It does the least that an extender can do, with Weft's own HTTP client and a bare aiohttp server on
uvloop. Says `port N`.
"""

import asyncio
import sys
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web

from weft.kube.bind import BindRequest, encode
from weft.kube.client import ApiClient, ClientOptions
from weft.kube.codec import PODS
from weft.kube.config import load


class Args(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    node_names: msgspec.Raw = msgspec.Raw(b"[]")


class Binding(msgspec.Struct, frozen=True, gc=False):
    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


ARGS, BINDING = msgspec.json.Decoder(Args), msgspec.json.Decoder(Binding)
NAMES = msgspec.json.Decoder(list[str])


def filtered(body: bytes) -> bytes:
    names = bytes(ARGS.decode(body).node_names)
    return b'{"Nodes":null,"NodeNames":%b,"FailedNodes":{},"Error":""}' % names


def prioritized(body: bytes) -> bytes:
    names = NAMES.decode(ARGS.decode(body).node_names)
    return msgspec.json.encode([{"Host": name, "Score": 0} for name in names])


async def serve(kubeconfig: Path) -> None:
    endpoint = load(paths=(kubeconfig,), env={})
    async with ApiClient(endpoint, ClientOptions(qps=1e6, burst=10**6)) as client:

        async def bind(body: bytes) -> bytes:
            asked = BINDING.decode(body)
            request = BindRequest(asked.namespace, asked.name, asked.uid, asked.node, lambda: "")
            path = PODS.of(asked.namespace, asked.name, "binding")
            answer = await client.send("POST", path, encode(request, ""))
            error = "" if answer.code < 300 else answer.body.decode()
            return msgspec.json.encode({"Error": error})

        async def answer(request: web.BaseRequest) -> web.Response:
            body = await request.read()
            verb = request.path.rpartition("/")[2]
            if verb == "bind":
                told = await bind(body)
            else:
                told = filtered(body) if verb == "filter" else prioritized(body)
            return web.Response(body=told, content_type="application/json")

        server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
        print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))

"""`weft explain pod` against a running scheduler: by its address, or through the API server.

The API server's proxy is a fake here: it passes the pages of one Service and of one pod on, and
answers for all others as the real one does.
"""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from scheduler_world import MIB, Json, World, add_node, add_pod, world

from fakes.addresses import own_address
from weft.cli.main import main
from weft.model.reason import TEXT, Code

PREFIX = "/api/v1/namespaces/weft-system/services/http:weft-scheduler:10259/proxy"
BUSY = "/api/v1/namespaces/weft-system/services/http:busy:10259/proxy"
LEADER = "/api/v1/namespaces/no-endpoints/pods/http:weft-b:1234/proxy"
"""Nobody keeps endpoints there: no Service leads anywhere."""


def replica(name: str, ip: str = "10.0.0.7", ready: str = "True") -> Json:
    """A pod as Weft's manifests have it."""
    ports = [{"name": "extender", "containerPort": 39999}, {"name": "http", "containerPort": 1234}]
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": name, "namespace": "any"},
        "spec": {"containers": [{"name": "scheduler", "ports": ports}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": conditions},
    }


LEADERS = {
    "no-endpoints": [replica("weft-a", ready="False"), replica("weft-b"), replica("weft-c", "")],
    "gone": [replica("weft-a")],
    "nobody": [],
}
"""Pods that are labelled as the leader, by namespace."""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "http://127.0.0.1:PORT"}}]
contexts: [{name: here, context: {cluster: c, user: u, namespace: d}}]
users: [{name: u, user: {token: t}}]
"""


class Scheduler:
    """A world on a loop of its own, in a thread, because the command has one too."""

    def __init__(self, ready: bool) -> None:
        self.port = self.proxy_port = 0
        self._ready, self._up = ready, threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))

    def __enter__(self) -> "Scheduler":
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()

    async def _live(self) -> None:
        self._stop = asyncio.Event()
        async with world(address="0.0.0.0") as cluster:
            self.port = cluster.pages.port
            if self._ready:
                await self._fill(cluster)
            proxy = web.Server(lambda request: self._pass_on(cluster, request))
            listening = await self._loop.create_server(proxy, "127.0.0.1", 0)
            self.proxy_port = listening.sockets[0].getsockname()[1]
            self._up.set()
            await self._stop.wait()
            listening.close()
            await proxy.shutdown(1)

    async def _fill(self, cluster: World) -> None:
        for namespace in ("weft-system", "no-endpoints"):
            cluster.server.access.accounts.add((namespace, "weft-explain"))
            user = f"system:serviceaccount:{namespace}:weft-explain"
            cluster.server.access.rights.add((user, "/explain/pods/d/"))
        add_node(cluster.server, "n", gpus=1)
        add_node(cluster.server, "dead", gpus=1, ready=False)
        add_pod(cluster.server, "p", 10_000)
        add_pod(cluster.server, "ghost", MIB, nodeName="dead", by="x")
        await cluster.lead()
        await cluster.until(lambda: cluster.bound("p"))
        uid = add_pod(cluster.server, "waits", 8_000)
        await cluster.until(lambda: uid in cluster.live.engine.queue)

    async def _pass_on(self, cluster: World, request: web.BaseRequest) -> web.Response:
        if request.path.endswith("/token"):
            return await self._to(request, cluster.server.url + request.path)
        for prefix in (PREFIX, LEADER):
            if request.path.startswith(prefix):
                page = request.path.removeprefix(prefix)
                host = own_address() or "127.0.0.1"
                return await self._to(request, f"http://{host}:{cluster.pages.port}{page}")
        where = request.path.split("/")[4:]
        if where[1:] == ["pods"] and where[0] in LEADERS:
            assert request.query["labelSelector"] == "weft.dev/role=leader"
            return web.json_response({"metadata": {}, "items": LEADERS[where[0]]})
        code = 503 if request.path.startswith(BUSY) or where[0] in LEADERS else 404
        code = 403 if where[0] == "forbidden" else code
        status = {"kind": "Status", "status": "Failure", "message": "no such thing", "code": code}
        return web.json_response(status, status=code)

    async def _to(self, request: web.BaseRequest, url: str) -> web.Response:
        """Every header but Authorization, which the API server keeps."""
        kept = {k: v for k, v in request.headers.items() if k not in ("Authorization", "Host")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, headers=kept, data=await request.read()) as answer,
        ):
            return web.Response(status=answer.status, body=await answer.read())


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Scheduler]:
    with Scheduler(ready=True) as cluster:
        yield cluster


@pytest.fixture
def kubeconfig(scheduler: Scheduler, tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.replace("PORT", str(scheduler.proxy_port)))
    return path


def explain(
    capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str]:
    """Exit code, and what was printed (of an error: the error)."""
    patch.setattr(sys, "argv", ["weft", "explain", "pod", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out or err


def test_by_its_address(
    scheduler: Scheduler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{scheduler.port}"
    code, said = explain(capsys, monkeypatch, "d/waits", "--url", url)
    assert code == 0
    head, *rest = said.splitlines()
    assert head.startswith("d/waits (UID ")
    assert head.endswith("schedulerName weft")
    assert rest[:5] == [
        "  fits nowhere",
        f"  0/2 GPU nodes: 1 × {TEXT[Code.UNSCHEDULABLE]}, "
        f"1 × {TEXT[Code.GPU_MEMORY]} (largest free 6,000 MiB, asked 8,000)",
        "  it would fit, if you",
        "    - request at most 6,000 MiB of GPU memory instead of 8,000",
        rest[4],
    ]
    assert rest[4].startswith("    - free n GPU 0: end pod d/p (UID ")
    assert rest[5:] == [
        "  note: 1 GPU held by pods of dead nodes: d/ghost",
        "  note: not ready: dead; kubectl describe node dead says why",
        "  stuck: d/ghost holds 1 GPU of dead: its node is not ready",
        "  if the node is certainly dead, free its GPUs: kubectl delete pod --force",
    ]
    code, said = explain(capsys, monkeypatch, "d/p", "--url", url)
    assert "  is bound on n, GPU 0 (0 % of cores, 10,000 MiB); profile weft (best-fit)" in said


def test_through_the_api_server(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name alone is looked up in the kubeconfig's namespace."""
    way = ("--kubeconfig", kubeconfig)
    code, said = explain(capsys, monkeypatch, "p", *way, "--output", "json")
    found = json.loads(said)
    assert (code, found["state"], found["node"]) == (0, "bound", "n")
    assert found["shares"][0]["memory_mib"] == 10_000
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    code, said = explain(capsys, monkeypatch, "d/none")
    assert code == 1
    assert said == (
        "weft: error: service weft-system/weft-scheduler:10259: there is no pod d/none\n"
    )


def test_by_the_leaders_pod_where_nobody_keeps_endpoints(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = ("--kubeconfig", kubeconfig, "--service", "no-endpoints/weft-scheduler:10259")
    code, said = explain(capsys, monkeypatch, "d/p", *way, "--output", "json")
    assert (code, json.loads(said)["node"]) == (0, "n")
    code, said = explain(capsys, monkeypatch, "d/none", *way)
    assert said == "weft: error: pod no-endpoints/weft-b:1234: there is no pod d/none\n"


def test_where_no_way_leads_to_a_scheduler_each_is_named(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = ("d/p", "--kubeconfig", kubeconfig, "--service")
    for namespace, wants in (
        (
            "nobody",
            (
                "503",
                "no scheduler answers behind the Service",
                "no pod of nobody is labelled weft.dev/role=leader",
            ),
        ),
        ("gone", ("503", "no scheduler answers behind the Service", "; pod gone/weft-a:1234: 503")),
        (
            "forbidden",
            (
                "403",
                "the right to list pods and get pods/proxy there, or to get services",
                "its leader's pod was not asked: ",
            ),
        ),
    ):
        code, said = explain(capsys, monkeypatch, *way, f"{namespace}/weft-scheduler:10259")
        assert code == 1
        assert said.startswith(f"weft: error: service {namespace}/weft-scheduler:10259: ")
        for want in wants:
            assert want in said, said


def test_an_api_server_that_is_not_there_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG.replace("PORT", "1"))
    code, said = explain(capsys, monkeypatch, "d/p", "--kubeconfig", tmp_path / "config")
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("weft: error: the API server at http://127.0.0.1:1: does not answer")


def test_what_is_wrong_on_the_way_is_said_with_a_way_out(
    kubeconfig: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    way = ("d/p", "--kubeconfig", kubeconfig, "--service")
    for service, want in (
        ("other/weft:1", "404 no such thing; there is no such Service, or it has no endpoints"),
        ("weft-system/busy:10259", "503 no such thing; no scheduler answers behind the Service"),
        ("weft", "--service: 'weft': write NAMESPACE/NAME:PORT"),
    ):
        code, said = explain(capsys, monkeypatch, *way, service)
        assert (code, want in said) == (1, True), said
    for url, want in (
        ("http://127.0.0.1:1", "does not answer"),
        ("here", "write http://HOST:PORT"),
        (kubeconfig.read_text().split('"')[1], "is not a Weft scheduler"),
    ):
        code, said = explain(capsys, monkeypatch, "d/p", "--url", url)
        assert (code, want in said) == (1, True), said
    code, said = explain(capsys, monkeypatch, "p", "--decisions", "x", "--url", "http://x")
    assert (code, "--decisions: reads a file; remove" in said) == (1, True)
    code, said = explain(capsys, monkeypatch, *way[:-1], "--url", "http://x")
    assert (code, "--url: is the scheduler's own address" in said) == (1, True)


def test_a_scheduler_that_is_not_ready_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scheduler(ready=False) as cluster:
        code, said = explain(
            capsys, monkeypatch, "d/p", "--url", f"http://127.0.0.1:{cluster.port}"
        )
    assert (code, "still reading the cluster; ask again" in said) == (1, True)


class Other(threading.Thread):
    """A fake of some other server: says the same bytes to whoever connects."""

    def __init__(self, said: bytes) -> None:
        super().__init__(daemon=True)
        self._said = said
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]

    def run(self) -> None:
        peer, _ = self._listening.accept()
        with peer, self._listening:
            peer.recv(65_536)
            peer.sendall(self._said)


def http(body: str, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize("output", ["json", "table"])
@pytest.mark.parametrize(
    "said",
    [
        http("<html>hello</html>"),
        http(""),
        http("[]"),
        http('{"ok": true}'),
        http("[" * 50_000),
        http('{"error": "x"}', "404 Not Found"),
        http("no", "500 No"),
        http("", "302 Found"),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
    ],
)
def test_another_server_is_told_in_one_line(
    said: bytes, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Other(said)
    other.start()
    url = f"http://127.0.0.1:{other.port}"
    code, told = explain(capsys, monkeypatch, "d/p", "--url", url, "--output", output)
    other.join(20)
    assert code == 1
    assert told.count("\n") == 1
    assert told.startswith(f"weft: error: {url}")
    assert "is not a Weft scheduler" in told or "does not answer" in told


def test_who_may_not_know_is_told_what_would_help(
    scheduler: Scheduler,
    kubeconfig: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = own_address() or pytest.skip("this machine has no address but loopback")
    code, said = explain(capsys, monkeypatch, "other/p", "--kubeconfig", kubeconfig)
    assert code == 1
    assert "may not get /explain/pods/other/p (RBAC, nonResourceURLs)" in said
    code, said = explain(capsys, monkeypatch, "d/p", "--url", f"http://{host}:{scheduler.port}")
    assert code == 1
    assert "explains pods only to authorized users: `weft explain` with a kubeconfig" in said

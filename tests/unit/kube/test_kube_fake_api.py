import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kube_world import client_of, node, pod, world

from fakes.api_behaviours import BEHAVIOURS, Behaviour, check, difference
from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient, ApiResponse, Endpoint, FixedCredentials
from weft.kube.codec import LEASES, NODES, PODS
from weft.kube.errors import ApiError, UnauthorizedError


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda one: one.name)
async def test_the_fake_behaves_as_the_table_says(behaviour: Behaviour) -> None:
    async with world() as (server, client):
        assert await check(client, behaviour, "default") == ""
        assert server.store.all(server.kind("pods")) == []


def test_adifference_is_told() -> None:
    wrong = ApiResponse(409, b'{"reason":"Other","message":"x"}')
    told = {
        difference(Behaviour("", BEHAVIOURS[0].request, code, reason, text), wrong)
        for code, reason, text in ((201, "", ""), (409, "Conflict", ""), (409, "Other", "y"))
    }
    assert told == {
        "409 instead of 201: x",
        "reason Other instead of Conflict",
        "'x' does not say 'y'",
    }


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/unknown", 404),
        ("GET", "/apis/apps/v1/pods", 404),
        ("POST", "/api/v1/namespaces/default/pods/a/unknown", 405),
        ("OPTIONS", "/api/v1/namespaces/default/pods/a", 405),
        ("GET", "/readyz", 200),
        ("GET", "/api/v1/pods?labelSelector==", 400),
    ],
)
async def test_what_it_does_not_know_it_refuses(method: str, path: str, code: int) -> None:
    async with world() as (_, client):
        assert (await client.send(method, path)).code == code


async def test_a_token_that_is_asked_for_must_be_right() -> None:
    async with FakeApiServer(token="secret") as server:
        async with client_of(server) as client:
            await client.call("GET", NODES.of(""))
        endpoint = Endpoint(server.url, FixedCredentials())
        async with ApiClient(endpoint) as stranger:
            with pytest.raises(UnauthorizedError):
                await stranger.call("GET", NODES.of(""))
            assert stranger.answers == {("GET", 401): 2}


async def test_a_lease_cannot_be_replaced_without_a_version() -> None:
    async with world() as (server, client):
        server.add("leases", {"metadata": {"name": "l"}, "spec": {}})
        path = LEASES.of("default", "l")
        with pytest.raises(ApiError, match="must be specified for an update"):
            await client.call("PUT", path, b'{"metadata":{"name":"l"}}')
        version = server.get("leases", "l")["metadata"]["resourceVersion"]
        body = {"metadata": {"name": "l", "resourceVersion": version}, "spec": {"x": 1}}
        await client.call("PUT", path, json.dumps(body).encode())
        assert server.get("leases", "l")["spec"] == {"x": 1}


async def test_a_bound_pod_is_deleted_when_its_grace_is_over() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a", nodeName="n"))
        await client.delete(PODS, "default", "a")
        await client.delete(PODS, "default", "a")
        assert server.get("pods", "a")["metadata"]["deletionTimestamp"]
        await client.call("DELETE", PODS.of("default", "a"), query={"gracePeriodSeconds": "0"})
        assert server.store.all(server.kind("pods")) == []


async def test_status_and_object_are_written_apart() -> None:
    async with world() as (server, client):
        server.add("pods", pod("a"))
        body = {"metadata": {"name": "a"}, "status": {"phase": "Running"}, "spec": {"x": 1}}
        path = PODS.of("default", "a")
        await client.call("PUT", path + "/status", json.dumps(body).encode())
        assert server.get("pods", "a")["status"] == {"phase": "Running"}
        assert "x" not in server.get("pods", "a")["spec"]
        body["status"] = {"phase": "Failed"}
        await client.call("PUT", path, json.dumps(body).encode())
        assert server.get("pods", "a")["status"] == {"phase": "Running"}
        assert server.get("pods", "a")["spec"] == {"x": 1}


async def test_label_selectors_of_all_forms() -> None:
    async with world() as (server, client):
        for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
            server.add("nodes", {"metadata": {"name": name, "labels": labels}})
        for selector, names in (
            ("x=1", "a"),
            ("x==2", "b"),
            ("x!=1", "bc"),
            ("x", "ab"),
            ("!x", "c"),
        ):
            body = await client.call("GET", NODES.of(""), query={"labelSelector": selector})
            found = [one["metadata"]["name"] for one in json.loads(body)["items"]]
            assert "".join(found) == names


async def test_bookmarks_come_by_themselves_and_watches_end_in_time() -> None:
    async with FakeApiServer(bookmark_s=0.01) as server, client_of(server) as client:
        server.add("nodes", node())
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "60"}
        async with client.stream(NODES.of(""), query, 60) as content:
            kinds = [json.loads(await content.readline())["type"] for _ in range(2)]
        assert kinds == ["ADDED", "BOOKMARK"]
        async with client.stream(NODES.of(""), {**query, "timeoutSeconds": "0.05"}, 60) as content:
            assert await content.read()
        while server.watches("nodes"):
            await asyncio.sleep(0.005)


async def test_a_delayed_answer_comes_after_its_gate() -> None:
    async with world() as (server, client):
        server.add("nodes", node())
        fault = server.fault("delay-answer", path="/nodes")
        asked = asyncio.create_task(client.call("GET", NODES.of("")))
        await fault.struck.wait()
        assert not asked.done()
        fault.gate.set()
        assert b"items" in await asked
        assert server.faults.counts == {"delay-answer": 1}


def test_it_runs_as_a_process_of_its_own_and_says_what_it_is() -> None:
    command = [sys.executable, "-m", "fakes.api_server"]
    tests = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tests) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
        finally:
            process.terminate()
    assert said.startswith("weft-fake-api-server: this is a fake; http://127.0.0.1:")

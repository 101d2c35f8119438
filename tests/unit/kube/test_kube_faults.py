"""Random faults, and what must hold whatever happens; each seed is a scene of its own."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest
from kube_world import pod, world
from long_form import few_or_many

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from weft.kube.bind import AlreadyBound, Binder, BindRequest, Bound, Outcome, Unknown, encode
from weft.kube.client import ApiClient
from weft.kube.codec import PODS
from weft.kube.watch import Added, Deleted, ListWatch, Modified, Synced, WatchOptions

PODS_A_SCENE = 8


def plan_faults(server: FakeApiServer, rng: random.Random) -> None:
    for _ in range(rng.randrange(3, 14)):
        kind = rng.choice(["lose-request", "lose-answer", "status", "status-after"])
        code = rng.choice([500, 503, 504, 429] if kind == "status" else [500, 504])
        method, path = rng.choice(
            [("POST", "binding"), ("POST", "binding"), ("GET", ""), ("PATCH", "")]
        )
        server.fault(kind, method=method, path=path, code=code, times=rng.randrange(1, 4))


async def settle(binder: Binder, request: BindRequest, unknowns: list[Unknown]) -> Outcome:
    outcome = await binder.bind(request)
    for _ in range(20):
        if not isinstance(outcome, Unknown):
            break
        unknowns.append(outcome)
        outcome = await binder.resolve(outcome)
    return outcome


@pytest.mark.parametrize("seed", range(60))
async def test_what_a_binding_says_is_what_the_cluster_holds(seed: int) -> None:
    rng = random.Random(seed)

    async with world(VirtualClock(auto=True)) as (server, client):
        requests = []
        for number in range(PODS_A_SCENE):
            meta = server.add("pods", pod(f"p{number}"))["metadata"]
            version = meta["resourceVersion"] if rng.random() < 0.8 else ""
            requests.append(
                BindRequest(
                    "default",
                    meta["name"],
                    meta["uid"],
                    f"n{number}",
                    lambda: "",
                    {"weft.dev/placement": str(number)},
                    resource_version=version,
                    unchanged=lambda pod: not pod.metadata.labels,
                )
            )
        plan_faults(server, rng)
        server.on_request = lambda _: disturb(server, rng)
        unknowns: list[Unknown] = []
        binder = Binder(client, may_bind=None)
        outcomes = await asyncio.gather(*(settle(binder, r, unknowns) for r in requests))
        server.on_request = None
        server.faults.forget()
        before = [bound_to(server, request) for request in requests]
        for request, outcome, node in zip(requests, outcomes, before, strict=True):
            assert not isinstance(outcome, Unknown)
            assert (node == request.node) is isinstance(outcome, Bound), outcome
            assert (node == "elsewhere") >= isinstance(outcome, AlreadyBound), outcome
        await replay(client, unknowns)
        assert [bound_to(server, request) for request in requests] == before


def disturb(server: FakeApiServer, rng: random.Random) -> None:
    """Now and then someone else does something to a pod."""
    name = f"p{rng.randrange(PODS_A_SCENE)}"
    chance = rng.random()
    if not server.store.has(server.kind("pods"), ("default", name)):
        return
    if chance < 0.1:
        server.update("pods", name, {"status": {"message": str(rng.random())}})
    elif chance < 0.13:
        server.update("pods", name, {"metadata": {"labels": {"genius/priority": "9"}}})
    elif chance < 0.17 and "nodeName" not in server.get("pods", name)["spec"]:
        if chance < 0.15:
            server.remove("pods", name)
        else:
            server.update("pods", name, {"spec": {"nodeName": "elsewhere"}})


def bound_to(server: FakeApiServer, request: BindRequest) -> str:
    """The node of this very pod; "" for unbound or gone."""
    if not server.store.has(server.kind("pods"), ("default", request.name)):
        return ""
    found = server.get("pods", request.name)
    return str(found["spec"].get("nodeName", ""))


async def replay(client: ApiClient, unknowns: list[Unknown]) -> None:
    """Everything whose answer was lost arrives after all, long after it was resolved."""
    for unknown in unknowns:
        if unknown.version:
            path = PODS.of("default", unknown.request.name, "binding")
            await client.send("POST", path, encode(unknown.request, unknown.version))


@pytest.mark.parametrize("seed", range(few_or_many(16, 40)))
async def test_a_list_watch_ends_up_knowing_the_truth(seed: int) -> None:
    rng = random.Random(seed)

    async with world(VirtualClock(auto=True), attempts=2) as (server, client):
        mirror: dict[str, str] = {}
        options = WatchOptions(page_size=3)
        watch = ListWatch(client, PODS, options=options)
        for _ in range(5):
            act(server, rng)
        async with aclosing(watch.batches()) as batches:
            async for batch in batches:
                for change in batch:
                    follow(mirror, change)
                if "last" in mirror:
                    break
                if server.store.version > 150:
                    server.faults.forget()
                    if not server.store.has(server.kind("pods"), ("default", "last")):
                        server.add("pods", pod("last"))
                    continue
                for _ in range(rng.randrange(1, 6)):
                    act(server, rng)
                    trouble(server, rng)
        found = [one["metadata"] for one in server.store.all(server.kind("pods"))]
        assert mirror == {meta["name"]: meta["uid"] for meta in found}
        assert {key[1] for key in watch.known.objects} == set(mirror)


def follow(mirror: dict[str, str], change: Any) -> None:
    """Apply a change as a consumer does, which must never be surprised."""
    if isinstance(change, Synced):
        return
    meta = change.object.metadata
    match change:
        case Added():
            assert meta.name not in mirror
            mirror[meta.name] = meta.uid
        case Modified():
            assert mirror[meta.name] == meta.uid == change.old.metadata.uid
        case Deleted():
            assert mirror.pop(meta.name) == meta.uid


def act(server: FakeApiServer, rng: random.Random) -> None:
    """Something happens to a pod."""
    name = f"p{rng.randrange(12)}"
    there = server.store.has(server.kind("pods"), ("default", name))
    if not there:
        server.add("pods", pod(name))
    elif rng.random() < 0.4:
        server.remove("pods", name)
    else:
        server.update("pods", name, {"metadata": {"labels": {"n": str(rng.random())}}})


def trouble(server: FakeApiServer, rng: random.Random) -> None:
    """Something happens to the API server."""
    chance = rng.random()
    if chance < 0.1:
        server.cut_watches()
    elif chance < 0.2:
        server.compact()
    elif chance < 0.3:
        server.bookmark()
    elif chance < 0.4:
        server.fault(rng.choice(["status", "lose-request", "lose-answer"]), code=503)

import asyncio
from typing import Any

import pytest
from kube_world import client_of, pod, world

from fakes.api_clock import VirtualClock
from fakes.api_server import FakeApiServer
from fakes.api_store import ApiRefusal
from weft.kube.bind import (
    AlreadyBound,
    Binder,
    BindOptions,
    BindRequest,
    Bound,
    Conflict,
    Gated,
    Gone,
    NotLeader,
    Refused,
    Unknown,
)
from weft.kube.client import ApiClient
from weft.model.annotations import FENCED_VERSION

BINDING = "pods/a/binding"


def ask(server: FakeApiServer, version: bool = True, **more: Any) -> BindRequest:
    """Bind pod `a` to node `n` as it is now."""
    meta = server.get("pods", "a")["metadata"]
    told = {"resource_version": meta["resourceVersion"]} if version else {}
    usual = {"closed": lambda: "", "annotations": {"weft.dev/placement": "0"}}
    return BindRequest("default", "a", meta["uid"], "n", **{**usual, **told, **more})


async def bind(server: FakeApiServer, client: ApiClient, **more: Any) -> object:
    return await Binder(client, may_bind=None).bind(ask(server, **more))


async def test_one_post_carries_node_annotations_and_labels() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        before = server.store.version
        assert await bind(server, client, labels={"elasticgpu.io/assumed": "true"}) == Bound()
        after = server.get("pods", "a")
        assert after["spec"]["nodeName"] == "n"
        assert after["metadata"]["annotations"] == {"weft.dev/placement": "0"}
        assert after["metadata"]["labels"] == {"elasticgpu.io/assumed": "true"}
        assert server.store.version == before + 1
        assert server.requests == {"POST pods/binding": 1}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"spec": {"nodeName": "other"}}, AlreadyBound("other")),
        ({"metadata": {"deletionTimestamp": "now"}}, Gone("the pod is being deleted")),
        ({"status": {"phase": "Failed"}}, Gone("the pod is Failed")),
        ({"spec": {"schedulingGates": [{"name": "wait"}]}}, Gated(("wait",))),
    ],
)
async def test_a_refusal_is_read_off_the_pod(change: dict[str, Any], outcome: object) -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server)
        server.update("pods", "a", change)
        assert await Binder(client, may_bind=None).bind(request) == outcome


async def test_a_pod_that_is_gone_or_replaced_is_gone() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server)
        server.remove("pods", "a")
        assert await Binder(client, may_bind=None).bind(request) == Gone("there is no such pod")
        server.add("pods", pod())
        outcome = await Binder(client, may_bind=None).bind(request)
        assert outcome == Gone("the pod was replaced by another of its name")


async def test_a_moved_version_is_tried_again_while_the_request_is_unchanged() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server, unchanged=lambda pod: not pod.metadata.labels)
        server.update("pods", "a", {"status": {"message": "still waiting"}})
        binder = Binder(client, may_bind=None)
        assert await binder.bind(request) == Bound(retries=1)
        assert binder.counts == {"version_retries": 1, "Bound": 1}


async def test_a_changed_request_is_a_conflict() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server, unchanged=lambda pod: not pod.metadata.labels)
        server.update("pods", "a", {"metadata": {"labels": {"genius/priority": "9"}}})
        outcome = await Binder(client, may_bind=None).bind(request)
        assert isinstance(outcome, Conflict)
        assert outcome.version == server.get("pods", "a")["metadata"]["resourceVersion"]
        assert "nodeName" not in server.get("pods", "a")["spec"]


async def test_a_version_that_never_rests_ends_in_a_conflict() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server, unchanged=lambda _: True)

        def disturb(seen: Any) -> None:
            if seen.method == "POST":
                server.update("pods", "a", {"status": {"n": server.store.version}})

        server.on_request = disturb
        binder = Binder(client, may_bind=None)
        assert isinstance(await binder.bind(request), Conflict)
        assert binder.counts["version_retries"] == 3


async def test_the_extender_form_has_only_the_uid_as_precondition() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        request = ask(server, version=False)
        server.update("pods", "a", {"status": {"message": "later"}})
        assert await Binder(client, may_bind=None).bind(request) == Bound()


@pytest.mark.parametrize(
    ("marks", "word"),
    [
        ({"annotations": {"bad key!": "x"}}, "bad key!"),
        ({"annotations": {"a": "x" * 300_000}}, "262,144"),
        ({"annotations": {"a": "x"}, "present_bytes": 262_144}, "262,144"),
        ({"labels": {"a/b/c": "x"}}, "a/b/c"),
        ({"labels": {"a": "no spaces"}}, "no spaces"),
        ({"annotations": {"Example.com/x": "ok", "-bad.com/x": ""}}, "-bad.com/x"),
    ],
)
async def test_marks_that_would_spoil_the_pod_are_never_sent(
    marks: dict[str, Any], word: str
) -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        outcome = await bind(server, client, **marks)
        assert isinstance(outcome, Refused)
        assert word in outcome.why
        assert server.requests == {}


async def test_nothing_is_sent_once_the_lease_does_not_outlive_the_request() -> None:
    asked: list[float] = []

    def may_bind(seconds: float) -> bool:
        asked.append(seconds)
        return False

    async with world() as (server, client):
        server.add("pods", pod())
        outcome = await Binder(client, may_bind=may_bind).bind(ask(server))
        assert outcome == NotLeader()
        assert asked == [6]  # our time-out, and the server's deadline behind it
        assert server.requests == {}


async def test_too_many_requests_is_waited_out_as_long_as_the_server_says() -> None:
    clock = VirtualClock(auto=True)
    async with world(clock) as (server, client):
        server.add("pods", pod())
        server.fault("status", path=BINDING, code=429, retry_after_s=7)
        assert await bind(server, client) == Bound()
        assert clock.slept[0] == 7


async def test_other_refusals_carry_the_servers_words() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        server.fault("status", path=BINDING, code=403)
        assert await bind(server, client) == Refused(403, "planned fault 403")
        server.fault("status", path=BINDING, code=409)
        assert await bind(server, client) == Refused(409, "planned fault 409")
        server.fault("status", path=BINDING, code=409)
        server.fault("status", path="pods/a", method="GET", code=403, times=9)
        assert await bind(server, client) == Refused(409, "planned fault 409")


async def test_a_server_that_is_not_there_is_refused_not_unknown() -> None:
    async with FakeApiServer() as server:
        server.add("pods", pod())
        request = ask(server)
        async with client_of(server) as client:
            await server.stop()
            outcome = await Binder(client, may_bind=None).bind(request)
            assert isinstance(outcome, Refused)
            assert outcome.code == 0


@pytest.mark.parametrize("fault", ["lose-answer", "status-after"])
@pytest.mark.parametrize("version", [True, False])
async def test_a_lost_answer_after_the_write_resolves_to_bound(fault: str, version: bool) -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        server.fault(fault, path=BINDING)
        binder = Binder(client, may_bind=None)
        unknown = await binder.bind(ask(server, version=version))
        assert isinstance(unknown, Unknown)
        assert await binder.resolve(unknown) == Bound()
        assert binder.counts == {"Unknown": 1, "Bound": 1}


async def test_an_agent_that_changed_its_systems_mark_does_not_hide_our_binding() -> None:
    """gpushare's plugin sets ASSIGNED itself, maybe before the lost answer is looked up."""

    async with world() as (server, client):
        server.add("pods", pod())
        server.fault("lose-answer", path=BINDING)
        binder = Binder(client, may_bind=None)
        marks = {"weft.dev/placement": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
        unknown = await binder.bind(ask(server, annotations=marks))
        assert isinstance(unknown, Unknown)
        flipped = {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}}
        server.update("pods", "a", flipped)
        assert isinstance(await binder.resolve(unknown), Bound)


async def test_a_404_that_is_not_the_pods_is_no_end_of_the_pod() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        server.fault("status", path=BINDING, code=404)
        outcome = await bind(server, client)
        assert isinstance(outcome, Refused)
        assert outcome.code == 404


async def test_a_lost_request_resolves_to_refused_and_can_never_land_late() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        server.fault("lose-request", path=BINDING)
        binder = Binder(client, may_bind=None)
        request = ask(server)
        unknown = await binder.bind(request)
        assert isinstance(unknown, Unknown)
        assert isinstance(await binder.resolve(unknown), Refused)
        assert FENCED_VERSION in server.get("pods", "a")["metadata"]["annotations"]
        # The very request, had it been on its way all the time:
        assert isinstance(await binder.bind(request), Conflict)


async def test_a_binding_that_lands_between_look_and_fence_is_found() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        late = server.fault("delay", path=BINDING)
        binder = Binder(client, BindOptions(request_timeout_s=3), may_bind=None)
        request = ask(server)
        binding = asyncio.create_task(binder.bind(request))
        await late.struck.wait()

        def land(seen: Any) -> None:
            if seen.method == "PATCH":
                server.on_request = None
                change = {"spec": {"nodeName": "n"}}
                meta = {"metadata": {"annotations": request.annotations}}
                server.update("pods", "a", {**change, **meta})

        server.on_request = land
        unknown = Unknown(request, request.resource_version, client.clock.monotonic(), "")
        assert await binder.resolve(unknown) == Bound()
        late.gate.set()
        assert await binding == Bound()  # refused with 409, and read off the pod as ours


async def test_without_a_version_the_servers_deadline_is_waited_for() -> None:
    clock = VirtualClock(auto=True)
    async with world(clock) as (server, client):
        server.add("pods", pod())
        server.fault("lose-request", path=BINDING)
        binder = Binder(client, may_bind=None)
        unknown = await binder.bind(ask(server, version=False))
        assert isinstance(unknown, Unknown)
        assert isinstance(await binder.resolve(unknown), Refused)
        assert clock.monotonic() - unknown.lost_at >= 6


async def test_what_cannot_be_read_stays_unknown() -> None:
    async with world(attempts=1) as (server, client):
        server.add("pods", pod())
        server.fault("lose-answer", path=BINDING)
        binder = Binder(client, BindOptions(resolve_attempts=3), may_bind=None)
        unknown = await binder.bind(ask(server))
        assert isinstance(unknown, Unknown)
        fault = server.fault("status", path="pods/a", method="GET", times=3)
        again = await binder.resolve(unknown)
        assert isinstance(again, Unknown)
        assert "planned fault" in again.why
        assert fault.hits == 3
        assert await binder.resolve(again) == Bound()
        server.remove("pods", "a")
        assert await binder.resolve(again) == Gone("there is no such pod")


async def test_never_two_bindings_of_one_pod_at_once() -> None:
    async with world() as (server, client):
        server.add("pods", pod())
        held = server.fault("delay", path=BINDING)
        binder = Binder(client, may_bind=None)
        first = asyncio.create_task(binder.bind(ask(server)))
        await held.struck.wait()
        with pytest.raises(RuntimeError, match="being bound already"):
            await binder.bind(ask(server))
        held.gate.set()
        assert await first == Bound()


def test_the_object_is_as_the_test_says() -> None:
    with pytest.raises(ApiRefusal):
        FakeApiServer().get("pods", "nobody")

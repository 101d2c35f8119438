"""A pod is explained to this machine, or to whom the API server lets; to nobody else."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest
from scheduler_world import World, add_pod, world

from fakes.addresses import own_address
from weft.cluster.http.access import AccessRule
from weft.cluster.http.token_turns import PermissionRefusal, ReviewLimits
from weft.cluster.scheduler.permission import ACCOUNT, AUDIENCE, TOKEN_HEADER, Permission

USER = f"system:serviceaccount:weft-system:{ACCOUNT}"
PAGE = "/explain/pods/d/a"


@asynccontextmanager
async def from_elsewhere(door: AccessRule | None = None) -> AsyncIterator[tuple[World, str]]:
    """The pages listen on all addresses, and are asked at one that is not loopback."""
    host = own_address() or pytest.skip("this machine has no address but loopback")
    async with world(address="0.0.0.0", door=door) as cluster:
        add_pod(cluster.server, "a", 100)
        await cluster.lead()
        yield cluster, f"http://{host}:{cluster.pages.port}"


async def asked(cluster: World, url: str, token: str = "", **headers: str) -> tuple[int, str]:
    if token:
        headers[TOKEN_HEADER] = token
    async with cluster.session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_without_a_token_only_health_and_counts_are_told() -> None:
    async with from_elsewhere() as (cluster, base):
        for page in ("/healthz", "/livez", "/readyz", "/metrics"):
            assert (await asked(cluster, base + page))[0] == 200
        for name in ("a", "none"):
            status, text = await asked(cluster, f"{base}/explain/pods/d/{name}")
            assert status == 401, "whether there is such a pod is not told either"
            assert "--url by a port-forward" in text
        async with cluster.session.head(base + PAGE) as answer:
            assert answer.status == 401
        asked_of_api = {what for what in cluster.server.requests if "review" in what}
        assert not asked_of_api, "who shows nothing costs the API server nothing"
        assert (await cluster.get(PAGE))[0] == 200, "this machine needs no token"


async def test_a_token_for_explain_of_somebody_who_may() -> None:
    async with from_elsewhere() as (cluster, base):
        access = cluster.server.access
        good = access.token(USER, AUDIENCE)
        status, text = await asked(cluster, base + PAGE, good)
        assert status == 403
        assert f"{USER} may not get {PAGE}" in text
        access.rights.add((USER, "/explain/pods/other/"))
        assert (await asked(cluster, base + PAGE, good))[0] == 403
        access.rights.add((USER, "/explain/"))
        assert (await asked(cluster, base + PAGE, good))[0] == 200
        assert (await asked(cluster, base + PAGE, "", Authorization=f"Bearer {good}"))[0] == 401


@pytest.mark.parametrize("wrong", ["another audience", "forged", "no token", "an endless one"])
async def test_other_tokens_are_good_for_nothing(wrong: str) -> None:
    async with from_elsewhere() as (cluster, base):
        cluster.server.access.rights.add((USER, "/explain/"))
        token = {
            "another audience": cluster.server.access.token(USER, "https://kubernetes.default.svc"),
            "forged": cluster.server.access.token(USER, AUDIENCE) + "x",
            "no token": "a b",
            "an endless one": "e30.e30." + "x" * 7_000,
        }[wrong]
        assert (await asked(cluster, base + PAGE, token))[0] == 401


@pytest.mark.parametrize("path", ["tokenreviews", "subjectaccessreviews"])
async def test_an_api_server_that_does_not_say_lets_nobody_in(path: str) -> None:
    async with from_elsewhere() as (cluster, base):
        cluster.server.access.rights.add((USER, "/explain/"))
        cluster.server.fault("status", path=path, method="POST", times=99, code=403)
        status, text = await asked(
            cluster, base + PAGE, cluster.server.access.token(USER, AUDIENCE)
        )
        assert status == 503
        assert "did not answer the access check" in text


async def test_garbage_tokens_hold_no_explanation_from_those_who_may() -> None:
    """Each says that it is for us, so it is asked about, and the API server does not answer."""
    async with from_elsewhere() as (cluster, base):
        access = cluster.server.access
        access.rights.add((USER, "/explain/"))
        garbage = f"{access.token(USER, AUDIENCE)}x"
        most = cluster.pages.options.most_explaining
        slow = cluster.server.fault("delay", path="tokenreviews", times=100)
        holding = [asyncio.create_task(asked(cluster, base + PAGE, garbage)) for _ in range(most)]
        await slow.struck.wait()
        while cluster.pages._permission.waiting < most:
            await asyncio.sleep(0.005)
        status, text = await asked(cluster, base + PAGE, garbage)
        assert (status, "too many tokens from your address" in text) == (503, True)
        assert slow.hits == 1, "one address, one at a time"
        assert (await cluster.get(PAGE))[0] == 200, "this machine waits for none of them"
        slow.gate.set()
        assert {(await one)[0] for one in holding} == {401}
        assert (await asked(cluster, base + PAGE, access.token(USER, AUDIENCE)))[0] == 200


async def test_others_have_their_turn_while_one_address_shows_garbage() -> None:
    """And an API server that never answers about a token holds nobody beyond the limit."""
    async with from_elsewhere() as (cluster, _):
        access = cluster.server.access
        access.rights.add((USER, "/explain/"))
        garbage, good = f"{access.token(USER, AUDIENCE)}x", access.token(USER, AUDIENCE)
        limits = ReviewLimits(most=2, timeout_s=60)
        door = Permission(cluster.live.client, AccessRule(), limits)
        turns = door._turns

        def shown(address: str, token: str) -> Awaitable[PermissionRefusal | None]:
            return turns.check(address, lambda: door._refusal(token, PAGE))

        assert await shown("10.0.0.2", good) is None
        stuck = cluster.server.fault("delay", path="tokenreviews")
        turns._limits = ReviewLimits(most=2, timeout_s=0.5)  # of the one that is stuck
        bad = [asyncio.ensure_future(shown("10.0.0.1", garbage)) for _ in range(8)]
        await stuck.struck.wait()
        turns._limits = limits
        assert await shown("10.0.0.2", good) is None
        first = await bad[0]
        assert first is not None
        assert (first.status, "in time" in first.text) == (503, True)
        others = [await one for one in bad[1:]]
        assert {refusal.status for refusal in others if refusal is not None} == {401}
        assert None not in others
        assert door.waiting == 0


async def test_everybody_is_answered_where_that_is_what_was_said() -> None:
    async with from_elsewhere(AccessRule(anyone=True)) as (cluster, base):
        assert (await asked(cluster, base + PAGE))[0] == 200

"""A pod is explained to this machine, or to whom the API server lets; to nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scheduler_world import World, add_pod, world

from weft.cluster.http.access import AccessRule
from weft.cluster.scheduler.permission import ACCOUNT, AUDIENCE, TOKEN_HEADER
from weft.testing.addresses import own_address

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
            "forged": "e30.e30.e30",
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
        assert "does not say whether you may" in text


async def test_everybody_is_answered_where_that_is_what_was_said() -> None:
    async with from_elsewhere(AccessRule(anyone=True)) as (cluster, base):
        assert (await asked(cluster, base + PAGE))[0] == 200

"""The console for several viewers: whose token the API server knows, and what each may see."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from test_console_cluster import a_node, a_pod, bind
from test_console_server import QUICK, events_of

from fakes.api_clock import VirtualClock
from fakes.api_http import Request
from fakes.api_memory import MemoryClient, client_of
from fakes.api_server import FakeApiServer
from weft.cli.console import followed
from weft.cli.status import head_lines, wish_of
from weft.cluster.config.form import Configuration
from weft.cluster.http.viewers import AUDIENCE, ViewerOptions, Viewers
from weft.cluster.reading.cluster_checks import cluster_checks
from weft.cluster.reading.reading import how_to_read, read_cluster
from weft.cluster.reading.status import status_of
from weft.console.deltas import PictureDelta, applied
from weft.console.picture import Picture
from weft.console.server import ConsoleServer

SA = "system:serviceaccount:team:viewer"
PATIENCE_S = 30


class Served:
    """A console whose viewers sign in, of a cluster with pods of `ml` and `team`."""

    def __init__(self, api: FakeApiServer, client: MemoryClient, url: str) -> None:
        self.api, self.client, self.url = api, client, url
        self.session: aiohttp.ClientSession

    def token(self, user: str = SA, audience: str = AUDIENCE) -> str:
        return self.api.access.token(user, audience)

    async def get(self, path: str, token: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def pictures(self, token: str) -> AsyncIterator[Picture | str]:
        """Pictures as they come, and at the end why there are no more."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.get(f"{self.url}/api/picture", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            shown = Picture(0.0)
            async for kind, data in events_of(answer):
                if kind == "refused":
                    yield json.loads(data)["error"]
                    return
                if kind == "picture":
                    shown = msgspec.json.decode(data, type=Picture)
                else:
                    shown = applied(shown, msgspec.json.decode(data, type=PictureDelta))
                yield shown


@asynccontextmanager
async def served(options: ViewerOptions | None = None) -> AsyncIterator[Served]:
    async with FakeApiServer() as api, client_of(api) as client:
        api.add("nodes", a_node("n1"))
        for namespace in ("ml", "team"):
            api.add("pods", a_pod("held", 4_000), namespace)
            api.add("pods", a_pod("large", 99_000), namespace)
        bind(api, "held", 0, 4_000, "ml")
        bind(api, "held", 1, 4_000, "team")
        async with followed(client, None) as seen:
            server = ConsoleServer(seen.source, QUICK, Viewers(client, options), seen.health)
            made = Served(api, client, f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}")
            lives = asyncio.create_task(server.run())
            try:
                async with aiohttp.ClientSession() as made.session, asyncio.timeout(PATIENCE_S):
                    yield made
            finally:
                lives.cancel()
                await server.close()


def reviews_of(api: FakeApiServer) -> list[str]:
    """The reviews that the API server is asked for from now on."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if "review" in request.path:
            asked.append(request.path.rpartition("/")[2])

    api.on_request = note
    return asked


def names(picture: Picture) -> set[tuple[str, str]]:
    rows: list[Any] = [*picture.pods.values(), *picture.waiting.values()]
    return {(row.namespace, row.name) for row in rows}


@pytest.mark.parametrize("path", ["about", "picture", "explain?namespace=team&name=held"])
async def test_without_a_good_token_nothing_is_told(path: str) -> None:
    path = f"/api/{path}"
    async with served() as console:
        asked = reviews_of(console.api)
        for token in ("", "x", console.token(audience="https://kubernetes.default.svc")):
            status, text = await console.get(path, token)
            assert (status, f"--audience {AUDIENCE}" in text) == (401, True)
        assert asked == [], "what is not for us costs the API server nothing"
        status, text = await console.get(path, console.token() + "x")
        assert (status, "rejects the token" in text) == (401, True)
        assert (await console.get("/", ""))[0] == 200, "the page has a form to sign in"
        assert (await console.get("/healthz", ""))[0] == 200


async def test_names_are_those_of_the_viewers_namespaces_and_shares_are_everybodys() -> None:
    async with served() as console:
        console.api.access.listers.add((SA, "team"))
        token = console.token()
        async for picture in console.pictures(token):
            assert isinstance(picture, Picture)
            assert names(picture) == {("team", "held"), ("team", "large"), ("", "")}
            assert len(picture.pods) == len(picture.waiting) == 2
            hidden = next(pod for pod in picture.pods.values() if not pod.name)
            assert (hidden.shares[0].gpu, hidden.shares[0].memory_mib) == (0, 4_000)
            assert picture.gpus["n1/0"].promised_mib == 4_000
            uid = console.api.get("pods", "held", "ml")["metadata"]["uid"]
            assert uid not in picture.pods
            break
        status, own = await console.get("/api/explain?namespace=team&name=large", token)
        assert status == 200
        assert "ml/" not in own
        missing = await console.get("/api/explain?namespace=ml&name=none", token)
        there = await console.get("/api/explain?namespace=ml&name=large", token)
        assert (missing[0], there[0]) == (404, 404)
        assert missing[1].replace("none", "large") == there[1], "as if it were not there"


async def test_who_may_list_all_pods_sees_all_and_a_right_that_is_given_shows_more() -> None:
    async with served(ViewerOptions(fresh_s=0.02)) as console:
        access = console.api.access
        access.listers.add(("admin", ""))
        async for picture in console.pictures(console.token("admin")):
            assert isinstance(picture, Picture)
            assert names(picture) == {(n, p) for n in ("ml", "team") for p in ("held", "large")}
            break
        seen = 0
        async for picture in console.pictures(console.token()):
            assert isinstance(picture, Picture)
            if not seen:
                assert names(picture) == {("", "")}
                access.listers.add((SA, "ml"))
            elif ("ml", "held") in names(picture):
                assert ("team", "held") not in names(picture)
                access.listers.clear()
                async for later in console.pictures(console.token()):
                    assert isinstance(later, Picture)
                    if names(later) == {("", "")}:
                        return
            seen += 1


async def test_a_token_that_expires_ends_the_stream_and_says_so() -> None:
    async with served(ViewerOptions(fresh_s=0.02)) as console:
        token = console.token()
        shown: list[Picture | str] = []
        async for picture in console.pictures(token):
            shown.append(picture)
            console.api.access.ended.add(token)
        assert isinstance(shown[-1], str)
        assert "may have expired" in shown[-1]


async def test_an_api_server_that_does_not_say_shows_nobody_more() -> None:
    async with served(ViewerOptions(fresh_s=0.02)) as console:
        token = console.token()
        console.api.access.listers.add((SA, ""))
        assert (await console.get("/api/about", token))[0] == 200
        shown = []
        async for picture in console.pictures(token):
            if not shown:
                console.api.fault("status", path="reviews", method="POST", times=9_999, code=500)
            shown.append(picture)
        assert isinstance(shown[-1], Picture), "the page says that the connection is lost"
        assert (await console.get("/api/about", token))[0] == 503


async def test_health_is_what_weft_status_and_doctor_find_for_those_who_may_list_all_pods() -> None:
    async with served() as console:
        console.api.access.listers |= {("admin", ""), (SA, "team")}
        admin, one = console.token("admin"), console.token()
        assert json.loads((await console.get("/api/about", admin))[1])["health"] is True
        assert json.loads((await console.get("/api/about", one))[1])["health"] is False
        status, said = await console.get("/api/health", one)
        assert status == 403
        assert "held" not in said
        page = json.loads((await console.get("/api/health", admin))[1])
        report = await status_of(console.client, wish_of(Configuration()))
        assert page["head"] == head_lines(report)
        read = await read_cluster(console.client, how_to_read(Configuration()))
        doctors = await cluster_checks(console.client, read, wish_of(Configuration()).names)
        both = {*report.findings, *doctors}
        assert {"agents' drivers", "admission"} <= {finding.check for finding in both}
        assert sorted(page["findings"]) == sorted([*map(list, both)])
        levels = [finding[0] for finding in page["findings"]]
        assert levels == sorted(levels, key=("wrong", "advice", "good").index)
        assert {group["state"] for group in page["pods"]} == {group.state for group in report.pods}
        lists = dict(console.api.requests)
        await console.get("/api/health", admin)
        assert dict(console.api.requests) == lists, "it is read anew after 30 s"


class ShownToken:
    """A request with a token."""

    remote = "10.0.0.1"

    def __init__(self, token: str) -> None:
        self.headers = {"Authorization": f"Bearer {token}"}


async def test_answers_hold_for_a_minute_and_only_new_namespaces_are_asked_about() -> None:
    clock = VirtualClock()
    async with FakeApiServer() as api, client_of(api, clock) as client:
        viewers, request = Viewers(client), ShownToken(api.access.token(SA, AUDIENCE))
        api.access.listers.add((SA, "b"))
        asked = reviews_of(api)

        async def rights(*namespaces: str) -> object:
            return await viewers.rights(request, lambda: namespaces)  # type: ignore[arg-type]

        for _ in range(3):
            assert await rights("a", "b") == (False, frozenset({"b"}))
        first = ["tokenreviews", *["subjectaccessreviews"] * 3]
        assert asked == first, "about the token, all namespaces, and each of two"
        assert await rights("a", "b", "c") == (False, frozenset({"b"}))
        assert asked == [*first, "subjectaccessreviews"]
        api.access.listers.clear()
        clock.advance(61)
        assert await rights("b") == (False, frozenset())

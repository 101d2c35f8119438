"""A ConfigMap of Weft's own: read whole, written by keys, never over what somebody else wrote."""

import msgspec
import pytest
from kube_world import world

from fakes.api_server import FakeApiServer
from weft.kube.client import ApiClient
from weft.kube.configmap import OwnConfigMap
from weft.kube.errors import ApiError, ConflictError, LostError


def kept(client: ApiClient) -> OwnConfigMap:
    return OwnConfigMap(client, "kube-system", "notes")


def data(server: FakeApiServer) -> dict[str, str]:
    found: dict[str, str] = server.get("configmaps", "notes", "kube-system").get("data", {})
    return found


def add(server: FakeApiServer, **data: str) -> None:
    meta = {"name": "notes", "namespace": "kube-system"}
    server.add("configmaps", {"metadata": meta, "data": data})


async def test_it_is_made_where_there_is_none_and_changed_where_there_is() -> None:
    async with world() as (server, client):
        one = kept(client)
        assert await one.read() == {}
        assert await one.write({"a": "1", "b": "2", "c": None}) == {"a": "1", "b": "2"}
        assert await one.write({"a": None, "c": "3"}) == {"b": "2", "c": "3"}
        assert data(server) == {"b": "2", "c": "3"}
        assert await kept(client).read() == {"b": "2", "c": "3"}


async def test_keys_that_are_not_written_stay() -> None:
    async with world() as (server, client):
        add(server, foreign="x")
        one = kept(client)
        await one.read()
        await one.write({"a": "1"})
        assert data(server) == {"foreign": "x", "a": "1"}


async def test_what_another_wrote_meanwhile_is_a_conflict() -> None:
    async with world() as (server, client):
        one, other = kept(client), kept(client)
        await one.read()
        await other.write({"a": "other"})
        with pytest.raises(ConflictError):  # there was none when it was read
            await one.write({"a": "one"})
        await one.read()
        await other.write({"b": "other"})
        with pytest.raises(ConflictError):
            await one.write({"a": "one"})
        assert data(server) == {"a": "other", "b": "other"}
        await one.read()
        server.remove("configmaps", "notes", "kube-system")
        with pytest.raises(ConflictError):
            await one.write({"a": "one"})


async def test_an_answer_that_was_lost_is_told_and_not_asked_for_again() -> None:
    async with world() as (server, client):
        add(server)
        one = kept(client)
        await one.read()
        server.fault("lose-answer", path="configmaps", method="PATCH")
        with pytest.raises(LostError):
            await one.write({"a": "1"})
        assert server.requests["PATCH configmaps"] == 1
        with pytest.raises(ConflictError):  # it was written
            await one.write({"a": "2"})
        assert await one.read() == {"a": "1"}


async def test_what_is_no_config_map_is_an_error_and_so_is_a_refusal() -> None:
    async with world() as (server, client):
        meta = {"name": "notes", "namespace": "kube-system"}
        server.add("configmaps", {"metadata": meta, "data": {"a": 1}})
        with pytest.raises(msgspec.DecodeError):
            await kept(client).read()
        server.fault("status", path="configmaps", code=403)
        with pytest.raises(ApiError):
            await kept(client).read()

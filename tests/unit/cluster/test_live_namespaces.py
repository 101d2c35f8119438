"""A term's namespaceSelector selects namespaces by their labels, as they are now."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_world import World, living, node, pod, refusals, until

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cli.snapshot_files import open_snapshot
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import write
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.state.namespaces import NamespaceView
from weft.core.policies.fgd import Fgd
from weft.kube.clock import SystemClock
from weft.kube.codec import MetaOnly
from weft.kube.watch import Added, Deleted, Modified
from weft.model import Requirement
from weft.model.manifest import ObjectMeta

Json = dict[str, Any]
HOST = "kubernetes.io/hostname"
TEAM_A = (Requirement("team", "In", ("a",)),)


def namespace(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def meta(name: str, **labels: str) -> MetaOnly:
    return MetaOnly(ObjectMeta(name=name, labels=labels))


def term(team: str = "a", **more: Any) -> Json:
    selector = {"matchLabels": {"team": team}}
    return {"topologyKey": HOST, "labelSelector": {}, "namespaceSelector": selector, **more}


def wants(name: str, kind: str, *terms: Json, **spec: Any) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}
    return pod(name, 1_000, affinity={kind: required}, **spec)


def bound(name: str, inside: str, **spec: Any) -> Json:
    found = pod(name, 1_000, nodeName="n", **spec)
    found["metadata"]["namespace"] = inside
    return found


@asynccontextmanager
async def world(*denied: tuple[str, str]) -> AsyncIterator[World]:
    async with FakeApiServer() as server, client_of(server) as client:
        server.access.denied |= set(denied)
        labelled = node("n")
        labelled["metadata"]["labels"] = {HOST: "n"}
        server.add("nodes", labelled)
        made = World(server, client, Fgd())
        made.server.add("namespaces", namespace("d"))
        made.server.add("namespaces", namespace("ml"))
        async with living(made):
            yield made


def node_of(made: World, name: str) -> str:
    found: str = made.server.get("pods", name, "d")["spec"].get("nodeName", "")
    return found


async def test_a_pod_is_near_to_pods_of_namespaces_whose_labels_are_selected() -> None:
    async with world() as made:
        refused = refusals(made)
        made.server.add("pods", bound("web", "ml"))
        made.server.add("pods", wants("near", "podAffinity", term()))
        await until(lambda: "near" in refused)
        made.server.update("namespaces", "ml", {"metadata": {"labels": {"team": "a"}}})
        await until(lambda: node_of(made, "near") == "n")


async def test_a_pod_stays_away_until_its_namespaces_labels_are_others() -> None:
    async with world() as made:
        refused = refusals(made)
        made.server.add("pods", bound("web", "ml"))
        made.server.update("namespaces", "ml", {"metadata": {"labels": {"team": "a"}}})
        await until(lambda: made.live.pods.namespaces.selected(TEAM_A) == ("ml",))
        made.server.add("pods", wants("away", "podAntiAffinity", term()))
        await until(lambda: "away" in refused)
        made.server.update("namespaces", "ml", {"metadata": {"labels": {"team": "b"}}})
        await until(lambda: node_of(made, "away") == "n")


async def test_whom_a_bound_pod_keeps_away_goes_by_the_namespaces_labels() -> None:
    async with world() as made:
        refused = refusals(made)
        keeps = wants("keeps", "podAntiAffinity", term(), nodeName="n")
        keeps["metadata"]["namespace"] = "ml"
        made.server.add("pods", keeps)
        made.server.add("pods", pod("first", 1_000))
        await until(lambda: node_of(made, "first") == "n")  # not team a's
        made.server.update("namespaces", "d", {"metadata": {"labels": {"team": "a"}}})
        await until(lambda: made.live.pods.namespaces.selected(TEAM_A) == ("d",))
        made.server.add("pods", pod("late", 1_000))
        await until(lambda: "late" in refused)
        made.server.update("namespaces", "d", {"metadata": {"labels": {"team": None}}})
        await until(lambda: node_of(made, "late") == "n")


async def test_named_namespaces_are_selected_beside_those_by_labels() -> None:
    async with world() as made:
        made.server.add("pods", bound("web", "ml"))
        made.server.add("pods", wants("near", "podAffinity", term(namespaces=["ml"])))
        await until(lambda: node_of(made, "near") == "n")


async def test_a_namespace_moves_more_pods_than_one_turn_tells_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("weft.cluster.control.live_cluster._MOVED_PODS", 2)
    async with world() as made:
        refused = refusals(made)
        made.server.add("pods", bound("web", "ml"))
        names = [f"near-{number}" for number in range(7)]
        for name in names:
            made.server.add("pods", wants(name, "podAffinity", term()))
        await until(lambda: set(names) <= set(refused))
        made.server.update("namespaces", "ml", {"metadata": {"labels": {"team": "a"}}})
        await until(lambda: all(node_of(made, name) for name in names))


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_who_may_not_read_namespaces_lets_such_pods_wait(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with world((verb, "namespaces")) as made:
            refused = refusals(made)
            keeps = wants("keeps", "podAntiAffinity", term("b"), nodeName="n")
            made.server.add("pods", keeps)
            made.server.add("pods", wants("near", "podAffinity", term()))
            made.server.add("pods", pod("plain", 1_000))
            await until(lambda: {"near", "plain"} <= set(refused))  # one may be of team b's
            near = made.live.pods.pods["d", "near"]
            why = made.live.parse(near).shape.constraints.unsupported
    assert "Weft has no permission to list and watch namespaces" in why
    assert [
        line for line in caplog.messages if "pods with a namespaceSelector stay pending" in line
    ]


async def taken(unread: str = "") -> ClusterSnapshot:
    async with FakeApiServer() as server, client_of(server) as client:
        if unread:
            server.fault("status", path=unread, code=403)
        labelled = node("n")
        labelled["metadata"]["labels"] = {HOST: "n"}
        server.add("nodes", labelled)
        server.add("namespaces", namespace("ml", team="a"))
        server.add("pods", bound("web", "ml"))
        server.add("pods", wants("near", "podAffinity", term()))
        found = await captured(client, Configuration())
        return snapshot_of(found, Configuration(), SystemClock().wall())


def fitting(snapshot: ClusterSnapshot, folder: Path) -> tuple[int, str]:
    """How many nodes the pod that waits fits, and why none, if nobody can say."""
    write(snapshot, folder / "s.json")
    state = open_snapshot(folder / "s.json")
    (asked,), _ = state.pending()
    known = state.engine.assess(next(iter(state.engine.profiles.values())), asked)
    return int(known.counts[0]), asked.shape.constraints.unsupported


@pytest.mark.parametrize("rename", [lambda s: s, anonymous], ids=["named", "anonymous"])
async def test_a_snapshot_knows_which_namespaces_are_selected(rename: Any, tmp_path: Path) -> None:
    assert await asyncio.to_thread(fitting, rename(await taken()), tmp_path) == (1, "")


async def test_a_snapshot_without_namespaces_says_that_they_are_not_known(tmp_path: Path) -> None:
    made = await taken("namespaces")
    assert "Namespace" in made.unread
    fits, why = await asyncio.to_thread(fitting, made, tmp_path)
    assert (fits, "namespaceSelector selects by labels" in why) == (0, True)


def test_who_selects_a_namespace_that_came_changed_or_went_moved() -> None:
    view = NamespaceView()
    view.use("x", [TEAM_A])
    assert view.selected(TEAM_A) is None
    view.take(Added(meta("one", team="a")))
    view.listed()
    assert view.take_moved(9) == ["x"]
    assert view.selected(TEAM_A) == ("one",)
    view.take(Added(meta("two", team="b")))
    view.take(Modified(meta("one", team="a", more=""), meta("one", team="a")))
    assert not view.has_moved
    view.take(Modified(meta("two", team="a"), meta("two", team="b")))
    assert (view.take_moved(9), view.selected(TEAM_A)) == (["x"], ("one", "two"))
    view.take(Deleted(meta("one", team="a")))
    assert (view.take_moved(9), view.selected(TEAM_A)) == (["x"], ("two",))
    view.take(Deleted(meta("two", team="a")))
    view.release("x")
    assert not view.has_moved, "nobody is left to tell"
    assert view.selected(TEAM_A) == ()

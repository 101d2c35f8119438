"""Pods' preferences, as the API says them: read, told to the engine, kept in snapshots."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_world import World, living, node, pod, until
from msgspec import UNSET

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.cli.snapshot_files import open_snapshot
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import captured, snapshot_of
from weft.cluster.snapshot.file import encode, write
from weft.cluster.state.nodes import ImageNews
from weft.cluster.state.pod_reader import image_name, marks_of, preferences_of, read, read_asked
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import ImagesSeen
from weft.core.policies.packing import FirstFit
from weft.dialects.dialect import DialectSettings
from weft.kube.clock import SystemClock
from weft.kube.pods import Pod
from weft.model import PodSelector, PodTerm, Preferences, Requirement, SpreadRule, WeightedTerm
from weft.model.manifest import NodeImage

Json = dict[str, Any]
GIB = 1 << 30
WEB = Requirement("app", "In", ("web",))
NEAR = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def made(owner: Json | None = None, /, spec: Json | None = None, **labels: str) -> Pod:
    meta: Json = {"name": "a", "namespace": "d", "uid": "u", "labels": labels}
    if owner is not None:
        meta["ownerReferences"] = [{"name": "o", "controller": True, **owner}]
    return msgspec.convert({"metadata": meta, "spec": spec or {}}, Pod)


def test_preferred_pods_are_near_or_far_and_count_for_those_who_come_later() -> None:
    affinity = {
        "podAffinity": {
            PREFERRED: [{"weight": 7, "podAffinityTerm": NEAR}],
            "requiredDuringSchedulingIgnoredDuringExecution": [NEAR],
        },
        "podAntiAffinity": {PREFERRED: [{"weight": 9, "podAffinityTerm": NEAR}]},
    }
    found, term = made(spec={"affinity": affinity}), PodTerm("zone", PodSelector(("d",), (WEB,)))
    wishes = (WeightedTerm(7, term), WeightedTerm(-9, term))
    assert preferences_of(found) == Preferences(pods=wishes)
    assert marks_of(found).draws == (*wishes, WeightedTerm(1, term))
    assert marks_of(made()).draws is UNSET


def test_a_pods_own_spread_is_instead_of_the_defaults() -> None:
    soft = {"maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway", **NEAR}
    hard = {**soft, "whenUnsatisfiable": "DoNotSchedule"}
    owner = {"kind": "ReplicaSet", "apiVersion": "apps/v1"}
    own = SpreadRule("zone", 2, PodSelector(("d",), (WEB,)))
    found = made(owner, {"topologySpreadConstraints": [soft, hard]}, app="x")
    assert preferences_of(found) == Preferences(spread=(own,))
    assert preferences_of(made(owner, {"topologySpreadConstraints": [hard]}, app="x")) is UNSET


@pytest.mark.parametrize(
    ("owner", "labels", "selected"),
    [
        ({"kind": "ReplicaSet", "apiVersion": "apps/v1"}, {"app": "web"}, {"app": "web"}),
        (
            {"kind": "ReplicaSet", "apiVersion": "apps/v1"},
            {"app": "web", "pod-template-hash": "h"},
            {"pod-template-hash": "h"},
        ),
        (
            {"kind": "StatefulSet", "apiVersion": "apps/v1"},
            {"app": "web", "apps.kubernetes.io/pod-index": "0", "controller-revision-hash": "r"},
            {"app": "web"},
        ),
        ({"kind": "ReplicationController", "apiVersion": "v1"}, {"a": "b"}, {"a": "b"}),
        ({"kind": "StatefulSet", "apiVersion": "apps.kruise.io/v1"}, {"app": "web"}, None),
        ({"kind": "Job", "apiVersion": "batch/v1"}, {"app": "web"}, None),
        ({"kind": "Job"}, {"app": "web"}, None),
        ({"kind": "ReplicaSet", "apiVersion": "apps/v1"}, {}, None),
        (None, {"app": "web"}, None),
    ],
)
def test_who_says_nothing_of_spread_is_spread_with_those_of_its_owner(
    owner: Json | None, labels: dict[str, str], selected: dict[str, str] | None
) -> None:
    found = preferences_of(made(owner, **labels))
    if selected is None:
        assert found is UNSET
        return
    alike = tuple(Requirement(key, "In", (value,)) for key, value in selected.items())
    pods = PodSelector(("d",), alike)
    rules = (
        SpreadRule("kubernetes.io/hostname", 3, pods),
        SpreadRule("topology.kubernetes.io/zone", 5, pods),
    )
    assert found == Preferences(spread=rules, by_default=True)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("web", "web:latest"),
        ("web:1", "web:1"),
        ("host:5000/web", "host:5000/web:latest"),
        ("host:5000/web:1", "host:5000/web:1"),
        ("web@sha256:ab", "web@sha256:ab"),
    ],
)
def test_an_image_without_a_tag_is_the_latest(name: str, meant: str) -> None:
    assert image_name(name) == meant


def test_images_are_those_of_all_containers_and_volumes() -> None:
    spec = {
        "initContainers": [{"name": "i", "image": "a:1"}],
        "containers": [{"name": "c", "image": "b"}, {"name": "d", "image": "a:1"}],
        "volumes": [{"name": "v", "image": {"reference": "model:2"}}],
    }
    images = ("a:1", "b:latest", "a:1", "model:2")
    assert preferences_of(made(spec=spec)) == Preferences(images=images, containers=3)


def test_kube_scheduler_judges_the_preferences_of_pods_that_it_asks_about() -> None:
    found = made(spec={"containers": [{"name": "c", "image": "b"}]})
    assert read(found, DialectSettings(), VolumeView()).preferences is not UNSET
    assert read_asked(found, DialectSettings()).preferences is UNSET


def test_a_nodes_images_are_told_once_and_again_when_they_are_others() -> None:
    news = ImageNews()
    one, two = NodeImage(["a:1", "a@sha256:1"], 5), NodeImage(["b:1"], 7)
    news.take("m", [one])
    news.take("n", [two, one])
    assert news.moved
    told = ImagesSeen((("a:1", 5), ("a@sha256:1", 5), ("b:1", 7)), {"m": (0, 1), "n": (2, 0, 1)})
    assert news.news() == told
    news.take("n", [two, one])
    assert not news.moved
    assert news.news() is None
    news.take("n", [])
    news.take("n", [two, one])  # back again, before anybody looked
    assert news.news() is None
    news.take("m", None)
    assert news.news() == ImagesSeen((), {"m": ()})
    assert news.all() == ImagesSeen((("b:1", 7), ("a:1", 5), ("a@sha256:1", 5)), {"n": (0, 1, 2)})


def with_image(name: str, image: str) -> Json:
    found = node(name)
    found["status"]["images"] = [{"names": [image], "sizeBytes": 30 * GIB}]
    return found


def wanting(name: str, image: str) -> Json:
    found = pod(name, 1_000)
    found["spec"]["containers"][0]["image"] = image
    return found


async def test_a_pod_goes_where_its_image_is_and_a_snapshot_says_the_same(tmp_path: Path) -> None:
    """Node n comes first, and is alike but for its image."""
    async with FakeApiServer() as server, client_of(server) as client:
        server.add("nodes", with_image("n", "other:1"))
        server.add("nodes", with_image("o", "private.example/web:latest"))
        world = World(server, client, FirstFit())
        async with living(world):
            server.add("pods", wanting("a", "private.example/web"))
            await until(lambda: server.get("pods", "a", "d")["spec"].get("nodeName"))
            assert server.get("pods", "a", "d")["spec"]["nodeName"] == "o"
            server.add("nodes", with_image("p", "late:1"))
            await until(lambda: world.live.engine.images.have_any(["late:1"]))
            server.add("pods", wanting("b", "late:1"))
            await until(lambda: server.get("pods", "b", "d")["spec"].get("nodeName"))
            assert server.get("pods", "b", "d")["spec"]["nodeName"] == "p"
        server.add("pods", {**wanting("c", "other:1"), "status": {"phase": "Pending"}})
        objects = await captured(client, Configuration())
        shot = snapshot_of(objects, Configuration(), SystemClock().wall())
    for kept in (shot, anonymous(shot)):
        assert b"private" not in encode(kept)
        assert b"other:1" not in encode(kept)
        write(kept, tmp_path / "s.json")
        await asyncio.to_thread(c_is_preferred_somewhere, tmp_path / "s.json")


def c_is_preferred_somewhere(path: Path) -> None:
    state = open_snapshot(path)
    (asked,), bad = state.pending()
    assert not bad
    known = state.engine.assess(state.engine.profile_of(asked), asked)
    assert known.wishes is not None
    assert [type(event) for event in state.events()].count(ImagesSeen) == 1

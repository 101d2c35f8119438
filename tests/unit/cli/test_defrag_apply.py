"""`weft defrag apply`: one eviction after the other; it stops where the cluster goes its own way.

The test plays the controllers and the scheduler: what an evicted pod's controller makes, and where
that goes, is settled when the pods are listed next.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Said, Weft
from dialect_pods import ASKING, node, pod
from inspected_cluster import served

from fakes.api_http import Request
from fakes.api_server import FakeApiServer
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY

STAYS = {"weft.dev/class": "latency-critical"}


def _half(server: FakeApiServer, name: str, where: str, gpu: int, **more: str) -> None:
    """A pod with half of a card, placed by Weft, of the controller `of-<first letter>`."""
    made = pod(name, ASKING["weft"] | {"limits": {"weft.dev/gpu-memory": "8000"}}, node=where)
    owner = {"kind": "ReplicaSet", "name": f"of-{name[0]}", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    uid = server.add("pods", made, "ml")["metadata"]["uid"]
    placement = {"pod": uid, "node": where, "shares": [[0, gpu, 8000, 0, ""]]}
    text = json.dumps(placement, separators=(",", ":"))
    marks = {PLACEMENT: text, PLACEMENT_COPY: text} | more
    server.update("pods", name, {"metadata": {"annotations": marks}}, "ml")


class World:
    """Nodes b and z of two cards; on each card is half a card's pod, on b pods that must stay.

    `goes_to` is the node of each pod that is made anew; `meanwhile` is called once each eviction
    is done and before the new pod comes, `ends` whether pods that are evicted end.
    """

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.goes_to: dict[str, list[str]] = {"x": ["b"], "y": ["b"]}
        self.meanwhile: Callable[[], object] = lambda: None
        self.evicted: list[str] = []
        self.ends = True
        for name in ("b", "z"):
            server.add("nodes", node(name, 2))
        for number in (0, 1):
            _half(server, f"s{number}", "b", number, **STAYS)
        for name, gpu in (("x", 0), ("y", 1)):
            _half(server, name, "z", gpu)
        server.on_request = self._plays

    def _plays(self, request: Request) -> None:
        if request.path.endswith("/eviction"):
            self.evicted.append(request.path.split("/")[-2])
        elif request.method == "GET" and request.path.endswith("/ml/pods"):
            for name in self.evicted:
                if (nodes := self.goes_to.pop(name, None)) is not None:
                    if self.ends:
                        self.server.remove("pods", name, "ml")
                    self.meanwhile()
                    for number, where in enumerate(nodes):
                        _half(self.server, f"{name}-{number}", where, len(self.goes_to))

    def pods(self) -> list[Any]:
        return self.server.store.all(self.server.kind("pods"), "ml")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with served(tmp_path) as (server, kubeconfig):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield World(server)


def _apply(weft: Weft, *options: object) -> tuple[Said, Any]:
    said = weft("defrag", "apply", "--gpus", 2, "-o", "json", "--wait-s", 1, *options)
    return said, json.loads(said.out)


def test_without_yes_it_says_what_it_would_do_and_does_nothing(weft: Weft, world: World) -> None:
    said, found = _apply(weft)
    assert (said.code, found["done"], found["moved"]) == (0, False, [])
    assert [move["to_node"] for move in found["plan"]["moves"]] == ["b", "b"]
    assert world.evicted == []
    assert "With --yes these pods are evicted" in weft("defrag", "apply", "--gpus", 2).out


def test_pods_are_moved_one_after_the_other(weft: Weft, world: World) -> None:
    said, found = _apply(weft, "--yes")
    assert (said.code, found["done"], found["stopped"]) == (0, True, ""), said.err
    assert [(one["pod"], one["to_node"]) for one in found["moved"]] == [
        (f"ml/{name}", "b") for name in world.evicted
    ]
    assert sorted(world.evicted) == ["x", "y"]
    again, found = _apply(weft, "--yes")
    assert (again.code, found["plan"]["node"], found["plan"]["moves"]) == (0, "z", [])


def test_it_stops_where_the_new_pod_goes_elsewhere(weft: Weft, world: World) -> None:
    world.goes_to = {"x": ["z"], "y": ["z"]}
    said, found = _apply(weft, "--yes")
    (first,) = world.evicted
    assert (said.code, len(found["moved"])) == (1, 1)
    assert found["stopped"] == f"ml/{first}-0 went to z, and not to b as planned"


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([], "it was evicted, but not recreated within 1 s"),
        ([""], "it ended, and ml/{}-0 replaced it, but got no node within 1 s"),
        (["b", "b"], "2 pods were created by its controller; it is unclear which one replaces it"),
    ],
)
def test_it_stops_where_nobody_can_tell_that_the_pod_was_moved(
    weft: Weft, world: World, nodes: list[str], why: str
) -> None:
    world.goes_to = {"x": nodes, "y": nodes}
    said, found = _apply(weft, "--yes")
    (first,) = world.evicted
    assert (said.code, found["moved"]) == (1, [])
    assert found["stopped"] == f"ml/{first}: {why.format(first)}"


def test_it_stops_where_the_pod_does_not_go(weft: Weft, world: World) -> None:
    world.ends = False
    _, found = _apply(weft, "--yes")
    assert found["stopped"].endswith("it was evicted but still exists after 1 s")


def test_it_stops_where_the_rest_of_the_plan_does_not_hold_any_more(
    weft: Weft, world: World
) -> None:
    world.meanwhile = lambda: _half(world.server, "new", "b", 0, **STAYS)
    said, found = _apply(weft, "--yes")
    assert (said.code, len(found["moved"]), len(world.evicted)) == (1, 1, 1)
    assert found["stopped"].startswith("the cluster changed: ")


def test_it_stops_where_a_disruption_budget_refuses(weft: Weft, world: World) -> None:
    world.server.fault("status", path="/eviction", code=429)
    said, found = _apply(weft, "--yes")
    assert (said.code, found["moved"], len(world.pods())) == (1, [], 4)
    assert ": a PodDisruptionBudget does not allow its eviction now: " in found["stopped"]


def _lease(server: FakeApiServer, holder: str) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 1, "leaseTransitions": 3}
    server.add("leases", {"metadata": {"name": "weft-defrag"}, "spec": spec}, "kube-system")


def test_it_moves_nothing_while_another_one_does(weft: Weft, world: World) -> None:
    """The other one renews its lease whenever somebody looks."""
    _lease(world.server, "somebody")

    def renews(request: Request) -> None:
        if request.method == "GET" and request.path.endswith("/leases/weft-defrag"):
            stamp = {"metadata": {"annotations": {"seen": str(next(looks))}}}
            world.server.update("leases", "weft-defrag", stamp, "kube-system")

    looks = itertools.count()
    world.server.on_request = renews
    said, found = _apply(weft, "--yes")
    assert (said.code, found["moved"], world.evicted) == (1, [], [])
    assert found["stopped"].startswith("somebody moves pods now (lease kube-system/weft-defrag)")


def test_the_lease_of_a_dead_one_is_taken_over_and_given_back(weft: Weft, world: World) -> None:
    _lease(world.server, "dead")
    said, found = _apply(weft, "--yes")
    assert (said.code, found["done"]) == (0, True), found["stopped"]
    spec = world.server.get("leases", "weft-defrag", "kube-system")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("", 4)


def test_without_the_right_to_leases_nothing_is_moved(weft: Weft, world: World) -> None:
    world.server.fault("status", path="/leases", code=403)
    said = weft("defrag", "apply", "--gpus", 2, "--yes")
    assert said.code == 1
    assert "leases" in said.err
    assert world.evicted == []

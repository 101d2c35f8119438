"""A pod's spec as constraints: what is honoured, and what is a reason to wait."""

from typing import Any

import msgspec
import pytest
from live_world import bind, node, pod, refusals, until, world

from weft.cluster.state.nodes import NodeView
from weft.cluster.state.pod_reader import WAY_OUT, constraints_of, keeps_away
from weft.cluster.state.volumes import VolumeView
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted
from weft.model import Constraints, HostPort, Preference, Requirement, Term, Toleration

EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n"]}
ZONE, NAME = Requirement("zone", "In", ("a",)), Requirement("metadata.name", "In", ("n",))
NEAR = {"topologyKey": "zone", "labelSelector": {}}


def read(known: VolumeView | None = None, /, **spec: Any) -> Constraints:
    whole = {"metadata": {"name": "a", "namespace": "d"}, "spec": spec}
    return constraints_of(msgspec.convert(whole, Pod), known or VolumeView())


def test_a_pod_without_wishes_may_run_anywhere() -> None:
    assert read() == Constraints()


def test_selector_affinity_and_preferences() -> None:
    required = {
        "nodeSelectorTerms": [{"matchExpressions": [EXPRESSION], "matchFields": [FIELD]}, {}]
    }
    preferred = [{"weight": 7, "preference": {"matchExpressions": [EXPRESSION]}}]
    node_affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": required,
        "preferredDuringSchedulingIgnoredDuringExecution": preferred,
    }
    found = read(nodeSelector={"b": "2", "a": "1"}, affinity={"nodeAffinity": node_affinity})
    assert found.selector == (("a", "1"), ("b", "2"))
    assert found.affinity == (Term((ZONE,), (NAME,)), Term())
    assert found.preferences == (Preference(7, Term((ZONE,))),)
    assert found.unsupported == ""


def test_no_terms_are_not_the_same_as_no_affinity() -> None:
    """Kubernetes: a node selector without terms matches no node."""
    empty: Any = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    assert read(affinity={"nodeAffinity": empty}).affinity == ()
    assert read(affinity={"nodeAffinity": {}}).affinity is None


def test_tolerations_and_ports() -> None:
    found = read(
        tolerations=[{"key": "gpu", "value": "yes"}, {"operator": "Exists", "effect": "NoExecute"}],
        initContainers=[
            {"name": "i", "ports": [{"hostPort": 1}]},
            {"name": "s", "ports": [{"hostPort": 2}], "restartPolicy": "Always"},
        ],
        containers=[
            {"name": "c", "ports": [{"containerPort": 80}, {"hostPort": 3, "protocol": "UDP"}]},
            {"name": "d", "ports": [{"hostPort": 4, "hostIP": "10.0.0.1"}]},
        ],
    )
    assert found.tolerations == (
        Toleration("gpu", "Equal", "yes"),
        Toleration("", "Exists", "", "NoExecute"),
    )
    # An init container ends before the others start: kube-scheduler leaves its ports out as well.
    assert found.ports == (
        HostPort(2, "TCP"),
        HostPort(3, "UDP"),
        HostPort(4, "TCP", "10.0.0.1"),
    )


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        (
            "spec.affinity.podAffinity",
            {
                "affinity": {
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}
                }
            },
        ),
        (
            "spec.affinity.podAntiAffinity",
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}
                }
            },
        ),
        (
            "spec.topologySpreadConstraints",
            {
                "topologySpreadConstraints": [
                    {"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
                ]
            },
        ),
        ("spec.resourceClaims", {"resourceClaims": [{"name": "gpu"}]}),
        ("spec.schedulingGroup", {"schedulingGroup": {"podGroupName": "gang"}}),
        ("spec.volumes[v].iscsi", {"volumes": [{"name": "v", "iscsi": {"iqn": "q"}}]}),
        (
            "spec.volumes[v].gcePersistentDisk",
            {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "p"}}]},
        ),
        (
            "there is no PersistentVolumeClaim data",
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        ),
        ("there is no PersistentVolumeClaim a-v", {"volumes": [{"name": "v", "ephemeral": {}}]}),
    ],
)
def test_what_is_not_honoured_is_a_reason_that_names_the_way_out(
    field: str, spec: dict[str, Any]
) -> None:
    found = read(**spec).unsupported
    assert found.startswith(field)
    assert found.endswith(WAY_OUT)


def test_what_is_only_a_wish_keeps_nobody_waiting() -> None:
    wish = {"weight": 1, "podAffinityTerm": NEAR}
    found = read(
        affinity={
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        },
        topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}],
        volumes=[{"name": "v", "emptyDir": {}}],
    )
    assert found.unsupported == ""


def test_only_required_anti_affinity_keeps_others_away() -> None:
    def away(kind: str, *terms: Any) -> frozenset[str]:
        whole = {"spec": {"affinity": {"podAntiAffinity": {kind: terms}}}}
        return keeps_away(msgspec.convert(whole, Pod).spec)

    other = {**NEAR, "topologyKey": "rack"}
    found = away("requiredDuringSchedulingIgnoredDuringExecution", NEAR, other, NEAR)
    assert found == {"zone", "rack"}
    assert not away("preferredDuringSchedulingIgnoredDuringExecution", {"podAffinityTerm": NEAR})


# --- pods that keep others away ---


def zoned(name: str, **labels: str) -> KubeNode:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, KubeNode)


def kept(view: NodeView) -> set[str]:
    view.changed()
    return {name for name, node in view.nodes.items() if node.keeps_away}


def test_a_pod_keeps_others_off_its_whole_topology_domain() -> None:
    view = NodeView()
    for one in (zoned("a", zone="x"), zoned("b", zone="x"), zoned("c", zone="y"), zoned("d")):
        view.take_node(Added(one))
    assert kept(view) == set()
    view.keep_away("a", "uid-1", {"zone"})
    assert view.dirty
    assert kept(view) == {"a", "b"}
    view.keep_away("b", "uid-2", {"zone"})
    view.keep_away("a", "uid-1", ())
    assert kept(view) == {"a", "b"}, "the other pod of that zone still does"
    view.take_node(Added(zoned("e", zone="x")))
    assert kept(view) == {"a", "b", "e"}, "a node that comes later is in the domain as well"
    view.keep_away("b", "uid-2", ())
    assert kept(view) == set()


def test_a_domain_follows_the_labels() -> None:
    view = NodeView()
    view.keep_away("a", "uid-1", {"zone"})
    for one in (zoned("a", zone="x"), zoned("b", zone="x"), zoned("c", zone="y")):
        view.take_node(Added(one))
    assert kept(view) == {"a", "b"}
    view.take_node(Added(zoned("a", zone="y")))
    assert kept(view) == {"a", "c"}
    view.take_node(Added(zoned("a")))
    assert kept(view) == set(), "without the label the term says nothing, as in kube-scheduler"
    view.take_node(Added(zoned("a", zone="x")))
    assert kept(view) == {"a", "b"}
    view.take_node(Deleted(zoned("a", zone="x")))
    assert kept(view) == set()


def at(name: str, zone: str) -> Any:
    one = node(name)
    one["metadata"]["labels"] = {"zone": zone}
    return one


async def test_a_pod_seen_bound_keeps_others_off_its_zone() -> None:
    async with world(at("a1", "a"), at("a2", "a"), at("b", "b")) as made:
        server, refused = made.server, refusals(made)
        required = [{"topologyKey": "zone", "labelSelector": {}}]
        anti = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        server.add("pods", pod("alone", 1, "other", affinity={"podAntiAffinity": anti}))
        bind(server, "alone", None, "2020-01-01T00:00:00Z", node="a1")
        await until(lambda: made.live.engine.ledger.table.nodes[1].keeps_away)
        for index in range(3):
            server.add("pods", pod(f"p{index}", 10_000))
        await until(lambda: "p2" in refused)
        placed = [
            server.get("pods", f"p{index}", "d")["spec"].get("nodeName") for index in range(3)
        ]
        assert set(placed) <= {"b", None}

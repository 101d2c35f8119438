"""A pod's spec as constraints: what is honoured, and what is a reason to wait."""

from typing import Any

import msgspec
import pytest
from live_world import bind, node, pod, refusals, until, world

from weft.cluster.state.pod_reader import WAY_OUT, constraints_of, marks_of, preferences_of
from weft.cluster.state.volumes import VolumeView
from weft.kube.pods import Pod
from weft.model import (
    Constraints,
    HostPort,
    InterPodRules,
    PodSelector,
    PodTerm,
    Preference,
    Preferences,
    Requirement,
    SpreadRule,
    Term,
    Toleration,
)

EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n"]}
ZONE, NAME = Requirement("zone", "In", ("a",)), Requirement("metadata.name", "In", ("n",))
NEAR = {"topologyKey": "zone", "labelSelector": {}}
GREATER = {"key": "n", "operator": "Gt", "values": ["1"]}


def required(field: str, *terms: Any) -> dict[str, Any]:
    return {"affinity": {field: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


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
    spec = {"nodeSelector": {"b": "2", "a": "1"}, "affinity": {"nodeAffinity": node_affinity}}
    found = read(**spec)
    assert found.selector == (("a", "1"), ("b", "2"))
    assert found.affinity == (Term((ZONE,), (NAME,)), Term())
    whole = {"metadata": {"name": "a"}, "spec": spec}
    preferences = preferences_of(msgspec.convert(whole, Pod))
    assert preferences == Preferences(nodes=(Preference(7, Term((ZONE,))),))
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
            "spec.affinity.podAntiAffinity: 'Gt' is not an operator of label selectors; use In, "
            "NotIn",
            required("podAntiAffinity", {**NEAR, "labelSelector": {"matchExpressions": [GREATER]}}),
        ),
        (
            "spec.topologySpreadConstraints: 'Gt' is not an operator",
            {
                "topologySpreadConstraints": [
                    {
                        "topologyKey": "z",
                        "maxSkew": 1,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchExpressions": [GREATER]},
                    }
                ]
            },
        ),
        ("spec.resourceClaims", {"resourceClaims": [{"name": "gpu"}]}),
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


# --- rules about other pods ---


def rules(spec: dict[str, Any], **labels: str) -> InterPodRules:
    meta = {"name": "a", "namespace": "d", "labels": labels}
    found = constraints_of(msgspec.convert({"metadata": meta, "spec": spec}, Pod), VolumeView())
    assert found.unsupported == ""
    assert found.pods
    return found.pods


WEB = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}
TEAM_A = {"matchLabels": {"team": "a"}}
IS_WEB = (Requirement("app", "In", ("web",)), Requirement("x", "Exists"))


def test_required_affinity_to_pods() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": WEB,
        "matchLabelKeys": ["hash", "lacks"],
        "mismatchLabelKeys": ["tenant"],
    }
    found = rules(required("podAffinity", term), app="web", x="", hash="1", tenant="t")
    keys = (Requirement("hash", "In", ("1",)), Requirement("tenant", "NotIn", ("t",)))
    assert found.affinity == (PodTerm("zone", PodSelector(("d",), (*IS_WEB, *keys))),)
    assert not found.is_its_own, "its own tenant is excluded"
    assert rules(required("podAffinity", NEAR)).is_its_own, "an empty selector is of all pods"
    assert not rules(required("podAffinity", {"topologyKey": "zone"})).is_its_own


@pytest.mark.parametrize(
    ("said", "namespaces"),
    [
        ({}, ("d",)),
        ({"namespaces": ["z", "b"]}, ("b", "z")),
        ({"namespaceSelector": {}}, None),
        ({"namespaceSelector": {}, "namespaces": ["b"]}, None),
        ({"namespaceSelector": TEAM_A}, ("namespaces with team=a",)),
        ({"namespaceSelector": TEAM_A, "namespaces": ["b"]}, ("b", "namespaces with team=a")),
    ],
)
def test_namespaces_of_a_term(said: dict[str, Any], namespaces: tuple[str, ...] | None) -> None:
    (term,) = rules(required("podAntiAffinity", {**NEAR, **said})).anti_affinity
    assert term == PodTerm("zone", PodSelector(namespaces, ()))


def test_spread() -> None:
    plain = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
    full = {
        **plain,
        "labelSelector": WEB,
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["hash"],
    }
    wish = {**plain, "whenUnsatisfiable": "ScheduleAnyway"}
    found = rules({"topologySpreadConstraints": [plain, full, wish]}, app="web", x="", hash="1")
    of_hash = (*IS_WEB, Requirement("hash", "In", ("1",)))
    assert found.spread == (
        SpreadRule("zone", 2, PodSelector(("d",), None)),
        SpreadRule(
            "zone",
            2,
            PodSelector(("d",), of_hash),
            min_domains=3,
            honors_affinity=False,
            honors_taints=True,
            counts_itself=True,
        ),
    )


def test_only_required_anti_affinity_keeps_others_away() -> None:
    def away(kind: str, *terms: Any) -> tuple[PodTerm, ...]:
        whole = {"spec": {"affinity": {"podAntiAffinity": {kind: terms}}}}
        return marks_of(msgspec.convert(whole, Pod)).anti_affinity

    other = {**NEAR, "topologyKey": "rack"}
    found = away("requiredDuringSchedulingIgnoredDuringExecution", NEAR, other)
    assert [term.topology_key for term in found] == ["zone", "rack"]
    assert not away("preferredDuringSchedulingIgnoredDuringExecution", {"podAffinityTerm": NEAR})


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
        engine = made.live.engine
        await until(lambda: engine.existing.keeping_off("d", {}))
        for index in range(3):
            server.add("pods", pod(f"p{index}", 10_000))
        await until(lambda: "p2" in refused)
        placed = [
            server.get("pods", f"p{index}", "d")["spec"].get("nodeName") for index in range(3)
        ]
        assert set(placed) <= {"b", None}


def test_features_that_a_pod_needs_of_its_node() -> None:
    rules = {"restartPolicyRules": [{"action": "RestartAllContainers"}]}
    all_of_it = ("RestartAllContainersOnContainerExits",)
    assert read(containers=[{"name": "c"} | rules]).features == all_of_it
    assert read(initContainers=[{"name": "c"} | rules], containers=[]).features == all_of_it
    assert read(containers=[{"restartPolicyRules": [{"action": "Restart"}]}]) == Constraints()
    users = ("UserNamespacesHostNetworkSupport",)
    assert read(hostNetwork=True, hostUsers=False).features == users
    for spec in (
        {"hostNetwork": True},
        {"hostUsers": False},
        {"hostNetwork": True, "hostUsers": 1},
    ):
        assert read(**{k: bool(v) for k, v in spec.items()}) == Constraints()


async def test_a_pod_waits_for_a_node_that_declares_the_feature_it_needs() -> None:
    async with world(node("n")) as made:
        server, refused = made.server, refusals(made)
        asking = pod("p")
        rule = {"action": "RestartAllContainers"}
        asking["spec"]["containers"][0]["restartPolicyRules"] = [rule]
        server.add("pods", asking)
        await until(lambda: "p" in refused)
        declared = ["Other", "RestartAllContainersOnContainerExits"]
        server.update("nodes", "n", {"status": {"declaredFeatures": declared}})
        await until(lambda: server.get("pods", "p", "d")["spec"].get("nodeName") == "n")

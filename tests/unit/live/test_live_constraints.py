"""A pod's spec as constraints: what is honoured, and what is a reason to wait."""

from typing import Any

import msgspec
import pytest

from weft.kube.changes import Added, Deleted
from weft.kube.pods import Pod
from weft.kube.structs import PersistentVolume, PersistentVolumeClaim
from weft.live.constraints import WAY_OUT, constraints_of, keeps_away
from weft.live.volumes import VolumeView
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
    required = {"nodeSelectorTerms": [
        {"matchExpressions": [EXPRESSION], "matchFields": [FIELD]}, {}]}  # fmt: skip
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
        Toleration("gpu", "Equal", "yes"), Toleration("", "Exists", "", "NoExecute"),
    )  # fmt: skip
    # An init container ends before the others start: kube-scheduler leaves its ports out as well.
    assert found.ports == (
        HostPort(2, "TCP"), HostPort(3, "UDP"), HostPort(4, "TCP", "10.0.0.1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.affinity.podAffinity",
         {"affinity": {"podAffinity":
                       {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}}),
        ("spec.affinity.podAntiAffinity",
         {"affinity": {"podAntiAffinity":
                       {"requiredDuringSchedulingIgnoredDuringExecution": [NEAR]}}}),
        ("spec.topologySpreadConstraints",
         {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1,
                                         "whenUnsatisfiable": "DoNotSchedule"}]}),
        ("spec.resourceClaims", {"resourceClaims": [{"name": "gpu"}]}),
        ("spec.schedulingGroup", {"schedulingGroup": {"podGroupName": "gang"}}),
        ("there is no PersistentVolumeClaim data", {"volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
        ("there is no PersistentVolumeClaim a-v", {"volumes": [{"name": "v", "ephemeral": {}}]}),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_a_reason_that_names_the_way_out(
    field: str, spec: dict[str, Any]
) -> None:
    found = read(**spec).unsupported
    assert found.startswith(field)
    assert found.endswith(WAY_OUT)


def test_what_is_only_a_wish_keeps_nobody_waiting() -> None:
    wish = {"weight": 1, "podAffinityTerm": NEAR}
    found = read(
        affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]},
                  "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}},
        topologySpreadConstraints=[{"topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}],
        volumes=[{"name": "v", "emptyDir": {}}],
    )  # fmt: skip
    assert found.unsupported == ""


def test_only_required_anti_affinity_keeps_others_away() -> None:
    def away(kind: str, term: Any) -> bool:
        whole = {"spec": {"affinity": {"podAntiAffinity": {kind: [term]}}}}
        return keeps_away(msgspec.convert(whole, Pod).spec)

    assert away("requiredDuringSchedulingIgnoredDuringExecution", NEAR)
    assert not away("preferredDuringSchedulingIgnoredDuringExecution", {"podAffinityTerm": NEAR})


# --- claims and volumes ---


def claim(name: str = "data", volume: str = "", namespace: str = "d") -> PersistentVolumeClaim:
    whole = {"metadata": {"name": name, "namespace": namespace}, "spec": {"volumeName": volume}}
    return msgspec.convert(whole, PersistentVolumeClaim)


def volume(name: str = "disk", required: Any = None) -> PersistentVolume:
    spec = {} if required is None else {"nodeAffinity": {"required": required}}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PersistentVolume)


MOUNTS = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}
ON_ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}


def test_a_bound_volume_keeps_its_pod_near() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume(required=ON_ZONE_A)))
    found = read(volumes, **MOUNTS)
    assert found.volumes == ((Term((ZONE,)),),)
    assert found.unsupported == ""


def test_a_volume_that_is_everywhere_binds_nobody() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume()))
    assert read(volumes, **MOUNTS) == Constraints()


def test_waiting_for_the_first_consumer_is_a_reason() -> None:
    """Such a claim is bound by kube-scheduler only, together with the pod's node."""
    volumes = VolumeView()
    volumes.take_claim(Added(claim()))
    said = read(volumes, **MOUNTS).unsupported
    assert said == f"PersistentVolumeClaim data is not bound to a volume yet: {WAY_OUT}"


def test_a_volume_that_went_is_a_reason_until_it_comes_back() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    assert "bound to a volume that is not there" in read(volumes, **MOUNTS).unsupported
    volumes.take_volume(Added(volume()))
    assert read(volumes, **MOUNTS).unsupported == ""
    volumes.take_volume(Deleted(volume()))
    assert "bound to a volume that is not there" in read(volumes, **MOUNTS).unsupported
    volumes.take_claim(Deleted(claim(volume="disk")))
    assert "there is no PersistentVolumeClaim data" in read(volumes, **MOUNTS).unsupported


def test_a_claim_of_another_namespace_is_another_claim() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk", namespace="other")))
    assert "there is no PersistentVolumeClaim data" in read(volumes, **MOUNTS).unsupported

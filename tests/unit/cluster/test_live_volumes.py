"""Claims and volumes as constraints: where they are, who uses them, what drivers limit."""

from typing import Any

import msgspec
import pytest
from live_world import pod, refusals, until, world

from weft.cluster.state.pod_reader import WAY_OUT, constraints_of
from weft.cluster.state.volumes import VolumeView
from weft.kube.pods import Pod
from weft.kube.structs import CsiNode, PersistentVolume, PersistentVolumeClaim
from weft.kube.watch import Added, Deleted
from weft.model import Constraints, Requirement, Term

EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
ZONE = Requirement("zone", "In", ("a",))


def read(known: VolumeView, /, **spec: Any) -> Constraints:
    whole = {"metadata": {"name": "a", "namespace": "d"}, "spec": spec}
    return constraints_of(msgspec.convert(whole, Pod), known)


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


# --- zones of a volume ---

ZONE_LABEL, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"


@pytest.mark.parametrize(
    ("of_volume", "of_node", "accepted"),
    [
        ({ZONE_LABEL: "a"}, {ZONE_LABEL: "a"}, True),
        ({ZONE_LABEL: "a"}, {ZONE_LABEL: "b"}, False),
        ({ZONE_LABEL: "a__ b"}, {ZONE_LABEL: "b"}, True),
        ({ZONE_LABEL: "a__b"}, {ZONE_LABEL: "c"}, False),
        ({ZONE_LABEL: "a"}, {}, True),
        ({ZONE_LABEL: "a"}, {"other": "b"}, True),
        ({ZONE_LABEL: "a"}, {REGION_LABEL: "r"}, False),
        ({ZONE_LABEL: "a"}, {BETA_ZONE: "a"}, False),
        ({BETA_ZONE: "a"}, {ZONE_LABEL: "a"}, True),
        ({BETA_ZONE: "a"}, {ZONE_LABEL: "a", BETA_ZONE: "b"}, False),
        ({ZONE_LABEL: "a", REGION_LABEL: "r"}, {ZONE_LABEL: "a", REGION_LABEL: "s"}, False),
        ({ZONE_LABEL: "a__"}, {ZONE_LABEL: "b"}, True),
    ],
)
def test_a_volume_s_zone_labels_bind_its_pods(
    of_volume: dict[str, str], of_node: dict[str, str], accepted: bool
) -> None:
    """kube-scheduler's VolumeZone: nodes without any zone or region are of a cluster without."""
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    labelled = {"metadata": {"name": "disk", "labels": of_volume}}
    volumes.take_volume(Added(msgspec.convert(labelled, PersistentVolume)))
    assert read(volumes, **MOUNTS).accepts_volumes("n", of_node) == accepted


# --- ReadWriteOncePod ---


def rwop() -> VolumeView:
    volumes = VolumeView()
    whole = {
        "metadata": {"name": "data", "namespace": "d"},
        "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOncePod"]},
    }
    volumes.take_claim(Added(msgspec.convert(whole, PersistentVolumeClaim)))
    volumes.take_volume(Added(volume()))
    return volumes


def user(name: str, phase: str = "Pending", **spec: Any) -> Pod:
    whole = {
        "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}"},
        "spec": {**MOUNTS, **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(whole, Pod)


def why(volumes: VolumeView, pod: Pod) -> str:
    return constraints_of(pod, volumes).unsupported


def test_a_claim_for_one_pod_is_for_one_pod() -> None:
    volumes, second = rwop(), user("second")
    assert volumes.take_moved()
    volumes.use(user("first", nodeName="n"), waits=False)
    volumes.use(second, waits=True)
    said = "PersistentVolumeClaim data is ReadWriteOncePod and pod first has it"
    assert why(volumes, second) == said
    assert volumes.take_moved()
    assert not volumes.take_moved()
    volumes.use(user("first", "Succeeded", nodeName="n"), waits=False)
    assert why(volumes, second) == "", "who has ended has it no more"
    assert volumes.take_moved(), "the pods that wait are to be read again"


def test_of_pods_that_wait_for_such_a_claim_the_first_is_tried() -> None:
    """Two of them may not be decided before either is seen bound."""
    volumes, first, second = rwop(), user("first"), user("second")
    volumes.use(first, waits=True)
    volumes.use(second, waits=True)
    assert why(volumes, first) == ""
    assert "pod first has it" in why(volumes, second)
    volumes.use(user("second", nodeName="n"), waits=False)
    assert "pod second has it" in why(volumes, first), "bound by another scheduler"
    volumes.release(second)
    assert why(volumes, first) == ""


def test_other_claims_may_be_shared() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume()))
    assert volumes.take_moved()
    volumes.use(user("first", nodeName="n"), waits=False)
    volumes.use(user("second"), waits=True)
    assert why(volumes, user("second")) == ""
    assert not volumes.take_moved()


# --- limits of attached volumes ---


def csi_node(count: int | None) -> CsiNode:
    driver = {"name": "ebs", "allocatable": None if count is None else {"count": count}}
    return msgspec.convert({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}}, CsiNode)


def test_a_driver_with_a_limit_is_a_reason_to_wait() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    by_csi = {"metadata": {"name": "disk"}, "spec": {"csi": {"driver": "ebs"}}}
    volumes.take_volume(Added(msgspec.convert(by_csi, PersistentVolume)))
    assert read(volumes, **MOUNTS).unsupported == ""
    volumes.take_csi_node(Added(csi_node(None)))
    assert read(volumes, **MOUNTS).unsupported == ""
    volumes.take_csi_node(Added(csi_node(25)))
    said = "nodes limit how many volumes of ebs (PersistentVolumeClaim data) are attached, "
    assert (
        read(volumes, **MOUNTS).unsupported == f"{said}which Weft alone does not count: {WAY_OUT}"
    )
    volumes.take_csi_node(Deleted(csi_node(25)))
    assert read(volumes, **MOUNTS).unsupported == ""


async def test_of_two_pods_with_one_claim_the_second_runs_when_the_first_has_ended() -> None:
    async with world() as made:
        server, refused = made.server, refusals(made)
        server.add("persistentvolumes", {"metadata": {"name": "disk"}, "spec": {}})
        server.add(
            "persistentvolumeclaims",
            {
                "metadata": {"name": "data", "namespace": "d"},
                "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOncePod"]},
            },
        )

        def placed(name: str) -> str:
            return str(server.get("pods", name, "d")["spec"].get("nodeName") or "")

        server.add("pods", pod("first", 1_000, **MOUNTS))
        server.add("pods", pod("second", 1_000, **MOUNTS))
        await until(lambda: placed("first"))
        await until(lambda: "second" in refused)
        assert not placed("second")
        server.update("pods", "first", {"status": {"phase": "Succeeded"}}, "d")
        await until(lambda: placed("second"))

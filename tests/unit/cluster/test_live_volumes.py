"""Claims and volumes as constraints: where they are, who uses them, what drivers limit."""

from typing import Any

import msgspec
import pytest
from live_world import pod, refusals, until, world

from weft.cluster.state.pod_reader import constraints_of
from weft.cluster.state.storage_objects import bound_terms
from weft.cluster.state.volumes import VolumeView
from weft.kube.pods import Pod
from weft.kube.structs import CsiNode, PersistentVolume, PersistentVolumeClaim
from weft.kube.watch import Added, Deleted
from weft.model import Constraints, MountedVolumes, NodeStorage, Requirement, Term

EXPRESSION = {"key": "zone", "operator": "In", "values": ["a"]}
ZONE = Requirement("zone", "In", ("a",))


def waits(known: VolumeView, /, **spec: Any) -> str:
    """The thing that the pod waits for."""
    storage = read(known, **spec).storage
    return storage.waits_for if storage else ""


def read(known: VolumeView, /, **spec: Any) -> Constraints:
    whole = {"metadata": {"name": "a", "namespace": "d"}, "spec": spec}
    return constraints_of(msgspec.convert(whole, Pod), known)


def claim(name: str = "data", volume: str = "", namespace: str = "d") -> PersistentVolumeClaim:
    meta = {"name": name, "namespace": namespace, "annotations": BOUND if volume else {}}
    return msgspec.convert(
        {"metadata": meta, "spec": {"volumeName": volume}}, PersistentVolumeClaim
    )


def volume(name: str = "disk", required: Any = None) -> PersistentVolume:
    spec = {} if required is None else {"nodeAffinity": {"required": required}}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, PersistentVolume)


BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
MOUNTS: dict[str, Any] = {
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
}
ON_ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [EXPRESSION]}]}


def test_a_bound_volume_keeps_its_pod_near() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume(required=ON_ZONE_A)))
    found = read(volumes, **MOUNTS)
    assert found.volumes == ((Term((ZONE,)),),)
    assert found.unsupported == ""


def test_a_volume_s_affinity_is_asked_of_labels_alone() -> None:
    """As kube-scheduler and the kubelet ask it: neither knows there what the node is called."""
    field = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    both = {"matchExpressions": [EXPRESSION], "matchFields": [field]}
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume(required={"nodeSelectorTerms": [both]})))
    assert read(volumes, **MOUNTS).volumes == ((Term((ZONE,)),),)
    terms = [both, {"matchFields": [field]}]
    volumes.take_volume(Added(volume(required={"nodeSelectorTerms": terms})))
    assert read(volumes, **MOUNTS) == Constraints()


ZONES, OLD_ZONES = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
OLD_REGIONS, REGIONS = (
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/region",
)
OF_EBS = "topology.ebs.csi.aws.com/zone"


@pytest.mark.parametrize(
    ("labels", "affinity", "wanted"),
    [
        ({}, None, None),
        ({ZONES: "a"}, None, {OF_EBS: "a"}),
        ({OLD_ZONES: "a"}, {"disk": "ssd"}, {"disk": "ssd", OF_EBS: "a"}),
        ({ZONES: "b"}, {ZONES: "a"}, {OF_EBS: "a"}),
        ({}, {OLD_ZONES: "a", OLD_REGIONS: "r"}, {OF_EBS: "a", REGIONS: "r"}),
        ({}, {ZONES: "a", OLD_REGIONS: "r"}, {OF_EBS: "a", OLD_REGIONS: "r"}),
        ({}, {"disk": "ssd"}, {"disk": "ssd"}),
    ],
)
def test_an_in_tree_volume_is_where_its_csi_driver_says(
    labels: dict[str, str], affinity: dict[str, str] | None, wanted: dict[str, str] | None
) -> None:
    """In the labels by which that driver names zones, as kube-scheduler translates them."""
    spec: dict[str, Any] = {"awsElasticBlockStore": {"volumeID": "vol-1"}}
    if affinity is not None:
        rules = [{"key": k, "operator": "In", "values": [v]} for k, v in affinity.items()]
        terms = [{"matchExpressions": rules}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    found = bound_terms(
        msgspec.convert(
            {"metadata": {"name": "v", "labels": labels}, "spec": spec}, PersistentVolume
        )
    )
    if wanted is None:
        assert found is None
    else:
        assert found == (Term(tuple(Requirement(k, "In", (v,)) for k, v in wanted.items())),)


def test_a_volume_that_is_everywhere_binds_nobody() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    volumes.take_volume(Added(volume()))
    assert read(volumes, **MOUNTS) == Constraints()


def test_who_has_to_do_something_first_is_a_reason() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim()))
    said = "PersistentVolumeClaim data is not bound to a volume yet, and has no StorageClass"
    assert waits(volumes, **MOUNTS) == said
    assert read(volumes, **MOUNTS).unsupported == ""


def test_a_volume_that_went_is_a_reason_until_it_comes_back() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk")))
    assert "is bound to volume disk, which does not exist" in waits(volumes, **MOUNTS)
    volumes.take_volume(Added(volume()))
    assert waits(volumes, **MOUNTS) == ""
    volumes.take_volume(Deleted(volume()))
    assert "is bound to volume disk, which does not exist" in waits(volumes, **MOUNTS)
    volumes.take_claim(Deleted(claim(volume="disk")))
    assert waits(volumes, **MOUNTS) == "PersistentVolumeClaim data does not exist"


def test_a_claim_of_another_namespace_is_another_claim() -> None:
    volumes = VolumeView()
    volumes.take_claim(Added(claim(volume="disk", namespace="other")))
    assert waits(volumes, **MOUNTS) == "PersistentVolumeClaim data does not exist"


def test_a_claim_with_a_volume_is_bound_once_the_controller_has_said_so() -> None:
    half = msgspec.convert(
        {
            "metadata": {"name": "data", "namespace": "d"},
            "spec": {"volumeName": "disk"},
            "status": {"phase": "Pending"},
        },
        PersistentVolumeClaim,
    )
    volumes = VolumeView()
    volumes.take_claim(Added(half))
    volumes.take_volume(Added(volume()))
    assert waits(volumes, **MOUNTS).endswith("data is not bound to volume disk yet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": {"phase": "Lost"}}, "has lost its volume disk"),
        ({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}, "is being deleted"),
    ],
)
def test_a_claim_that_is_lost_or_goes_is_a_reason(change: dict[str, Any], said: str) -> None:
    whole = {
        "metadata": {"name": "data", "namespace": "d", "annotations": BOUND}
        | change.get("metadata", {}),
        "spec": {"volumeName": "disk"},
        "status": change.get("status", {}),
    }
    volumes = VolumeView()
    volumes.take_claim(Added(msgspec.convert(whole, PersistentVolumeClaim)))
    volumes.take_volume(Added(volume()))
    assert waits(volumes, **MOUNTS) == f"PersistentVolumeClaim data {said}"


# --- generic ephemeral volumes ---


def test_an_ephemeral_volume_s_claim_is_the_pod_s_own_or_none() -> None:
    spec = {"volumes": [{"name": "scratch", "ephemeral": {}}]}
    volumes = VolumeView()
    volumes.take_volume(Added(volume()))

    def made(owner: str) -> PersistentVolumeClaim:
        owners = [{"kind": "Pod", "name": "a", "uid": owner, "controller": True}]
        meta = {"name": "a-scratch", "namespace": "d", "annotations": BOUND}
        whole = {"metadata": meta | {"ownerReferences": owners}, "spec": {"volumeName": "disk"}}
        return msgspec.convert(whole, PersistentVolumeClaim)

    said = "PersistentVolumeClaim a-scratch has not been created for the pod yet"
    assert waits(volumes, **spec) == said
    volumes.take_claim(Added(made("another")))
    assert "was not made for this pod" in waits(volumes, **spec)
    volumes.take_claim(Added(made("")))
    assert waits(volumes, **spec) == "", "the pod of these tests has no UID"


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


def test_a_claim_for_one_pod_is_told_of_those_that_have_a_node_and_those_that_wait() -> None:
    """The engine compares: who has a node has the claim."""
    volumes = VolumeView()
    whole = {
        "metadata": {"name": "data", "namespace": "d", "annotations": BOUND},
        "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOncePod"]},
    }
    volumes.take_claim(Added(msgspec.convert(whole, PersistentVolumeClaim)))
    volumes.take_volume(Added(volume()))
    storage = read(volumes, **MOUNTS).storage
    assert storage
    assert storage.mounts == MountedVolumes(lone_claims=("d/data",))
    there = {"metadata": {"name": "b", "namespace": "d"}, "spec": {**MOUNTS, "nodeName": "n"}}
    assert volumes.mounted(msgspec.convert(there, Pod)) == MountedVolumes(lone_claims=("d/data",))


def test_pods_are_read_again_where_their_claims_change_and_others_are_not() -> None:
    volumes = VolumeView()
    mine = msgspec.convert({"metadata": {"name": "a", "namespace": "d"}, "spec": MOUNTS}, Pod)
    volumes.use(mine, waits=True)
    volumes.take_claim(Added(claim("other", volume="disk")))
    assert volumes.take_moved() == []
    volumes.take_claim(Added(claim(volume="disk")))
    assert volumes.take_moved() == [mine]
    assert volumes.take_moved() == []
    volumes.take_volume(Added(volume()))
    assert volumes.take_moved() == [mine], "the volume of its claim came"
    volumes.release(mine)
    volumes.take_claim(Deleted(claim(volume="disk")))
    assert volumes.take_moved() == []


# --- limits of attached volumes ---


def csi_node(count: int | None) -> CsiNode:
    driver = {"name": "ebs", "allocatable": None if count is None else {"count": count}}
    return msgspec.convert({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}}, CsiNode)


def test_volumes_are_counted_where_some_node_limits_their_driver() -> None:
    volumes = VolumeView()
    mine = msgspec.convert({"metadata": {"name": "a", "namespace": "d"}, "spec": MOUNTS}, Pod)
    volumes.use(mine, waits=True)
    volumes.take_claim(Added(claim(volume="disk")))
    by_csi = {
        "metadata": {"name": "disk"},
        "spec": {"csi": {"driver": "ebs", "volumeHandle": "vol-1"}},
    }
    volumes.take_volume(Added(msgspec.convert(by_csi, PersistentVolume)))
    volumes.take_csi_node(Added(csi_node(None)))
    volumes.take_moved()
    assert not read(volumes, **MOUNTS).storage
    volumes.take_csi_node(Added(csi_node(25)))
    assert volumes.take_moved() == [mine]
    storage = read(volumes, **MOUNTS).storage
    assert storage
    assert storage.mounts.attached == (("ebs", "vol-1"),)
    event = volumes.take_event()
    assert event is not None
    assert event.nodes == (NodeStorage("n", {"ebs": 25}),)
    volumes.take_csi_node(Deleted(csi_node(25)))
    assert not read(volumes, **MOUNTS).storage


async def test_of_two_pods_with_one_claim_the_second_runs_when_the_first_has_ended() -> None:
    async with world() as made:
        server, refused = made.server, refusals(made)
        server.add("persistentvolumes", {"metadata": {"name": "disk"}, "spec": {}})
        server.add(
            "persistentvolumeclaims",
            {
                "metadata": {"name": "data", "namespace": "d", "annotations": BOUND},
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

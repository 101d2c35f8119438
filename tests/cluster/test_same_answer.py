"""Weft and the real kube-scheduler leave the same nodes for a pod, GPUs aside.

Clusters and pods are drawn; what kube-scheduler's filters leave is heard by an extender that only
listens. `WEFT_ORACLE_SEED` and `WEFT_ORACLE_CASES` choose other clusters, `WEFT_KUBERNETES_VERSION`
another kube-scheduler.

One kube-scheduler sees one cluster after the other. Its watches may be behind: where it differs
from Weft, one that has just started, and listed everything, is asked again.

Two differences are known, and none of Weft's. Up to 1.36 a pod's own namespaceSelector that holds
of no labels (DoesNotExist, NotIn) selects all namespaces: a mistake of kube-scheduler's, mended in
1.37, that is played here. From 1.37 on a pod that is resized counts the largest of three sums over
its containers, where 1.36 and Weft sum the largest of each; none are drawn there.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from recording_extender import RecordingExtender
from written_cluster import ask, build, forget_decisions, is_decided, let_go, weft_says

from fakes.drawn_cluster import HEAVY, drawn
from fakes.drawn_storage import CLASSES_AND_DRIVERS, STORAGE, StorageWorld
from weft.model import Code

FIRST = int(os.environ.get("WEFT_ORACLE_SEED", "0"))
CASES = int(os.environ.get("WEFT_ORACLE_CASES", "200"))
NAMESPACES = ("drawn-a", "drawn-b", "drawn-c")
FAST = "TaintNodesByCondition,StorageObjectInUseProtection,ServiceAccount"
DRAWN_CASES, AT_LEAST = 200, 30
CLASSES = [one["metadata"]["name"] for one in CLASSES_AND_DRIVERS if one["kind"] == "StorageClass"]
FIELDS = (
    *("nodeSelector", "nodeAffinity.matchExpressions", "nodeAffinity.matchFields", "tolerations"),
    *("unschedulable", "os", "restartPolicyRules", "hostPort", "hostIP"),
    *("ephemeral-storage", "extended resource", "overhead", "resources"),
    *("initContainers", "sidecar", "volumes.persistentVolumeClaim"),
    *(
        f"{field}{part}"
        for field in ("podAffinity", "podAntiAffinity")
        for part in (
            *("", ", two terms", ".namespaces", ".namespaceSelector"),
            *(".namespaceSelector by labels", ".matchLabelKeys", ".mismatchLabelKeys"),
        )
    ),
    *("spread.DoNotSchedule", "spread.ScheduleAnyway", "spread.minDomains"),
    *(
        f"spread.{field}.{what}"
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy")
        for what in ("Honor", "Ignore")
    ),
    "spread.matchLabelKeys",
    *("claim that waits", "claims that wait, several", "claim, selected-node", "claim, Block"),
    *("claim, terminating", "claim, ReadWriteOncePod", "claim.selector"),
    *("claim.volumeName, not bound", "claim.volumeAttributesClassName"),
    *(f"claim of {name}" for name in CLASSES),
    *("volume, prepared", "volume.claimRef", "volume.nodeAffinity.matchFields"),
    "volume.nodeAffinity, a cloud's zone",
    *("CSIStorageCapacity", "CSIStorageCapacity.maximumVolumeSize"),
    *("CSINode, limit", "VolumeAttachment"),
    *("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"),
    *("ephemeral", "ephemeral, claim of other", "ephemeral, claim of none"),
)
OF_BOUND = ("nodeName", "terminating", "resize", "resize, infeasible", "podAntiAffinity", "sidecar")
BITES = (
    *(Code.FITS, Code.UNSCHEDULABLE, Code.TAINT, Code.NODE_AFFINITY),
    *(Code.VOLUME, Code.DECLARED_FEATURES, Code.CPU, Code.NODE_MEMORY, Code.EXTENDED),
    *(Code.HOST_PORT, Code.POD_AFFINITY, Code.POD_ANTI_AFFINITY, Code.ANTI_AFFINITY),
    *(Code.TOPOLOGY_SPREAD, Code.CLAIM_WAITS, Code.CLAIM_TAKEN, Code.DISK_TAKEN),
    *(Code.NO_VOLUME, Code.STORAGE_CAPACITY, Code.VOLUME_LIMIT),
)
_NONE: frozenset[str] = frozenset()


class Judge:
    """A control plane of its own, with which nodes and claims are written and removed at once, and
    a kube-scheduler that tells which nodes its filters leave."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.extender = plane, RecordingExtender()
        minor = plane.api.request("GET", "/version")["minor"]
        self.is_1_36 = int(minor) <= 36
        self.codes: Counter[Code] = Counter()
        self.cases = 0
        for each in (HEAVY, *CLASSES_AND_DRIVERS):
            plane.api.create(each)
        for name in NAMESPACES:
            plane.create_namespace(name)

    def start(self) -> None:
        """Start the kube-scheduler; it knows all that there is when this returns."""
        self.plane.start_scheduler(self.extender.configuration)

    def heard(self, asked: Sequence[Object]) -> dict[str, frozenset[str]]:
        """The nodes that kube-scheduler leaves for each of these pods, which are new."""
        self.extender.feasible.clear()
        ask(self.plane, asked)
        return self._wait(asked)

    def heard_anew(self, asked: Sequence[Object]) -> dict[str, frozenset[str]]:
        """The nodes that a kube-scheduler leaves which has just listed all there is."""
        while self.plane.schedulers:
            self.plane.schedulers.pop().kill()
        forget_decisions(self.plane, asked)
        self.extender.feasible.clear()
        self.start()
        return self._wait(asked)

    def _wait(self, asked: Sequence[Object]) -> dict[str, frozenset[str]]:
        names = {pod["metadata"]["name"] for pod in asked}

        def are_decided(pods: Objects) -> bool:
            decided = {pod["metadata"]["name"] for pod in pods if is_decided(pod)}
            return names <= decided

        self.plane.api.wait_for(are_decided, "Pod", timeout_s=30)
        return {name: self.extender.feasible.get(name, _NONE) for name in sorted(names)}

    def weft(self) -> dict[str, frozenset[str]]:
        """The nodes that Weft leaves for each pod without a node."""
        said = weft_says(self.plane, as_1_36=self.is_1_36)
        self.cases += 1
        self.codes.update(code for codes in said.values() for code in codes.values())
        return {
            name: frozenset(node for node, code in codes.items() if code == Code.FITS)
            for name, codes in sorted(said.items())
        }

    def clear(self) -> None:
        """Remove the cluster, pods first: no node goes that has one."""
        let_go(self.plane)
        remove = self.plane.api.delete_all
        with ThreadPoolExecutor(len(NAMESPACES)) as deleters:
            list(deleters.map(lambda name: remove("Pod", name), NAMESPACES))
            list(deleters.map(remove, ("Node", "PersistentVolume")))
            remove("PersistentVolumeClaim", NAMESPACES[0])
            remove("CSIStorageCapacity", NAMESPACES[0], STORAGE)
            for kind in ("CSINode", "VolumeAttachment"):
                remove(kind, version=STORAGE)


@pytest.fixture(scope="module")
def judge(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    options = (f"--disable-admission-plugins={FAST}",)
    folder = tmp_path_factory.mktemp("drawn")
    with ControlPlane(control_plane.binaries, folder, options) as own:
        made = Judge(own)
        with made.extender:
            made.start()
            yield made


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_both_leave_the_same_nodes(judge: Judge, seed: int) -> None:
    world = StorageWorld(seed, NAMESPACES)
    world.resizes = judge.is_1_36
    cluster = drawn(world)
    asked = cluster.asked
    try:
        build(judge.plane, cluster)
        theirs, ours = judge.heard(asked), judge.weft()
        if theirs != ours:
            theirs, ours = judge.heard_anew(asked), judge.weft()
        assert ours == theirs
    finally:
        judge.clear()


@pytest.mark.skipif(CASES < DRAWN_CASES, reason="so few cases need not have everything")
def test_each_rule_keeps_pods_off_nodes(judge: Judge) -> None:
    """Nothing is the same only because all pods fit, or none does for one reason."""
    assert judge.cases >= CASES
    assert {code: judge.codes[code] for code in BITES if judge.codes[code] < AT_LEAST} == {}


def test_every_field_is_drawn() -> None:
    """Often enough to say something of it; some pods fit somewhere, and some nowhere."""
    counts: Counter[str] = Counter()
    for seed in range(DRAWN_CASES):
        world = StorageWorld(seed, NAMESPACES)
        drawn(world)
        counts += world.drawn
    assert {what: count for what, count in counts.items() if count < AT_LEAST} == {}
    assert {what for what in counts if not what.startswith("there ")} == set(FIELDS)
    assert {f"there {what}" for what in OF_BOUND} <= set(counts)

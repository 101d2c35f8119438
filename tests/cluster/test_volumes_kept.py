"""Claims that wait for their first consumer, with the real PersistentVolume controller and a
provisioner of the tests, while `weft scheduler` is killed at every kind of write.

Each process is killed at another point, and the next has nothing but the API's objects. At the end
every pod that can be bound is; no volume was given to two claims, no claim was lost, and none is
served where its pod is not. Some pods ask for prepared volumes, some for made ones, some for
several; a few ask for volumes that are not there. 40 pods and five of the points; with
`WEFT_TEST_LONG=1` 200 pods and all nine.
"""

import itertools
import os
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from api_proxy import ApiProxy, Held, When
from binaries import CONTROLLERS, find
from control_plane import ControlPlane
from controllers import OF_VOLUMES, controllers
from kube_api import Object, Objects
from needed_tools import lacking
from processes import StartStop
from provisioner import HOSTNAME, NAME, SELECTED_NODE, Provisioner, on_host
from weft_process import ALONE, GFD, Weft, audited, resources, sigkill, weft
from weft_process import pod as plain_pod

LONG = bool(os.environ.get("WEFT_TEST_LONG"))
PODS, NODES, TOO_MANY = (200, 8, 8) if LONG else (40, 3, 2)
HELD = 2
SLACK = NODES
WAIT_S = 120 if LONG else 30
STORAGE = "storage.k8s.io/v1"
CLASSES = {"local": "", "pair": "", "mixed": "", "made": NAME}
KINDS = ("local", "made", "pair", "mixed", "ephemeral")
BIND = ("POST", "/binding")
WRITES = (("PATCH", "/persistentvolumes/"), ("PATCH", "/persistentvolumeclaims/"), BIND)
POINTS: tuple[tuple[When, str], ...] = (
    ("before", "it leaves"),
    ("after", "the answer is read"),
    ("after", "the engine learns"),
)


# --- what is there -------------------------------------------------------------------------------


def storage_class(name: str, provisioner: str) -> Object:
    return {
        "apiVersion": STORAGE,
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner or "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, of_class: str, node: str, size: str = "1Gi") -> Object:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "storageClassName": of_class,
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": "/none"},
        "nodeAffinity": on_host(node),
    }
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def volumes() -> Objects:
    """Too few `local` ones, and of the others, of which pods have a second claim, some more: who
    has one volume on a node when its scheduler is killed needs the other there too."""
    count = Counter(kind_of(index) for index in range(PODS))
    nodes = itertools.cycle(f"node-{index}" for index in range(NODES))
    found = [volume(f"local-{i}", "local", next(nodes)) for i in range(count["local"] - TOO_MANY)]
    for i in range(count["pair"] + SLACK):
        node = next(nodes)
        found += [volume(f"small-{i}", "pair", node), volume(f"large-{i}", "pair", node, "3Gi")]
    found += [volume(f"mixed-{i}", "mixed", next(nodes)) for i in range(count["mixed"] + SLACK)]
    return found


def claim_spec(of_class: str, size: str = "1Gi") -> Object:
    asked = {"requests": {"storage": size}}
    return {"accessModes": ["ReadWriteOnce"], "storageClassName": of_class, "resources": asked}


def kind_of(index: int) -> str:
    return KINDS[index % len(KINDS)]


class Asked(NamedTuple):
    """A pod, and its claims."""

    pod: Object
    claims: Objects


def asked(index: int) -> Asked:
    kind = kind_of(index)
    name = f"{kind}-{index}"
    specs = {
        "local": [claim_spec("local")],
        "made": [claim_spec("made")],
        "pair": [claim_spec("pair", "2Gi"), claim_spec("pair")],
        "mixed": [claim_spec("made"), claim_spec("mixed")],
        "ephemeral": [],
    }[kind]
    claims = [
        {"kind": "PersistentVolumeClaim", "metadata": {"name": f"{name}-{i}"}, "spec": spec}
        for i, spec in enumerate(specs)
    ]
    mounts: Objects = [
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": each["metadata"]["name"]}}
        for i, each in enumerate(claims)
    ]
    if kind == "ephemeral":
        template = {"volumeClaimTemplate": {"spec": claim_spec("made")}}
        mounts.append({"name": "v0", "ephemeral": template})
    found = plain_pod(name, "weft", {"elasticgpu.io/gpu-memory": 128})
    found["spec"]["volumes"] = mounts
    return Asked(found, claims)


def refuses(claim: str, times: int) -> bool:
    """Two of five claims are refused, once or twice."""
    return times < max(0, zlib.crc32(claim.encode()) % 5 - 2)


@pytest.fixture
def storage(control_plane: ControlPlane, namespace: str) -> Iterator[Provisioner]:
    """Nodes, classes and volumes, and who binds and makes them."""
    program = find([CONTROLLERS]).get(CONTROLLERS)
    if program is None:
        lacking("no kube-controller-manager: make node-tools")
    api = control_plane.api
    for index in range(NODES):
        name = f"node-{index}"
        has = {**resources(), "pods": "250"}
        control_plane.create_fake_node(name, has, labels={**GFD, HOSTNAME: name})
    made = [storage_class(name, provisioner) for name, provisioner in CLASSES.items()]
    for each in (*made, *volumes()):
        api.create(each)
    with (
        controllers(control_plane, program, OF_VOLUMES, "--pvclaimbinder-sync-period=2s"),
        Provisioner(control_plane, namespace, refuses) as provisioner,
    ):
        yield provisioner
        control_plane.end_schedulers()
        api.delete_all("Pod", namespace)
        api.delete_all("PersistentVolumeClaim", namespace)
        api.wait_for(lambda left: not left, "PersistentVolumeClaim", namespace)
        api.delete_all("PersistentVolume")
        api.wait_for(lambda left: not left, "PersistentVolume")
        api.delete_all("StorageClass", version=STORAGE)


# --- what was so, all the time -------------------------------------------------------------------


class History(StartStop):
    """Every state of all volumes and claims, as a watch shows them: whose each volume was, and what
    each claim had; by name. `lost`: claims that were."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.owners: dict[str, set[str]] = {}
        self.served: dict[str, set[str]] = {}
        self.lost: set[str] = set()
        self._api = plane.api_for("weft-admin", "system:masters")
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=args, daemon=True)
            for args in (("PersistentVolume", None), ("PersistentVolumeClaim", namespace))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        self._api.close()

    def _watch(self, kind: str, namespace: str | None) -> None:
        since = None
        while not self._done.is_set():
            for event in self._api.watch(kind, namespace, since=since, timeout_s=1):
                since = event.object["metadata"]["resourceVersion"]
                self._take(kind, event.object)

    def _take(self, kind: str, item: Object) -> None:
        name, spec = item["metadata"]["name"], item["spec"]
        if kind == "PersistentVolume":
            self.owners.setdefault(name, set()).update([(spec.get("claimRef") or {}).get("name")])
            self.owners[name] -= {None}
        else:
            self.served.setdefault(name, set()).update([spec.get("volumeName")])
            self.served[name] -= {None}
            self.lost.update([name] if item["status"].get("phase") == "Lost" else [])


# --- killed at each point ------------------------------------------------------------------------


def crash(process: Weft, held: Held, point: str) -> None:
    """Kill it while some writes are held there."""
    held.wait(count=HELD)
    if point == "the engine learns":
        process.pause()
        held.release()
        held.wait_answered(count=HELD)
        sigkill(process)
    else:
        sigkill(process)
        held.drop()


def mounted(pod: Object) -> list[str]:
    """Names of its claims."""
    name, found = pod["metadata"]["name"], pod["spec"]["volumes"]
    return [
        f"{name}-{one['name']}" if "ephemeral" in one else one["persistentVolumeClaim"]["claimName"]
        for one in found
    ]


def test_killed_at_each_write_no_volume_is_lost_or_given_twice(
    control_plane: ControlPlane, namespace: str, storage: Provisioner, tmp_path: Path
) -> None:
    api = control_plane.api
    crashes = [(write, point) for write in WRITES for point in POINTS][:: 1 if LONG else 2]
    todo = [asked(index) for index in range(PODS)]
    batch = -(-PODS // (len(crashes) + 1))
    wanted = PODS - TOO_MANY

    def create() -> None:
        part, todo[:batch] = todo[:batch], []
        for each in part:
            for claim in each.claims:
                api.create(claim, namespace)
            api.create(each.pod, namespace)

    def count(pods: Objects) -> int:
        return sum(bool(one["spec"].get("nodeName")) for one in pods)

    with ApiProxy(control_plane) as proxy, History(control_plane, namespace) as history:
        way = proxy.kubeconfig
        for (method, part), (when, point) in crashes:
            held = proxy.hold(method, part, when, count=HELD)
            with weft(control_plane, tmp_path, ALONE, kubeconfig=way) as process:
                create()
                crash(process, held, point)
        assert count(api.list("Pod", namespace)) < wanted, "nothing is left for the last one"
        with weft(control_plane, tmp_path, ALONE, kubeconfig=way):
            create()
            api.wait_for(lambda pods: count(pods) >= wanted, "Pod", namespace, timeout_s=WAIT_S)
    pods = api.list("Pod", namespace)
    claims = {one["metadata"]["name"]: one for one in api.list("PersistentVolumeClaim", namespace)}
    there = {one["metadata"]["name"]: one for one in api.list("PersistentVolume")}
    audited(control_plane, namespace)
    assert proxy.codes(*BIND)[201] == wanted == count(pods)
    assert {each: owners for each, owners in history.owners.items() if len(owners) > 1} == {}
    assert {each: served for each, served in history.served.items() if len(served) > 1} == {}
    assert not history.lost
    assert len(pods) == PODS
    assert storage.refused, "the provisioner always made what was asked"
    for pod in pods:
        node = pod["spec"].get("nodeName")
        for name in mounted(pod):
            claim = claims[name]
            selected = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
            if node is None:
                assert (selected, claim["spec"].get("volumeName")) == (None, None), name
                continue
            assert claim["status"]["phase"] == "Bound", name
            found = there[claim["spec"]["volumeName"]]
            assert found["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
            assert found["spec"]["nodeAffinity"] == on_host(node), name
            assert selected in (None, node), name
    waits = [one for one in pods if not one["spec"].get("nodeName")]
    assert {one["metadata"]["name"].partition("-")[0] for one in waits} <= {"local"}
    free = [one for one in there.values() if one["status"]["phase"] == "Available"]
    of_classes = {one["spec"].get("storageClassName") for one in free}
    assert of_classes & CLASSES.keys() <= {"mixed", "pair"}  # others are of tests before

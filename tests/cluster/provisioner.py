"""A provisioner of the tests: it makes a volume for each claim of a class that has its node.

It keeps to what Kubernetes' external provisioners do: it waits until the controller has named it on
the claim and a scheduler a node, makes a volume that only this node reaches, and where it cannot
takes the node's name off the claim, so that the scheduler chooses again.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable

from control_plane import ControlPlane
from kube_api import Api, ApiError, Object
from processes import StartStop

NAME = "made.example.com"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
HOSTNAME = "kubernetes.io/hostname"
_FOR_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_BY_PROVISIONER = "pv.kubernetes.io/provisioned-by"
_LOOK_S = 1.0


def on_host(node: str) -> Object:
    """The node affinity of a volume that only this node reaches."""
    only = {"key": HOSTNAME, "operator": "In", "values": [node]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [only]}]}}


class Provisioner(StartStop):
    """Runs in a thread of the tests. `refuses` is asked with a claim's name and how often it was
    refused before; `refused` counts that by claim."""

    def __init__(
        self, plane: ControlPlane, namespace: str, refuses: Callable[[str, int], bool]
    ) -> None:
        self.refused: Counter[str] = Counter()
        self._api: Api = plane.api_for("weft-admin", "system:masters")
        self._namespace, self._refuses = namespace, refuses
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._done.set()
        self._thread.join()
        self._api.close()

    def _run(self) -> None:
        """Each watch begins with all there is: what failed is tried again."""
        while not self._done.is_set():
            claims = self._api.watch("PersistentVolumeClaim", self._namespace, timeout_s=_LOOK_S)
            with contextlib.closing(claims):
                for event in claims:
                    if event.type != "DELETED":
                        self._take(event.object)
                    if self._done.is_set():
                        return

    def _take(self, claim: Object) -> None:
        meta = claim["metadata"]
        marks = meta.get("annotations", {})
        node = marks.get(SELECTED_NODE)
        is_ours = marks.get(_FOR_PROVISIONER) == NAME
        if not node or not is_ours or claim["spec"].get("volumeName"):
            return
        with contextlib.suppress(ApiError):  # somebody was quicker: the next look shows it
            if self._refuses(meta["name"], self.refused[meta["name"]]):
                self._refuse(claim)
            else:
                self._api.create(_volume(claim, node))

    def _refuse(self, claim: Object) -> None:
        meta = claim["metadata"]
        seen = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        change = {"metadata": {**seen, "annotations": {SELECTED_NODE: None}}}
        self._api.patch("PersistentVolumeClaim", meta["name"], change, self._namespace)
        self.refused[meta["name"]] += 1


def _volume(claim: Object, node: str) -> Object:
    meta, spec = claim["metadata"], claim["spec"]
    uid = meta["uid"]
    return {
        "kind": "PersistentVolume",
        "metadata": {"name": f"pvc-{uid}", "annotations": {_BY_PROVISIONER: NAME}},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": spec["resources"]["requests"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                **{"apiVersion": "v1", "kind": "PersistentVolumeClaim"},
                **{field: meta[field] for field in ("namespace", "name", "uid")},
            },
            "csi": {"driver": NAME, "volumeHandle": uid},
            "nodeAffinity": on_host(node),
        },
    }

"""Random volumes beside the random clusters of `drawn_cluster`: all that kube-scheduler's filters
read of them.

Claims that wait for their first consumer, prepared volumes that may serve them, classes that have
some made, what is left for that; limits of attached volumes and what is attached; disks written in
pods, and volumes that are made for one pod. Classes and drivers are the same in all clusters.
"""

from typing import Any

from fakes.drawn_cluster import (
    BETA_REGION,
    BETA_ZONE,
    NODES_A_CLUSTER,
    REGION,
    ZONE,
    ZONES,
    Object,
    World,
)

STORAGE = "storage.k8s.io/v1"
CLAIMS_WAITING, VOLUMES_PREPARED, ATTACHED, CAPACITIES = 7, 9, 3, 3
SELECTED_NODE = "volume.kubernetes.io/selected-node"
COUNTED, UNCOUNTED, PLAIN = "counted.example.com", "uncounted.example.com", "plain.example.com"
DISKS, EBS, GCE = "disks.example.com", "ebs.csi.aws.com", "pd.csi.storage.gke.io"
EBS_ZONE, GCE_ZONE = "topology.ebs.csi.aws.com/zone", "topology.gke.io/zone"
MIGRATED = {
    "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"
}
"""An annotation that kubelets write into their CSINode."""
FINALIZER, GATE = "weft.dev/test", "weft.dev/claims"
OWN_CLAIM = "weft.dev/test-own-claim"
"""An annotation of pods with an ephemeral volume: whether its claim is `made`, made as another's
(`other`), or not (`none`)."""
_SIZES, _TIERS = ("1Gi", "2Gi", "5Gi"), ("gold", "silver")
_MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")


def _class(name: str, provisioner: str, *terms: dict[str, list[str]], mode: str = "") -> Object:
    found: Object = {
        "apiVersion": STORAGE,
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode or "WaitForFirstConsumer",
    }
    if terms:
        found["allowedTopologies"] = [
            {
                "matchLabelExpressions": [
                    {"key": key, "values": values} for key, values in term.items()
                ]
            }
            for term in terms
        ]
    return found


def _driver(name: str, *, counts: bool) -> Object:
    spec = {"storageCapacity": counts}
    return {"apiVersion": STORAGE, "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec}


CLASSES_AND_DRIVERS: tuple[Object, ...] = (
    _driver(COUNTED, counts=True),
    _driver(UNCOUNTED, counts=False),
    _class("local", "kubernetes.io/no-provisioner"),
    _class("plain", PLAIN),
    _class("zoned", UNCOUNTED, {"zone": ["a", "b"]}),
    _class("counted", COUNTED),
    _class("both", COUNTED, {"zone": ["a"], "disk": ["ssd"]}, {"zone": ["c"]}),
    _class("ebs", "kubernetes.io/aws-ebs"),
    _class("later", PLAIN, mode="Immediate"),
)
_OF_CLAIMS = (*["local"] * 4, "plain", "zoned", "counted", "counted", "both", "ebs", "later")
_OF_VOLUMES = (*["local"] * 5, "counted", "both", "plain", "")


class StorageWorld(World):
    """Draws volumes too. Features of the claims that wait are counted with each pod that mounts
    them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._features: list[list[str]] = []

    # --- what is there ---------------------------------------------------------------------------

    def bound(self) -> list[Object]:
        """Volumes with their claims, and all other objects about volumes; a volume's status is
        to be written, and what has a finalizer is to be deleted."""
        found = super().bound()
        there = [each["metadata"]["name"] for each in found if each["kind"] == "PersistentVolume"]
        self._features = []
        found += [self._waiting(f"wait-{index}") for index in range(CLAIMS_WAITING)]
        found += [self._prepared(f"prepared-{index}") for index in range(VOLUMES_PREPARED)]
        found += [self._capacity(index) for index in range(CAPACITIES)]
        found += [self._csi_node(f"node-{index}") for index in range(NODES_A_CLUSTER)]
        return found + [self._attachment(index, there) for index in range(ATTACHED)]

    def node(self, index: int) -> Object:
        """Most say in which zone they are by drivers' labels too."""
        found = super().node(index)
        for label in (EBS_ZONE, GCE_ZONE):
            if self.some(0.7):
                found["metadata"]["labels"][label] = self.rng.choice(ZONES)
        return found

    def source(self, name: str) -> Object:
        """A place of a volume's bytes."""
        kind = self.rng.choice(("hostPath", "csi", "csi", "ebs", "gce"))
        if kind == "csi":
            return {"csi": {"driver": DISKS, "volumeHandle": name}}
        if kind == "ebs":
            return {"awsElasticBlockStore": {"volumeID": f"vol-{name}"}}
        if kind == "gce":
            return {"gcePersistentDisk": {"pdName": name}}
        return {"hostPath": {"path": "/none"}}

    def volume(self, name: str, claim: Object) -> Object:
        found = super().volume(name, claim)
        del found["spec"]["hostPath"]
        found["spec"] |= self.source(name)
        labels = found["metadata"]["labels"]
        if "gcePersistentDisk" in found["spec"] and "__" in labels.get(ZONE, ""):
            # kube-scheduler finds a region in the names of a cloud's zones, or counts no disk.
            labels[ZONE] = labels[ZONE].partition("__")[0]
        is_cloud_s = not {"csi", "hostPath"} & found["spec"].keys()
        if is_cloud_s and self.some(0.5):
            terms = [self._in_zone() for _ in range(self.rng.choice((1, 1, 2)))]
            found["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        return found

    def _in_zone(self) -> Object:
        """A term of a cloud's volume, by labels of now or as they once were."""
        zone, region = self.rng.choice(((ZONE, REGION), (BETA_ZONE, BETA_REGION)))
        rules = [{"key": zone, "operator": "In", "values": self.rng.sample(ZONES, 2)}]
        if self.some(0.3):
            rules.append({"key": region, "operator": "In", "values": ["r"]})
        self.draw("volume.nodeAffinity, a cloud's zone")
        return {"matchExpressions": rules}

    def _claim_spec(self, features: list[str]) -> Object:
        of_class = self.rng.choice(_OF_CLAIMS)
        features.append(f"claim of {of_class}")
        modes = [self.rng.choice(_MODES)]
        if self.some(0.15):
            modes = ["ReadWriteOncePod"]
            features.append("claim, ReadWriteOncePod")
        spec: Object = {
            "accessModes": modes,
            "storageClassName": of_class,
            "resources": {"requests": {"storage": self.rng.choice(_SIZES)}},
        }
        if self.some(0.15):
            spec["volumeMode"] = "Block"
            features.append("claim, Block")
        if self.some(0.15):
            spec["volumeAttributesClassName"] = "silver"
            features.append("claim.volumeAttributesClassName")
        if self.some(0.25):
            spec["selector"] = self._selector()
            features.append("claim.selector")
        return spec

    def _selector(self) -> Object:
        if self.some(0.5):
            return {"matchLabels": {"tier": self.rng.choice(_TIERS)}}
        operator = self.rng.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        found: Object = {"key": "tier", "operator": operator}
        if operator in ("In", "NotIn"):
            found["values"] = [self.rng.choice(_TIERS)]
        return {"matchExpressions": [found]}

    def _waiting(self, name: str) -> Object:
        """A claim that waits for its first consumer, mostly."""
        features = ["claim that waits"]
        meta: Object = {"name": name, "namespace": self.namespaces[0]}
        spec = self._claim_spec(features)
        if self.some(0.2):
            meta["annotations"] = {SELECTED_NODE: self._some_node()}
            features.append("claim, selected-node")
        elif self.some(0.06):
            meta["finalizers"] = [FINALIZER]
            features.append("claim, terminating")
        elif self.some(0.06):
            spec["volumeName"] = "prepared-0"
            features.append("claim.volumeName, not bound")
        self._features.append(features)
        return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}

    def _some_node(self) -> str:
        return f"node-{self.rng.randrange(NODES_A_CLUSTER)}"

    def _prepared(self, name: str) -> Object:
        """A volume that may serve claims; some for one claim by its name."""
        modes = [mode for mode in _MODES if self.some(0.8)] or ["ReadWriteOnce"]
        if self.some(0.15):
            modes = ["ReadWriteOncePod"]
        meta: Object = {"name": name}
        spec: Object = {
            "accessModes": modes,
            "capacity": {"storage": self.rng.choice(_SIZES)},
            "storageClassName": self.rng.choice(_OF_VOLUMES),
            **self.source(name),
        }
        if self.some(0.6):
            meta["labels"] = {"tier": self.rng.choice(_TIERS)}
        if self.some(0.15):
            spec["volumeMode"] = "Block"
        if "csi" in spec and self.some(0.3):
            spec["volumeAttributesClassName"] = "silver"
        if self.some(0.7):
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": self._places()}}
        if self.some(0.25):
            index = self.rng.randrange(CLAIMS_WAITING)
            claim: Object = {"name": f"wait-{index}", "namespace": self.namespaces[0]}
            if self.some(0.2):
                claim["uid"] = "of-one-that-was"
            spec["claimRef"] = claim
            self._features[index].append("volume.claimRef")
        elif self.some(0.06):
            meta["finalizers"] = [FINALIZER]
        status = {"phase": "Available"} if self.some(0.93) else {"phase": "Released"}
        found = {"kind": "PersistentVolume", "metadata": meta, "spec": spec, "status": status}
        self.draw("volume, prepared")
        return found

    def _places(self) -> list[Object]:
        """Terms of a volume's node affinity."""
        terms = [
            {"matchExpressions": [self.requirement() for _ in range(self.rng.choice((1, 1, 2)))]}
            for _ in range(self.rng.choice((1, 1, 2)))
        ]
        if self.some(0.15):
            operator = self.rng.choice(("In", "NotIn"))
            field = {"key": "metadata.name", "operator": operator, "values": [self._some_node()]}
            terms[0]["matchFields"] = [field]
            if self.some(0.5):
                del terms[0]["matchExpressions"]
            self.draw("volume.nodeAffinity.matchFields")
        return terms

    def _capacity(self, index: int) -> Object:
        """The storage left of a class on some nodes, or nowhere, or everywhere."""
        found: Object = {
            "apiVersion": STORAGE,
            "kind": "CSIStorageCapacity",
            "metadata": {"name": f"left-{index}", "namespace": self.namespaces[0]},
            "storageClassName": self.rng.choice(("counted", "both")),
        }
        if self.some(0.9):
            found["nodeTopology"] = self.rng.choice(
                (
                    {},
                    {"matchLabels": {"zone": self.rng.choice(ZONES)}},
                    {
                        "matchExpressions": [
                            {
                                "key": "zone",
                                "operator": self.rng.choice(("In", "NotIn")),
                                "values": self.rng.sample(ZONES, 2),
                            }
                        ]
                    },
                )
            )
        if self.some(0.9):
            found["capacity"] = self.rng.choice(("500Mi", "3Gi", "9Gi"))
        if self.some(0.4):
            found["maximumVolumeSize"] = self.rng.choice(("1Gi", "4Gi"))
            self.draw("CSIStorageCapacity.maximumVolumeSize")
        self.draw("CSIStorageCapacity")
        return found

    def _csi_node(self, name: str) -> Object:
        """The drivers of a node, some with a limit."""
        drivers: list[Object] = []
        for driver in (DISKS, EBS, GCE, COUNTED, PLAIN):
            if self.some(0.5):
                one: Object = {"name": driver, "nodeID": name}
                if self.some(0.8):
                    one["allocatable"] = {"count": self.rng.choice((1, 1, 1, 2))}
                    self.draw("CSINode, limit")
                drivers.append(one)
        meta = {"name": name, "annotations": MIGRATED}
        return {
            "apiVersion": STORAGE,
            "kind": "CSINode",
            "metadata": meta,
            "spec": {"drivers": drivers},
        }

    def _attachment(self, index: int, volumes: list[str]) -> Object:
        """A volume that is attached to a node, whether or not a pod there uses it."""
        self.draw("VolumeAttachment")
        return {
            "apiVersion": STORAGE,
            "kind": "VolumeAttachment",
            "metadata": {"name": f"attached-{index}"},
            "spec": {
                "attacher": DISKS,
                "nodeName": self._some_node(),
                "source": {"persistentVolumeName": self.rng.choice([*volumes, "prepared-0", "no"])},
            },
        }

    # --- what pods mount -------------------------------------------------------------------------

    def spec(self, namespace: str) -> Object:
        """Every fourth pod has volumes alone: most of the others fit nowhere anyhow."""
        spec = super().spec(namespace)
        if self.is_there or not self.some(0.25):
            return spec
        bare: Object = {"containers": [{"name": "main", "image": "none"}]}
        bare["tolerations"] = [{"operator": "Exists"}]
        return bare | {"volumes": spec["volumes"]} if "volumes" in spec else bare

    def pod(self, name: str) -> Object:
        pod = super().pod(name)
        in_first = pod["metadata"]["namespace"] == self.namespaces[0]
        if in_first and self.some(0.45):
            self._mount_waiting(pod)
        if self.some(0.6 if self.is_there else 0.3):
            self._mount_disk(pod)
        if in_first and self.some(0.15):
            self._mount_own(pod)
        return pod

    def _mount_waiting(self, pod: Object) -> None:
        chosen = self.rng.sample(range(CLAIMS_WAITING), self.rng.choice((1, 1, 1, 2)))
        for index in chosen:
            source = {"persistentVolumeClaim": {"claimName": f"wait-{index}"}}
            pod["spec"].setdefault("volumes", []).append({"name": f"w{index}", **source})
            for feature in self._features[index]:
                self.draw(feature)
        if len(chosen) > 1:
            self.draw("claims that wait, several")

    def _mount_disk(self, pod: Object) -> None:
        kind = self.rng.choice(("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"))
        name, only_reads = self.rng.choice(("d0", "d0", "d1")), self.some(0.4)
        disks: dict[str, Object] = {
            "gcePersistentDisk": {"pdName": name},
            "awsElasticBlockStore": {"volumeID": f"vol-{name}"},
            "iscsi": {
                "targetPortal": "10.0.0.1:3260",
                "iqn": f"iqn.2026-01.com.example:{name}",
                "lun": 0,
            },
            "rbd": {"image": name, "monitors": self.rng.sample(("m0", "m1", "m2"), 2)},
        }
        disk = {**disks[kind], "readOnly": only_reads}
        pod["spec"].setdefault("volumes", []).append({"name": "disk", kind: disk})
        self.draw(kind)

    def _mount_own(self, pod: Object) -> None:
        """A volume that is made for the pod: its claim can only be written after the pod. One that
        has a node has its claim: without it kube-scheduler cannot say anything of that node."""
        features: list[str] = []
        template = {"volumeClaimTemplate": {"spec": self._claim_spec(features)}}
        pod["spec"].setdefault("volumes", []).append({"name": "own", "ephemeral": template})
        state = self.rng.choice((*["made"] * 6, "other", "none"))
        if self.is_there:
            state = "made"
        else:
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
        pod["metadata"]["annotations"] = {OWN_CLAIM: state}
        self.draw("ephemeral" if state == "made" else f"ephemeral, claim of {state}")

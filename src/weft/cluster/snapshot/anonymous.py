"""Anonymises a snapshot: identifying texts are hashed, and equal texts get equal hashes.

So owners, affinities, selectors, claims and annotations still refer to the same objects. Left
unchanged are the keys and values that GPU scheduling systems define, GPU models, amounts, times,
numbers that selectors compare, and Kubernetes' own keys. Fields are found by their names in the
file's JSON; any field that is not named here holds one of Kubernetes' own words, a number or a
time."""

import fnmatch
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from weft.cluster.config.form import DEFAULT_PROFILES
from weft.cluster.snapshot.file import lean
from weft.cluster.snapshot.form import ClusterSnapshot
from weft.cluster.snapshot.kept import KEPT_OF_CLAIMS, is_systems_own
from weft.cluster.snapshot.pseudonyms import Pseudonyms
from weft.cluster.state.pod_reader import TEMPLATE_HASH
from weft.cluster.state.slices import local
from weft.cluster.state.storage_objects import CSI_NAMES, CSI_ZONES, NO_PROVISIONER, SELECTED_NODE
from weft.cluster.stores.oom_history_store import entry_of, key_of
from weft.dialects import elastic, gpushare, groups, hami, kai, queues
from weft.dialects.catalog import ALL, ASKING_ANNOTATIONS
from weft.dialects.coscheml import APPLICATIONS
from weft.dialects.foreign import ANNOTATIONS, foreign_resource
from weft.dialects.gpushare import UNHEALTHY_PREFIX
from weft.dialects.groups import OLD_LEAST
from weft.dialects.inventory import inventory
from weft.dialects.kai import QUEUE, RESERVATIONS
from weft.dialects.queues import READ_LABELS
from weft.kube.dra import ResourceSlice
from weft.model.annotations import (
    ADVERTISES,
    AGENT,
    APPLICATION,
    CLASS,
    EXPECTED_DURATION,
    FENCED_VERSION,
    GANG,
    GANG_SIZE,
    GPU_MODEL,
    INVENTORY,
    ISOLATION,
    MOVABLE,
    OUT_OF_MEMORY,
    PLACEMENT,
    PLACEMENT_COPY,
    PLUGIN_GPUS,
    RESTART_COST,
    SLO_MS,
    SOLO_P99_MS,
    SOLO_RATE,
    TERM,
)
from weft.model.manifest import NodeManifest
from weft.model.plugin_gpus import PluginGpus, decode_plugin_gpus, encode_plugin_gpus

Json = dict[str, Any]

_KINDS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "Node")
KEPT_WORDS = frozenset(
    {
        *("", "default", "kube-system", "kube-public", "kube-node-lease", "weft-system"),
        *("default-scheduler", "system-node-critical", "system-cluster-critical", "nvidia"),
        *("true", "false", "enabled", "0.0.0.0", "127.0.0.1", "application"),
        *_KINDS,
        *APPLICATIONS,
        *(NO_PROVISIONER, *CSI_NAMES, *CSI_NAMES.values()),
        *(profile.scheduler_name for profile in DEFAULT_PROFILES),
        *(name for system in ALL for name in system.scheduler_names),
        RESERVATIONS,
    }
)
"""Words that are not hashed, because they do not identify a cluster or its users."""
_NAMES = frozenset(
    {
        *("name", "nodeName", "nominatedNodeName", "claimName", "volumeName"),
        *("storageClassName", "resourceClaimName", "resourceClaimTemplateName", "podGroupName"),
        "parentCompositePodGroupName",
        *("driver", "hostIP", "containerName", "requestName", "deviceClassName", "counterSet"),
        *("provisioner", "attacher", "volumeAttributesClassName", "persistentVolumeName"),
        *("volumeHandle", "volumeID", "pdName", "diskName", "iqn", "pool"),
    }
)
_WORDS = ("namespace", "schedulerName", "priorityClassName", "runtimeClassName")
_SAID_BY_VALUE = ("kubernetes.io/arch", "kubernetes.io/os")
_OWN_KEYS = (TEMPLATE_HASH, QUEUE, "metadata.name", *CSI_ZONES)
_VERSIONS = ("v1", "apps/v1", "batch/v1")
_MINUTE = re.compile(r"(.+)-(\d{8})")
_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def anonymous(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot with names hashed by a random key that is not stored."""
    snapshot = replace(_by_name(snapshot), anonymous=True)
    in_order = {node.metadata.name for node in snapshot.nodes}
    in_order |= {pod.metadata.name for pod in snapshot.pods}
    uuids = [*_uuids(snapshot.nodes), *uuids_in(snapshot.resource_slices)]
    uuids += [gpu.id for each in snapshot.devices for gpu in each.spec.devices or () if gpu.id]
    names = Pseudonyms(KEPT_WORDS, in_order, uuids)
    _Renaming(names).document(lean(snapshot))
    names.allot()
    return msgspec.convert(_Renaming(names).document(lean(snapshot)), ClusterSnapshot)


def _uuids(nodes: Iterable[NodeManifest]) -> Iterable[str]:
    for node in nodes:
        yield from (gpu.uuid for gpu in inventory(node)[0].gpus if gpu.uuid)


def _by_name(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot with one `inventory` rule per node, because patterns would not match
    hashed names."""
    rules: list[Json] = []
    for node in snapshot.nodes:
        labels = node.metadata.labels or {}
        for rule in snapshot.configuration.get("inventory", ()):
            wanted = rule.get("labels", {}).items()
            by_name = fnmatch.fnmatchcase(node.metadata.name, rule.get("nodes", "*"))
            if by_name and all(labels.get(key) == value for key, value in wanted):
                rules.append({**rule, "nodes": node.metadata.name, "labels": {}})
                break
    return replace(snapshot, configuration={**snapshot.configuration, "inventory": rules})


class _Renaming:
    """Walks a snapshot's JSON and replaces names by their pseudonyms."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names, self._marks = names, Marks(names)
        self._compared: set[str] = set()

    def document(self, document: Json) -> Json:
        """Return the document with all names replaced by their pseudonyms."""
        self._compared = set(_compared(document))
        for pod in document.get("pods", ()):
            for volume in pod.get("spec", {}).get("volumes", ()):
                if "ephemeral" in volume:
                    self._names.composed(pod["metadata"]["name"], volume["name"])
        claims = ClaimNames(self._names, self._dict, self._expressions)
        own = {
            "configuration": self._configuration(document["configuration"]),
            "pods": [self._pod(pod, document) for pod in document.get("pods", ())],
            "persistentVolumeClaims": [
                self._volume_claim(each) for each in document.get("persistentVolumeClaims", ())
            ],
            "nodes": [self._node(node) for node in document.get("nodes", ())],
            "configMaps": [self._config_map(each) for each in document.get("configMaps", ())],
            "namespaces": [self._namespace(each) for each in document.get("namespaces", ())],
            "resourceSlices": [
                claims.of_slice(each) for each in document.get("resourceSlices", ())
            ],
            "resourceClaims": [
                claims.of_claim(each) for each in document.get("resourceClaims", ())
            ],
            "devices": [self._device(each) for each in document.get("devices", ())],
            "oomHistory": self._oom_history(document.get("oomHistory", {})),
            "unread": [kind.partition(" ")[0] for kind in document.get("unread", ())],
        }
        return {
            key: own[key] if key in own else self._value(key, value)
            for key, value in document.items()
        }

    # --- objects ---

    def _pod(self, pod: Json, document: Json) -> Json:
        meta, renamed = pod["metadata"], self._dict(pod)
        template = meta.get("labels", {}).get(TEMPLATE_HASH, "")
        owners = meta.get("ownerReferences")
        if owners is not None:
            renamed["metadata"]["ownerReferences"] = [self._owner(o, template) for o in owners]
        for part in ("containerStatuses", "initContainerStatuses"):
            if document.get("oomHistory"):  # the history already holds what these ends say
                renamed.get("status", {}).pop(part, None)
        return renamed

    def _owner(self, owner: Json, template: str) -> Json:
        """Rename an owner so that its hash still shows the Deployment or CronJob to which it
        belongs."""
        name, kind = owner.get("name", ""), owner.get("kind", "")
        minute = _MINUTE.fullmatch(name) if kind == "Job" else None
        if template and name.endswith(f"-{template}") and name != f"-{template}":
            base = name.removesuffix(f"-{template}")
            renamed = f"{self._names.name(base)}-{self._names.name(template)}"
        elif minute is not None:
            renamed = f"{self._names.name(minute[1])}-{minute[2]}"
        else:
            renamed = self._names.name(name)
        version = owner.get("apiVersion", "")
        kept = {} if version in ("", *_VERSIONS) else {"apiVersion": self._names.name(version)}
        return {**owner, **kept, "kind": self._names.word(kind), "name": renamed}

    def _volume_claim(self, claim: Json) -> Json:
        renamed, owners = self._dict(claim), claim["metadata"].get("ownerReferences")
        if owners is not None:
            own = [{**self._owner(o, ""), "uid": self._names.uid(o.get("uid", ""))} for o in owners]
            renamed["metadata"]["ownerReferences"] = own
        return renamed

    def _namespace(self, namespace: Json) -> Json:
        renamed = self._dict(namespace)
        renamed["metadata"]["name"] = self._names.word(namespace["metadata"]["name"])
        return renamed

    def _node(self, node: Json) -> Json:
        renamed = self._dict(node)
        conditions = renamed.get("status", {}).get("conditions")
        if conditions is not None:
            known = [each for each in conditions if each.get("type") in _CONDITIONS]
            renamed["status"]["conditions"] = known
        return renamed

    def _device(self, device: Json) -> Json:
        """Rename Koordinator's Device: its node, and its GPUs' UUIDs."""
        gpus = [
            {**gpu, "id": self._names.gpu(gpu.get("id", ""))}
            for gpu in device.get("spec", {}).get("devices", ())
        ]
        return {"metadata": self._dict(device["metadata"]), "spec": {"devices": gpus}}

    def _config_map(self, config_map: Json) -> Json:
        """Rename a ConfigMap named `unhealthy-gpu-NODE`."""
        meta = config_map["metadata"]
        node = meta["name"].removeprefix(UNHEALTHY_PREFIX)
        renamed = {**self._dict(meta), "name": UNHEALTHY_PREFIX + self._names.name(node)}
        return {**config_map, "metadata": renamed}

    def _configuration(self, configuration: Json) -> Json:
        names = {profile["schedulerName"] for profile in configuration["profiles"]}
        profiles = [
            {**profile, "schedulerName": self._names.word(profile["schedulerName"])}
            for profile in configuration["profiles"]
        ]
        rules = [
            {**rule, "nodes": self._names.name(rule["nodes"])}
            for rule in configuration.get("inventory", ())
        ]
        extender = dict(configuration["extender"])
        extender["routes"] = {
            path: self._names.word(policy) if policy in names else policy
            for path, policy in extender["routes"].items()
        }
        renamed = {"profiles": profiles, "inventory": rules, "extender": extender}
        if queues := configuration.get("queues"):
            teams = [{**team, "name": self._names.word(team["name"])} for team in queues["teams"]]
            renamed["queues"] = {**queues, "teams": teams}
        return {**configuration, **renamed}

    def _oom_history(self, known: dict[str, str]) -> dict[str, str]:
        """Rename workloads that ran out of GPU memory.

        Pods' peaks are left out: their keys are derived from requests and identities."""
        renamed = {}
        for key, text in known.items():
            try:
                entry = entry_of(key, text)
            except msgspec.DecodeError:
                continue
            namespace, kind, name = [*entry.workload.split("/", 2), "", ""][:3]
            words = self._names.word(namespace), self._names.word(kind), self._names.name(name)
            workload = "/".join(words)
            body = msgspec.json.encode(replace(entry, workload=workload)).decode()
            renamed[key_of(workload)] = body
        return renamed

    # --- fields ---

    def _dict(self, value: Json) -> Json:
        return {key: self._value(key, inner) for key, inner in value.items()}

    def _value(self, key: str, value: Any) -> Any:
        """Replace the names in a field's value, by rules that depend on the field's name."""
        if (rename := _FIELDS.get(key)) is not None:
            return rename(self, value)
        if key in _NAMES and isinstance(value, str):
            return self._names.name(value)
        if key in _WORDS and isinstance(value, str):
            return self._names.word(value)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list):
            return [self._dict(each) if isinstance(each, dict) else each for each in value]
        return value

    def _labels(self, labels: dict[str, str]) -> dict[str, str]:
        return dict(self._label(name, text) for name, text in labels.items())

    def _amounts(self, amounts: Any) -> Any:
        """Rename the keys of an object of amounts; a single amount is returned unchanged."""
        if not isinstance(amounts, dict):
            return amounts
        return {self._resource(name): amount for name, amount in amounts.items()}

    def _label(self, key: str, value: str) -> tuple[str, str]:
        return self._key(key), self._label_value(key, value)

    def _key(self, key: str) -> str:
        """Rename a key, unless Kubernetes or a GPU scheduling system defines it."""
        domain, slash, _ = key.partition("/")
        kubernetes = slash and domain.endswith(("kubernetes.io", "k8s.io"))
        own = kubernetes or key in _OWN_KEYS or is_systems_own(key)
        return key if own else self._names.name(key)

    def _keys(self, keys: list[str]) -> list[str]:
        return [self._key(key) for key in keys]

    def _label_value(self, key: str, value: str) -> str:
        if key in READ_LABELS:  # queues, which may be namespaces'
            return self._names.word(value)
        if is_systems_own(key) or key in _SAID_BY_VALUE or key == OLD_LEAST:
            return value
        if key in self._compared and value.lstrip("-").isdecimal():
            return value
        # A volume's zone label joins several zones by "__".
        return "__".join(map(self._names.name, value.split("__")))

    def _resource(self, name: str) -> str:
        domain, slash, _ = name.partition("/")
        if not slash or is_systems_own(name) or foreign_resource(name) is not None:
            return name
        if domain.endswith("kubernetes.io"):
            return name
        hashed = self._names.name(name)
        return f"{hashed}.invalid/{hashed}"

    def _extended(self, name: str) -> str:
        """Rename a resource, unless Kubernetes or a GPU scheduling system defines it; names without
        a domain are always renamed."""
        return self._resource(name) if "/" in name else self._names.name(name)

    def _expressions(self, terms: list[Json]) -> list[Json]:
        return [
            {
                **term,
                **({"key": self._key(term["key"])} if "key" in term else {}),
                **self._values_of(term),
            }
            for term in terms
        ]

    def _values_of(self, term: Json) -> Json:
        if "values" not in term:
            return {}
        key = term.get("key", "")
        return {"values": [self._label_value(key, value) for value in term["values"]]}

    def _image(self, image: Any) -> Any:
        """Rename an image, or a volume's image, whose name in the snapshot is an unkeyed hash."""
        if isinstance(image, dict):
            return {key: self._image(inner) for key, inner in image.items()}
        hashed = image.removeprefix("image-").removesuffix(":hashed")
        return f"image-{self._names.name(hashed)}:hashed" if hashed else image

    def _images(self, images: list[Json]) -> list[Json]:
        return [{**each, "names": [self._image(n) for n in each["names"]]} for each in images]

    def _tainted(self, entries: list[Json]) -> list[Json]:
        """Rename the keys and values of taints or tolerations."""
        renamed = []
        for entry in entries:
            key, value = entry.get("key", ""), entry.get("value", "")
            own = {"key": self._key(key)} if key else {}
            own |= {"value": self._label_value(key, value)} if value else {}
            renamed.append({**entry, **own})
        return renamed

    def _gates(self, gates: list[Json]) -> list[Json]:
        return [{**gate, "name": self._key(gate.get("name", ""))} for gate in gates]

    def _by_name(self, amounts: Json) -> Json:
        return {self._names.name(name): amount for name, amount in amounts.items()}

    def _name_list(self, names: list[str]) -> list[str]:
        return [self._names.word(name) for name in names]

    def _uid(self, uid: str) -> str:
        return self._names.uid(uid)

    def _annotations(self, annotations: dict[str, str]) -> dict[str, str]:
        of_claims = {key: annotations[key] for key in KEPT_OF_CLAIMS if key in annotations}
        if SELECTED_NODE in of_claims:
            of_claims[SELECTED_NODE] = self._names.name(of_claims[SELECTED_NODE])
        return self._marks.renamed(annotations) | of_claims

    def _as_it_is(self, value: Any) -> Any:
        return value

    def _left_out(self, value: Any) -> str:
        return ""


def _compared(value: Any) -> Iterable[str]:
    """Yield the label keys that a selector compares as numbers (Gt, Lt)."""
    if isinstance(value, dict):
        if value.get("operator") in ("Gt", "Lt") and isinstance(value.get("key"), str):
            yield value["key"]
        for inner in value.values():
            yield from _compared(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _compared(inner)


_FIELDS: dict[str, Callable[[_Renaming, Any], Any]] = {
    **dict.fromkeys(("labels", "nodeSelector", "matchLabels"), _Renaming._labels),
    **dict.fromkeys(
        ("limits", "requests", "overhead", "capacity", "allocatable"), _Renaming._amounts
    ),
    **dict.fromkeys(("matchExpressions", "matchLabelExpressions"), _Renaming._expressions),
    "matchFields": _Renaming._expressions,
    "taints": _Renaming._tainted,
    "tolerations": _Renaming._tainted,
    "topologyKey": _Renaming._key,
    "topology": _Renaming._expressions,
    "minTaskMember": _Renaming._by_name,
    **dict.fromkeys(("matchLabelKeys", "mismatchLabelKeys"), _Renaming._keys),
    **dict.fromkeys(("nodeAffinityPolicy", "nodeTaintsPolicy"), _Renaming._as_it_is),
    **dict.fromkeys(("declaredFeatures", "action"), _Renaming._as_it_is),
    "schedulingGates": _Renaming._gates,
    **dict.fromkeys(("namespaces", "monitors"), _Renaming._name_list),
    "uid": _Renaming._uid,
    "image": _Renaming._image,
    "images": _Renaming._images,
    "annotations": _Renaming._annotations,
    "env": _Renaming._as_it_is,
    "data": _Renaming._as_it_is,
    "containerID": _Renaming._left_out,
    **dict.fromkeys(("resourceName", "extendedResourceName"), _Renaming._extended),
}


# --- ResourceClaims -------------------------------------------------------------------------------
# Replaces names in ResourceSlices and ResourceClaims, for `anonymous`.


_MAKERS = re.compile(r"[a-z]{1,8}-[0-9]{1,4}(-mig-[0-9a-z-]{1,40})?")
"""Device names as drivers generate them, such as gpu-0: they do not identify the cluster, and are
left unchanged."""
_PODS = "pods"


def uuids_in(slices: Iterable[ResourceSlice]) -> Iterable[str]:
    """Yield the UUIDs of GPUs in slices."""
    for device in (each for shown in slices for each in shown.spec.devices or ()):
        for name, value in (device.attributes or {}).items():
            if local(name).endswith("uuid") and value.string:
                yield value.string


class ClaimNames:
    """Renames slices and claims; `plain` renames any object by its fields' names, `expressions` the
    terms of a selector."""

    def __init__(
        self,
        names: Pseudonyms,
        plain: Callable[[Json], Json],
        expressions: Callable[[list[Json]], list[Json]],
    ) -> None:
        self._names, self._plain, self._expressions = names, plain, expressions

    def of_slice(self, shown: Json) -> Json:
        """Return a ResourceSlice with renamed fields."""
        spec = dict(shown.get("spec", {}))
        devices = spec.pop("devices", [])
        renamed = self._plain({**shown, "spec": spec})
        if devices:
            renamed["spec"]["devices"] = [self._device(each) for each in devices]
        return renamed

    def _device(self, device: Json) -> Json:
        attributes, capacity = device.get("attributes"), device.get("capacity")
        rest = {k: v for k, v in device.items() if k not in ("attributes", "capacity", "name")}
        renamed = {"name": self._device_name(device.get("name", "")), **self._plain(rest)}
        if attributes:
            renamed["attributes"] = {
                name: {**value, "string": self._names.gpu(value["string"])}
                if local(name).endswith("uuid") and "string" in value
                else value
                for name, value in attributes.items()
            }
        return renamed | ({"capacity": capacity} if capacity else {})

    def _device_name(self, name: str) -> str:
        return name if _MAKERS.fullmatch(name) else self._names.name(name)

    def of_claim(self, claim: Json) -> Json:
        """Return the ResourceClaim with the names in its fields replaced."""
        renamed = self._plain({"metadata": claim.get("metadata", {})})
        if spec := claim.get("spec"):
            requests = spec.get("devices", {}).get("requests", [])
            renamed["spec"] = {"devices": {"requests": [self._plain(each) for each in requests]}}
        if status := claim.get("status"):
            renamed["status"] = self._status(status)
        return renamed

    def _status(self, status: Json) -> Json:
        renamed: Json = {}
        if allocation := status.get("allocation"):
            renamed["allocation"] = held = dict(allocation)
            if results := allocation.get("devices", {}).get("results"):
                held["devices"] = {"results": [self._result(each) for each in results]}
            if selector := allocation.get("nodeSelector"):
                held["nodeSelector"] = self._plain(selector)
        if users := status.get("reservedFor"):
            renamed["reservedFor"] = [self._user(each) for each in users]
        return renamed

    def _result(self, result: Json) -> Json:
        renamed = dict(result)
        for field, rename in (
            ("request", self._request),
            ("driver", self._names.name),
            ("pool", self._names.name),
            ("device", self._device_name),
        ):
            if renamed.get(field):
                renamed[field] = rename(renamed[field])
        return renamed

    def _request(self, request: str) -> str:
        return "/".join(map(self._names.name, request.split("/")))

    def _user(self, user: Json) -> Json:
        kind = user.get("resource", "")
        renamed = self._plain({k: v for k, v in user.items() if k != "resource"})
        if kind:
            renamed["resource"] = kind if kind == _PODS else self._names.name(kind)
        return renamed


# --- marks ----------------------------------------------------------------------------------------
# Renames in GPU systems' annotations the pods, nodes, containers, applications and GPUs.


_BY_CONTAINER = (elastic.CONTAINER, elastic.NANO_CONTAINER)
"""Prefixes of annotations that end in a container's name."""
_OTHERS = (
    *(ADVERTISES, AGENT, CLASS, EXPECTED_DURATION, FENCED_VERSION, GPU_MODEL, INVENTORY),
    *(GANG, GANG_SIZE, groups.KOORDINATOR_LEAST, groups.KOORDINATOR_TOTAL, groups.LWS_SIZE),
    *(groups.KOORDINATOR_WAITS, groups.KOORDINATOR_MODE, groups.KOORDINATOR_MATCH),
    *(ISOLATION, MOVABLE, RESTART_COST, SLO_MS, SOLO_P99_MS, SOLO_RATE, TERM),
    *hami.RULES,
    *(*ANNOTATIONS, *ASKING_ANNOTATIONS, kai.MPS, kai.RESERVED_CARD),
    *(name for s in ALL for name in (*s.written, *s.kept_marks, *s.written_on_nodes)),
)
_MARK_NAMES = (
    *(APPLICATION, hami.NODE, kai.CONTAINER),
    *(*groups.GROUP_NAMES, groups.KOORDINATOR_NAME, groups.TASK),
)
"""Annotations whose value is a name."""
_EXACT = frozenset(name for name in _OTHERS if not name.endswith("*"))
_BEGINNINGS = tuple(name.rstrip("*") for name in _OTHERS if name.endswith("*"))


class Marks:
    """Replaces the names in one snapshot's annotations; unknown annotations are dropped."""

    def __init__(self, names: Pseudonyms) -> None:
        self._names = names

    def renamed(self, annotations: dict[str, str]) -> dict[str, str]:
        """Return the known annotations, renamed."""
        renamed = {}
        for key, text in annotations.items():
            beginning = next((begin for begin in _BY_CONTAINER if key.startswith(begin)), "")
            if beginning:
                name = beginning + self._names.name(key.removeprefix(beginning))
                renamed[name] = self._names.gpus_in(text)
            elif key in queues.READ_ANNOTATIONS:  # which may be namespaces'
                renamed[key] = self._names.word(text)
            elif (value := self._value(key, text)) is not None:
                renamed[key] = value
        return renamed

    def _value(self, key: str, text: str) -> str | None:
        if key in _MARK_NAMES:
            return self._names.name(text)
        if key in (PLACEMENT, PLACEMENT_COPY, PLUGIN_GPUS):
            return self._plugin_gpus(text) if key == PLUGIN_GPUS else self._placement(text)
        if key == OUT_OF_MEMORY:
            return self._out_of_memory(text)
        if key == gpushare.ALLOCATION:
            return self._allocation(text)
        if key in _EXACT or key.startswith(_BEGINNINGS):
            return self._names.gpus_in(text)
        return None

    def _placement(self, text: str) -> str:
        """Rename a placement's pod, node and GPUs; "damaged" if it is malformed."""
        value = _object(text)
        if value is None:
            return "damaged"
        renamed = {
            "pod": self._names.uid(str(value.get("pod"))),
            "node": self._names.name(str(value.get("node"))),
        }
        if "shares" in value:
            renamed["shares"] = _with_gpus(value["shares"], self._names)
        return json.dumps(renamed, separators=(",", ":"))

    def _plugin_gpus(self, text: str) -> str:
        """Rename GPUs and pods of NVIDIA's device plugin; "damaged" if the text is malformed."""
        try:
            given = decode_plugin_gpus(text)
        except ValueError:
            return "damaged"
        cards = tuple(map(self._names.gpu, given.cards))
        pods = {self._names.uid(uid): gpus for uid, gpus in given.pods.items()}
        return encode_plugin_gpus(PluginGpus(cards, pods))

    def _out_of_memory(self, text: str) -> str | None:
        value = _object(text)
        if value is None:
            return None
        known = {"end": self._names.name(str(value.get("end", "")))}
        if isinstance(value.get("peak_mib"), int):
            return json.dumps({**known, "peak_mib": value["peak_mib"]})
        return json.dumps(known)

    def _allocation(self, text: str) -> str | None:
        """Rename the containers in `{"<container>": {"<gpu>": units}}`; None if it is malformed."""
        value = _object(text)
        if value is None:
            return None
        return json.dumps({self._names.name(name): cards for name, cards in value.items()})


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _with_gpus(value: Any, names: Pseudonyms) -> Any:
    """Replace every text in the value, each of which is a GPU's UUID, by its pseudonym."""
    if isinstance(value, list):
        return [_with_gpus(inner, names) for inner in value]
    return (
        names.gpu(value) if isinstance(value, str) else None if isinstance(value, dict) else value
    )

"""A snapshot says of pods with claims and disks what the cluster says, with names and without.

Drawn clusters: what fits where is asked of the engine that the uncut objects fill, and of those
that the two snapshots fill.
"""

import json
from collections import Counter
from typing import Any

import msgspec
from long_form import few_or_many

from fakes.drawn_cluster import Object, drawn
from fakes.drawn_storage import CLASSES_AND_DRIVERS, OWN_CLAIM, StorageWorld
from weft.cli.policies import registry
from weft.cluster.config.form import Configuration
from weft.cluster.snapshot.anonymous import anonymous
from weft.cluster.snapshot.capture import CapturedObjects, snapshot_of
from weft.cluster.snapshot.file import decode, encode
from weft.cluster.snapshot.form import KINDS, ClusterSnapshot
from weft.cluster.snapshot.kept import kept
from weft.cluster.snapshot.state import SnapshotState, snapshot_state
from weft.core.engine import Engine, NodesChanged
from weft.host.plan import reading_cluster
from weft.kube.clock import SystemClock
from weft.model import Code

NAMESPACES = ("claims", "a", "b")
OF_VOLUMES = {
    *(Code.VOLUME, Code.CLAIM_WAITS, Code.CLAIM_TAKEN, Code.DISK_TAKEN),
    *(Code.NO_VOLUME, Code.STORAGE_CAPACITY, Code.VOLUME_LIMIT),
}


def objects_of(seed: int) -> dict[str, list[Any]]:
    """The objects that an API server would show, by the snapshot's fields."""
    world = StorageWorld(seed, NAMESPACES)
    cluster = drawn(world)
    namespaces = [
        {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name, labels in cluster.namespaces.items()
    ]
    pods = [*cluster.there, *cluster.asked]
    found: dict[str, list[Any]] = {field: [] for field, _ in KINDS.values()}
    for item in (*namespaces, *CLASSES_AND_DRIVERS, *cluster.nodes, *cluster.bound, *pods):
        shown = as_shown(item)
        field, resource = KINDS[item["kind"]]
        found[field].append(resource.decode(json.dumps(shown).encode()))
        if item["kind"] == "Pod":
            found["persistent_volume_claims"] += own_claims(shown)
    return found


def as_shown(item: Object) -> Object:
    """As the server completes it: a UID, a phase, no labels without values; gates are open."""
    meta = dict(item["metadata"])
    meta["uid"] = f"{item['kind']}/{meta.get('namespace', '')}/{meta['name']}"
    if "labels" in meta:
        meta["labels"] = {key: value for key, value in meta["labels"].items() if value is not None}
    if "finalizers" in meta:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {key: each for key, each in item.get("spec", {}).items() if key != "schedulingGates"}
    shown = {**item, "metadata": meta, "spec": spec}
    if item["kind"] == "PersistentVolumeClaim":
        is_bound = "pv.kubernetes.io/bind-completed" in meta.get("annotations", {})
        shown["status"] = {"phase": "Bound" if is_bound else "Pending"}
    if item["kind"] == "PersistentVolume":
        shown.setdefault("status", {"phase": "Bound"})
    return shown


def own_claims(pod: Object) -> list[Any]:
    """The claims that were made for the pod's ephemeral volumes."""
    meta, found = pod["metadata"], []
    state = meta.get("annotations", {}).get(OWN_CLAIM, "none")
    for volume in pod["spec"].get("volumes", ()):
        if "ephemeral" in volume and state != "none":
            owner = {"kind": "Pod", "name": meta["name"], "uid": meta["uid"], "controller": True}
            about = {"name": f"{meta['name']}-{volume['name']}", "namespace": meta["namespace"]}
            owners = [owner] if state == "made" else []
            body = {
                "metadata": {**about, "uid": f"{about['name']}'s", "ownerReferences": owners},
                "spec": volume["ephemeral"]["volumeClaimTemplate"]["spec"],
                "status": {"phase": "Pending"},
            }
            found.append(KINDS["PersistentVolumeClaim"][1].decode(json.dumps(body).encode()))
    return found


def state_of(snapshot: ClusterSnapshot) -> SnapshotState:
    config = Configuration()
    return snapshot_state(snapshot, lambda client: reading_cluster(config, registry(), client))


def codes_of(state: SnapshotState, engine: Engine | None = None) -> list[list[int]]:
    """The codes of each pending pod, in their order, for each node, in theirs."""
    engine = engine or state.engine
    pods = sorted(state.live.pods.unbound(), key=lambda pod: pod.metadata.name)
    profile = next(iter(engine.profiles.values()))
    return [engine.assess(profile, state.live.parse(pod)).codes.tolist() for pod in pods]


def test_a_snapshot_says_what_the_cluster_says() -> None:
    seen: Counter[int] = Counter()
    for seed in few_or_many((4, 12), tuple(range(100))):  # these two have all of it
        seen.update(code for codes in compared(seed) for code in codes)
    assert {code for code in OF_VOLUMES if not seen[code]} == set()
    assert seen[Code.FITS]


def compared(seed: int) -> list[list[int]]:
    """The codes of pods and nodes, which are the same everywhere."""
    found = objects_of(seed)
    config = Configuration()
    now = SystemClock().wall()
    cut = snapshot_of(CapturedObjects(found), config, now)
    fields = {field: tuple(objects) for field, objects in found.items()}
    for field, objects in fields.items():
        fields[field] = tuple(
            sorted(objects, key=lambda each: (each.metadata.namespace, each.metadata.name))
        )
    uncut = msgspec.structs.replace(cut, **fields)
    wanted = codes_of(state_of(uncut))
    assert kept(cut) == cut
    body = encode(cut)
    for secret in ("vol-", "iqn.", "10.0.0.1:3260", "prepared-0/none"):
        assert secret.encode() not in body
    read = state_of(decode(body, "x.json"))
    assert codes_of(read) == wanted
    hidden = encode(anonymous(cut))
    for name in ("counted.example.com", "prepared-", "wait-", "zoned", "silver"):
        assert name.encode() not in hidden
    assert codes_of(state_of(decode(hidden, "x.json"))) == wanted
    other = Engine(list(read.engine.profiles.values()))
    other.handle(NodesChanged(read.nodes), 0)
    for event in read.events():
        other.handle(event, 0)
    assert codes_of(read, other) == wanted
    return wanted

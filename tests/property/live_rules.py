"""Rules and volumes in the faulty world: what pods say of nodes and of each other, what their
claims are bound to, and what of all that must hold, by the API's objects alone."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from drawn_rules import SHARE, ZONE, broken_rules, drawn_rules, node_labels
from live_asks import ANOTHER, Json, bound_since_s, ended, marks_of, node_of
from live_instance import BIND_S

from fakes.plain_rules import Cluster
from fakes.volume_controllers import PROVISIONER, SELECTED_NODE, VolumeControllers
from weft.cluster.control.live_cluster import EngineCluster
from weft.kube.pods import Pod
from weft.model import Code

if TYPE_CHECKING:
    from faulty_world import World

NAMESPACE = "d"
AT_ONCE = ("taint", "node affinity", "anti-affinity", "others' anti-affinity")
"""Rules that hold whenever a binding arrives: what others do meanwhile, but for nodes that come
back, cannot break them."""
BACK_FOR_S = 120.0  # a node that is back so long is known to everybody
PROBES = 6
CLASSES = {"fast": "kubernetes.io/no-provisioner", "made": PROVISIONER}
VOLUMES = {"v0": "a", "v1": "b", "v2": "a"}


class LiveRules:
    """See this module's head. What it draws does not change what the world draws."""

    def __init__(self, world: "World", seed: int) -> None:
        self.world, self.random, self.seed = world, Random(seed), seed
        self._back_at: dict[str, float] = {}

    # --- objects ---

    def begin(self) -> None:
        """Classes, volumes, and the controllers that bind them."""
        for name, provisioner in CLASSES.items():
            mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
            self.world.server.add("storageclasses", {"metadata": {"name": name}, **mode})
        for name in VOLUMES:
            self._add_volume(name)

    def controllers(self) -> VolumeControllers:
        """Those that bind claims to volumes, and make some."""
        return VolumeControllers(self.world.server, looks_every_s=1.0)

    def _add_volume(self, name: str) -> None:
        rule = {"key": ZONE, "operator": "In", "values": [VOLUMES[name]]}
        required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "nodeAffinity": {"required": required},
        }
        body = {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}
        self.world.server.add("persistentvolumes", body)

    def of_node(self, name: str) -> Json:
        """The node's labels, always the same, and its taints."""
        own = Random(f"{self.seed}/{name}")
        self._back_at[name] = asyncio.get_running_loop().time()
        taints = [{"key": "slow", "effect": "PreferNoSchedule"}] if own.random() < 0.3 else []
        return {"labels": node_labels(own, name), "taints": taints}

    def of_pod(self, name: str) -> tuple[Json, dict[str, str]]:
        """More of a new pod's spec, and its labels; its claims are made."""
        spec: Json = {}
        labels: dict[str, str] = {}
        if self.random.random() < SHARE:
            spec, labels, kind = drawn_rules(self.random)
            self.world.hits[f"pod with {kind}"] += 1
        if self.random.random() < SHARE / 2:
            self._add_claim(name)
            source = {"persistentVolumeClaim": {"claimName": name}}
            spec["volumes"] = [{"name": "data", **source}]
            self.world.hits["pod with claim"] += 1
        return spec, labels

    def _add_claim(self, name: str) -> None:
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": self.random.choice(list(CLASSES)),
            "resources": {"requests": {"storage": "1Gi"}},
        }
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
        self.world.server.add("persistentvolumeclaims", {**body, "status": {"phase": "Pending"}})

    def gone(self, pod: Json) -> None:
        """The pod was removed: so are its claims, and their volumes serve others."""
        for name in claims_of(pod):
            claim = self._claim(name)
            self.world.server.remove("persistentvolumeclaims", name, NAMESPACE)
            for volume in self._volumes_for(claim):
                own = volume["metadata"]["name"]
                self.world.server.remove("persistentvolumes", own, "")
                if own in VOLUMES:
                    self._add_volume(own)

    def _claim(self, name: str) -> Json:
        return self.world.server.get("persistentvolumeclaims", name, NAMESPACE)

    def _volumes(self) -> list[Json]:
        return self.world.server.store.all(self.world.server.kind("persistentvolumes"))

    def _volumes_for(self, claim: Json) -> list[Json]:
        """The volumes that are bound to the claim, or set apart for it."""
        uid = claim["metadata"]["uid"]
        return [v for v in self._volumes() if (v["spec"].get("claimRef") or {}).get("uid") == uid]

    # --- what must hold ---

    def cluster(self) -> Cluster:
        """The API's objects."""
        nodes = {node["metadata"]["name"]: node for node in self.world.nodes()}
        pods = {one["metadata"]["uid"]: one for one in self.world.pods() if not ended(one)}
        return Cluster(nodes, pods, {NAMESPACE: {}})

    def broken_at_binding(self, pod: Json, decided_for_s: float) -> str:
        """The rules that Weft broke by binding the pod, beside others that it bound, or "".

        Not beside those that kube-scheduler placed since this was decided, so long ago, or while it
        was under way: it judges its own pods, and knows of no place before it is bound.
        """
        since_s = max(BIND_S, decided_for_s + 1)  # the API writes whole seconds
        every, now = self.cluster(), asyncio.get_running_loop().time()
        here, uid = node_of(pod), pod["metadata"]["uid"]
        nodes = {
            name: node
            for name, node in every.nodes.items()
            if name == here or now - self._back_at[name] > BACK_FOR_S
        }
        others = {
            one: other
            for one, other in every.pods.items()
            if one != uid and node_of(other) and marks_of(other) is not None
            if other["spec"]["schedulerName"] != ANOTHER or bound_since_s(other) > since_s
        }
        broken = broken_rules(Cluster(nodes, others, every.namespaces), pod, here)
        found = [why for why in broken if why in AT_ONCE and here in nodes]
        return ", ".join(found) or self._wrong_volume(pod, every)

    def _wrong_volume(self, pod: Json, cluster: Cluster) -> str:
        for name in claims_of(pod):
            claim = self._claim(name)
            own = claim["spec"].get("volumeName")
            volume = next(
                (v for v in self._volumes_for(claim) if v["metadata"]["name"] == own), None
            )
            if volume is None:
                return f"claim {name} is not bound to a volume"
            node = cluster.nodes.get(node_of(pod))
            if node is not None and not reaches(volume, node):
                return f"claim {name} has a volume elsewhere"
        return ""

    def keeps_off(self, cluster: Cluster, pod: Json, node: str) -> str:
        """The rule, or the claim, by which the pod may not be there; "" for none."""
        found = next(iter(broken_rules(cluster, pod, node)), "")
        return found or next(
            (name for name in claims_of(pod) if not self._served(name, cluster.nodes[node])), ""
        )

    def _served(self, name: str, node: Json) -> bool:
        claim = self._claim(name)
        meta, own = claim["metadata"], self._volumes_for(claim)
        if own:
            return any(reaches(volume, node) for volume in own)
        if claim["spec"]["storageClassName"] == "made":
            selected = (meta.get("annotations") or {}).get(SELECTED_NODE)
            return selected in (None, node["metadata"]["name"])
        free = [volume for volume in self._volumes() if not volume["spec"].get("claimRef")]
        return any(reaches(volume, node) for volume in free if is_plain(volume))

    def probe(self, live: EngineCluster, name: str) -> None:
        """Pods with other rules, without GPUs: Weft's nodes for them are those of the objects."""
        cluster, table = self.cluster(), live.engine.ledger.table
        for number in range(PROBES):
            spec, labels, _ = drawn_rules(Random(f"{self.seed}/probe {number}"))
            meta = {"name": "probe", "uid": "probe", "namespace": NAMESPACE, "labels": labels}
            spec |= {"containers": [{"name": "c"}], "schedulerName": self.world.way.names[0]}
            pod: Any = {"metadata": meta, "spec": spec, "status": {}}
            request = live.parse(msgspec.convert(pod, Pod))
            found = live.engine.assess(live.engine.profile_of(request), request)
            for row, node in enumerate(table.nodes):
                broken = [*broken_rules(cluster, pod, node.name)]
                self.world.hits["probes refused"] += bool(broken)
                if found.codes[row] != Code.POLICY and bool(found.codes[row]) != bool(broken):
                    code = Code(int(found.codes[row])).name
                    self.world.violation(f"{name}: {node.name} for {spec}: {code}, not {broken}")


def claims_of(pod: Json) -> list[str]:
    """The names of the pod's claims."""
    volumes = pod["spec"].get("volumes") or ()
    return [v["persistentVolumeClaim"]["claimName"] for v in volumes]


def is_plain(volume: Json) -> bool:
    """True if it was there before, not made for somebody."""
    return volume["metadata"]["name"] in VOLUMES


def reaches(volume: Json, node: Json) -> bool:
    """True if the volume's node affinity, one rule of one term, accepts the node."""
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    rule = terms[0]["matchExpressions"][0]
    return (node["metadata"].get("labels") or {}).get(rule["key"]) in rule["values"]

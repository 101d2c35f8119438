"""Jobs in the faulty world: gangs, whose controller replaces whoever goes, and pods that Weft ends
for others of higher priority. What must hold of both, by the API's objects alone."""

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from live_asks import Ask, Json, ask_of, ended, fits, marks_of, node_of, random_spec, waits

from fakes.api_http import Request
from fakes.api_store import ApiRefusal
from weft.dialects.groups import GROUP_NAMES, KOORDINATOR_LEAST, KOORDINATOR_NAME, POD_GROUP
from weft.kube.pods import DISRUPTED

if TYPE_CHECKING:
    from faulty_world import World

NAMESPACE = "d"
SHARE = 0.4
"""The share of the stories that have gangs; all have in which places are kept soon."""
SHARE_WITH_OBJECTS = 0.5
"""The share of these whose API server has PodGroups."""
MOST_GANGS = 4
CORE, PLUGINS = "scheduling.k8s.io/v1beta1", "scheduling.x-k8s.io/v1alpha1"
VOLCANO = "scheduling.volcano.sh/v1beta1"
INITIALLY = "PodGroupInitiallyScheduled"
WITH_OBJECTS = (CORE, PLUGINS, VOLCANO)
"""API versions of PodGroups; other gangs' pods say their size themselves, as Koordinator's do."""
Cards = dict[str, list[list[int]]]
"""By node, what is free of each GPU: MiB, thousandths, and 1 where nobody is on it."""


class LiveGang(NamedTuple):
    """Its controller keeps `size` pods alike, of which it needs `least`. `version` is its
    PodGroup's; "" where its pods say that."""

    name: str
    size: int
    least: int
    spec: Json
    version: str = ""

    def pod(self, name: str) -> Json:
        """Another pod of it."""
        meta: Json = {"name": name, "namespace": NAMESPACE}
        spec = self.spec
        if self.version == CORE:
            spec = {**spec, "schedulingGroup": {"podGroupName": self.name}}
        elif self.version == PLUGINS:
            meta["labels"] = {POD_GROUP: self.name}
        elif self.version == VOLCANO:
            meta["annotations"] = {GROUP_NAMES[0]: self.name}
        else:
            meta["annotations"] = {KOORDINATOR_NAME: self.name, KOORDINATOR_LEAST: str(self.least)}
        return {"metadata": meta, "spec": spec}

    def group(self) -> Json:
        """Its PodGroup."""
        policy = {"schedulingPolicy": {"gang": {"minCount": self.least}}}
        spec = policy if self.version == CORE else {"minMember": self.least}
        return {"metadata": {"name": self.name, "namespace": NAMESPACE}, "spec": spec}


class LiveJobs:
    """See this module's head. What it draws does not change what the world draws."""

    def __init__(self, world: "World", seed: int) -> None:
        self.world, self.random = world, Random(seed)
        self.plays = self.random.random() < SHARE or world.line.soon
        self.gangs: dict[str, LiveGang] = {}
        self._made = 0
        self._objects, self._deleted = Random(seed + 1), set[str]()
        if self.plays and self._objects.random() < SHARE_WITH_OBJECTS:
            world.server.has_groups.update(WITH_OBJECTS)

    # --- gangs ---

    def comes(self) -> bool:
        """A gang comes; its pods ask alike."""
        if not self.plays or len(self.gangs) >= MOST_GANGS:
            return False
        spec, labels = random_spec(self.random)
        while labels:  # genius' label may be edited, pod by pod
            spec, labels = random_spec(self.random)
        priority = self.random.choice((0, 1, 2, 3))
        scheduler = self.random.choice(self.world.way.pods_names)
        spec |= {"schedulerName": scheduler, "priority": priority}
        size = self.random.randint(2, 4)
        self._made += 1
        least, version = self.random.randint(2, size), ""
        if self.world.server.has_groups:
            version = self._objects.choice(("", *WITH_OBJECTS))
        gang = LiveGang(f"g{self._made}", size, least, spec, version)
        self.gangs[gang.name] = gang
        self.tend()
        return True

    def goes(self) -> bool:
        """One is deleted: its controller makes no more pods, and those it has go."""
        if not self.gangs:
            return False
        gang = self.gangs.pop(self.random.choice(list(self.gangs)))
        self._remove_group(gang)
        for pod in self.pods_of(gang):
            self.world.delete(pod)
        return True

    def tend(self) -> bool:
        """As controllers do: whoever is missing is made, whoever ended is replaced."""
        for gang in self.gangs.values():
            self._tend_group(gang)
            there = 0
            for pod in self.pods_of(gang):
                if ended(pod):
                    self.world.remove(pod)
                there += not ended(pod)
            for _ in range(gang.size - there):
                self._made += 1
                self.world.server.add("pods", gang.pod(f"{gang.name}-{self._made}"))
        return bool(self.gangs)

    def _tend_group(self, gang: LiveGang) -> None:
        """Make its PodGroup, unless it is there; else somebody deletes it at times, and it is made
        anew the next time. Its pods may come before it."""
        if gang.version and not self._group_of(gang):
            if self.world.calm or self._objects.random() < 0.7:
                self.world.server.add(f"podgroups.{gang.version}", gang.group())
        elif not self.world.calm and self._objects.random() < 0.2:
            self._remove_group(gang)

    def binds(self, request: Request) -> None:
        """A Binding comes in: at times the PodGroup is deleted just then, or made anew."""
        if self.world.calm or not self.gangs or not request.path.endswith("/binding"):
            return
        name = request.path.split("/")[-2].rpartition("-")[0]
        gang = self.gangs.get(name)
        if gang is None or not self._group_of(gang) or self._objects.random() >= 0.4:
            return
        self._remove_group(gang)
        self.world.hits["PodGroup deleted while its pods are bound"] += 1
        if self._objects.random() < 0.5:
            self.world.server.add(f"podgroups.{gang.version}", gang.group())

    def _group_of(self, gang: LiveGang) -> Json | None:
        try:
            return self.world.server.get(f"podgroups.{gang.version}", gang.name, NAMESPACE)
        except (ApiRefusal, KeyError):
            return None

    def _remove_group(self, gang: LiveGang) -> None:
        if self._group_of(gang):
            self.world.server.remove(f"podgroups.{gang.version}", gang.name, NAMESPACE)
            self.world.hits["PodGroup deleted"] += 1
            self._deleted.add(gang.name)

    def pods_of(self, gang: LiveGang) -> list[Json]:
        """Its pods that are there."""
        return [pod for pod in self.world.pods() if gang_of(pod) == gang.name]

    def runs(self, name: str) -> int:
        """How many pods of a gang have a node, and are not on their way out."""
        return sum(
            bool(node_of(pod)) and not ended(pod) and not pod["metadata"].get("deletionTimestamp")
            for pod in self.world.pods()
            if gang_of(pod) == name
        )

    # --- what must hold ---

    def ends(self, sender: str, pod: Json) -> Iterator[str]:
        """Tell what is wrong with a pod's end for another one."""
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        own = spec["schedulerName"] in self.world.way.pods_names
        own = own or self._binds(sender, uid)  # somebody else was quicker, and it does not know yet
        if not own and node_of(pod) and marks_of(pod) is None:  # else Weft's binding is on its way
            yield f"{sender} ends {uid}, which another placed"
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(each["type"] == DISRUPTED for each in conditions):
            yield f"{sender} ends {uid}, and did not say why on it"
        if spec["priority"] >= 3:
            yield f"{sender} ends {uid}, and no pod is of higher priority"

    def _binds(self, sender: str, uid: str) -> bool:
        """True while the process binds the pod itself, and has no sure answer yet."""
        lives = [one.live for one in self.world.instances if one.name == sender and one.live]
        held = [live.engine.ledger.holdings.get(uid) for live in lives]
        return any(each is not None and each.state == "reserved" for each in held)

    def settled(
        self,
        free_for: Callable[[Json], Cards],
        kept_off: Callable[[Json, str], bool],
        filtered: Callable[[Json], bool],
    ) -> Iterator[str]:
        """Tell what is wrong with gangs once all has settled. `free_for` tells what is free for a
        pod, `kept_off` whether something else than room keeps it off a node, `filtered` whether its
        policy refuses GPUs that have room: one with another pod of the gang, perhaps."""
        for gang in self.gangs.values():
            running = self.runs(gang.name)
            if any(node_of(pod) and marks_of(pod) is None for pod in self.pods_of(gang)):
                continue  # somebody else bound one, which Weft does not evict
            waiting = [pod for pod in self.pods_of(gang) if waits(pod)]
            if gang.version == CORE and running >= gang.least and gang.name not in self._deleted:
                yield from self._told(gang)
            if 0 < running < gang.least:
                yield f"gang {gang.name} runs with {running} pods of {gang.least}"
            elif not running and len(waiting) >= gang.least:
                free = free_for(waiting[0])
                here = {node: free[node] for node in free if not kept_off(waiting[0], node)}
                if self._fits(gang, here, one_each=filtered(waiting[0])):
                    yield f"gang {gang.name} waits, and {gang.least} of its pods fit"

    def _told(self, gang: LiveGang) -> Iterator[str]:
        """Its PodGroup says that it has places."""
        group = self._group_of(gang) or {}
        conditions = (group.get("status") or {}).get("conditions") or []
        told = [each["status"] for each in conditions if each["type"] == INITIALLY]
        if told != ["True"]:
            yield f"gang {gang.name} runs, and {INITIALLY} of its PodGroup is {told}"

    def _fits(self, gang: LiveGang, free: Cards, *, one_each: bool) -> bool:
        """True if as many of its pods as it needs have room, `one_each` node or more."""
        ask = ask_of({"metadata": {}, "spec": gang.spec})
        found = 0
        for cards in free.values():
            left = [list(card) for card in cards]
            while fits(ask, [(mib, milli, bool(idle)) for mib, milli, idle in left]):
                _take(ask, left)
                found += 1
                if one_each:
                    break
        return found >= gang.least


def _take(ask: Ask, cards: list[list[int]]) -> None:
    """Charge the pod on cards on which it fits."""
    needs = ask.mib + ask.spare_mib
    here = [c for c in cards if c[0] >= needs and c[1] >= ask.milli and (c[2] or not ask.whole)]
    for card in here[: ask.count]:
        card[0] -= ask.mib
        card[1] -= ask.milli
        card[2] = 0


def gang_of(pod: Json) -> str:
    """The name of the pod's gang, "" for none."""
    notes, labels = (pod["metadata"].get(said) or {} for said in ("annotations", "labels"))
    group = pod["spec"].get("schedulingGroup") or {}
    names = (group.get("podGroupName"), labels.get(POD_GROUP), notes.get(GROUP_NAMES[0]))
    return str(next(filter(None, names), notes.get(KOORDINATOR_NAME, "")))

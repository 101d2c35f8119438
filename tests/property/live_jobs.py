"""Jobs in the faulty world: gangs, whose controller replaces whoever goes, and pods that Weft ends
for others of higher priority. What must hold of both, by the API's objects alone."""

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from live_asks import Ask, Json, ask_of, ended, fits, marks_of, node_of, random_spec, waits

from weft.dialects.groups import KOORDINATOR_LEAST, KOORDINATOR_NAME
from weft.kube.pods import DISRUPTED

if TYPE_CHECKING:
    from faulty_world import World

NAMESPACE = "d"
SHARE = 0.4
"""The share of the stories that have gangs; all have in which places are kept soon."""
MOST_GANGS = 4
Cards = dict[str, list[list[int]]]
"""By node, what is free of each GPU: MiB, thousandths, and 1 where nobody is on it."""


class LiveGang(NamedTuple):
    """Its controller keeps `size` pods alike, of which it needs `least`."""

    name: str
    size: int
    least: int
    spec: Json


class LiveJobs:
    """See this module's head. What it draws does not change what the world draws."""

    def __init__(self, world: "World", seed: int) -> None:
        self.world, self.random = world, Random(seed)
        self.plays = self.random.random() < SHARE or world.line.soon
        self.gangs: dict[str, LiveGang] = {}
        self._made = 0

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
        gang = LiveGang(f"g{self._made}", size, self.random.randint(2, size), spec)
        self.gangs[gang.name] = gang
        self.tend()
        return True

    def goes(self) -> bool:
        """One is deleted: its controller makes no more pods, and those it has go."""
        if not self.gangs:
            return False
        gang = self.gangs.pop(self.random.choice(list(self.gangs)))
        for pod in self.pods_of(gang):
            self.world.delete(pod)
        return True

    def tend(self) -> bool:
        """As controllers do: whoever is missing is made, whoever ended is replaced."""
        for gang in self.gangs.values():
            there = 0
            for pod in self.pods_of(gang):
                if ended(pod):
                    self.world.remove(pod)
                there += not ended(pod)
            for _ in range(gang.size - there):
                self._made += 1
                notes = {KOORDINATOR_NAME: gang.name, KOORDINATOR_LEAST: str(gang.least)}
                meta = {"name": f"{gang.name}-{self._made}", "namespace": NAMESPACE}
                self.world.server.add(
                    "pods", {"metadata": {**meta, "annotations": notes}, "spec": gang.spec}
                )
        return bool(self.gangs)

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
        self, free_for: Callable[[Json], Cards], kept_off: Callable[[Json, str], bool]
    ) -> Iterator[str]:
        """Tell what is wrong with gangs once all has settled. `free_for` tells what is free for a
        pod, `kept_off` whether something else than room keeps it off a node."""
        for gang in self.gangs.values():
            running = self.runs(gang.name)
            if any(node_of(pod) and marks_of(pod) is None for pod in self.pods_of(gang)):
                continue  # somebody else bound one, which Weft does not evict
            waiting = [pod for pod in self.pods_of(gang) if waits(pod)]
            if 0 < running < gang.least:
                yield f"gang {gang.name} runs with {running} pods of {gang.least}"
            elif not running and len(waiting) >= gang.least:
                free = free_for(waiting[0])
                here = {node: free[node] for node in free if not kept_off(waiting[0], node)}
                if self._fits(gang, here):
                    yield f"gang {gang.name} waits, and {gang.least} of its pods fit"

    def _fits(self, gang: LiveGang, free: Cards) -> bool:
        """True if as many of its pods as it needs have room, at the least."""
        ask = ask_of({"metadata": {}, "spec": gang.spec})
        found = 0
        for cards in free.values():
            left = [list(card) for card in cards]
            while fits(ask, [(mib, milli, bool(idle)) for mib, milli, idle in left]):
                _take(ask, left)
                found += 1
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
    return str((pod["metadata"].get("annotations") or {}).get(KOORDINATOR_NAME, ""))

"""Stories of gangs: pods come and go, bindings are refused, nodes leave, PodGroups are resized,
deleted and made anew, and the process crashes between any two writes.

At no time has a gang places for some pods and fewer than it needs, unless it lost one that it had;
none runs in part for long, whether its other pods fit nowhere, are never created again, or have
their Bindings refused each time; and when things have settled, none waits that has room.

There is one leader here, and nobody preempts. Two leaders, and gangs that end others or are ended,
are in the stories of the whole scheduler (`test_live_faults.py`); gangs that preempt also in
`test_preemption_is_least.py`.
"""

import random
from dataclasses import dataclass, field

import pytest
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BindFailed,
    Command,
    Engine,
    Evict,
    NodesChanged,
    NotEvicted,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Wake,
)
from weft.core.engine.gangs import GRACE_NS, MISSING_GRACE_NS
from weft.core.framework import Profile
from weft.core.ledger import FAR, audit
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit, FirstFit
from weft.model import Gang, Node, Placement, PodRequest
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine
from weft.testing import node, pod

SECOND = 1_000_000_000
STORIES = few_or_many(25, 2_000)
KEPT_SOON = HeadOfLine(after_ns=20 * SECOND, keep_for_ns=60 * SECOND)
POLICIES = (FirstFit, BestFit, LeastStranding)


@dataclass
class Story:
    """A cluster, what its API shows (`pods`, `bound`), and an engine that decides for it."""

    seed: int
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: dict[str, PodRequest] = field(default_factory=dict)
    bound: dict[str, Placement] = field(default_factory=dict)
    sent: list[Bind] = field(default_factory=list)
    hurt: set[str] = field(default_factory=set)
    gone: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    in_part_ns: dict[str, int] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    now_ns: int = 0
    wake_ns: int = FAR
    names: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        for number in range(self.draw.randint(1, 5)):
            labels = {"rack": f"r{number % 2}"}
            one = replace(node(f"n{number}", gpus=self.draw.randint(1, 8)), labels=labels)
            self.nodes[one.name] = one
        self.start()

    def start(self) -> None:
        """A new process: what is bound is seen, who waits comes again; nothing else is known."""
        policy = POLICIES[self.seed % len(POLICIES)]()
        self.engine = Engine(
            [Profile("weft", [policy])],
            self.nodes.values(),
            bind_timeout_ns=30 * SECOND,
            turn_looks=self.draw.choice([0, 2_000]),
            head_of_line=KEPT_SOON if self.seed % 2 else NOTHING_KEPT,
        )
        self.sent = []
        for uid, placement in self.bound.items():
            self.tell(PodSeenBound(placement, gang=self.pods[uid].gang))
        for uid, one in self.pods.items():
            if uid not in self.bound:
                self.tell(PodAdded(one))

    def tell(self, event: object) -> None:
        """One event; what it asks for is carried out later, or at once where it is an eviction."""
        self.take(self.engine.handle(event, self.now_ns))  # type: ignore[arg-type]
        assert audit(self.engine.ledger) == []
        self.check_whole()

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Bind):
                self.sent.append(command)
            elif isinstance(command, Wake):
                self.wake_ns = command.at_ns
        for command in commands:
            if isinstance(command, Evict):
                uid = command.placement.uid
                if self.draw.random() < 0.2:
                    self.tell(NotEvicted(uid))
                elif uid in self.pods:
                    self.ends(uid)

    def check_whole(self) -> None:
        """Gangs that lost nothing have places for none of their pods, or for enough."""
        held: dict[str, int] = {}
        least: dict[str, int] = {}
        for uid, one in self.pods.items():
            if one.gang and uid in self.engine.ledger.holdings:
                held[one.gang.key] = held.get(one.gang.key, 0) + 1
            if one.gang:
                least[one.gang.key] = one.gang.least
        for key, count in held.items():
            if key not in self.hurt:
                assert count >= least[key], f"{key}: {count} of {least[key]} have places"

    # --- what happens ---

    def gang_comes(self) -> None:
        self.names += 1
        size = self.draw.randint(1, 6)
        least = self.draw.randint(1, size)
        key = self.draw.choice(["", "", "rack"])
        gang = Gang("kubernetes", "ns", f"g{self.names}", least=least, topology_key=key)
        gpus = self.draw.choice([1, 1, 2, 4])
        for number in range(size):
            one = pod(f"g{self.names}-{number}", gpus=gpus, cpu_milli=100)
            self.comes(replace(one, gang=gang))
        if self.draw.random() < 0.1:  # admission refuses it each time
            self.refused.add(f"g{self.names}-0")

    def single_comes(self) -> None:
        self.names += 1
        self.comes(pod(f"s{self.names}", gpus=self.draw.choice([1, 2])))

    def comes(self, one: PodRequest) -> None:
        self.pods[one.uid] = one
        self.tell(PodAdded(one))

    def ends(self, uid: str, *, for_good: bool = False) -> None:
        one = self.pods[uid]
        if one.gang and uid in self.engine.ledger.holdings:
            self.hurt.add(one.gang.key)
        del self.pods[uid]
        self.bound.pop(uid, None)
        self.tell(PodGone(uid))
        if one.gang and not for_good:  # its controller makes another
            self.names += 1
            again = f"{one.uid}'"
            if uid in self.refused:
                self.refused.add(again)
            self.comes(replace(one, uid=again, name=again))

    def binding(self, *, refused: bool) -> None:
        if not self.sent:
            return
        command = self.sent.pop(self.draw.randrange(len(self.sent)))
        uid = command.pod.uid
        held = self.engine.ledger.holdings.get(uid)
        if uid not in self.pods or held is None or held.state != "reserved":
            return
        if held.placement != command.placement:
            return
        if refused or uid in self.refused:
            if command.pod.gang:
                self.hurt.add(command.pod.gang.key)
            self.tell(BindFailed(uid))
            self.tell(PodAdded(self.pods[uid]))  # as it is by now
        else:
            self.bound[uid] = command.placement
            self.tell(PodBound(uid))
            self.tell(PodSeenBound(command.placement, gang=self.pods[uid].gang))

    def node_goes(self) -> None:
        if len(self.nodes) < 2:
            return
        name = self.draw.choice(sorted(self.nodes))
        for uid in [uid for uid, place in self.bound.items() if place.node == name]:
            self.ends(uid)
        self.sent = [each for each in self.sent if each.placement.node != name]
        del self.nodes[name]
        self.hurt.update(one.gang.key for one in self.pods.values() if one.gang)
        self.tell(NodesChanged(removed=(name,)))

    def group_is_resized(self) -> None:
        gangs = sorted({one.gang.key for one in self.pods.values() if one.gang})
        if not gangs:
            return
        key, by = self.draw.choice(gangs), self.draw.choice([-1, 0])
        self.hurt.add(key)
        least = next(o.gang.least for o in self.pods.values() if o.gang and o.gang.key == key)
        self.group_says(key, max(1, least + by))

    def group_says(self, key: str, least: int) -> None:
        """Its object says another size, or is gone: 0."""
        self.hurt.add(key)
        for uid, one in list(self.pods.items()):
            if one.gang and one.gang.key == key and uid in self.pods:
                if least > one.gang.least:  # running pods are not evicted for a larger size
                    self.forgotten.add(key)
                gang = replace(one.gang, least=least)
                self.pods[uid] = replace(one, gang=gang)
                if uid not in self.bound:
                    self.tell(PodAdded(self.pods[uid]))
                else:
                    self.tell(PodSeenBound(self.bound[uid], gang=gang))

    def group_goes_or_is_made_anew(self) -> None:
        gone = {key: least for key, least in self.gone.items() if self.draw.random() < 0.5}
        for key, least in gone.items():
            del self.gone[key]
            self.group_says(key, least)
        there = {o.gang.key: o.gang.least for o in self.pods.values() if o.gang and o.gang.least}
        if there and not gone:
            key = self.draw.choice(sorted(there))
            self.gone[key] = there[key]
            self.group_says(key, 0)

    def crash(self) -> None:
        """The process ends between any two writes: of those on their way, some arrived. The new one
        leaves alone what runs of gangs of which no pod waits: they may be another scheduler's."""
        self.in_part_ns.clear()
        self.hurt.update(one.gang.key for one in self.pods.values() if one.gang)
        for each in self.sent:
            uid, held = each.pod.uid, self.engine.ledger.holdings.get(each.pod.uid)
            if held is None or held.state != "reserved" or held.placement != each.placement:
                continue
            if uid in self.pods and self.draw.random() < 0.5:
                self.bound[uid] = each.placement
        self.forgotten.update(one.gang.key for one in self.pods.values() if one.gang)
        self.start()

    def runs_in_part(self) -> list[str]:
        """Gangs of which some pods are bound, but too few."""
        bound: dict[str, int] = {}
        least: dict[str, int] = {}
        for uid in self.bound:
            if gang := self.pods[uid].gang:
                bound[gang.key] = bound.get(gang.key, 0) + 1
                least[gang.key] = gang.least
        return [key for key, count in bound.items() if count < least[key]]

    def check_not_in_part_for_long(self) -> None:
        """Evictions are refused now and then, so that some minutes more may pass."""
        now = {key: self.in_part_ns.get(key, self.now_ns) for key in self.runs_in_part()}
        self.in_part_ns = now
        for key, since_ns in now.items():
            lasted_ns = self.now_ns - since_ns
            there = [one for one in self.pods.values() if one.gang and one.gang.key == key]
            waits = len(there) >= there[0].gang.least  # type: ignore[union-attr]
            assert waits or key in self.forgotten or lasted_ns < 2 * MISSING_GRACE_NS, key
            assert not waits or lasted_ns < 10 * GRACE_NS, f"{key} runs in part"

    def time_passes(self, by_ns: int) -> None:
        self.check_not_in_part_for_long()
        self.now_ns += by_ns
        expired = [e for e in self.engine.ledger.holdings.values() if e.state == "reserved"]
        for held in expired:
            if held.deadline_ns <= self.now_ns and (one := self.pods.get(held.placement.uid)):
                self.hurt.update([one.gang.key] if one.gang else [])
        self.tell(Tick())
        for held in expired:
            uid = held.placement.uid
            if held.deadline_ns <= self.now_ns and uid in self.pods and uid not in self.bound:
                self.tell(PodAdded(self.pods[uid]))

    def step(self) -> None:
        happens = self.draw.random()
        if happens < 0.15:
            self.gang_comes()
        elif happens < 0.25:
            self.single_comes()
        elif happens < 0.65:
            self.binding(refused=self.draw.random() < 0.1)
        elif happens < 0.75 and self.pods:
            for_good = self.draw.random() < 0.2
            self.ends(self.draw.choice(sorted(self.pods)), for_good=for_good)
        elif happens < 0.78:
            self.crash()
        elif happens < 0.80:
            self.node_goes()
        elif happens < 0.83:
            self.group_is_resized()
        elif happens < 0.87:
            self.group_goes_or_is_made_anew()
        else:
            self.time_passes(self.draw.choice([SECOND // 2, 2 * SECOND, 11 * SECOND]))

    def settle(self) -> None:
        """Every group has its object, everything asked for is done, and hours pass."""
        for key, least in self.gone.items():
            self.group_says(key, least)
        for _ in range(30):
            for _ in range(len(self.sent)):
                self.binding(refused=False)
            self.time_passes(GRACE_NS + SECOND)
            while self.wake_ns <= self.now_ns:  # it yielded before all pods had their turn
                self.wake_ns = FAR
                self.tell(Tick())

    def check_settled(self) -> None:
        held = self.engine.ledger.holdings
        gangs: dict[str, list[PodRequest]] = {}
        for one in self.pods.values():
            if one.gang:
                gangs.setdefault(one.gang.key, []).append(one)
        for key, members in gangs.items():
            least, placed = members[0].gang.least, [m for m in members if m.uid in held]  # type: ignore[union-attr]
            waiting = [m for m in members if m.uid not in held]
            if any(m.uid in self.refused for m in members):
                continue
            if (waiting and len(members) >= least) or key not in self.forgotten:
                assert not placed or len(placed) >= least, f"{key} runs in part"
            if not placed and len(members) >= least:
                assert not self.has_room(waiting, least), f"{key} waits though it has room"

    def has_room(self, waiting: list[PodRequest], least: int) -> bool:
        """By counting alone: all pods of a gang ask for as many whole GPUs."""
        gang, gpus = waiting[0].gang, waiting[0].shape.gpu_requests[0].count
        table = self.engine.ledger.table
        room: dict[str, int] = {}
        for row, one in enumerate(table.nodes):
            taken = {
                share.gpu
                for held in self.engine.ledger.holdings.values()
                if held.placement.node == one.name
                for share in held.placement.shares
            }
            domain = one.labels["rack"] if gang and gang.topology_key else ""
            room[domain] = room.get(domain, 0) + (len(one.gpus) - len(taken)) // gpus
            assert row == table.row_of[one.name]
        return max(room.values(), default=0) >= least


@pytest.mark.parametrize("seed", range(STORIES))
def test_no_gang_ever_has_places_in_part(seed: int) -> None:
    story = Story(seed)
    for _ in range(60):
        story.step()
    story.settle()
    story.check_settled()

"""The API's truth and an engine that is told about it: late, twice, and through crashes.

`World` keeps what a cluster would know (nodes, pods, bindings), carries the engine's commands out
or refuses them, and checks after every event what must always hold.
"""

from collections import Counter
from random import Random

from long_form import AUDITED_EVERY

from weft.core.engine import (
    Bind,
    BindFailed,
    Command,
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Record,
    Tick,
    Unschedulable,
    Wake,
)
from weft.core.engine.decision_faults import unless_faulted
from weft.core.framework import Plugin, Profile
from weft.core.ledger import audit
from weft.core.ledger.audit import differences
from weft.core.policies.best_fit import BestFit
from weft.core.policies.exclusive import Exclusive
from weft.core.policies.fgd import Fgd
from weft.core.policies.random_choice import Random as RandomPolicy
from weft.core.policies.spread import SpreadPolicy
from weft.model import Node, Placement, PodRequest, Shape
from weft.testing import node, placement, random_nodes, random_shape, shape

SECOND = 1_000_000_000
SMALL = (
    shape(memory_mib=5000),
    shape(memory_mib=9000, milli=300),
    shape(milli=600),
    shape(gpus=1),
    shape(gpus=2),
    shape(percent=40),
    shape(memory_mib=9000, gpus=2),
    shape(cpu_milli=3000),
)


def profiles() -> list[Profile]:
    """Every way to decide: by node, by device, at random, weighed, exclusively."""
    return [
        Profile("best-fit", [BestFit()]),
        Profile("fgd", [Fgd()]),
        Profile("random", [RandomPolicy()]),
        Profile("weighed", [Plugin(BestFit(), 2), Plugin(SpreadPolicy(), 3)]),
        Profile("exclusive", [Exclusive()]),
    ]


NAMES = tuple(profile.name for profile in profiles())


class World:
    """The truth, and `engine`, which hears of it through events."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = {one.name: one for one in nodes}
        self.pods: dict[str, PodRequest] = {}
        self.bound: dict[str, Placement] = {}
        self.flying: dict[str, Placement] = {}
        self.now = 0
        self.facts = False
        self.hits: Counter[str] = Counter()
        self.engine = Engine(profiles(), nodes, seed=7)
        self._made = self._checks = 0

    # --- what happens ----------

    def tell(self, event: Event) -> list[Command]:
        commands = unless_faulted(self.engine.handle(event, self.now))
        for command in commands:
            if isinstance(command, Bind):
                uid = command.pod.uid
                assert self.pods[uid] == command.pod, "a pod that is gone or changed is bound"
                assert uid not in self.bound, "a pod is bound twice"
                assert uid not in self.flying, "a pod is bound while its binding is on its way"
                self.flying[uid] = command.placement
            elif isinstance(command, Unschedulable):
                assert command.pod.uid not in self.flying
            elif isinstance(command, Wake):
                assert command.at_ns > self.now, "a wake in the past"
        self.check()
        return commands

    def add(self, shape: Shape, profile: str, priority: int = 0) -> str:
        self._made += 1
        uid = f"p{self._made}"
        self.pods[uid] = PodRequest(
            uid, uid, shape, scheduler_name=profile, priority=priority, created_ns=self.now
        )
        self.tell(PodAdded(self.pods[uid]))
        return uid

    def change(self, uid: str, shape: Shape) -> None:
        """A pod's request is edited while it waits; bound pods and those being bound stay."""
        if uid in self.engine.queue:
            old = self.pods[uid]
            self.pods[uid] = PodRequest(
                uid, uid, shape, scheduler_name=old.scheduler_name, created_ns=old.created_ns
            )
            self.tell(PodAdded(self.pods[uid]))

    def repeat(self, uid: str) -> None:
        """The API says again what it said before."""
        if uid in self.bound:
            self.tell(PodBound(uid))
            self.tell(PodSeenBound(self.bound[uid]))
        self.tell(PodAdded(self.pods[uid]))

    def gone(self, uid: str) -> None:
        """The pod ends; if its binding is on its way, the answer comes after."""
        late = self.flying.pop(uid, None)
        self.bound.pop(uid, None)
        del self.pods[uid]
        self.tell(PodGone(uid))
        self.tell(PodGone(uid))
        if late is not None:
            self.hits["gone while its binding was on its way"] += 1
            self.tell(PodBound(uid))
            self.tell(BindFailed(uid))

    def answer(self, uid: str, how: str) -> None:
        """A binding on its way arrives, is refused, or arrives with its answer lost."""
        self.hits[f"binding {how}"] += 1
        there = self.flying.pop(uid)
        if how == "refused":
            self.tell(BindFailed(uid))
            return
        self.bound[uid] = there
        if how == "seen first":
            self.tell(PodSeenBound(there))
            self.tell(BindFailed(uid, "timeout"))
        elif how == "thought refused":
            self.bound.pop(uid)
            self.tell(BindFailed(uid, "timeout"))
            # If the engine placed it again meanwhile, that binding is refused: it has a node.
            self.flying.pop(uid, None)
            self.bound[uid] = there
            self.facts = True
            self.tell(PodSeenBound(there))
        else:
            self.tell(PodBound(uid))

    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.tell(Tick())

    def foreign(self, name: str, gpu: int) -> None:
        """Somebody else's pod is seen: a fact, even where it overbooks."""
        self._made += 1
        uid = f"f{self._made}"
        self.facts = True
        self.pods[uid] = PodRequest(uid, uid, Shape(), scheduler_name="best-fit")
        self.bound[uid] = placement(uid, name, gpu, memory_mib=4000, milli=200)
        self.tell(PodSeenBound(self.bound[uid]))

    def node_leaves(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.tell(NodesChanged(removed=(name,)))

    def node_comes(self, one: Node) -> None:
        self.facts |= one != self.nodes.get(one.name)
        self.nodes[one.name] = one
        self.tell(NodesChanged((one,)))

    # --- what must hold ----------

    def check(self) -> None:
        self._checks += 1
        if self._checks % AUDITED_EVERY == 0:
            self._audit()
        waiting = {one.pod.uid for one in self.engine.queue.waiting()}
        holds = set(self.engine.ledger.holdings)
        assert holds == self.bound.keys() | self.flying.keys()
        assert waiting.isdisjoint(holds)
        assert waiting | holds == self.pods.keys(), "a pod is forgotten, or remembered for ever"
        self._check_nobody_waits_in_vain()

    def _audit(self) -> None:
        sentences = audit(self.engine.ledger)
        facts = ("overbooked", "holds a GPU the node has not", "is held beside its instance")
        assert [s for s in sentences if not any(fact in s for fact in facts)] == []
        assert self.facts or not sentences

    def _check_nobody_waits_in_vain(self) -> None:
        """Checks that parked pods fit nowhere, unless one of their kind has been woken and will
        try."""
        resting, on_their_way = set(), set()
        for one in self.engine.queue.waiting():
            assert one.state in {"parked", "backoff"}
            kind = one.profile.name, one.shape
            if one.state == "parked":
                resting.add(kind)
            elif one.woken:
                on_their_way.add(kind)
        for name, asks in resting - on_their_way:
            fits = self.engine.assessor.assess(self.engine.profiles[name], asks).counts[0]
            assert fits == 0, f"{asks} fits, but nobody was woken"

    # --- crashes ----------

    def crash(self, random: Random, probe: Shape) -> None:
        """The process ends here; another starts from what the API shows.

        Bindings on their way either arrived or did not, and nobody told the engine.
        """
        self._count_fault_points()
        old = self.engine
        for uid, there in self.flying.items():
            if random.random() < 0.5:
                self.bound[uid] = there
                self.hits["crash before the answer: it was bound"] += 1
            else:
                self.hits["crash before the binding arrived"] += 1
        self.flying = {}
        fresh = Engine(profiles(), seed=7)
        parts = [list(self.nodes.values()), list(self.bound.values())]
        for part in parts:
            random.shuffle(part)
        first_nodes = random.random() < 0.5
        for part in parts if first_nodes else reversed(parts):
            for one in part:
                event = NodesChanged((one,)) if isinstance(one, Node) else PodSeenBound(one)
                assert fresh.handle(event, self.now) == []
        for uid in [uid for uid in old.ledger.holdings if uid not in self.bound]:
            old.ledger.release(uid)
        assert differences(old.ledger.table, fresh.ledger.table) == []
        assert old.ledger.holdings.keys() == fresh.ledger.holdings.keys()
        for name in NAMES:
            assert decision(old, probe, name, self.now) == decision(fresh, probe, name, self.now)
        self.engine = fresh
        self.facts = self.facts or bool(audit(fresh.ledger))
        pending = [uid for uid in self.pods if uid not in self.bound]
        for uid in random.sample(pending, len(pending)):
            # Until all are back, the checks would miss some: tell them apart from the world.
            for command in fresh.handle(PodAdded(self.pods[uid]), self.now):
                if isinstance(command, Bind):
                    self.flying[command.pod.uid] = command.placement
        self.check()

    def _count_fault_points(self) -> None:
        queue = [one.state for one in self.engine.queue.waiting()]
        for what, is_so in (
            ("pods resting", "backoff" in queue),
            ("pods parked", "parked" in queue),
            ("bindings on their way", bool(self.flying)),
            (
                "pods on absent nodes",
                any(there.node not in self.nodes for there in self.bound.values()),
            ),
        ):
            self.hits[f"crash with {what}"] += is_so


def decision(engine: Engine, shape: Shape, profile: str, now: int) -> tuple[object, ...]:
    """The engine's decision for a most urgent pod of this shape; it is withdrawn after."""
    most = 1 << 40
    pod = PodRequest(
        "probe", "probe", shape, scheduler_name=profile, priority=most, queue_priority=most
    )
    records: dict[str, Record] = {}
    places: dict[str, Placement] = {}
    for command in engine.handle(PodAdded(pod), now):
        if isinstance(command, Bind | Unschedulable):
            records[command.pod.uid] = command.record
        if isinstance(command, Bind):
            places[command.pod.uid] = command.placement
    held = engine.ledger.holdings.get("probe")
    record = records.get("probe")
    engine.queue.remove("probe", now)
    engine.placed.pop("probe", None)
    engine.ledger.release("probe")
    told = record and (record.outcome, record.node, record.shares, record.score, record.counts)
    return held and held.placement, told, places.get("probe")


def random_world(random: Random) -> World:
    """A small cluster: plain and alike, or every oddity at once."""
    if random.random() < 0.5:
        return World([node(f"n{i}", gpus=2, cpu_milli=4000) for i in range(random.randint(1, 3))])
    return World(random_nodes(random, 4))


def any_shape(random: Random, world: World) -> Shape:
    if random.random() < 0.7:
        return random.choice(SMALL)
    return random_shape(random, list(world.nodes.values()))


def step(world: World, random: Random) -> None:
    """One random thing happens."""
    kinds = (
        ("add", 8),
        ("answer", 8),
        ("gone", 4),
        ("time", 4),
        ("repeat", 2),
        ("change", 2),
        ("foreign", 1),
        ("leave", 1),
        ("come", 2),
        ("crash", 1),
    )
    kind = random.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0]
    pods = list(world.pods)
    match kind:
        case "add":
            world.add(any_shape(random, world), random.choice(NAMES), random.randint(0, 2))
        case "answer" if world.flying:
            ways = ("bound", "bound", "bound", "refused", "seen first", "thought refused")
            world.answer(random.choice(list(world.flying)), random.choice(ways))
        case "gone" if pods:
            world.gone(random.choice(pods))
        case "time":
            world.pass_time(random.choice((0, 1, 2, 5, 20)))
        case "repeat" if pods:
            world.repeat(random.choice(pods))
        case "change" if pods:
            world.change(random.choice(pods), any_shape(random, world))
        case "foreign" if world.nodes:
            world.foreign(random.choice([*world.nodes, "absent"]), random.randint(0, 2))
        case "leave" if len(world.nodes) > 1:
            world.node_leaves(random.choice(list(world.nodes)))
        case "come":
            name = f"n{random.randint(0, 3)}"
            gone = random_nodes(random, 1)[0]
            again = node(name, gpus=random.choice((1, 2, 2, 4)), cpu_milli=4000, rank=gone.rank)
            world.node_comes(again)
        case "crash":
            world.crash(random, any_shape(random, world))

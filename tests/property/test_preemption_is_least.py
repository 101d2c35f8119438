"""The pods that preemption ends, beside all sets there are; and stories where none ends in vain."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from random import Random

import pytest
from long_form import few_or_many
from msgspec import UNSET
from msgspec.structs import replace

from weft.core.engine import (
    Bind,
    BudgetsChanged,
    Command,
    Engine,
    Event,
    Evict,
    Nominate,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
    deciding,
)
from weft.core.engine.decision_faults import Faulted
from weft.core.engine.kept_places import WAITS
from weft.core.engine.moved_victims import rooms_beside
from weft.core.engine.nominations import is_kept, kept_uid
from weft.core.engine.queue import WaitingPod
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit
from weft.core.preempt import Budget, PreemptionCost, Victim, cost_of, violations
from weft.model import Constraints, Gang, InterPodRules, Node, PodMarks, PodRequest, Shape
from weft.model.queue_rules import NO_MOVES, NOTHING_KEPT, HeadOfLine, MoveRules
from weft.model.selectors import PodSelector, PodTerm, Requirement, SpreadRule
from weft.testing import node, shape

SECOND = 1_000_000_000
APPS = ("one", "two", "none")
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WANTED = (
    shape(memory_mib=5_000),
    shape(memory_mib=12_000, milli=300),
    shape(milli=700),
    shape(gpus=1),
    shape(gpus=2),
    shape(memory_mib=9_000, gpus=2),
    shape(cpu_milli=3_000),
    shape(memory_mib=4_000, cpu_milli=3_500),
)
LARGE = (shape(memory_mib=14_000), shape(gpus=1), shape(gpus=2), shape(memory_mib=12_000, gpus=2))
HELD = (
    shape(memory_mib=3_000),
    shape(memory_mib=7_000, milli=200),
    shape(milli=400),
    shape(gpus=1),
    shape(cpu_milli=1_500),
    shape(memory_mib=2_000, cpu_milli=1_000),
)


def drawn_nodes(random: Random) -> list[Node]:
    return [
        node(f"n{at}", gpus=random.choice((0, 1, 2, 2)), cpu_milli=random.choice((4_000, 9_000)))
        for at in range(random.randint(1, 3))
    ]


def profile(*, law: bool = False, random: Random | None = None) -> Profile:
    policy = LeastStranding() if random and random.random() < 0.3 else BestFit()
    return Profile("weft", [policy], preempts=True, budgets_are_law=law)


def drawn_term(random: Random) -> PodTerm:
    apps = tuple(random.sample(APPS, random.choice((1, 1, 2))))
    pods = PodSelector(("default",), (Requirement("app", "In", apps),))
    return PodTerm(random.choice((ZONE, HOST)), pods)


def drawn_rules(random: Random, app: str) -> InterPodRules:
    """Rules of a pod of this app."""
    affinity = tuple(drawn_term(random) for _ in range(random.choice((0, 0, 0, 1, 2))))
    away = tuple(drawn_term(random) for _ in range(random.choice((0, 0, 1, 2))))
    spread = list[SpreadRule]()
    for _ in range(random.choice((0, 1, 1, 2))):
        term, most = drawn_term(random), random.choice((1, 1, 2))
        itself, least = term.pods.matches("default", {"app": app}), random.choice((1, 1, 1, 2))
        rule = SpreadRule(term.topology_key, most, term.pods, least, counts_itself=itself)
        spread.append(rule)
    own = all(term.pods.matches("default", {"app": app}) for term in affinity)
    return InterPodRules(affinity, away, tuple(spread), bool(affinity) and own)


def filled(
    random: Random, movable: float = 0.0, moves: MoveRules = NO_MOVES, *, rules: bool = False
) -> tuple[Engine, dict[str, tuple[int, str]]]:
    """A small cluster that is full, and its pods' priorities and apps. Each has some start; this
    part of them may move. With `moves` nobody is ended; with `rules` some keep others away."""
    law = random.random() < 0.2
    chosen = Profile("weft", [BestFit()], preempts=moves == NO_MOVES, budgets_are_law=law)
    nodes = drawn_nodes(random)
    if rules:
        zones = ({ZONE: "a"}, {ZONE: "b"}, {ZONE: "a"}, {})
        nodes += [replace(each, name=f"{each.name}-more") for each in nodes]
        nodes = [replace(n, labels={HOST: n.name, **random.choice(zones)}) for n in nodes]
    engine = Engine([chosen], nodes, moves=moves)
    engine.handle(BudgetsChanged(tuple(budget(app, random.randint(0, 2)) for app in APPS[:2])), 0)
    told = {}
    for at in range(random.randint(2, 14)):
        asked, uid = random.choice(HELD), f"p{at}"
        known = engine.assess(chosen, PodRequest(uid, uid, asked))
        rows = [row for row, code in enumerate(known.codes.tolist()) if code == 0]
        if not rows:
            continue
        priority, app = random.choice((1, 1, 2, 3, 9)), random.choice(APPS)
        commands = engine.handle(PodAdded(PodRequest(uid, uid, asked, priority=9)), at)
        bind = next(c for c in commands if isinstance(c, Bind))
        keeps_away = (drawn_term(random),) if rules and random.random() < 0.15 else ()
        marks = PodMarks("default", {"app": app}, keeps_away)
        seen = PodSeenBound(bind.placement, marks=marks, priority=priority, held_ns=at * 3 % 7)
        if movable and random.random() < movable:
            seen = replace(seen, movable=PodRequest(uid, uid, asked, priority=priority))
        engine.handle(seen, at)
        told[uid] = priority, app
    return engine, told


def all_could_move(engine: Engine, pod: PodRequest, below: dict[str, tuple[int, str]]) -> bool:
    """True if the end of some set of one node's pods would do, and all of them may move and find a
    place elsewhere, one after the other."""
    chosen, allowed = engine.profile_of(pod), engine.preemption.allowed
    for row, here in enumerate(engine.ledger.table.nodes):
        held = [holding.placement.uid for holding in engine.ledger.pods_on(here.name)]
        lower = [u for u in held if u in engine.preemption.movable and below[u][0] < pod.priority]
        for some in chain.from_iterable(combinations(lower, n) for n in range(1, len(lower) + 1)):
            victims = [Victim((u,), 0, 0, engine.preemption.budgets_of(u)) for u in some]
            if violations(victims, allowed):
                continue
            with engine.trial(some):
                known = engine.assess(chosen, pod)
                place = None
                if not known.codes[row]:
                    place = deciding.choose_place(engine, WaitingPod(pod, chosen, 0), known, row, 0)
            since = {uid: engine.preemption.standings[uid][1] for uid in some}
            in_order = sorted(some, key=lambda uid: (-below[uid][0], since[uid]))
            if place and len(rooms_beside(engine, [place], some, in_order)) == len(some):
                return True
    return False


def budget(app: str, allowed: int) -> Budget:
    chosen = PodSelector(("default",), (Requirement("app", "In", (app,)),))
    return Budget(f"default/{app}", chosen, allowed)


def in_gangs(random: Random, engine: Engine, told: dict[str, tuple[int, str]]) -> dict[str, Gang]:
    """Put half of the pods into two gangs, of which some end only as one."""
    gangs = [
        Gang("owner", "default", name, random.choice((1, 2, 3)), ends_as_one=random.random() < 0.4)
        for name in ("one", "two")
    ]
    found = {uid: random.choice(gangs) for uid in sorted(told) if random.random() < 0.5}
    for uid, gang in found.items():
        placement, marks = engine.ledger.holdings[uid].placement, engine.existing.marks_of(uid)
        assert marks is not None
        priority, since_ns = engine.preemption.standings[uid]
        seen = PodSeenBound(placement, marks=marks, priority=priority, gang=gang)
        engine.handle(replace(seen, held_ns=20 - since_ns), 20)
    return found


def victims_on(
    engine: Engine, node_name: str, below: dict[str, tuple[int, str]], gangs: dict[str, Gang]
) -> list[Victim]:
    """The node's pods. Those of a gang are one victim with the rest of it if it ends as one, or if
    it would not be whole without all that are here."""
    uids = [h.placement.uid for h in engine.ledger.pods_on(node_name)]
    together = dict[tuple[str, ...], None]()
    for uid in uids:
        gang = gangs.get(uid)
        whole = tuple(sorted(each for each in gangs if gang and gangs[each].key == gang.key))
        staying = len(whole) - len({*whole} & {*uids})
        broken = gang is not None and staying < gang.least <= len(whole)
        together[whole if gang and (gang.ends_as_one or broken) else (uid,)] = None
    return [
        Victim(
            some,
            max(below[uid][0] for uid in some),
            min(engine.preemption.standings[uid][1] for uid in some),
            tuple(name for uid in some for name in engine.preemption.budgets_of(uid)),
        )
        for some in together
    ]


def every_cost(
    engine: Engine,
    pod: PodRequest,
    below: dict[str, tuple[int, str]],
    gangs: dict[str, Gang],
) -> Iterator[PreemptionCost]:
    """The cost of each set of one node's victims without which the pod fits there."""
    allowed = engine.preemption.allowed
    chosen = engine.profile_of(pod)
    for row, here in enumerate(engine.ledger.table.nodes):
        found = victims_on(engine, here.name, below, gangs)
        victims = [victim for victim in found if victim.priority < pod.priority]
        for count in range(1, len(victims) + 1):
            for some in combinations(victims, count):
                cost = cost_of(some, allowed)
                if cost.violations and chosen.budgets_are_law:
                    continue
                with engine.trial([uid for victim in some for uid in victim.uids]):
                    if engine.assess(chosen, pod).codes[row] == 0:
                        yield cost


@pytest.mark.parametrize("seed", range(few_or_many(30, 600)))
def test_nobody_ends_where_moves_would_do_and_who_moves_has_room(seed: int) -> None:
    random = Random(seed)
    engine, told = filled(random, movable=0.6)
    for uid in random.sample(sorted(told), len(told) // 2):
        engine.handle(PodGone(uid), 50)  # there is some room, if not for all
    pod = PodRequest("high", "high", random.choice(LARGE), priority=random.choice((3, 5)))
    if engine.assess(engine.profile_of(pod), pod).counts[0]:
        return
    could = all_could_move(engine, pod, told)
    asked = dict(engine.preemption.movable)
    since = {uid: standing[1] for uid, standing in engine.preemption.standings.items()}
    victims = [c for c in engine.handle(PodAdded(pod), 100) if isinstance(c, Evict)]
    moves = {
        victim.placement.uid: victim.record.preempted.moves_to
        for victim in victims
        if victim.record.preempted
    }
    assert could == (bool(moves) and all(moves.values()))
    out: list[Command] = []
    for uid in moves:
        out += engine.handle(PodGone(uid), 200)
    if moves:
        assert [c.pod.uid for c in out if isinstance(c, Bind)] == ["high"]
    moved = sorted(
        (uid for uid, node in moves.items() if node), key=lambda uid: (-told[uid][0], since[uid])
    )
    for uid in moved:
        anew = replace(asked[uid], uid=f"{uid}-anew")
        (bind,) = (c for c in engine.handle(PodAdded(anew), 300) if isinstance(c, Bind))
        assert bind.placement.node == moves[uid]


@pytest.mark.parametrize("seed", range(few_or_many(30, 600)))
def test_for_a_pod_that_waits_some_move_wherever_a_set_of_them_would_do(seed: int) -> None:
    """Beside all sets there are; and nobody ends, nobody moves for a less important pod, and all
    that move find the room that was told."""
    random = Random(seed)
    engine, told = filled(random, 0.7, MoveRules(SECOND, 100))
    for uid in random.sample(sorted(told), len(told) // 2):
        engine.handle(PodGone(uid), 50)
    asked = random.choice([each for each in LARGE if each.gpu_requests[0].count > 1])
    pod = PodRequest("waits", "waits", asked, priority=random.choice((1, 3, 9)))
    if engine.assess(engine.profile_of(pod), pod).counts[0]:
        return
    commands = engine.handle(PodAdded(pod), 100)
    assert not [each for each in commands if isinstance(each, Evict)]
    could = all_could_move(engine, replace(pod, priority=pod.priority + 1), told)
    anew, at_ns = dict(engine.preemption.movable), 10**6 * SECOND  # whatever they lose
    evicted = [each for each in engine.handle(Tick(), at_ns) if isinstance(each, Evict)]
    moves = {
        each.placement.uid: each.record.preempted.moves_to
        for each in evicted
        if each.record.preempted
    }
    assert bool(moves) == could
    assert len(moves) == len(evicted)
    assert all(moves.values())
    assert all(told[uid][0] <= pod.priority for uid in moves)
    out = [command for uid in moves for command in engine.handle(PodGone(uid), at_ns)]
    if moves:
        assert [each.pod.uid for each in out if isinstance(each, Bind)] == ["waits"]
    for uid in moves:
        again = engine.handle(PodAdded(replace(anew[uid], uid=f"{uid}-anew")), at_ns)
        assert [each for each in again if isinstance(each, Bind)]
    assert audit(engine.ledger) == []


@pytest.mark.parametrize("gangs", [False, True])
@pytest.mark.parametrize("rules", [False, True])
@pytest.mark.parametrize("seed", range(few_or_many(30, 600)))
def test_no_set_of_pods_costs_less_than_those_that_end(seed: int, rules: bool, gangs: bool) -> None:
    random = Random(seed)
    engine, told = filled(random, rules=rules)
    gang_of = in_gangs(random, engine, told) if gangs else {}
    pod = PodRequest("high", "high", random.choice(WANTED), priority=random.choice((2, 3, 5)))
    if rules:
        app = random.choice(APPS)
        asked = replace(pod.shape, constraints=Constraints(pods=drawn_rules(random, app)))
        pod = replace(pod, shape=asked, namespace="default", labels={"app": app})
    if engine.assess(engine.profile_of(pod), pod).counts[0]:
        return
    best = min(every_cost(engine, pod, told, gang_of), default=None)
    allowed = engine.preemption.allowed
    by_node = {
        each.name: victims_on(engine, each.name, told, gang_of)
        for each in engine.ledger.table.nodes
    }
    commands = engine.handle(PodAdded(pod), 100)
    ended = {c.placement.uid for c in commands if isinstance(c, Evict)}
    on = next((c.node for c in commands if isinstance(c, Nominate)), "")
    chosen = [victim for victim in by_node.get(on, ()) if ended & {*victim.uids}]
    assert {uid for victim in chosen for uid in victim.uids} == ended
    assert (cost_of(chosen, allowed) if chosen else None) == best


def places_without(engine: Engine, gone: set[str], asked: Sequence[PodRequest]) -> int:
    """For how many of these pods, one by one, there is room on the same nodes without those."""
    alone = Engine([Profile("weft", [BestFit()])], engine.ledger.table.nodes)
    for uid, holding in engine.ledger.holdings.items():
        if uid not in gone:
            alone.handle(PodSeenBound(holding.placement), 0)
    commands = [c for pod in asked for c in alone.handle(PodAdded(replace(pod, gang=UNSET)), 0)]
    return sum(isinstance(command, Bind) for command in commands)


@pytest.mark.parametrize("seed", range(few_or_many(40, 600)))
def test_a_gang_ends_pods_wherever_the_end_of_all_that_may_end_would_do(seed: int) -> None:
    """Its victims are those that cannot stay beside the places that were found, and need not be the
    cheapest of all sets; but none ends if that is not enough, and then the gang runs whole."""
    random = Random(seed)
    engine, told = filled(random)
    gang_of = in_gangs(random, engine, told)
    size, priority = random.choice((2, 2, 3)), random.choice((3, 5, 10))
    gang, asked = Gang("owner", "default", "high", size), random.choice(WANTED)
    pods = [
        PodRequest(f"high{at}", f"high{at}", asked, priority=priority, gang=gang)
        for at in range(size)
    ]
    if engine.profile_of(pods[0]).budgets_are_law or places_without(engine, set(), pods) == size:
        return
    nodes = [each.name for each in engine.ledger.table.nodes]
    found = [victim for name in nodes for victim in victims_on(engine, name, told, gang_of)]
    below = {uid for victim in found if victim.priority < priority for uid in victim.uids}
    would_do = places_without(engine, below, pods) == size
    commands = [command for pod in pods for command in engine.handle(PodAdded(pod), 100)]
    ended = {c.placement.uid for c in commands if isinstance(c, Evict)}
    assert ended <= below
    assert bool(ended) == would_do
    for each in {*gang_of.values()}:
        had = {uid for uid in gang_of if gang_of[uid] == each}
        assert not had & ended or had <= ended or not each.ends_as_one
        assert len(had - ended) >= each.least or had <= ended or len(had) < each.least
    out = [command for uid in sorted(ended) for command in engine.handle(PodGone(uid), 200)]
    if ended:
        assert {c.pod.uid for c in out if isinstance(c, Bind)} == {pod.uid for pod in pods}
    assert audit(engine.ledger) == []


class Story:
    """Pods of several priorities come and end; victims take their time; after some time nobody
    comes any more, and all that was begun ends."""

    def __init__(
        self, seed: int, keeps: HeadOfLine = NOTHING_KEPT, moves: MoveRules = NO_MOVES
    ) -> None:
        self.random = random = Random(seed)
        chosen, nodes = profile(random=random), drawn_nodes(random)
        self.engine = Engine(
            [chosen], nodes, bind_timeout_ns=60 * SECOND, head_of_line=keeps, moves=moves
        )
        self.moves = moves != NO_MOVES
        self.now_ns, self.wake_ns = 0, 0
        self.leaving: dict[str, str] = {}
        self.bound: dict[str, PodRequest] = {}
        self.ended: dict[str, PodRequest] = {}
        self.waiting: dict[str, PodRequest] = {}
        self.arrived: list[PodRequest] = []
        self.asked: list[tuple[str, int]] = []  # for whom, and how many had come by then

    def tell(self, event: Event) -> None:
        todo: list[Event] = [event]
        while todo:
            commands = self.engine.handle(todo.pop(0), self.now_ns)
            self.check()
            todo += [answer for command in commands for answer in self.carry_out(command)]

    def carry_out(self, command: Command) -> Iterator[Event]:
        if isinstance(command, Bind):
            pod = self.waiting.pop(command.pod.uid)
            self.bound[pod.uid] = pod
            yield PodBound(pod.uid)
            if self.moves and not pod.gang and self.random.random() < 0.6:
                anew = replace(pod, restart_s=self.random.choice((0, 1, 5)))
                yield PodSeenBound(command.placement, movable=anew, priority=pod.priority)
        elif isinstance(command, Evict):
            uid = command.placement.uid
            if not command.record.preempted:  # the rest of a gang that can't run
                assert command.record.gang
                self.leaving.setdefault(uid, "")
                return
            victim = self.bound[uid]
            assert uid not in self.leaving, "nobody is asked twice"
            why = command.record.preempted
            assert victim.priority < why.pod_priority + bool(self.moves and why.moves_to)
            self.leaving[uid] = command.record.preempted.uid
            self.asked.append((command.record.preempted.uid, len(self.arrived)))
        elif isinstance(command, Wake):
            self.wake_ns = max(self.wake_ns, command.at_ns)
        else:
            assert not isinstance(command, Faulted)
            assert not isinstance(command, Unschedulable) or command.pod.uid in self.waiting

    def check(self) -> None:
        assert audit(self.engine.ledger) == []
        kept = {kept_uid(uid) for uid in self.engine.preemption.nominations}
        held = {uid for uid in self.engine.ledger.holdings if uid.startswith(kept_uid(""))}
        assert {uid for uid in held if not uid.startswith(WAITS)} <= kept

    def comes(self) -> None:
        """A pod, or a gang."""
        asked: Shape = self.random.choice((*WANTED, *HELD))
        priority, number = self.random.choice((0, 0, 1, 5, 9)), len(self.arrived)
        size = self.random.choice((1, 1, 1, 2, 3))
        as_one = self.random.random() < 0.5
        gang = Gang("owner", "default", f"g{number}", least=size, ends_as_one=as_one)
        for at in range(number, number + size):
            pod = PodRequest(f"p{at}", f"p{at}", asked, priority=priority)
            pod = replace(pod, created_ns=number, gang=gang if size > 1 else UNSET)
            self.waiting[pod.uid] = pod
            self.arrived.append(pod)
            self.tell(PodAdded(pod))

    def goes(self, uid: str) -> None:
        del self.leaving[uid]
        self.ended[uid] = self.bound.pop(uid)
        self.tell(PodGone(uid))

    def run(self) -> None:
        for _ in range(40):
            self.now_ns += self.random.randint(1, 3) * SECOND
            self.comes()
            if self.leaving and self.random.random() < 0.5:
                self.goes(self.random.choice(sorted(self.leaving)))
        for _ in range(80):
            self.now_ns += 11 * SECOND
            self.tell(Tick())
            if not self.leaving:
                break
            self.goes(sorted(self.leaving)[0])
        for _ in range(3):
            self.now_ns += 11 * SECOND
            self.tell(Tick())


@pytest.mark.parametrize("seed", range(few_or_many(8, 200)))
def test_places_that_are_kept_beside_break_no_decision(seed: int) -> None:
    """Accounts stay exact, nobody has two places, and no decision breaks off."""
    story = Story(seed, HeadOfLine(3 * SECOND, 20 * SECOND, 2 * SECOND, at_once=2))
    story.run()
    held = story.engine.ledger.holdings
    assert story.bound.keys() == {uid for uid in held if not is_kept(uid)}


@pytest.mark.parametrize("seed", range(few_or_many(8, 200)))
def test_moves_for_pods_that_wait_break_no_decision(seed: int) -> None:
    keeps = HeadOfLine(3 * SECOND, 20 * SECOND, 2 * SECOND) if seed % 2 else NOTHING_KEPT
    story = Story(seed, keeps, MoveRules(2 * SECOND, 20))
    story.run()
    held = story.engine.ledger.holdings
    assert story.bound.keys() == {uid for uid in held if not is_kept(uid)}
    assert story.engine.preemption.moves.moved <= 20


@pytest.mark.parametrize("seed", range(few_or_many(12, 400)))
def test_nobody_ends_for_a_pod_that_then_does_not_run(seed: int) -> None:
    story = Story(seed)
    story.run()
    assert not story.leaving
    ran = story.bound | story.ended
    for waiter, came in story.asked:
        priority = story.arrived[int(waiter[1:])].priority
        later = story.arrived[came:]
        assert waiter in ran or any(pod.priority > priority for pod in later)
    assert not story.engine.preemption.nominations
    assert story.bound.keys() == story.engine.ledger.holdings.keys()

"""The pods that preemption ends, beside all sets there are; and stories where none ends in vain."""

from collections.abc import Iterator
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
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    Tick,
    Unschedulable,
    Wake,
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
from weft.model import Gang, Node, PodMarks, PodRequest, Shape
from weft.model.queue_rules import NOTHING_KEPT, HeadOfLine
from weft.model.selectors import PodSelector, Requirement
from weft.testing import node, shape

SECOND = 1_000_000_000
APPS = ("one", "two", "none")
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


def filled(random: Random, movable: float = 0.0) -> tuple[Engine, dict[str, tuple[int, str]]]:
    """A small cluster that is full, and its pods' priorities and apps. Each has some start; this
    part of them may move."""
    law = random.random() < 0.2
    chosen = Profile("weft", [BestFit()], preempts=True, budgets_are_law=law)
    engine = Engine([chosen], drawn_nodes(random))
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
        marks = PodMarks("default", {"app": app})
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
                    place = engine.choose_place(WaitingPod(pod, chosen, 0), known, row, 0)
            since = {uid: engine.preemption.standings[uid][1] for uid in some}
            in_order = sorted(some, key=lambda uid: (-below[uid][0], since[uid]))
            if place and len(rooms_beside(engine, [place], some, in_order)) == len(some):
                return True
    return False


def budget(app: str, allowed: int) -> Budget:
    chosen = PodSelector(("default",), (Requirement("app", "In", (app,)),))
    return Budget(f"default/{app}", chosen, allowed)


def every_cost(
    engine: Engine, pod: PodRequest, below: dict[str, tuple[int, str]]
) -> Iterator[PreemptionCost]:
    """The cost of each set of one node's pods without which the pod fits there."""
    allowed = engine.preemption.allowed
    chosen = engine.profile_of(pod)
    for row, here in enumerate(engine.ledger.table.nodes):
        uids = [h.placement.uid for h in engine.ledger.pods_on(here.name)]
        victims = [
            Victim(
                (uid,),
                below[uid][0],
                engine.preemption.standings[uid][1],
                engine.preemption.budgets_of(uid),
            )
            for uid in uids
            if below[uid][0] < pod.priority
        ]
        for count in range(1, len(victims) + 1):
            for some in combinations(victims, count):
                cost = cost_of(some, allowed)
                if cost.violations and chosen.budgets_are_law:
                    continue
                with engine.trial([uid for victim in some for uid in victim.uids]):
                    if engine.assess(chosen, pod).codes[row] == 0:
                        yield cost


@pytest.mark.parametrize("seed", range(few_or_many(60, 600)))
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


@pytest.mark.parametrize("seed", range(few_or_many(60, 600)))
def test_no_set_of_pods_costs_less_than_those_that_end(seed: int) -> None:
    random = Random(seed)
    engine, told = filled(random)
    pod = PodRequest("high", "high", random.choice(WANTED), priority=random.choice((2, 3, 5)))
    if engine.assess(engine.profile_of(pod), pod).counts[0]:
        return
    best = min(every_cost(engine, pod, told), default=None)
    allowed = engine.preemption.allowed
    victims_of = {
        uid: Victim((uid,), told[uid][0], standing[1], engine.preemption.budgets_of(uid))
        for uid, standing in engine.preemption.standings.items()
    }
    commands = engine.handle(PodAdded(pod), 100)
    chosen = [victims_of[c.placement.uid] for c in commands if isinstance(c, Evict)]
    assert (cost_of(chosen, allowed) if chosen else None) == best


class Story:
    """Pods of several priorities come and end; victims take their time; after some time nobody
    comes any more, and all that was begun ends."""

    def __init__(self, seed: int, keeps: HeadOfLine = NOTHING_KEPT) -> None:
        self.random = random = Random(seed)
        chosen, nodes = profile(random=random), drawn_nodes(random)
        self.engine = Engine([chosen], nodes, bind_timeout_ns=60 * SECOND, head_of_line=keeps)
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
        elif isinstance(command, Evict):
            uid = command.placement.uid
            if not command.record.preempted:  # the rest of a gang that can't run
                assert command.record.gang
                self.leaving.setdefault(uid, "")
                return
            victim = self.bound[uid]
            assert uid not in self.leaving, "nobody is asked twice"
            assert victim.priority < command.record.preempted.pod_priority
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


@pytest.mark.parametrize("seed", range(few_or_many(15, 200)))
def test_places_that_are_kept_beside_break_no_decision(seed: int) -> None:
    """Accounts stay exact, nobody has two places, and no decision breaks off."""
    story = Story(seed, HeadOfLine(3 * SECOND, 20 * SECOND, 2 * SECOND, at_once=2))
    story.run()
    held = story.engine.ledger.holdings
    assert story.bound.keys() == {uid for uid in held if not is_kept(uid)}


@pytest.mark.parametrize("seed", range(few_or_many(25, 400)))
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

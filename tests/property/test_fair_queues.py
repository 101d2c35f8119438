"""Teams' queues in time: who goes next is who a plain reference says, and over hours each queue
has what it is promised whenever it wants it, without anybody waiting for ever.
"""

import heapq
import random
from collections import Counter, defaultdict
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Command, Engine, Evict, PodAdded, PodBound, PodGone, Tick, Wake
from weft.core.framework import Profile
from weft.core.ledger import audit
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import FirstFit
from weft.model import PodRequest
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, pod

SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3_600 * 10**9
TEAMS = ("a", "b", "c")
GPUS, CPU_MILLI = 6, 12_000

# --- a plain, slow reference for the order, on one node, where whatever fits by sums fits ---------


class Asks(NamedTuple):
    team: str
    gpus: int
    cpu_milli: int
    priority: int


class PlainQueues:
    """All pods in a list; each time the next is looked for among all of them."""

    def __init__(self, rules: QueueRules) -> None:
        self.terms = {terms.name: terms for terms in rules.queues}
        self.waiting: dict[str, Asks] = {}
        self.placed: dict[str, Asks] = {}

    def held(self, team: str, what: str) -> int:
        return sum(getattr(asks, what) for asks in self.placed.values() if asks.team == team)

    def turn(self, team: str) -> tuple[int, Fraction]:
        terms = self.terms.get(team, QueueTerms(team))
        gpus, promised = self.held(team, "gpus"), terms.guarantee.gpu_milli
        if promised is not None and 1000 * gpus < promised:
            return 0, Fraction(1000 * gpus, promised)
        share = max(Fraction(gpus, GPUS), Fraction(self.held(team, "cpu_milli"), CPU_MILLI))
        return 1, share / terms.weight

    def fits(self, asks: Asks) -> bool:
        most = self.terms.get(asks.team, QueueTerms("")).limits.gpu_milli
        after = 1000 * (self.held(asks.team, "gpus") + asks.gpus)
        if most is not None and asks.gpus and after > most:
            return False
        held = self.placed.values()
        return (
            sum(each.gpus for each in held) + asks.gpus <= GPUS
            and sum(each.cpu_milli for each in held) + asks.cpu_milli <= CPU_MILLI
        )

    def place_all(self) -> list[str]:
        """Place one after another, whoever is next, as long as anybody fits."""
        came = {name: at for at, name in enumerate(self.waiting)}
        order = []
        while True:
            fitting = [name for name, asks in self.waiting.items() if self.fits(asks)]
            if not fitting:
                return order
            first: dict[str, str] = {}
            for name in sorted(fitting, key=lambda n: (-self.waiting[n].priority, came[n])):
                first.setdefault(self.waiting[name].team, name)
            chosen = min(first.values(), key=lambda n: (self.turn(self.waiting[n].team), came[n]))
            self.placed[chosen] = self.waiting.pop(chosen)
            order.append(chosen)


def bound(commands: list[Command]) -> list[str]:
    return [command.pod.uid for command in commands if isinstance(command, Bind)]


AMOUNTS = st.none() | st.integers(1, GPUS)
asked = st.builds(
    Asks,
    st.sampled_from(TEAMS),
    st.sampled_from((0, 1, 1, 2, 3)),
    st.sampled_from((0, 1_000, 3_000, 5_000)),
    st.sampled_from((0, 0, 5)),
)


@st.composite
def rules(draw: st.DrawFn) -> QueueRules:
    teams = []
    for name in draw(st.sets(st.sampled_from(TEAMS))):
        limit, promised = draw(AMOUNTS), draw(AMOUNTS)
        if limit and promised:
            promised = min(limit, promised)
        teams.append(
            QueueTerms(
                name,
                draw(st.integers(1, 3)),
                QueueAmounts(1000 * promised if promised else None),
                QueueAmounts(1000 * limit if limit else None),
            )
        )
    return QueueRules("fair", tuple(sorted(teams, key=lambda terms: terms.name)))


@settings(max_examples=few_or_many(150, 3_000), deadline=None)
@given(rules(), st.lists(st.tuples(asked, st.booleans(), st.integers(0, 50)), max_size=40))
def test_who_goes_next_is_who_the_reference_says(
    queues: QueueRules, steps: list[tuple[Asks, bool, int]]
) -> None:
    machine = node("n", gpus=GPUS, memory_mib=1_000, cpu_milli=CPU_MILLI)
    engine = Engine([Profile("weft", [FirstFit()])], [machine], queues=queues)
    plain, now_ns = PlainQueues(queues), 0
    for number, (asks, ends, which) in enumerate(steps):
        now_ns += MINUTE
        if ends and plain.placed:
            gone = sorted(plain.placed)[which % len(plain.placed)]
            del plain.placed[gone]
            commands = engine.handle(PodGone(gone), now_ns)
        else:
            name = f"p{number:03}"
            plain.waiting[name] = asks
            request = pod(name, gpus=asks.gpus, cpu_milli=asks.cpu_milli, priority=asks.priority)
            request = replace(request, queue=asks.team, created_ns=now_ns)
            commands = engine.handle(PodAdded(request), now_ns)
        commands += engine.handle(Tick(), now_ns + 30 * SECOND)
        assert bound(commands) == plain.place_all()
        for team in TEAMS:
            use = engine.teams.use(team)
            assert use.gpu_milli == 1000 * plain.held(team, "gpus")
            assert use.cpu_milli == plain.held(team, "cpu_milli")
    assert audit(engine.ledger) == []


# --- hours ---------------------------------------------------------------------------------------


PROMISED = {"a": 50, "b": 30, "c": 20}
"""Percent of the cluster."""


def gpus_of(asks: PodRequest) -> int:
    return asks.shape.gpu_requests[0].count


class Hours:
    """Pods of teams that come at random and run for a while, on virtual time; how much of the
    cluster each team had while it wanted its guarantee: while the pods that it has, waiting and
    placed, ask for as much."""

    def __init__(self, engine: Engine, gpus: int) -> None:
        self.engine, self.gpus, self.now_ns = engine, gpus, 0
        self.due: list[tuple[int, int, object]] = []
        self.runs_ns: dict[str, int] = {}
        self.came_ns: dict[str, int] = {}
        self.asks: dict[str, PodRequest] = {}
        self.evicted: Counter[str] = Counter()
        self.waits_ns: dict[str, int] = {}
        self.waiting: Counter[str] = Counter()
        self.wanting_ns: Counter[str] = Counter()
        self.had: defaultdict[str, int] = defaultdict(int)  # thousandths of GPUs × ns, then
        self._count = 0

    def at(self, when_ns: int, event: object) -> None:
        self._count += 1
        heapq.heappush(self.due, (when_ns, self._count, event))

    def pods(
        self, dice: random.Random, team: str, load: float, until_ns: int, mean_ns: int = 6 * MINUTE
    ) -> None:
        """Have this team's pods come, so that they ask for `load` of the cluster."""
        when_ns, sizes = 0, (1, 1, 2)
        each = sum(sizes) / len(sizes) * mean_ns / (load * self.gpus)
        while (when_ns := when_ns + int(dice.expovariate(1 / each))) < until_ns:
            name = f"{team}{len(self.runs_ns)}"
            self.runs_ns[name] = max(SECOND, int(dice.expovariate(1 / mean_ns)))
            asks = replace(pod(name, gpus=dice.choice(sizes)), queue=team, created_ns=when_ns)
            self.at(when_ns, PodAdded(asks))

    def run(self, measured_from_ns: int, until_ns: int) -> None:
        while self.due:
            when_ns, _, event = heapq.heappop(self.due)
            if measured_from_ns <= self.now_ns and when_ns <= until_ns:
                self._measure(when_ns - self.now_ns)
            self.now_ns = when_ns
            if isinstance(event, PodAdded):
                self.waiting[event.pod.team_queue] += gpus_of(event.pod)
                self.came_ns[event.pod.uid] = when_ns
                self.asks[event.pod.uid] = event.pod
            for command in self.engine.handle(event, when_ns):  # type: ignore[arg-type]
                if isinstance(command, Bind):
                    self._bound(command.pod)
                elif isinstance(command, Evict):
                    self._evicted(command.placement.uid)
                elif isinstance(command, Wake):
                    self.at(max(command.at_ns, when_ns), Tick())

    def _bound(self, asks: PodRequest) -> None:
        self.engine.handle(PodBound(asks.uid), self.now_ns)
        self.waiting[asks.team_queue] -= gpus_of(asks)
        self.waits_ns[asks.uid] = self.now_ns - self.came_ns[asks.uid]
        self.at(self.now_ns + self.runs_ns[asks.uid], PodGone(asks.uid))

    def _evicted(self, uid: str) -> None:
        """A pod ends half a minute after it was asked to, and its controller makes it anew."""
        asks, again = self.asks[uid], f"{uid}+"
        self.evicted[asks.team_queue] += 1
        self.runs_ns[again] = self.runs_ns[uid]
        self.at(self.now_ns + MINUTE // 2, PodGone(uid))
        self.at(self.now_ns + MINUTE // 2, PodAdded(replace(asks, uid=again, name=again)))

    def _measure(self, for_ns: int) -> None:
        for team in TEAMS:
            held = self.engine.teams.use(team).gpu_milli
            if 1000 * self.waiting[team] + held >= 10 * self.gpus * PROMISED[team]:
                self.wanting_ns[team] += for_ns
                self.had[team] += for_ns * held

    def share(self, team: str) -> float:
        """Percent of the cluster that the team had, while it wanted its guarantee."""
        return self.had[team] / self.wanting_ns[team] / 10 / self.gpus


def cluster_of(gpus: int, *, reclaim: bool = False) -> Engine:
    queues = tuple(
        QueueTerms(team, guarantee=QueueAmounts(gpu_milli=10 * gpus * percent))
        for team, percent in PROMISED.items()
    )
    nodes = [node(f"n{number}", gpus=8) for number in range(gpus // 8)]
    rules = QueueRules("fair", queues, reclaim)
    profile = Profile("weft", [LeastStranding()], preempts=reclaim)
    return Engine([profile], nodes, queues=rules)


@pytest.mark.parametrize("seed", range(few_or_many(1, 5)))
@pytest.mark.parametrize(
    "loads",
    [
        {"a": 0.6, "b": 0.4, "c": 0.3},
        {"a": 0.1, "b": 0.3, "c": 0.9},
        {"a": 0.9, "b": 0.2, "c": 0.2},
    ],
    ids=["all want more", "one borrows from one", "two want just theirs"],
)
def test_each_queue_has_its_guarantee_whenever_it_wants_it(
    loads: dict[str, float], seed: int
) -> None:
    """Ten hours at load 1.3; then nobody new comes, and everybody gets a place."""
    gpus, until_ns = 80, 10 * HOUR
    hours, dice = Hours(cluster_of(gpus), gpus), random.Random(seed)
    for team, load in loads.items():
        hours.pods(dice, team, load, until_ns)
    hours.run(HOUR // 2, until_ns)
    for team, percent in PROMISED.items():
        if hours.wanting_ns[team] > HOUR:
            assert hours.share(team) >= percent - 2, (team, hours.share(team))
    assert hours.waits_ns.keys() == hours.runs_ns.keys()
    assert not hours.engine.ledger.holdings
    assert not len(hours.engine.queue)


def test_pods_of_hours_give_back_what_they_borrowed() -> None:
    """One queue has the whole cluster with pods of a day when the others come: by their ends
    alone the others would wait for hours."""
    gpus, until_ns, come_ns = 80, 10 * HOUR, 2 * HOUR
    shares = {}
    for reclaim in (False, True):
        hours, dice = Hours(cluster_of(gpus, reclaim=reclaim), gpus), random.Random(7)
        hours.pods(dice, "a", 20.0, until_ns, 24 * HOUR)
        for team in ("b", "c"):
            late = Hours(hours.engine, gpus)
            late.runs_ns = hours.runs_ns
            late.pods(dice, team, 1.0, until_ns - come_ns, 3 * HOUR)
            for when_ns, _, event in late.due:
                hours.at(when_ns + come_ns, event)
        hours.run(come_ns + HOUR // 2, until_ns)
        shares[reclaim] = {team: hours.share(team) for team in TEAMS}
        assert hours.waits_ns.keys() == hours.runs_ns.keys()
        assert bool(hours.evicted) == reclaim
        assert hours.evicted.total() <= len(hours.runs_ns) // 10
        assert not hours.engine.ledger.holdings
    assert shares[False]["b"] < 20
    assert shares[False]["c"] < 15
    for team, percent in PROMISED.items():
        assert shares[True][team] >= percent - 2, shares

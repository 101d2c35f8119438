"""Affinity, anti-affinity and spread: the engine's nodes are those of the slow reference, after
every change of a random story of pods and nodes that come, go and are relabelled.

20,000 decisions are compared in the long form.
"""

from random import Random

import pytest
from long_form import few_or_many
from msgspec.structs import replace
from pods_slowly import There, allowed, selects

from weft.core.engine import (
    Bind,
    Command,
    Engine,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    Tick,
)
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.model import (
    Code,
    Constraints,
    InterPodRules,
    Node,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Requirement,
    SpreadRule,
    Taint,
    Term,
    Toleration,
)
from weft.testing import node, placement, pod

STORIES, STEPS = few_or_many((12, 25), (200, 100))
NAMESPACES, VALUES = ("red", "blue"), ("a", "b", "c")
KEYS = ("zone", "rack", "host")


class Story:
    """A cluster as the engine was told of it, and as the reference reads it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.engine = Engine([Profile("weft", (FirstFit(),))])
        self.nodes: dict[str, Node] = {}
        self.there: dict[str, There] = {}
        self.made = 0
        self.workloads: list[PodRequest] = []
        for _ in range(5):
            self.change_node()

    def some(self, share: float) -> bool:
        return self.dice.random() < share

    def labels(self) -> dict[str, str]:
        return {key: self.dice.choice(VALUES) for key in ("app", "tier") if self.some(0.7)}

    def requirement(self) -> Requirement:
        operator = self.dice.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
        key = self.dice.choice(("app", "tier"))
        count = self.dice.randint(1, 2) if operator in ("In", "NotIn") else 0
        return Requirement(key, operator, tuple(self.dice.sample(VALUES, count)))

    def selector(self, namespace: str) -> PodSelector:
        namespaces: tuple[str, ...] | None = (namespace,)
        if self.some(0.3):
            namespaces = None if self.some(0.5) else NAMESPACES
        labels = tuple(self.requirement() for _ in range(self.dice.choice((0, 1, 1, 2))))
        return PodSelector(namespaces, None if self.some(0.05) else labels)

    def terms(self, namespace: str) -> tuple[PodTerm, ...]:
        count = self.dice.choice((0, 0, 1, 1, 2))
        return tuple(
            PodTerm(self.dice.choice(KEYS), self.selector(namespace)) for _ in range(count)
        )

    def marks(self) -> PodMarks:
        namespace = self.dice.choice(NAMESPACES)
        away = self.terms(namespace) if self.some(0.3) else ()
        return PodMarks(namespace, self.labels(), away, self.some(0.1))

    def asked(self) -> PodRequest:
        """A pod of a workload: often another one of a workload that there was before."""
        self.made += 1
        if not self.workloads or self.some(0.5):
            self.workloads.append(self.workload())
        return replace(self.dice.choice(self.workloads[-8:]), uid=f"asked-{self.made}")

    def workload(self) -> PodRequest:
        """A pod with rules of its own."""
        namespace, labels = self.dice.choice(NAMESPACES), self.labels()
        own, affinity = PodMarks(namespace, labels), self.terms(namespace)
        spread = []
        for _ in range(self.dice.choice((0, 0, 1, 2))):
            pods = replace(self.selector(namespace), namespaces=(namespace,))
            spread.append(
                SpreadRule(
                    self.dice.choice(KEYS),
                    self.dice.randint(1, 2),
                    pods,
                    min_domains=self.dice.choice((1, 1, 3, 4)),
                    honors_affinity=self.some(0.7),
                    honors_taints=self.some(0.3),
                    counts_itself=selects(pods, own),
                )
            )
        rules = InterPodRules(
            affinity,
            self.terms(namespace),
            tuple(spread),
            is_its_own=bool(affinity) and all(selects(term.pods, own) for term in affinity),
        )
        constraints = Constraints(
            selector=(("zone", self.dice.choice(VALUES)),) if self.some(0.2) else (),
            affinity=(Term((Requirement("rack", "Exists"),)),) if self.some(0.1) else None,
            tolerations=(Toleration(operator="Exists"),) if self.some(0.5) else (),
            pods=rules,
        )
        plain = pod("asked")
        shape = replace(plain.shape, constraints=constraints)
        return replace(plain, shape=shape, namespace=namespace, labels=labels)

    def change_node(self) -> None:
        name = f"n{self.dice.randrange(7)}"
        if name in self.nodes and self.some(0.3):
            del self.nodes[name]
            self.engine.handle(NodesChanged(removed=(name,)), 0)
            return
        labels = {key: self.dice.choice(VALUES) for key in KEYS[:2] if self.some(0.85)}
        taints = (Taint("k", "NoSchedule"),) if self.some(0.2) else ()
        one = replace(node(name), labels={**labels, "host": name}, taints=taints)
        self.nodes[name] = one
        self.engine.handle(NodesChanged((one,)), 0)

    def change_pod(self) -> None:
        if self.there and self.some(0.3):
            uid = self.dice.choice(sorted(self.there))
            del self.there[uid]
            self.engine.handle(PodGone(uid), 0)
            return
        uid = f"p{self.dice.randrange(14)}"
        known = self.there.get(uid)
        where = known.node if known is not None else f"n{self.dice.randrange(7)}"
        marks = self.marks()
        self.there[uid] = There(where, marks)
        self.engine.handle(PodSeenBound(placement(uid, where), marks=marks), 0)

    def step(self) -> None:
        if self.some(0.2):
            self.change_node()
        else:
            self.change_pod()

    def compare(self) -> tuple[int, int]:
        """Ask about one pod; how many nodes it may have, and how many it may not."""
        asked = self.asked()
        constraints, nodes = asked.shape.constraints, list(self.nodes.values())
        own = PodMarks(asked.namespace, asked.labels or {})
        want = {
            one.name
            for one in nodes
            if constraints.accepts_labels(one.name, one.labels)
            and constraints.untolerated(one.taints) is None
        } & allowed(nodes, list(self.there.values()), own, constraints)
        known = self.engine.assess(self.engine.profiles["weft"], asked)
        names = [one.name for one in self.engine.ledger.table.nodes]
        codes = dict(zip(names, known.codes.tolist(), strict=True))
        assert {name for name, code in codes.items() if code == Code.FITS} == want, asked
        assert known.counts[0] == len(want)
        return len(want), len(nodes) - len(want)


@pytest.mark.parametrize("seed", range(STORIES))
def test_the_nodes_are_the_slow_references(seed: int) -> None:
    story = Story(seed)
    fits = refused = 0
    for _ in range(STEPS):
        story.step()
        for _ in range(2):
            more, fewer = story.compare()
            fits, refused = fits + more, refused + fewer
    assert fits
    assert refused


@pytest.mark.parametrize("seed", range(STORIES))
def test_what_is_decided_holds_and_nobody_waits_in_vain(seed: int) -> None:
    """Pods come and are placed by the engine: each place is one that the reference allows at that
    moment, and at the end nobody waits for a node that it may have."""
    story = Story(seed)
    waiting: dict[str, PodRequest] = {}
    for now_ns in range(0, STEPS * 60 * 10**9, 60 * 10**9):
        asked = story.asked()
        waiting[asked.uid] = asked
        _settle(story, waiting, story.engine.handle(PodAdded(asked), now_ns))
        if story.some(0.5):
            _change(story, waiting, now_ns + 1)
        _until_idle(story, waiting, now_ns + 2)
    _until_idle(story, waiting, STEPS * 60 * 10**9)
    left = {uid: _may_have(story, one) for uid, one in waiting.items()}
    assert {uid: names for uid, names in left.items() if names} == {}


def _may_have(story: Story, asked: PodRequest) -> set[str]:
    constraints, nodes = asked.shape.constraints, list(story.nodes.values())
    own = PodMarks(asked.namespace, asked.labels or {})
    return {
        name
        for name in allowed(nodes, list(story.there.values()), own, constraints)
        if constraints.accepts_labels(name, story.nodes[name].labels)
        and constraints.untolerated(story.nodes[name].taints) is None
    }


def _settle(story: Story, waiting: dict[str, PodRequest], commands: list[Command]) -> None:
    for command in commands:
        if not isinstance(command, Bind):
            continue
        asked = waiting.pop(command.pod.uid)
        assert command.placement.node in _may_have(story, asked)
        rules = asked.shape.constraints.pods
        marks = PodMarks(asked.namespace, asked.labels or {}, rules.anti_affinity if rules else ())
        story.there[asked.uid] = There(command.placement.node, marks)


def _change(story: Story, waiting: dict[str, PodRequest], now_ns: int) -> None:
    """A pod that has a node goes, or is relabelled."""
    if not story.there:
        return
    uid = story.dice.choice(sorted(story.there))
    known = story.there.pop(uid)
    if story.some(0.6):
        _settle(story, waiting, story.engine.handle(PodGone(uid), now_ns))
        return
    marks = replace(known.marks, labels=story.labels())
    story.there[uid] = There(known.node, marks)
    seen = PodSeenBound(placement(uid, known.node), marks=marks)
    _settle(story, waiting, story.engine.handle(seen, now_ns))


def _until_idle(story: Story, waiting: dict[str, PodRequest], now_ns: int) -> None:
    """Let back-offs end: what was woken is tried."""
    for second in range(30):
        at_ns = now_ns + second * 10**9
        _settle(story, waiting, story.engine.handle(Tick(), at_ns))

"""Pods' preferences: the engine's points are those of the slow reference, and it chooses a node
with the most, after every change of a random story of nodes and pods.

20,000 decisions are compared in the long form.
"""

from random import Random

import numpy as np
import pytest
from long_form import few_or_many
from msgspec import UNSET
from msgspec.structs import replace
from pods_slowly import There
from preferences_slowly import HOSTNAME, MIB, SlowScores

from weft.core.engine import Bind, Engine, ImagesSeen, NodesChanged, PodAdded, PodGone, PodSeenBound
from weft.core.engine.records import Record
from weft.core.framework import Profile
from weft.core.policies.packing import FirstFit
from weft.model import (
    Constraints,
    InterPodRules,
    Node,
    PodMarks,
    PodRequest,
    PodSelector,
    PodTerm,
    Preference,
    Preferences,
    Requirement,
    SpreadRule,
    Taint,
    Term,
    Toleration,
    WeightedTerm,
)
from weft.testing import node, placement, pod

STORIES, STEPS = few_or_many((12, 25), (200, 100))
NAMESPACES, VALUES = ("red", "blue"), ("a", "b", "c")
KEYS = ("zone", "rack", HOSTNAME)
IMAGES = {
    f"repo/{letter}:1": size * MIB for letter, size in zip("abcd", (9, 90, 700, 3000), strict=True)
}


class Story:
    """A cluster as the engine was told of it, and as the reference reads it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.engine = Engine([Profile("weft", (FirstFit(),))])
        self.nodes: dict[str, Node] = {}
        self.there: dict[str, There] = {}
        self.images: dict[str, dict[str, int]] = {}
        self.made = self.decided = 0
        for _ in range(6):
            self.change_node()

    def some(self, share: float) -> bool:
        return self.dice.random() < share

    def labels(self) -> dict[str, str]:
        return {key: self.dice.choice(VALUES) for key in ("app", "tier") if self.some(0.7)}

    def selector(self, namespace: str) -> PodSelector:
        asked = []
        for key in self.dice.sample(("app", "tier"), self.dice.choice((0, 1, 1, 2))):
            operator = self.dice.choice(("In", "NotIn", "Exists"))
            values = () if operator == "Exists" else tuple(self.dice.sample(VALUES, 2))
            asked.append(Requirement(key, operator, values))
        namespaces = self.dice.choice(((namespace,), (namespace,), NAMESPACES, None))
        return PodSelector(namespaces, None if self.some(0.05) else tuple(asked))

    def wishes(self, namespace: str) -> tuple[WeightedTerm, ...]:
        return tuple(
            WeightedTerm(
                self.dice.choice((-100, -7, 1, 30)),
                PodTerm(self.dice.choice(KEYS), self.selector(namespace)),
            )
            for _ in range(self.dice.choice((0, 1, 2)))
        )

    def marks(self) -> PodMarks:
        namespace = self.dice.choice(NAMESPACES)
        draws = self.wishes(namespace) if self.some(0.4) else ()
        return PodMarks(namespace, self.labels(), terminating=self.some(0.1), draws=draws or UNSET)

    def spread(self, namespace: str) -> tuple[SpreadRule, ...]:
        return tuple(
            SpreadRule(
                key,
                self.dice.randint(1, 5),
                replace(self.selector(namespace), namespaces=(namespace,)),
                honors_affinity=self.some(0.7),
                honors_taints=self.some(0.3),
            )
            for key in self.dice.sample(KEYS, self.dice.choice((0, 1, 2)))
        )

    def asked(self) -> PodRequest:
        namespace = self.dice.choice(NAMESPACES)
        terms = [
            Term((Requirement("rack", "In", tuple(self.dice.sample(VALUES, 2))),)),
            Term((Requirement("zone", "Exists"),)),
            Term(fields=(Requirement("metadata.name", "In", ("n1",)),)),
            Term(),
        ]
        wished = self.dice.sample(terms, self.dice.choice((0, 1, 2)))
        preferences = Preferences(
            nodes=tuple(Preference(self.dice.randint(1, 100), term) for term in wished),
            pods=self.wishes(namespace),
            spread=self.spread(namespace),
            by_default=self.some(0.4),
            images=tuple(self.dice.choices([*IMAGES, "nowhere:1"], k=self.dice.choice((0, 1, 3)))),
            containers=self.dice.randint(1, 3),
        )
        near = (PodTerm(self.dice.choice(KEYS), self.selector(namespace)),)
        rules = InterPodRules(affinity=near, is_its_own=True) if self.some(0.2) else UNSET
        constraints = Constraints(
            selector=(("zone", self.dice.choice(VALUES)),) if self.some(0.1) else (),
            tolerations=(Toleration("k", "Exists"),) if self.some(0.4) else (),
            pods=rules,
        )
        self.made += 1
        plain = pod(f"asked-{self.made}")
        shape = replace(plain.shape, constraints=constraints)
        named = replace(plain, shape=shape, namespace=namespace, labels=self.labels())
        return named if self.some(0.1) else replace(named, preferences=preferences)

    def change_node(self) -> None:
        name = f"n{self.dice.randrange(8)}"
        if name in self.nodes and self.some(0.2):
            del self.nodes[name]
            self.has_images(name, ())
            self.engine.handle(NodesChanged(removed=(name,)), 0)
            return
        labels = {key: self.dice.choice(VALUES) for key in KEYS[:2] if self.some(0.8)}
        if self.some(0.1):
            labels["zone"] = ""
        if self.some(0.9):
            labels[HOSTNAME] = name if self.some(0.9) else "shared"
        effects = self.dice.sample(("NoSchedule", "PreferNoSchedule"), self.dice.choice((0, 0, 1)))
        taints = [Taint("k", effect) for effect in effects]
        taints += [Taint("other", "PreferNoSchedule")] if self.some(0.2) else []
        one = replace(node(name), labels=labels, taints=tuple(taints))
        self.nodes[name] = one
        self.engine.handle(NodesChanged((one,)), 0)

    def change_images(self) -> None:
        self.has_images(f"n{self.dice.randrange(8)}", self.dice.sample(sorted(IMAGES), 2))

    def has_images(self, name: str, images: list[str] | tuple[()]) -> None:
        self.images[name] = {image: IMAGES[image] for image in images}
        told = tuple(self.images[name].items())
        self.engine.handle(ImagesSeen(told, {name: tuple(range(len(told)))}), 0)

    def change_pod(self) -> None:
        if self.there and self.some(0.3):
            uid = self.dice.choice(sorted(self.there))
            del self.there[uid]
            self.engine.handle(PodGone(uid), 0)
            return
        uid = f"p{self.dice.randrange(20)}"
        known = self.there.get(uid)
        where = known.node if known is not None else f"n{self.dice.randrange(8)}"
        self.there[uid] = There(where, self.marks())
        self.engine.handle(PodSeenBound(placement(uid, where), marks=self.there[uid].marks), 0)

    def step(self) -> None:
        self.dice.choice([self.change_node, self.change_images, *[self.change_pod] * 3])()
        self.compare(self.asked())

    def compare(self, asked: PodRequest) -> None:
        engine, constraints = self.engine, asked.shape.constraints
        known = engine.assess(engine.profiles["weft"], asked)
        rows = np.flatnonzero(known.codes == 0)
        fitting = [engine.ledger.table.nodes[row] for row in rows.tolist()]
        slow: dict[str, int] = {}
        if fitting:
            own = PodMarks(asked.namespace, asked.labels or {})
            wanted = asked.preferences or Preferences()
            there, nodes = list(self.there.values()), list(self.nodes.values())
            slow = SlowScores(nodes, fitting, there, self.images, own, constraints, wanted).totals()
            parts = known.wishes.parts(rows) if known.wishes is not None else []
            total = np.sum([part.points for part in parts], axis=0) + np.zeros(len(rows), int)
            ours = dict(zip((one.name for one in fitting), total.tolist(), strict=True))
            least, base = min(slow.values()), min(ours.values())
            differ = {
                name: (ours[name] - base, slow[name] - least)
                for name in ours
                if ours[name] - base != slow[name] - least
            }
            assert differ == {}, "(the engine's points above the least, the reference's)"
        binds = [c for c in engine.handle(PodAdded(asked), 0) if isinstance(c, Bind)]
        assert bool(binds) == bool(fitting)
        if binds:
            self.follow(asked, binds[0].record, slow)
        else:
            engine.handle(PodGone(asked.uid), 0)

    def follow(self, asked: PodRequest, record: Record, slow: dict[str, int]) -> None:
        """The pod is where it prefers to be, first of equals; it stays, as one of the others."""
        most = max(slow.values())
        in_order = [one.name for one in self.engine.ledger.table.nodes if one.name in slow]
        assert record.node == next(name for name in in_order if slow[name] == most)
        told = record.preferred is not UNSET
        assert told == (min(slow.values()) < most)
        self.decided += told
        if told:
            assert record.preferred.nodes == len(slow)
            assert sum(part.points for part in record.preferred.parts) <= most
        rules = asked.shape.constraints.pods
        draws = asked.preferences.pods if asked.preferences else ()
        draws += tuple(WeightedTerm(1, term) for term in (rules.affinity if rules else ()))
        marks = PodMarks(asked.namespace, asked.labels or {}, draws=draws or UNSET)
        self.there[asked.uid] = There(record.node, marks)


@pytest.mark.parametrize("seed", range(STORIES))
def test_points_are_those_of_the_slow_reference(seed: int) -> None:
    story = Story(seed)
    for _ in range(STEPS):
        story.step()
    assert story.decided > STEPS // 5

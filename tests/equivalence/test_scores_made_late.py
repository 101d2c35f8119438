"""Scores of nodes that a pod's rules refuse are made when another pod needs them: an engine decides
as one that makes all of them anew each time, after every change of pods, nodes and prices."""

from random import Random
from typing import Any

import pytest
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Engine, NodesChanged, PodAdded, PodBound, PodGone, Wake
from weft.core.framework import Plugin, Profile
from weft.core.policies.catalog import built_in
from weft.model import (
    Constraints,
    InterPodRules,
    Node,
    PodRequest,
    PodSelector,
    PodTerm,
    Requirement,
    SpreadRule,
)
from weft.testing import node, pod, shape

STEPS = few_or_many(60, 250)
SEEDS = few_or_many(4, 60)
ZONE, HOST, APPS = "topology.kubernetes.io/zone", "kubernetes.io/hostname", 6
PROFILES = {
    "least-stranding": ("least-stranding",),
    "best-fit": ("best-fit",),
    "two policies": ("best-fit", "dot-product"),
    "fgd": ("fgd",),
}


def profile_of(names: tuple[str, ...]) -> Profile:
    return Profile("weft", [Plugin(built_in().create(name), 2) for name in names])


class Twins:
    """Two engines that are told the same; the second one forgets its answers before each event."""

    def __init__(self, profile: str, seed: int) -> None:
        names = PROFILES[profile]
        self.engines = [Engine([profile_of(names)], seed=1, keep_top=3) for _ in range(2)]
        self.dice, self.now_ns, self.came = Random(seed), 0, 0
        self.there: list[str] = []
        self.tell(NodesChanged(tuple(self.node(number) for number in range(40))))

    def node(self, number: int) -> Node:
        labels = {ZONE: f"z{number % 8}", HOST: f"n{number}"}
        gpus = self.dice.choice((2, 4))
        return replace(node(f"n{number}", gpus=gpus, memory_mib=1000), labels=labels)

    def tell(self, event: Any) -> None:
        self.now_ns += self.dice.choice((1, 10**9, 10**11))
        self.engines[1].assessor.forget()
        out, anew = (
            [each for each in engine.handle(event, self.now_ns) if not isinstance(each, Wake)]
            for engine in self.engines
        )  # a Wake may be for work ahead, of which the second engine has none
        assert out == anew
        for command in out:
            if isinstance(command, Bind):
                self.there.append(command.pod.uid)
                self.tell(PodBound(command.pod.uid))

    def asked(self) -> PodRequest:
        """Some pod; most may only be in the zone of another application, few where their own is."""

        def pods(app: int) -> PodSelector:
            return PodSelector(("default",), (Requirement("app", "In", (str(app),)),))

        self.came += 1
        app, near = self.dice.randrange(APPS), self.dice.randrange(APPS)
        affinity = (PodTerm(ZONE, pods(near)),) if self.dice.random() < 0.7 else ()
        away = (PodTerm(HOST, pods(app)),) if self.dice.random() < 0.5 else ()
        spread = (SpreadRule(ZONE, 4, pods(app)),) if self.dice.random() < 0.3 else ()
        rules = InterPodRules(affinity, away, spread, is_its_own=near == app)
        asks = shape(memory_mib=self.dice.choice((100, 400)), milli=100)
        asks = replace(asks, constraints=Constraints(pods=rules))
        return replace(pod(f"p{self.came}", asks=asks), labels={"app": str(app)})

    def step(self) -> None:
        kind = self.dice.random()
        if kind < 0.7 or not self.there:
            self.tell(PodAdded(self.asked()))
        elif kind < 0.93:
            self.tell(PodGone(self.there.pop(self.dice.randrange(len(self.there)))))
        elif kind < 0.97:
            self.tell(NodesChanged((self.node(self.dice.randrange(44)),)))
        else:
            self.tell(NodesChanged(removed=(f"n{self.dice.randrange(40)}",)))


@pytest.mark.parametrize("profile", PROFILES)
def test_decisions_are_those_of_scores_made_anew(profile: str) -> None:
    waited = 0
    for seed in range(SEEDS):
        story = Twins(profile, seed)
        for _ in range(STEPS):
            story.step()
            waited += any(known.late for known in story.engines[0].assessor._known.values())
    assert waited > SEEDS

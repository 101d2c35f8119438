"""Policies by predicted interference decide like slow references: every GPU, by the formulas."""

import math
import random

import numpy as np
import pytest
from long_form import few_or_many
from msgspec.structs import replace

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PodGone, PolicyInput
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.sharing_cost import CAUTION
from weft.model import Node, PodRequest
from weft.model.interference_table import INTERFERENCE, PredictionTier, interference, to_input
from weft.testing import node, pod

CLUSTERS, PODS = few_or_many(18, 40), 40
NAMES = ("a", "b", "c", "d")
CARDS = (("T4", 10_000), ("V100", 20_000))
BOUND = {"latency-critical": 1.10, "best-effort": math.inf}
SLACKS = ((), (), (("", 105),), (("", 100),), (("", 300),), (("t4", 103),), (("v", 101), ("", 108)))


class Slowly:
    """GPUs as lists of (application, class, MiB, slack)."""

    most_small = 4

    def __init__(self, dice: random.Random, most: int) -> None:
        size = len(NAMES) + 1
        rng = np.random.default_rng(dice.randrange(1 << 30))
        scale = rng.choice([0.01, 0.1, 0.5, 0.9])
        self.mean = rng.random((2, size, size)) * scale
        self.upper = self.mean + rng.random(self.mean.shape) * min(0.2, 2 * scale)
        self.upper[rng.random(self.mean.shape) < 0.08] = math.inf
        self.most = most
        self.gpus: dict[tuple[str, int], tuple[str, int, list]] = {}

    def told(self) -> object:
        tier = np.full(self.mean.shape, PredictionTier.LEARNED, dtype=np.int8)
        models = [model for model, _ in CARDS]
        return to_input(interference(1, models, NAMES, (self.mean, self.upper, tier)))

    def value(self, gpu: tuple[str, int], new: PodRequest) -> float | None:
        """None where the pod may not go."""
        model, total, there = self.gpus[gpu]
        asked = new.shape.gpu_requests[0].memory.value
        if asked > total - sum(mib for _, _, mib, _ in there):
            return None
        what = (new.shape.application, new.shape.job_class, asked, new.shape.slowdown_limit)
        small = all(
            job_class == "latency-critical" and 4 * mib <= total
            for _, job_class, mib, _ in (*there, what)
        )
        if len(there) >= (max(self.most, self.most_small) if small else self.most):
            return None
        if not there:
            return 1.0
        card = [model for model, _ in CARDS].index(model)
        return self.co_residents(card, there, what)

    def bound(self, card: int, job_class: str, slowdown_limit) -> float:
        """The slowdown that its class allows, and the pod itself by its SLO."""
        found = BOUND.get(job_class, 1.30 * (1 + 1 / len(self.gpus)))
        own = [percent / 100 for part, percent in slowdown_limit if part in CARDS[card][0].lower()]
        return min([found, *own[:1]]) if job_class == "latency-critical" else found

    def co_residents(self, card: int, there, new) -> float | None:
        mean, upper = self.mean[card], self.upper[card]
        pods = [(NAMES.index(app), job_class) for app, job_class, _, _ in (*there, new)]
        slacks = [slowdown_limit for _, _, _, slowdown_limit in (*there, new)]

        def slower(table, among, at):
            return sum(table[among[at][0], o] for k, (o, _) in enumerate(among) if k != at)

        together = range(len(pods))
        if any(math.isinf(slower(upper, pods, at)) for at in together):
            return None
        expected = [math.exp(-slower(mean, pods, at)) for at in together]
        away = 1 / len(self.gpus)
        for at in together:
            worst, job_class = math.exp(slower(upper, pods, at)), pods[at][1]
            if worst > self.bound(card, job_class, slacks[at]):
                return None
        between = (1 - CAUTION) * mean + CAUTION * upper
        valued = [math.exp(-slower(between, pods, at)) for at in together]
        before = [math.exp(-slower(mean, pods[:-1], at)) for at in range(len(pods) - 1)]
        value = sum(valued) - sum(before)
        value -= 0.5 * sum(
            1 / speed - 1
            for speed, (_, job_class) in zip(valued, pods, strict=True)
            if job_class == "latency-critical"
        )
        enough = sum(expected) >= 1.05 and value >= 0.05 + 0.45 * max(0.0, 1 - away)
        return value if enough else None


class SlowCoscheml(Slowly):
    most_small = 0

    def co_residents(self, card: int, there, new) -> float | None:
        mean, upper = self.mean[card], self.upper[card]
        one, other = NAMES.index(new[0]), NAMES.index(there[0][0])
        if math.isinf(upper[one, other]) or math.isinf(upper[other, one]):
            return None
        return -math.exp(mean[one, other]) - math.exp(mean[other, one])


class SlowLucid(Slowly):
    most_small = 0

    def co_residents(self, card: int, there, new) -> float | None:
        mean, upper = self.mean[card], self.upper[card]
        one, other = NAMES.index(new[0]), NAMES.index(there[0][0])
        if math.isinf(upper[one, other]) or math.isinf(upper[other, one]):
            return None
        points = 0
        for application in (new[0], there[0][0]):
            at, speeds = NAMES.index(application), []
            for other in range(len(NAMES)):
                for target, beside in ((at, other), (other, at)):
                    if not math.isinf(upper[target, beside]):
                        speeds.append(math.exp(-mean[target, beside]))
            average = sum(speeds) / max(1, len(speeds))
            points += 2 if average < 0.85 else 1 if average < 0.95 else 0
        return float(-points) if points <= 2 else None


def drawn_cluster(dice: random.Random, slowly: Slowly) -> list[Node]:
    """One to three nodes of drawn cards; the reference knows their GPUs, all empty."""
    cluster = []
    for where in ("n0", "n1", "n2")[: dice.randint(1, 3)]:
        (model, mib), gpus = dice.choice(CARDS), dice.randint(1, 3)
        cluster.append(node(where, gpus=gpus, model=model, memory_mib=mib))
        slowly.gpus |= {(where, gpu): (model, mib, []) for gpu in range(gpus)}
    return cluster


def drawn_pod(dice: random.Random, step: int, classes: list[str]) -> PodRequest:
    new = pod(
        f"p{step}",
        memory_mib=dice.choice([1000, 4000, 9000]),
        application=dice.choice(NAMES),
        job_class=dice.choice(classes),
    )
    return replace(new, shape=replace(new.shape, slowdown_limit=dice.choice(SLACKS)))


@pytest.mark.parametrize(
    ("name", "options", "reference", "most"),
    [
        ("interference", {}, Slowly, 2),
        ("interference", {"most": 3}, Slowly, 3),
        ("coscheml", {}, SlowCoscheml, 2),
        ("lucid", {}, SlowLucid, 2),
    ],
)
def test_decides_like_the_slow_reference(name, options, reference, most: int) -> None:
    shared = crowds = 0
    for number in range(CLUSTERS):
        dice = random.Random(f"interference/{most}/{number}")
        slowly = reference(dice, most)
        classes = dice.choice(
            [["", "batch", "best-effort", "latency-critical"]] * 3 + [["latency-critical"]]
        )
        cluster = drawn_cluster(dice, slowly)
        engine = Engine([Profile("weft", [built_in().create(name, **options)])], cluster)
        engine.handle(PolicyInput(INTERFERENCE, slowly.told()), 0)
        there: dict[str, tuple[tuple[str, int], tuple]] = {}
        for step in range(PODS):
            new = drawn_pod(dice, step, classes)
            values = {gpu: slowly.value(gpu, new) for gpu in slowly.gpus}
            good = {gpu: value for gpu, value in values.items() if value is not None}
            command = engine.handle(PodAdded(new), step)[0]
            if not good:
                assert not isinstance(command, Bind), (number, step)
                engine.handle(PodGone(new.uid), step)
            else:
                assert isinstance(command, Bind), (number, step, good)
                place = command.placement
                gpu = (place.node, place.shares[0].gpu)
                assert gpu in good, (number, step, gpu, good)
                assert good[gpu] == pytest.approx(max(good.values()), abs=0.0011)
                engine.handle(PodBound(new.uid), step)
                shared += bool(slowly.gpus[gpu][2])
                asked = new.shape
                what = (
                    asked.application,
                    asked.job_class,
                    place.shares[0].memory_mib,
                    asked.slowdown_limit,
                )
                crowds += len(slowly.gpus[gpu][2]) >= most
                slowly.gpus[gpu][2].append(what)
                there[new.uid] = (gpu, what)
            if there and dice.random() < 0.4:
                uid = dice.choice(sorted(there))
                engine.handle(PodGone(uid), step)
                gpu, what = there.pop(uid)
                slowly.gpus[gpu][2].remove(what)
    assert shared > 20, "sharing must have been decided about"
    assert (crowds > 2) == (most < reference.most_small), "small pods may be more"

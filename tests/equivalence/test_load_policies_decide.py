"""Every policy that reads metrics decides like its slow reference, whatever the metrics are."""

import random

import load_policies_slowly as slowly
import msgspec
import numpy as np
import pytest
import systems_slowly
from long_form import few_or_many
from test_policies_decide import PAIRS as BY_REQUESTS
from test_policies_decide import a_node, a_shape

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PodGone, SignalsChanged
from weft.core.framework import Profile
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.ledger import RequestLimits, audit
from weft.core.policies.auto import Auto
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import PodRequest

CLUSTERS = few_or_many(2, 14)
PODS = 24
HARVEST = 1500

PAIRS = [
    ("load-aware", {}, slowly.LoadAware()),
    ("load-aware", {"mode": "pack"}, slowly.LoadAware(-50_000)),
    ("horus", {}, slowly.Horus()),
    ("genius", {}, systems_slowly.Genius()),
    ("genius", {"compat": "exact"}, systems_slowly.GeniusExact()),
    ("res-ag", {}, slowly.ResAg()),
    ("kube-knots-cbp", {}, slowly.KubeKnotsCbp()),
    ("kube-knots-cbp", {"reading": "cov"}, slowly.KubeKnotsCbp(correlation=False)),
    ("kube-knots-pp", {}, slowly.KubeKnotsPp()),
    ("ferikoglou", {}, slowly.Ferikoglou()),
    ("ferikoglou-safe", {}, slowly.FerikoglouSafe()),
    ("nano-load-binpack", {}, systems_slowly.NanoLoadBinpack()),
    ("nano-load-spread", {}, systems_slowly.NanoLoadSpread()),
    ("auto", {}, slowly.Auto()),
]

RATIOS = (
    "sm_active_ratio",
    "graphics_active_ratio",
    "gpu_util_ratio",
    "dram_active_ratio",
    "memory_copy_ratio",
    "sm_occupancy_ratio",
    "sm_active_ratio.next",
    "sm_active_ratio.last",
    "gpu_util_ratio.last",
    "memory_used_ratio",
    "encoder_ratio",
    "decoder_ratio",
)
MEMORY = (
    "memory_used_mib",
    "memory_free_mib",
    "memory_free_mib.last",
    "memory_used_mib.p80",
    "memory_free_mib.predicted",
    "memory_promised_mib",
)


EDGES = {
    "memory_free_mib.cov": (0.0, 0.2, 0.49, 0.5, 0.9),
    "memory_free_mib.autocorrelation": (-0.4, 0.0, 0.35, 0.36, 0.9),
    "correlation": (-1.0, 0.0, 0.49, 0.5, 1.0),
    "window.samples": (5.0, 19.0, 20.0, 60.0, 60.0),
}


def a_value(dice: random.Random, column: str, total: int) -> float:
    """Mostly possible, sometimes not."""
    odd = dice.random() < 0.03
    if column in RATIOS:
        return dice.choice([-1.0, 2.0]) if odd else dice.choice([0.0, 1.0, dice.random()])
    if column in MEMORY:
        return dice.choice([-5.0, 1e9]) if odd else float(dice.randint(0, total))
    edges = EDGES.get(column.partition(".train")[0].partition(".serve")[0])
    return dice.choice(edges) if edges else dice.uniform(20, 300)


COLUMNS = (
    *RATIOS,
    *MEMORY,
    "memory_free_mib.cov",
    "memory_free_mib.autocorrelation",
    "window.samples",
    "power_w",
    "power_limit_w",
    "correlation.train",
    "correlation.serve",
)


class Watch:
    """Snapshots for the engine and for the slow machines, alike."""

    def __init__(self, dice: random.Random, machines) -> None:
        self.dice, self.machines, self.version = dice, machines, 0
        self.columns = [column for column in COLUMNS if dice.random() < 0.8]
        self.missing = dice.choice([0.0, 0.1, 0.5, 1.0])

    def look(self, placed) -> SignalsChanged:
        dice = self.dice
        self.version += 1
        cards = [(m.name, g, card) for m in self.machines for g, card in enumerate(m.cards)]
        columns = {}
        for _, _, card in cards:
            card.seen, card.idle_mib, card.closed = {}, 0, False
        for column in self.columns:
            values, ages = np.zeros(len(cards)), np.zeros(len(cards), dtype=np.int8)
            for at, (_, _, card) in enumerate(cards):
                values[at] = a_value(dice, column, card.total)
                ages[at] = MISSING if dice.random() < self.missing else dice.choice([FRESH, STALE])
                if ages[at] != MISSING:
                    card.seen[column] = (values[at], int(ages[at]))
            columns[column] = (values, ages)
        idle = {}
        for uid, pod in placed.items():
            idle[uid] = tuple(dice.randint(-100, 12_000) for _ in pod[2])
            pod[3] = self.lend(pod, idle[uid])
        gpus = [(name, gpu) for name, gpu, _ in cards]
        return SignalsChanged(snapshot(self.version, 0, gpus, columns, idle_mib=idle))

    @staticmethod
    def lend(pod, told) -> list[tuple[object, int]]:
        machine, shape, chosen, _ = pod
        lent = []
        for (gpu_request, gpu), mib in zip(chosen, told, strict=True):
            card = machine.cards[gpu]
            lent.append((card, max(0, min(mib, card.charge(shape.gpu_requests[gpu_request])[0]))))
            card.idle_mib += lent[-1][1]
        return lent


def replay(dice: random.Random, policy, reference) -> None:
    """Pods come and go, metrics change; after each arrival both must have decided alike."""
    nodes = [a_node(dice, number) for number in range(dice.randint(2, 6))]
    classes = ["", "batch", "latency-critical", "best-effort"]
    shapes = [
        msgspec.structs.replace(
            a_shape(dice),
            job_class=dice.choice(classes),
            application=dice.choice(["", "train", "serve", "other"]),
        )
        for _ in range(5)
    ]
    engine = Engine([Profile("weft", [policy])], nodes, limits=RequestLimits(1000, HARVEST), seed=7)
    machines = [slowly.WatchedMachine(node, HARVEST) for node in nodes]
    watch, placed = Watch(dice, machines), {}
    for number in range(PODS):
        if dice.random() < 0.4:
            engine.handle(watch.look(placed), number)
        uid, shape = f"pod-{number}", dice.choice(shapes)
        if isinstance(policy, Auto):  # it learns them between decisions, as least-stranding does
            reference.stranding.take(*policy._stranding.constants)
        command = engine.handle(PodAdded(PodRequest(uid, uid, shape)), number)[0]
        expected = reference.decide(machines, shape, f"7/{uid}/1")
        if expected is None:
            assert not isinstance(command, Bind), (uid, shape, command)
            engine.handle(PodGone(uid), number)
        else:
            assert isinstance(command, Bind), (uid, shape, expected)
            place = command.placement
            got = (place.node, [(share.gpu_request, share.gpu) for share in place.shares])
            machine, chosen = expected
            assert got == (machine.name, chosen), (uid, shape)
            engine.handle(PodBound(uid), number)
            if len(chosen) == 1:
                card = machine.cards[chosen[0][1]]
                card.closed |= card.charge(shape.gpu_requests[0])[0] > card.strict
            machine.place(shape, chosen)
            placed[uid] = [machine, shape, chosen, []]
        if placed and dice.random() < 0.3:
            gone = dice.choice(sorted(placed))
            engine.handle(PodGone(gone), number)
            machine, old, chosen, lent = placed.pop(gone)
            machine.place(old, chosen, -1)
            for card, mib in lent:
                card.idle_mib -= mib
    assert audit(engine.ledger) == []


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    PAIRS,
    ids=["-".join([name, *map(str, options.values())]) for name, options, _ in PAIRS],
)
def test_decides_like_the_slow_reference(name, options, reference):
    for number in range(CLUSTERS):
        policy = built_in().create(name, **options)
        replay(random.Random(f"{name}/{number}"), policy, reference)


def test_every_policy_has_a_reference():
    known = {name for name, _, _ in [*PAIRS, *BY_REQUESTS]}
    known |= {"coscheml", "interference", "lucid"}  # test_interference_decides
    known |= {"least-stranding"}  # test_least_stranding
    assert known >= {policy.name for policy in BUILT_IN}

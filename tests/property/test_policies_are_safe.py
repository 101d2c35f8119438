"""Whatever metrics say, no policy promises more than was declared, and all scores are finite."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from ways import WAYS, drawn, examples

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PodGone, SignalsChanged
from weft.core.framework import Demand, Profile, Query
from weft.core.framework.query import Observations
from weft.core.framework.signals import FRESH, MISSING, STALE, SignalsView, snapshot
from weft.core.ledger import Ledger, RequestLimits, audit
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.model import Placement, Share
from weft.testing import node, pod, shape

CARDS = {"small": (10_000, 2), "large": (40_000, 3)}
GPUS = [(name, gpu) for name, (_, count) in CARDS.items() for gpu in range(count)]
COLUMNS = (
    "sm_active_ratio",
    "gpu_util_ratio",
    "dram_active_ratio",
    "memory_copy_ratio",
    "sm_occupancy_ratio",
    "memory_used_mib",
    "memory_free_mib",
    "memory_free_mib.last",
    "memory_used_ratio",
    "memory_used_mib.p80",
    "memory_free_mib.cov",
    "window.samples",
    "memory_free_mib.autocorrelation",
    "memory_free_mib.predicted",
    "sm_active_ratio.next",
    "power_w",
    "power_limit_w",
    "encoder_ratio",
    "decoder_ratio",
    "memory_need_mib",
)
HARVEST = RequestLimits(harvest_permille=1500)
DECLARED = (HARVEST, RequestLimits(), RequestLimits(1300), RequestLimits(1300, 1500))
READERS = [policy for policy in BUILT_IN if "signals" in policy.reads]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((policy.name, {}) for policy in READERS),
    ("load-aware", {"mode": "pack"}),
    ("genius", {"compat": "exact"}),
    ("kube-knots-cbp", {"reading": "cov"}),
    ("kube-knots-pp", {"reading": "cov"}),
]
NAMES = ["-".join([name, *map(str, options.values())]) for name, options in VARIANTS]

AGES = (FRESH, FRESH, STALE, MISSING)
CLASSES = ("", "batch", "latency-critical", "best-effort")

anything = st.floats(allow_nan=True, allow_infinity=True)
ages = st.sampled_from(AGES)


def scale(column: str) -> float:
    """The amount that 1 stands for."""
    if column.startswith("memory_") and "mib" in column and column.endswith(("mib", "last", "p80")):
        return 10_000.0
    return {
        "memory_free_mib.predicted": 10_000.0,
        "window.samples": 60.0,
        "power_w": 300.0,
        "power_limit_w": 300.0,
    }.get(column, 1.0)


def a_snapshot(
    dice: Random, version: int, idle: dict[str, tuple[int, ...]], peaks: dict[str, int]
) -> SignalsChanged:
    """Some columns, some GPUs MISSING altogether, one metric perhaps stuck at 0 or its maximum.

    By a seeded Random: hundreds of draws by Hypothesis cost more than what is tested.
    """
    columns = dice.sample(COLUMNS, dice.randint(1, len(COLUMNS)))
    dark = [dice.random() < 0.5 for _ in GPUS]
    spoofed = dice.choice([None, *columns])
    stuck = dice.choice([0.0, 1.0])
    told = {}
    for column in columns:
        values = [dice.choice([0.0, 1.0, *(dice.random() for _ in "123")]) for _ in GPUS]
        states = [MISSING if out else dice.choice(AGES) for out in dark]
        if column == spoofed:
            values = [stuck * (4 if "mib" in column else 1)] * len(GPUS)
            states = [MISSING if out else FRESH for out in dark]
        told[column] = (np.array(values) * scale(column), np.array(states, dtype=np.int8))
    return SignalsChanged(snapshot(version, 0, GPUS, told, idle_mib=idle, peaks_mib=peaks))


def known(signals: SignalsView) -> set[tuple[str, int]]:
    """GPUs of which anything at all is known."""
    seen = (signals.freshness != MISSING).any(axis=0)
    return {gpu for gpu, one in zip(signals.source.gpus, seen, strict=True) if one}


def promised(engine: Engine, place: Placement) -> int:
    table = engine.ledger.table
    row = table.row_of[place.node]
    return table.memory_used[table.device_row(row, place.shares[0].gpu)]


def most_of(profile: Profile, limits: RequestLimits, total: int, *, measured: bool) -> int:
    """The declared limit: for everybody, and where the card is measured, for those that harvest."""
    lent = limits.harvest_permille if profile.harvests and measured else 1000
    return total * max(limits.overcommit_permille, lent) // 1000


@pytest.mark.parametrize("way", WAYS)
@drawn
@settings(max_examples=examples(2, 12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(DECLARED))
def test_no_policy_overcommits_beyond_the_declared_limit(
    way: str, seed: int, limits: RequestLimits
) -> None:
    """Unsafe ones too: what they may promise too much is declared, and no more than that."""
    nodes = [node(name, gpus=count, memory_mib=mib) for name, (mib, count) in CARDS.items()]
    profiles, dice = WAYS[way].profiles(seed), Random(seed)
    names = WAYS[way].pods_names
    engine = Engine(profiles, nodes, limits=limits)
    live: dict[str, int] = {}
    for number in range(12):
        if dice.random() < 0.5:
            idle = {uid: (dice.randint(0, dice.choice([10_000, 50_000])),) for uid in live}
            peaks = {uid: dice.randint(1, 5_000) for uid in live}
            engine.handle(a_snapshot(dice, number + 1, idle, peaks), number)
        if live and dice.random() < 1 / 3:
            gone = dice.choice(sorted(live))
            engine.handle(PodGone(gone, completed=True), number)
            del live[gone]
        mib = dice.choice([dice.randint(1, 30_000), dice.randint(1, 30_000), 6_000, 8_000, 30_000])
        asking = pod(
            f"p{number}", memory_mib=mib, job_class=dice.choice(CLASSES), application="training"
        )
        asking = replace(asking, scheduler_name=dice.choice(names))
        for command in engine.handle(PodAdded(asking), number):
            if not isinstance(command, Bind):
                continue
            place = command.placement
            measured = (place.node, place.shares[0].gpu) in known(engine.signals)
            total = CARDS[place.node][0]
            decided = engine.profiles[command.record.profile]
            assert promised(engine, place) <= most_of(decided, limits, total, measured=measured)
            engine.handle(PodBound(place.uid), number)
            live[place.uid] = mib
        assert audit(engine.ledger) == []


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=NAMES)
@drawn
@settings(max_examples=examples(3, 10), deadline=None)
@given(data=st.data())
def test_scores_are_finite_integers_whatever_is_told(
    name: str, options: dict[str, Any], data: st.DataObject
) -> None:
    nodes = [node(name, gpus=count, memory_mib=mib) for name, (mib, count) in CARDS.items()]
    ledger = Ledger([*nodes, node("none")], HARVEST)
    for number, (where, gpu) in enumerate(data.draw(st.lists(st.sampled_from(GPUS), max_size=8))):
        ledger.adopt(Placement(f"old-{number}", where, (Share(0, gpu, 6_000, 100),)))
    told = {}
    for column in data.draw(st.lists(st.sampled_from(COLUMNS), unique=True)):
        values = np.array([data.draw(anything) for _ in GPUS])
        told[column] = (values, np.array([data.draw(ages) for _ in GPUS], dtype=np.int8))
    policy = built_in().create(name, **options)
    observed = Observations(SignalsView(snapshot(1, 0, GPUS, told)))
    asked = data.draw(
        st.sampled_from([shape(memory_mib=5_000), shape(milli=300), shape(gpus=1), shape()])
    )
    demand = Demand(asked, ledger.table, harvests=policy.harvests)
    whole, rows = Query(ledger.table, demand, None, observed), np.array([0, 2])
    part = Query(ledger.table, demand, rows, observed)
    on_part = np.isin(ledger.table.device_node, rows)
    for ask, mine in (
        (policy.score_nodes, rows),
        (policy.score_devices, on_part),
        (policy.filter_devices, on_part),
    ):
        if not demand.needs and ask != policy.score_nodes:
            continue
        answer = ask(whole)
        if answer is None:
            continue
        expected = np.bool_ if ask == policy.filter_devices else np.int64
        assert answer.dtype == expected
        assert np.abs(answer.astype(np.int64)).max(initial=0) < 2**50
        again = ask(part)
        assert again is not None
        np.testing.assert_array_equal(again, answer[mine])

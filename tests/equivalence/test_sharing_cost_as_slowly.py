"""All companies at once are judged as one by one, whatever comes when, and whoever asks."""

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many
from sharing_cost_slowly import SlowJoining

from weft.core.framework import Demand, Query
from weft.core.ledger import Ledger
from weft.core.ledger.table import Resident
from weft.core.policies.co_residents import CoResidentCache
from weft.core.policies.sharing_cost import CROWD, SharingCost, SlowdownBounds
from weft.model import Shape
from weft.model.interference_table import InterferenceView, PredictionTier, interference
from weft.testing import node

NAMES = ("a", "b", "c", "who?", "")
CLASSES = ("", "batch", "best-effort", "latency-critical", "latency-critical")
MODELS = ("T4", "V100", "A100")
DEVICES = 6


@st.composite
def pods(draw):
    job_class = draw(st.sampled_from(CLASSES))
    critical = job_class == "latency-critical"
    percent = draw(st.sampled_from([0, 0, 100, 103, 110, 400])) if critical else 0
    return Resident(
        draw(st.sampled_from(NAMES)), job_class, percent, critical and draw(st.integers(0, 3)) > 0
    )


SMALL = st.builds(lambda name: Resident(name, "latency-critical", 0, True), st.sampled_from(NAMES))
COMPANIES = st.one_of(st.lists(pods(), max_size=5), st.lists(SMALL, min_size=1, max_size=4)).map(
    lambda found: tuple(sorted(found))
)
BOUNDS = st.builds(
    lambda critical, most, more: SlowdownBounds(critical, 1.30, 1.05, most, most + more),
    st.sampled_from([1.1, 1.5, 30.0]),
    st.integers(1, 4),
    st.integers(0, 3),
)


@st.composite
def views(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    scale = draw(st.sampled_from([0.01, 0.05, 0.5, 300.0]))
    shape = (2, 4, 4)
    mean = np.minimum(rng.random(shape) * scale - 0.1 * min(scale, 0.1), 50.0)
    upper = mean + rng.random(shape) * scale
    upper[rng.random(shape) < draw(st.sampled_from([0.0, 0.1]))] = np.inf
    odd = draw(st.sampled_from([0.0, 0.2]))
    tier = np.where(
        rng.random(shape) < odd,
        rng.choice([-1, -2, PredictionTier.UNKNOWN], shape),
        PredictionTier.LEARNED,
    )
    table = interference(1, MODELS[:2], NAMES[:3], (mean, upper, tier.astype(np.int8)))
    return InterferenceView(table)


class Cluster:
    """GPUs on which anybody may be put; one of each model, and more of the first."""

    def __init__(self) -> None:
        self.ledger = Ledger(
            [
                node(f"n{at}", gpus=1, model=MODELS[max(0, at - DEVICES + len(MODELS))])
                for at in range(DEVICES)
            ]
        )
        self.kinds = list(self.ledger.table.kinds)
        self.query = Query(self.ledger.table, Demand(Shape(), self.ledger.table))

    def put(self, device: int, co_residents) -> None:
        residents = self.ledger.table.residents
        for who in residents.on(device):
            residents.change(device, who, -1)
        for who in co_residents:
            residents.change(device, who, 1)


def agree(judged: CoResidentCache, slowly: SlowJoining, cluster: Cluster, who: Resident) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = judged.over(cluster.query, who)
    table = cluster.ledger.table
    for device in range(DEVICES):
        there, kind = table.residents.on(device), cluster.kinds[table.device_kind[device]]
        wanted = slowly(who, there, kind[0])
        got = found[:, device]
        assert (got[0], got[2]) == (wanted[0], wanted[2]), (who, there, kind, got, wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@settings(max_examples=few_or_many(20, 75), deadline=None)
@given(
    bounds=BOUNDS,
    seen=st.lists(views(), min_size=2, max_size=2),
    data=st.data(),
    asking=st.lists(st.one_of(pods(), SMALL), min_size=1, max_size=3),
)
def test_all_at_once_is_as_one_by_one(bounds, seen, data, asking) -> None:
    """Companies come in batches, longer ones late, between questions of several and a new view."""
    cluster, view = Cluster(), seen[0]
    joining = SharingCost(view, bounds, 0.25)
    judged = CoResidentCache(joining, CROWD, bounds.most, bounds.most_small)
    for _ in range(4):
        there = data.draw(st.lists(COMPANIES, min_size=1, max_size=DEVICES))
        for device, co_residents in enumerate(there):
            cluster.put(device, co_residents)
        if data.draw(st.integers(0, 3)) == 0:
            view = joining.view = seen[1]
            judged.forget()
        for who in asking:
            agree(judged, SlowJoining(view, bounds, 0.25), cluster, who)


def test_what_a_batch_of_new_companies_costs_is_one_question_for_each_who_asks() -> None:
    """And none for what was judged before: neither for those who asked, nor for others."""
    questions = []

    def judge(who, companies, which, model):
        questions.append((who.application, which.tolist()))
        return np.zeros((4, len(which)))

    cluster = Cluster()
    judged = CoResidentCache(judge, CROWD, 3)
    one, other = Resident("a", ""), Resident("b", "")
    for device in range(3):
        cluster.put(device, (Resident(str(device), ""),))
    judged.over(cluster.query, one)
    assert {asked for asked, _ in questions} == {"a"}
    assert len(questions) == len(cluster.ledger.table.kinds), "all of them in one, by model"
    size = 1 + max(questions[0][1])
    cluster.put(3, (Resident("new", ""),))
    questions.clear()
    judged.over(cluster.query, one)
    assert all(which == [size] for _, which in questions)
    assert questions
    judged.over(cluster.query, other)
    assert questions[-1] == ("b", list(range(size + 1)))
    questions.clear()
    judged.over(cluster.query, one)
    judged.over(cluster.query, other)
    assert not questions

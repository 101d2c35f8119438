"""The part of metrics in a decision is read off, and it is decided again without them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from engine_talk import bind

from weft.core.engine import (
    Bind,
    Engine,
    NodesChanged,
    PodAdded,
    PodGone,
    PodSeenBound,
    PolicyInput,
    SignalsChanged,
)
from weft.core.explain.counterfactual import (
    AlternativePlacement,
    MetricsRead,
    PlacementQuestion,
    in_words,
    metrics_in_steps,
    metrics_of,
    unit_of,
)
from weft.core.framework import Policy, Profile, Query
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.ledger import RequestLimits, audit
from weft.core.ledger.table import Bools
from weft.core.policies.auto import Auto
from weft.core.policies.load_aware import LoadAware
from weft.core.policies.packing import BestFit
from weft.model import PodRequest, Share
from weft.testing import node, placement, pod

S = 10**9
GPUS = [("a", 0), ("b", 0)]


def look(version: int = 1, ages: tuple[int, int] = (FRESH, FRESH), **more: Any) -> SignalsChanged:
    """Node a is busy, node b is not."""
    fresh = np.array(ages, dtype=np.int8)
    columns = {
        "sm_active_ratio": (np.array([0.91, 0.125]), fresh),
        "dram_active_ratio": (np.array([0.5, 0.0]), fresh),
        "memory_used_mib": (np.array([4_000.0, 1_000.0]), np.full(2, FRESH, dtype=np.int8)),
        "unheard_of": (np.array([1.0, 2.0]), fresh),
    }
    return SignalsChanged(snapshot(version, 6 * S, GPUS, columns, **more))


def engine_of(policy: object = None, **options: Any) -> Engine:
    engine = Engine([Profile("weft", [policy or LoadAware()])], **options)  # type: ignore[list-item]
    engine.handle(NodesChanged((node("a", gpus=1), node("b", gpus=1))), 0)
    return engine


def _share(gpu: int) -> tuple[Share, ...]:
    return (Share(0, gpu, 1_000, 0),)


def behind(
    engine: Engine, request: PodRequest, place: AlternativePlacement, **more: Any
) -> MetricsRead:
    asked = PlacementQuestion(request, engine.profile_of(request), 1, **more)
    found = metrics_of(engine, asked, 10 * S, place)
    assert found is not None
    return found


def state(engine: Engine) -> list[object]:
    """Whatever a question might have left behind."""
    ledger = engine.ledger
    return [
        ledger.version - ledger.tried,
        ledger.table.device_cells.tolist(),
        ledger.held_back,
        ledger.table.measured.tolist(),
        engine.assessor.observed,
        engine.assessor,
        engine.peaks,
    ]


def test_what_was_read_of_the_gpu_and_where_it_would_have_gone_without() -> None:
    engine = engine_of()
    engine.handle(look(ages=(FRESH, STALE)), 1)
    request = pod("p", memory_mib=1_000)
    found = behind(engine, request, AlternativePlacement("b", _share(0)))
    assert found.looked_s == 4
    assert found.columns[0] == "sm_active_ratio"
    assert "unheard_of" not in found.columns
    (gpu,) = found.gpus
    values = {one.column: (one.value, one.unit, one.age) for one in gpu.readings}
    assert values["sm_active_ratio"] == (0.125, "", "STALE")
    assert values["memory_used_mib"] == (1_000, "MiB", "FRESH")
    assert values["power_w"] == (None, "W", "MISSING")
    said = in_words(gpu)
    assert said.startswith("sm_active_ratio 0.125 STALE, dram_active_ratio 0 STALE, ")
    assert "memory_used_mib 1,000 MiB" in said
    assert "power_w" not in said
    assert found.without is not None
    assert (found.without.node, found.without.shares[0].gpu) == ("a", 0)
    (bound,) = engine.handle(PodAdded(request), 10 * S)
    assert isinstance(bound, Bind)
    assert bound.placement.node == "b"


class Fussy(LoadAware):
    """Keeps off a node that it is told of."""

    name = "fussy"
    inputs: Mapping[str, Any] = {"fussy": str}
    off = ""

    def take_input(self, name: str, value: str) -> None:
        self.off = value

    def filter_nodes(self, query: Query) -> Bools:
        names = [query.table.nodes[row].name for row in range(query.table.count)]
        off = np.array([name == self.off for name in names])
        return ~off if query.rows is None else ~off[query.rows]


def busier(engine: Engine) -> None:
    engine.handle(look(2, (STALE, FRESH)), 2)


def node_more(engine: Engine) -> None:
    engine.handle(NodesChanged((node("c", gpus=1), node("d", gpus=1))), 2)


def pod_more(engine: Engine) -> None:
    engine.handle(PodSeenBound(placement("more", "a", 0, memory_mib=300)), 2)


def node_less(engine: Engine) -> None:
    engine.handle(NodesChanged((), ("b",)), 2)


def told(engine: Engine) -> None:
    engine.handle(PolicyInput("fussy", "a"), 2)


def pod_less(engine: Engine) -> None:
    engine.handle(PodGone("full"), 2)


@pytest.mark.parametrize("policy", [LoadAware, Auto, Fussy])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("happens", [busier, node_more, pod_more, node_less, pod_less, told])
def test_steps_tell_what_is_true_at_the_last(
    happens: Callable[[Engine], None], at: int, policy: type[Policy]
) -> None:
    engine = engine_of(policy(), limits=RequestLimits(harvest_permille=1500))
    bind(engine, pod("there", memory_mib=1_000))
    bind(engine, pod("full", memory_mib=15_000))
    engine.handle(look(idle_mib={"full": (9_000,)}), 1)
    asked = PlacementQuestion(pod("p", memory_mib=2_000), engine.profiles["weft"], 1)
    steps = metrics_in_steps(engine, asked, 10 * S, AlternativePlacement())
    number, found = 0, None
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found = ended.value
            break
        if number == at:
            happens(engine)
        number += 1
    assert number == 2
    assert found == metrics_of(engine, asked, 10 * S, AlternativePlacement())
    assert found is not None
    assert audit(engine.ledger) == []


def test_gpus_that_only_metrics_keep_it_off_are_named_with_their_readings() -> None:
    engine = engine_of()
    bind(engine, pod("there", memory_mib=1_000))  # on a: CARMA's gate is about shared GPUs
    bind(engine, pod("full", memory_mib=16_384))
    engine.handle(look(), 1)
    found = behind(engine, pod("p", memory_mib=1_000), AlternativePlacement())
    assert found.kept_out_gpus == 1
    (gpu,) = found.kept_out
    assert (gpu.node, gpu.gpu) == ("a", 0)
    assert in_words(gpu).startswith("sm_active_ratio 0.91, dram_active_ratio 0.5, ")
    assert found.without is not None
    assert found.without.node == "a"
    too_large = behind(engine, pod("q", memory_mib=16_000), AlternativePlacement())
    assert (too_large.kept_out_gpus, too_large.without) == (0, AlternativePlacement())


def test_without_metrics_nothing_is_idle_and_afterwards_all_is_as_before() -> None:
    engine = engine_of(Auto(), limits=RequestLimits(harvest_permille=1500))
    lender = pod("lender", memory_mib=15_000)
    home = bind(engine, lender)
    bind(engine, pod("other", memory_mib=15_800))  # the reserve stays free
    ages = (FRESH, FRESH)
    quiet = {
        f"{name}": (np.array([0.1, 0.1]), np.array(ages, dtype=np.int8))
        for name in ("sm_active_ratio", "dram_active_ratio")
    }
    quiet["memory_used_mib"] = (np.array([1_000.0, 1_000.0]), np.array(ages, dtype=np.int8))
    told = snapshot(1, 0, GPUS, quiet, idle_mib={"lender": (12_000,)})
    engine.handle(SignalsChanged(told), 1)
    before = state(engine)
    found = behind(engine, pod("p", memory_mib=5_000), AlternativePlacement(home, _share(0)))
    assert found.without == AlternativePlacement()
    assert before == state(engine)
    assert audit(engine.ledger) == []
    (bound, *_) = engine.handle(PodAdded(pod("p", memory_mib=5_000)), 2)
    assert isinstance(bound, Bind), "with metrics it borrows"
    assert bound.record.harvested


def test_asked_again_a_pod_is_not_in_its_own_way() -> None:
    engine = engine_of()
    engine.handle(look(), 1)
    for uid in ("p", "q"):
        bind(engine, pod(uid, memory_mib=16_000))
    again = behind(
        engine, pod("p", memory_mib=16_000), AlternativePlacement("b", _share(0)), gone=("p",)
    )
    assert again.without is not None
    assert again.without.node == "b"
    assert set(engine.ledger.holdings) == {"p", "q"}


def test_a_node_that_others_chose_stays_chosen() -> None:
    engine = engine_of()
    engine.handle(look(), 1)
    found = behind(engine, pod("p", memory_mib=100), AlternativePlacement("b", _share(0)), on="b")
    assert found.without is not None
    assert found.without.node == "b"


def test_who_reads_no_metrics_has_none_behind_its_decisions() -> None:
    blind, unmeasured = engine_of(BestFit()), engine_of()
    blind.handle(look(), 1)
    for engine in (blind, unmeasured):
        asked = PlacementQuestion(pod("p", memory_mib=1), engine.profiles["weft"], 1)
        assert metrics_of(engine, asked, 0, AlternativePlacement()) is None


def test_what_was_measured_is_kept_with_the_place_that_it_led_to() -> None:
    engine = engine_of()
    engine.handle(look(), 1)
    bind(engine, pod("p", memory_mib=100))
    engine.handle(look(2, ages=(MISSING, MISSING)), 2)
    saw = engine.placed["p"].saw
    assert saw is not None
    assert saw.looked_ns == 6 * S
    values, ages = saw.gpus[0]
    assert dict(zip(saw.columns, values.tolist(), strict=True))["sm_active_ratio"] == 0.125
    assert set(ages.tolist()) == {FRESH}


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("memory_used_mib.p80", "MiB"),
        ("memory_free_mib.cov", ""),
        ("power_limit_w", "W"),
        ("memory_free_mib.autocorrelation", ""),
        ("sm_active_ratio.next", ""),
        ("sm_clock_mhz", "MHz"),
        ("pcie_sent_bytes_per_s", "B/s"),
        ("window.samples", ""),
    ],
)
def test_the_unit_is_in_the_columns_name(column: str, unit: str) -> None:
    assert unit_of(column) == unit


def test_trials_leave_no_trace_in_records() -> None:
    """A record says on which version it was decided; a replay does not know who asked what."""
    asked_about, quiet = engine_of(), engine_of()
    for engine in (asked_about, quiet):
        engine.handle(look(), 1)
        bind(engine, pod("p", memory_mib=100))
    behind(asked_about, pod("q", memory_mib=100), AlternativePlacement(), gone=("p",))
    records = []
    for engine in (asked_about, quiet):
        (bound,) = engine.handle(PodAdded(pod("q", memory_mib=100)), 3)
        assert isinstance(bound, Bind)
        records.append(bound.record)
    assert records[0] == records[1]

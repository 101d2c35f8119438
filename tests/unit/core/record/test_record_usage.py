"""GPU-hours from a decisions file: by hand, and against a slow sum over the ledger."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from fakes.harvesting import Harvesting
from weft.core.engine import (
    Engine,
    Event,
    NodesChanged,
    PodAdded,
    PodBound,
    PodGone,
    PodSeenBound,
    SignalsChanged,
)
from weft.core.engine.harvest import NEED
from weft.core.engine.nominations import is_kept
from weft.core.engine.team_queues import charge_of
from weft.core.explain.queue_rows import QueueCounts
from weft.core.framework import Policy
from weft.core.framework.signals import FRESH, MISSING, STALE, snapshot
from weft.core.framework.stranded import stranded_gpus
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionLine, Header, PolicyUse, ProfileUse, Recorder
from weft.core.record.lent_and_stranded import BUSY
from weft.core.record.usage import (
    GROUPINGS,
    KEPT_PLACES,
    UNKNOWN,
    GroupOf,
    Usage,
    by_label,
    cost_of,
    usage_of,
)
from weft.model import PodMarks, PodRequest, Share
from weft.model.queue_rules import QueueAmounts, QueueRules, QueueTerms
from weft.testing import node, placement, pod

CREATE = built_in().create
by_namespace = GROUPINGS["namespace"]
HOUR_NS = 3_600 * 10**9
GIB = 1024


def recorded(events: list[tuple[Event, int]], *, preempts: bool = False) -> list[DecisionLine]:
    """The file's lines, of an engine that these events happened to; the times are hours."""
    lines: list[Header | DecisionLine] = []
    header = header_of(preempts=preempts)
    recorder = Recorder(header.engine(CREATE), header, lines.append)
    for event, hour in events:
        recorder.handle(event, hour * HOUR_NS)
    return [line for line in lines if isinstance(line, DecisionLine)]


def header_of(*, preempts: bool = False) -> Header:
    return Header([ProfileUse("weft", [PolicyUse("best-fit")], preempts=preempts or UNSET)])


def usage(
    events: list[tuple[Event, int]],
    group_of: GroupOf = by_namespace,
    *,
    hours: tuple[int, int | None] = (0, None),
    prices: dict[str, float] | None = None,
    preempts: bool = False,
) -> Usage:
    return usage_of(
        header_of(preempts=preempts),
        recorded(events, preempts=preempts),
        CREATE,
        group_of,
        from_s=3_600 * hours[0],
        to_s=None if hours[1] is None else 3_600 * hours[1],
        prices=prices,
    )


def asked(uid: str, namespace: str, **more: object) -> PodRequest:
    labels = more.pop("labels", UNSET)
    queue = more.pop("queue", UNSET)
    return replace(pod(uid, **more), namespace=namespace, labels=labels, queue=queue)  # type: ignore[arg-type]


DAY: list[tuple[Event, int]] = [
    (NodesChanged((node("a", gpus=2, memory_mib=40 * GIB, model="A100"),)), 0),
    (PodAdded(asked("u1", "ml", gpus=1, labels={"team": "red"})), 1),
    (PodBound("u1"), 1),
    (PodAdded(asked("u2", "web", memory_mib=10 * GIB, queue="serving")), 2),
    (PodBound("u2"), 2),
    (PodGone("u1"), 5),
    (PodGone("u2"), 10),
]


def test_a_day_by_hand() -> None:
    """A whole card for four hours; a quarter of a card's memory for eight."""
    found = usage(DAY)
    assert (found.hours, found.capacity_gpu_hours, found.idle_gpu_hours) == (10, 20, 14)
    rows = {row.group: row for row in found.rows}
    assert [row.group for row in found.rows] == ["ml", "web"], "the most first"
    assert (rows["ml"].pods, rows["ml"].gpu_hours, rows["ml"].gib_hours) == (1, 4, 160)
    assert (rows["web"].pods, rows["web"].gpu_hours, rows["web"].gib_hours) == (1, 2, 80)
    assert rows["web"].gpu_hours_by_model == {"A100": 2}


@pytest.mark.parametrize(
    ("hours", "ml", "web"), [((0, 4), 3, 0.5), ((4, 8), 1, 1), ((6, None), 0, 1), ((2, 2), 0, 0)]
)
def test_only_the_time_that_is_asked_for_counts(
    hours: tuple[int, int | None], ml: float, web: float
) -> None:
    rows = {row.group: row for row in usage(DAY, hours=hours).rows}
    assert {name: (row.pods, row.gpu_hours) for name, row in rows.items()} == {
        name: (1, gpus) for name, gpus in (("ml", ml), ("web", web)) if gpus
    }


@pytest.mark.parametrize(
    ("group_of", "groups"),
    [
        (GROUPINGS["queue"], {"ml": 4, "serving": 2}),
        (by_label("team"), {"red": 4, "(no label)": 2}),
        (GROUPINGS["workload"], {"ml/(no owner)": 4, "web/(no owner)": 2}),
    ],
)
def test_groupings(group_of: GroupOf, groups: dict[str, float]) -> None:
    assert {row.group: row.gpu_hours for row in usage(DAY, group_of).rows} == groups


def test_pods_that_others_placed_count_and_become_known_later() -> None:
    """Seen with a label after two hours: all of that time counts where it was then."""
    place = placement("u1", "a", shares=(Share(0, 0, 10 * GIB, 500),))
    late = PodMarks("ml", {"team": "red"})
    events: list[tuple[Event, int]] = [
        DAY[0],
        (PodSeenBound(place), 0),
        (PodSeenBound(place, marks=late), 2),
        (PodGone("u1"), 6),
    ]
    found = usage(events)
    assert {row.group: row.gpu_hours for row in found.rows} == {UNKNOWN: 1, "ml": 2}


def test_a_live_pods_workload_has_its_namespace_once_and_is_known_of_pods_bound_before() -> None:
    place = placement("u2", "a", shares=(Share(0, 0, 10 * GIB, 250),))
    came = replace(asked("u1", "ml", gpus=1), workload="ml/Job/train")
    marks = PodMarks("web", {})
    seen = PodSeenBound(place, marks=marks, workload="web/Deployment/serve")
    events: list[tuple[Event, int]] = [
        DAY[0],
        (PodAdded(came), 0),
        (seen, 0),
        (PodSeenBound(place, marks=replace(marks, labels={"a": "b"})), 1),
        (PodGone("u2"), 4),
        (PodGone("u1"), 4),
    ]
    rows = usage(events, GROUPINGS["workload"]).rows
    assert {row.group: row.gpu_hours for row in rows} == {
        "ml/Job/train": 4,
        "web/Deployment/serve": 1,
    }


def test_prices_are_by_the_longest_part_of_a_models_name() -> None:
    prices = {"a100": 2.0, "A100-80": 3.0, "default": 1.0}
    assert cost_of({"NVIDIA-A100-80GB": 2, "NVIDIA-A100-40GB": 1, "T4": 4}, prices) == 12
    assert cost_of({"T4": 4}, {"A100": 2.0}) == 0
    (ml, web) = usage(DAY, prices={"A100": 2.5}).rows
    assert (ml.cost, web.cost) == (10, 5)
    assert usage(DAY).rows[0].cost is UNSET


def test_a_card_that_joins_is_idle_from_then_on() -> None:
    more = NodesChanged((node("b", gpus=4),))
    found = usage([DAY[0], (more, 5), (NodesChanged((), ("b",)), 7), (PodGone("x"), 10)])
    assert (found.capacity_gpu_hours, found.idle_gpu_hours, found.rows) == (28, 28, ())


def lends(name: str) -> Policy:
    assert name == "harvesting"
    return Harvesting()


def test_memory_that_is_measured_idle_counts_from_then_on_and_what_is_borrowed() -> None:
    """9,000 MiB of which 6,000 are idle from hour 1 to 3, and 1,000 until 4. A pod borrows 4,000 of
    them from hour 2 on."""
    header = Header([ProfileUse("weft", [PolicyUse("harvesting")])], harvest_permille=1_500)
    lines: list[Header | DecisionLine] = []
    recorder = Recorder(header.engine(lends), header, lines.append)
    columns = {NEED: (np.zeros(1), np.array([FRESH], dtype=np.int8))}

    def measured(version: int, idle_mib: int) -> SignalsChanged:
        idle = {"u1": (idle_mib,)}
        return SignalsChanged(snapshot(version, 0, [("a", 0)], columns, idle_mib=idle))

    for event, hour in (
        (NodesChanged((node("a", gpus=1, memory_mib=10_000),)), 0),
        (PodAdded(asked("u1", "ml", memory_mib=9_000)), 0),
        (measured(1, 6_000), 1),
        (PodAdded(asked("u2", "web", memory_mib=5_000)), 2),
        (PodBound("u1"), 2),
        (PodBound("u2"), 2),
        (measured(2, 1_000), 3),
        (PodGone("nobody"), 4),
    ):
        recorder.handle(event, hour * HOUR_NS)
    of_file = [line for line in lines if isinstance(line, DecisionLine)]
    rows = {row.group: row for row in usage_of(header, of_file, lends, by_namespace).rows}
    assert rows["ml"].idle_gib_hours == (2 * 6_000 + 1_000) / GIB
    assert rows["ml"].lent_gib_hours == (4_000 + 1_000) / GIB, "from hour 3 on it needs the rest"
    assert (rows["web"].borrowed_gib_hours, rows["web"].idle_gib_hours) == (2 * 4_000 / GIB, 0)


# --- against a slow sum ---------------------------------------------------------------------------


@st.composite
def days(draw: st.DrawFn) -> list[tuple[Event, int]]:
    """Pods of two priorities come and go; the nodes' cards are replaced now and then."""
    hour, alive = 0, list[str]()
    events: list[tuple[Event, int]] = [
        (NodesChanged((node("a", gpus=2), node("b", gpus=1))), 0),
    ]
    for number in range(draw(st.integers(1, 25))):
        hour += draw(st.integers(0, 3))
        kind = draw(st.sampled_from(["come", "come", "come", "go", "seen", "nodes"]))
        if kind == "come":
            amount = draw(st.sampled_from([{"gpus": 1}, {"milli": 300}, {"memory_mib": 6_000}]))
            of = asked(f"u{number}", draw(st.sampled_from(["x", "y"])), **amount)
            event: Event = PodAdded(replace(of, priority=draw(st.integers(0, 1))))
            alive.append(of.uid)
        elif kind == "go" and alive:
            event = PodGone(alive.pop(draw(st.integers(0, len(alive) - 1))))
        elif kind == "seen":
            shares = (Share(0, draw(st.integers(0, 1)), 2_000, 100),)
            event = PodSeenBound(placement(f"u{number}", "a", shares=shares), priority=0)
            alive.append(f"u{number}")
        else:
            gpus, size = draw(st.integers(1, 3)), draw(st.sampled_from([8_000, 16_000]))
            event = NodesChanged((node("a", gpus=gpus, memory_mib=size),))
        events.append((event, hour))
    return [*events, (PodGone("nobody"), hour + 1)]


@given(days(), st.integers(0, 20), st.integers(1, 20))
def test_sums_are_those_of_the_ledger_at_each_event(
    events: list[tuple[Event, int]], begin: int, lasts: int
) -> None:
    hours = begin, begin + lasts
    milli_hours: dict[str, int] = defaultdict(int)
    beside: dict[str, int] = defaultdict(int)  # of a GPU that its node does not show: no GPU-hours
    capacity = 0
    engine = header_of(preempts=True).engine(CREATE)
    names: dict[str, str] = {}
    for (event, hour), (_, until) in zip(events, [*events[1:], events[-1]], strict=True):
        if isinstance(event, PodAdded):
            names[event.pod.uid] = event.pod.namespace
        engine.handle(event, hour * HOUR_NS)
        lasted = max(0, min(until, hours[1]) - max(hour, hours[0]))
        table = engine.ledger.table
        capacity += lasted * sum(len(each.gpus) for each in table.nodes)
        for uid, holding in engine.ledger.holdings.items():
            row = table.row_of.get(holding.placement.node)
            charge = charge_of(holding.placement, None if row is None else table.nodes[row])
            group = KEPT_PLACES if is_kept(uid) else names.get(uid, UNKNOWN)
            milli_hours[group] += charge.gpu_milli * lasted
            beside[group] += (charge.memory_mib + charge.core_milli) * lasted
    found = usage(events, hours=hours, preempts=True)
    held = {row.group: row.gpu_hours for row in found.rows}
    there = [group for group, milli in milli_hours.items() if milli or beside[group]]
    assert held == {group: milli_hours[group] / 1000 for group in there}
    assert found.capacity_gpu_hours == capacity
    assert sum(held.values()) + found.idle_gpu_hours == pytest.approx(
        max(capacity, sum(held.values()))
    )


# --- lent, stranded, borrowed ---------------------------------------------------------------------

USUAL = [pod("whole", gpus=1).shape, pod("half", memory_mib=8_000, milli=500).shape]
TEAMS = (
    QueueTerms("x", guarantee=QueueAmounts(gpu_milli=700)),
    QueueTerms("y", guarantee=QueueAmounts(memory_mib=12_000)),
)


@st.composite
def lending_days(draw: st.DrawFn) -> list[tuple[Event, int]]:
    """Pods are seen on two nodes, some beyond what cards have; measurements say what lies idle."""
    hour, alive, cards = 0, list[str](), {"a": 2, "b": 1}
    events: list[tuple[Event, int]] = [
        (NodesChanged(tuple(node(name, gpus=count) for name, count in cards.items())), 0)
    ]
    for number in range(draw(st.integers(1, 20))):
        hour += draw(st.integers(0, 3))
        kind = draw(st.sampled_from(["seen", "seen", "seen", "go", "measured", "measured", "node"]))
        if kind == "seen":
            where = draw(st.sampled_from(["a", "b"]))
            mib, milli = draw(st.integers(1, 12)) * 1_000, draw(st.integers(0, 10)) * 100
            shares = (Share(0, draw(st.integers(0, cards[where] - 1)), mib, milli),)
            team = draw(st.sampled_from(["x", "y", "z"]))
            place = placement(f"u{number}", where, shares=shares)
            event: Event = PodSeenBound(place, marks=PodMarks(team, {}), queue=team)
            alive.append(f"u{number}")
        elif kind == "go" and alive:
            event = PodGone(alive.pop(draw(st.integers(0, len(alive) - 1))))
        elif kind == "measured":
            idle = {uid: (draw(st.integers(0, 8)) * 1_000,) for uid in alive}
            gpus = [(name, at) for name, count in cards.items() for at in range(count)]
            ages = draw(st.lists(st.sampled_from([FRESH, STALE, MISSING]), min_size=3, max_size=3))
            parts = draw(st.lists(st.sampled_from([0, 0.25, 1]), min_size=3, max_size=3))
            columns = {
                NEED: (np.zeros(3), np.full(3, FRESH, dtype=np.int8)),
                BUSY: (np.array(parts, dtype=np.float64), np.array(ages, dtype=np.int8)),
            }
            event = SignalsChanged(snapshot(number + 1, 0, gpus, columns, idle_mib=idle))
        else:
            memory = draw(st.sampled_from([8_000, 16_000]))
            event = NodesChanged((node("b", gpus=1, memory_mib=memory),))
        events.append((event, hour))
    return [*events, (PodGone("nobody"), hour + 1)]


def lent_now(engine: Engine) -> tuple[int, dict[str, int], dict[str, int]]:
    """MiB that are promised beyond GPUs, who lends them and who borrows them."""
    ledger, total = engine.ledger, 0
    lent: dict[str, int] = defaultdict(int)
    borrowed: dict[str, int] = defaultdict(int)
    for each in ledger.table.nodes:
        for gpu in each.gpus:
            held = engine.harvest.in_order(each.name, gpu.index)
            promised, left = 0, 0
            for holding in held:
                mib = holding.placement.shares[0].memory_mib
                before = max(0, promised - gpu.memory_mib)
                promised += mib
                borrowed[holding.placement.uid] += max(0, promised - gpu.memory_mib) - before
            left = max(0, promised - gpu.memory_mib)
            total += left
            for holding in held:
                mib = min(left, sum(holding.idle_mib))
                lent[holding.placement.uid] += mib
                left -= mib
    return total, lent, borrowed


@given(lending_days(), st.integers(0, 10), st.integers(1, 30), st.sampled_from([True, False]))
def test_what_is_lent_stranded_and_borrowed_is_what_the_ledger_has_at_each_event(
    events: list[tuple[Event, int]], begin: int, lasts: int, counts: bool
) -> None:
    """`counts`: the engine itself counts what queues hold; else nothing hangs on it."""
    hours = begin, begin + lasts
    rules = QueueRules("fair" if counts else "priority", TEAMS)
    header = Header([ProfileUse("weft", [PolicyUse("best-fit")])], queues=rules)
    lines: list[Header | DecisionLine] = []
    recorder = Recorder(header.engine(CREATE), header, lines.append)
    engine, sums = header.engine(CREATE), dict.fromkeys(("lent", "stranded", "used"), 0)
    busy: int | None = None
    was_measured = False
    lent: dict[str, int] = defaultdict(int)
    borrowed: dict[str, float] = defaultdict(float)
    borrowed_mib: dict[str, int] = defaultdict(int)
    queues: dict[str, str] = {}
    for (event, hour), (_, until) in zip(events, [*events[1:], events[-1]], strict=True):
        recorder.handle(event, hour * HOUR_NS)
        engine.handle(event, hour * HOUR_NS)
        if isinstance(event, PodSeenBound):
            queues[event.placement.uid] = str(event.queue)
        lasted = max(0, min(until, hours[1]) - max(hour, hours[0]))
        total, by_uid, borrows = lent_now(engine)
        sums["lent"] += lasted * total
        found = stranded_gpus(engine.ledger.table, USUAL)
        sums["stranded"] += lasted * int((found.idle - found.usable).sum())
        if isinstance(event, SignalsChanged):
            values, fresh = engine.signals.over(engine.ledger.table, BUSY)
            busy = int(1000 * values[fresh == FRESH].sum())
        sums["used"] += lasted * (busy or 0)
        was_measured = was_measured or (lasted > 0 and busy is not None)
        for uid, mib in by_uid.items():
            lent[queues[uid]] += lasted * mib
        for uid, mib in borrows.items():
            borrowed_mib[queues[uid]] += lasted * mib
        held = {uid: queues[uid] for uid in engine.ledger.holdings}
        for row in QueueCounts(engine).rows(held, ()):
            borrowed[row.queue] += lasted * row.borrowed_gpus
    of_file = [line for line in lines if isinstance(line, DecisionLine)]
    account = usage_of(
        header,
        of_file,
        CREATE,
        GROUPINGS["queue"],
        from_s=3_600 * hours[0],
        to_s=3_600 * hours[1],
        usual=USUAL,
    )
    assert account.stranded_gpu_hours == sums["stranded"] / 1000
    assert account.lent_gib_hours == sums["lent"] / GIB
    assert account.used_gpu_hours == (sums["used"] / 1000 if was_measured else None)
    for row in account.rows:
        assert row.borrowed_gib_hours == borrowed_mib[row.group] / GIB
        assert row.lent_gib_hours == lent[row.group] / GIB
        assert row.borrowed_gpu_hours == pytest.approx(borrowed[row.group], abs=1e-9)
    assert {row.group for row in account.rows} >= {name for name, mib in lent.items() if mib}

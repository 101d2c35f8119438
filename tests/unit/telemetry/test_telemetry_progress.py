"""Counters of applications become rates: windows, resets, company, and whatever else comes."""

import math
from typing import Any

import numpy as np
import pytest
from telemetry_world import answer

from weft.telemetry.meaning.answers import QueryResult
from weft.telemetry.meaning.progress_counters import (
    MANY,
    MOST_PARTS,
    CounterKey,
    CounterReader,
    Rate,
    Rates,
    Samples,
    latencies,
)

COUNTER, P99 = "weft_progress_total", "p99_seconds"
POD = ("d", "a")
BEGAN_S = 1_700_000_000.0
LOOK_S = 15.0


def counted(*samples: tuple[float, Any], name: str = COUNTER, **labels: str) -> Any:
    whose = {"__name__": name, "namespace": "d", "pod": "a", **labels}
    return whose, [(BEGAN_S + at_s, value) for at_s, value in samples]


class Story:
    """Looks at one pod, every 15 s; `co_residents` is who is beside it."""

    def __init__(self) -> None:
        self.rates, self.reader = Rates(LOOK_S, LOOK_S), CounterReader()
        self.at_s, self.value, self.co_residents = 0.0, 1_000.0, "alone"
        self.samples: Samples = []

    def look(self, units: float = 0.0, *, scraped: bool = True) -> Rate | None:
        """15 s pass, in which so many units are counted, and are seen unless nobody scraped."""
        self.at_s += LOOK_S
        self.value += units
        if scraped:
            self.samples.append((self.at_s, self.value))
        series = answer(counted(*self.samples[-4:]))
        pods = {POD: self.co_residents}
        found = self.reader.read(series, pods, BEGAN_S + self.at_s)
        return self.rates.update(found[COUNTER], pods, BEGAN_S + self.at_s).get(POD)


def per_s(rate: Rate | None) -> float:
    assert rate is not None
    return rate.per_s


def test_each_look_tells_the_rate_since_the_last_one() -> None:
    story = Story()
    assert story.look() is None
    assert story.look(150) == Rate(10.0, BEGAN_S + 30, 15.0)
    assert per_s(story.look(75)) == 5.0
    assert per_s(story.look(MANY)) == pytest.approx(MANY / 15)


def test_what_was_told_before_is_no_news() -> None:
    story = Story()
    story.look()
    assert story.look(150) is not None
    assert story.look(scraped=False) is None  # the same samples again
    assert per_s(story.look(300)) == 10.0  # of both looks


def test_slow_counters_are_looked_at_for_longer_and_in_doubt_are_faster() -> None:
    story = Story()
    story.look()
    assert story.look(5) is None
    assert story.look(5) is None
    assert per_s(story.look(5)) == pytest.approx(16 / 45)  # one more may be nearly done
    assert story.look(0) is None


def test_a_counter_that_stands_still_tells_nothing() -> None:
    story = Story()
    for _ in range(20):
        assert story.look(0) is None


def test_a_counter_that_fell_begins_anew_and_is_left_alone_while_it_starts() -> None:
    story = Story()
    story.look()
    assert story.look(150) is not None
    story.value = 0.0
    assert [story.look(150) for _ in range(3)] == [None, None, None]
    told = [story.look(150) for _ in range(3)]
    assert [one and one.per_s for one in told] == [10.0, 10.0, 10.0]


def test_a_fall_between_two_looks_is_seen_though_the_counter_is_higher_again() -> None:
    rates = Rates(LOOK_S, LOOK_S)
    pods = {POD: ""}
    rates.update({POD: {CounterKey(): [(0.0, 10.0)]}}, pods, 0.0)
    samples = [(0.0, 10.0), (5.0, 3.0), (15.0, 500.0)]
    assert rates.update({POD: {CounterKey(): samples}}, pods, 15.0) == {}


def test_a_counter_that_begins_while_we_look_is_left_alone_at_first() -> None:
    rates, pods = Rates(LOOK_S, LOOK_S), {POD: ""}
    rates.update({}, pods, 0.0)
    told = [
        rates.update({POD: {CounterKey(): [(at, 10.0 * at)]}}, pods, at).get(POD)
        for at in (15.0, 30.0, 45.0, 60.0, 75.0)
    ]
    assert [one is not None for one in told] == [False, False, False, True, True]


def test_a_window_is_of_one_company() -> None:
    story = Story()
    story.look()
    assert story.look(150) is not None
    story.co_residents = "beside b"
    assert story.look(20) is None  # partly alone, partly beside b
    assert per_s(story.look(75)) == 5.0


def test_long_silence_begins_anew() -> None:
    story = Story()
    story.look()
    assert story.look(150) is not None
    for _ in range(4):
        assert story.look(150, scraped=False) is None
    assert [story.look(150) for _ in range(3)] == [None, None, None]


def test_nobody_knows_what_was_while_nobody_asked() -> None:
    rates, pods = Rates(LOOK_S, LOOK_S), {POD: ""}
    rates.update({POD: {CounterKey(): [(0.0, 10.0)]}}, pods, 0.0)
    assert rates.update({POD: {CounterKey(): [(300.0, 4_000.0)]}}, pods, 300.0) == {}


def test_counters_of_several_containers_are_added_and_of_two_scrapers_are_one() -> None:
    reader, rates, pods = CounterReader(), Rates(LOOK_S, LOOK_S), {POD: ""}

    def look(at_s: float) -> dict[Any, Rate]:
        series = [
            counted((at_s, 10 * at_s), container="x", job="one"),
            counted((at_s - 1, 10 * at_s), container="x", job="two", replica="b"),
            counted((at_s, 4 * at_s), container="y", job="one"),
        ]
        now_s = BEGAN_S + at_s
        return rates.update(reader.read(answer(*series), pods, now_s)[COUNTER], pods, now_s)

    look(0.0)
    assert look(15.0)[POD].per_s == pytest.approx(14.0)


AGENT = {"job": "d/podmonitor", "endpoint": "metrics", "container": "c", "instance": "10.0.0.1:80"}
PODS = {"job": "kubernetes-pods", "app": "x", "pod_template_hash": "z", "instance": "10.0.0.1:80"}


@pytest.mark.parametrize(
    ("targets", "per_s"),
    [
        ([AGENT, PODS], 10.0),  # two jobs read the same page
        (
            [
                {**AGENT, "rank": "0"},
                {**AGENT, "rank": "1"},
                {**PODS, "rank": "0"},
                {**PODS, "rank": "1"},
            ],
            20.0,
        ),
        (
            [AGENT, {**AGENT, "container": "sidecar"}],
            10.0,
        ),  # one page, found by each container's port
        ([AGENT, {**AGENT, "endpoint": "other"}], 10.0),
        ([AGENT, {**AGENT, "instance": "10.0.0.1:81"}], 20.0),  # two processes
        ([AGENT, {**AGENT, "instance": "10.0.0.1:81", "container": "d"}, PODS], 20.0),
    ],
)
def test_what_is_read_twice_counts_once(targets: list[dict[str, str]], per_s: float) -> None:
    reader, rates, pods = CounterReader(), Rates(LOOK_S, LOOK_S), {POD: ""}
    for at_s in (0.0, 15.0):
        series = [counted((at_s, 10 * at_s), **labels) for labels in targets]
        found = reader.read(answer(*series), pods, BEGAN_S + at_s)[COUNTER]
        told = rates.update(found, pods, BEGAN_S + at_s)
    assert told[POD].per_s == pytest.approx(per_s)


def test_a_container_that_went_is_no_slowdown() -> None:
    rates, pods = Rates(LOOK_S, LOOK_S), {POD: ""}

    def parts(at_s: float, *names: str) -> dict[Any, Any]:
        return {POD: {CounterKey(own=name): [(at_s, 100 * at_s)] for name in names}}

    rates.update(parts(0.0, "x", "y"), pods, 0.0)
    assert rates.update(parts(15.0, "x", "y"), pods, 15.0)[POD].per_s == 200.0
    assert rates.update(parts(30.0, "x"), pods, 30.0) == {}


@pytest.mark.parametrize("value", ["NaN", "-Inf", "+Inf", "-5", "nonsense"])
def test_numbers_that_can_not_be_counts_are_no_samples(value: str) -> None:
    if value == "nonsense":
        told = QueryResult(
            [b'{"namespace":"d","pod":"a"}'], np.array([1]), np.array([math.nan]), np.array([1.0])
        )
    else:
        told = answer(counted((0.0, value)))
    reader = CounterReader()
    assert reader.read(told, {POD: ""}, BEGAN_S) == {}
    assert reader.unjoined == {"value": 1}


def test_a_sample_from_the_future_is_none() -> None:
    reader = CounterReader()
    found = reader.read(answer(counted((0.0, 1), (60.0, 2))), {POD: ""}, BEGAN_S)
    assert found[COUNTER][POD] == {CounterKey(): [(BEGAN_S, 1.0)]}


def test_nobody_speaks_for_another_pod() -> None:
    """Labels that an application made up come as exported_…, and count for nothing."""
    reader = CounterReader()
    forged = counted((0.0, 1), exported_pod="a", exported_namespace="d", pod="evil")
    unknown = counted((0.0, 1), pod="gone")
    nameless = {"__name__": COUNTER, "pod": "a"}, [(BEGAN_S, 1)]
    assert reader.read(answer(forged, unknown, nameless), {POD: ""}, BEGAN_S) == {}
    assert reader.unjoined == {"pod": 2, "labels": 1}


def test_labels_that_are_none_and_too_many_counters_cost_only_themselves() -> None:
    labels = [b"[]", b"{", b'{"namespace":1}', b"\xff", b"[" * 5000, b'{"pod":"a"}']
    count = len(labels)
    told = QueryResult(labels, np.ones(count, np.int64), np.full(count, BEGAN_S), np.ones(count))
    reader = CounterReader()
    assert reader.read(told, {POD: ""}, BEGAN_S) == {}
    assert reader.unjoined == {"labels": count}
    many = [counted((0.0, 1), rank=str(n)) for n in range(MOST_PARTS + 5)]
    found = reader.read(answer(*many), {POD: ""}, BEGAN_S)
    assert len(found[COUNTER][POD]) == MOST_PARTS
    assert reader.unjoined == {"many": 5}


def test_what_is_remembered_of_labels_is_bounded() -> None:
    reader = CounterReader(most_kept=10)
    for number in range(50):
        reader.read(answer(counted((0.0, 1), rank=str(number))), {POD: ""}, BEGAN_S)
    assert len(reader._known) <= 11


def test_p99_is_in_seconds_unless_its_name_says_otherwise() -> None:
    found = {
        POD: {
            CounterKey("x"): [(0.0, 0.08)],
            CounterKey("y"): [(0.0, 0.09)],
            CounterKey("z"): [(-99.0, 7.0)],
        }
    }
    assert latencies(found, P99, 1.0, 45.0) == {POD: pytest.approx(90.0)}
    assert latencies(found, "p99_ms", 1.0, 45.0) == {POD: 0.09}
    assert latencies(found, P99, 200.0, 45.0) == {}


@pytest.mark.parametrize("told", [1e308, 1e10])
def test_a_p99_that_cannot_be_true_is_none(told: float) -> None:
    assert latencies({POD: {CounterKey(): [(0.0, told)]}}, P99, 1.0, 45.0) == {}
    found = {POD: {CounterKey("x"): [(0.0, told)], CounterKey("y"): [(0.0, 0.09)]}}
    assert latencies(found, P99, 1.0, 45.0) == {POD: pytest.approx(90.0)}

"""Idle memory of pods: their own series, the GPUs', and the time of binding."""

import msgspec
import numpy as np
import pytest

from weft.core.engine.harvest import BEYOND, NEED
from weft.core.framework.signals import FRESH, STALE, SignalsSnapshot, SignalsView
from weft.core.ledger import Ledger
from weft.model.metric import Metric
from weft.model.request import LATENCY_CRITICAL
from weft.telemetry.feed.feed import FeedSettings, SnapshotSettings, TelemetryFeed
from weft.telemetry.meaning.join import Devices, JoinedSamples, PodSamples
from weft.testing import node, placement

T0_S = 1_767_225_600.0
STEP_S, SAMPLES = 10.0, 12
ASKED, CARD_MIB = 10_000, 16_000
COLUMNS = SnapshotSettings(STEP_S, forecast=(), peaks=False, trends=False)
SETTINGS = FeedSettings((Metric.MEMORY_USED_MIB,), SAMPLES, STEP_S, COLUMNS)


class Scrapes:
    """Scrapes of an exporter that is always on time, of one pod on GPU 0 of a node with two."""

    def __init__(self, ledger: Ledger | None = None, job_class: str = "") -> None:
        self.uid, self.bound_s = "p", {"p": T0_S}
        self.ledger = ledger or Ledger([node("n", gpus=2, memory_mib=CARD_MIB)])
        if ledger is None:
            self.bind(job_class)
        self.feed = TelemetryFeed(SETTINGS, Devices(self.ledger.table.nodes), T0_S)

    def bind(self, job_class: str = "") -> None:
        place = placement("p", "n", 0, memory_mib=ASKED)
        self.ledger.adopt(msgspec.structs.replace(place, job_class=job_class))

    def at(
        self, second: float, used: float, own: float | None = None, *, came: bool = True
    ) -> SignalsSnapshot:
        """The GPU uses so much, and its pod says that it uses `own` of that."""
        now_s, row = T0_S + second, self.feed.devices.row_of.get(("n", 0), -1)
        self.feed.observe(self.ledger, now_s, self.bound_s)
        if came and row >= 0:
            rows, times, values = np.array([row, row + 1]), np.full(2, now_s), [used, 0.0]
            used_mib = Metric.MEMORY_USED_MIB
            self.feed.put(JoinedSamples(used_mib, rows, times, np.array(values)))
            if own is not None:
                self.feed.put_pods([PodSamples(used_mib, row, self.uid, now_s, own)])
        return self.feed.snapshot(round(now_s * 1e9))

    def until(self, second: int, used: float, own: float | None = None) -> SignalsSnapshot:
        """Scrapes in every step until then, always the same; what the last one says."""
        return [self.at(s, used, own) for s in range(10, second + 1, int(STEP_S))][-1]

    def told_before(self, until_s: int, used: float) -> None:
        """A metrics server tells what the GPU did until then."""
        rows, times = np.zeros(until_s // 10, np.int64), T0_S + np.arange(10.0, until_s + 1, 10)
        self.feed.observe(self.ledger, T0_S + until_s, self.bound_s)
        self.feed.put(JoinedSamples(Metric.MEMORY_USED_MIB, rows, times, np.full(len(times), used)))

    def ages(self, made: SignalsSnapshot, name: str) -> list[int]:
        """Its freshness for both GPUs."""
        found: list[int] = SignalsView(made).over(self.ledger.table, name)[1].tolist()
        return found

    def column(self, made: SignalsSnapshot, name: str) -> list[float]:
        """Its values for both GPUs; NaN where MISSING."""
        found: list[float] = SignalsView(made).over(self.ledger.table, name)[0].tolist()
        return found


def test_a_pod_that_warmed_up_leaves_idle_what_it_never_used() -> None:
    one = Scrapes()
    made = one.until(120, used=4_200, own=4_000)
    assert made.idle_mib == {one.uid: (ASKED - 4_200,)}  # the GPU itself uses more
    assert one.column(made, NEED) == [4_200, 0]
    made = one.at(130, used=4_600, own=4_500)  # its newest value counts at once
    assert made.idle_mib == {one.uid: (ASKED - 4_600,)}
    assert one.column(made, BEYOND) == [0, 0]


def test_a_pod_leaves_nothing_idle_before_it_was_bound_for_a_minute() -> None:
    one = Scrapes()
    made = one.until(50, used=4_000, own=4_000)
    assert made.idle_mib == {}
    assert one.column(made, NEED) == [ASKED, 0]
    assert one.at(60, used=4_000, own=4_000).idle_mib == {one.uid: (6_000,)}


def test_a_pod_whose_binding_has_no_time_leaves_nothing_idle() -> None:
    one = Scrapes()
    one.bound_s = {}
    assert one.until(120, used=4_000, own=4_000).idle_mib == {}


def test_a_latency_critical_pod_lends_nothing() -> None:
    one = Scrapes(job_class=LATENCY_CRITICAL)
    made = one.until(120, used=4_000, own=4_000)
    assert made.idle_mib == {}
    assert one.column(made, NEED) == [ASKED, 0]


def test_one_that_becomes_latency_critical_lends_no_more() -> None:
    one = Scrapes()
    assert one.until(120, used=4_000, own=4_000).idle_mib == {one.uid: (6_000,)}
    one.bind(LATENCY_CRITICAL)
    assert one.at(130, used=4_000, own=4_000).idle_mib == {}


def test_without_a_series_of_its_own_the_gpus_stands_for_the_only_pod() -> None:
    one = Scrapes()
    assert one.until(120, used=4_000).idle_mib == {one.uid: (6_000,)}


def test_a_new_process_knows_what_the_gpus_did_before_it_and_when_pods_were_bound() -> None:
    one = Scrapes()
    one.until(120, used=4_000, own=4_000)
    again = Scrapes(one.ledger)
    again.told_before(120, used=4_000)
    assert again.at(130, used=4_000).idle_mib == {one.uid: (6_000,)}


@pytest.mark.parametrize(("own", "history"), [(4_000, True), (4_000, False), (None, False)])
def test_a_new_process_that_does_not_know_lends_nothing_and_sends_nobody_away(
    own: float | None, history: bool
) -> None:
    one = Scrapes()
    one.until(300, used=4_000, own=own)
    again = Scrapes(one.ledger)
    if history:
        again.told_before(300, used=4_000)
    for second in (310, 320):
        made = again.at(second, used=4_000, own=own)
        assert made.idle_mib == {}
        assert again.ages(made, NEED) == [STALE, FRESH]
        assert again.column(made, NEED) == [ASKED, 0]
    made = again.at(330, used=4_000, own=own)
    made = again.at(340, used=4_000, own=own)
    assert made.idle_mib == {one.uid: (6_000,)}
    assert again.ages(made, NEED) == [FRESH, FRESH]


def test_a_pod_of_before_that_never_settles_is_given_two_minutes() -> None:
    one = Scrapes()
    one.at(400, used=0, came=False)  # nobody watches it yet
    found = {
        second: one.ages(one.at(second, used=uses, own=uses), NEED)[0]
        for second in range(600, 740, 10)
        for uses in [4_000 + second % 20 * 100]
    }
    assert [second for second, age in found.items() if age == FRESH] == [720, 730]


def test_a_pod_that_came_by_a_peak_that_a_restart_forgot_is_waited_for() -> None:
    one = Scrapes()
    for second in range(10, 60, 10):
        made = one.at(second, used=4_000, own=4_000)
        assert one.ages(made, NEED) == [STALE, FRESH]
    assert one.ages(one.at(60, used=4_000, own=4_000), NEED) == [FRESH, FRESH]


def test_a_pod_that_was_seen_to_come_is_held_at_what_it_asked() -> None:
    one = Scrapes(Ledger([node("n", gpus=2, memory_mib=CARD_MIB)]))
    one.at(-5, used=0)
    one.bind()
    made = one.at(10, used=2_000, own=2_000)
    assert one.ages(made, NEED) == [FRESH, FRESH]
    assert one.column(made, NEED) == [ASKED, 0]


def test_pods_keep_their_series_when_rows_move_and_when_another_window_begins() -> None:
    one = Scrapes()
    one.until(120, used=9_000, own=4_000)
    one.at(130, used=9_000, own=8_000)
    one.at(140, used=9_000, own=4_000)
    one.ledger.set_nodes([node("a", gpus=1)])
    one.feed.follow(Devices(one.ledger.table.nodes))
    one.at(160, used=9_000, own=4_000)
    assert one.feed.peak_mib(one.uid) == 8_000
    one.feed.begin_anew()
    one.at(170, used=9_000, own=4_000)
    assert one.feed.peak_mib(one.uid) == 8_000
    assert one.at(260, used=9_000, own=4_000).idle_mib
    assert one.feed.peak_mib(one.uid) == 4_000


def test_a_pod_whose_node_is_away_for_a_while_is_still_warm() -> None:
    one = Scrapes()
    one.until(120, used=4_000, own=4_000)
    nodes = one.ledger.table.nodes
    one.ledger.set_nodes([], ["n"])
    one.feed.follow(Devices([]))
    one.at(130, used=0)
    one.ledger.set_nodes(nodes)
    one.feed.follow(Devices(nodes))
    made = one.at(140, used=4_000, own=4_000)
    assert made.idle_mib == {one.uid: (6_000,)}


def test_a_value_that_is_no_number_is_none() -> None:
    one = Scrapes()
    one.until(120, used=4_000, own=4_000)
    one.at(130, used=4_000, own=float("nan"))
    assert one.feed.peak_mib(one.uid) == 4_000
    again = Scrapes(one.ledger)
    again.at(140, used=4_000, own=float("nan"))
    assert again.feed.peak_mib(one.uid) == 0


def test_a_gpu_that_nobody_sees_leaves_nothing_idle() -> None:
    one = Scrapes()
    one.until(120, used=4_000, own=4_000)
    made = one.at(200, used=0, came=False)
    assert made.idle_mib == {}
    assert np.isnan(one.column(made, NEED)[0])


def test_what_the_gpu_uses_beyond_all_that_was_asked_is_told() -> None:
    one = Scrapes()
    made = one.until(120, used=ASKED + 500, own=ASKED + 400)
    assert one.column(made, BEYOND) == [500, 0]
    assert made.idle_mib == {}


def test_the_peak_of_a_pod_is_the_most_in_the_window_of_its_own_series() -> None:
    one = Scrapes()
    assert one.feed.peak_mib(one.uid) == 0
    one.until(120, used=9_000, own=4_000)
    one.at(130, used=9_000, own=5_200.5)
    one.at(140, used=CARD_MIB, own=4_500)
    assert one.feed.peak_mib(one.uid) == 5_201
    assert one.feed.peak_mib("another") == 0
    for second in range(150, 150 + SAMPLES * 10, 10):
        one.at(second, used=9_000, own=4_000)
    assert one.feed.peak_mib(one.uid) == 4_000
    one.at(400, used=9_000)  # nobody tells of it any more
    assert one.feed.peak_mib(one.uid) == 0

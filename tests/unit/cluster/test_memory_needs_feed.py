"""What pods of a live cluster leave idle: their own series, the GPUs', and the time of binding."""

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from live_world import CARD_MIB, World, bind, node, pod, until, world

from weft.cluster.telemetry.memory_needs_feed import MemoryNeedsFeed
from weft.core.engine.harvest import BEYOND, NEED
from weft.core.framework.signals import (
    FRESH,
    MISSING,
    STALE,
    SignalsSnapshot,
    SignalsView,
    snapshot,
)
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.join import Devices, PodSamples
from weft.telemetry.meaning.metric_names import Metric

BOUND = "2026-01-01T00:00:00Z"
T0_S = datetime.datetime.fromisoformat(BOUND).timestamp()
STEP_S, SAMPLES = 10.0, 12
ASKED = 10_000


class Looks:
    """Looks of a telemetry that is always on time, at one pod on GPU 0 of a node with two."""

    def __init__(self, it: World, uid: str) -> None:
        self.it, self.uid = it, uid
        self.devices = Devices(it.live.engine.ledger.table.nodes)
        self.measuring = MemoryNeedsFeed(it.live.engine.ledger, it.live.pods)
        self.window = MetricWindow([Metric.MEMORY_USED_MIB], 2, SAMPLES, STEP_S, T0_S)
        self.number = 0
        self.row = 0

    def at(
        self, second: float, used: float, own: float | None = None, fresh: int = FRESH
    ) -> SignalsSnapshot:
        """The GPU uses so much, and its pod says that it uses `own` of that."""
        now_s = T0_S + second
        self.window.advance(now_s)
        count = len(self.devices)
        rows, times = np.array([self.row, self.row + 1]), np.full(2, now_s)
        if fresh == FRESH:
            values = np.array([used, 0.0])
            self.window.put(Metric.MEMORY_USED_MIB, rows, times, values, now_s)
        sample = PodSamples(Metric.MEMORY_USED_MIB, self.row, self.uid, now_s, own or 0.0)
        samples = [sample] if own is not None else []
        ages, last = np.full(count, FRESH, dtype=np.int8), np.zeros(count)
        ages[self.row], last[self.row] = fresh, used
        columns = {f"{Metric.MEMORY_USED_MIB}.last": (last, ages)}
        self.number += 1
        made = snapshot(self.number, 0, self.devices.gpus, columns)
        noted = self.measuring.note(now_s)
        return self.measuring.measure(made, self.window, self.devices, samples, noted)

    def until(self, second: int, used: float, own: float | None = None) -> SignalsSnapshot:
        """Looks in every step until then, always the same; the last one's answer."""
        found = [self.at(s, used, own) for s in range(10, second + 1, int(STEP_S))]
        return found[-1]

    def nothing_at(self, second: float) -> None:
        """A look at a cluster without GPUs."""
        self.window.advance(T0_S + second)
        made = snapshot(self.number, 0, (), {})
        noted = self.measuring.note(T0_S + second)
        self.measuring.measure(made, self.window, self.devices, [], noted)

    def ages(self, made: SignalsSnapshot, name: str) -> list[int]:
        """Its freshness for both GPUs."""
        table = self.it.live.engine.ledger.table
        found: list[int] = SignalsView(made).over(table, name)[1].tolist()
        return found

    def column(self, made: SignalsSnapshot, name: str) -> list[float]:
        """Its values for both GPUs; NaN where MISSING."""
        table = self.it.live.engine.ledger.table
        found: list[float] = SignalsView(made).over(table, name)[0].tolist()
        return found


@asynccontextmanager
async def looks(bound: str = BOUND, **marks: str) -> AsyncIterator[Looks]:
    async with world() as it:
        it.server.add("pods", pod("p", ASKED, scheduler="other"))
        uid = bind(it.server, "p", 0, bound, memory_mib=ASKED, **marks)
        await until(lambda: uid in it.live.engine.ledger.holdings)
        yield Looks(it, uid)


async def test_a_pod_that_warmed_up_leaves_idle_what_it_never_used() -> None:
    async with looks() as one:
        made = one.until(120, used=4_200, own=4_000)
        assert made.idle_mib == {one.uid: (ASKED - 4_200,)}  # the GPU itself uses more
        assert one.column(made, NEED) == [4_200, 0]
        made = one.at(130, used=4_600, own=4_500)  # its newest value counts at once
        assert made.idle_mib == {one.uid: (ASKED - 4_600,)}
        assert one.column(made, BEYOND) == [0, 0]


async def test_a_pod_leaves_nothing_idle_before_it_was_bound_for_a_minute() -> None:
    async with looks() as one:
        made = one.until(50, used=4_000, own=4_000)
        assert made.idle_mib == {}
        assert one.column(made, NEED) == [ASKED, 0]
        assert one.at(60, used=4_000, own=4_000).idle_mib == {one.uid: (6_000,)}


async def test_a_pod_whose_binding_has_no_time_leaves_nothing_idle() -> None:
    async with looks(bound="") as one:
        assert one.until(120, used=4_000, own=4_000).idle_mib == {}


async def test_a_latency_critical_pod_lends_nothing() -> None:
    async with looks(**{"weft.dev/class": "latency-critical"}) as one:
        made = one.until(120, used=4_000, own=4_000)
        assert made.idle_mib == {}
        assert one.column(made, NEED) == [ASKED, 0]


async def test_one_that_becomes_latency_critical_lends_no_more() -> None:
    async with looks() as one:
        assert one.until(120, used=4_000, own=4_000).idle_mib == {one.uid: (6_000,)}
        critical = {"metadata": {"annotations": {"weft.dev/class": "latency-critical"}}}
        one.it.server.update("pods", "p", critical, "d")
        ledger = one.it.live.engine.ledger
        await until(lambda: ledger.holdings[one.uid].placement.job_class != "")
        assert one.at(130, used=4_000, own=4_000).idle_mib == {}


async def test_a_latency_critical_pod_that_cannot_be_read_lends_nothing() -> None:
    marks = {"weft.dev/class": "latency-critical", "weft.dev/isolation": "wishes"}
    async with looks(**marks) as one:
        assert one.uid in one.it.live.pods.assumed
        assert one.until(120, used=4_000, own=4_000).idle_mib == {}


async def test_without_a_series_of_its_own_the_gpus_stands_for_the_only_pod() -> None:
    async with looks() as one:
        assert one.until(120, used=4_000).idle_mib == {one.uid: (6_000,)}


async def test_a_new_process_knows_what_the_gpus_did_before_it_and_when_pods_were_bound() -> None:
    async with looks() as one:
        one.until(120, used=4_000, own=4_000)
        again = Looks(one.it, one.uid)
        again.window = one.window  # as a metrics server tells it
        assert again.at(130, used=4_000).idle_mib == {one.uid: (6_000,)}


@pytest.mark.parametrize(("own", "history"), [(4_000, True), (4_000, False), (None, False)])
async def test_a_new_process_that_does_not_know_lends_nothing_and_sends_nobody_away(
    own: float | None, history: bool
) -> None:
    async with looks() as one:
        one.until(300, used=4_000, own=own)
        again = Looks(one.it, one.uid)
        if history:
            again.window = one.window
        for second in (310, 320):
            made = again.at(second, used=4_000, own=own)
            assert made.idle_mib == {}
            assert again.ages(made, NEED) == [STALE, FRESH]
            assert again.column(made, NEED) == [ASKED, 0]
        made = again.at(330, used=4_000, own=own)
        made = again.at(340, used=4_000, own=own)
        assert made.idle_mib == {one.uid: (6_000,)}
        assert again.ages(made, NEED) == [FRESH, FRESH]


async def test_a_pod_of_before_that_never_settles_is_given_two_minutes() -> None:
    async with looks() as one:
        one.at(400, used=0, fresh=MISSING)  # nobody watches it yet
        found = {
            second: one.ages(one.at(second, used=uses, own=uses), NEED)[0]
            for second in range(600, 740, 10)
            for uses in [4_000 + second % 20 * 100]
        }
        assert [second for second, age in found.items() if age == FRESH] == [720, 730]


async def test_a_pod_that_came_by_a_peak_that_a_restart_forgot_is_waited_for() -> None:
    async with looks() as one:  # bound 10 s before the first look: not seen to come
        for second in range(10, 60, 10):
            made = one.at(second, used=4_000, own=4_000)
            assert one.ages(made, NEED) == [STALE, FRESH]
        assert one.ages(one.at(60, used=4_000, own=4_000), NEED) == [FRESH, FRESH]


async def test_a_pod_that_was_seen_to_come_is_held_at_what_it_asked() -> None:
    async with world() as it:
        one = Looks(it, "")
        one.at(-5, used=0)
        it.server.add("pods", pod("p", ASKED, scheduler="other"))
        one.uid = bind(it.server, "p", 0, BOUND, memory_mib=ASKED)
        await until(lambda: one.uid in it.live.engine.ledger.holdings)
        made = one.at(10, used=2_000, own=2_000)
        assert one.ages(made, NEED) == [FRESH, FRESH]
        assert one.column(made, NEED) == [ASKED, 0]


async def test_pods_keep_their_series_when_rows_move_and_when_another_window_begins() -> None:
    async with looks() as one:
        one.until(120, used=9_000, own=4_000)
        one.at(130, used=9_000, own=8_000)
        one.at(140, used=9_000, own=4_000)
        one.it.server.add("nodes", node("a", 1))
        await until(lambda: "a" in one.it.live.engine.ledger.table.row_of)
        one.devices = Devices(one.it.live.engine.ledger.table.nodes)
        one.window.realign(np.array([-1, 0, 1]))
        one.row = one.devices.row_of["n", 0]
        one.at(160, used=9_000, own=4_000)
        assert one.measuring.peak_mib(one.uid) == 8_000
        one.window = MetricWindow([Metric.MEMORY_USED_MIB], 3, SAMPLES, STEP_S, T0_S + 167)
        one.at(170, used=9_000, own=4_000)
        assert one.measuring.peak_mib(one.uid) == 8_000
        assert one.at(260, used=9_000, own=4_000).idle_mib
        assert one.measuring.peak_mib(one.uid) == 4_000


async def test_a_pod_whose_node_is_away_for_a_while_is_still_warm() -> None:
    async with looks() as one:
        one.until(120, used=4_000, own=4_000)
        one.it.server.remove("nodes", "n")
        await until(lambda: not one.it.live.engine.ledger.table.row_of)
        one.devices, one.window = Devices([]), one.window
        one.window.realign(np.array([], dtype=np.int64))
        one.nothing_at(130)
        one.it.server.add("nodes", node("n"))
        await until(lambda: one.it.live.engine.ledger.table.row_of)
        one.devices = Devices(one.it.live.engine.ledger.table.nodes)
        one.window.realign(np.array([-1, -1]))
        made = one.at(140, used=4_000, own=4_000)
        assert made.idle_mib == {one.uid: (6_000,)}


async def test_a_value_that_is_no_number_is_none() -> None:
    async with looks() as one:
        one.until(120, used=4_000, own=4_000)
        one.at(130, used=4_000, own=float("nan"))
        assert one.measuring.peak_mib(one.uid) == 4_000
        again = Looks(one.it, one.uid)
        again.at(140, used=4_000, own=float("nan"))
        assert again.measuring.peak_mib(one.uid) == 0


async def test_a_gpu_that_nobody_sees_leaves_nothing_idle() -> None:
    async with looks() as one:
        one.until(120, used=4_000, own=4_000)
        made = one.at(130, used=0, fresh=MISSING)
        assert made.idle_mib == {}
        assert np.isnan(one.column(made, NEED)[0])


async def test_what_the_gpu_uses_beyond_all_that_was_asked_is_told() -> None:
    async with looks() as one:
        made = one.until(120, used=ASKED + 500, own=ASKED + 400)
        assert one.column(made, BEYOND) == [500, 0]
        assert made.idle_mib == {}


async def test_the_peak_of_a_pod_is_the_most_in_the_window_of_its_own_series() -> None:
    async with looks() as one:
        assert one.measuring.peak_mib(one.uid) == 0
        one.until(120, used=9_000, own=4_000)
        one.at(130, used=9_000, own=5_200.5)
        one.at(140, used=CARD_MIB, own=4_500)
        assert one.measuring.peak_mib(one.uid) == 5_201
        assert one.measuring.peak_mib("another") == 0
        for second in range(150, 150 + SAMPLES * 10, 10):
            one.at(second, used=9_000, own=4_000)
        assert one.measuring.peak_mib(one.uid) == 4_000
        one.at(400, used=9_000)  # nobody tells of it any more
        assert one.measuring.peak_mib(one.uid) == 0

"""`weft metrics --check` says how old samples are: by when they were asked for."""

import numpy as np
import pytest

from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.telemetry.feed.completeness import ScrapeReport, check
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.answers import QueryResult
from weft.telemetry.meaning.join import Devices, SeriesJoiner

ASKED_S = 1_000.0
SCRAPE_S = 1.0
USED = b'{"__name__":"DCGM_FI_DEV_FB_USED","Hostname":"a","gpu":"0","UUID":"GPU-0"}'
UTIL = b'{"__name__":"DCGM_FI_DEV_GPU_UTIL","Hostname":"a","gpu":"0","UUID":"GPU-0"}'


def looked(sample_s: float, took_s: float) -> ScrapeReport:
    """A look at one GPU, scraped each second until `sample_s`; the answers took so long."""
    devices, now_s = Devices([Node("a", (Gpu(0, 16_000, "T4", "GPU-0"),))]), ASKED_S + took_s
    times = np.array([sample_s - 1, sample_s] * 2)
    answer = QueryResult(
        [USED, UTIL], np.array([2, 2]), times, np.array([700.0, 700.0, 50.0, 50.0])
    )
    joiner = SeriesJoiner(devices)
    window = MetricWindow([Metric.MEMORY_USED_MIB, Metric.GPU_UTIL_RATIO], 1, 20, 1.0, now_s)
    for one in joiner.join(answer):
        window.put(one.metric, one.rows, one.times, one.values, now_s)
    return ScrapeReport([answer], joiner, window, ASKED_S, now_s, SCRAPE_S)


def wrong(found: ScrapeReport) -> list[str]:
    return [one.text for one in check(found) if one.level == "wrong"]


@pytest.mark.parametrize("took_s", [0.1, 8.0])
def test_samples_that_were_new_when_asked_for_are_good_however_slow_the_answer(
    took_s: float,
) -> None:
    for sample_s in (ASKED_S - 0.5, ASKED_S + took_s / 2):
        assert wrong(looked(sample_s, took_s)) == []
    assert wrong(looked(ASKED_S - 5, took_s)) == ["the newest sample is 5 s old"]


def test_only_what_is_after_the_answer_is_from_the_future() -> None:
    found = looked(ASKED_S + 11, took_s=8.0)
    assert wrong(found) == ["the newest sample is 3 s in the future"]
    assert found.ages_s(Metric.MEMORY_USED_MIB).tolist() == [-3]
    assert looked(ASKED_S + 1, took_s=8.0).ages_s(Metric.GPU_UTIL_RATIO).tolist() == [0]

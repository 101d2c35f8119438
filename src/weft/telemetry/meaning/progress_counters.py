"""Computes pods' rates of progress from applications' counters, and reads their p99 latency.

    samples of a poll ──▶ the counters of each pod ──▶ a window: from one sample to another ──▶ rate

Windows of a pod follow each other and never overlap. A window ends once `MANY` units were counted
in it, or after `LOOKS` polls, and then gives a rate. It is restarted without a rate if a counter
fell (the container restarted, and its start says nothing about its speed), if counters appeared or
disappeared, if samples were missing for long, or if the pod's co-residents changed. A pod whose
counters do not move gets no rate: it may have been unable to work, or had no work.

A series belongs to the pod in its `namespace` and `pod` labels, which the metrics server sets. An
application's own labels of these names become `exported_…` and are ignored.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import NamedTuple

from weft.telemetry.meaning.answers import QueryResult, labels_of

PodName = tuple[str, str]
"""Namespace and name of a pod."""

MANY = 20.0
"""Number of counted units from which on a rate is precise enough: one unit more or less is a
twentieth."""
LOOKS = 3
"""Maximum number of polls in a window; a counter that appeared is ignored for as many polls."""
MOST_PARTS = 64
"""Maximum number of counters of one pod: for its containers, ranks and phases."""
MOST_MS = 1e12
"""Largest plausible p99, milliseconds: thirty years."""

_SCRAPED = {"__name__", "job", "endpoint", "instance", "container", "service", "prometheus"}
_SCRAPED |= {"prometheus_replica", "replica", "cluster", "monitor", "node", "namespace", "pod"}
"""Labels that say how a counter was read, and of which pod, but do not identify the counter."""
_MOST_KEPT = 100_000

Samples = list[tuple[float, float]]


class Rate(NamedTuple):
    """Units of progress per second over a window of `seconds` that ended at `at_s`."""

    per_s: float
    at_s: float
    seconds: float


class CounterKey(NamedTuple):
    """Identifies a counter of a pod: its job, the page it was read from (instance, else container),
    the way it was read (container and endpoint), and its own labels."""

    job: str = ""
    page: str = ""
    way: str = ""
    own: str = ""


class CounterSeries(NamedTuple):
    """The pod, its counter and the metric of a series."""

    pod: PodName
    part: CounterKey
    metric: str


class _Window:
    """A pod's counting window: each counter at the beginning of the window and at the last poll,
    and the pod's co-residents."""

    __slots__ = ("begun", "co_residents", "last", "rests_s")

    def __init__(
        self, at: Mapping[CounterKey, tuple[float, float]], co_residents: Hashable, rests_s: float
    ):
        self.begun, self.last = dict(at), dict(at)
        self.co_residents, self.rests_s = co_residents, rests_s


class CounterReader:
    """Reads the labels of each series once. `unjoined` counts the unused series of the last answer
    by reason."""

    def __init__(self, most_kept: int = _MOST_KEPT) -> None:
        self.unjoined: Counter[str] = Counter()
        self._known: dict[bytes, CounterSeries | None] = {}
        self._most_kept = most_kept

    def read(
        self, answer: QueryResult, pods: Mapping[PodName, Hashable], now_s: float
    ) -> dict[str, dict[PodName, dict[CounterKey, Samples]]]:
        """Return the samples by metric, pod and counter, in order of time; only those of `pods`.

        If a counter was received twice, as from two servers, its samples are merged."""
        self.unjoined = Counter()
        if len(self._known) > self._most_kept:
            self._known.clear()
        samples_of: dict[str, dict[PodName, dict[CounterKey, Samples]]] = {}
        for text, samples in _each(answer, now_s):
            series = self._series(text)
            if series is None:
                self.unjoined["labels"] += 1
            elif series.pod not in pods:
                self.unjoined["pod"] += 1
            elif not samples:
                self.unjoined["value"] += 1
            else:
                parts = samples_of.setdefault(series.metric, {}).setdefault(series.pod, {})
                if series.part in parts:
                    parts[series.part] = sorted({*parts[series.part], *samples})
                elif len(parts) < MOST_PARTS:
                    parts[series.part] = samples
                else:
                    self.unjoined["many"] += 1
        return samples_of

    def _series(self, text: bytes) -> CounterSeries | None:
        if text not in self._known:
            self._known[text] = _series_of(text)
        return self._known[text]


def _series_of(text: bytes) -> CounterSeries | None:
    labels = labels_of(text)
    pod = labels.get("namespace", ""), labels.get("pod", "")
    if not all(pod):
        return None
    own = sorted((name, value) for name, value in labels.items() if name not in _SCRAPED)
    container = labels.get("container", "")
    part = CounterKey(
        labels.get("job", ""),
        labels.get("instance", "") or container,
        "\0".join(filter(None, (container, labels.get("endpoint", "")))),
        "\0".join(f"{name}\0{value}" for name, value in own),
    )
    return CounterSeries(pod, part, labels.get("__name__", ""))


def _each(answer: QueryResult, now_s: float) -> Iterator[tuple[bytes, Samples]]:
    """Yield each series with its plausible samples, oldest first."""
    times, values, at = answer.times.tolist(), answer.values.tolist(), 0
    for text, count in zip(answer.labels, answer.counts.tolist(), strict=True):
        pairs = zip(times[at : at + count], values[at : at + count], strict=True)
        at += count
        yield text, sorted((time, value) for time, value in pairs if _can_be(time, value, now_s))


def _can_be(time: float, value: float, now_s: float) -> bool:
    return -math.inf < time <= now_s + 5.0 and 0.0 <= value < math.inf


class Rates:
    """The counting windows of all pods. `interval_s` is the time between two polls, `scrape_s` that
    between two samples of a counter."""

    def __init__(self, interval_s: float, scrape_s: float) -> None:
        self._longest_s = LOOKS * max(interval_s, scrape_s)
        self._stale_s = 2.0 * scrape_s + interval_s
        self._windows: dict[PodName, _Window] = {}
        self._looked = False

    @property
    def rests_s(self) -> float:
        """Seconds for which a counter that appeared, or was reset, is ignored."""
        return self._longest_s

    def update(
        self,
        by_pod: Mapping[PodName, Mapping[CounterKey, Samples]],
        pods: Mapping[PodName, Hashable],
        now_s: float,
    ) -> dict[PodName, Rate]:
        """Return the rates of pods whose window has ended; `pods` are all pods, each with its
        co-residents."""
        rates, windows = {}, {}
        for pod, parts in by_pod.items():
            window, rate = self._of_pod(self._windows.get(pod), parts, pods[pod], now_s)
            if window is not None:
                windows[pod] = window
            if rate is not None:
                rates[pod] = rate
        self._windows, self._looked = windows, True
        return rates

    def _of_pod(
        self,
        window: _Window | None,
        parts: Mapping[CounterKey, Samples],
        co_residents: Hashable,
        now_s: float,
    ) -> tuple[_Window | None, Rate | None]:
        newest = {part: samples[-1] for part, samples in parts.items()}
        if min(at_s for at_s, _ in newest.values()) < now_s - self._stale_s:
            return None, None
        rest = _Window(newest, co_residents, now_s + self._longest_s)
        if window is None:  # counters found at the first poll may have run for hours
            return (rest if self._looked else _Window(newest, co_residents, 0.0)), None
        if window.begun.keys() != newest.keys() or self._broken(window, parts):
            return rest, None
        window.last = {part: max(sample, window.last[part]) for part, sample in newest.items()}
        if window.co_residents != co_residents or now_s < window.rests_s:
            return _Window(window.last, co_residents, window.rests_s), None
        rate, over = self._rate(window)
        return (_Window(window.last, co_residents, 0.0) if over else window), rate

    def _broken(self, window: _Window, parts: Mapping[CounterKey, Samples]) -> bool:
        """Return True if a counter fell, or was not read for so long that it may have fallen."""
        for part, samples in parts.items():
            at_s, value = window.last[part]
            for next_s, next_value in samples:
                if next_s <= at_s:
                    continue
                if next_value < value or next_s - at_s > self._longest_s:
                    return True
                at_s, value = next_s, next_value
        return False

    def _rate(self, window: _Window) -> tuple[Rate | None, bool]:
        """Return the window's rate (None if it gives none), and whether the window has ended.

        With few units, one more may be nearly done, so that one is added: in doubt a pod counts as
        faster."""
        done: dict[CounterKey, tuple[float, float]] = {}
        seconds = 0.0
        for part, (began_s, stood) in window.begun.items():
            at_s, value = window.last[part]
            if at_s <= began_s:
                return None, False
            done[part] = (value - stood) / (at_s - began_s), value - stood
            seconds = max(seconds, at_s - began_s)
        per_s, counted = _once(done)
        if counted < MANY:
            if seconds < self._longest_s:
                return None, False
            per_s += 1.0 / seconds
        newest_s = max(at_s for at_s, _ in window.last.values())
        return (Rate(per_s, newest_s, seconds) if counted > 0.0 else None), True


def _once(done: Mapping[CounterKey, tuple[float, float]]) -> tuple[float, float]:
    """Return rate and units of all counters together; a counter that is read several times counts
    once.

    Of a page that is read in two ways, and of two jobs that read the same pod, the larger total
    counts; the counters of one page add up, and so do the pages of one job."""
    ways: dict[CounterKey, tuple[float, float]] = {}
    for part, (per_s, units) in done.items():
        way = part._replace(own="")
        before = ways.get(way, (0.0, 0.0))
        ways[way] = before[0] + per_s, before[1] + units
    pages: dict[tuple[str, str], tuple[float, float]] = {}
    for way, way_total in ways.items():
        page = way.job, way.page
        pages[page] = max(pages.get(page, way_total), way_total)
    jobs: dict[str, tuple[float, float]] = {}
    for (job, _), (per_s, units) in pages.items():
        before = jobs.get(job, (0.0, 0.0))
        jobs[job] = before[0] + per_s, before[1] + units
    return max(jobs.values(), default=(0.0, 0.0))


def latencies(
    by_pod: Mapping[PodName, Mapping[CounterKey, Samples]],
    metric: str,
    now_s: float,
    stale_s: float,
) -> dict[PodName, float]:
    """Return each pod's newest p99 latency, milliseconds: the largest plausible value of its series
    of `metric`. Samples are in seconds unless the metric's name ends with `_ms` or
    `_milliseconds`."""
    scale = 1.0 if metric.endswith(("_ms", "_milliseconds")) else 1000.0
    p99_of = {}
    for pod, parts in by_pod.items():
        newest = (samples[-1] for samples in parts.values())
        fresh = [scale * value for at_s, value in newest if at_s >= now_s - stale_s]
        if possible := [p99_ms for p99_ms in fresh if p99_ms <= MOST_MS]:
            p99_of[pod] = max(possible)
    return p99_of

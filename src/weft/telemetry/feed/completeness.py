"""Finds what a source's answers lack: metrics, labels, nodes, samples. Pure.

`discover` derives nodes and GPUs from the labels alone, if those of the cluster are unknown.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from weft.core.framework.signals import FRESH, MISSING, Floats
from weft.model import Gpu, Node
from weft.model.metric import Metric
from weft.model.metric_aliases import ALIASES, Alias
from weft.telemetry.feed.doubts import freshness_of
from weft.telemetry.feed.window import MetricWindow
from weft.telemetry.meaning.answers import QueryResult, labels_of
from weft.telemetry.meaning.join import JoinFailure, SeriesJoiner
from weft.telemetry.meaning.metric_names import NODE_LABELS, subject, without_port

Level = Literal["good", "advice", "wrong"]

LINES: dict[Metric, tuple[str, int, str]] = {
    Metric.MEMORY_USED_MIB: ("DCGM_FI_DEV_FB_USED", 252, "Memory in use, MiB."),
    Metric.MEMORY_FREE_MIB: ("DCGM_FI_DEV_FB_FREE", 251, "Memory free, MiB."),
    Metric.MEMORY_RESERVED_MIB: ("DCGM_FI_DEV_FB_RESERVED", 253, "Memory of the driver, MiB."),
    Metric.GPU_UTIL_RATIO: ("DCGM_FI_DEV_GPU_UTIL", 203, "Share of time with any kernel, percent."),
    Metric.POWER_W: ("DCGM_FI_DEV_POWER_USAGE", 155, "Power, W."),
    Metric.POWER_LIMIT_W: ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 160, "Power limit, W."),
    Metric.SM_ACTIVE_RATIO: ("DCGM_FI_PROF_SM_ACTIVE", 1002, "Share of time that SMs have work."),
    Metric.SM_OCCUPANCY_RATIO: (
        "DCGM_FI_PROF_SM_OCCUPANCY",
        1003,
        "Active warps, as a ratio of the maximum.",
    ),
    Metric.TENSOR_ACTIVE_RATIO: (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        1004,
        "Share of time that tensor cores work.",
    ),
    Metric.DRAM_ACTIVE_RATIO: (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        1005,
        "Share of time that DRAM is in use.",
    ),
    Metric.PCIE_SENT_BYTES_PER_S: ("DCGM_FI_PROF_PCIE_TX_BYTES", 1009, "Sent over PCIe."),
    Metric.PCIE_RECEIVED_BYTES_PER_S: ("DCGM_FI_PROF_PCIE_RX_BYTES", 1010, "Received over PCIe."),
}
"""dcgm-exporter's name of the metric, DCGM's field, and a description, for a line of the exporter's
list of metrics."""

SLOW_S = 30.0
"""Interval between samples, in seconds, above which `check` warns: a pod that grows by 100 MiB/s
then takes 3 GiB unseen."""
_MOST_NAMED = 5

NEEDED = (Metric.MEMORY_USED_MIB, Metric.GPU_UTIL_RATIO)
"""Metrics without which a GPU counts as unknown; all other metrics only improve policies."""
EITHER = {
    Metric.MEMORY_USED_MIB: (Metric.MEMORY_FREE_MIB, Metric.MEMORY_USED_RATIO),
    Metric.GPU_UTIL_RATIO: (Metric.SM_ACTIVE_RATIO, Metric.GRAPHICS_ACTIVE_RATIO),
}
"""The metrics that can replace each needed metric."""


class CompletenessFinding(NamedTuple):
    """Result of a check; `mend` says how to mend what is lacking."""

    level: Level
    text: str
    mend: str = ""


def discover(answers: Iterable[QueryResult], aliases: Mapping[str, Alias] = ALIASES) -> list[Node]:
    """Return the nodes and GPUs that the labels name; the GPUs' memory is unknown."""
    gpus_of: dict[str, dict[int, str]] = {}
    for answer in answers:
        for text in answer.labels:
            labels = labels_of(text)
            about = subject(labels)
            node = without_port(next((labels[n] for n in NODE_LABELS if labels.get(n)), ""))
            if node and about.gpu >= 0 and not about.mig and labels.get("__name__") in aliases:
                gpus = gpus_of.setdefault(node, {})
                gpus[about.gpu] = gpus.get(about.gpu) or about.uuid
    return [
        Node(name, tuple(Gpu(index, 1, uuid=uuid) for index, uuid in sorted(gpus.items())))
        for name, gpus in sorted(gpus_of.items())
    ]


class ScrapeReport(NamedTuple):
    """One reading of a source: its answers, how they were joined, and its times: requested at
    `asked_s`, all answers received at `now_s`.

    A sample's age is that at the request: how long answers take says nothing about how often GPUs
    are scraped. `notes` are findings about the servers that were queried, such as one that did not
    answer."""

    answers: Sequence[QueryResult]
    joiner: SeriesJoiner
    window: MetricWindow
    asked_s: float
    now_s: float
    scrape_s: float
    notes: Sequence[CompletenessFinding] = ()

    def ages_s(self, metric: Metric) -> Floats:
        """Return the age of each GPU's newest sample in seconds; infinite without one, negative for
        one from the future."""
        at_s = self.window.newest(metric)[1]
        age_s = np.maximum(0.0, self.asked_s - at_s)
        return np.asarray(np.where(at_s > self.now_s, self.now_s - at_s, age_s))


def check(report: ScrapeReport) -> list[CompletenessFinding]:
    """Return all findings, the worst first."""
    order = {"wrong": 0, "advice": 1, "good": 2}
    findings = list(report.notes)
    for checker in (_metrics, _scrapes, _stale, _warnings, _labels_of, _nodes):
        findings += checker(report)
    return sorted(findings, key=lambda finding: order[finding.level])


def _some(names: Iterable[str]) -> str:
    """Return the first few names, sorted and joined, with the number of further ones."""
    every = sorted(set(names))
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return ", ".join(every[:_MOST_NAMED]) + more


def _metrics(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    devices = report.joiner.devices
    gpus = len(devices)
    has_samples = {m: np.isfinite(report.window.newest(m)[1]) for m in report.window.metrics}
    have = {metric: int(known.sum()) for metric, known in has_samples.items()}
    for metric, (name, field, text) in LINES.items():
        count = have.get(metric, 0)
        instead = any(have.get(other, 0) >= max(gpus, 1) for other in EITHER.get(metric, ()))
        if count and count == gpus:
            yield CompletenessFinding("good", f"{metric}: all {gpus} GPUs")
            continue
        level: Level = "wrong" if metric in NEEDED and not instead else "advice"
        some = f"{count} of {gpus} GPUs" if count else "no GPU"
        if count:
            lacking = np.flatnonzero(~has_samples[metric]).tolist()
            some += f", not {_some('/'.join(map(str, devices.gpus[row])) for row in lacking)}"
        mend = f"add to the exporter's list (DCGM field {field}): {name}, gauge, {text}"
        yield CompletenessFinding(level, f"{metric}: {some}", mend)


def _scrapes(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    """Check how far apart samples are, how old the newest is, and that clocks agree."""
    steps = [
        np.diff(part)
        for answer in report.answers
        for part in np.split(answer.times, np.cumsum(answer.counts)[:-1])
        if len(part) > 1
    ]
    if steps:
        apart_s = round(float(np.median(np.concatenate(steps))), 1)
        expected = report.scrape_s
        if apart_s > 1.5 * expected:
            text = f"samples are {apart_s:g} s apart, telemetry.scrapeSeconds is {expected:g}"
            mend = f"scrape every {expected:g} s, or set telemetry.scrapeSeconds: {apart_s:g}"
            yield CompletenessFinding("wrong", text, mend)
        elif apart_s > SLOW_S:
            text = f"samples are {apart_s:g} s apart: fast growth of memory is seen too late"
            mend = "scrape every 15 s: samples decide when lent memory is taken back"
            yield CompletenessFinding("advice", text, mend)
        else:
            yield CompletenessFinding("good", f"samples are {apart_s:g} s apart")
    times = np.concatenate([answer.times for answer in report.answers] or [np.zeros(0)])
    if not len(times):
        mend = "is the exporter scraped by this server?"
        yield CompletenessFinding("wrong", "no sample of any known metric", mend)
        return
    age_s, ahead_s = report.asked_s - float(times.max()), float(times.max()) - report.now_s
    if ahead_s > 2.0:
        text = f"the newest sample is {ahead_s:.0f} s in the future"
        mend = "set the clocks: this machine's or the server's"
        yield CompletenessFinding("wrong", text, mend)
    elif freshness_of(np.array([max(0.0, age_s)]), report.scrape_s)[0] != FRESH:
        mend = "has scraping stopped, or do the clocks disagree?"
        yield CompletenessFinding("wrong", f"the newest sample is {age_s:.0f} s old", mend)


def _stale(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    """Report GPUs whose newest sample of a needed metric is old, while that of other GPUs is
    not."""
    gpus = report.joiner.devices.gpus
    for metric in NEEDED:
        ages = report.ages_s(metric)
        old = np.flatnonzero(np.isfinite(ages) & (freshness_of(ages, report.scrape_s) != FRESH))
        if 0 < len(old) < len(gpus):
            named = _some("/".join(map(str, gpus[row])) for row in old.tolist())
            text = f"{metric} is {ages[old].max():.0f} s old on {named}"
            mend = "are these nodes' exporters up, and scraped in time?"
            yield CompletenessFinding("wrong", text, mend)


def _warnings(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    for warning in sorted({text for answer in report.answers for text in answer.warnings}):
        mend = "the server's answers may be incomplete"
        yield CompletenessFinding("wrong", f"the server warns: {warning}", mend)


_MENDS: Mapping[JoinFailure, str] = {
    JoinFailure.NODE: "label them with the node's name: label Hostname, or node by relabelling",
    JoinFailure.GPU: "these GPUs are not in the cluster's inventory",
    JoinFailure.MIG: "a MIG instance is identified only by its own UUID",
    JoinFailure.LABELS: "the labels of these series cannot be read",
}


def _labels_of(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    for why, count in sorted(report.joiner.unjoined.items()):
        example = report.joiner.examples.get(why, "")
        named = _misnamed(report) if why is JoinFailure.NODE else ""
        text = f"{count} series belong to no GPU ({why}){named}, for example {example}"
        yield CompletenessFinding("wrong", text, _MENDS.get(why, ""))
    series = [labels for answer in report.answers for labels in answer.labels]
    if lacking := sum(not subject(labels_of(labels)).uuid for labels in series):
        mend = "without UUID a GPU is identified by its index, which may differ in containers"
        yield CompletenessFinding("advice", f"{lacking} of {len(series)} series have no UUID", mend)


def _misnamed(report: ScrapeReport) -> str:
    """Return a clause of a message: the node names on the unjoined series, and the names of the
    cluster's nodes."""
    devices = report.joiner.devices
    node_names = set()
    for answer in report.answers:
        for text in answer.labels:
            labels = labels_of(text)
            if devices.find(labels) is JoinFailure.NODE:
                node_names |= {f"{name}={labels[name]}" for name in NODE_LABELS if labels.get(name)}
    names = f"their labels say {_some(node_names)}" if node_names else "their labels name no node"
    return f": {names}; the nodes are called {_some(devices.nodes)}" if devices.nodes else ""


def _nodes(report: ScrapeReport) -> Iterable[CompletenessFinding]:
    window, devices = report.window, report.joiner.devices
    seen = np.zeros(len(devices), dtype=bool)
    for metric in window.metrics:
        fresh = freshness_of(report.ages_s(metric), report.scrape_s)
        seen |= fresh != MISSING
    silent = Counter(node for (node, _), there in zip(devices.gpus, seen, strict=True) if not there)
    for node, count in sorted(silent.items()):
        mend = "does the exporter run there, and is it scraped?"
        yield CompletenessFinding("wrong", f"node {node}: {count} GPUs without metrics", mend)

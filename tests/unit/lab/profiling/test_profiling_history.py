"""Profiles out of history, asked of a fake metrics server: questions, pieces, what is left out."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fakes.api_memory import client_of
from fakes.api_server import FakeApiServer
from weft.dialects.application import ApplicationClues
from weft.lab.profiling import history
from weft.lab.profiling.bindings import bindings
from weft.lab.profiling.history import (
    ClusterRecord,
    CollectedProfiles,
    HistorySpan,
    ProfiledStay,
    collect,
)
from weft.telemetry.meaning.answers import QueryResult, TelemetryError
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions
from weft.testing import AGENT_BY_NAME

NOW_S, STEP_S = 100_000.0, 10.0
SPAN = HistorySpan(NOW_S - 2_000, NOW_S, STEP_S, settle_s=40, least_s=200)
CARD = {"UUID": "GPU-0", "gpu": "0", "Hostname": "a", "modelName": "NVIDIA T4"}
POD = {**CARD, "exported_pod": "p", "exported_namespace": "d", "exported_container": "vgg16"}
Value = Callable[[float], float | None]


class FakeServer(Prometheus):
    """Answers with its series, functions of time; a fake. Counts what it was asked."""

    def __init__(self, selector: str = "") -> None:
        super().__init__(PrometheusOptions("http://fake", selector=selector))
        self.series: list[tuple[dict[str, str], Value]] = []
        self.asked: list[str] = []
        self.refuses = ""

    def add(self, name: str, labels: dict[str, str], value: Value) -> None:
        self.series.append(({"__name__": name, **labels}, value))

    def _found(self, query: str, times: list[float]) -> QueryResult:
        self.asked.append(query)
        if self.refuses and self.refuses in query:
            raise TelemetryError("status", "too long")
        regex = re.search(r'__name__=~"([^"]*)"', query)
        names = set(regex[1].split("|")) if regex else set(re.findall(r"[a-z_]{6,}", query))
        labels, counts, at, values = [], [], [], []
        for told, value in self.series:
            if told["__name__"] not in names:
                continue
            points = [(time, one) for time in times if (one := value(time)) is not None]
            kept = {k: v for k, v in told.items() if regex or k != "__name__"}
            labels.append(json.dumps(kept, separators=(",", ":")).encode())
            counts.append(len(points))
            at += [time for time, _ in points]
            values += [one for _, one in points]
        return QueryResult(labels, np.array(counts, dtype=np.int64), np.array(at), np.array(values))

    async def query_range(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> QueryResult:
        count = round((end_s - start_s) / step_s) + 1
        return self._found(query, [start_s + step_s * slot for slot in range(count)])

    async def query(self, query: str, time_s: float | None = None) -> QueryResult:
        return self._found(query, [time_s or NOW_S])


EMPTY_RECORD = ClusterRecord()


def between(begin_s: float, end_s: float, value: float) -> Value:
    """`value` from so many seconds before now until so many."""
    return lambda time: value if NOW_S - begin_s <= time < NOW_S - end_s else None


async def found(
    server: FakeServer, span: HistorySpan = SPAN, known: ClusterRecord = EMPTY_RECORD
) -> CollectedProfiles:
    shares: list[float] = []
    told = await collect(server, span, known, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    return told


def server() -> FakeServer:
    """Pod p on one GPU for 1,500 seconds, beside q for 500 of them."""
    fake = FakeServer()
    fake.add("DCGM_FI_PROF_SM_ACTIVE", POD, between(1_600, 100, 0.5))
    fake.add("DCGM_FI_DEV_FB_USED", POD, between(1_600, 100, 3_000))
    fake.add("DCGM_FI_DEV_FB_USED", {**POD, "exported_pod": "q"}, between(1_100, 600, 9_000))
    return fake


async def test_a_profile_is_of_the_times_alone() -> None:
    told = await found(server())
    (solo,) = told.dataset.solo
    assert (solo.application, solo.gpu_model, solo.isolation) == (
        "vgg16",
        "NVIDIA-T4",
        "time-slicing",
    )
    # 500 s before q and 500 after it, less 40 that it settles each time and the last sample.
    assert solo.seconds == pytest.approx(2 * (500 - 40) - 10, abs=20)
    assert solo.runs == 2
    assert (solo.memory_mib, solo.peak_mib) == (3_000, 3_000)
    assert solo.features["sm_active_ratio"].mean == 0.5
    assert "memory_used_mib" not in solo.features


@pytest.mark.parametrize("slots", [3, 7, 20, 199, 10_000])
async def test_in_how_many_pieces_it_is_asked_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    whole = (await found(server())).dataset
    monkeypatch.setattr(history, "MOST_SLOTS", slots)
    fake = server()
    (solo,), (expected,) = (await found(fake)).dataset.solo, whole.solo
    assert (solo.seconds, solo.features) == (expected.seconds, expected.features)
    pieces = sum("SM_ACTIVE" in query for query in fake.asked)
    assert pieces == -(-200 // slots)


async def test_what_is_too_short_or_nameless_is_told_not_kept() -> None:
    fake = server()
    told = await found(fake, SPAN._replace(least_s=5_000))
    assert told.dataset.solo == ()
    assert told.short.keys() == {"vgg16"}
    fake.series = [({**one, "exported_container": "c"}, value) for one, value in fake.series]
    told = await found(fake)
    assert told.dataset.solo == ()
    assert told.nameless.keys() == {("d", "p")}


async def test_holdings_that_nobody_was_seen_for_spoil_the_node() -> None:
    fake = server()
    fake.add("weft_ledger_gpu_holdings", {"node": "a"}, between(2_000, 600, 2))
    (solo,) = (await found(fake)).dataset.solo
    # Before q somebody was not seen; only the time after it counts.
    assert solo.seconds == pytest.approx(500 - 40, abs=20)


async def test_the_clusters_word_on_names_models_and_company() -> None:
    card = ("a", "GPU-0")
    own = ProfiledStay(("d", "p"), card, NOW_S - 1_600, ApplicationClues("bert"), "mps")
    known = ClusterRecord([own], {card: "T4-of-the-label"}, {"gpu-0": card})
    (solo,) = (await found(server(), known=known)).dataset.solo
    assert (solo.application, solo.gpu_model, solo.isolation) == ("bert", "T4-of-the-label", "mps")
    unseen = ProfiledStay(("d", "x"), card, NOW_S - 600)
    (solo,) = (await found(server(), known=known._replace(residencies=[own, unseen]))).dataset.solo
    assert solo.seconds == pytest.approx(500 - 40, abs=20)


async def test_a_counter_of_iterations_gives_a_rate_alone() -> None:
    fake = FakeServer('cluster="c"')
    fake.series = server().series
    whose = {"exported_pod": "p", "exported_namespace": "d"}
    for container, part in (("x", 6.0), ("y", 4.0)):
        fake.add("steps_total", {**whose, "container": container}, between(1_600, 1_100, part))
        fake.add("steps_total", {**whose, "container": container}, between(1_100, 0, 1.0))
    (solo,) = (
        await found(fake, SPAN._replace(progress="steps_total", end_s=NOW_S - 1_000))
    ).dataset.solo
    assert solo.rate_per_s == 10.0
    assert 'rate(steps_total{cluster="c"}[40s])' in fake.asked


async def test_a_server_that_refuses_kube_state_metrics_questions_still_gives_profiles() -> None:
    fake = server()
    fake.refuses = "kube_pod"
    assert [one.application for one in (await found(fake)).dataset.solo] == ["vgg16"]
    fake.refuses = "DCGM"
    with pytest.raises(TelemetryError, match="too long"):
        await found(fake)


async def test_every_metric_is_asked_for_once_a_piece() -> None:
    fake = server()
    await found(fake)
    of_metrics = [query for query in fake.asked if "__name__" in query]
    assert len(of_metrics) == len(history.DEFAULT_METRICS)
    assert all("[20s]" in query for query in of_metrics)


async def test_bindings_are_read_off_the_api() -> None:
    async with (
        FakeApiServer() as api,
        client_of(api) as client,
    ):
        gpus: list[dict[str, Any]] = [
            {"index": 0, "memory_mib": 16_000, "uuid": "GPU-0", "model": "T4"}
        ]
        marks = {
            "weft.dev/inventory": json.dumps({"gpus": gpus}),
            **AGENT_BY_NAME,
        }
        api.add("nodes", {"metadata": {"name": "a", "annotations": marks}})
        limits = {"limits": {"weft.dev/gpu-memory": "3000"}}
        api.add(
            "pods",
            {
                "metadata": {
                    "name": "p",
                    "namespace": "d",
                    "annotations": {"weft.dev/application": "bert"},
                },
                "spec": {
                    "schedulerName": "weft",
                    "nodeName": "a",
                    "containers": [{"name": "c", "resources": limits}],
                },
            },
        )
        uid = api.get("pods", "p", "d")["metadata"]["uid"]
        mark = {"pod": uid, "node": "a", "shares": [[0, 0, 3000, 0, "GPU-0"]]}
        placed = {"metadata": {"annotations": {"weft.dev/placement": json.dumps(mark)}}}
        api.update("pods", "p", placed, "d")
        known = await bindings(client)
    (residency,) = known.residencies
    assert (residency.pod, residency.card, residency.clues.name()) == (
        ("d", "p"),
        ("a", "GPU-0"),
        "bert",
    )
    assert known.models == {("a", "GPU-0"): "T4"}

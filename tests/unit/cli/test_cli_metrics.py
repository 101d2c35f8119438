"""`weft metrics`: a table of GPUs, and what is to be mended, from a server's answers."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from commands import Said, Weft

from fakes.api_server import FakeApiServer
from weft.testing import AGENT_BY_NAME

USED, UTIL = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"


class FakePrometheus:
    """Answers each query with the series of the names in it; a fake."""

    def __init__(self) -> None:
        self.series: list[tuple[dict[str, str], float]] = []
        self.apart_s, self.age_s = 15.0, 1.0
        self.status = 200
        self.warnings: list[str] = []
        self.old: dict[str, float] = {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                query = parse_qs(self.rfile.read(size).decode())["query"][0]
                found = re.search(r'__name__=~"([^"]*)"', query)
                body = fake.answer(set(found[1].split("|")) if found else set())
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                """An exporter's page."""
                body = f'{USED}{{gpu="0"}} 700\n{UTIL}{{gpu="0"}} 50\n'.encode()
                self.send_response(fake.status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, names: set[str]) -> bytes:
        now = time.time() - self.age_s
        result = [
            {
                "metric": labels,
                "values": [
                    [now - k * self.apart_s - self.old.get(labels.get("UUID", ""), 0.0), str(value)]
                    for k in (2, 1, 0)
                ],
            }
            for labels, value in self.series
            if labels["__name__"] in names
        ]
        told = {
            "status": "success",
            "data": {"resultType": "matrix", "result": result},
            "warnings": self.warnings,
        }
        return json.dumps(told, separators=(",", ":")).encode()

    def add(self, name: str, value: float, **labels: str) -> None:
        self.series.append(({"__name__": name, **labels}, value))


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    for index in range(2):
        where = {"Hostname": "a", "gpu": str(index), "UUID": f"GPU-{index}"}
        fake.add(USED, 1000.0 * (index + 1), **where)
        fake.add(UTIL, 50.0, **where)
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


def test_a_table_of_gpus(weft: Weft, prometheus: FakePrometheus) -> None:
    said = weft("metrics", "--url", prometheus.url)
    assert said.code == 0
    rows = [line.split() for line in said.out.splitlines()]
    assert rows[1] == ["a", "0", "1,000", "–", "0.50", "–", "–", "–", "–", "1", "fresh"]
    assert rows[2][:3] == ["a", "1", "2,000"]


def test_at_80_columns_nothing_is_cut(
    weft: Weft, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = "ip-10-0-132-217.eu-central-1.compute.internal"
    for index in range(2):
        where = {"Hostname": node, "gpu": str(index), "UUID": f"GPU-b{index}"}
        prometheus.add(USED, 65_536.0, **where)
    monkeypatch.setenv("COLUMNS", "80")
    printed = weft("metrics", "--url", prometheus.url).out
    assert {"65,536", "1,000", "missing", "fresh"} & set(printed.split()) >= {"65,536", "1,000"}
    assert node in printed
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    findings = weft("metrics", "--check", "--url", prometheus.url).out
    assert max(map(len, findings.splitlines())) <= 80
    assert "DCGM_FI_PROF_SM_ACTIVE" in findings


def test_the_same_as_json(weft: Weft, prometheus: FakePrometheus) -> None:
    prometheus.age_s = 50
    said = weft("metrics", "--url", prometheus.url, "--output", "json")
    first = json.loads(said.out)[0]
    assert (first["node"], first["gpu"]) == ("a", 0)
    assert first["metrics"]["memory_used_mib"]["value"] == 1000
    assert first["metrics"]["memory_used_mib"]["state"] == "stale"
    assert 50 <= first["metrics"]["memory_used_mib"]["age_s"] < 110


def test_a_check_that_finds_little_names_lines_to_add(
    weft: Weft, prometheus: FakePrometheus
) -> None:
    said = weft("metrics", "--check", "--url", prometheus.url)
    assert said.code == 0
    assert "sm_active_ratio: no GPU" in said.out
    assert "(DCGM field 1002): DCGM_FI_PROF_SM_ACTIVE, gauge" in said.out
    assert "good    memory_used_mib: all 2 GPUs" in said.out
    assert "wrong" not in said.out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"apart_s": 60.0}, "samples are 60 s apart, telemetry.scrapeSeconds is 15"),
        ({"age_s": 120.0}, "s old"),
        ({"age_s": -30.0}, "s in the future"),
        ({"series": []}, "no sample of any known metric"),
    ],
)
def test_what_is_wrong_is_exit_code_1(
    weft: Weft, prometheus: FakePrometheus, change: dict[str, Any], says: str
) -> None:
    for name, value in change.items():
        setattr(prometheus, name, value)
    said = weft("metrics", "--check", "--url", prometheus.url)
    assert said.code == 1
    assert says in said.out


def test_gpus_that_lack_a_needed_metric_and_series_without_uuid(
    weft: Weft, prometheus: FakePrometheus
) -> None:
    prometheus.add(UTIL, 5.0, Hostname="b", gpu="0")
    said = weft("metrics", "--check", "--url", prometheus.url, "--output", "json")
    found = {one["text"]: one["level"] for one in json.loads(said.out)}
    assert found["memory_used_mib: 2 of 3 GPUs, not b/0"] == "wrong"
    assert found["1 of 5 series have no UUID"] == "advice"
    assert said.code == 1


def test_series_that_name_no_node_are_told_with_an_example(
    weft: Weft, prometheus: FakePrometheus
) -> None:
    prometheus.add(USED, 5.0, gpu="0", job="exporter-without-node")
    said = weft("metrics", "--check", "--url", prometheus.url)
    assert "1 series belong to no GPU (node)" in said.out
    assert "exporter-without-node" in said.out


def test_no_server_is_one_line(weft: Weft, prometheus: FakePrometheus) -> None:
    said = weft("metrics")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("weft: error: --url: is missing")
    prometheus.status = 503
    said = weft("metrics", "--url", prometheus.url)
    assert (said.code, said.err.count("\n")) == (1, 1)
    said = weft("metrics", "--url", "http://127.0.0.1:1")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert "127.0.0.1:1" in said.err


def test_the_configurations_server_and_names_count(
    weft: Weft, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    prometheus.series = []
    prometheus.add("our_memory_bytes", 3 * 2**30, Hostname="a", gpu="0")
    own = {"name": "our_memory_bytes", "metric": "memory_used_mib", "scale": 2**-20}
    (tmp_path / "weft.yaml").write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
        f"telemetry: {json.dumps({'url': prometheus.url, 'names': [own]})}\n"
    )
    said = weft("metrics", "--config", tmp_path / "weft.yaml", "--output", "json")
    assert json.loads(said.out)[0]["metrics"]["memory_used_mib"]["value"] == 3072


def test_a_slow_scrape_that_is_configured_so_is_advised_against(
    weft: Weft, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    prometheus.apart_s = 60.02  # no two scrapes are apart to the millisecond
    (tmp_path / "weft.yaml").write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
        f"telemetry: {{url: '{prometheus.url}', scrapeSeconds: 60}}\n"
    )
    said = weft("metrics", "--check", "--config", tmp_path / "weft.yaml")
    assert said.code == 0
    assert "advice  samples are 60 s apart: fast growth of memory is seen too late" in said.out


def test_a_gpu_whose_samples_are_old_and_a_servers_warning_are_wrong(
    weft: Weft, prometheus: FakePrometheus
) -> None:
    prometheus.old = {"GPU-1": 50.0}
    prometheus.warnings = ["No StoreAPIs matched"]
    said = weft("metrics", "--check", "--url", prometheus.url)
    assert said.code == 1
    assert re.search(r"wrong   memory_used_mib is 5\d s old on a/1\n", said.out)
    assert "wrong   the server warns: No StoreAPIs matched" in said.out
    assert f"good    asked: {prometheus.url}" in said.out


def kubeconfig(tmp_path: Path, url: str) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    return path


async def in_a_cluster(weft: Weft, tmp_path: Path, nodes: tuple[str, ...], *words: Any) -> Said:
    """The output beside a cluster with these nodes, of two GPUs each, on 127.0.0.1."""

    async def story() -> Said:
        async with FakeApiServer() as api:
            for name in nodes:
                gpus = [{"index": index, "memory_mib": 16_000} for index in range(2)]
                marks = {
                    "weft.dev/inventory": json.dumps({"gpus": gpus}),
                    **AGENT_BY_NAME,
                }
                at = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
                meta = {"name": name, "annotations": marks}
                api.add("nodes", {"metadata": meta, "status": at})
            access = kubeconfig(tmp_path, api.url)
            return await asyncio.to_thread(weft, "metrics", *words, "--kubeconfig", access)

    return await story()


async def test_with_a_cluster_nodes_without_metrics_are_told(
    weft: Weft, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    said = await in_a_cluster(weft, tmp_path, ("a", "silent"), "--check", "--url", prometheus.url)
    assert said.code == 1
    assert "wrong   node silent: 2 GPUs without metrics" in said.out
    assert "memory_used_mib: 2 of 4 GPUs, not silent/0, silent/1" in said.out


async def test_nodes_that_the_exporter_calls_otherwise_are_told_with_both_names(
    weft: Weft, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    said = await in_a_cluster(weft, tmp_path, ("gpu-1",), "--check", "--url", prometheus.url)
    assert said.code == 1
    assert (
        "4 series belong to no GPU (node): their labels say Hostname=a; the nodes are called gpu-1,"
        in (said.out)
    )
    assert "→ label them with the node's name" in said.out


async def test_without_a_server_the_ways_to_name_one_are_told(weft: Weft, tmp_path: Path) -> None:
    said = await in_a_cluster(weft, tmp_path, ("a",), "--check")
    assert (said.code, said.err.count("\n")) == (2, 1)
    for way_on in (
        "name a metrics server",
        "kubectl port-forward",
        "telemetry.discover: exporters",
    ):
        assert way_on in said.err


async def test_exporters_are_asked_at_the_nodes_addresses(
    weft: Weft, prometheus: FakePrometheus, tmp_path: Path
) -> None:
    page = prometheus.url.replace("127.0.0.1", "{address}") + "/metrics"
    config = tmp_path / "weft.yaml"
    config.write_text(
        f"apiVersion: weft.dev/v1\nkind: WeftConfiguration\ntelemetry: {{exporters: '{page}'}}\n"
    )
    said = await in_a_cluster(weft, tmp_path, ("a",), "--check", "--config", config)
    assert "good    asked: exporters" in said.out
    assert "memory_used_mib: 1 of 2 GPUs, not a/1" in said.out
    prometheus.status = 500
    said = await in_a_cluster(weft, tmp_path, ("a",), "--check", "--config", config)
    assert (said.code, said.out) == (1, "")
    assert "/metrics: 500" in said.err

"""Progress that applications count decides who stays: on a real control plane, a real Prometheus.

    applications' counters ──▶ Prometheus ──▶ `weft scheduler` ──Eviction──▶ hollow kubelet

Only what the applications count is made up. Needs Prometheus: `apt-get install -y prometheus`.
"""

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects
from processes import HttpThread, Server, free_ports
from test_hollow_kubelet import hollow
from test_telemetry_live import Scene, named, program, why  # noqa: F401
from weft_process import ALONE, GFD, GIB, resources, sigkill, weft

from fakes.hollow_kubelet import HollowOptions
from weft.core.policies.catalog import built_in
from weft.core.record import read, replay

SYSTEM, NAME, KEY = "kube-system", "weft-observed", "observed.v1.json"
ALONE_PER_S = 100.0
MODEL = "Tesla-T4"
NAMES = ("serve", "noisy", "calm")
PROMETHEUS = """\
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: applications
  honor_labels: true
  static_configs: [{{targets: ["{address}"]}}]
"""
WEFT = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
profiles: [{{schedulerName: weft, policies: [{{name: interference}}]}}]
interference: {{table: "{table}"}}
telemetry:
  {{url: "{url}", intervalSeconds: 1, scrapeSeconds: 1, windowSeconds: 30, horizonSeconds: 4}}
"""


class FakeApplications(HttpThread):
    """Plays pods that count their work over HTTP: each so many units a second, as it is told."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._per_s: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._at_s = time.monotonic()
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = fake.page().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), Handler))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def does(self, **per_s: float) -> None:
        """From now on these pods (`_` for `-`) do so much a second."""
        with self._lock:
            self._go_on()
            self._per_s |= {name.replace("_", "-"): rate for name, rate in per_s.items()}

    def page(self) -> str:
        with self._lock:
            self._go_on()
            lines = [
                f'weft_progress_total{{namespace="{self._namespace}",pod="{name}"}} {done:.3f}'
                for name, done in self._done.items()
            ]
        return "\n".join(["# TYPE weft_progress_total counter", *lines, ""])

    def _go_on(self) -> None:
        now_s = time.monotonic()
        for name, rate in self._per_s.items():
            self._done[name] = self._done.get(name, 0.0) + rate * (now_s - self._at_s)
        self._at_s = now_s


class Stage:
    """All that outlives one process of Weft."""

    def __init__(self, plane: ControlPlane, namespace: str, tmp_path: Path, server: Server) -> None:
        self.plane, self.namespace, self.server = plane, namespace, server
        self.settings, self.folder = tmp_path / "weft.yaml", tmp_path

    @contextlib.contextmanager
    def process(self, decisions: str) -> Iterator[Scene]:
        """One process, which leads at once."""
        record = ("--decisions", str(self.folder / decisions))
        options = ("--config", str(self.settings), *record, ALONE)
        with weft(self.plane, self.folder, *options) as process:
            yield Scene(self.plane, self.namespace, process, self.server)


def observed(maps: Objects) -> Any:
    """The bans in the ConfigMap."""
    data = next((one.get("data") or {} for one in maps if one["metadata"]["name"] == NAME), {})
    return json.loads(data.get(KEY, "{}")).get("bans")


def nothing_observed(plane: ControlPlane) -> None:
    """The ConfigMap as deploy/scheduler.yaml ships it."""
    with contextlib.suppress(ApiError):
        plane.api.delete("ConfigMap", NAME, SYSTEM)
    with contextlib.suppress(ApiError):
        plane.api.create({"kind": "Namespace", "metadata": {"name": SYSTEM}})
    plane.api.create({"kind": "ConfigMap", "metadata": {"name": NAME}}, SYSTEM)


@pytest.fixture
def applications(namespace: str) -> Iterator[FakeApplications]:
    with FakeApplications(namespace) as played:
        yield played


@pytest.fixture
def stage(
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    program: str,  # noqa: F811
    applications: FakeApplications,
) -> Iterator[Stage]:
    """Two nodes with a card each."""
    nothing_observed(control_plane)
    for name in ("open", "held"):
        labels = {**GFD, "nvidia.com/gpu.count": "1"}
        control_plane.create_fake_node(name, resources(1), labels=labels)
    table = tmp_path / "table.json"
    table.write_text(json.dumps({one: dict.fromkeys(NAMES, 1.02) for one in NAMES}))
    (port,) = free_ports(1)
    config = tmp_path / "prometheus.yml"
    config.write_text(PROMETHEUS.format(address=applications.address))
    server = Server(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        tmp_path / "prometheus.log",
    )
    made = Stage(control_plane, namespace, tmp_path, server)
    made.settings.write_text(WEFT.format(url=f"http://127.0.0.1:{port}", table=table))
    server.start()
    try:
        with hollow(control_plane, HollowOptions(nodes="", settings=GIB)):
            yield made
    finally:
        server.kill()


def add(now: Scene, name: str, node: str, job_class: str, **meta: Any) -> None:
    """A pod of the application that its name begins with."""
    marks = {
        "weft.dev/application": name.partition("-")[0],
        "weft.dev/class": job_class,
        "weft.dev/solo-rate": f"A100=400, {MODEL}={ALONE_PER_S:g}",
    }
    now.add(name, 4_000, node, annotations=marks, **meta)


def pair(now: Scene, node: str, noisy: str, **meta: Any) -> None:
    """A latency-critical pod, and a best-effort one beside it."""
    add(now, f"serve-{node}", node, "latency-critical")
    now.until_bound(f"serve-{node}")
    add(now, noisy, node, "best-effort", **meta)
    now.until_bound(noisy)


def test_who_slows_a_critical_pod_down_goes_and_stays_away_also_after_a_crash(
    stage: Stage, applications: FakeApplications
) -> None:
    plane = stage.plane
    with stage.process("first.jsonl") as now:
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
        now.api.create(budget, now.namespace)
        pair(now, "open", "noisy-0")
        pair(now, "held", "noisy-guarded", labels={"app": "guarded"})
        applications.does(serve_open=ALONE_PER_S, serve_held=ALONE_PER_S)
        until_explained(now, "serve-open", "exceeded in 0 of the last 3 windows")
        assert not [
            one for one in now.api.list("Event", now.namespace) if one["reason"] == "SlowedDown"
        ]
        applications.does(serve_open=ALONE_PER_S / 2, serve_held=ALONE_PER_S / 2)
        text = now.until_told("noisy-0", "SlowedDown")
        assert text.startswith(f"evicted: {now.namespace}/serve-open on GPU 0 was ")
        assert "times slower than alone (allowed: 1.10) in 2 of the last 3 windows" in text
        now.until_gone("noisy-0")
        assert "disruption budget" in now.until_told("noisy-guarded", "EvictionBlocked")
        plane.api.wait_for(observed, "ConfigMap", SYSTEM, timeout_s=20)
        stays_apart(now, "noisy-again")
        on_record(now, stage.folder / "first.jsonl", "noisy-again")
        sigkill(now.process)
    with stage.process("second.jsonl") as now:
        stays_apart(now, "noisy-late")
        add(now, "calm-0", "open", "best-effort")
        now.until_bound("calm-0")
        pods = now.api.list("Pod", now.namespace)
        names = {one["metadata"]["name"] for one in pods if one["spec"].get("nodeName")}
        assert names == {"serve-open", "serve-held", "noisy-guarded", "calm-0"}
        guarded = now.api.get("Pod", "noisy-guarded", now.namespace)
        assert "deletionTimestamp" not in guarded["metadata"]
        now.process.end(15)
    for name in ("first.jsonl", "second.jsonl"):
        is_decided_again_alike(stage.folder / name)


def until_explained(now: Scene, name: str, pattern: str) -> str:
    """Waits until `weft explain` says this of the pod, and returns all that it says."""
    told: list[str] = []

    def said() -> bool:
        told[:] = [now.explained(name)]
        return re.search(pattern, told[0]) is not None

    try:
        now.process.wait_ready(said, 30)
    except TimeoutError as error:
        error.add_note("\n".join(told))
        raise
    return told[0]


def stays_apart(now: Scene, name: str) -> None:
    """Its application may be anywhere but beside `serve`, of which there is one on each card."""
    add(now, name, "open", "best-effort")

    def refused(pods: Objects) -> Object | None:
        found = named(pods, (name,))
        return found[0] if found and "GPU nodes: " in why(pods, name) else None

    now.until(refused)
    text = until_explained(now, name, "kept apart")
    assert re.search(rf"kept apart from serve on {MODEL} for another (2\d|30) min", text), text


def on_record(now: Scene, decisions: Path, word: str) -> None:
    """Wait until the file says so: it is written once a second."""
    now.process.wait_ready(lambda: word in decisions.read_text(), 20)


def is_decided_again_alike(decisions: Path) -> None:
    """Without a cluster; the last line of a process that was killed may be torn."""
    whole = decisions.read_text()
    decisions.write_text(whole[: whole.rindex("\n") + 1])
    verdict = replay(*read(decisions), built_in().create)
    assert verdict.identical, verdict

"""deploy/monitoring on a real Prometheus that scrapes a real Weft and a played agent."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from control_plane import ControlPlane
from needed_tools import NO_PROMETHEUS, lacking
from processes import Server, free_ports
from weft_process import ALONE, Weft, all_bound, nodes, pod, weft

from fakes.exporter import FakeExporter, PlayedGpu, PlayedPod
from weft.cluster.config.form import API_VERSION, KIND

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
# The played agent has no containers to start; a rate needs something to have been counted.
LAST = ("namespace:weft_gpus_held", "namespace:weft_gpus_used", "rate(weft_binds_total[1m])")
EMPTY_HERE = ("Containers started, by outcome",)


@pytest.fixture(scope="module")
def programs() -> tuple[str, str]:
    """prometheus and promtool."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] is None or found[1] is None:
        lacking(NO_PROMETHEUS)
    return found[0], found[1]


def test_prometheus_takes_the_configuration_and_the_rules(
    programs: tuple[str, str], tmp_path: Path
) -> None:
    """Debian's Prometheus is built without Kubernetes: it is shown the rest."""
    shipped = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    roles = [job.pop("kubernetes_sd_configs")[0]["role"] for job in shipped["scrape_configs"]]
    assert roles == ["endpoints", "pod"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(shipped))
    shutil.copy(MONITORING / "rules.yaml", tmp_path)
    command = [programs[1], "check", "config", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    assert f"{sum(len(group['rules']) for group in groups)} rules found" in done.stdout


def test_the_jobs_keep_what_is_deployed() -> None:
    jobs = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())["scrape_configs"]
    kept = [job["relabel_configs"][0] for job in jobs]
    assert [rule["action"] for rule in kept] == ["keep", "keep"]
    service = _only(_deployed("scheduler"), "Service")
    (port,) = service["spec"]["ports"]
    assert kept[0]["regex"] == f"{service['metadata']['name']};{port['name']}"
    pod = _only(_deployed("agent"), "DaemonSet")["spec"]["template"]
    (port,) = pod["spec"]["containers"][0]["ports"]
    label = pod["metadata"]["labels"]["app.kubernetes.io/name"]
    assert kept[1]["regex"] == f"{label};{port['name']}"


def test_the_operators_objects_say_the_same() -> None:
    """They find what the chart installs, and have the same rules."""
    items = {
        item["kind"]: item
        for item in yaml.safe_load_all((MONITORING / "service-monitors.yaml").read_text())
    }
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    assert items["PrometheusRule"]["spec"] == rules
    for kind, field in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        (endpoint,) = items[kind]["spec"][field]
        assert endpoint["honorLabels"], "the operator would write namespace and pod over ours"
        assert [r["targetLabel"] for r in endpoint["relabelings"]] == ["instance"]
    service = _only(_deployed("scheduler"), "Service")
    wanted = items["ServiceMonitor"]["spec"]
    assert wanted["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {p["name"] for p in service["spec"]["ports"]} == {wanted["endpoints"][0]["port"]}
    agent = _only(_deployed("agent"), "DaemonSet")["spec"]["template"]
    wanted = items["PodMonitor"]["spec"]
    assert wanted["selector"]["matchLabels"].items() <= agent["metadata"]["labels"].items()
    ports = {port["name"] for port in agent["spec"]["containers"][0]["ports"]}
    assert ports == {wanted["podMetricsEndpoints"][0]["port"]}


def _deployed(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MONITORING.parent / f"{name}.yaml").read_text()))


def _only(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (item for item in items if item["kind"] == kind)
    return found


class Scraped:
    """A Prometheus that has scraped a Weft with two pods, and the agent of their node."""

    def __init__(self, url: str, scheduler: Weft, agent: FakeExporter) -> None:
        self.url, self.scheduler, self.agent = url, scheduler, agent

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The answer's series; an error if it is none."""
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    def get(self, what: str, **options: str) -> dict[str, Any]:
        """The answer's data."""
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(options)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        alerts = self.get("alerts")["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def seen(self, query: str) -> bool:
        """Tells whether there is an answer yet."""
        try:
            return bool(self.ask(query))
        except OSError:
            return False


@pytest.fixture
def scraped(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, programs: tuple[str, str]
) -> Iterator[Scraped]:
    nodes(control_plane, 1)
    playing = PlayedPod(namespace, "p0", own={"DCGM_FI_DEV_GPU_UTIL": 25.0})
    card = PlayedGpu("node-0", 0, used_mib=4_000, util_percent=50, pods=(playing,))
    (port,) = free_ports(1)
    settings = tmp_path / "weft.yaml"
    settings.write_text(f"{{apiVersion: {API_VERSION}, kind: {KIND}, usage: {{labels: [team]}}}}")
    options = ALONE, "--log-format=json", f"--config={settings}"
    with weft(control_plane, tmp_path, *options) as process, FakeExporter([card]) as exporter:
        limits = {"elasticgpu.io/gpu-memory": 8_192}
        made = [pod(f"p{n}", "weft", limits) for n in range(2)]
        made[0]["metadata"]["labels"] = {"team": "red"}
        control_plane.create_pods(namespace, made)
        control_plane.api.wait_for(all_bound(2), "Pod", namespace, timeout_s=20)
        found = process.until(r"metrics and explain on \S+:(\d+)")
        scheduler = f"127.0.0.1:{found[1]}"
        config = tmp_path / "prometheus.yml"
        _at_once(tmp_path / "rules.yaml")
        config.write_text(yaml.safe_dump(_of_this_machine(scheduler, exporter.address)))
        options = [f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
        options += [f"--storage.tsdb.path={tmp_path / 'data'}"]
        server = Server([programs[0], *options], tmp_path / "prometheus.log")
        scraped = Scraped(f"http://127.0.0.1:{port}", process, exporter)
        server.start()
        try:
            server.wait_ready(lambda: all(map(scraped.seen, LAST)), 60)
            yield scraped
        finally:
            server.kill()


def _of_this_machine(scheduler: str, agent: str) -> dict[str, Any]:
    """The shipped jobs and rules; only where the targets are is not asked of Kubernetes."""
    shipped = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    for job, target in zip(shipped["scrape_configs"], (scheduler, agent), strict=True):
        for key in ("kubernetes_sd_configs", "relabel_configs"):
            del job[key]
        job |= {"static_configs": [{"targets": [target]}], "scrape_interval": "500ms"}
        job["scrape_timeout"] = "400ms"
    shipped["global"] = {"evaluation_interval": "500ms"}
    return dict(shipped)


def _at_once(path: Path) -> None:
    """The shipped rules, but that no alert waits before it fires."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)
    path.write_text(yaml.safe_dump(rules))


def test_every_query_of_the_dashboard_has_an_answer_and_hours_are_right(
    scraped: Scraped, namespace: str
) -> None:
    """Grafana's own words stand for an hour here."""
    for title, query in QUERIES:
        asked = query.replace("$__range_s", "3600").replace("$__range", "1h")
        asked = re.sub(r"\$__rate_interval", "1m", asked)
        assert "$" not in asked, title
        found = scraped.ask(asked)
        assert found or title in EMPTY_HERE, f"{title}: {asked}"
    for series, gpus in (("held", 1.0), ("used", 0.25)):
        (one,) = scraped.ask(f"namespace:weft_gpus_{series}")
        assert one["metric"]["namespace"] == namespace
        assert float(one["value"][1]) == gpus
    (one,) = scraped.ask("workload:weft_gpus_held")
    assert one["metric"]["workload"] == f"{namespace}/(no owner)"
    (memory,) = scraped.ask("workload:weft_gpu_memory_held_gib")
    assert (float(one["value"][1]), float(memory["value"][1])) == (1.0, 16.0)
    teams = {
        one["metric"]["value"]: one for one in scraped.ask('label:weft_gpus_held{label="team"}')
    }
    assert {team: float(one["value"][1]) for team, one in teams.items()} == {
        "red": 0.5,
        "(no label)": 0.5,
    }


COUNTED_FROM_THE_START = (
    'weft_evictions_total{outcome="evicted"}',
    'weft_recalls_total{outcome="blocked"}',
    'weft_slowness_evictions_total{outcome="failed"}',
    'weft_lessons_writes_total{outcome="failed"}',
    'weft_watch_skipped_objects_total{resource="pods"}',
    "weft_decision_faults_total",
    "weft_pod_faults_total",
    "weft_out_of_gpu_memory_total",
)
"""A series that does not exist at 0 does not seem to grow when it is 1."""
THERE = (
    "weft_ready == 1",
    'leader_election_master_status{job=~".*weft-scheduler"} == 1',
    'rest_client_requests_total{code="201"}',
    'weft_binds_total{outcome="Bound"}',
    "weft_gpus_overbooked == 0",
    "weft_pods_stuck == 0",
    'weft_ledger_gpus_out_of_service{node="node-0"} == 0',
    'weft_pending_pods_oldest_seconds{reason="GPU_TOO_SMALL"} > 0',
)


def test_alerts_ask_for_what_a_real_weft_tells_and_fire_when_it_is_gone(
    control_plane: ControlPlane, namespace: str, scraped: Scraped
) -> None:
    limits = {"elasticgpu.io/gpu-memory": 90_000}
    control_plane.create_pods(namespace, [pod("large", "weft", limits)])
    until(lambda: scraped.ask("weft_pending_pods"))
    for query in (*THERE, *COUNTED_FROM_THE_START):
        assert scraped.ask(query), query
    groups = scraped.get("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    assert scraped.firing() == set()
    scraped.agent.mood = "broken"
    scraped.scheduler.kill()
    until(lambda: {"WeftSchedulerDown", "WeftAgentDown"} <= scraped.firing())
    pods = {p["metadata"]["name"]: p for p in control_plane.api.list("Pod", namespace)}
    lines = [json.loads(line) for line in scraped.scheduler.said.splitlines()]
    about = {line["pod"]: line for line in lines if "cycle" in line}
    assert sorted(about) == sorted(f"{namespace}/{name}" for name in pods)
    for name, item in pods.items():
        line = about[f"{namespace}/{name}"]
        assert line["podUID"] == item["metadata"]["uid"]
        assert line.get("node") == item["spec"].get("nodeName")


def until(holds: Callable[[], object], most_s: float = 30) -> None:
    deadline = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)

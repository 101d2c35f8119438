"""The whole loop on a real control plane and a real Prometheus: what GPUs do decides.

    hollow kubelet ──▶ exporter ──▶ Prometheus ──▶ `weft scheduler` ──▶ Binding ──▶ hollow kubelet

What the cards use follows from the pods that were bound to them; only what pods do there is made
up. Needs Prometheus: `apt-get install -y prometheus`.
"""

import datetime
import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import Object, Objects
from needed_tools import NO_PROMETHEUS, lacking
from processes import Server, free_ports
from test_hollow_kubelet import Hollow, hollow
from weft_process import ALONE, CARD_MIB, GFD, GIB, Weft, pod, resources, weft

from fakes.exporter import FakeExporter, PlayedGpu, PlayedPod
from fakes.hollow_kubelet import HollowOptions
from fakes.hollow_pod import HollowPod
from fakes.hollow_profile import HollowProfile
from weft.cluster.scheduler.explain_client import live_explanation
from weft.core.explain.renderer import lines_of
from weft.core.policies.catalog import built_in
from weft.core.record import explain, read, replay

BUSY = ("busy", 0)
"""A card on which somebody works whom no API object shows."""
PATIENCE_S = 30.0
ASKED_MIB, BORROWED_MIB = 10_000, 8_000
"""Together more than a card, but what both use is less. All of them together are no more than the
node's cards: beyond what a device plugin advertises the kubelet admits no pod."""
PROMETHEUS = """\
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: dcgm-exporter
  static_configs: [{{targets: ["{address}"]}}]
"""
WEFT = """\
apiVersion: weft.dev/v1
kind: WeftConfiguration
profiles: [{{schedulerName: weft, policies: [{{name: auto}}]}}]
limits: {{harvest: 2.5}}
telemetry:
  {{url: "{url}", intervalSeconds: 1, scrapeSeconds: 1, windowSeconds: 30, horizonSeconds: 4}}
"""


class Cards(FakeExporter):
    """Plays what the hollow kubelet's cards use at the moment it is asked."""

    def __init__(self, kubelet: Hollow) -> None:
        self._kubelet = kubelet
        super().__init__()

    @property
    def gpus(self) -> list[PlayedGpu]:  # type: ignore[override]
        """With each pod's own memory, as newer exporters tell it."""
        found = []
        for use in self._kubelet.ask(lambda one: one.gpu_use()):
            load = 0.9 if (use.node, use.gpu) == BUSY else 0.05
            pods = tuple(
                PlayedPod(*name.split("/"), own={"DCGM_FI_DEV_FB_USED": mib})
                for name, mib in use.by_pod.items()
            )
            found.append(
                PlayedGpu(
                    use.node,
                    use.gpu,
                    use.uuid,
                    used_mib=use.used_mib,
                    free_mib=use.memory_mib - use.used_mib,
                    sm_active=load,
                    dram_active=load,
                    util_percent=100 * load,
                    pods=pods,
                )
            )
        return found

    @gpus.setter
    def gpus(self, _: object) -> None:
        """Refuses: played GPUs are not for others to say."""


class Scene:
    """Everything that the story touches."""

    def __init__(self, plane: ControlPlane, namespace: str, process: Weft, server: Server) -> None:
        self.plane, self.namespace, self.api = plane, namespace, plane.api
        self.process, self.prometheus = process, server
        self.url = f"http://127.0.0.1:{process.until(r'explain on [0-9.]+:([0-9]+)')[1]}"

    def add(self, name: str, memory_mib: int, node: str, **meta: object) -> None:
        """A pod for one node, which shares one card."""
        asked = pod(name, "weft", {"elasticgpu.io/gpu-memory": memory_mib}, **meta)
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.plane.create_pods(self.namespace, [asked])

    def until(self, wanted: Callable[[Objects], object], kind: str = "Pod") -> None:
        self.api.wait_for(wanted, kind, self.namespace, timeout_s=PATIENCE_S)

    def until_bound(self, *names: str) -> list[int]:
        """The card of each."""
        self.until(lambda pods: all(one["spec"].get("nodeName") for one in named(pods, names)))
        found = [self.api.get("Pod", name, self.namespace)["metadata"] for name in names]
        marks = [json.loads(one["annotations"]["weft.dev/placement"]) for one in found]
        return [mark["shares"][0][1] for mark in marks]

    def until_told(self, name: str, reason: str) -> str:
        """The message of the event of this reason about the pod."""
        told: list[Object] = []

        def said(events: Objects) -> bool:
            told[:] = [one for one in events if one["involvedObject"]["name"] == name]
            return any(one["reason"] == reason for one in told)

        try:
            self.until(said, "Event")
        except TimeoutError as error:
            error.add_note("\n".join(f"{one['reason']}: {one['message']}" for one in told))
            raise
        return next(one["message"] for one in told if one["reason"] == reason)

    def until_gone(self, name: str) -> None:
        self.until(lambda pods: name not in {one["metadata"]["name"] for one in pods})

    def explained(self, name: str) -> str:
        """The text of `weft explain` for people, without starting a command for it."""
        page = f"{self.url}/explain/pods/{self.namespace}/{name}"
        with urllib.request.urlopen(page, timeout=10) as answer:
            return "\n".join(lines_of(live_explanation(answer.read())))

    def explained_by_command(self, name: str) -> str:
        command = [
            sys.executable,
            "-m",
            "weft.cli.main",
            "explain",
            "pod",
            f"{self.namespace}/{name}",
            "--url",
            self.url,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def until_fresh(self, count: int) -> None:
        """Until the used memory of so many cards was measured just now."""
        line = f'weft_telemetry_gpus{{metric="memory_used_mib",state="fresh"}} {count}.0\n'

        def is_so() -> bool:
            with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
                return line in answer.read().decode()

        self.process.wait_ready(is_so, PATIENCE_S)

    def bound_long_ago(self, name: str) -> None:
        """The API says that it was bound two minutes ago: nobody waits for a pod's first minute."""
        status = self.api.get("Pod", name, self.namespace)["status"]
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=2)
        for one in status["conditions"]:
            if one["type"] == "PodScheduled":
                one["lastTransitionTime"] = then.strftime("%Y-%m-%dT%H:%M:%SZ")
        change = {"status": {"conditions": status["conditions"]}}
        self.api.patch("Pod", name, change, self.namespace, part="status")


def named(pods: Objects, names: tuple[str, ...]) -> Objects:
    return [one for one in pods if one["metadata"]["name"] in names]


@pytest.fixture
def program() -> str:
    """Prometheus; without it the test is left out, visibly, but not in CI."""
    return shutil.which("prometheus") or lacking(NO_PROMETHEUS)


@pytest.fixture
def uses_mib() -> dict[str, int]:
    """Memory use of the pods, by name; 2,000 MiB unless something else is said."""
    return {}


@pytest.fixture
def now(
    control_plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    program: str,
    uses_mib: dict[str, int],
) -> Iterator[Scene]:
    """Two nodes, one of them busy, and all that looks at them."""
    for name, cards in (("lends", 3), ("busy", 2)):
        labels = {**GFD, "nvidia.com/gpu.count": str(cards)}
        control_plane.create_fake_node(name, resources(cards), labels=labels)

    def profile(one: HollowPod) -> HollowProfile:
        name = one.metadata.name
        return HollowProfile(memory_mib=lambda second: uses_mib.get(name, 2_000), sample_s=0.25)

    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = HollowOptions(nodes="", settings=GIB, profile=profile)
    with hollow(control_plane, options) as kubelet, Cards(kubelet) as exporter:
        config = tmp_path / "prometheus.yml"
        config.write_text(PROMETHEUS.format(address=exporter.address))
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
        server.start()
        settings = tmp_path / "weft.yaml"
        settings.write_text(WEFT.format(url=url))
        try:
            record = ("--decisions", str(tmp_path / "decisions.jsonl"))
            with weft(
                control_plane, tmp_path, "--config", str(settings), *record, ALONE
            ) as process:
                yield Scene(control_plane, namespace, process, server)
        finally:
            server.kill()


def test_what_gpus_do_places_lends_takes_back_and_counts_for_nothing_when_unknown(
    now: Scene, uses_mib: dict[str, int], tmp_path: Path
) -> None:
    """One story, for pods need half a minute until their memory is believed."""
    lenders = ("lender-0", "lender-1", "lender-2")
    for name in lenders:
        now.add(name, ASKED_MIB, "lends")
    cards = dict(zip(now.until_bound(*lenders), lenders, strict=True))
    assert len(cards) == 3
    now.until(lambda pods: all(one["status"]["phase"] == "Running" for one in pods))
    for name in lenders:
        now.bound_long_ago(name)
    now.until_fresh(5)
    is_placed_by_measured_load(now)
    lent = borrow(now)
    takes_back(now, uses_mib, cards[lent["borrower"]])
    a_budget_holds(now, uses_mib, cards[lent["guarded"]])
    goes_by_requests_while_nobody_looks(now, *(set(cards) - set(lent.values())))
    assert now.process.end(signal.SIGTERM) == 0
    is_all_on_record(tmp_path / "decisions.jsonl")


def is_placed_by_measured_load(now: Scene) -> None:
    now.add("calm", 3_000, "busy")
    assert now.until_bound("calm") == [1]
    text = now.explained_by_command("calm")
    assert "metrics of GPU 1, read " in text
    assert "sm_active_ratio 0.05, " in text
    assert "without metrics, decided again now: busy, GPU 0" in text


def borrow(now: Scene) -> dict[str, int]:
    """Two pods wait until lenders' idle memory is believed; the card that each got."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    now.api.create(budget, now.namespace)
    now.add("borrower", BORROWED_MIB, "lends")
    now.add("guarded", BORROWED_MIB, "lends", labels={"app": "guarded"})
    first, second = now.until_bound("borrower", "guarded")
    assert first != second, "no more is lent of a card than it has left"
    text = now.explained("borrower")
    assert f"harvested {ASKED_MIB + BORROWED_MIB - CARD_MIB:,} MiB of GPU {first}" in text
    assert "without metrics, decided again now: nowhere" in text
    return {"borrower": first, "guarded": second}


def takes_back(now: Scene, uses_mib: dict[str, int], lender: str) -> None:
    uses_mib[lender] = ASKED_MIB
    text = now.until_told("borrower", "BorrowedMemoryNeeded")
    assert text.startswith("evicted: the pods of GPU ")
    assert f"{now.namespace}/{lender} grew from 2,000 to {ASKED_MIB:,} MiB" in text
    now.until_gone("borrower")


def a_budget_holds(now: Scene, uses_mib: dict[str, int], lender: str) -> None:
    """No controller runs here that would count the budget: so it never allows anything."""
    uses_mib[lender] = ASKED_MIB
    assert "disruption budget" in now.until_told("guarded", "EvictionBlocked")
    guarded = now.api.get("Pod", "guarded", now.namespace)
    assert "deletionTimestamp" not in guarded["metadata"]
    now.api.delete("PodDisruptionBudget", "keep", now.namespace, "policy/v1")
    now.until_gone("guarded")


def goes_by_requests_while_nobody_looks(now: Scene, idle_card: int) -> None:
    now.prometheus.kill()
    now.until_fresh(0)
    now.add("wants", BORROWED_MIB, "lends")
    now.add("modest", 3_000, "lends")
    now.until_bound("modest")
    assert "STALE" in now.explained("modest")
    waits = f"asked {BORROWED_MIB:,})"
    now.until(lambda pods: waits in why(pods, "wants"))
    assert "without metrics: nowhere either" in now.explained("wants")
    now.prometheus.start()
    assert now.until_bound("wants") == [idle_card]


def is_all_on_record(decisions: Path) -> None:
    """Looks, loans, evictions and all: decided again alike, without a cluster."""
    verdict = replay(*read(decisions), built_in().create)
    assert verdict.identical, verdict
    calm = explain(decisions, "calm", built_in().create)
    assert calm.metrics is not None
    assert calm.metrics.without is not None
    assert (calm.recorded.record.shares[0].gpu, calm.metrics.without.shares[0].gpu) == (1, 0)
    assert (
        explain(decisions, "guarded", built_in().create).recorded.record.outcome == "asked-to-leave"
    )


def why(pods: Objects, name: str) -> str:
    """The message of the pod's PodScheduled condition."""
    found: list[Object] = named(pods, (name,))[0]["status"].get("conditions") or []
    return " ".join(one.get("message", "") for one in found)

"""From a played exporter through a real Prometheus into the engine's signals, and what goes wrong.

But for the last test the API is Weft's fake one. Needs Prometheus: `apt-get install -y prometheus`.
"""

import asyncio
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from control_plane import ControlPlane
from processes import Server, free_ports
from weft_process import ALONE, all_bound, audited, nodes, pod, weft

from weft.framework import Profile
from weft.framework.signals import FRESH, MISSING, STALE, SignalsView
from weft.kube.client import ApiClient
from weft.kube.clock import SystemClock
from weft.kube.config import Endpoint
from weft.kube.credentials import Fixed
from weft.live.cluster import Cluster
from weft.live.looking import Looking, LookingOptions
from weft.policies.fgd import Fgd
from weft.signals.telemetry.join import Why
from weft.signals.telemetry.prometheus import Prometheus, PrometheusOptions
from weft.testing.api_server import FakeApiServer
from weft.testing.exporter import FakeExporter, PlayedGpu, PlayedPod

CARD_MIB = 16_384
PATIENCE_S = 30.0
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
- job_name: dcgm-exporter
  static_configs:
  - targets: ["{address}"]
    labels: {{pod: dcgm-exporter-1, namespace: monitoring, container: exporter}}
"""


class ShiftedClock(SystemClock):
    """The machine's clock, but for a time of day that is `ahead_s` off."""

    ahead_s = 0.0

    def wall(self) -> datetime.datetime:
        return super().wall() + datetime.timedelta(seconds=self.ahead_s)


class Scene:
    """Everything that a test touches."""

    def __init__(self, looking: Looking, live: Cluster, exporter: FakeExporter,
                 server: Server, clock: ShiftedClock) -> None:  # fmt: skip
        self.looking, self.live, self.exporter = looking, live, exporter
        self.server, self.clock = server, clock

    def of(self, column: str) -> dict[tuple[str, int], tuple[float, int]]:
        """(value, freshness) by GPU, as policies see it in the engine."""
        view: SignalsView = self.live.engine.signals
        values, fresh = view.over(self.live.engine.ledger.table, column)
        gpus = [(n.name, g.index) for n in self.live.engine.ledger.table.nodes for g in n.gpus]
        return dict(zip(gpus, zip(values.tolist(), fresh.tolist(), strict=True), strict=True))

    def ages(self, column: str = "memory_used_mib.last") -> list[int]:
        return [age for _, age in self.of(column).values()]

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Look, as ticks do, until it is so."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            await self.looking.look()
            if wanted():
                return
            assert loop.time() < deadline, (self.of("memory_used_mib.last"), self.looking.errors)
            await asyncio.sleep(0.1)


@pytest.fixture
def prometheus(pytestconfig: pytest.Config) -> str:
    """The program; without it the test is left out, visibly, but not in CI."""
    found = shutil.which("prometheus")
    if found:
        return found
    text = "no prometheus command: apt-get install -y prometheus"
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run the tests on Prometheus: {text}", pytrace=False)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stderr.write(f"SKIPPED {text}\n")
    pytest.skip(text)


@pytest.fixture
def played(prometheus: str, tmp_path: Path) -> Iterator[tuple[FakeExporter, Server, str]]:
    """An exporter, a Prometheus that scrapes it each second, and its URL."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with FakeExporter(cards()) as exporter:
        config = tmp_path / "prometheus.yml"
        config.write_text(CONFIG.format(address=exporter.address))
        server = Server(
            [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
            tmp_path / "prometheus.log",
        )  # fmt: skip
        server.start()
        try:
            server.wait_ready(lambda: ready(url))
            yield exporter, server, url
        finally:
            server.kill()


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def cards() -> list[PlayedGpu]:
    """Node a by UUIDs, node b without."""
    return [
        PlayedGpu("a", 0, "GPU-a0", used_mib=4_000, free_mib=12_000, sm_active=0.25),
        PlayedGpu("a", 1, "GPU-a1", used_mib=1_000, free_mib=15_000, util_percent=50),
        PlayedGpu("b", 0, used_mib=2_000, free_mib=14_000, dram_active=0.5),
    ]


def node(name: str, uuids: list[str]) -> dict[str, object]:
    gpus = [{"index": i, "memory_mib": CARD_MIB, **({"uuid": uuid} if uuid else {})}
            for i, uuid in enumerate(uuids)]  # fmt: skip
    return {
        "metadata": {"name": name,
                     "annotations": {"weft.dev/inventory": json.dumps({"gpus": gpus})}},
        "spec": {},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def resident(server: FakeApiServer, name: str) -> str:
    """A pod on GPU 0 of node a; its UID."""
    asks = {"limits": {"weft.dev/gpu-memory": "3000"}}
    server.add("pods", {
        "metadata": {"name": name, "namespace": "d"},
        "spec": {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]},
    })  # fmt: skip
    uid: str = server.get("pods", name, "d")["metadata"]["uid"]
    mark = {"pod": uid, "node": "a", "shares": [[0, 0, 3000, 0, ""]]}
    server.update("pods", name, {
        "metadata": {"annotations": {"weft.dev/placement": json.dumps(mark)}},
        "spec": {"nodeName": "a"},
    }, "d")  # fmt: skip
    return uid


@asynccontextmanager
async def scene(
    played: tuple[FakeExporter, Server, str], pods: tuple[str, ...] = ()
) -> AsyncIterator[Scene]:
    exporter, server, url = played
    clock = ShiftedClock()
    async with FakeApiServer() as api:
        api.add("nodes", node("a", ["GPU-a0", "GPU-a1"]))
        api.add("nodes", node("b", [""]))
        for pod in pods:
            resident(api, pod)
        async with ApiClient(Endpoint(api.url, Fixed()), clock=clock) as client:
            live = Cluster(client, [Profile("weft", [Fgd()])])
            await live.start()
            source = Prometheus(PrometheusOptions(url, timeout_s=1))
            options = LookingOptions(interval_s=1, window_s=20, scrape_s=1, horizon_s=4)
            try:
                yield Scene(Looking(live, source, options), live, exporter, server, clock)
            finally:
                await source.close()
                await live.stop()


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, 3 * PATIENCE_S)

    asyncio.run(limited())


Played = tuple[FakeExporter, Server, str]


def test_what_the_exporter_plays_is_what_policies_see(played: Played) -> None:
    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.ages() == [FRESH] * 3)
            used = {gpu: value for gpu, (value, _) in now.of("memory_used_mib.last").items()}
            assert used == {("a", 0): 4_000, ("a", 1): 1_000, ("b", 0): 2_000}
            assert now.of("sm_active_ratio")["a", 0] == (0.25, FRESH)
            assert now.of("gpu_util_ratio.last")["a", 1] == (0.5, FRESH)
            assert now.of("dram_active_ratio.last")["b", 0] == (0.5, FRESH)
            assert now.of("sm_occupancy_ratio")["a", 0][1] == MISSING  # the exporter has none
            assert now.looking.unjoined == {}
            assert not now.looking.errors
            await now.until(lambda: now.of("window.samples")["a", 0][0] >= 3)

    run(story())


def test_sharing_pods_are_neither_added_up_nor_lost(played: Played) -> None:
    """Prometheus renames the pods' labels, for its own are called so: exported_pod."""
    pods = tuple(
        PlayedPod("d", name, own={"DCGM_FI_DEV_FB_USED": mib})
        for name, mib in (("p", 2_500.0), ("q", 1_500.0))
    )

    async def story() -> None:
        async with scene(played, ("p", "q")) as now:
            card = PlayedGpu("a", 0, "GPU-a0", used_mib=4_200, free_mib=11_800, sm_active=0.5,
                             pods=pods)  # fmt: skip
            now.exporter.gpus = [card, *now.exporter.gpus[1:]]
            await now.until(lambda: len(now.looking.of_pods) == 2)
            assert now.of("memory_used_mib.last")["a", 0][0] == 4_200
            await now.until(lambda: now.of("sm_active_ratio.last")["a", 0] == (0.5, FRESH))
            own = {one.pod: one.value for one in now.looking.of_pods.values()}
            uids = {name: now.live.pod("d", name) for name in ("p", "q")}
            assert own == {uids["p"].metadata.uid: 2_500.0, uids["q"].metadata.uid: 1_500.0}

    run(story())


def test_a_series_that_vanishes_ages_alone_and_comes_back(played: Played) -> None:
    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.ages() == [FRESH] * 3)
            everything = now.exporter.gpus
            now.exporter.gpus = everything[:2]
            await now.until(lambda: now.ages() == [FRESH, FRESH, STALE])
            assert now.of("memory_used_mib.last")["b", 0][0] == 2_000
            now.exporter.gpus = everything
            await now.until(lambda: now.ages() == [FRESH] * 3)

    run(story())


@pytest.mark.parametrize("mood", ["garbage", "slow", "broken"])
def test_an_exporter_that_fails_makes_its_gpus_stale(played: Played, mood: str) -> None:
    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.ages() == [FRESH] * 3)
            now.exporter.mood = mood  # type: ignore[assignment]
            await now.until(lambda: now.ages() == [STALE] * 3)
            now.exporter.mood = "good"
            await now.until(lambda: now.ages() == [FRESH] * 3)

    run(story())


def test_a_server_that_hangs_or_is_gone_leaves_the_last_known(played: Played) -> None:
    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.ages() == [FRESH] * 3)
            now.server.pause()
            await now.until(lambda: now.ages() == [STALE] * 3)
            assert now.of("memory_used_mib.last")["a", 0][0] == 4_000
            assert {kind for _, kind in now.looking.errors} == {"timeout"}
            assert "no answer in 1 s" in now.live.engine.signals.source.why
            now.server.resume()
            await now.until(lambda: now.ages() == [FRESH] * 3)
            assert now.live.engine.signals.source.why == ""
            now.server.kill()
            await now.looking.look()
            assert {kind for _, kind in now.looking.errors} == {"timeout", "unreachable"}
            now.clock.ahead_s = 70  # a minute later, and nobody came back
            await now.looking.look()
            assert now.ages() == [MISSING] * 3

    run(story())


@pytest.mark.parametrize("ahead_s", [600, -600])
def test_clocks_that_disagree_are_no_measurement(played: Played, ahead_s: float) -> None:
    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.ages() == [FRESH] * 3)
            now.clock.ahead_s = ahead_s
            await now.looking.look()
            assert now.ages() == [MISSING] * 3
            now.clock.ahead_s = 0
            await now.until(lambda: now.ages() == [FRESH] * 3)

    run(story())


def test_gpus_that_the_cluster_does_not_have_are_counted(played: Played) -> None:
    async def story() -> None:
        async with scene(played) as now:
            now.exporter.gpus = [*now.exporter.gpus, PlayedGpu("a", 2, "GPU-new"),
                                 PlayedGpu("c", 0, "GPU-c0")]  # fmt: skip
            await now.until(lambda: len(now.looking.unjoined) == 2)
            assert set(now.looking.unjoined) == {Why.GPU, Why.NODE}
            assert now.looking.unjoined[Why.GPU] == now.looking.unjoined[Why.NODE]

    run(story())


def test_weft_metrics_shows_and_checks(played: Played) -> None:
    _, _, url = played
    command = [sys.executable, "-m", "weft.cli.main", "metrics"]

    def said(*more: str) -> tuple[int, str]:
        ended = subprocess.run(
            [*command, *more, "--url", url], capture_output=True, text=True, check=False, timeout=30
        )
        return ended.returncode, ended.stdout

    async def story() -> None:
        async with scene(played) as now:
            await now.until(lambda: now.of("window.samples")["a", 0][0] >= 3)

    run(story())
    code, text = said("show", "--output", "json")
    gpus = {(one["node"], one["gpu"]): one["metrics"] for one in json.loads(text)}
    assert code == 0
    assert gpus["a", 0]["memory_used_mib"]["value"] == 4_000
    assert gpus["b", 0]["dram_active_ratio"] | {"age_s": 0} == {
        "value": 0.5, "age_s": 0, "state": "fresh",
    }  # fmt: skip
    code, text = said("check")
    assert code == 0
    assert "DCGM field 1003: DCGM_FI_PROF_SM_OCCUPANCY, gauge" in text
    assert "memory_used_mib: all 3 GPUs" in text
    assert "samples are 1 s apart" in text
    assert "series have no UUID" in text


def test_weft_scheduler_places_by_what_prometheus_says(
    played: Played, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The whole way on a real API server: the pod goes to the one GPU that has little to do."""
    exporter, _, url = played
    busy = {("node-0", 0): 0.9, ("node-0", 1): 0.8, ("node-1", 0): 0.9, ("node-1", 1): 0.05}
    exporter.gpus = [
        PlayedGpu(node, gpu, used_mib=8_000, free_mib=8_000, sm_active=load, dram_active=load,
                  util_percent=100 * load)
        for (node, gpu), load in busy.items()
    ]  # fmt: skip
    config = tmp_path / "weft.yaml"
    config.write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
        "profiles: [{schedulerName: weft, policies: [{name: load-aware}]}]\n"
        f"telemetry: {{url: '{url}', intervalSeconds: 1, scrapeSeconds: 1, windowSeconds: 20,"
        " horizonSeconds: 4}\n"
    )
    nodes(control_plane, 2)
    with weft(control_plane, tmp_path, "--config", str(config), ALONE) as process:
        page = f"http://127.0.0.1:{process.until(r'explain on [0-9.]+:([0-9]+)')[1]}/metrics"

        def all_fresh() -> bool:
            with urllib.request.urlopen(page, timeout=10) as answer:
                text = answer.read().decode()
            return 'weft_telemetry_gpus{metric="dram_active_ratio",state="fresh"} 4.0' in text

        process.wait_ready(all_fresh, PATIENCE_S)
        limits = {"elasticgpu.io/gpu-memory": 3000, "elasticgpu.io/gpu-core": 20}
        control_plane.create_pods(namespace, [pod("p", "weft", limits)])
        control_plane.api.wait_for(all_bound(1), "Pod", namespace, timeout_s=15)
        (held,) = audited(control_plane, namespace).holdings.values()
        assert held.placement.node == "node-1"
        assert [share.gpu for share in held.placement.shares] == [1]
        assert process.end(signal.SIGTERM) == 0

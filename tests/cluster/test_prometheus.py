"""From a played exporter through a real Prometheus into the engine's signals, and what goes wrong.

Prometheus is asked over TLS, with a client certificate and a password, where nothing else is said.
But for the last tests the API is Weft's fake one. Needs `apt-get install -y prometheus`.
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import yaml
from certificates import available
from control_plane import ControlPlane
from needed_tools import NO_PROMETHEUS, lacking
from played_exporters import PATIENCE_S, SCRAPE_S, Played, Scene, Site, cards, ready, scene
from processes import free_ports
from test_scheduler_pages import address
from weft_process import ALONE, all_bound, audited, nodes, pod, weft

from fakes.exporter import FakeExporter, PlayedGpu, PlayedPod
from weft.core.framework.signals import FRESH, MISSING, STALE
from weft.kube.clock import SystemClock
from weft.lab.trial.turn import offset_of, prometheus_clock_marks
from weft.telemetry.meaning.answers import TelemetryError
from weft.telemetry.meaning.join import JoinFailure
from weft.telemetry.sources.prometheus import Prometheus, PrometheusOptions


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Prometheus, running; without it the tests are left out, visibly, but not in CI."""
    program = shutil.which("prometheus")
    if program is None:
        lacking(NO_PROMETHEUS)
    if not available():
        lacking("no openssl command: apt-get install -y openssl")
    with Site(program, tmp_path_factory.mktemp("prometheus")) as site:
        yield site


@pytest.fixture
def played(site: Site) -> Iterator[Played]:
    """Exporters of this test's own, and the servers that scrape them twice a second."""
    if not site.open.running:
        site.open.start()
        site.open.wait_ready(lambda: ready(site.open_url))
    played = Played(site)
    yield played
    played.clear()


async def test_what_the_exporter_plays_is_what_policies_see(played: Played) -> None:
    async with scene(played) as now:
        await now.until(lambda: now.ages() == [FRESH] * 3)
        used = {gpu: value for gpu, (value, _) in now.of("memory_used_mib.last").items()}
        assert used == {("a", 0): 4_000, ("a", 1): 1_000, ("b", 0): 2_000}
        assert now.of("sm_active_ratio")["a", 0] == (0.25, FRESH)
        assert now.of("gpu_util_ratio.last")["a", 1] == (0.5, FRESH)
        assert now.of("dram_active_ratio.last")["b", 0] == (0.5, FRESH)
        assert now.of("sm_occupancy_ratio")["a", 0][1] == MISSING  # the exporter has none
        assert now.telemetry_loop.unjoined == {}
        await now.until(lambda: now.of("window.samples")["a", 0][0] >= 3)
        await now.until(a_refresh_without_error(now))


def a_refresh_without_error(now: Scene) -> Callable[[], bool]:
    """Tells whether the refresh before was one: a busy Prometheus answers some query with 503."""
    seen = now.telemetry_loop.errors.total()

    def holds() -> bool:
        nonlocal seen
        before, seen = seen, now.telemetry_loop.errors.total()
        return seen == before

    return holds


async def test_only_who_proves_it_is_let_in_and_only_a_known_server_is_believed(
    played: Played,
) -> None:
    site = played.site
    (site.folder / "wrong").write_text("wrong")
    stranger = site.authority.server("somebody")  # no certificate of a client

    async def outcome(**other: object) -> str:
        async with Prometheus(site.options(**other)) as source:
            try:
                assert (await source.query("vector(1)")).values.tolist() == [1.0]
            except TelemetryError as error:
                return error.kind
        return ""

    assert await outcome() == ""
    assert await outcome(authority_file="", verify=False) == ""
    assert await outcome(password_file=str(site.folder / "wrong")) == "refused"
    assert await outcome(username="", password_file="") == "refused"
    assert await outcome(certificate_file="", key_file="") == "unreachable"
    assert (
        await outcome(certificate_file=str(stranger.certificate), key_file=str(stranger.key))
        == "unreachable"
    )
    assert await outcome(authority_file="") == "unreachable"


async def test_sharing_pods_are_neither_added_up_nor_lost(played: Played) -> None:
    """Prometheus renames the pods' labels, for its own are called so: exported_pod."""
    pods = tuple(
        PlayedPod("d", name, own={"DCGM_FI_DEV_FB_USED": mib})
        for name, mib in (("p", 2_500.0), ("q", 1_500.0))
    )

    async with scene(played, ("p", "q")) as now:
        card = PlayedGpu(
            "a", 0, "GPU-a0", used_mib=4_200, free_mib=11_800, sm_active=0.5, pods=pods
        )
        played.exporter.gpus = [card, *played.exporter.gpus[1:]]
        await now.until(lambda: now.of("memory_used_mib.last")["a", 0] == (4_200, FRESH))
        await now.until(lambda: now.of("sm_active_ratio.last")["a", 0] == (0.5, FRESH))
        uids = [now.live.pod("d", name).metadata.uid for name in ("p", "q")]
        await now.until(lambda: [*map(now.telemetry_loop.peak_mib, uids)] == [2_500, 1_500])


async def test_a_series_that_vanishes_ages_alone_and_comes_back(played: Played) -> None:
    async with scene(played) as now:
        await now.until(lambda: now.ages() == [FRESH] * 3)
        everything = played.exporter.gpus
        played.exporter.gpus = everything[:2]
        await now.until(lambda: now.ages() == [FRESH, FRESH, STALE])
        assert now.of("memory_used_mib.last")["b", 0][0] == 2_000
        played.exporter.gpus = everything
        await now.until(lambda: now.ages() == [FRESH] * 3)


async def test_exporters_that_fail_each_in_its_way_make_their_gpus_stale(played: Played) -> None:
    """One card an exporter: garbage, no answer in time, an error."""
    played.more(2)
    for exporter, card in zip(played.exporters, cards(), strict=True):
        exporter.gpus = [card]

    async with scene(played) as now:
        await now.until(lambda: now.ages() == [FRESH] * 3)
        played.exporters[0].mood = "garbage"
        played.exporters[1].mood = "slow"
        played.exporters[2].mood = "broken"
        await now.until(lambda: now.ages() == [STALE] * 3)
        for exporter in played.exporters:
            exporter.mood = "good"
        await now.until(lambda: now.ages() == [FRESH] * 3)


async def test_a_server_that_hangs_or_is_gone_leaves_the_last_known(played: Played) -> None:
    server = played.site.open
    options = PrometheusOptions(played.site.open_url, timeout_s=1, selector=played.selector)

    async with scene(played, options=options) as now:
        await now.until(lambda: now.ages() == [FRESH] * 3)
        server.pause()
        await now.until(lambda: now.ages() == [STALE] * 3)
        assert now.of("memory_used_mib.last")["a", 0][0] == 4_000
        assert {kind for _, kind in now.telemetry_loop.errors} == {"timeout"}
        assert "no answer in 1 s" in now.live.engine.signals.source.why
        server.resume()
        await now.until(lambda: now.ages() == [FRESH] * 3)
        assert now.live.engine.signals.source.why == ""
        server.kill()
        await now.telemetry_loop.refresh()
        assert {kind for _, kind in now.telemetry_loop.errors} == {"timeout", "unreachable"}
        now.clock.ahead_s = 70  # a minute later, and nobody came back
        await now.telemetry_loop.refresh()
        assert now.ages() == [MISSING] * 3


@pytest.mark.parametrize("ahead_s", [600, -600])
async def test_clocks_that_disagree_are_no_measurement(played: Played, ahead_s: float) -> None:
    async with scene(played) as now:
        await now.until(lambda: now.ages() == [FRESH] * 3)
        now.clock.ahead_s = ahead_s
        await now.telemetry_loop.refresh()
        assert now.ages() == [MISSING] * 3
        now.clock.ahead_s = 0
        await now.until(lambda: now.ages() == [FRESH] * 3)


@pytest.mark.parametrize(("api_ahead_s", "said"), [(30, "behind"), (-30, "ahead of"), (0, "")])
async def test_an_experiment_tells_that_this_servers_clock_and_the_apis_are_apart(
    played: Played, api_ahead_s: float, said: str
) -> None:
    """The server tells its own time; the API server's is told from its clock here, in seconds."""
    clock = SystemClock()
    asked_s = clock.wall().timestamp()
    api_server = offset_of(int(asked_s) + api_ahead_s, 1.0, asked_s, asked_s)
    async with Prometheus(played.site.options(timeout_s=30)) as source:
        marks = await prometheus_clock_marks(source, api_server, clock)
    assert len(marks) == bool(said), marks
    assert all(f" s {said} the API server's" in mark for mark in marks), marks


async def test_a_server_that_is_gone_does_not_say_what_time_it_is(played: Played) -> None:
    gone = played.site.options(url="https://127.0.0.1:1")
    async with Prometheus(gone) as source:
        (mark,) = await prometheus_clock_marks(source, offset_of(0, 1.0, 0, 0), SystemClock())
    assert mark.startswith("cannot read Prometheus' clock: "), mark


async def test_gpus_that_the_cluster_does_not_have_are_counted(played: Played) -> None:
    async with scene(played) as now:
        more = [PlayedGpu("a", 2, "GPU-new"), PlayedGpu("c", 0, "GPU-c0")]
        played.exporter.gpus = [*played.exporter.gpus, *more]
        await now.until(lambda: len(now.telemetry_loop.unjoined) == 2)
        assert set(now.telemetry_loop.unjoined) == {JoinFailure.GPU, JoinFailure.NODE}
        assert (
            now.telemetry_loop.unjoined[JoinFailure.GPU]
            == now.telemetry_loop.unjoined[JoinFailure.NODE]
        )


# --- as users do it ------------------------------------------------------------------------------


def configured(played: Played, folder: Path, **other: object) -> Path:
    """A configuration for one second's looks; the guarded server if nothing else is said.

    Samples come twice as often as it says: a machine that is busy makes no test fail.
    """
    telemetry: dict[str, object] = {
        "intervalSeconds": 1,
        "scrapeSeconds": 2 * SCRAPE_S,
        "windowSeconds": 20,
        "horizonSeconds": 4,
        "selector": played.selector,
        **other,
    }
    if "exporters" not in other:
        how = played.site.options()
        telemetry |= {
            "url": how.url,
            "username": how.username,
            "passwordFile": how.password_file,
            "authorityFile": how.authority_file,
            "certificateFile": how.certificate_file,
            "keyFile": how.key_file,
        }
    path = folder / "weft.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "weft.dev/v1",
                "kind": "WeftConfiguration",
                "telemetry": telemetry,
                "profiles": [{"schedulerName": "weft", "policies": [{"name": "load-aware"}]}],
            }
        )
    )
    return path


def said(*words: str | Path) -> tuple[int, str]:
    """Exit code and output of `weft metrics …`."""
    ended = subprocess.run(
        [sys.executable, "-m", "weft.cli.main", "metrics", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return ended.returncode, ended.stdout + ended.stderr


async def test_weft_metrics_shows_and_checks(played: Played, tmp_path: Path) -> None:
    async with scene(played) as now:
        await now.until(lambda: now.of("window.samples")["a", 0][0] >= 2)
    config = configured(played, tmp_path)
    with ThreadPoolExecutor(2) as users:
        shown = users.submit(said, "--output", "json", "--config", config)
        checked = users.submit(said, "--check", "--config", config)
    code, text = shown.result()
    gpus = {(one["node"], one["gpu"]): one["metrics"] for one in json.loads(text)}
    assert code == 0
    assert gpus["a", 0]["memory_used_mib"]["value"] == 4_000
    assert gpus["b", 0]["dram_active_ratio"] | {"age_s": 0} == {
        "value": 0.5,
        "age_s": 0,
        "state": "fresh",
    }
    code, text = checked.result()
    assert code == 0, text
    assert "(DCGM field 1003): DCGM_FI_PROF_SM_OCCUPANCY, gauge" in text
    assert "memory_used_mib: all 3 GPUs" in text
    assert "samples are 0.5 s apart" in text
    assert "series have no UUID" in text


def moved(gpu: PlayedGpu) -> PlayedGpu:
    """A little more or less, as of any GPU at work: readings that stand still are doubted."""
    step = 0.01 if gpu.power_w == 30 else -0.01
    return msgspec.structs.replace(
        gpu,
        sm_active=(gpu.sm_active or 0) + step,
        dram_active=(gpu.dram_active or 0) + step,
        util_percent=(gpu.util_percent or 0) + 100 * step,
        power_w=(gpu.power_w or 0) + 100 * step,
    )


def one_idle_of_four() -> list[PlayedGpu]:
    busy = {("node-0", 0): 0.9, ("node-0", 1): 0.8, ("node-1", 0): 0.9, ("node-1", 1): 0.05}
    return [
        PlayedGpu(
            node,
            gpu,
            used_mib=8_000,
            free_mib=8_000,
            sm_active=load,
            dram_active=load,
            util_percent=100 * load,
        )
        for (node, gpu), load in busy.items()
    ]


def one_on_each_node(plane: ControlPlane, gpus: list[PlayedGpu], port: int) -> list[FakeExporter]:
    """An exporter of each node's GPUs, at an address that is the node's."""
    exporters = []
    for index in range(2):
        ip = f"127.0.0.{index + 2}"
        own = [gpu for gpu in gpus if gpu.node == f"node-{index}"]
        exporters.append(FakeExporter(own, port, ip))
        status = {"addresses": [{"type": "InternalIP", "address": ip}]}
        plane.api.patch("Node", f"node-{index}", {"status": status}, part="status")
    return exporters


def all_fresh(page: str, exporters: list[FakeExporter]) -> bool:
    """Tells whether all four GPUs' readings are fresh; the GPUs move on."""
    for exporter in exporters:
        exporter.gpus = [moved(gpu) for gpu in exporter.gpus]
    with urllib.request.urlopen(page, timeout=10) as answer:
        text = answer.read().decode()
    return 'weft_telemetry_gpus{metric="dram_active_ratio",state="fresh"} 4.0' in text


@pytest.mark.parametrize("way", ["configured", "exporters"])
def test_weft_scheduler_places_by_what_gpus_do(
    played: Played, control_plane: ControlPlane, namespace: str, tmp_path: Path, way: str
) -> None:
    """The whole way on a real API server: the pod goes to the one GPU that has little to do.

    Through the guarded Prometheus, and without any: from an exporter on each node.
    """
    gpus = one_idle_of_four()
    nodes(control_plane, 2)
    telemetry: dict[str, object] = {}
    exporters = [played.exporter]
    with ExitStack() as stack:
        if way == "exporters":
            (port,) = free_ports(1)
            exporters = one_on_each_node(control_plane, gpus, port)
            for exporter in exporters:
                stack.enter_context(exporter)
            telemetry = {"exporters": f"http://{{address}}:{port}/metrics"}
        else:
            played.exporter.gpus = gpus
        config = configured(played, tmp_path, **telemetry)
        process = stack.enter_context(weft(control_plane, tmp_path, "--config", str(config), ALONE))
        page = f"http://127.0.0.1:{process.until(r'explain on [0-9.]+:([0-9]+)')[1]}/metrics"
        process.wait_ready(lambda: all_fresh(page, exporters), PATIENCE_S)
        limits = {"elasticgpu.io/gpu-memory": 3000, "elasticgpu.io/gpu-core": 20}
        control_plane.create_pods(namespace, [pod("p", "weft", limits)])
        control_plane.api.wait_for(
            lambda pods: all_bound(1)([one for one in pods if one["metadata"]["name"] == "p"]),
            "Pod",
            namespace,
            timeout_s=15,
        )
        (held,) = audited(control_plane, namespace).holdings.values()
        assert held.placement.node == "node-1"
        assert [share.gpu for share in held.placement.shares] == [1]
        assert process.end(signal.SIGTERM) == 0


def test_exporters_are_found_by_their_pods_and_asked_through_the_api_server(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """As from a laptop with a kubeconfig, where nobody reaches the pods' addresses."""
    nodes(control_plane, 1)
    gpus = [PlayedGpu("node-0", index, used_mib=700 + index) for index in range(2)]
    ip = address()
    with FakeExporter(gpus, host=ip) as exporter:
        port = int(exporter.address.rpartition(":")[2])
        labels = {"app.kubernetes.io/name": "dcgm-exporter"}
        named = [{"name": "metrics", "containerPort": port}]
        spec = {"nodeName": "node-0", "containers": [{"name": "c", "image": "i", "ports": named}]}
        meta = {"name": "exporter", "namespace": namespace, "labels": labels}
        control_plane.api.create({"kind": "Pod", "metadata": meta, "spec": spec})
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready}
        control_plane.api.patch("Pod", "exporter", {"status": status}, namespace, part="status")
        config = tmp_path / "weft.yaml"
        config.write_text(
            "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
            f"telemetry: {{discover: exporters, namespaces: [{namespace}]}}\n"
        )
        access = control_plane.kubeconfig_for("weft", "system:masters")
        code, text = said("--output", "json", "--config", config, "--kubeconfig", access)
        assert code == 0, text
        used = [one["metrics"]["memory_used_mib"]["value"] for one in json.loads(text)]
        assert used == [700, 701]

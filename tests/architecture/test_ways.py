"""Limits of ways: how many files lie between a cause and its effect, and how often one comes back.

They are what was measured, and only ever fall. Whoever adds a station to a way says why, here.
"""

import asyncio
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from agent_world import node_world
from led_cluster import led
from way_recorder import Call, Way

from fakes.api_server import FakeApiServer
from weft.cluster.telemetry.telemetry_loop import TelemetryLoop, TelemetryLoopOptions
from weft.core.framework import Policy, Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.least_stranding import LeastStranding
from weft.core.policies.packing import BestFit
from weft.kube.client import ApiClient, Endpoint, FixedCredentials
from weft.kube.pods import Pod
from weft.lab.simulate.arrivals import draw
from weft.lab.simulate.generate import demo_cluster
from weft.lab.simulate.inflation import run_inflation
from weft.lab.simulate.openb import read_nodes, read_pods
from weft.lab.simulate.scenario import Scenario
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import QueryResult
from weft.telemetry.sources.source import QueryOutcome, SourceReading
from weft.testing import AGENT_BY_NAME

Json = dict[str, Any]

ADJUSTMENT = Call("node/nri/plugin.py", "HookTimes.add")
"""The plugin's answer for a container is made, and about to be written."""
BINDING = Call("fakes/api_writes.py", "bind")
"""The API server has the Binding."""
NEW_MIB = itertools.count(2_000)
"""MiB that no pod of this process asked for before: pods that ask alike are read once."""


def node(name: str) -> Json:
    cards = [{"index": index, "memory_mib": 16_000} for index in range(2)]
    inventory = {"weft.dev/inventory": json.dumps({"gpus": cards}), **AGENT_BY_NAME}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    return {
        "metadata": {"name": name, "annotations": inventory},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"},
            "conditions": [ready],
        },
    }


def pod(name: str, memory_mib: int) -> Json:
    limits = {"weft.dev/gpu-memory": str(memory_mib), "cpu": "100m", "memory": "64Mi"}
    containers = [{"name": "main", "resources": {"limits": limits}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "weft", "containers": containers},
    }


MOST_FILES_OF_A_SAMPLE = 20
"""From a metrics server's answer to scores."""
MOST_FILES_OF_A_CONTAINER = 9
"""From CreateContainer to the adjustment."""
PAGE = (Path(__file__).resolve().parents[2] / "ARCHITECTURE.md").read_text()


async def watched_pod(policy: Policy) -> Way:
    """From the watch event of a pod to the Binding, where nothing waits and nothing is new but
    what it asks; one was bound before."""
    way = Way(ends_at=BINDING)
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.add("nodes", node(name))
        async with ApiClient(Endpoint(server.url, FixedCredentials())) as client:
            live = led(client, [Profile("weft", [policy])]).live
            await live.start()
            await live.lead(afresh=False, term=3)
            server.add("pods", pod("before", next(NEW_MIB)))
            while not (before := live.pod("default", "before")) or not before.spec.node_name:
                await asyncio.sleep(0.001)
            with way.recorded():
                server.add("pods", pod("watched", next(NEW_MIB)))
                while not way.ended:
                    await asyncio.sleep(0.001)
            await live.stop()
    return way


class Limits(NamedTuple):
    """The most files that a way enters, stays in them, and times that it enters the same one."""

    files: int
    stays: int
    entries: int

    @classmethod
    def of(cls, way: Way) -> "Limits":
        return cls(len(way.files), len(way.stays), max(way.entries.values()))

    def hold(self, way: Way) -> bool:
        return all(found <= most for found, most in zip(Limits.of(way), self, strict=True))


@pytest.mark.parametrize(
    ("policy", "limits"),
    [(BestFit, Limits(28, 55, 3)), (LeastStranding, Limits(30, 63, 3))],
    ids=["the simplest policy", "the default"],
)
async def test_a_watched_pod_is_bound_within_few_files(
    policy: type[Policy], limits: Limits
) -> None:
    way = await watched_pod(policy())
    for _ in range(20):
        if limits.hold(way):
            break
        way = await watched_pod(policy())  # on a busy machine tasks take turns in between
    assert limits.hold(way), f"{Limits.of(way)}, at most {limits}: {way.entries.most_common()}"


def follow_what_is_written(section: str, way: Way, least: int) -> None:
    """Each function of this section of ARCHITECTURE.md is called, in the order in which they stand
    there; `least` functions are in it."""
    text = PAGE.partition(f"### {section}, function by function\n")[2]
    text = re.split(r"\n##", text)[0]
    written = [Call(*place) for place in re.findall(r"`([a-z_/]+\.py):([\w.]+)`", text)]
    assert len(written) >= least
    called = iter(way.calls)
    missing = next((call for call in written if call not in called), None)
    assert missing is None, f"{missing} is not called there, or not after the one before it"


async def test_the_way_of_a_watched_pod_is_as_it_is_written_down() -> None:
    follow_what_is_written("A watched pod", await watched_pod(LeastStranding()), 30)


class GrowingSource:
    """A metrics server that sees more memory used on each GPU each time."""

    def __init__(self) -> None:
        self._used_mib = itertools.count(2_000, 1_000)

    async def read(self, metrics: Sequence[Metric], back_s: float) -> SourceReading:
        labels = [
            json.dumps(
                {"Hostname": name, "__name__": "DCGM_FI_DEV_FB_USED", "gpu": str(gpu)},
                separators=(",", ":"),
            )
            for name in ("a", "b")
            for gpu in range(2)
        ]
        count = len(labels)
        times, values = np.full(count, time.time()), np.full(count, float(next(self._used_mib)))
        texts = [text.encode() for text in labels]
        answer = QueryResult(texts, np.ones(count, dtype=np.int64), times, values)
        return SourceReading([answer], [QueryOutcome("memory_used_mib", 0.25)], "http://p")

    async def close(self) -> None:
        """Nothing is open."""


async def metric_sample() -> Way:
    """From a metrics server's answer to the scores of GPUs for a shape that was asked before."""
    way, policy = Way(), built_in().from_spec("load-aware")
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.add("nodes", node(name))
        async with ApiClient(Endpoint(server.url, FixedCredentials())) as client:
            profile = Profile("weft", [policy])
            live = led(client, [profile]).live
            await live.start()
            await live.lead(afresh=False, term=3)
            while live.engine.ledger.table.count < 2:
                await asyncio.sleep(0.001)
            loop = TelemetryLoop(live, GrowingSource(), None, TelemetryLoopOptions())
            asked = live.parse(msgspec.convert(pod("asked", 2_000), Pod))
            await loop.refresh()
            live.engine.assess(profile, asked)
            fresh = ThreadPoolExecutor(1)  # a thread that is heard from its start
            asyncio.get_running_loop().set_default_executor(fresh)
            with way.recorded():
                await loop.refresh()
                live.engine.assess(profile, asked)
            await live.stop()
    return way


async def test_a_metric_sample_reaches_scores_within_few_files() -> None:
    way = await metric_sample()
    assert len(way.files) <= MOST_FILES_OF_A_SAMPLE, sorted(way.files)
    follow_what_is_written("A metric sample", way, 10)


async def created_container(folder: Path) -> Way:
    """From the runtime's CreateContainer to the adjustment that it gets, of a container that starts
    again."""
    way = Way(ends_at=ADJUSTMENT)
    async with node_world(folder) as world:
        await world.start_agent()
        pod_on_node = world.bound("a")
        await world.create(pod_on_node)
        with way.recorded():
            await world.create(pod_on_node)
    assert way.ended
    return way


async def test_a_container_is_adjusted_within_few_files(tmp_path: Path) -> None:
    way = await created_container(tmp_path)
    assert len(way.files) <= MOST_FILES_OF_A_CONTAINER, sorted(way.files)
    follow_what_is_written("A created container", way, 10)


@pytest.fixture
def cluster_files(tmp_path: Path) -> tuple[Path, Path]:
    """Nodes and pods of a small cluster in files, as `weft simulate` reads them."""
    nodes, pods = (text.splitlines(keepends=True) for text in demo_cluster())
    (tmp_path / "nodes.csv").write_text("".join(nodes[:6]))
    (tmp_path / "pods.csv").write_text("".join(pods[:3]))
    return tmp_path / "nodes.csv", tmp_path / "pods.csv"


def test_a_simulated_pod_is_measured_within_few_files(cluster_files: tuple[Path, Path]) -> None:
    """From rows of files that are read to the numbers of the report."""
    nodes, pods = read_nodes(cluster_files[0]), read_pods(cluster_files[1])
    way = Way()
    with way.recorded():
        world = Scenario(nodes, pods)
        order = draw(pods, len(nodes), world.capacity_milli, 1, 1.3)
        run_inflation(world, built_in().from_spec("least-stranding"), order)
    assert len(way.files) <= 39, sorted(way.files)
    assert not [file for file in way.files if file.startswith(("cluster/", "kube/"))]


@pytest.mark.parametrize("options", [[], ["--timed"], ["--interference", "TABLE"]], ids=" ".join)
def test_the_command_that_simulates_loads_nothing_of_the_cluster(
    cluster_files: tuple[Path, Path], tmp_path: Path, options: list[str]
) -> None:
    nodes, pods = map(str, cluster_files)
    table = tmp_path / "table.json"
    table.write_text('{"a": {"a": 1.5}}')
    command = ["simulate", "--nodes", nodes, "--pods", pods, "--policy", "best-fit"]
    command += [str(table) if option == "TABLE" else option for option in options]
    script = f"""
import sys
from weft.cli.main import app
try:
    app({command})
except SystemExit as end:
    assert not end.code, "it fails"
loaded = [name for name in sys.modules if name.startswith(("weft.cluster", "weft.kube"))]
print("loaded:", *loaded)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "loaded:"

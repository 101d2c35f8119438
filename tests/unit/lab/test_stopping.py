"""Turns on an API server in this process: stopped by SIGTERM, and without any Job."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.api_server import FakeApiServer
from weft.cli.experiment import runner_on_cluster
from weft.lab.experiment.spec.experiment import plan, read_spec
from weft.lab.stopping import run_cleaning_up


def kubeconfig(folder: Path, url: str) -> Path:
    file = folder / "kubeconfig"
    here = {"name": "here", "cluster": {"server": url}}
    context = {"name": "here", "context": {"cluster": "here"}}
    text = {"current-context": "here", "clusters": [here], "contexts": [context]}
    file.write_text(yaml.safe_dump(text))
    return file


def written(folder: Path, url: str, *arrivals_s: float, **cluster: Any) -> Path:
    """An experiment's file: one scheduler, a Job at each of these times."""
    job = {"name": "a", "image": "none", "count": len(arrivals_s)}
    stock = {"name": "stock", "request": {"resource": "nvidia.com/gpu"}}
    spec = {
        "apiVersion": "weft.dev/v1",
        "kind": "Experiment",
        "name": "turns",
        "workload": {
            "kind": "cluster-jobs",
            "jobs": [{**job, "arrivalSeconds": list(arrivals_s)}],
        },
        "cluster": {
            "kubeconfig": str(kubeconfig(folder, url)),
            "lookSeconds": 0.1,
            "schedulers": [stock],
            **cluster,
        },
        "schedulers": ["stock"],
        "seeds": {"count": 1},
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def once(server: FakeApiServer, method: str, ending: str) -> asyncio.Event:
    """Set when the server gets such a request."""
    came = asyncio.Event()

    def look(request: Any) -> None:
        if request.method == method and request.path.endswith(ending):
            came.set()

    server.on_request = look
    return came


async def test_sigterm_removes_the_turns_namespace(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        server.add("nodes", {"metadata": {"name": "node-0"}})
        probed = once(server, "GET", "/pods/probe")
        out = tmp_path / "out"
        words = ["run", str(written(tmp_path, server.url, 0)), "--out", str(out)]
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weft.cli.main", "experiment", *words)
        )
        try:
            await probed.wait()
            assert server.store.all(server.kind("namespaces"))
            running.terminate()
            code = await running.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                running.kill()
        assert code == 130
        assert server.store.all(server.kind("namespaces")) == []
        assert not list(out.rglob("result.json"))


@contextlib.asynccontextmanager
async def in_path(server: FakeApiServer) -> AsyncIterator[None]:
    """A scheduler and a kubelet that bind and run the probe, as soon as it is there."""
    probe = once(server, "GET", "/pods/probe")

    async def bind() -> None:
        await probe.wait()
        (namespace,) = server.store.all(server.kind("namespaces"))
        name = namespace["metadata"]["name"]
        event = {
            "metadata": {"name": "bound"},
            "reason": "Scheduled",
            "regarding": {"kind": "Pod", "name": "probe", "namespace": name},
            "reportingController": "default-scheduler",
        }
        server.add("events", event, name)
        ran = {"spec": {"nodeName": "node-0"}, "status": {"phase": "Succeeded"}}
        server.update("pods", "probe", ran, name)

    binding = asyncio.create_task(bind())
    yield
    await binding


async def test_a_turn_that_ends_before_its_first_job_is_a_marked_cell(tmp_path: Path) -> None:
    prometheus = {"url": "http://127.0.0.1:1"}
    async with FakeApiServer() as server, in_path(server):
        server.add("nodes", {"metadata": {"name": "node-0"}})
        cluster = {"turnSeconds": 0.2, "prometheus": prometheus}
        spec = read_spec(written(tmp_path, server.url, 100, **cluster))
        (cell,) = plan(spec)
        result = await asyncio.to_thread(runner_on_cluster(spec, {}).run, cell)
        assert list(result.jobs) == list(result.usage) == []
        assert result.measures["jct_mean_s"] is None
        assert [mark.split(":")[0] for mark in result.marks] == [
            "1 of 1 Jobs had not ended after 0.2 s (cluster.turnSeconds)",
            "no Job was seen",
        ]
        assert server.store.all(server.kind("namespaces")) == []


async def stopped_twice(done: list[str]) -> None:
    try:
        terminate()
        await asyncio.Event().wait()
    finally:
        terminate()
        for _ in range(3):  # rounds of the loop, in which a cancellation would come
            await asyncio.sleep(0)
        done.append("cleaned up")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_sigterm_does_not_cut_the_clean_up_short() -> None:
    done: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_cleaning_up(stopped_twice(done))
    assert done == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_work_that_ends_as_the_signal_comes_is_stopped_all_the_same() -> None:
    async def work() -> int:
        terminate()
        return 1

    with pytest.raises(KeyboardInterrupt):
        run_cleaning_up(work())


def test_work_that_nobody_stops_gives_its_result() -> None:
    async def work() -> int:
        return 1

    assert run_cleaning_up(work()) == 1

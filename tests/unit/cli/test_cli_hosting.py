"""A whole process as `weft scheduler` composes it, on a fake API server."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fakes.api_server import FakeApiServer
from weft.cluster.config.form import (
    Configuration,
    ExtenderSettings,
    HttpSettings,
    InterferenceSettings,
    PolicySettings,
    ProfileSettings,
)
from weft.core.policies.catalog import built_in
from weft.core.record import read, replay
from weft.host.plan import Hosting
from weft.host.scheduler import host
from weft.model.interference_table import INTERFERENCE, InterferenceTable, InterferenceView
from weft.testing import AGENT_BY_NAME

ADDRESS = "127.0.0.1"
WELL = {one: dict.fromkeys(("serve", "train"), 1.02) for one in ("serve", "train")}
APART = {"serve": {"serve": 1.02, "train": -1}, "train": {"serve": -1, "train": 1.02}}
CARD = {"gpus": [{"index": 0, "memory_mib": 16_000, "model": "T4"}]}


def add_node(server: FakeApiServer) -> None:
    has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    meta = {
        "name": "n",
        "annotations": {"weft.dev/inventory": json.dumps(CARD), **AGENT_BY_NAME},
    }
    status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
    server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
    server.add("leases", {"metadata": {"name": "weft", "namespace": "kube-system"}, "spec": {}})


def add_pod(server: FakeApiServer, name: str) -> None:
    asks = {"limits": {"weft.dev/gpu-memory": "4000"}}
    spec = {"schedulerName": "weft", "containers": [{"name": "c", "resources": asks}]}
    meta = {"name": name, "namespace": "d", "annotations": {"weft.dev/application": name}}
    server.add("pods", {"metadata": meta, "spec": spec})


def node_of(server: FakeApiServer, name: str) -> str:
    found: str = server.get("pods", name, "d")["spec"].get("nodeName", "")
    return found


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": {"server": url}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "users": [{"name": "it", "user": {"token": "t"}}],
            }
        )
    )
    return path


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


def replayed_tables(decisions: Path, least: int) -> list[InterferenceView]:
    """The tables of a decisions file that replays, with so many decisions at least."""
    header, lines = read(decisions)
    verdict = replay(header, lines, built_in().create)
    assert verdict.identical, verdict
    assert verdict.decisions >= least
    events = [line.event for line in read(decisions)[1]]
    return [
        InterferenceView(msgspec.convert(event.value, InterferenceTable))
        for event in events
        if getattr(event, "policy", "") == INTERFERENCE
    ]


@pytest.mark.parametrize("schedules", [True, False], ids=["scheduler", "extender alone"])
async def test_a_table_that_changes_while_it_runs_decides_from_then_on(
    tmp_path: Path, schedules: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """And the decisions file has it, so that what was decided replays."""
    table, decisions = tmp_path / "table.json", tmp_path / "decisions.jsonl"
    table.write_text(json.dumps(APART))
    config = Configuration(
        profiles=(ProfileSettings("weft", (PolicySettings("interference"),)),),
        interference=InterferenceSettings(table=str(table), reload_seconds=1),
        http=HttpSettings(ADDRESS, 0),
        extender=ExtenderSettings(enabled=not schedules, address=ADDRESS, port=0),
    )

    with caplog.at_level("INFO", "weft"):
        async with FakeApiServer() as server:
            add_node(server)
            hosting = Hosting(
                (kubeconfig(tmp_path, server.url),),
                schedules=schedules,
                decisions=decisions,
                where="weft.yaml",
            )
            process = asyncio.create_task(host(config, built_in(), hosting))
            try:
                await until(lambda: "leading" in caplog.text or process.done())
                if schedules:
                    add_pod(server, "serve")
                    await until(lambda: node_of(server, "serve"))
                    add_pod(server, "train")
                table.write_text("{")  # costs nothing but a warning
                await until(lambda: "correct the file" in caplog.text)
                assert f"weft.yaml: interference.table: {table}: is not a table" in caplog.text
                assert not schedules or not node_of(server, "train")
                table.write_text(json.dumps(WELL))
                await until(lambda: "files changed and were read again" in caplog.text)
                if schedules:
                    await until(lambda: node_of(server, "train"))
                os.kill(os.getpid(), signal.SIGTERM)
                await process
            finally:
                process.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await process
    tables = replayed_tables(decisions, least=2 * schedules)
    assert [view.version for view in tables] == [1, 2]
    assert tables[1].costs("T4", "serve", "train") == pytest.approx(0.0198, abs=1e-4)

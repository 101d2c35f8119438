"""An experiment on a real control plane: Weft, and kube-scheduler with a gpushare extender.

Sixty Jobs a turn on hollow nodes, played exporters, a real Prometheus; the run is interrupted and
goes on. What the cells say of Jobs is what the API said, and the same file simulated agrees.
"""

import contextlib
import datetime
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from binaries import CONTROLLERS, find
from control_plane import HOST, ControlPlane
from controllers import job_controllers
from needed_tools import NO_PROMETHEUS, lacking
from played_exporters import ready
from processes import Server, free_ports
from test_hollow_kubelet import hollow
from weft_process import (
    ALONE,
    CARD_MIB,
    CARDS,
    EXTENDER,
    GFD,
    extender_config,
    resources,
    weft,
)

from fakes.exporter import FakeExporter, PlayedGpu
from fakes.hollow_kubelet import HollowOptions
from weft.kube.clock import SystemClock
from weft.lab.experiment.run.store import JOBS, RESULT, SERIES, read_rows

NODES, SCRAPE = 2, "250ms"
EXPERIMENT = {"labelSelector": "weft.dev/experiment=turns"}


@pytest.fixture
def controllers(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    """kube-controller-manager, with what Jobs and namespaces need."""
    found = find([CONTROLLERS])
    if CONTROLLERS not in found:
        lacking("no kube-controller-manager: make node-tools")
    with job_controllers(control_plane, found[CONTROLLERS]):
        yield


class Metrics(NamedTuple):
    """A Prometheus, and the exporter that it scrapes."""

    url: str
    exporter: FakeExporter


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Metrics]:
    program = shutil.which("prometheus")
    if program is None:
        lacking(NO_PROMETHEUS)
    (port,) = free_ports(1)
    gpus = [
        PlayedGpu(f"node-{node}", index, used_mib=4_000, util_percent=50, power_w=100)
        for node in range(NODES)
        for index in range(CARDS)
    ]
    with FakeExporter(gpus) as exporter:
        config = tmp_path / "prometheus.yml"
        scrape = {"job_name": "dcgm-exporter", "static_configs": [{"targets": [exporter.address]}]}
        intervals = {"scrape_interval": SCRAPE, "scrape_timeout": "200ms"}
        config.write_text(yaml.safe_dump({"global": intervals, "scrape_configs": [scrape]}))
        server = Server(
            [
                *(program, f"--config.file={config}", "--log.level=warn"),
                *(
                    f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                    f"--web.listen-address={HOST}:{port}",
                ),
            ],
            tmp_path / "prometheus.log",
        )
        server.start()
        url = f"http://{HOST}:{port}"
        server.wait_ready(lambda: ready(url))
        yield Metrics(url, exporter)
        server.kill()


def written(folder: Path, plane: ControlPlane, url: str, count: int, **cluster: Any) -> Path:
    """The experiment's file: jobs of two sizes, two schedulers."""
    job = {"image": "none", "count": count // 2}
    runs = {"weft.dev/hollow-run-s": "5"}
    gpushare = {"resource": "aliyun.com/gpu-mem", "unit": "GiB"}
    mib = {"resource": "weft.dev/gpu-memory", "unit": "MiB"}
    spec = {
        "apiVersion": "weft.dev/v1",
        "kind": "Experiment",
        "name": "turns",
        "workload": {
            "kind": "cluster-jobs",
            "delaySeconds": [0.05, 0.15],
            "jobs": [
                {**job, "name": "small", "memoryMib": 2_000, "runSeconds": 5, "annotations": runs},
                {**job, "name": "large", "memoryMib": 5_000, "runSeconds": 5, "annotations": runs},
            ],
        },
        "cluster": {
            "kubeconfig": str(plane.kubeconfig),
            "prometheus": {"url": url},
            "simulated": {"nodes": NODES, "gpus": CARDS, "memoryMib": CARD_MIB},
            "probeSeconds": 20,
            "schedulers": [
                {
                    "name": "gpushare",
                    "request": gpushare,
                    "annotations": ["ALIYUN_COM_GPU_MEM_IDX"],
                    "mend": "systemctl restart extender",
                    "policy": "gpushare",
                },
                {
                    "name": "weft",
                    "schedulerName": "weft",
                    "reportingController": "weft-scheduler",
                    "request": mib,
                    "annotations": ["weft.dev/placement"],
                    "policy": "best-fit",
                },
            ],
            **cluster,
        },
        "schedulers": ["gpushare", "weft"],
        "seeds": {"count": 1},
    }
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def has_cards(plane: ControlPlane) -> None:
    """Nodes that advertise their cards in both schedulers' words."""
    advertised = {**resources(), "weft.dev/gpu-memory": str(CARDS * CARD_MIB)}
    for number in range(NODES):
        plane.create_fake_node(f"node-{number}", advertised, labels=GFD)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "weft.cli.main", "experiment", *map(str, words)]


def cell(folder: Path, scheduler: str) -> Path:
    return folder / "cells" / "percent=0" / scheduler / "seed=0"


def makespan_s(folder: Path, scheduler: str) -> float:
    result = json.loads((cell(folder, scheduler) / RESULT).read_text())
    assert result["measures"]["unfinished"] == 0
    assert not result.get("marks"), result["marks"]
    return float(result["measures"]["makespan_s"])


def told_by_api(plane: ControlPlane, jobs: int) -> dict[str, dict[str, str]]:
    """Each Job's own times as soon as all are complete, before the run removes them."""
    found = plane.api.wait_for(
        lambda all_of: (
            len(all_of) == jobs
            and all(one["status"].get("completionTime") for one in all_of)
            and all_of
        ),
        "Job",
        version="batch/v1",
        timeout_s=90,
        **EXPERIMENT,
    )
    return {
        one["metadata"]["name"]: {
            "arrived_s": one["metadata"]["creationTimestamp"],
            "job_started_s": one["status"]["startTime"],
            "finished_s": one["status"]["completionTime"],
        }
        for one in found
    }


def check_times(folder: Path, scheduler: str, told: dict[str, dict[str, str]]) -> None:
    """The cell's rows say what the API said, to the second."""
    moments = {
        name: {at: datetime.datetime.fromisoformat(text).timestamp() for at, text in times.items()}
        for name, times in told.items()
    }
    began_s = min(times["arrived_s"] for times in moments.values())
    rows = read_rows(cell(folder, scheduler) / JOBS)
    assert sorted(rows["uid"]) == sorted(told)
    for row, name in enumerate(rows["uid"]):
        for column, at_s in moments[name].items():
            assert abs(rows[column][row] - (at_s - began_s)) <= 1, (name, column)


def test_sixty_jobs_by_two_schedulers_are_interrupted_resumed_and_simulated(
    control_plane: ControlPlane,
    namespace: str,
    controllers: None,
    metrics: Metrics,
    tmp_path: Path,
) -> None:
    has_cards(control_plane)
    out, simulated = tmp_path / "out", tmp_path / "simulated"
    file = written(tmp_path, control_plane, metrics.url, 60)
    run = command("run", file, "--out", out)
    with contextlib.ExitStack() as left:
        process = left.enter_context(weft(control_plane, tmp_path, ALONE, *EXTENDER))
        control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        left.enter_context(hollow(control_plane, HollowOptions(nodes="")))
        turns = left.enter_context(ThreadPoolExecutor())

        # killed in the middle of the first turn: nothing is left out, nothing counts twice
        killed = subprocess.Popen(run)
        control_plane.api.wait_for(
            lambda jobs: len(jobs) >= 5, "Job", version="batch/v1", timeout_s=60, **EXPERIMENT
        )
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert not cell(out, "gpushare").exists()
        assert control_plane.api.list("Namespace", **EXPERIMENT)

        going_on = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = turns.submit(told_by_api, control_plane, 60)
        told = {"gpushare": first.result()}
        told["weft"] = told_of_next(control_plane, told["gpushare"])
        said, wrong = going_on.communicate(timeout=90)
        assert going_on.returncode == 0, wrong
        assert "2 cells run, 0 already done" in said
        assert control_plane.api.list("Namespace", **EXPERIMENT) == []

        again = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)
        assert "0 cells run, 2 already done" in again.stdout
    simulate = command("run", file, "--out", simulated, "--simulated")
    subprocess.run(simulate, check=True, timeout=60)
    for scheduler, times in told.items():
        check_times(out, scheduler, times)
        live_s, model_s = makespan_s(out, scheduler), makespan_s(simulated, scheduler)
        cut_s = 1  # the API tells beginnings and ends in whole seconds
        assert abs(live_s - model_s) <= 0.1 * live_s + cut_s, (scheduler, live_s, model_s)
        series = read_rows(cell(out, scheduler) / SERIES)
        assert set(series["gpu_util_percent"][2:]) == {50.0}
        assert set(series["power_w"][2:]) == {100.0 * NODES * CARDS}


def told_of_next(
    plane: ControlPlane, before: dict[str, dict[str, str]]
) -> dict[str, dict[str, str]]:
    """The same of the turn after that one."""
    plane.api.wait_for(
        lambda jobs: all(
            before[one["metadata"]["name"]]["arrived_s"] != one["metadata"]["creationTimestamp"]
            for one in jobs
        ),
        "Job",
        version="batch/v1",
        timeout_s=60,
        **EXPERIMENT,
    )
    return told_by_api(plane, 60)


def test_a_scheduler_that_is_not_in_the_path_is_told_with_what_mends_it(
    control_plane: ControlPlane, namespace: str, controllers: None, tmp_path: Path
) -> None:
    """kube-scheduler binds the probe, and no extender has left its annotation."""
    has_cards(control_plane)
    file = written(tmp_path, control_plane, "http://127.0.0.1:1", 2)
    control_plane.start_scheduler()
    with hollow(control_plane, HollowOptions(nodes="")):
        run = command("run", file, "--out", tmp_path / "out")
        done = subprocess.run(run, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "scheduler gpushare: does not bind" in done.stderr
    assert "without the annotation ALIYUN_COM_GPU_MEM_IDX" in done.stderr
    assert "systemctl restart extender" in done.stderr
    assert control_plane.api.list("Namespace", **EXPERIMENT) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_after_ctrl_c_and_sigterm_nothing_is_left_and_nothing_is_kept(
    control_plane: ControlPlane,
    namespace: str,
    controllers: None,
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    has_cards(control_plane)
    file, out = written(tmp_path, control_plane, "http://127.0.0.1:1", 20), tmp_path / "out"
    with (
        weft(control_plane, tmp_path, ALONE, *EXTENDER) as process,
        hollow(control_plane, HollowOptions(nodes="")),
    ):
        control_plane.start_scheduler(extender_config(process.url, "gpushare"))
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored by a child
        running = subprocess.Popen(command("run", file, "--out", out))
        signal.signal(signal.SIGINT, ours)
        control_plane.api.wait_for(
            lambda jobs: len(jobs) >= 3, "Job", version="batch/v1", timeout_s=60, **EXPERIMENT
        )
        running.send_signal(how)
        running.wait(timeout=90)
    assert running.returncode == 130
    assert control_plane.api.list("Namespace", **EXPERIMENT) == []
    assert not cell(out, "gpushare").exists()


class AdjustedClock(SystemClock):
    """The machine's clock, which somebody set `behind_s` seconds back."""

    behind_s = 5.0

    def wall(self) -> datetime.datetime:
        return super().wall() - datetime.timedelta(seconds=self.behind_s)


def two_turns(folder: Path, plane: ControlPlane, url: str) -> Path:
    """The experiment's file: kube-scheduler alone, four Jobs, one seed twice."""
    path = written(folder, plane, url, 4)
    spec = yaml.safe_load(path.read_text())
    spec["cluster"]["schedulers"] = [{"name": "stock", "request": {"resource": "nvidia.com/gpu"}}]
    spec |= {"schedulers": ["stock"], "seeds": {"count": 1}, "repeats": 2}
    for job in spec["workload"]["jobs"]:
        job["annotations"] = {"weft.dev/hollow-run-s": "8"}
    path.write_text(yaml.safe_dump(spec))
    return path


def test_a_turn_that_went_wrong_is_marked_and_in_no_average(
    control_plane: ControlPlane,
    namespace: str,
    controllers: None,
    metrics: Metrics,
    tmp_path: Path,
) -> None:
    """In the first turn another binder is at work, samples get lost, and a node's clock is slow."""
    plane, clock, out = control_plane, AdjustedClock(), tmp_path / "out"
    plane.create_fake_node("node-0", {"nvidia.com/gpu": str(CARDS)})
    file = two_turns(tmp_path, plane, metrics.url)
    plane.start_scheduler()
    with hollow(plane, HollowOptions(nodes=""), clock):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running = subprocess.Popen(command("run", file, "--out", out), **pipes)  # type: ignore[call-overload]
        jobs = plane.api.wait_for(list, "Job", version="batch/v1", timeout_s=180, **EXPERIMENT)
        first = jobs[0]["metadata"]["namespace"]
        metrics.exporter.mood = "broken"
        plane.api.bind(plane.api.get("Pod", "nobodys-pod", first), "node-0")

        plane.api.wait_for(
            lambda all_of: all_of and all(one["metadata"]["name"] != first for one in all_of),
            "Namespace",
            timeout_s=240,
            **EXPERIMENT,
        )
        metrics.exporter.mood, clock.behind_s = "good", 0.0
        _, warned = running.communicate(timeout=240)
    assert running.returncode == 3, warned
    bad, good = (
        json.loads((cell(out, "stock").with_name(name) / RESULT).read_text())
        for name in ("seed=0", "seed=0,repeat=1")
    )
    assert not good.get("marks"), good["marks"]
    for mark in (
        r"a pod of a scheduler that does not exist was bound",
        r"Prometheus (lost|has no) samples of",  # as some were there before, or none
        r"set the machines' clocks \(NTP\)",
    ):
        assert any(re.search(mark, said) for said in bad["marks"]), (mark, bad["marks"])
        assert re.search(rf"seed=0 is marked.*{mark}", warned), (mark, warned)

    words = command("report", out, "--output", "json")
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert "seed=0 is marked as unreliable, and left out of comparisons" in told.stderr, told.stderr
    means = {one["measure"]: one["mean"] for one in json.loads(told.stdout)["summary"]}
    for measure in ("jct_mean_s", "makespan_s"):
        assert means[measure] == pytest.approx(good["measures"][measure])

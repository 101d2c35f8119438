"""From a real API server, a real Prometheus, and a scheduler's own record, into a simulation."""

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from control_plane import ControlPlane
from dialect_pods import node, pods
from kube_api import Objects
from needed_tools import NO_PROMETHEUS, lacking
from processes import Server, free_ports
from state_metrics import Line, line, of_gpu, of_node, of_pod
from weft_process import ALONE, all_bound, nodes, pod, weft

STEP_S = 30


def command(*words: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.cli.main", *map(str, words)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def four_bound(pods: Objects) -> bool:
    return sum("nodeName" in one["spec"] for one in pods) == 4


def test_a_cluster_and_its_schedulers_day_are_simulated(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    api, day = control_plane.api, tmp_path / "day.jsonl"
    nodes(control_plane, 2)
    share = {"elasticgpu.io/gpu-memory": 10_000}
    with weft(control_plane, tmp_path, ALONE, "--decisions", str(day)) as scheduler:
        control_plane.create_pods(namespace, [pod(f"p{i}", "weft", share) for i in range(5)])
        api.wait_for(four_bound, "Pod", namespace, timeout_s=15)
        bound = [one for one in api.list("Pod", namespace) if one["spec"].get("nodeName")]
        api.delete("Pod", bound[0]["metadata"]["name"], namespace)
        api.wait_for(all_bound(4), "Pod", namespace, timeout_s=15)

        # 1. The trace, of the API and of what kubectl would have written.
        listed = {"kind": "List", "items": [*api.list("Node"), *api.list("Pod")]}
        for one in listed["items"]:
            one["kind"] = "Pod" if "containers" in one["spec"] else "Node"
        files = []
        for number, (words, text) in enumerate(
            [
                (("--kubeconfig", control_plane.kubeconfig), None),
                (("-",), json.dumps(listed)),
            ]
        ):
            pair = tmp_path / f"n{number}.csv", tmp_path / f"p{number}.csv"
            said = command(
                *("trace", "from-cluster", *words, "--nodes", pair[0], "--pods", pair[1]),
                text=text,
            )
            assert (said.returncode, said.stderr) == (0, "")
            files.append(tuple(path.read_text() for path in pair))
        assert files[0] == files[1]
        assert files[0][0].count("\nnode-") == 2
        assert files[0][1].count(f"\n{namespace}/p") == 4

        # 2. A process that is killed leaves a file without an end; what is whole is run.
        scheduler.wait_ready(lambda: day.read_text().count('"PodBound"') == 5)
        killed = tmp_path / "killed.jsonl"
        killed.write_bytes(day.read_bytes())
        assert command("replay", killed).returncode == 3
        assert scheduler.end(signal.SIGTERM) == 0
    said = command("replay", day)
    assert (said.returncode, said.stderr) == (0, "")
    for file in (killed, day):
        said = command(
            *("simulate", "--decisions-from", file, "--policy", "binpack", "--output", "json")
        )
        assert said.returncode == 0, said.stderr
        (run,) = json.loads(said.stdout)["runs"]
        assert (run["pods"], run["failed_pods"]) == (5, 0)


# --- out of Prometheus ---------------------------------------------------------------------------


def hour(end_s: int) -> str:
    """An hour of a cluster of three nodes: pods of every dialect come each two minutes, and end."""
    always: list[Line] = [*of_node(node("a")), *of_node(node("b", gpus=2)), *of_node(node("c"))]
    for index in range(2):
        always += of_gpu("b", index, 160.0, 16_000.0, "V100")
    spans = [(one, end_s - 3_600, end_s) for one in always]
    for number, manifest in enumerate(pods()):
        made = end_s - 3_000 + 120 * number
        gone = made + 1_500
        times = {"status_scheduled_time": float(made + 10)}
        if number % 2:
            times["completion_time"] = float(made + 900)
        spans += [(one, made, gone) for one in of_pod(manifest, float(made), **times)]
    lines: dict[str, list[str]] = {}
    for one, begin, until in spans:
        lines.setdefault(one[0], []).extend(line(one, at) for at in range(begin, until, STEP_S))
    texts = (f"# TYPE {name} gauge\n" + "\n".join(told) + "\n" for name, told in lines.items())
    return "".join(texts) + "# EOF\n"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The URL of a Prometheus with that hour in it, and when the hour ended."""
    end_s = int(time.time()) - 3_600
    with remembering(hour(end_s), tmp_path) as url:
        yield url, end_s


@contextmanager
def remembering(text: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a Prometheus with these OpenMetrics samples."""
    program, tool = shutil.which("prometheus"), shutil.which("promtool")
    if program is None or tool is None:
        lacking(NO_PROMETHEUS)
    (tmp_path / "history.om").write_text(text)
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    folder = tmp_path / "tsdb"
    made = [tool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "history.om", folder]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    server = Server(
        [
            program,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        tmp_path / "prometheus.log",
    )
    server.start()
    try:
        server.wait_ready(lambda: ready(url))
        yield url
    finally:
        server.kill()


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_day_out_of_prometheus_has_arrivals_and_durations(
    history: tuple[str, int], tmp_path: Path
) -> None:
    url, end_s = history
    nodes_csv, pods_csv = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end_s))
    asked = ("trace", "from-prometheus", "--url", url, "--hours", 1, "--end", end)
    said = command(*asked, "--nodes", nodes_csv, "--pods", pods_csv, "--output", "json")
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    came = len([*pods()])
    assert (told["nodes"], told["gpus"], told["pods"], told["left_out"]) == (3, 10, came, {})
    header, *rows = [row.split(",") for row in pods_csv.read_text().splitlines()]
    for number, row in enumerate(rows):
        cells = dict(zip(header, row, strict=False))
        made, gone = 600 + 120 * number, 600 + 120 * number + 1_500
        assert int(cells["creation_time"]) == made
        assert int(cells["scheduled_time"]) == made + 10
        if number % 2:
            assert int(cells["deletion_time"]) == made + 900
        elif gone < 3_600 - 120:
            assert abs(int(cells["deletion_time"]) - gone) <= STEP_S
        else:
            assert cells["deletion_time"] == ""
    run = command(
        *("simulate", "--nodes", nodes_csv, "--pods", pods_csv, "--policy", "binpack"),
        *("--timed", "--output", "json"),
    )
    (result,) = json.loads(run.stdout)["runs"]
    assert (result["pods"], result["failed_pods"]) == (came, 0)

    early = command(*asked[:-1], "2001-01-01T00:00:00Z", "--nodes", nodes_csv, "--pods", pods_csv)
    assert early.returncode == 1
    assert f"{url}: has no kube_node_status_allocatable of that time" in early.stderr

"""Profiles out of a real Prometheus' history, and in a ConfigMap that several write to.

The history is made by promtool, so that an hour takes no time. Needs Prometheus:
`apt-get install -y prometheus`.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane
from needed_tools import NO_PROMETHEUS, lacking
from processes import Server, free_ports

from weft.testing import AGENT_BY_NAME

STEP_S, HOUR_S = 15, 3_600
SM, USED, UTIL = "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"
MODEL = "NVIDIA A100-PCIE-40GB"
Values = float | tuple[float, ...]
BLANK = 9223372036854775794
"""The value that DCGM has for "no value"."""


class History:
    """Samples in the OpenMetrics format; times are seconds before now, counted down to 0."""

    def __init__(self) -> None:
        self.now_s = int(time.time()) - 5
        self._series: dict[str, list[str]] = {}

    def play(
        self, name: str, labels: dict[str, str], begin_s: int, end_s: int, *values: float
    ) -> None:
        """One series, the values one after the other again and again."""
        inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
        lines = self._series.setdefault(name, [])
        for number, ago_s in enumerate(range(begin_s, end_s, -STEP_S)):
            value = values[number % len(values)]
            lines.append(f"{name}{{{inner}}} {value} {self.now_s - ago_s}")

    def pod(self, gpu: str, name: str, begin_s: int, end_s: int, **values: Values) -> None:
        """Plays the exporter's series of a GPU while this pod is on it."""
        labels = {
            "gpu": gpu[-1],
            "UUID": gpu,
            "Hostname": "a",
            "modelName": MODEL,
            "exported_pod": name,
            "exported_namespace": "d",
            "exported_container": "lammps" if name == "md" else "c",
            "pod": "dcgm-1",
            "namespace": "monitoring",
            "container": "exporter",
        }
        for metric, value in values.items():
            many = value if isinstance(value, tuple) else (value,)
            self.play(metric, labels, begin_s, end_s, *many)

    def text(self) -> str:
        """The page."""
        parts = []
        for name, lines in self._series.items():
            parts += [f"# TYPE {name} gauge", *lines]
        return "\n".join(parts) + "\n# EOF\n"


def hour() -> History:
    """GPU-0: train alone, train beside bert, bert alone. GPU-1: md, which once says nothing."""
    told = History()
    told.pod("GPU-0", "train-1", HOUR_S, 1_800, **{SM: 0.8, USED: 9_000, UTIL: 95})
    told.pod("GPU-0", "bert-1", 2_400, 1_800, **{SM: 0.8, USED: 9_000, UTIL: 95})
    told.pod("GPU-0", "bert-1", 1_800, 0, **{SM: (0.2, 0.4), USED: 5_000, UTIL: 30})
    told.pod("GPU-1", "md", HOUR_S, 1_800, **{SM: 0.5, USED: 2_000})
    told.pod("GPU-1", "md", 1_800, 900, **{SM: BLANK, USED: 0})
    told.pod("GPU-1", "nameless", 600, 0, **{SM: 0.5, USED: 2_000})
    done = [10.0 * STEP_S * number for number in range(80)]  # ten a second alone, five beside bert
    done += [done[-1] + 5.0 * STEP_S * number for number in range(1, 41)]
    counts = {"exported_namespace": "d", "exported_pod": "train-1", "namespace": "jobs"}
    told.play("train_iterations_total", counts, HOUR_S, 1_800, *done)
    of_train = {"exported_namespace": "d", "exported_pod": "train-1", "namespace": "monitoring"}
    told.play(
        "kube_pod_owner",
        {**of_train, "owner_kind": "ReplicaSet", "owner_name": "train-77"},
        HOUR_S,
        1_800,
        1,
    )
    told.play(
        "kube_replicaset_owner",
        {
            "exported_namespace": "d",
            "replicaset": "train-77",
            "owner_kind": "Deployment",
            "owner_name": "train",
        },
        HOUR_S,
        1_800,
        1,
    )
    marked = {
        "exported_namespace": "d",
        "exported_pod": "bert-1",
        "annotation_weft_dev_application": "bert",
    }
    told.play("kube_pod_annotations", marked, 2_400, 0, 1)
    return told


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A Prometheus with that hour in it."""
    program, tool = shutil.which("prometheus"), shutil.which("promtool")
    if program is None or tool is None:
        lacking(NO_PROMETHEUS)
    (tmp_path / "history.om").write_text(hour().text())
    (tmp_path / "prometheus.yml").write_text("scrape_configs: []\n")
    folder = tmp_path / "tsdb"
    subprocess.run(
        [tool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "history.om", folder],
        check=True,
        capture_output=True,
        timeout=60,
    )
    (port,) = free_ports(1)
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
        server.wait_ready(lambda: ready(f"http://127.0.0.1:{port}"))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def weft(*words: object) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "weft.cli.main", "profile", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_only_times_alone_become_profiles(url: str, tmp_path: Path) -> None:
    kept = tmp_path / "profiles.json"
    code, out, err = weft(
        "collect",
        "--url",
        url,
        "--hours",
        "1.1",
        "--file",
        kept,
        "--output",
        "json",
        "--least-s",
        "400",
        "--progress",
        "train_iterations_total",
    )
    assert code == 0, err
    solos = {one["application"]: one for one in json.loads(out)["solo"]}
    assert set(solos) == {"d/Deployment/train", "bert", "LAMMPS"}
    train, bert, md = (solos[name] for name in ("d/Deployment/train", "bert", "LAMMPS"))
    assert train["gpu_model"] == "NVIDIA-A100-PCIE-40GB"
    assert train["features"]["sm_active_ratio"] == {"mean": 0.8, "p95": 0.8}
    assert train["features"]["gpu_util_ratio"]["mean"] == 0.95
    assert train["rate_per_s"] == pytest.approx(10.0, rel=0.01)
    assert "rate_per_s" not in bert
    assert 900 <= train["seconds"] <= 1_200  # the minute in which it settles is not counted
    assert (train["memory_mib"], train["peak_mib"], train["runs"]) == (9_000, 9_000, 1)
    # What the device did with both is not bert's, nor is the time right after the other left.
    assert bert["features"]["sm_active_ratio"]["p95"] == 0.4
    assert bert["features"]["sm_active_ratio"]["mean"] == pytest.approx(0.3, abs=0.01)
    assert bert["peak_mib"] == 5_000
    assert 1_500 <= bert["seconds"] <= 1_800
    assert 1_500 <= md["seconds"] <= 1_800  # without memory in use nothing was measured
    assert md["features"]["sm_active_ratio"] == {"mean": 0.5, "p95": 0.5}
    assert "1 pods belong to no known application, such as d/nameless" in err
    code, out, _ = weft("list", "--file", kept)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == sorted(solos)


def test_too_little_time_alone_is_told_and_left_out(url: str) -> None:
    code, out, err = weft(
        "collect", "--url", url, "--hours", "0.15", "--output", "json", "--least-s", "1000"
    )
    assert code == 0
    assert json.loads(out).get("solo", []) == []
    assert "bert: alone on a GPU for" in err
    assert "a profile needs 1000" in err


def test_the_cluster_says_which_card_it_is_and_since_when_pods_are_there(
    url: str, control_plane: ControlPlane, namespace: str
) -> None:
    """A pod without marks was bound this moment: from now on nobody on its node is alone."""
    gpus = [
        {"index": at, "memory_mib": 40_000, "uuid": f"GPU-{at}", "model": "A100-by-inventory"}
        for at in range(2)
    ]
    inventory = {"weft.dev/inventory": json.dumps({"gpus": gpus})}
    control_plane.create_fake_node("a", annotations={**inventory, **AGENT_BY_NAME})
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "c", "image": "none", "resources": {"limits": limits}}
    foreign = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "foreign"},
        "spec": {"nodeName": "a", "containers": [container]},
    }
    control_plane.create_pods(namespace, [foreign])
    asked = ["--url", url, "--hours", "1.1", "--output", "json"]
    code, out, err = weft("collect", *asked, "--kubeconfig", control_plane.kubeconfig)
    assert code == 0, err
    found = json.loads(out)["solo"]
    assert {(one["application"], one["gpu_model"]) for one in found} == {
        (name, "A100-by-inventory") for name in ("d/Deployment/train", "bert", "LAMMPS")
    }


def test_writers_of_one_config_map_lose_nothing(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Four processes at once; and what others keep in the same ConfigMap stays."""
    files = []
    for name in ("a", "b", "c", "d"):
        files.append(tmp_path / f"{name}.json")
        solo = {"application": name, "gpu_model": "T4", "isolation": "mps", "runs": 3}
        files[-1].write_text(
            json.dumps(
                {
                    "apiVersion": "weft.dev/v1",
                    "kind": "InterferenceDataset",
                    "solo": [solo],
                }
            )
        )
    where = ("--config-map", f"{namespace}/profiles", "--kubeconfig", control_plane.kubeconfig)
    ended: list[tuple[int, str, str]] = []
    threads = [
        threading.Thread(target=lambda file=file: ended.append(weft("import", file, *where)))
        for file in files
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code for code, _, _ in ended] == [0] * 4, ended
    code, out, _ = weft("export", *where)
    assert code == 0
    assert [one["application"] for one in json.loads(out)["solo"]] == ["a", "b", "c", "d"]

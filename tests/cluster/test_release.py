"""The files of a release: the same bytes twice; the chart as helm reads it; the wheel, installed
into an empty environment beside no checkout, does the main jobs."""

import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from helm import CHART, find_or_build, helm_at

ROOT = CHART.parents[1]
UV = ROOT / ".venv" / "bin" / "uv"
EPOCH_S = 1_700_000_000
EXPERIMENT = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload: {kind: openb, nodes: nodes.csv, pods: pods.csv}
schedulers: [fgd, best-fit]
seeds: {count: 2}
"""


def make_release(folder: Path) -> Path:
    script = [sys.executable, ROOT / "deploy" / "make_release.py", folder]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH_S)}
    subprocess.run(script, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("release"))


def test_two_builds_are_the_same_bytes_and_the_sums_are_theirs(
    release: Path, tmp_path: Path
) -> None:
    again = make_release(tmp_path / "again")
    files = {path.name: path.read_bytes() for path in release.iterdir()}
    assert files == {path.name: path.read_bytes() for path in again.iterdir()}
    sums = dict(reversed(line.split("  ")) for line in files["SHA256SUMS"].decode().splitlines())
    assert {name: hashlib.sha256(files[name]).hexdigest() for name in sums} == sums
    assert sums.keys() == files.keys() - {"SHA256SUMS", ".gitignore"}


def test_a_folder_with_files_is_left_alone(release: Path) -> None:
    script = [sys.executable, ROOT / "deploy" / "make_release.py", release]
    ran = subprocess.run(script, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "has files already" in ran.stderr


def test_helm_renders_the_packed_chart_as_the_folder(release: Path) -> None:
    helm = find_or_build(lambda _: None, build=False)
    (packed,) = release.glob("weft-*.tgz")
    options = ("--set=image.repository=registry.example/weft-gpu",)
    both = [helm_at(helm, "template", "weft", str(chart), *options) for chart in (packed, CHART)]
    assert both[0] == both[1]
    assert yaml.safe_load(helm_at(helm, "show", "chart", str(packed)))["name"] == "weft"


def test_the_sbom_lists_every_locked_dependency(release: Path) -> None:
    found = json.loads((release / "sbom.cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")
    listed = {one["name"]: one["purl"] for one in found["components"]}
    assert {"aiohttp", "numpy", "grpcio", "nvidia-ml-py"} <= listed.keys()
    assert listed.keys().isdisjoint({"pytest", "ruff", "hypothesis"})
    assert listed["numpy"].startswith("pkg:pypi/numpy@")


@pytest.fixture(scope="module")
def installed(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a wheel in an environment of its own."""
    place = tmp_path_factory.mktemp("empty") / "env"
    (wheel,) = release.glob("*.whl")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for command in (
        ["venv", "--python", version, place],
        ["pip", "install", "--python", place / "bin" / "python", f"{wheel}[experiments]"],
    ):
        subprocess.run([UV, "--quiet", *command], check=True, cwd=place.parent)
    return place / "bin" / "weft"


def test_the_wheel_does_the_main_jobs(installed: Path, tmp_path: Path) -> None:
    def weft(*arguments: str) -> str:
        ran = subprocess.run(
            [installed, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
        return ran.stdout

    python = installed.with_name("python")
    where = [python, "-c", "import weft; print(weft.__file__)"]
    beside = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert str(ROOT) not in beside
    weft("generate", "nodes", "nodes.csv", "--gpus", "32")
    weft("generate", "pods", "pods.csv", "--gpus", "32")
    trace = ("--nodes", "nodes.csv", "--pods", "pods.csv")
    out = weft("simulate", *trace, "--policy", "fgd", "--seeds", "1", "--report", "report")
    assert "fgd" in out
    assert (tmp_path / "report" / "report.html").exists()
    (tmp_path / "pod.yaml").write_text((ROOT / "examples" / "weft" / "pods.yaml").read_text())
    assert "weft" in weft("parse", "pod.yaml")
    assert "kind: Experiment" in weft("experiment", "init")
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    weft("experiment", "run", "experiment.yaml")
    assert len(list((tmp_path / "build" / "experiments").rglob("result.json"))) == 4


def test_the_wheels_console_shows_a_living_cluster(installed: Path, tmp_path: Path) -> None:
    command = [installed, "console", "--demo", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as console:
        try:
            assert console.stdout is not None
            said = ""
            for line in console.stdout:
                said += line
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                raise AssertionError(said)
            with urllib.request.urlopen(found[0], timeout=30) as page:
                assert b"<html" in page.read()
        finally:
            console.terminate()

"""The files of a release: the same bytes twice; the chart as helm reads it; the wheel, installed
into an empty environment beside no checkout, does the main jobs."""

import hashlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import pytest
import yaml
from helm import CHART, find_or_build, helm_at

import weft

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


def make_release(folder: Path, **environment: str) -> str:
    """Make it there; what stderr says."""
    script = [sys.executable, ROOT / "deploy" / "make_release.py", folder, "--allow-unreleased"]
    known = os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH_S)} | environment
    cache = ("--image-cache", find_or_build(lambda _: None, build=False).parents[2] / "image")
    done = subprocess.run([*script, *cache], env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    make_release(folder)
    return folder


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_two_builds_are_the_same_bytes_and_the_sums_are_theirs(
    release: Path, tmp_path: Path
) -> None:
    """Wheel, sdist, chart, SBOM and Weft's own part of the image are built twice. What the image
    has of Debian and of locked wheels is taken from the cache of tools both times: Debian's
    archive may change between two builds."""
    make_release(tmp_path)
    digests = digests_of(release)
    assert digests == digests_of(tmp_path)
    text = (release / "SHA256SUMS").read_text()
    sums = dict(reversed(line.split("  ")) for line in text.splitlines())
    assert {name: digests[name] for name in sums} == sums
    assert sums.keys() == digests.keys() - {"SHA256SUMS", ".gitignore"}


def needs_debian() -> None:
    if shutil.which("mmdebstrap") is None or os.geteuid() != 0:
        assert os.environ.get("CI") != "true", (
            "no root, or no mmdebstrap: apt-get install mmdebstrap"
        )
        pytest.skip("the image is made of Debian's packages: needs root and mmdebstrap")


def test_the_image_archive_names_this_version(release: Path) -> None:
    needs_debian()
    (image,) = release.glob(f"weft-image-{weft.__version__}-*.tar.gz")
    with tarfile.open(image) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        assert json.load(manifest)[0]["RepoTags"] == [f"weft-gpu:{weft.__version__}"]


def test_a_release_without_tools_for_the_image_is_made_and_says_so(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "git").symlink_to(shutil.which("git") or "git")
    said = make_release(tmp_path / "release", PATH=str(bare))
    assert "WITHOUT AN IMAGE ARCHIVE" in said
    assert "mmdebstrap" in said or "root" in said
    names = {path.name.partition("-")[0] for path in (tmp_path / "release").iterdir()}
    assert {"weft", "weft_gpu", "sbom.cdx.json", "SHA256SUMS"} <= names
    assert not list((tmp_path / "release").glob("weft-image-*"))


def test_a_folder_with_files_is_left_alone(release: Path) -> None:
    script = [sys.executable, ROOT / "deploy" / "make_release.py", release]
    ran = subprocess.run(script, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "has files already" in ran.stderr


def refused(folder: Path, changelog: Path) -> str:
    """Try to make a release with these notes, which is refused; return what is said."""
    script = [sys.executable, ROOT / "deploy" / "make_release.py", folder]
    ran = subprocess.run(
        [*script, "--changelog", changelog], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    return ran.stderr


def test_a_version_whose_notes_lack_changes_is_not_released(tmp_path: Path) -> None:
    changelog, folder = tmp_path / "CHANGELOG.md", tmp_path / "release"
    head = f"## [{weft.__version__}]\n\n### Added\n\n- Old.\n"
    changelog.write_text(f"# Changelog\n\n## [Unreleased]\n\n### Added\n\n- New.\n\n{head}")
    said = refused(folder, changelog)
    assert f"{changelog}: 1 entry under [Unreleased]" in said
    assert f"move it under [{weft.__version__}]" in said
    assert not list(folder.iterdir())


@pytest.mark.parametrize("version", ["", "0.0.1", f"{weft.__version__}.post1"])
def test_a_version_without_a_heading_in_the_notes_is_not_released(
    version: str, tmp_path: Path
) -> None:
    changelog, folder = tmp_path / "CHANGELOG.md", tmp_path / "release"
    head = (
        f"## [{version}]\n\n### Added\n\n- Old, unlike [{weft.__version__}].\n" if version else ""
    )
    changelog.write_text(f"# Changelog\n\n## [Unreleased]\n\n{head}")
    said = refused(folder, changelog)
    assert f"{changelog}: no heading `## [{weft.__version__}]`" in said
    assert not list(folder.iterdir())


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


def test_the_sbom_lists_the_images_debian_packages(release: Path) -> None:
    needs_debian()
    found = json.loads((release / "sbom.cdx.json").read_text())
    listed = {one["name"]: one for one in found["components"] if "pkg:deb/" in one["purl"]}
    assert {"libc6", "libssl3", "python3.11-minimal", "ca-certificates", "tzdata"} <= listed.keys()
    version = listed["libc6"]["version"].replace("+", "%2B")
    assert listed["libc6"]["purl"].startswith(f"pkg:deb/debian/libc6@{version}?arch=")
    (image,) = release.glob("weft-image-*")
    with (
        tarfile.open(image) as archive,
        tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer,
    ):
        libraries = [name for name in layer.getnames() if re.search(r"/libssl\.so\.3$", name)]
    assert libraries, "the package that is listed is in the image"


def tar_of(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def about(name: str, version: str, status: str = "") -> str:
    lines = [f"Package: {name}", *([f"Status: {status}"] if status else [])]
    return "\n".join([*lines, "Architecture: amd64", f"Version: {version}", ""])


def packages_of(folder: Path, *layers: dict[str, str]) -> dict[str, str]:
    """The versions of the Debian packages that a release lists for an image of these layers, whose
    names are in no order."""
    names = [f"{len(layers) - number}.tar" for number, _ in enumerate(layers)]
    files = {
        name: tar_of({path: text.encode() for path, text in layer.items()})
        for name, layer in zip(names, layers, strict=True)
    }
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    archive = folder / "image.tar"
    archive.write_bytes(tar_of({"manifest.json": manifest, **dict(sorted(files.items()))}))
    read = runpy.run_path(str(ROOT / "deploy" / "make_release.py"))["debian_packages"]
    return {each["Package"]: each["Version"] for each in read(archive)}


def test_the_sbom_has_the_packages_that_are_installed_in_the_last_layer(tmp_path: Path) -> None:
    installed, status, folder = (
        "install ok installed",
        "var/lib/dpkg/status",
        "var/lib/dpkg/status.d",
    )
    known = [
        about("libc6", "1", installed),
        about("gcc-12", "1", "deinstall ok config-files"),
        about("held", "1", "hold ok installed"),
        about("broken", "1", "install ok half-installed"),
        about("make", "1", installed),
    ]
    base = {f"./{status}": "\n".join(known)}
    assert packages_of(tmp_path, base) == {"libc6": "1", "held": "1", "make": "1"}
    later = {status: about("libc6", "2", installed)}
    assert packages_of(tmp_path, base, later) == {"libc6": "2"}
    assert packages_of(tmp_path, later, base) == {"libc6": "1", "held": "1", "make": "1"}
    assert packages_of(tmp_path, base, {"app/main.py": ""}, {"var/lib/.wh.dpkg": ""}) == {}
    extracted = {
        f"{folder}/libssl3": about("libssl3", "3"),
        f"{folder}/libssl3.md5sums": "0  usr/lib/libssl.so.3\n",
        f"{folder}/tzdata": about("tzdata", "1"),
    }
    assert packages_of(tmp_path, extracted) == {"libssl3": "3", "tzdata": "1"}
    upgraded = {f"{folder}/.wh.tzdata": "", f"{folder}/libssl3": about("libssl3", "4")}
    assert packages_of(tmp_path, extracted, upgraded) == {"libssl3": "4"}
    opaque = {f"{folder}/.wh..wh..opq": "", f"{folder}/tzdata": about("tzdata", "2")}
    assert packages_of(tmp_path, extracted, opaque) == {"tzdata": "2"}


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
    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [installed, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (arguments, ran.stdout, ran.stderr)
        return ran.stdout

    python = installed.with_name("python")
    where = [python, "-c", "import weft; print(weft.__file__)"]
    beside = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert str(ROOT) not in beside
    run("generate", "nodes", "nodes.csv", "--gpus", "32")
    run("generate", "pods", "pods.csv", "--gpus", "32")
    trace = ("--nodes", "nodes.csv", "--pods", "pods.csv")
    out = run("simulate", *trace, "--policy", "fgd", "--seeds", "1", "--report", "report")
    assert "fgd" in out
    assert (tmp_path / "report" / "report.html").exists()
    (tmp_path / "pod.yaml").write_text((ROOT / "examples" / "weft" / "pods.yaml").read_text())
    assert "weft" in run("parse", "pod.yaml")
    assert "kind: Experiment" in run("experiment", "init")
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    run("experiment", "run", "experiment.yaml")
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

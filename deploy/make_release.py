"""Makes the files of a release in a folder: wheel, sdist, chart, image, SBOM and SHA-256 sums.

    make_release.py [FOLDER] [--base IMAGE] [--allow-unreleased]        dist/ if unset

The same commit gives the same bytes: times in archives are the commit's (or SOURCE_DATE_EPOCH).
Needs what `make venv` has made. The version is src/weft/__init__.py's, which the chart's must be.
CHANGELOG.md must have a heading with it, and under that all changes: none under [Unreleased].

The image is the Dockerfile's where buildah or podman has or can pull its base, else of
Debian's packages (image/make_image.py); where neither can be made, stderr says so, and the release
is without. Its bytes are the same as long as what it is made of is: Debian's and the base's.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from weft import __version__

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart"
UV = ROOT / ".venv" / "bin" / "uv"
MAKE_IMAGE = ROOT / "deploy" / "image" / "make_image.py"
SUMS = "SHA256SUMS"
STATUS_FILE, STATUS_FOLDER = "var/lib/dpkg/status", "var/lib/dpkg/status.d"
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
"""How a layer removes a file of the layers below, and all files of a folder."""


def main() -> None:
    """Make all files, and list them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    parser.add_argument("--base", default="", help="The Dockerfile's base image.")
    parser.add_argument("--changelog", type=Path, default=ROOT / "CHANGELOG.md")
    allows = "Make a version whose notes lack changes, to try how it is made."
    parser.add_argument("--allow-unreleased", action="store_true", help=allows)
    parser.add_argument("--image-cache", type=Path, help="Where what is slow to make is kept.")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if left := [path.name for path in folder.iterdir() if path.name != ".gitignore"]:
        sys.exit(f"{folder} has files already, such as {left[0]}; remove them")
    version, epoch_s = version_of_all(), epoch()
    if not options.allow_unreleased:
        refuse_unreleased(options.changelog, version)
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch_s)}
    uv("build", "--out-dir", str(folder), environment=environment)
    (folder / f"weft-{version}.tgz").write_bytes(chart_archive(epoch_s))
    debian: list[dict[str, str]] = []
    tag = f"weft-gpu:{version}"
    with tempfile.TemporaryDirectory(prefix="weft-release-") as name:
        archive = Path(name) / "image.tar"
        if of_dockerfile(archive, tag, options.base, epoch_s) or of_debian(
            archive, tag, options.image_cache
        ):
            debian = debian_packages(archive)
            packed = gzip.compress(archive.read_bytes(), compresslevel=6, mtime=epoch_s)
            (folder / f"weft-image-{version}-{platform.machine()}.tar.gz").write_bytes(packed)
    (folder / "sbom.cdx.json").write_text(sbom(epoch_s, debian))
    files = sorted(path for path in folder.iterdir() if path.name not in {SUMS, ".gitignore"})
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(sums))
    sys.stdout.writelines(f"{path}\n" for path in (*files, folder / SUMS))


def version_of_all() -> str:
    """The one version; the chart must have it too."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    if not chart["version"] == chart["appVersion"] == __version__:
        sys.exit(f"deploy/chart/Chart.yaml: not Weft's version, {__version__}: run make manifests")
    return __version__


def refuse_unreleased(changelog: Path, version: str) -> None:
    """Exit where the notes lack the version, or changes are under no version: they would be in the
    release and not in its notes."""
    notes = changelog.read_text()
    if not any(line.startswith(f"## [{version}]") for line in notes.splitlines()):
        sys.exit(
            f"{changelog}: no heading `## [{version}]`, so {version} has no notes; add it, with "
            "all changes since the version before"
        )
    text = notes.partition("\n## [Unreleased]")[2].partition("\n## [")[0]
    count = sum(line.startswith("- ") for line in text.splitlines())
    if count:
        entries, them = ("entry", "it") if count == 1 else ("entries", "them")
        sys.exit(
            f"{changelog}: {count} {entries} under [Unreleased], which the notes of {version} "
            f"lack; move {them} under [{version}], or set a new version in src/weft/__init__.py, "
            "run make manifests and give it a heading"
        )


def epoch() -> int:
    """The time of all files in archives, seconds since 1970: the commit's."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(said)
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def uv(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run uv in the project; its output."""
    command = [str(UV), "--quiet", *arguments]
    ran = subprocess.run(
        command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    return ran.stdout


def chart_archive(epoch_s: int) -> bytes:
    """The chart as `helm package` makes it, but with equal bytes for equal files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(f"weft/{path.relative_to(CHART).as_posix()}")
            content = path.read_bytes()
            entry.size, entry.mtime, entry.mode = len(content), epoch_s, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=epoch_s)


def of_dockerfile(archive: Path, tag: str, base: str, epoch_s: int) -> bool:
    """Write the Dockerfile's image; False where no tool has its base."""
    for tool in ("buildah", "podman"):
        if not base or shutil.which(tool) is None:
            continue
        kept = ("--type", "image", base)
        if not ran(tool, "inspect", *kept) and not ran(tool, "pull", "--quiet", base):
            continue
        build = ("build", "--tag", tag, "--build-arg", f"BASE={base}", "--timestamp", str(epoch_s))
        subprocess.run([tool, *build, str(ROOT)], check=True, stdout=sys.stderr)
        save = ("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")
        subprocess.run([tool, *save], check=True, stdout=sys.stderr)
        return True
    return False


def of_debian(archive: Path, tag: str, cache: Path | None) -> bool:
    """Write the image of Debian's packages; False, and why on stderr, where that cannot be."""
    command = [sys.executable, str(MAKE_IMAGE), str(archive), "--tag", tag]
    done = subprocess.run([*command, *(("--cache", str(cache)) if cache else ())], check=False)
    if done.returncode != 0:
        sys.stderr.write(
            "make release: WITHOUT AN IMAGE ARCHIVE: neither buildah nor podman has a base for the "
            "Dockerfile (--base), and none could be made of Debian's packages (why: above)\n"
        )
    return done.returncode == 0


def ran(*command: str) -> bool:
    """Run it quietly; whether it succeeded."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def debian_packages(archive: Path) -> list[dict[str, str]]:
    """The Debian packages that are installed in the image of a docker-archive, each with its
    fields; empty where its base is not of Debian's. Later layers replace or remove what earlier
    ones say."""
    found: dict[str, list[dict[str, str]]] = {}
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=image.extractfile(name)) as layer:
                gone = {removed_by(path_of(member)) for member in layer} - {""}
                kept = {
                    path: packages
                    for path, packages in found.items()
                    if not any(path == each or path.startswith(f"{each}/") for each in gone)
                }
                found = kept | described(layer)
    installed = {
        (package["Package"], package["Architecture"]): package
        for packages in found.values()
        for package in packages
    }
    return [installed[key] for key in sorted(installed)]


def path_of(member: tarfile.TarInfo) -> str:
    """Its path from the image's root."""
    return member.name.removeprefix("./").lstrip("/")


def removed_by(path: str) -> str:
    """The path that this file of a layer removes from the layers below; "" if none."""
    folder, _, name = path.rpartition("/")
    if name == OPAQUE:
        return folder
    if not name.startswith(WHITEOUT):
        return ""
    return f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/")


def described(layer: tarfile.TarFile) -> dict[str, list[dict[str, str]]]:
    """The installed packages by the file of the layer that says so: dpkg's, or that of one package
    as in images without dpkg, which need not give a status."""
    found: dict[str, list[dict[str, str]]] = {}
    for member in layer.getmembers():
        path = path_of(member)
        folder, _, name = path.rpartition("/")
        is_one = folder == STATUS_FOLDER and not name.endswith(".md5sums")
        if not member.isfile() or not (is_one or path == STATUS_FILE):
            continue
        content = layer.extractfile(member)
        assert content is not None
        packages = found[path] = []
        for paragraph in content.read().decode(errors="replace").split("\n\n"):
            lines = [line.partition(": ") for line in paragraph.splitlines() if line[:1].strip()]
            fields = {key: said for key, _, said in lines}
            # The last word is the state: a package on hold is installed too ("hold ok installed").
            status = fields.get("Status", "installed" if is_one else "").split()
            if {"Package", "Version", "Architecture"} <= fields.keys():
                packages += [fields] if status[-1:] == ["installed"] else []
    return found


def component_of(package: dict[str, str]) -> dict[str, str]:
    """A Debian package as CycloneDX has it."""
    name, version = package["Package"], package["Version"]
    purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={package['Architecture']}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def sbom(epoch_s: int, debian: list[dict[str, str]]) -> str:
    """What the wheel and the image are made of, as CycloneDX: the locked dependencies with the
    agent's, and the image's Debian packages. The time is the commit's, the serial number follows
    from the content."""
    said = uv("export", "--format", "cyclonedx1.5", "--frozen", "--no-dev", "--extra", "agent")
    found: dict[str, Any] = json.loads(said)
    found["metadata"]["timestamp"] = datetime.fromtimestamp(epoch_s, UTC).isoformat()
    found.pop("serialNumber", None)
    found["components"] += map(component_of, debian)
    text = json.dumps(found, sort_keys=True)
    found["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    main()

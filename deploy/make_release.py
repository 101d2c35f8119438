"""Makes the files of a release in a folder: wheel, sdist, chart, SBOM and SHA-256 sums.

    make_release.py [FOLDER]        dist/ if unset

The same commit gives the same bytes: times in archives are the commit's (or SOURCE_DATE_EPOCH).
Needs what `make venv` has made. The version is pyproject.toml's, which the chart's must be.
"""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart"
UV = ROOT / ".venv" / "bin" / "uv"
SUMS = "SHA256SUMS"


def main() -> None:
    """Make all files, and list them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    if left := [path.name for path in folder.iterdir() if path.name != ".gitignore"]:
        sys.exit(f"{folder} has files already, such as {left[0]}; remove them")
    version, epoch_s = version_of_all(), epoch()
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch_s)}
    uv("build", "--out-dir", str(folder), environment=environment)
    (folder / f"weft-{version}.tgz").write_bytes(chart_archive(epoch_s))
    (folder / "sbom.cdx.json").write_text(sbom(epoch_s))
    files = sorted(path for path in folder.iterdir() if path.name not in {SUMS, ".gitignore"})
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(sums))
    sys.stdout.writelines(f"{path}\n" for path in (*files, folder / SUMS))


def version_of_all() -> str:
    """The one version; the chart must have it too."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    if not chart["version"] == chart["appVersion"] == version:
        sys.exit(f"deploy/chart/Chart.yaml: its versions must be pyproject.toml's, {version}")
    return version


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


def sbom(epoch_s: int) -> str:
    """What the wheel and the image are made of, as CycloneDX: the locked dependencies with the
    agent's. The time is the commit's, the serial number follows from the content."""
    said = uv("export", "--format", "cyclonedx1.5", "--frozen", "--no-dev", "--extra", "agent")
    found: dict[str, Any] = json.loads(said)
    found["metadata"]["timestamp"] = datetime.fromtimestamp(epoch_s, UTC).isoformat()
    found.pop("serialNumber", None)
    text = json.dumps(found, sort_keys=True)
    found["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    main()

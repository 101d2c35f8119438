"""Weft's image of Debian's packages, as `make image` makes it, for tests; and the one before it."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = ROOT / "deploy" / "image" / "make_image.py"
MOST_MB = 350
# The first that had a chart. Where there are releases, write the last one's tag.
PREVIOUS = "c5283469b96b"
_PACKAGE = "usr/local/lib/python3.11/dist-packages/weft"
_PLAYED = "played/gpus.yaml"
# The chart before had no GPUs that are played: its agent is told here.
_COMMAND = f"""#!/usr/bin/python3.11
import sys
if sys.argv[1:2] == ["agent"]:
    sys.argv.append("--devices=/{_PLAYED}")
from weft.cli.main import main
main()
"""


def make(file: Path, tag: str) -> Path:
    """Write it; the test is skipped where Debian's packages cannot be had, but not in CI."""
    command = [sys.executable, str(MAKE), str(file), "--tag", tag, "--cache", str(cache())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "no mmdebstrap" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return file


def previous_sources(folder: Path) -> tuple[Path, str]:
    """Source and chart of the version before, below `folder`, and what it is in words.

    A clone without history has but one version: then this one stands in for the one before, and
    only the way is tested, not that both understand each other's records.
    """
    there = _git("cat-file", "-e", f"{PREVIOUS}^{{commit}}").returncode == 0
    commit, what = (PREVIOUS, f"commit {PREVIOUS}") if there else ("HEAD", "this version itself")
    found = _git("archive", commit, "src/weft", "deploy/chart")
    assert found.returncode == 0, found.stderr
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder, what


def add_previous(file: Path, sources: Path, tag: str, played: Path) -> None:
    """Append the image of these sources to the archive: the same libraries, another Weft."""
    package = sources / "src" / "weft"
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, "-s", package, "-p", f"/{_PACKAGE}", package], check=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as made:
        _add(made, f"{_PACKAGE}/.wh..wh..opq", b"")  # nothing of the layers below is seen there
        made.add(package, _PACKAGE)
        _add(made, "usr/local/bin/weft", _COMMAND.encode(), 0o755)
        _add(made, _PLAYED, played.read_bytes())
    with tarfile.open(file) as archive:
        manifest = json.load(_member(archive, "manifest.json"))
        config = json.load(_member(archive, manifest[0]["Config"]))
    config["rootfs"]["diff_ids"].append(f"sha256:{_digest(layer.getvalue())}")
    text = json.dumps(config).encode()
    name = f"{_digest(text)}.json"
    layers = [*manifest[0]["Layers"], "previous.tar"]
    manifest.append({"Config": name, "RepoTags": [tag], "Layers": layers})
    _replace(file, "manifest.json", json.dumps(manifest).encode())
    with tarfile.open(file, "a") as archive:
        _add(archive, "previous.tar", layer.getvalue())
        _add(archive, name, text)


def _replace(file: Path, name: str, content: bytes) -> None:
    """The archive with another text under this name, which is its last."""
    with tarfile.open(file) as archive:
        (last,) = (one for one in archive.getmembers() if one.name == name)
        assert last.name == archive.getmembers()[-1].name
    with file.open("r+b") as raw:
        raw.truncate(last.offset)
        raw.seek(last.offset)
        raw.write(bytes(2 * tarfile.BLOCKSIZE))  # how an archive ends
    with tarfile.open(file, "a") as archive:
        _add(archive, name, content)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _git(*arguments: str) -> "subprocess.CompletedProcess[Any]":
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=False)


def cache() -> Path:
    """Where what is slow to make is kept between runs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "weft" / "image"

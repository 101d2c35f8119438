"""Weft's image of Debian's packages, as `make image` makes it, for tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = ROOT / "deploy" / "image" / "make_image.py"


def make(file: Path, tag: str) -> Path:
    """Write it; the test is skipped where Debian's packages cannot be had, but not in CI."""
    command = [sys.executable, str(MAKE), str(file), "--tag", tag, "--cache", str(_cache())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "no mmdebstrap" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return file


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "weft" / "image"

"""Images in the documentation are those that `make images` draws today."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_figure_is_that_of_make_demo() -> None:
    subprocess.run(["make", "demo"], cwd=ROOT, check=True, capture_output=True)
    drawn = ROOT / "build" / "demo" / "report" / "allocation.svg"
    shown = ROOT / "docs" / "images" / "allocation.svg"
    assert shown.read_bytes() == drawn.read_bytes(), "run make images"

"""The measurements of `make gpu-check` on an H200 are read, and are as the documents say."""

from pathlib import Path
from statistics import median

import pytest
from interference_world import QUICK

from weft.interference import dataset
from weft.interference.evaluate import Examination, examine

ROOT = Path(__file__).parents[3]
FILE = ROOT / "benchmarks" / "results" / "interference_h200.json"
MEASURED = dataset.decode(FILE.read_bytes(), FILE.name)


@pytest.mark.parametrize(("isolation", "pairs"), [("time-slicing", 19), ("mps", 20)])
def test_the_documents_have_its_numbers(isolation: str, pairs: int) -> None:
    runs = [run for run in MEASURED.corun if run.isolation == isolation]
    speeds = sorted(run.speed for run in runs)
    assert len({frozenset((run.target, *run.aggressors)) for run in runs}) == pairs
    text = (ROOT / "docs" / "explanation" / "isolation.md").read_text()
    row = f"| {median(speeds):.2f} | {speeds[0]:.2f} |"
    assert any(row in line and f"`{isolation}`" in line for line in text.splitlines())


def test_what_is_learnt_from_half_of_it_beats_a_constant() -> None:
    measured = dataset.measured(MEASURED, "h200")
    found = examine(measured, Examination(seeds=2, effort=QUICK), ("random",))
    assert len(found) == 2
    for result in found:
        assert result.methods["weft"].mae < 0.8 * result.methods["constant"].mae

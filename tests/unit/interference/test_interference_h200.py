"""The measurements of `make gpu-check` on two H200s are read, and are as the documents say."""

from pathlib import Path
from statistics import median

import pytest
from interference_world import QUICK

from weft.interference import dataset
from weft.interference.evaluate import Examination, examine

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
MEASURED, SECOND = (
    dataset.decode((RESULTS / name).read_bytes(), name)
    for name in ("interference_h200.json", "interference_h200_second.json")
)
BUSY = {"elementwise", "encoder-train", "gemm-bf16", "mobilenet-train", "resnet-train"}
"""The workloads that keep the GPU busy: the others wait for the CPU."""


@pytest.mark.parametrize(("isolation", "pairs"), [("time-slicing", (19, 19)), ("mps", (20, 18))])
def test_the_documents_have_their_numbers(isolation: str, pairs: tuple[int, int]) -> None:
    row = ""
    for measured, expected in zip((MEASURED, SECOND), pairs, strict=True):
        runs = [run for run in measured.corun if run.isolation == isolation]
        speeds = sorted(run.speed for run in runs)
        assert len({frozenset((run.target, *run.aggressors)) for run in runs}) == expected
        row += f"| {median(speeds):.2f} | {speeds[0]:.2f} "
    text = (ROOT / "docs" / "explanation" / "isolation.md").read_text()
    assert any(f"{row}|" in line and f"`{isolation}`" in line for line in text.splitlines())


def test_what_was_measured_twice_repeats_where_the_gpu_is_the_limit() -> None:
    first, second = (
        {(run.isolation, run.target, run.aggressors): run.speed for run in measured.corun}
        for measured in (MEASURED, SECOND)
    )
    twice = first.keys() & second.keys()
    changes = {key: abs(first[key] - second[key]) for key in twice}
    busy = [change for key, change in changes.items() if key[1] in BUSY]
    others = [change for key, change in changes.items() if key[1] not in BUSY]
    assert (len(twice), len(busy), round(median(busy), 2), round(max(busy), 2)) == (
        50,
        26,
        0.01,
        0.03,
    )
    assert (round(median(others), 2), round(max(others), 2)) == (0.09, 0.33)


def test_what_is_learnt_from_half_of_it_beats_a_constant() -> None:
    measured = dataset.measured(MEASURED, "h200")
    found = examine(measured, Examination(seeds=2, effort=QUICK), ("random",))
    assert len(found) == 2
    for result in found:
        assert result.methods["weft"].mae < 0.8 * result.methods["constant"].mae

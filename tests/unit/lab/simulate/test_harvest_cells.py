"""The safety grid makes equal runs once: they are equal, run by run."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from long_form import few_or_many

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import CellLevel, PlannedCell
from weft.lab.simulate.sharing.pipeline import METRICS

SCRIPT = Path(__file__).resolve().parents[4] / "benchmarks" / "bench_harvest.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_harvest", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("policy", "fault", "same"),
    [
        ("horus", "noise-10", "sound"),
        ("auto", "late-300", "missing-100"),
        ("ferikoglou-safe", "sm-active-most", "sound"),
        ("kube-knots-cbp", "power-zero", "sound"),
        ("genius", "gpu-util-most", "sound"),
    ][: few_or_many(1, 5)],
)
def test_faults_that_change_nothing_change_nothing(
    bench: ModuleType, policy: str, fault: str, same: str
) -> None:
    cards = bench.Cards()
    assert bench.same_as(policy, bench.SafeCell(cards, fault)) == bench.SafeCell(cards, same)
    runner = runner_of(cards.spec, {}, built_in().from_spec)
    levels = list(bench.faults_of(cards.spec))
    runs = [
        runner.run(
            PlannedCell(
                (CellLevel("percent", 2, "100"), CellLevel("faults", levels.index(name), name)),
                policy,
                1,
            )
        ).run
        for name in (fault, same)
    ]
    assert runs[0] == runs[1]


def test_what_a_policy_reads_is_run(bench: ModuleType) -> None:
    """Every metric for those that read all; every fault where there are several cards."""
    one, four = bench.Cards(), bench.Cards(4)
    spoofed = [name for name, fault in bench.faults_of(one.spec).items() if fault.spoof]
    assert len(spoofed) == 2 * len(METRICS)
    for name in [*spoofed, "late-60"]:
        cell = bench.SafeCell(one, name)
        assert bench.same_as("auto", cell) == cell
        assert bench.same_as("load-aware", cell) == cell
    noisy = bench.SafeCell(four, "noise-10")
    assert bench.same_as("horus", noisy) == noisy
    assert bench.same_as("binpack", noisy) == bench.SafeCell(four, "sound")
    limited = bench.SafeCell(bench.Cards(1, "late", 1.5), "sound")
    assert bench.same_as("auto", limited) == limited
    assert bench.same_as("binpack", limited).cards.limit == bench.NO_LIMIT


def test_every_cell_of_the_safety_grid_is_a_cell_of_its_specification(bench: ModuleType) -> None:
    cells = list(bench.safe_cells())
    assert len({str(cell) for cell in cells}) == len(cells) == 51
    for cell in cells:
        assert cell.fault in bench.faults_of(cell.cards.spec)


def test_a_cell_is_settled_early_only_where_nothing_is_in_doubt(bench: ModuleType) -> None:
    def runs(*percents: float) -> list[dict[str, float]]:
        return [{"jct_mean_s": 100.0 + one} for one in percents]

    base = runs(0, 0, 0, 0, 0)
    assert bench.is_sure(runs(0.0, 0.1, 0.0, 0.1, 0.0), base)
    assert bench.is_sure(runs(-50, -51, -49, -50, -50), base)
    assert not bench.is_sure(runs(1.0, 1.2, 0.8, 1.8, 0.2), base)
    assert not bench.is_sure(runs(-10, -20, 0, -20, 0), base)
    assert not bench.is_sure(runs(5, 5, 5, 5, 5), base)

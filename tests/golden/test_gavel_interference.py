"""Interference learnt from Gavel's measured pairs: read whole, predicted as well as promised."""

from pathlib import Path

import pytest

from weft.interference.committee import Effort
from weft.interference.evaluate import Examination, ExaminationResult, examine
from weft.interference.public_datasets import gavel, static_table
from weft.interference.records import Measurements

SAMPLES = {  # feasible pairs both ways, a job beside its twin once
    ("oracle_throughputs", "v100"): 633,
    ("oracle_throughputs", "p100"): 650,
    ("simulation_throughputs", "v100"): 636,
    ("simulation_throughputs", "p100"): 656,
    ("physical_cluster_throughputs", "v100"): 636,
    ("physical_cluster_throughputs", "p100"): 656,
}
FAMILY_BARS = {"v100": 0.090, "p100": 0.114}


@pytest.fixture(scope="module")
def campaigns(weft_data: Path) -> dict[str, Measurements]:
    path = weft_data / "gavel" / "pairs.csv"
    return gavel(path.read_text(), str(path))


@pytest.mark.data
def test_every_campaign_is_read_whole(campaigns: dict[str, Measurements]) -> None:
    found = {
        (name, gpu): len(measured.cell(gpu, "").runs)
        for name, measured in campaigns.items()
        for gpu, _ in measured.cells()
    }
    assert found == SAMPLES
    for measured in campaigns.values():
        for gpu in ("v100", "p100"):
            cell = measured.cell(gpu, "")
            assert len(cell.solos) == 26
            assert len({one.family for one in cell.solos}) == 7
            assert len(cell.forbidden) == 351 - (len(cell.runs) + _twins(cell)) // 2


def _twins(cell: Measurements) -> int:
    return sum(run.others == (run.target,) for run in cell.runs)


def weft_and_ridge(found: list[ExaminationResult]) -> tuple[ExaminationResult, float, float]:
    (one,) = found
    ours, ridge = one.methods["weft"], one.methods["ridge"]
    return one, ours.mae / ridge.mae, ours.mape / ridge.mape


@pytest.mark.data
@pytest.mark.parametrize("gpu", ["v100", "p100"])
def test_new_pairs_are_a_quarter_better_than_the_ridge(
    campaigns: dict[str, Measurements], gpu: str
) -> None:
    cell = campaigns["oracle_throughputs"].cell(gpu, "")
    quick = Examination(1, Effort(20, 10))
    _, mae, mape = weft_and_ridge(examine(cell, quick, ["new pair"]))
    assert mae <= 0.75
    assert mape <= 0.75


@pytest.mark.data
@pytest.mark.data_full
@pytest.mark.parametrize("gpu", ["v100", "p100"])
@pytest.mark.parametrize("source", sorted({source for source, _ in SAMPLES}))
def test_five_halves_of_every_campaign(
    campaigns: dict[str, Measurements], source: str, gpu: str
) -> None:
    cell = campaigns[source].cell(gpu, "")
    _, mae, mape = weft_and_ridge(examine(cell, Examination(5), ["new pair"]))
    assert mae <= 0.75
    assert mape <= 0.75


@pytest.mark.data
@pytest.mark.data_full
@pytest.mark.parametrize("gpu", ["v100", "p100"])
@pytest.mark.parametrize("source", sorted({source for source, _ in SAMPLES}))
def test_a_family_that_was_left_out(
    campaigns: dict[str, Measurements], source: str, gpu: str
) -> None:
    """The bound holds in every campaign; seven families are too few to say so beforehand."""
    cell = campaigns[source].cell(gpu, "")
    (one,) = examine(cell, Examination(), ["new application"])
    ours = one.methods["weft"]
    assert ours.samples == SAMPLES[source, gpu]
    assert ours.mae < FAMILY_BARS[gpu] or source != "oracle_throughputs"
    assert ours.coverage >= 0.87
    assert ours.width <= 2 * ours.hindsight_width
    assert one.calibrated == 0.0


@pytest.mark.data
def test_coschemls_table_forbids_five_pairs(weft_data: Path) -> None:
    path = weft_data / "coscheml" / "interference.json"
    table = static_table(path.read_text(), str(path))
    assert len(table.applications) == 12
    never = {
        frozenset((target, other))
        for target, row in zip(table.applications, table.slowdown, strict=True)
        for other, value in zip(table.applications, row, strict=True)
        if value == float("inf")
    }
    assert never == {
        frozenset({"LAMMPS"}),
        frozenset({"vgg16"}),
        frozenset({"vgg16", "vgg11"}),
        frozenset({"QMCPACK", "vgg16"}),
        frozenset({"QMCPACK", "vgg11"}),
    }

"""Comparisons of schedulers where cells are missing, or do not have all that is compared."""

from weft.lab.experiment.spec.experiment import ExperimentSpec, PlannedCell, decode_spec, plan
from weft.lab.experiment.statistics.comparison import compare

SMALL = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload: {kind: overprovisioned, percents: [0, 100]}
schedulers: [gpushare, auto, exclusive]
seeds: {count: 6}
"""


def spec_of(text: str) -> ExperimentSpec:
    return decode_spec(text.encode(), "experiment.yaml")


def measures_of(cells: list[PlannedCell], **more: float) -> dict[str, dict[str, float | None]]:
    """A time that depends on the seed alone: no scheduler is better."""
    return {cell.folder: {"jct_mean_s": 100.0 + cell.seed, **more} for cell in cells}


def test_means_are_over_the_seeds_that_all_schedulers_have() -> None:
    spec = spec_of(SMALL)
    cells = [cell for cell in plan(spec) if cell.scheduler != "auto" or cell.seed < 2]
    results = compare(spec, measures_of(cells))
    assert {(row.seeds, row.mean) for row in results.summary} == {(2, 100.5)}
    left = "seeds that some scheduler lacks are not compared: 2, 3, 4, 5."
    fitted = "Calibrated at percent 0 and 100"
    assert [note for note in results.notes if not note.startswith(fitted)] == [
        f"At percent 0: {left}",
        f"At percent 100: {left}",
    ]


def test_a_scheduler_that_a_level_lacks_takes_no_seed_from_others() -> None:
    spec = spec_of(SMALL)
    cells = [cell for cell in plan(spec) if cell.scheduler != "auto"]
    results = compare(spec, measures_of(cells))
    assert {row.seeds for row in results.summary} == {6}
    assert results.notes == []


def test_without_findings_the_words_say_why() -> None:
    few, many = spec_of(SMALL.replace("count: 6", "count: 4")), spec_of(SMALL)
    assert compare(many, measures_of(plan(many))).in_words == ["No difference to gpushare shown."]
    assert compare(few, measures_of(plan(few))).in_words == [
        "Fewer than 5 seeds: no intervals, and any difference may be chance."
    ]
    assert compare(few, {}).in_words == ["Nothing to compare: no cell has been run."]


def test_measures_that_no_cell_has_and_jobs_that_never_ended_are_said() -> None:
    spec = spec_of(SMALL.replace("[0, 100]", "[0]") + "measures: [jct_mean_s, unfinished, lost_s]")
    cells = plan(spec)
    measures = measures_of(cells, unfinished=0.0)
    for cell in cells:
        if cell.scheduler == "auto":
            measures[cell.folder]["unfinished"] = 3.0
    assert compare(spec, measures).notes == [
        "No cell has lost_s.",
        "auto leaves 3 jobs unfinished per run; its completion times cover only finished jobs.",
    ]


def test_a_difference_in_energy_says_how_much_of_it_is_the_makespans() -> None:
    """Idle cards draw 60 kJ less of the 80 that are saved."""
    spec = spec_of(SMALL.replace("[0, 100]", "[0]"))
    measures: dict[str, dict[str, float | None]] = {
        cell.folder: {
            "energy_kj": cell.seed + (100.0 if cell.scheduler == "auto" else 180.0),
            "idle_energy_kj": 40.0 if cell.scheduler == "auto" else 100.0,
        }
        for cell in plan(spec)
    }
    (finding,) = compare(spec, measures).findings
    assert finding.startswith("auto beats gpushare in energy: -43.8 %")
    assert finding.endswith("(75 % of it by the makespan, the rest by how GPUs are shared).")

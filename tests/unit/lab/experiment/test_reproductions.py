"""Published experiments: their files, and how results are held against what is expected."""

from pathlib import Path

import msgspec
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.pages.experiment_report import write_experiment_report, write_index
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import (
    ExperimentSpec,
    data_paths,
    decode_spec,
    plan,
    read_spec,
)
from weft.lab.experiment.spec.workloads import SimulatedJobs
from weft.lab.experiment.statistics.comparison import ExperimentResults, compare
from weft.lab.experiment.statistics.reproduction import (
    EXPECTED,
    Check,
    ExpectedResults,
    HowToRun,
    read_expected,
    reproduce,
    results_of_checks,
)
from weft.model import BadInputError

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = sorted(path.parent for path in (ROOT / "experiments").glob(f"*/{EXPECTED}"))
SMALL = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
question: How small?
workload: {kind: overprovisioned, percents: [0, 100]}
schedulers: [gpushare, exclusive]
seeds: {count: 2}
"""
HEAD = "apiVersion: weft.dev/v1\nkind: ExpectedResults\ntitle: Small\n"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_reproduction_is_whole(folder: Path) -> None:
    """Its experiments can be planned, in full and in short, and its checks are about them."""
    expected = read_expected(folder)
    for file in expected.experiments:
        short = read_spec(folder / file, expected.short.get(file, {}))
        for spec in (read_spec(folder / file), short):
            runner_of(spec, data_paths(spec, folder), built_in().from_spec)
            assert len(plan(spec)) >= len(plan(short))
    first = expected.experiments[0]
    for check in expected.checks:
        spec = read_spec(folder / (check.experiment or first))
        named = {check.scheduler, *check.against, *check.order} - {""}
        assert named <= set(spec.schedulers), check.name
        axes = {level.axis for cell in plan(spec) for level in cell.levels}
        assert set(check.at) <= axes, check.name
    assert expected.rests_on
    for headline in expected.headlines:
        spec = read_spec(folder / headline.experiment)
        assert headline.scheduler in {*spec.schedulers} - {spec.reference}, headline.name
        assert isinstance(spec.workload, SimulatedJobs)
        assert len(spec.workload.assumptions) > 1, headline.name
    readme = (folder / "README.md").read_text()
    assert "It rests on" in readme
    for title in ("## Result", "## What differs from the paper"):
        assert title in readme
    assert (folder / "figure.svg").is_file()
    assert "](figure.svg)" in readme


def results(means: dict[str, tuple[float, float]]) -> tuple[ExperimentSpec, ExperimentResults]:
    """Results of these makespans by scheduler: at 0 and at 100 %."""
    spec = decode_spec(SMALL.replace("[gpushare, exclusive]", str([*means])).encode(), "small")
    measures: dict[str, dict[str, float | None]] = {
        cell.folder: {"makespan_s": means[cell.scheduler][cell.levels[0].index]}
        for cell in plan(spec)
    }
    return spec, compare(spec, measures)


def number(check: dict[str, object], found: ExperimentResults) -> float | None:
    whole = {"name": "n", "measure": "makespan_s", "criterion": [0.0, 1.0], **check}
    made = ExpectedResults(
        api_version="weft.dev/v1",
        kind="ExpectedResults",
        title="t",
        checks=(msgspec.convert(whole, Check),),
    )
    (one,) = results_of_checks(made, {"experiment.yaml": found})
    return one.value


def test_a_check_is_about_the_levels_schedulers_and_order_it_names() -> None:
    _, found = results(
        {"gpushare": (100.0, 200.0), "exclusive": (110.0, 300.0), "fgd": (90.0, 1.0)}
    )
    assert number({"scheduler": "exclusive", "at": {"percent": [100]}}, found) == 300
    assert number({"scheduler": "exclusive", "take": "highest"}, found) == 300
    assert number({"scheduler": "exclusive"}, found) == 205
    assert number({"scheduler": "exclusive", "against": ["gpushare"]}, found) == 30
    assert number(
        {"scheduler": "fgd", "against": ["gpushare", "exclusive"], "at": {"percent": [0]}}, found
    ) == pytest.approx(-14.286)
    assert number({"order": ["fgd", "gpushare", "exclusive"]}, found) == 0
    assert number({"order": ["exclusive", "gpushare"], "take": "highest"}, found) == 1
    assert number({"scheduler": "exclusive", "at": {"percent": [50]}}, found) is None
    assert number({"scheduler": "auto"}, found) is None


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (
            "{name: a, measure: m, criterion: [0, 1]}",
            "must have either `scheduler` or `order`, not both",
        ),
        (
            "{name: a, measure: m, scheduler: s, criterion: [1, 0]}",
            "has its ends in the wrong order",
        ),
        ("{name: a, measure: m, scheduler: s, criterion: [0, 1], why: late}", "together"),
        ("{name: a, measure: m, scheduler: s, criterion: [0, 1], experiment: b}", "unknown"),
        ("{name: a, measure: m, scheduler: s}", "missing required field `criterion`"),
    ],
)
def test_a_wrong_check_is_told_by_its_place(tmp_path: Path, check: str, problem: str) -> None:
    (tmp_path / EXPECTED).write_text(f"{HEAD}checks: [{check}]\n")
    with pytest.raises(BadInputError, match=problem) as told:
        read_expected(tmp_path)
    assert "checks[0]" in told.value.where


def test_results_are_held_against_what_is_expected(tmp_path: Path) -> None:
    """Exclusive's makespan is above 4,000 s, gpushare's about 1,300."""
    here = tmp_path / "small"
    here.mkdir()
    (here / "experiment.yaml").write_text(SMALL)
    checks = (
        ("gpushare", "[1000, 2000]", ""),
        ("gpushare", "[0, 1]", ""),
        ("exclusive", "[0, 4000]", ", expected: [4000, 5000], why: it shares nothing"),
        ("exclusive", "[4000, 5000]", ", expected: [0, 1], why: it was slow once"),
    )
    text = "".join(
        f"- {{name: '{number}', measure: makespan_s, scheduler: {who}, at: {{percent: [0]}}, "
        f"criterion: {criterion}{more}}}\n"
        for number, (who, criterion, more) in enumerate(checks)
    )
    short = "short: {experiment.yaml: {seeds: {count: 1}, workload: {percents: [0]}}}\n"
    (here / EXPECTED).write_text(f"{HEAD}{short}checks:\n{text}")
    how = HowToRun(tmp_path / "out", True, 1, built_in().from_spec, {}, lambda cells: None)
    done = reproduce(here, how)
    assert len(plan(done.experiments[0].spec)) == 2
    assert [one.meets for one in done.checks] == [True, False, False, True]
    assert [one.as_expected for one in done.checks] == [True, False, True, False]
    assert done.checks[2].misses_by == pytest.approx((done.checks[2].value or 0) - 4000)
    assert [one.check.name for one in done.wrong] == ["1", "3"]
    page = write_index(tmp_path / "out", [done], {}, short=True).read_text()
    assert "How small?" in page
    assert "it shares nothing" in page
    assert "missed by" in page


@pytest.mark.parametrize(
    ("wrong", "where", "problem"),
    [
        ("measure: makespan, scheduler: gpushare", "checks[0].measure", "'makespan_s'"),
        ("measure: makespan_s, scheduler: gpushar", "checks[0], a scheduler", "'gpushare'"),
        ("measure: makespan_s, order: [gpushare, exclusiv]", "checks[0], a sch", "'exclusive'"),
        ("measure: makespan_s, scheduler: gpushare, at: {percents: [0]}", "].at", "'percent'"),
        ("measure: makespan_s, scheduler: gpushare, at: {percent: [77]}", "at.percent", "'77'"),
    ],
)
def test_a_check_of_something_that_is_not_in_the_experiment_is_told(
    tmp_path: Path, wrong: str, where: str, problem: str
) -> None:
    (tmp_path / "experiment.yaml").write_text(SMALL)
    (tmp_path / EXPECTED).write_text(f"{HEAD}checks: [{{name: a, {wrong}, criterion: [0, 1]}}]\n")
    how = HowToRun(tmp_path / "out", False, 1, built_in().from_spec, {}, lambda cells: None)
    with pytest.raises(BadInputError) as told:
        reproduce(tmp_path, how)
    assert where in told.value.where
    assert problem in told.value.problem
    assert not (tmp_path / "out").exists()


def test_a_check_without_a_number_though_all_was_run_is_wrong(tmp_path: Path) -> None:
    """No job of this workload answers queries."""
    (tmp_path / "experiment.yaml").write_text(SMALL)
    check = "name: a, measure: query_p99_s, scheduler: gpushare, criterion: [0, 1]"
    (tmp_path / EXPECTED).write_text(f"{HEAD}checks: [{{{check}}}]\n")
    how = HowToRun(tmp_path / "out", False, 1, built_in().from_spec, {}, lambda cells: None)
    done = reproduce(tmp_path, how)
    assert [one.check.name for one in done.wrong] == ["a"]
    short = msgspec.structs.replace(done, short=True)
    assert not short.wrong


def test_absent_data_is_said_and_its_checks_are_not_run(tmp_path: Path) -> None:
    workload = "{kind: pairs, table: nowhere.csv}"
    text = SMALL.replace("{kind: overprovisioned, percents: [0, 100]}", workload)
    (tmp_path / "experiment.yaml").write_text(text)
    check = "{name: a, measure: makespan_s, scheduler: gpushare, criterion: [0, 1]}"
    (tmp_path / EXPECTED).write_text(f"{HEAD}checks: [{check}]\n")
    how = HowToRun(tmp_path / "out", False, 1, built_in().from_spec, {}, lambda cells: None)
    done = reproduce(tmp_path, how)
    assert "nowhere.csv does not exist; all" in done.absent[0]
    assert [one.value for one in done.checks] == [None]
    assert not done.wrong
    page = write_index(tmp_path / "out", [done], {}, short=False).read_text()
    assert "nowhere.csv does not exist" in page
    assert "not run" in page


def test_headlines_are_shown_under_every_assumption(tmp_path: Path) -> None:
    """Two jobs at most fit a card by what they ask: where compute is short, sharing saves less."""
    assumptions = (
        "[{name: measured}, {name: short, compute: proportional, computeRatio: 1.0, "
        "computeShown: true}, {name: new, earlierRuns: false}]"
    )
    levels = f"percents: [100], scrapeSeconds: 600, assumptions: {assumptions}"
    workload = f"{{kind: overprovisioned, {levels}}}"
    text = SMALL.replace("{kind: overprovisioned, percents: [0, 100]}", workload)
    text = text.replace("[gpushare, exclusive]", "[exclusive, gpushare]").replace(
        "count: 2", "count: 5"
    )
    (tmp_path / "experiment.yaml").write_text(text)
    check = "{name: a, measure: makespan_s, scheduler: gpushare, criterion: [0, 9999]}"
    headline = (
        "restsOn: idle cards\nheadlines: [{name: saved, experiment: experiment.yaml, "
        "measure: jct_mean_s, scheduler: gpushare}]\n"
    )
    (tmp_path / EXPECTED).write_text(f"{HEAD}{headline}checks: [{check}]\n")
    how = HowToRun(tmp_path / "out", False, 1, built_in().from_spec, {}, lambda cells: None)
    done = reproduce(tmp_path, how)
    ((shown, rows),) = done.assumed()
    assert shown.name == "saved"
    assert [row.assumption for row in rows] == [
        "slowdowns as measured",
        "compute shared in proportion, each needs 100 %, as metrics show",
        "slowdowns as measured; nothing known of earlier runs",
    ]
    measured, short, new = (one.difference for row in rows if (one := row.summary))
    assert measured is not None
    assert short is not None
    assert new is not None
    assert measured.percent < short.percent - 20
    assert new.percent == pytest.approx(measured.percent, abs=1)  # nothing is learnt by these two
    index = write_index(tmp_path / "out", [done], {}, short=False).read_text()
    (experiment,) = done.experiments
    assert experiment.results is not None
    means = [one for one in experiment.results.summary if one.measure == "jct_mean_s"]
    results = msgspec.structs.replace(experiment.results, summary=means)  # others are not drawn
    page = write_experiment_report(tmp_path / "page", experiment.spec, results, "1")
    for html in (index, page.read_text()):
        assert rows[0].text in html
        assert rows[1].assumption in html
    assert "Assumptions: idle cards" in index
    assert "measured on a V100" in page.read_text()
    assert rows[0].text == measured.text().replace("-", "−")
    assert measured.low_percent is not None


def test_a_headline_of_no_experiment_is_told(tmp_path: Path) -> None:
    headline = "headlines: [{name: a, experiment: b.yaml, measure: m, scheduler: s}]\n"
    check = "{name: a, measure: m, scheduler: s, criterion: [0, 1]}"
    (tmp_path / EXPECTED).write_text(f"{HEAD}{headline}checks: [{check}]\n")
    with pytest.raises(BadInputError, match="unknown") as told:
        read_expected(tmp_path)
    assert "headlines[0].experiment" in told.value.where

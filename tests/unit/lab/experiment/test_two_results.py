"""Uses of stored results: two compared, and the layout of older experiments."""

import shutil
from pathlib import Path

import msgspec
import pytest
from ece_logs import published
from long_form import few_or_many
from msgspec import structs

from weft.core.policies.catalog import built_in
from weft.lab.experiment.pages.ece_layout import layout_texts, write_ece_layout
from weft.lab.experiment.pages.experiment_report import (
    rows_of_levels,
    text_pages,
    write_experiment_report,
)
from weft.lab.experiment.pages.figures import to_pdf
from weft.lab.experiment.pages.looks import looks
from weft.lab.experiment.run.execution import CellWork, run_missing
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.run.store import RESULT, RunStore, read_store, stored_experiment
from weft.lab.experiment.spec.experiment import decode_spec, plan
from weft.lab.experiment.statistics.comparison import compare_two
from weft.lab.experiment.statistics.reproduction import stored_results

SMALL = b"""\
apiVersion: weft.dev/v1
kind: Experiment
name: small
workload: {kind: overprovisioned, percents: [0, 100]}
schedulers: [gpushare, exclusive]
seeds: {count: 1}
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    spec = decode_spec(SMALL, "small.yaml")
    store = RunStore(folder, stored_experiment(spec, {}))
    store.begin()
    work = CellWork(runner_of(spec, {}, built_in().from_spec), store)
    run_missing(work, plan(spec), 1, {}, lambda cells: None)
    return folder


def test_two_results_are_compared_cell_by_cell(stored: Path, tmp_path: Path) -> None:
    """One measure of one cell was changed, another cell is missing."""
    other = tmp_path / "other"
    shutil.copytree(stored, other)
    spec, store = read_store(other)
    changed, missing = plan(spec)[:2]
    path = store.place(changed) / RESULT
    record = msgspec.json.decode(path.read_bytes())
    record["measures"]["makespan_s"] *= 2
    path.write_bytes(msgspec.json.encode(record))
    shutil.rmtree(store.place(missing))
    results = compare_two(read_store(stored), read_store(other))
    assert results.differs == ""
    assert (results.only_first, results.only_second) == ([missing.folder], [])
    differing = [one for one in results.pairs if one.first != one.second]
    assert [(one.measure, one.scheduler) for one in differing] == [("makespan_s", "gpushare")]
    (one,) = [
        one
        for one in results.summary
        if one.measure == "makespan_s" and one.difference and one.difference.percent
    ]
    assert one.difference is not None
    assert (one.difference.percent, one.levels["percent"]) == (100.0, "0")
    assert results.findings == []  # one seed proves nothing


def test_a_marked_cell_is_named_with_its_reason_and_in_no_average(
    stored: Path, tmp_path: Path
) -> None:
    other, mark = tmp_path / "other", "clocks are 9 s apart: <of node a>"
    shutil.copytree(stored, other)
    spec, store = read_store(other)
    bad, *good = plan(spec)
    path = store.place(bad) / RESULT
    path.write_bytes(
        msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "marks": [mark]})
    )
    for pair in ((stored, other), (other, stored), (other, other)):
        two = compare_two(read_store(pair[0]), read_store(pair[1]))
        assert set(two.marked) == {bad.folder}
        assert set(two.marked[bad.folder]) == {mark}
        assert (two.only_first, two.only_second) == ([], [])
        assert not [
            one
            for one in two.pairs
            if one.levels == {"percent": "0"} and one.scheduler == bad.scheduler
        ]
    results = stored_results(spec, store, plan(spec))
    assert (results.cells, results.missing, results.marked) == (
        len(good),
        [],
        {bad.folder: (mark,)},
    )
    assert all(
        (one.scheduler, one.levels) != (bad.scheduler, {"percent": "0"}) for one in results.summary
    )
    means = [one for one in results.summary if one.measure == "jct_mean_s"]
    drawn = structs.replace(results, summary=means)  # all measures take seconds
    page = write_experiment_report(tmp_path / "page", spec, drawn, "", store).read_text()
    assert (
        f"{bad.folder} is left out of comparisons: clocks are 9 s apart: &lt;of node a&gt;" in page
    )
    for stem in ("gpu_util_percent-0", "power_w-0", "jct-0"):
        assert f'<figure id="{stem}">' in page
        assert (tmp_path / "page" / f"{stem}.svg").is_file()


def test_figures_over_time_have_names_of_their_own_at_each_level(stored: Path) -> None:
    spec, store = read_store(stored)
    results = stored_results(spec, store, plan(spec))
    levels = rows_of_levels(spec, results, store, looks(spec.schedulers))
    names = [chart.name for number, level in enumerate(levels) for chart in level.charts(number)]
    assert {"gpu_util_percent-0", "memory_used_mib-1-each", "power_w-0", "jct-1"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_older_layout_says_what_the_jobs_table_says(stored: Path, tmp_path: Path) -> None:
    """The reader of the published tables reads ours."""
    spec, store = read_store(stored)
    cells = {cell.scheduler: cell for cell in plan(spec)[:2]}
    files = layout_texts(0, {who: store.rows(cell) for who, cell in cells.items()})
    (tmp_path / "overprov_0").mkdir()
    (tmp_path / "overprov_0" / "jobs_ALIBABA.txt").write_bytes(files["WORKLOAD_ALIBABA_0.txt"])
    run = published(tmp_path, 0, "gpushare")
    record = store.record(cells["gpushare"])
    assert record is not None
    assert len(run.jobs) == 30
    assert run.makespan_s == pytest.approx(record.measures["makespan_s"], abs=0.5)
    assert run.jct_mean_s == pytest.approx(record.measures["jct_mean_s"], abs=0.5)
    place = "WORKLOAD_ALIBABA_0/dcgm_fb_used/"
    combined = files[f"{place}combined.csv"].decode("utf-8-sig").splitlines()
    assert files["OVERALL/dcgm_fb_used/combined_ALIBABA.csv"] == files[f"{place}combined.csv"]
    parts = [name for name in files if name.startswith(place) and not name.endswith("combined.csv")]
    assert f"{place}0_452.csv" in parts
    lines = [line for name in parts for line in files[name].decode().splitlines()]
    assert lines == combined
    assert [line.split(",")[0] for line in lines] == [str(at) for at in range(len(lines))]
    assert max(float(line.split(",")[1]) for line in lines) > 20_000


@pytest.mark.skipif(few_or_many(1, 20) == 1, reason="pictures take seconds: make test-long")
def test_the_older_layout_is_whole(stored: Path, tmp_path: Path) -> None:
    spec, store = read_store(stored)
    names = ["EXPERIMENT_0_MIN_20_MAX_40_OVERPROV_0", "EXPERIMENT_0_MIN_20_MAX_40_OVERPROV_100"]
    assert [folder.name for folder in write_ece_layout(tmp_path, spec, store)] == names
    for metric in ("dcgm_fb_used", "dcgm_power_usage", "dcgm_gpu_utilization"):
        overall = {path.name for path in (tmp_path / names[0] / "OVERALL" / metric).iterdir()}
        assert overall == {
            "combined_ALIBABA.csv",
            "combined_DEFAULT.csv",
            f"{names[0]}-{metric}.png",
            f"{names[0]}-SEP-{metric}.png",
        }
        own = tmp_path / names[0] / "WORKLOAD_DEFAULT_0" / metric
        assert (own / f"WORKLOAD_DEFAULT_0-{metric}.png").is_file()


def test_a_pdf_has_a_page_a_drawing_and_always_the_same_bytes(stored: Path) -> None:
    spec, store = read_store(stored)
    pages = text_pages(spec, stored_results(spec, store, plan(spec)))[:1]
    pdf = to_pdf(pages, "small")
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page ") == 1
    assert to_pdf(pages, "small") == pdf

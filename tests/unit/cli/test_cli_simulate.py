"""`weft simulate`: schemas, equal bytes, and errors of one line."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from commands import SHORT_PODS, Weft
from long_form import few_or_many

from weft.cli.tables import CSV_COLUMNS, TIMED_CSV_COLUMNS
from weft.lab.experiment.spec.measures import BY_NAME
from weft.lab.experiment.statistics.ranking import AT_100

RUN_KEYS = [
    "policy",
    "seed",
    "arrived_percent",
    "gpu_allocated_percent",
    "gpu_held_percent",
    "gpu_fragmentation_percent",
    "fragmentation_of_idle_percent",
    "used_gpu_milli",
    "failed_pods",
    "pods",
    "curve",
    "fragmentation_curve",
    "by_model",
    "unscheduled",
    "waits",
    "completion",
    "timeline",
    "waited",
    "first_failed",
    "possible",
    "side_faults",
    "cpu_s",
    "wall_s",
]
SUMMARY_KEYS = [
    "policy",
    "seeds",
    "gpu_allocated_percent",
    "gpu_allocated_ci95",
    "gpu_held_percent",
    "gpu_held_ci95",
    "gpu_fragmentation_percent",
    "gpu_fragmentation_ci95",
    "gpu_allocated_at_100_percent",
    "gpu_allocated_at_100_ci95",
    "failed_pods",
    "timed",
    "possible_percent",
    "lacks",
    "cpu_s",
    "equal_in_all_seeds",
]
WAIT_KEYS = [
    "started",
    "never_started",
    "mean_s",
    "p50_s",
    "p90_s",
    "p95_s",
    "p99_s",
    "max_s",
    "mean_held_percent",
    "mean_allocated_percent",
    "end_s",
]


def test_json_has_exactly_these_keys(weft: Weft) -> None:
    policies = ("--policy", "best-fit", "--policy", "fgd")
    said = weft.simulate(*policies, "--seeds", 2, "--output", "json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert list(found) == ["runs", "summary", "notes"]
    assert [list(run) for run in found["runs"]] == [RUN_KEYS] * 4
    assert [list(summary) for summary in found["summary"]] == [SUMMARY_KEYS] * 2
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [
        ("best-fit", 42),
        ("best-fit", 43),
        ("fgd", 42),
        ("fgd", 43),
    ]
    run = found["runs"][0]
    assert run["used_gpu_milli"] == round(run["gpu_held_percent"] * 80)
    assert run["waits"] is None
    assert isinstance(run["cpu_s"], float)
    assert all(key.isdigit() and isinstance(value, float) for key, value in run["curve"].items())


def test_timed_json_tells_waits(weft: Weft) -> None:
    found = json.loads(weft.simulate("--policy", "spread", "--timed", "--output", "json").out)
    assert list(found["runs"][0]["waits"]) == WAIT_KEYS
    assert found["runs"][0]["waits"]["started"] == 20
    assert found["summary"][0]["timed"]["queue_mean_s"] == found["runs"][0]["waits"]["mean_s"]
    assert found["summary"][0]["timed"]["queue_p95_s"] == found["runs"][0]["waits"]["p95_s"]
    assert found["runs"][0]["completion"]["ended"] == 20
    assert max(found["runs"][0]["timeline"]["waiting_pods"]) > 0
    assert found["notes"][0] == "Arrivals are the trace's own."


def test_several_timed_seeds_are_different_arrivals(weft: Weft) -> None:
    wanted = ("--policy", "spread", "--timed", "--seeds", 5, "--output", "json", "--no-timing")
    found = json.loads(weft.simulate(*wanted).out)
    assert len({run["waits"]["mean_s"] for run in found["runs"]}) == 5
    assert found["summary"][0]["timed"]["queue_mean_ci95"] > 0
    assert found["notes"][0].startswith("Arrivals are resampled for each seed: ")


def test_timed_csv_has_waits_and_completion_and_nothing_of_the_end(weft: Weft) -> None:
    said = weft.simulate("--policy", "spread", "--timed", "--output", "csv", "--no-timing")
    (row,) = csv.DictReader(io.StringIO(said.out))
    assert "gpu_held_percent" not in row
    names = [f"{of}_{what}_s" for of in ("queue", "jct") for what in ("mean", "p50", "p95")]
    assert all(float(row[name]) >= 0 for name in names)
    assert float(row["jct_mean_s"]) == pytest.approx(float(row["queue_mean_s"]) + 30)


def test_policies_without_their_inputs_are_told_of_once_and_in_the_report(weft: Weft) -> None:
    """Below the table, or on stderr where programs read what is printed."""
    policies = ("--policy", "best-fit", "--policy", "load-aware", "--policy", "lucid")
    metrics = "without metrics: load-aware (a trace has none; `weft experiment run` "
    slowdowns = "without slowdowns: lucid (give --interference FILE)"
    said = weft.simulate(*policies, "--no-timing", "--report", weft.folder / "report")
    assert said.err == f"report: {weft.folder}/report/report.html\n"
    marked = [line.split()[0] for line in said.out.splitlines()[1:4]]
    assert sorted(marked) == ["best-fit", "load-aware*", "lucid*"]
    assert said.out.splitlines().count(f"* {slowdowns}") == 1
    page = (weft.folder / "report" / "report.html").read_text()
    assert "pods.csv: 20 pods on 4 nodes, 8 GPUs" in page
    assert "lucid*</th>" in page
    assert slowdowns in page
    said = weft.simulate(*policies, "--output", "json")
    first, second = said.err.splitlines()
    assert first.startswith(f"weft: warning: policies run {metrics}")
    assert second == f"weft: warning: policies run {slowdowns}"
    found = json.loads(said.out)
    assert [one["lacks"] for one in found["summary"]] == [[], ["metrics"], ["slowdowns"]]


def test_strict_refuses_policies_without_their_inputs(weft: Weft) -> None:
    error = weft.error("--policy", "best-fit", "--policy", "load-aware", "--strict")
    assert error.startswith("--strict: policies would run without metrics: load-aware (")
    assert weft.simulate("--policy", "best-fit", "--policy", "fgd", "--strict").code == 0


def test_csv_has_one_line_a_run(weft: Weft) -> None:
    said = weft.simulate("--policy", "best-fit", "--seeds", 2, "--output", "csv", "--no-timing")
    header, *rows = csv.reader(io.StringIO(said.out))
    assert tuple(header) == CSV_COLUMNS
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("best-fit", "42", ""),
        ("best-fit", "43", ""),
    ]
    assert "\r" not in said.out


def test_csv_has_the_measure_that_ranks_named_as_in_experiments(weft: Weft, tmp_path: Path) -> None:
    trace = []
    for what in ("nodes", "pods"):
        assert weft("generate", what, tmp_path / what, "--gpus", 64).code == 0
        trace += [f"--{what}", tmp_path / what]
    wanted = ("--policy", "best-fit", "--seeds", 2, "--jobs", 1, "--no-timing", "--output")
    rows = csv.DictReader(io.StringIO(weft("simulate", *trace, *wanted, "csv").out))
    runs = json.loads(weft("simulate", *trace, *wanted, "json").out)["runs"]
    assert [float(row[AT_100]) for row in rows] == [run["curve"]["100"] for run in runs]
    of_times = {name for name in TIMED_CSV_COLUMNS if name in BY_NAME}
    assert of_times >= {"queue_mean_s", "queue_p99_s", "jct_mean_s", "jct_p50_s", "jct_p99_s"}


def test_a_table_is_for_people_best_first(weft: Weft) -> None:
    wanted = ("--policy", "random", "--policy", "best-fit", "--seeds", 5)
    header, *rows = weft.simulate(*wanted).out.splitlines()
    assert header.split()[:2] == ["policy", "seeds"]
    assert "mean wait" not in header
    assert all("±" in row for row in rows)
    summary = json.loads(weft.simulate(*wanted, "--output", "json").out)["summary"]
    summary.sort(key=lambda one: -one["gpu_allocated_percent"])
    assert [row.split()[0] for row in rows] == [one["policy"] for one in summary]
    for row, one in zip(rows, summary, strict=True):
        assert f"{one['gpu_allocated_percent']:.2f} ± {one['gpu_allocated_ci95']:.2f}" in row
        assert f" {one['gpu_held_percent']:.2f} " in row


def test_the_table_ranks_by_what_pods_got_and_not_by_what_was_held(weft: Weft) -> None:
    """`exclusive` holds whole cards for shares: nearly all is held, and more pods fail."""
    header, first, last, *_ = weft.simulate(
        "--policy", "exclusive", "--policy", "fgd"
    ).out.splitlines()
    assert "held % at end" in header
    assert (first.split()[0], last.split()[0]) == ("fgd", "exclusive")


def test_a_table_of_one_seed_has_no_intervals_and_timed_ones_have_waits(weft: Weft) -> None:
    said = weft.simulate("--policy", "best-fit", "--timed", "--no-timing")
    header, row, arrivals, note = said.out.splitlines()
    assert "wait s, mean" in header
    assert "at end" not in header
    assert arrivals == "Arrivals are the trace's own."
    assert row.split()[1] == "1°"
    assert "±" not in row
    assert note.startswith("° fewer than 5 seeds: no intervals")
    assert row.split()[-1] == "–"


@pytest.mark.parametrize("mode", [(), ("--timed",)])
def test_without_timing_equal_runs_print_equal_bytes_for_any_jobs(
    weft: Weft, mode: tuple[str, ...]
) -> None:
    for output in ("json", "csv", "table")[: few_or_many(2, 3)]:
        wanted = (
            "--policy",
            "random",
            "--policy",
            "fgd",
            "--seeds",
            2,
            "--no-timing",
            *mode,
            "--output",
            output,
        )
        one = weft.simulate(*wanted, "--jobs", 1)
        assert one.code == 0
        if output == "json":  # the other two say the same numbers
            assert one == weft.simulate(*wanted, "--jobs", 1)
        assert one == weft.simulate(*wanted, "--jobs", 2)


def test_a_policy_named_twice_runs_once_and_seeds_start_where_told(weft: Weft) -> None:
    said = weft.simulate(
        "--policy",
        "spread",
        "--policy",
        "spread",
        "--first-seed",
        7,
        "--seeds",
        2,
        "--output",
        "csv",
    )
    assert [line.split(",")[:2] for line in said.out.splitlines()[1:]] == [
        ["spread", "7"],
        ["spread", "8"],
    ]


def test_demand_decides_how_much_arrives(weft: Weft) -> None:
    arrived = {}
    for demand in (0.5, 1.3, 2.0):
        said = weft.simulate("--policy", "spread", "--demand", demand, "--output", "json")
        arrived[demand] = json.loads(said.out)["runs"][0]["arrived_percent"]
    assert 30 <= arrived[0.5] <= 50
    assert 100 < arrived[1.3] <= 140 < arrived[2.0] <= 212.5


def test_without_saying_there_are_twenty_seeds_or_one_where_more_would_be_another_question(
    weft: Weft,
) -> None:
    wanted = ("--policy", "spread", "--no-timing", "--output", "json")
    runs = json.loads(weft.simulate(*wanted).out)["runs"]
    assert [run["seed"] for run in runs] == list(range(42, 62))
    decisions = weft.folder / "decisions.jsonl"
    for once in (("--timed",), ("--decisions", decisions)):
        assert len(json.loads(weft.simulate(*wanted, *once).out)["runs"]) == 1


def test_published_orders_are_used_whole_or_cut_at_a_demand(weft: Weft) -> None:
    orders = weft.folder / "orders.json.gz"
    order = {"pod_rows": [*range(20)], "node_rank": [3, 2, 1, 0]}
    orders.write_bytes(gzip.compress(json.dumps({"42": order, "43": order}).encode()))
    wanted = ("--policy", "first-fit", "--order", orders, "--output", "json", "--no-timing")
    run, other = json.loads(weft.simulate(*wanted).out)["runs"]
    assert (run["pods"], run["arrived_percent"]) == (20, 225.0)
    assert (run["seed"], other["seed"]) == (42, 43)
    (run,) = json.loads(weft.simulate(*wanted, "--seeds", 1, "--demand", 1.0).out)["runs"]
    assert (run["pods"], run["arrived_percent"]) == (8, 100.0)
    assert weft.error(*wanted, "--seeds", 3).endswith("holds 2 seeds, 3 are asked for")


# --- errors of one line ----------


def test_an_unknown_policy_names_the_known_ones(weft: Weft) -> None:
    error = weft.error("--policy", "best-fti")
    assert error == "policy: 'best-fti' is unknown; did you mean 'best-fit'?"
    error = weft.error("--policy", "xyz")
    assert "'xyz' is unknown; write one of alnair-cost-saving" in error
    assert "best-fit, " in error


def test_a_wrong_policy_is_told_before_files_are_read(weft: Weft) -> None:
    weft.nodes.unlink()
    assert "'nope' is unknown" in weft.error("--policy", "nope")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--timed", "--demand", 1), "--timed: replays the trace's own arrivals; remove --demand"),
        (
            ("--timed", "--order", "x"),
            "--order: applies to arrivals without times; remove it or --timed",
        ),
        (("--compress", 2), "--compress: has an effect only with --timed; add it"),
        (("--png",), "--png: requires --report DIR, the folder for the figures"),
        (
            ("--seeds", 2, "--decisions", "x"),
            "--decisions: works with one policy and one seed; run them one at a time",
        ),
        (
            ("--policy", "spread", "--decisions", "x"),
            "--decisions: works with one policy and one seed; run them one at a time",
        ),
        (("--demand", "inf"), "--demand: inf is not a finite number"),
        (("--timed", "--compress", "inf"), "--compress: inf is not a finite number"),
    ],
)
def test_options_that_clash(weft: Weft, options: tuple[object, ...], error: str) -> None:
    assert weft.error("--policy", "best-fit", *options) == error


@pytest.mark.parametrize(
    "options",
    [
        ("--seeds", 0),
        ("--demand", 0),
        ("--jobs", 0),
        ("--compress", -1),
        ("--output", "xml"),
        ("--demand", "nan"),
        ("--seeds", "x"),
        ("--no-such-option",),
    ],
)
def test_wrong_use_ends_with_2_and_points_to_help(weft: Weft, options: tuple[object, ...]) -> None:
    said = weft.simulate("--policy", "best-fit", *options)
    assert (said.code, said.out) == (2, "")
    assert "weft simulate --help" in said.err


def test_a_policy_and_both_lists_are_needed(weft: Weft) -> None:
    assert "--policy" in weft.simulate().err
    assert "--nodes" in weft("simulate", "--policy", "best-fit").err


def test_files_are_named_with_line_and_column(weft: Weft) -> None:
    weft.pods.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,x,1,500\n")
    assert weft.error("--policy", "best-fit") == (
        f"{weft.pods}, line 2, column memory_mib: 'x' is not a whole number"
    )
    weft.pods.unlink()
    assert weft.error("--policy", "best-fit") == f"{weft.pods}: no such file"


def test_a_cluster_without_gpus_and_a_list_without_pods_are_refused(weft: Weft) -> None:
    header = weft.pods.read_text().splitlines()[0]
    weft.pods.write_text(header + "\n")
    assert weft.error("--policy", "best-fit") == f"{weft.pods}: has no pod below its header"
    weft.nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,0,\n")
    assert weft.error("--policy", "best-fit") == (
        f"{weft.nodes}: has no GPU; at least one node needs gpu > 0"
    )


def test_timed_needs_times(weft: Weft) -> None:
    weft.pods.write_text(SHORT_PODS)
    assert weft.error("--policy", "best-fit", "--timed").startswith(
        f"{weft.pods}, line 2, column creation_time: is missing"
    )
    assert weft.simulate("--policy", "best-fit").code == 0


def test_the_bound_is_told_in_points_in_json_in_csv_and_in_the_report(weft: Weft) -> None:
    wanted = ("--policy", "best-fit", "--policy", "fgd", "--bound", "--bounds-in", weft.folder)
    said = weft.simulate(*wanted, "--no-timing", "--report", weft.folder / "report")
    note = next(line for line in said.out.splitlines() if "possible points" in line)
    (run, _) = json.loads(weft.simulate(*wanted, "--output", "json").out)["runs"]
    possible = run["possible"]
    assert run["gpu_allocated_percent"] <= possible["percent"] <= 100.001
    assert possible["lowest"]
    assert possible["must_take_pods"] == run["first_failed"]
    ends = f"{run['gpu_allocated_percent']:.2f} of {possible['percent']:.2f} possible points"
    assert ends in said.out
    assert " of " in note
    (row, _) = csv.DictReader(io.StringIO(weft.simulate(*wanted, "--output", "csv").out))
    assert float(row["possible_percent"]) == possible["percent"]
    assert "possible: " in (weft.folder / "report" / "allocation.svg").read_text()
    assert ends in (weft.folder / "report" / "report.html").read_text()


def test_options_of_the_bound_that_say_nothing_are_refused(weft: Weft) -> None:
    assert weft.error("--policy", "fgd", "--bound-demand", 0.9).startswith("--bound-demand: ")
    assert weft.error("--policy", "fgd", "--bound", "--timed").startswith(
        "--bound: applies to pods "
    )
    wrong = weft.error("--policy", "fgd", "--bound", "--bound-limit-s", "nan")
    assert wrong == "--bound-limit-s: nan is not a number above 0"
    more = ("--policy", "fgd", "--bound", "--bounds-in", weft.folder, "--bound-demand", 1.3)
    assert weft.error(*more).startswith(
        "--bound-demand: no policy can place all pods up to this demand"
    )


def test_a_folder_that_takes_no_bounds_is_told_and_the_bound_too(weft: Weft) -> None:
    said = weft.simulate("--policy", "fgd", "--bound", "--bounds-in", weft.nodes)
    assert said.code == 0
    assert "possible points" in said.out
    assert said.err.startswith("weft: warning: ")
    assert "cannot be written" in said.err

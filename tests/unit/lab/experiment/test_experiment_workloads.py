"""Workloads of an experiment's file: which jobs come when, what is assumed of them, and queries."""

import itertools
import json
from pathlib import Path

import msgspec
import pytest

from weft.core.policies.catalog import built_in
from weft.lab.experiment.run.runner import CellResult
from weft.lab.experiment.run.shared_gpus import ScenarioMaker
from weft.lab.experiment.run.simulated import runner_of
from weft.lab.experiment.spec.experiment import (
    ExperimentSpec,
    PlannedCell,
    data_paths,
    decode_spec,
    plan,
)
from weft.lab.experiment.spec.workloads import SimulatedJobs
from weft.lab.simulate.sharing.gpus import AS_MEASURED, ComputeSharing
from weft.lab.simulate.sharing.job import SECOND_NS, Job
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, PodRequest, Shape

HEAD = """\
apiVersion: weft.dev/v1
kind: Experiment
name: small
schedulers: [gpushare, auto]
seeds: {count: 2}
workload: """
LIST_CSV = """\
name,count,ask_mib,memory_mib,seconds,sm_active,class,arrives_s
train,2,8000,1000,10,0.1,batch,
train,2,8000,6000,90,0.6,batch,
serve,3,2000,1500,40,0.2,latency-critical,
"""


def spec_of(workload: str) -> ExperimentSpec:
    return decode_spec((HEAD + workload + "\n").encode(), "experiment.yaml")


def jobs_of(
    workload: str, folder: Path = Path(), pods: list[PodRequest] | None = None, **levels: str
) -> tuple[Job, ...]:
    """The jobs of the first seed's cell at these levels."""
    spec = spec_of(workload)
    assert isinstance(spec.workload, SimulatedJobs)
    maker = ScenarioMaker(spec.workload, data_paths(spec, folder), lambda path: pods or [])
    return maker.scenario(cell_at(spec, **levels)).jobs


def cell_at(spec: ExperimentSpec, **levels: str) -> PlannedCell:
    return next(
        cell
        for cell in plan(spec)
        if all(level.text == levels.get(level.axis, level.text) for level in cell.levels)
    )


def result_of(workload: str, folder: Path = Path(), scheduler: str = "gpushare") -> CellResult:
    spec = spec_of(workload)
    runner = runner_of(spec, data_paths(spec, folder), built_in().from_spec)
    cell = next(each for each in plan(spec) if each.scheduler == scheduler)
    return runner.run(cell)


def gaps_s(jobs: tuple[Job, ...]) -> list[float]:
    instants = sorted(job.arrives_ns for job in jobs)
    pairs = itertools.pairwise(instants)
    return [(later - earlier) / SECOND_NS for earlier, later in pairs]


def test_a_list_of_ones_own_gives_the_same_jobs_as_csv_and_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(LIST_CSV)
    phases = [
        {"seconds": 10, "memoryMib": 1000, "smActive": 0.1},
        {"seconds": 90, "memoryMib": 6000, "smActive": 0.6},
    ]
    train = {"name": "train", "count": 2, "askMib": 8000, "jobClass": "batch", "phases": phases}
    one = [{"seconds": 40, "memoryMib": 1500, "smActive": 0.2}]
    serve = {"name": "serve", "count": 3, "askMib": 2000, "phases": one}
    serve["jobClass"] = "latency-critical"
    listed = {"apiVersion": "weft.dev/v1", "kind": "JobList", "jobs": [train, serve]}
    (tmp_path / "jobs.yaml").write_text(json.dumps(listed))
    of_csv, of_yaml = (
        jobs_of(f"{{kind: job-list, jobsFile: jobs.{form}, percents: [0, 50]}}", tmp_path)
        for form in ("csv", "yaml")
    )
    assert of_csv == of_yaml
    assert sorted((job.kind, job.request_mib, job.peak_mib) for job in of_csv) == [
        *[("serve", 2000, 1500)] * 3,
        *[("train", 8000, 6000)] * 2,
    ]
    more = jobs_of(
        "{kind: job-list, jobsFile: jobs.csv, percents: [0, 50]}", tmp_path, percent="50"
    )
    assert {job.request_mib for job in more} == {12_000, 3_000}
    assert [job.arrives_ns for job in more] == [job.arrives_ns for job in of_csv]


@pytest.mark.parametrize(
    ("wrong", "instead", "problem"),
    [
        (",seconds,", ",secs,", "lacks column seconds; it has name, count"),
        (",class", ",klass", "column 'klass' is unknown; did you mean 'class'?"),
        ("1000,10,", "1000,ten,", "line 2, column seconds: 'ten' is not a number"),
        ("train,2,", "train,2.5,", "2.5 is not a whole number"),
        (",0.6,", ",1.6,", "jobs[0].phases[1].smActive: 1.6 is more than 1"),
    ],
)
def test_a_broken_list_is_told_by_line_and_column(
    tmp_path: Path, wrong: str, instead: str, problem: str
) -> None:
    (tmp_path / "jobs.csv").write_text(LIST_CSV.replace(wrong, instead))
    with pytest.raises(BadInputError) as told:
        jobs_of("{kind: job-list, jobsFile: jobs.csv}", tmp_path)
    assert problem in f"{told.value}"


def test_the_generators_list_gives_a_job_for_each_replica(tmp_path: Path) -> None:
    program = {
        "MODEL_DIR": "/models",
        "model": "ssd-mobilenet",
        "container_name": "ssd",
        "memory_request_GB": 7,
        "memory_request_MiB": 6994,
        "list": [{"queries": 1024, "replicas": 2}, {"queries": 512, "replicas": 1}],
    }
    path = tmp_path / "list.json"
    path.write_text(json.dumps([program]))
    workload = "{kind: mlperf-list, jobsFile: list.json, percents: [0, 100, 250]}"
    jobs = jobs_of(workload, tmp_path)
    took = sorted((job.kind, round(job.work_ns / SECOND_NS, 1)) for job in jobs)
    assert took == [("ssd-1024", 131.5), ("ssd-1024", 131.5), ("ssd-512", 74.5)]
    assert {job.request_mib for job in jobs_of(workload, tmp_path, percent="100")} == {13_988}
    assert {job.request_mib for job in jobs_of(workload, tmp_path, percent="250")} == {24_479}
    path.write_text(json.dumps([{**program, "model": "bert"}]))
    with pytest.raises(BadInputError, match="write it in querySeconds"):
        jobs_of(workload, tmp_path)


def test_pods_of_manifests_use_a_part_of_what_they_ask() -> None:
    half = GpuRequest(memory=GpuMemoryRequest("percent", 50))
    whole = GpuRequest(whole=True)
    pods = [PodRequest(name, name, Shape((ask,))) for name, ask in (("a", half), ("b", whole))]
    workload = "{kind: pods, manifests: m, usedRatio: 0.5, gpuMib: 1000, copies: 2}"
    made = {(job.kind, job.request_mib, job.peak_mib) for job in jobs_of(workload, pods=pods)}
    assert made == {("a", 500, 250), ("b", 1000, 500)}
    pods = [PodRequest("c", "c", Shape((GpuRequest(2, whole=True),)))]
    with pytest.raises(BadInputError, match="asks for 2 GPUs"):
        jobs_of(workload, pods=pods)


def test_arrivals_come_at_the_mean_gap_that_is_written_or_that_the_load_gives() -> None:
    """At load 2 on one card jobs come twice as fast as it could run them one by one."""
    knots = "{kind: kube-knots-cluster, mixes: [2], jobs: 2000, gpus: 1, "
    for law in ("poisson", "philly-like", "uniform"):
        jobs = jobs_of(knots + f"loads: [2.0], arrivals: {{kind: {law}}}}}")
        alone_s = sum(job.work_ns for job in jobs) / SECOND_NS / len(jobs)
        mean_s = sum(gaps_s(jobs)) / (len(jobs) - 1)
        # 2,000 gaps with the coefficient of variation of the burstiest law, 2.9: ± 3 deviations
        assert mean_s == pytest.approx(alone_s / 2, rel=0.2)
    gaps = gaps_s(jobs_of(knots + "arrivals: {kind: uniform, leastSeconds: 5, mostSeconds: 7}}"))
    assert 5 <= min(gaps) < 5.2
    assert 6.8 < max(gaps) <= 7


def test_a_trace_gives_its_gaps_from_another_place_for_each_seed(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("name,creation_time\na,100\nb,103\nc,110\nd,111\n")
    workload = (
        "{kind: kube-knots-cluster, mixes: [1], jobs: 30, arrivals: {kind: trace, file: trace.csv}}"
    )
    jobs = jobs_of(workload, tmp_path)
    assert {round(gap) for gap in gaps_s(jobs)} == {3, 7, 1}
    (tmp_path / "trace.csv").write_text("1\nsoon\n")
    with pytest.raises(BadInputError, match=r"trace\.csv, line 2: 'soon' is not a time"):
        jobs_of(workload, tmp_path)


@pytest.mark.parametrize(
    ("workload", "place", "problem"),
    [
        ("{kind: pods, manifest: x}", "workload", "did you mean 'manifests'?"),
        ("{kind: kube-knots-cluster, mixes: [4]}", "workload.mixes[0]", "4 is more than 3"),
        ("{kind: kube-knots-dl, arrivals: {kind: poison}}", "workload.arrivals.kind", "poisson"),
        ("{kind: kube-knots-dl, imageMib: 9}", "workload.imageMib", "set pullMibPerSecond"),
        (
            "{kind: kube-knots-dl, assumptions: [{name: a}, {name: a}]}",
            "workload.assumptions[1]",
            "'a' is listed twice",
        ),
        (
            "{kind: overprovisioned, assumptions: [{computeRatio: 0.5}]}",
            "workload.assumptions[0].computeRatio",
            "compute: proportional",
        ),
        (
            "{kind: overprovisioned, assumptions: [{compute: proportional, computeShown: true}]}",
            "workload.assumptions[0].computeShown",
            "needs computeRatio",
        ),
        (
            "{kind: pairs, table: t, assumptions: [{compute: proportional}]}",
            "workload.assumptions[0].compute",
            "needs computeRatio",
        ),
        (
            "{kind: kube-knots-dl, arrivals: {kind: uniform, leastSeconds: 50}}",
            "workload.arrivals.leastSeconds",
            "50 is more than mostSeconds",
        ),
    ],
)
def test_a_workload_that_cannot_be_is_told(workload: str, place: str, problem: str) -> None:
    with pytest.raises(BadInputError) as told:
        spec_of(workload)
    assert told.value.where == f"experiment.yaml: {place}"
    assert problem in told.value.problem


ASSUMED = """{kind: overprovisioned, percents: [150], assumptions: [
  {name: as-measured}, {name: unknown, earlierRuns: false},
  {name: in-proportion, compute: proportional, computeRatio: 1.0},
  {name: shown, compute: proportional, computeRatio: 1.0, computeShown: true}]}"""


def test_each_assumption_makes_another_scenario_of_the_same_jobs() -> None:
    spec = spec_of(ASSUMED)
    assert isinstance(spec.workload, SimulatedJobs)
    maker = ScenarioMaker(spec.workload, {})
    measured, unknown, in_proportion = (
        maker.scenario(cell_at(spec, assumption=name))
        for name in ("as-measured", "unknown", "in-proportion")
    )
    assert measured.jobs == unknown.jobs == in_proportion.jobs
    shown = maker.scenario(cell_at(spec, assumption="shown"))
    assert {phase.sm_active_ratio for job in shown.jobs for phase in job.phases} == {1.0}
    assert shown.sharing == in_proportion.sharing
    assert (measured.knows_kinds, unknown.knows_kinds) == (True, False)
    assert (measured.sharing, in_proportion.sharing) == (AS_MEASURED, ComputeSharing(True, 1.0))


@pytest.mark.data_full
def test_what_harvesting_saves_depends_on_what_is_assumed() -> None:
    """At 150 % jobs alone on a card could share it: not if each needs all of its compute, and less
    if nobody knows from earlier runs what they use."""
    spec = spec_of(ASSUMED)
    runner = runner_of(spec, {}, built_in().from_spec)
    p99 = {
        (cell.levels[-1].text, cell.scheduler): runner.run(cell).measures["jct_p99_s"] or 0.0
        for cell in plan(spec)
        if cell.seed == 0
    }
    saved = {
        name: 1 - p99[name, "auto"] / p99[name, "gpushare"]
        for name in ("as-measured", "unknown", "in-proportion", "shown")
    }
    assert saved["as-measured"] > saved["unknown"] + 0.1
    assert saved["unknown"] > saved["in-proportion"] + 0.1
    assert saved["shown"] > -0.02  # where metrics show it, nothing is lent, and nothing lost


def test_a_training_job_of_kube_knots_has_a_worker_on_each_of_its_gpus() -> None:
    spec = spec_of("{kind: kube-knots-dl, arrivals: {kind: poisson, meanSeconds: 20}}")
    assert isinstance(spec.workload, SimulatedJobs)
    scenario = ScenarioMaker(spec.workload, {}).scenario(plan(spec)[0])
    by_job: dict[str, list[Job]] = {}
    for job in scenario.jobs:
        by_job.setdefault(
            job.uid.rpartition("-")[0] if job.uid.count("-") > 1 else job.uid, []
        ).append(job)
    assert len(by_job) == 520 + 1400
    gpus = [len(workers) for uid, workers in by_job.items() if uid.startswith("dlt")]
    assert {*gpus} == {1, 2, 4, 8}
    assert 2.5 < sum(gpus) / len(gpus) < 3.5
    for workers in by_job.values():
        assert len({(each.arrives_ns, each.phases, each.request_mib) for each in workers}) == 1


def test_kube_knots_services_are_late_where_their_gpu_is_not_shared() -> None:
    """With one card for all, queries wait behind batch jobs; sharing it serves them in time."""
    workload = "{kind: kube-knots-cluster, mixes: [2], gpus: 1, jobs: 12, loads: [1.5]}"
    alone = result_of(workload.replace("}", ", scrapeSeconds: 60}"), scheduler="gpushare")
    spec = msgspec.structs.replace(spec_of(workload), schedulers=("exclusive",))
    runner = runner_of(spec, {}, built_in().from_spec)
    apart = runner.run(plan(spec)[0])
    assert (apart.measures["late_queries_percent"] or 0) > 20
    assert (alone.measures["late_queries_percent"] or 0) < 10
    services = [job for job in alone.jobs if job.queries]
    assert services
    assert all(job.query_p99_s is not None and job.query_p99_s > 0.02 for job in services)
    batch = [job for job in alone.jobs if not job.queries]
    assert all(job.query_p99_s is None for job in batch)


def test_gandiva_and_best_residency_run_any_jobs_that_share_gpus(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(LIST_CSV)
    spec = spec_of("{kind: job-list, jobsFile: jobs.csv, gpus: 1}")
    spec = msgspec.structs.replace(spec, schedulers=("gandiva", "best-residency"))
    runner = runner_of(spec, data_paths(spec, tmp_path), built_in().from_spec)
    for cell in plan(spec):
        assert runner.run(cell).measures["unfinished"] == 0

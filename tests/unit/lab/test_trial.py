"""A trial's arithmetic: the Jobs a scheduler gets, times of API objects, what marks a cell."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.kube.structs import KubeNode
from weft.lab.experiment.run.cluster_jobs import job_manifest, planned_jobs
from weft.lab.experiment.spec.cluster import ClusterJobs
from weft.lab.experiment.spec.experiment import ExperimentSpec, decode_spec
from weft.lab.trial.job_rows import (
    LoggedQueryTimes,
    clock_marks,
    job_marks,
    job_measures,
    job_rows,
    read_query_times,
)
from weft.lab.trial.objects import KubeJob, TrialPod
from weft.lab.trial.ranges import (
    CardSeries,
    TurnNodes,
    cards_of,
    lost,
    silent,
    turn_nodes,
    usage_measures,
    usage_over_time,
)
from weft.lab.trial.turn import ClockOffset, apart, offset_of
from weft.lab.workloads.queries import last_line
from weft.model import BadInputError
from weft.model.metric import Metric
from weft.telemetry.meaning.answers import QueryResult, decode

GPUSHARE = "aliyun.com/gpu-mem"

FILE = """\
apiVersion: weft.dev/v1
kind: Experiment
name: turns
workload:
  kind: cluster-jobs
  models: models.json
  percents: [0, 100]
cluster:
  schedulers:
    - {name: default, request: {resource: nvidia.com/gpu}}
    - {name: alibaba, request: {resource: aliyun.com/gpu-mem, unit: GiB, most: 31}}
    - {name: knots, schedulerName: custom-scheduler, request: {label: GPU_MEM_REQ, unit: MiB, most: 32510}}
schedulers: [default, alibaba, knots]
"""  # noqa: E501
MODEL = {
    "MODEL_DIR": "/root/models/tf-resnet50",
    "DATA_DIR": "/root/datasets/fake-imagenet",
    "backend": "tf",
    "model": "resnet50",
    "scenario": "SingleStream",
    "container_name": "mlperf-inference-container",
    "image_name": "mlperf-inference:latest",
    "memory_request_GB": 9,
    "memory_request_MiB": 8388,
    "list": [{"queries": 64, "replicas": 0}, {"queries": 1024, "replicas": 3}],
}


def spec_of(text: str = FILE) -> ExperimentSpec:
    return decode_spec(text.encode(), "experiment.yaml")


@pytest.mark.parametrize(
    ("scheduler", "percent", "limits", "label"),
    [
        ("default", 100, {"nvidia.com/gpu": "1"}, None),
        ("alibaba", 0, {"aliyun.com/gpu-mem": "9"}, None),
        ("alibaba", 100, {"aliyun.com/gpu-mem": "18"}, None),
        ("alibaba", 250, {"aliyun.com/gpu-mem": "31"}, None),
        ("knots", 50, None, "12582"),
        ("knots", 300, None, "32510"),
    ],
)
def test_jobs_ask_each_scheduler_in_its_words_as_the_first_generator_did(
    tmp_path: Path, scheduler: str, percent: int, limits: dict[str, str] | None, label: str | None
) -> None:
    spec, models = spec_of(), tmp_path / "models.json"
    models.write_text(json.dumps([MODEL]))
    assert isinstance(spec.workload, ClusterJobs)
    assert spec.cluster is not None
    jobs = planned_jobs(spec.workload, models, 3)
    assert sorted(job.name for job in jobs) == [f"tf-resnet50-1024-{n}" for n in range(3)]
    gaps = np.diff([job.arrival_s for job in jobs])
    assert jobs[0].arrival_s == 0
    assert ((gaps >= 20) & (gaps <= 40)).all()
    made = job_manifest(jobs[0], spec.cluster.scheduler(scheduler), spec.cluster, percent)
    pod = made["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert made["spec"]["backoffLimit"] == 20
    assert pod["spec"]["restartPolicy"] == "OnFailure"
    assert container.get("resources", {}).get("limits") == limits
    assert pod["metadata"].get("labels", {}).get("GPU_MEM_REQ") == label
    assert "./run_local.sh tf resnet50 gpu --scenario SingleStream" in container["command"][2]


def test_a_program_that_can_be_simulated_but_not_run_is_refused_by_field(tmp_path: Path) -> None:
    workload, models = spec_of().workload, tmp_path / "models.json"
    assert isinstance(workload, ClusterJobs)
    models.write_text(json.dumps([MODEL, {**MODEL, "image_name": ""}]))
    with pytest.raises(BadInputError, match=r"models\.json: \[1\]\.image_name.*missing"):
        planned_jobs(workload, models, 1)


def test_seeds_draw_orders_and_delays_that_are_the_same_for_every_scheduler(tmp_path: Path) -> None:
    workload, models = spec_of().workload, tmp_path / "models.json"
    assert isinstance(workload, ClusterJobs)
    runs = [{"queries": 1024, "replicas": 9}]
    models.write_text(json.dumps([MODEL | {"list": runs}]))
    assert planned_jobs(workload, models, 1) == planned_jobs(workload, models, 1)
    names = [[job.name for job in planned_jobs(workload, models, seed)] for seed in (1, 2)]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "schedulers: [default, alibaba, knots]",
            "schedulers: [defualt]",
            "did you mean 'default'",
        ),
        ("  models: models.json\n", "", "workload: must have either `models` or `jobs`"),
        ("{resource: nvidia.com/gpu}", "{unit: cards}", "must name either a resource or a label"),
        ("{name: alibaba,", "{name: default,", "'default' is listed twice"),
        ("percents: [0, 100]", "percents: [0, 0]", "workload.percents[1]: 0 is listed twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_field(old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(BadInputError) as wrong:
        spec_of(FILE.replace(old, new))
    assert says in str(wrong.value)


def test_query_times_are_read_from_the_line_that_workloads_write() -> None:
    line = last_line([0.001 * n for n in range(1, 101)], 5.0)
    log = f"starting\n{line}\nbye\n"
    assert read_query_times(log) == LoggedQueryTimes(0.0901, 0.0990)
    assert read_query_times("TestScenario.SingleStream qps=1, mean=2\n") is None
    assert read_query_times(line.replace("99.0:", "99.0:x")) is None


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


def job_of(name: str, created: int, ended: int) -> KubeJob:
    status = {"startTime": at(created), "completionTime": at(ended)}
    metadata = {"name": name, "creationTimestamp": at(created)}
    return msgspec.convert({"metadata": metadata, "status": status}, KubeJob)


def pod_of(job: str, created: int, bound: int, ran: tuple[int, int], restarts: int = 0) -> TrialPod:
    labels = {"batch.kubernetes.io/job-name": job}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(bound)}
    ended = {"startedAt": at(ran[0]), "finishedAt": at(ran[1]), "exitCode": 0}
    container = {"name": "main", "restartCount": restarts, "state": {"terminated": ended}}
    meta = {"name": f"{job}-{created}", "creationTimestamp": at(created), "labels": labels}
    status = {
        "phase": "Succeeded",
        "startTime": at(bound),
        "conditions": [scheduled],
        "containerStatuses": [container],
    }
    return msgspec.convert(
        {"metadata": meta, "spec": {"nodeName": "n"}, "status": status}, TrialPod
    )


def test_rows_are_the_apis_times_from_the_first_job_on() -> None:
    jobs = [job_of("a", 10, 30), job_of("b", 12, 50)]
    pods = [
        pod_of("a", 10, 11, (12, 29), restarts=2),
        pod_of("b", 13, 20, (21, 30), restarts=1),
        pod_of("b", 33, 34, (35, 49)),
    ]
    times = {"a": LoggedQueryTimes(0.2, 0.3)}
    rows = job_rows(jobs, pods, {"a": "x", "b": "y"}, {"b": 1}, times)
    first, second = rows
    assert list(first.moments().values()) == [0, 0, 0, 1, 1, 2, 19, 20]
    assert (first.restarts, first.p90_s, first.p99_s) == (2, 0.2, 0.3)
    assert (second.evictions, second.restarts, second.ooms, second.bound_s) == (1, 1, 1, 24)
    measures = job_measures(rows)
    assert (measures["makespan_s"], measures["jct_mean_s"], measures["queue_mean_s"]) == (
        40,
        29,
        11.5,
    )
    assert clock_marks(rows) == []


def test_times_in_the_wrong_order_mark_the_cell() -> None:
    kinds: dict[str, str] = {"a": "x"}
    one_apart = job_rows([job_of("a", 10, 30)], [pod_of("a", 10, 11, (10, 29))], kinds, {}, {})
    assert clock_marks(one_apart) == []
    ahead = job_rows([job_of("a", 10, 30)], [pod_of("a", 10, 11, (12, 33))], kinds, {}, {})
    (mark,) = clock_marks(ahead)
    assert mark.startswith("clocks are 3 s apart: finished_s of Job a on node n is before")


def test_servers_clocks_are_apart_only_where_that_is_sure() -> None:
    api = offset_of(100.0, 1.0, 100.2, 100.4)  # it told a whole second
    assert apart(ClockOffset(-0.1, 0.1), api) == []
    assert apart(ClockOffset(1.7, 1.8), api) == []
    assert "ahead of the API server's" in apart(ClockOffset(1.9, 2.0), api)[0]
    assert "1.6 s behind the API server's" in apart(ClockOffset(-2.1, -2.0), api)[0]


def test_lost_samples_are_told_and_neighbours_do_not_hide_them() -> None:
    every = np.arange(0.0, 60.0, 1.0)
    gap = every[(every < 20) | (every >= 31)]
    series = {
        "whole": CardSeries(every, np.ones(60)),
        "hole": CardSeries(gap, np.ones(len(gap))),
    }
    (mark,) = lost(Metric.POWER_W, series, 0.0, 60.0)
    assert mark.endswith("GPU hole has none for 12 s")
    assert lost(Metric.POWER_W, {"whole": series["whole"]}, 0.0, 60.0) == []
    (late,) = lost(Metric.POWER_W, {"whole": series["whole"]}, 0.0, 80.0)
    assert late.endswith("for 21 s")
    assert "no samples" in lost(Metric.POWER_W, {}, 0.0, 60.0)[0]


def samples_of(name: str, values: dict[str, int]) -> QueryResult:
    """Prometheus' answer: this metric of GPU 0 of each node, at four seconds."""
    result = [
        {
            "metric": {"__name__": name, "Hostname": host, "gpu": "0"},
            "values": [[at_s, str(value)] for at_s in range(4)],
        }
        for host, value in values.items()
    ]
    data = {"resultType": "matrix", "result": result}
    return decode(json.dumps({"status": "success", "data": data}).encode(), "here")


POWER, MEMORY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED"


def test_usage_is_summed_over_the_nodes_cards() -> None:
    cards = cards_of([samples_of(POWER, {"a": 100, "b": 50, "other": 999})], {"a", "b"}).cards
    assert sorted(cards) == ["a/0", "b/0"]
    usage = usage_over_time({Metric.POWER_W: cards}, [(0, 1, 3), (2, None, None)], 4.0)
    assert [row.power_w for row in usage] == [150.0] * 4
    assert [row.resident for row in usage] == [0, 1, 1, 0]
    assert [row.waiting for row in usage] == [1, 0, 1, 1]
    assert usage_measures(usage)["energy_kj"] == 0.6


def nodes_of(ready: str = "True", **resources: dict[str, str]) -> TurnNodes:
    """Nodes of this capacity; schedulers are asked by gpushare's resource, or by a label."""
    conditions = [{"type": "Ready", "status": ready}]
    nodes = [
        msgspec.convert(
            {"metadata": {"name": name}, "status": {"capacity": has, "conditions": conditions}},
            KubeNode,
        )
        for name, has in resources.items()
    ]
    return turn_nodes(nodes, [GPUSHARE, ""])


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", GPUSHARE])
def test_a_node_whose_exporter_is_silent_is_told_by_name(resource: str) -> None:
    nodes = nodes_of(a={resource: "2"}, b={resource: "2"}, c={"cpu": "8", resource: "0"})
    read = {Metric.POWER_W: cards_of([samples_of(POWER, {"a": 100})], nodes.names)}
    assert silent(read, nodes) == [
        "Prometheus has no samples of power_w from node b; check its target"
    ]
    read = {Metric.POWER_W: cards_of([samples_of(POWER, {"a": 100, "b": 100})], nodes.names)}
    assert silent(read, nodes) == []


def test_a_node_that_takes_no_pods_need_not_tell_of_its_cards() -> None:
    nodes = nodes_of(ready="Unknown", a={"nvidia.com/gpu": "2"}, b={"nvidia.com/gpu": "2"})
    read = {Metric.POWER_W: cards_of([samples_of(POWER, {"a": 100})], nodes.names)}
    assert silent(read, nodes) == []


def test_a_node_has_cards_where_another_metric_tells_of_some() -> None:
    nodes = nodes_of(a={}, b={}, c={})
    read = {
        Metric.POWER_W: cards_of([samples_of(POWER, {"a": 100})], nodes.names),
        Metric.MEMORY_USED_MIB: cards_of([samples_of(MEMORY, {"a": 1, "b": 1})], nodes.names),
    }
    (mark,) = silent(read, nodes)
    assert "no samples of power_w from node b" in mark


def test_cards_of_nodes_by_other_names_are_taken_and_that_is_told() -> None:
    nodes = nodes_of(a={"nvidia.com/gpu": "1"})
    cards = cards_of([samples_of(POWER, {"10.0.0.1": 100, "10.0.0.2": 50})], nodes.names)
    assert sorted(cards.cards) == ["10.0.0.1/0", "10.0.0.2/0"]
    (mark,) = silent({Metric.POWER_W: cards}, nodes)
    assert "they name 10.0.0.1, Kubernetes has a" in mark
    assert "the samples of all GPUs were used" in mark
    assert silent({Metric.POWER_W: cards_of([], nodes.names)}, nodes) == []  # `lost` says so


def failed_job(name: str, created: int) -> KubeJob:
    conditions = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    metadata = {"name": name, "creationTimestamp": at(created)}
    return msgspec.convert({"metadata": metadata, "status": {"conditions": conditions}}, KubeJob)


def test_jobs_that_failed_mark_the_cell_for_times_are_of_the_others() -> None:
    jobs = {"a": job_of("a", 10, 11), "b": failed_job("b", 10), "c": failed_job("c", 12)}
    kinds = dict.fromkeys(jobs, "x")
    assert job_measures(job_rows(jobs.values(), [], kinds, {}, {}))["jct_mean_s"] == 1
    assert job_marks(jobs, list(kinds)) == [
        "2 of 3 Jobs failed, the first is b: completion times cover only completed Jobs"
    ]
    assert job_marks({"a": jobs["a"]}, ["a"]) == []


def test_a_turn_without_any_job_is_marked_and_has_no_rows() -> None:
    assert job_rows([], [], {"a": "x"}, {}, {}) == []
    assert job_measures([])["jct_mean_s"] is None
    assert "no Job was seen" in job_marks({}, ["a"])[0]

"""The Jobs of an experiment on a cluster: their arrival times, and their manifests for each
scheduler.

Jobs are made as by Ferikoglou's generator: one pod with one container, `backoffLimit: 20`,
`restartPolicy: OnFailure`, and GPU memory in the scheduler's unit, over-provisioned by p: int(GiB ·
(1 + p)) or int(MiB · (1 + p)), up to the scheduler's limit. Pure functions."""

import random
from pathlib import Path
from typing import Any

import msgspec

from weft.lab.experiment.spec.cluster import Cluster, ClusterJobs, ClusterScheduler
from weft.lab.simulate.sharing.job_lists import GeneratedProgram, read_generated
from weft.model import BadInputError

BACKOFF_LIMIT = 20
_MIB_A_GIB = 1024


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A Job and the time of its creation, in seconds from the start of the run on the cluster."""

    name: str
    kind: str
    arrival_s: float
    image: str
    command: tuple[str, ...] = ()
    container: str = "main"
    memory_mib: int = 0
    memory_gib: int = 0
    gpus: int = 1
    run_s: float | None = None
    annotations: dict[str, str] = {}


def planned_jobs(workload: ClusterJobs, models: Path | None, seed: int) -> list[PlannedJob]:
    """Return the workload's Jobs by arrival time; `models` is Ferikoglou's JSON, if any.

    The same seed gives the same Jobs for every scheduler and level."""
    jobs = _listed(models) if models is not None else _own(workload)
    drawn = [job for job in jobs if job.arrival_s < 0]
    rng = random.Random(f"weft-cluster-jobs-{seed}")
    rng.shuffle(drawn)
    at_s, timed = 0.0, [job for job in jobs if job.arrival_s >= 0]
    for job in drawn:
        timed.append(msgspec.structs.replace(job, arrival_s=round(at_s, 3)))
        at_s += rng.uniform(*workload.delay_seconds)
    if not timed:
        raise BadInputError("workload", "has no Jobs: every `replicas` is 0")
    return sorted(timed, key=lambda job: job.arrival_s)


def pod_template(
    job: PlannedJob, scheduler: ClusterScheduler, cluster: Cluster, percent: int
) -> dict[str, Any]:
    """Return metadata and spec of the Job's pod, with GPUs requested in this scheduler's form."""
    request = scheduler.request
    amount = str(_amount(job, scheduler, percent))
    container: dict[str, Any] = {"name": job.container, "image": job.image}
    if job.command:
        container["command"] = list(job.command)
    if request.resource:
        container["resources"] = {"limits": {request.resource: amount}}
    metadata: dict[str, Any] = {"annotations": dict(job.annotations)}
    if request.label:
        metadata["labels"] = {request.label: amount}
    spec: dict[str, Any] = {
        "schedulerName": scheduler.scheduler_name,
        "restartPolicy": "OnFailure",
        "nodeSelector": dict(cluster.node_selector),
        "containers": [container],
    }
    return {
        "metadata": metadata,
        "spec": {**spec, **({"hostIPC": True} if cluster.host_ipc else {})},
    }


def job_manifest(
    job: PlannedJob, scheduler: ClusterScheduler, cluster: Cluster, percent: int
) -> dict[str, Any]:
    """Return the Job's manifest, without the labels that every object of a run on the cluster
    gets."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": {
            "backoffLimit": BACKOFF_LIMIT,
            "completions": 1,
            "parallelism": 1,
            "template": pod_template(job, scheduler, cluster, percent),
        },
    }


def _amount(job: PlannedJob, scheduler: ClusterScheduler, percent: int) -> int:
    request = scheduler.request
    if request.unit == "cards":
        amount = job.gpus
    else:
        asked = job.memory_mib if request.unit == "MiB" else job.memory_gib
        amount = asked * (100 + percent) // 100
    return min(amount, request.most) if request.most else amount


def _own(workload: ClusterJobs) -> list[PlannedJob]:
    return [
        PlannedJob(
            name=job.name if job.count == 1 else f"{job.name}-{number}",
            kind=job.name,
            arrival_s=job.arrival_seconds[number] if job.arrival_seconds else -1.0,
            image=job.image,
            command=job.command,
            memory_mib=job.memory_mib,
            memory_gib=-(-job.memory_mib // _MIB_A_GIB),
            gpus=job.gpus,
            run_s=job.run_seconds,
            annotations=job.annotations,
        )
        for job in workload.jobs
        for number in range(job.count)
    ]


def _listed(path: Path) -> list[PlannedJob]:
    return [
        PlannedJob(
            name=f"{Path(model.model_dir).name}-{runs.queries}-{number}",
            kind=Path(model.model_dir).name,
            arrival_s=-1.0,
            image=model.image_name,
            command=_mlperf_command(model, runs.queries),
            container=model.container_name,
            memory_mib=model.memory_mib,
            memory_gib=model.memory_gib,
        )
        for model in read_generated(path, for_images=True)
        for runs in model.runs
        for number in range(runs.replicas)
    ]


def _mlperf_command(model: GeneratedProgram, queries: int) -> tuple[str, ...]:
    """Return the command of the images of Ferikoglou's study: MLPerf Inference v0.5."""
    root = "/root/inference/v0.5"
    script = (
        f"cp /root/configs/{queries}/mlperf.conf {root}/ && cd {root}/classification_and_detection "
        f"&& MODEL_DIR={model.model_dir} DATA_DIR={model.data_dir} "
        f"./run_local.sh {model.backend} {model.model} gpu --scenario {model.scenario}"
    )
    return ("sh", "-c", script)

"""The form of an experiment on a cluster: its jobs, schedulers, nodes and metrics server.

The same file can be simulated if its schedulers name a `policy` and its jobs have `run_seconds`;
the nodes are then those of `simulated`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from weft.files.form import Section
from weft.model import BadInputError
from weft.model.nearest import unknown

JobName = Annotated[
    str,
    Meta(
        pattern="^[a-z0-9]([a-z0-9-]{0,45}[a-z0-9])?$",
        extra={"refused": "{} is not a name; write up to 47 lower-case letters, digits and -"},
    ),
]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Mib = Annotated[int, Meta(ge=0, le=10_000_000)]
Percents = Annotated[tuple[Annotated[int, Meta(ge=0, le=1_000)], ...], Meta(min_length=1)]
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"


class ClusterJob(Section, frozen=True, kw_only=True):
    """`count` equal Jobs, each of one pod with one container.

    Each requests whole `gpus` or `memory_mib` of GPU memory, depending on the unit of the
    scheduler's request form. `arrival_seconds` has one entry per Job; without it the workload sets
    their arrivals. `run_seconds` is their run time, for simulations only. `annotations` are the
    pod's."""

    name: JobName
    image: Annotated[str, Meta(min_length=1)]
    command: tuple[str, ...] = ()
    memory_mib: Mib = 0
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    count: Annotated[int, Meta(ge=1, le=10_000)] = 1
    arrival_seconds: tuple[Seconds, ...] = ()
    run_seconds: Seconds | None = None
    annotations: dict[str, str] = field(default_factory=dict)


class ClusterJobs(Section, frozen=True, kw_only=True, tag_field="kind", tag="cluster-jobs"):
    """Jobs on a cluster: a list of `jobs`, or `models`, the JSON of Ferikoglou et al.'s generator.

    Jobs without an arrival time arrive in random order, with delays drawn uniformly between the two
    `delay_seconds`. Axis: `percents` by which requests exceed `memory_mib`."""

    models: str = ""
    jobs: tuple[ClusterJob, ...] = ()
    percents: Percents = (0,)
    delay_seconds: tuple[Seconds, Seconds] = (20.0, 40.0)


class GpuRequestForm(Section, frozen=True):
    """The form in which a scheduler's pods request GPUs: a `resource` of the container, or a
    `label` of the pod.

    The amount is in `unit` (whole GPUs, or MiB or GiB of memory), and at most `most`; 0: no
    limit."""

    resource: str = ""
    label: str = ""
    unit: Literal["cards", "MiB", "GiB"] = "cards"
    most: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class ClusterScheduler(Section, frozen=True, kw_only=True):
    """A scheduler of the cluster.

    `reporting_controller` is the author of its events (default: its `scheduler_name`),
    `annotations` are those that it writes on every pod that it binds; a probe pod must get them
    before the scheduler runs Jobs. `mend` is the command that sets the scheduler up. `policy` is
    the policy that replaces it in simulations."""

    name: Annotated[str, Meta(min_length=1, max_length=63)]
    scheduler_name: str = "default-scheduler"
    request: GpuRequestForm
    reporting_controller: str = ""
    annotations: tuple[str, ...] = ()
    mend: str = ""
    policy: str = ""

    @property
    def says(self) -> str:
        """The author named in the scheduler's events."""
        return self.reporting_controller or self.scheduler_name


class PrometheusAccess(Section, frozen=True):
    """The metrics server of the nodes' GPUs, with fields as in `telemetry` of Weft's
    configuration."""

    url: str
    selector: str = ""
    bearer_token_file: str = ""
    authority_file: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0, le=3_600)] = 30.0


class SimulatedNodes(Section, frozen=True):
    """The nodes of a simulated run, each with `gpus` GPUs of `memory_mib`."""

    nodes: Annotated[int, Meta(ge=1, le=10_000)] = 1
    gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    memory_mib: Annotated[int, Meta(ge=1, le=10_000_000)] = 32_510
    model: str = "V100"


class Cluster(Section, frozen=True, kw_only=True):
    """The cluster to run on. Each cell is one scheduler's turn: a run in a namespace of its own.

    `kubeconfig` and `context` default to kubectl's; `~` and `$NAME` are expanded. Pods run on nodes
    with all labels of `node_selector`. The probe pod, of `probe_image`, must run within
    `probe_seconds`; a turn ends after at most `turn_seconds`; Jobs and pods are polled every
    `look_seconds`."""

    schedulers: Annotated[tuple[ClusterScheduler, ...], Meta(min_length=1)]
    kubeconfig: str = ""
    context: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    prometheus: PrometheusAccess | None = None
    host_ipc: bool = False
    probe_image: str = PAUSE_IMAGE
    probe_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    turn_seconds: Annotated[float, Meta(gt=0, le=1e7)] = 86_400.0
    look_seconds: Annotated[float, Meta(ge=0.1, le=600)] = 1.0
    simulated: SimulatedNodes = SimulatedNodes()

    def scheduler(self, name: str) -> ClusterScheduler:
        """Return the scheduler with this name, which must exist (see `check_cluster`)."""
        return next(each for each in self.schedulers if each.name == name)


def check_cluster(workload: object, cluster: Cluster | None, schedulers: Sequence[str]) -> None:
    """Check rules that types and bounds cannot express; `BadInputError` names the field."""
    if not isinstance(workload, ClusterJobs):
        if cluster is not None:
            raise BadInputError(
                "cluster", "applies only to `workload.kind: cluster-jobs`; remove it"
            )
        return
    if cluster is None:
        raise BadInputError(
            "cluster", "is missing: cluster-jobs run on a cluster; list its schedulers"
        )
    names = [each.name for each in cluster.schedulers]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise BadInputError(f"cluster.schedulers[{at}].name", f"{name!r} is listed twice")
        _check_request(cluster.schedulers[at].request, f"cluster.schedulers[{at}].request")
    for at, name in enumerate(schedulers):
        if name not in names:
            what = f"{unknown(name, names)}; list it under cluster.schedulers"
            raise BadInputError(f"schedulers[{at}]", what)
    _check_jobs(workload)


def _check_request(request: GpuRequestForm, at: str) -> None:
    if bool(request.resource) == bool(request.label):
        raise BadInputError(at, "must name either a resource or a label, not both")


def _check_jobs(workload: ClusterJobs) -> None:
    if bool(workload.models) == bool(workload.jobs):
        raise BadInputError("workload", "must have either `models` or `jobs`, not both")
    low, high = workload.delay_seconds
    if low > high:
        wrong = f"{low:g} is more than {high:g}; write the smaller number first"
        raise BadInputError("workload.delaySeconds", wrong)
    _no_doubles("workload.jobs", [job.name for job in workload.jobs])
    for at, job in enumerate(workload.jobs):
        if job.arrival_seconds and len(job.arrival_seconds) != job.count:
            what = f"has {len(job.arrival_seconds)} times for {job.count} Jobs; write one for each"
            raise BadInputError(f"workload.jobs[{at}].arrivalSeconds", what)


def _no_doubles(at_field: str, values: Sequence[Any]) -> None:
    for at, value in enumerate(values):
        if value in values[:at]:
            raise BadInputError(f"{at_field}[{at}]", f"{value!r} is listed twice")
